"""Bad study files get one message that names the place and the allowed values."""

from pathlib import Path

import pytest
import yaml

from workflow_scripts.grid import expand
from workflow_scripts.study import StudyError, load_study, main, study_file

GOOD = {
    "schema_version": 1,
    "name": "good",
    "question": "does it load?",
    "workloads": {"w": {"kind": "fixed", "num_prompts": 2, "prompt_tokens": 8, "output_tokens": 4}},
    "sweeps": [
        {
            "name": "a",
            "gpu": "cpu-all",
            "engine": "vllm",
            "model": "tiny-llama-57m",
            "workload": "w",
            "knobs": {"block_size": [32, 64], "max_num_seqs": 4},
        }
    ],
}


NGRAM = {"speculative_method": "ngram", "num_speculative_tokens": 4}
DRAFT = {"speculative_method": "draft_model", "num_speculative_tokens": [0, 4], "speculative_model": "smollm-135m"}


def written(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changes}), encoding="utf-8")
    return path


def sweep(**changes: object) -> list[dict[str, object]]:
    return [{**GOOD["sweeps"][0], **changes}]  # type: ignore[index]


def refusal(path: Path) -> str:
    with pytest.raises(StudyError) as caught:
        expand(load_study(path))
    return str(caught.value)


def test_a_good_study_is_the_union_of_its_cross_products(tmp_path: Path) -> None:
    again = {**GOOD["sweeps"][0], "name": "b", "knobs": {"block_size": 32, "max_num_seqs": [4, 8]}}  # type: ignore[index]
    cells = expand(load_study(written(tmp_path, sweeps=[*GOOD["sweeps"], again])))  # type: ignore[misc]
    assert [c.id.rsplit("/", 1)[1] for c in cells] == ["bs32-seqs4", "bs64-seqs4", "bs32-seqs8"]
    assert cells[0].sweeps == ("a", "b")
    assert cells[2].sweeps == ("b",)


def test_engine_defaults_join_every_sweep_and_a_sweep_wins(tmp_path: Path) -> None:
    defaults = {"vllm": {"max_model_len": 512, "max_num_seqs": 99}}
    cells = expand(load_study(written(tmp_path, engine_defaults=defaults)))
    assert cells[0].knobs.set_values() == {"block_size": 32, "max_num_seqs": 4, "max_model_len": 512}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repeat": 3}, ["study.yaml: repeat: unknown key", "allowed:", "repeats", "sweeps"]),
        ({"sweeps": sweep(gpus="h200")}, ["sweeps.0.gpus", "unknown key", "allowed: name, gpu, engine"]),
        ({"sweeps": sweep(gpu="h900")}, ["sweeps[0] (a).gpu", "'h900' is unknown", "cpu-all", "h200"]),
        ({"sweeps": sweep(model="llama-9")}, ["sweeps[0] (a).model", "'llama-9' is unknown", "tiny-llama-57m"]),
        ({"sweeps": sweep(engine="tgi")}, ["sweeps[0] (a).engine", "'tgi' is unknown", "hf-static", "vllm"]),
        ({"sweeps": sweep(workload="x")}, ["sweeps[0] (a).workload", "'x' is unknown", "allowed: w"]),
        ({"sweeps": sweep(knobs={"block_size": 0})}, ["knobs.block_size", "greater than or equal to 1", "not 0"]),
        ({"sweeps": sweep(knobs={"block": 1})}, ["knobs.block", "no such knob", "block_size"]),
        ({"sweeps": sweep(knobs={"block_size": []})}, ["knobs.block_size", "an empty list leaves no cell"]),
        ({"sweeps": sweep(knobs={"block_size": True})}, ["knobs.block_size", "valid integer", "not True"]),
        ({"sweeps": sweep(knobs={"max_num_seqs": "16"})}, ["knobs.max_num_seqs", "valid integer", "not '16'"]),
        ({"sweeps": sweep(knobs={"kv_cache_dtype": "fp4"})}, ["knobs.kv_cache_dtype", "'fp8_e5m2'", "not 'fp4'"]),
        (
            {"sweeps": sweep(knobs={"speculative_method": "ngram"})},
            ["sweeps[0] (a).knobs: speculative_method and num_speculative_tokens go together"],
        ),
        (
            {"sweeps": sweep(knobs={"prompt_lookup_max": 4})},
            ["prompt_lookup_max and prompt_lookup_min need speculative_method: ngram"],
        ),
        (
            {"sweeps": sweep(knobs={"speculative_method": "draft_model", "num_speculative_tokens": 2})},
            ["speculative_method: draft_model and speculative_model go together"],
        ),
        (
            {"sweeps": sweep(knobs={**NGRAM, "prompt_lookup_min": 5, "prompt_lookup_max": 2})},
            ["prompt_lookup_min 5 must be at most prompt_lookup_max 2"],
        ),
        (
            {"sweeps": sweep(knobs={**DRAFT, "speculative_model": "llama-9"})},
            ["sweeps[0] (a).knobs.speculative_model", "'llama-9' is unknown", "tiny-llama-57m"],
        ),
        ({"sweeps": []}, ["sweeps", "at least 1 item"]),
        ({"sweeps": [*sweep(), *sweep(name="b")]}, ["sweeps[1] (b)", "a duplicate of sweep 'a'"]),
        ({"sweeps": [*sweep(), *sweep(gpu="h200")]}, ["sweeps[1] (a)", "another sweep is named 'a'"]),
        ({"workloads": {"w": {"kind": "burst"}}}, ["workloads.w", "burst", "fixed", "synthetic", "shared_prefix"]),
        ({"name": "../up"}, ["name", "pattern"]),
        ({"repeats": 0}, ["repeats", "greater than or equal to 1", "not 0"]),
    ],
)
def test_a_bad_study_is_refused_in_one_message(tmp_path: Path, changes: dict[str, object], words: list[str]) -> None:
    message = refusal(written(tmp_path, **changes))
    assert all(word in message for word in words), message
    assert len(message.splitlines()) == 1


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    assert "no such study file" in refusal(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("sweeps: [", encoding="utf-8")
    assert "not readable as YAML" in refusal(broken)
    broken.write_text("- 1", encoding="utf-8")
    assert "a study is a mapping with the keys schema_version, name" in refusal(broken)


def test_the_command_counts_cells_and_refuses_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(written(tmp_path))]) == 0
    assert "2 cells on cpu-all" in capsys.readouterr().out
    assert main([str(written(tmp_path, name=""))]) == 2
    assert "name" in capsys.readouterr().err


def test_the_study_of_a_call_is_named_or_given_as_configuration(tmp_path: Path) -> None:
    assert study_file({"study": "a.yaml"}, ["config/config.yaml"]) == Path("a.yaml")
    given = written(tmp_path)
    assert study_file({"study": "a.yaml"}, [given, "config/config.yaml"]) == given
    with pytest.raises(StudyError, match="must name a study file"):
        study_file({}, [])


@pytest.mark.parametrize("path", sorted(Path("config/studies").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_study_of_the_project_expands(path: Path) -> None:
    study = load_study(path)
    assert study.name == path.stem
    assert len(expand(study)) > 1

"""What a study file may say; a bad one causes one message with the place and the allowed values."""

import json
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from tests.unit import made_studies
from tests.unit.made_studies import study_content
from workflow_scripts.catalog import hub
from workflow_scripts.catalog.gpus_and_models import CatalogError, get_model, study_models
from workflow_scripts.common.faults import InputError
from workflow_scripts.predict.predictions import predict_cells
from workflow_scripts.prepare.model import main as prepare_model
from workflow_scripts.prepare.tokenizer import build_tokenizer
from workflow_scripts.study.check import main
from workflow_scripts.study.definition import Cells, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import StudyError
from workflow_scripts.study.study_file import check_config, load_study, store_configs, study_file, without_tokenizer

GOOD = study_content(
    {"name": "a", "gpu": "cpu-all", "model": "tiny-llama-57m", "knobs": {"block_size": [32, 64], "max_num_seqs": 4}},
    name="good",
    workloads={"w": made_studies.fixed(2, 8, 4)},
)
MANY = list(range(1, 1001))
NGRAM = {"speculative_method": "ngram", "num_speculative_tokens": 4}
STARTS = {"at_least": 2, "at_most": 4, "budget_min": 120}
DRAFT = {"speculative_method": "draft_model", "num_speculative_tokens": [0, 4], "speculative_model": "smollm-135m"}


def written(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changes}), encoding="utf-8")
    return path


def sweep(**changes: object) -> list[dict[str, object]]:
    return [{**GOOD["sweeps"][0], **changes}]


def fixed(**changes: object) -> dict[str, object]:
    return {"w": made_studies.fixed(2, 8, 4) | changes}


def refusal(path: Path) -> str:
    with pytest.raises(StudyError) as caught:
        expand(load_study(path))
    return str(caught.value)


def test_starts_are_one_number_or_as_many_as_comparisons_need(tmp_path):
    fixed_number = load_study(written(tmp_path, starts=3)).starts
    assert fixed_number == load_study(written(tmp_path, starts={"at_least": 3, "at_most": 3})).starts
    assert not fixed_number.is_adaptive
    as_needed = load_study(written(tmp_path, starts=STARTS)).starts
    assert (as_needed.is_adaptive, as_needed.model_dump()) == (True, STARTS)


def test_a_good_study_is_the_union_of_its_cross_products_with_engine_defaults(tmp_path):
    again = {**GOOD["sweeps"][0], "name": "b", "knobs": {"block_size": 32, "max_num_seqs": [4, 8]}}
    cells = expand(load_study(written(tmp_path, sweeps=[*GOOD["sweeps"], again])))
    assert [c.id.rsplit("/", 1)[1] for c in cells] == ["bs32-seqs4", "bs64-seqs4", "bs32-seqs8"]
    assert cells[0].sweeps == ("a", "b")
    assert cells[2].sweeps == ("b",)
    defaults = {"vllm": {"max_model_len": 512, "max_num_seqs": 99}}
    cells = expand(load_study(written(tmp_path, engine_defaults=defaults)))
    assert cells[0].knobs.set_values() == {"block_size": 32, "max_num_seqs": 4, "max_model_len": 512}
    both = written(tmp_path, engine_defaults={"vllm": {"cpu_kv_cache_gib": 1}}, sweeps=sweep(gpu=["cpu-all", "h200"]))
    assert len(expand(load_study(both))) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repeat": 3}, ["study.yaml: repeat: unknown key", "allowed:", "repeats", "sweeps"]),
        ({"sweeps": sweep(gpu="h900")}, ["sweeps[0] (a).gpu", "'h900' is unknown", "cpu-all", "h200"]),
        ({"sweeps": sweep(engine="hf")}, ["(a).engine", "'hf' is unknown", "vllm", "'hf-continuous' or 'hf-static'"]),
        ({"sweeps": sweep(knobs={"block_size": 0})}, ["knobs.block_size", "greater than or equal to 1", "not 0"]),
        ({"sweeps": sweep(knobs={"block": 1})}, ["knobs.block", "no such knob", "block_size"]),
        ({"sweeps": sweep(knobs={"block_size": []})}, ["knobs.block_size", "an empty list leaves no cell"]),
        ({"sweeps": sweep(knobs={"block_size": True})}, ["knobs.block_size", "valid integer", "not True"]),
        ({"sweeps": sweep(knobs={"speculative_method": "ngram"})}, ["sweeps[0] (a).knobs", "num_speculative_tokens"]),
        ({"sweeps": sweep(engine="vllm-serve", knobs={"find": "highest_rate"})}, ["sweeps[0] (a)", "`slo`", "ttft_s"]),
        (
            {"sweeps": sweep(engine="vllm-serve", knobs={"find": "highest_rate", "request_rate_per_s": 1})},
            ["sweeps[0] (a).knobs", "leave out"],
        ),
        ({"sweeps": sweep(knobs={"prompt_lookup_max": 4})}, ["prompt_lookup_max", "speculative_method: ngram"]),
        ({"sweeps": sweep(knobs={**NGRAM, "speculative_method": "draft_model"})}, ["speculative_model go together"]),
        ({"sweeps": sweep(knobs={**NGRAM, "speculative_method": "eagle3"})}, ["eagle3 and speculative_model go"]),
        ({"sweeps": sweep(knobs={**DRAFT, "speculative_method": "mtp"})}, ["speculative_model go together"]),
        ({"sweeps": sweep(knobs={**NGRAM, "speculative_method": "mtp"})}, ["mtp: tiny-llama-57m has no layers"]),
        ({"sweeps": sweep(knobs={**NGRAM, "synthetic_acceptance_length": 5.5})}, ["1 to num_speculative_tokens + 1"]),
        ({"sweeps": sweep(knobs={"synthetic_acceptance_length": 2})}, ["needs speculative_method"]),
        ({"sweeps": sweep(knobs={**DRAFT, "speculative_model": "l-9"})}, ["(a).knobs.speculative_model", "'l-9' is"]),
        ({"sweeps": [*sweep(), *sweep(name="b")]}, ["sweeps[1] (b)", "a duplicate of sweep 'a'"]),
        ({"sweeps": [*sweep(), *sweep(gpu="h200")]}, ["sweeps[1] (a)", "another sweep is named 'a'"]),
        ({"workloads": {"w": {"kind": "fix"}}}, ["workloads.w", "'fix'", "synthetic", "did you mean 'fixed'"]),
        ({"name": "../up"}, ["name: a name has letters a to z, digits", "not '../up'"]),
        ({"workloads": fixed(kind="multi_turn", turns=1000, prompt_tokens=10**5)}, ["100,004,000 tokens"]),
        (
            {"workloads": fixed(kind="synthetic", output_tokens={"median": 4, "sigma": 0, "maximum": 4})},
            ["w.prompt_tokens: 8 is one length", "kind: fixed"],
        ),
        ({"cell_time_limit_s": float("inf")}, ["cell_time_limit_s", "finite number"]),
        ({"engine_defaults": {"vlm": {}}}, ["engine_defaults: 'vlm' is unknown; allowed:", "vllm-serve"]),
        # Of an engine that no sweep has, too.
        ({"engine_defaults": {"hf-static": {"batch": 1}}}, ["engine_defaults.hf-static: 'batch'", "batch_size"]),
        ({"engine_defaults": {"vllm": {"max_model_len": [64, 128]}}}, ["engine_defaults.vllm.max_model_len: one"]),
        ({"engine_defaults": {"vllm": {"max_model_len": "64"}}}, ["(from engine_defaults.vllm)", "not '64'"]),
        ({"models": {"llama": {"load_format": "dummy"}}}, ["models: 'llama' is unknown; allowed:", "tiny-llama-57m"]),
        ({"models": {"tiny-llama-57m": {"load_format": "hub"}}}, ["models.tiny-llama-57m.load_format", "set hub_repo"]),
        ({"models": {"tiny-llama-57m": {"trust_remote_code": True}}}, ["models.tiny-llama-57m", "load_format: hub"]),
        ({"models": {"opt-125m": {"folder": "x"}}}, ["models.opt-125m: config/models/ has a model of this name"]),
        ({"models": {"m": {"folder": "x", "hub": "a/b", "revision": "0" * 40}}}, ["give folder or hub, not both"]),
        ({"models": {"m": {"hub": "a/b"}}}, ["hub and revision belong together"]),
        ({"models": {"m": {"folder": "x", "load_format": "hub"}}}, ["load_format hub needs `hub` and `revision`"]),
        ({"starts": STARTS | {"at_most": 1}}, ["starts: at_least is 2 and at_most 1; at_most must not be smaller"]),
        ({"starts": STARTS | {"at_least": 1}}, ["starts: at_least is 1; it takes 2 to see what starts vary, and so"]),
        ({"starts": STARTS | {"at_most": 2}}, ["starts: budget_min limits further rounds"]),
        (
            {"sweeps": sweep(engine=["hf-static", "hf-continuous"], knobs={})},
            [
                "(a).knobs.batch_size: engine 'hf-static' needs this knob; knobs.page_size: engine 'hf-continuous'",
                "; knobs.num_blocks: engine 'hf-continuous' needs this knob",
            ],
        ),
        (
            {"sweeps": sweep(gpu=["cpu-all", "h200"], knobs={"cpu_kv_cache_gib": 1})},
            ["sweeps[0] (a).knobs.cpu_kv_cache_gib: only for CPU devices; it changes nothing on h200"],
        ),
        ({"sweeps": sweep(knobs={"max_model_len": [64, 11]})}, ["sweeps[0] (a)", "'w' have 12", "max_model_len is 11"]),
        (
            {"sweeps": sweep(knobs={"block_size": MANY, "max_num_seqs": MANY})},
            ["1,000,000 cells", "at most 100,000"],
        ),
        ({"sweeps": sweep(knobs={"attention_backend": "A" * 230})}, ["sweeps[0] (a): cpu-all/", "at most 240"]),
    ],
)
def test_a_bad_study_is_refused_in_one_message(tmp_path, changes, words):
    message = refusal(written(tmp_path, **changes))
    assert all(word in message for word in words), message
    assert len(message.splitlines()) == 1


def test_what_is_no_study_is_refused(tmp_path):
    assert "no such study file" in refusal(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("sweeps: [", encoding="utf-8")
    assert "not readable as YAML" in refusal(broken)
    broken.write_text("name: 2024-13-41", encoding="utf-8")
    assert "not readable as YAML: month must be in 1..12" in refusal(broken)
    broken.write_text("- 1", encoding="utf-8")
    assert "schema_version, name" in refusal(broken)
    assert refusal(tmp_path) == f"{tmp_path}: Is a directory"


def test_a_key_that_is_said_twice_is_refused_and_a_merged_one_may_be_said_anew(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text() + "repeats: 2\nquestion: again?\n", encoding="utf-8")
    assert "'question' occurs twice" in refusal(path)
    merged = "workloads:\n  w: &w {kind: fixed, num_prompts: 2, prompt_tokens: 8, output_tokens: 4}\n"
    merged += "  x: &x {<<: *w, num_prompts: 3}\n  y: {<<: *x, num_prompts: 4}\n"
    rest = {key: value for key, value in GOOD.items() if key != "workloads"}
    path.write_text(merged + yaml.safe_dump(rest), encoding="utf-8")
    assert [w.num_prompts for w in load_study(path).workloads.values()] == [2, 3, 4]


def test_the_command_tells_of_files_that_workloads_are_made_from(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = {"num_prompts": 2, "file": "source", "sha256": "0" * 64}
    lengths = {"median": 8, "sigma": 0, "maximum": 8}
    stand_in = {"kind": "synthetic", "num_prompts": 2, "prompt_tokens": lengths, "output_tokens": lengths}
    sharegpt = written(tmp_path, workloads={"w": {"kind": "sharegpt", "fallback": stand_in, **source}})
    assert main([str(sharegpt)]) == 0
    assert "note: workload 'w': source is not there" in capsys.readouterr().out
    trace = written(tmp_path, workloads={"w": {"kind": "trace", **source}})
    assert main([str(trace)]) == 2
    assert "workload 'w': source: " in capsys.readouterr().err
    (tmp_path / "source").write_text("arrival_s\n", encoding="utf-8")
    assert main([str(trace)]) == 2
    assert f"the study expects {'0' * 64}" in capsys.readouterr().err


@pytest.mark.parametrize(("gpu", "requests"), [("h200", 100), ("h200", 96), ("cpu-all", 100)])
def test_the_command_tells_of_sequences_beyond_the_captured_sizes(gpu, requests, tmp_path, capsys):
    versions = sweep(gpu=gpu, environment=["default", "vllm-0.25.1"], knobs={"max_num_seqs": [96, 100, 104]})
    assert main([str(written(tmp_path, sweeps=versions, workloads=fixed(num_prompts=requests)))]) == 0
    told = [line.split("max_num_seqs")[1] for line in capsys.readouterr().out.splitlines() if "graph" in line]
    numbers = [re.findall(r"\d+", note) for note in told]
    assert numbers == [["100", "97", "100", "104", "96", "1"]] * (gpu == "h200" and requests > 96)


def test_the_sequences_beyond_the_captured_sizes_are_counted_with_their_drafts(tmp_path, capsys):
    drafting = DRAFT | {"num_speculative_tokens": 4, "synthetic_acceptance_length": 2.0, "max_num_seqs": 200}
    study = sweep(gpu="h200", model="llama-3.1-8b-instruct", knobs=drafting)
    assert main([str(written(tmp_path, sweeps=study, workloads=fixed(num_prompts=200)))]) == 0
    # 102 sequences of 5 tokens are 510 of the 512 that are captured.
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "graph" in line)
    assert re.findall(r"\d+", note.split("max_num_seqs")[1]) == ["200", "103", "200", "102", "1"]


def test_the_command_counts_cells_and_tells_of_gpus_that_cannot_be_measured(tmp_path, capsys):
    assert main([str(written(tmp_path))]) == 0
    assert "2 cells on cpu-all" in capsys.readouterr().out
    assert main([str(written(tmp_path, name=""))]) == 2
    assert "name" in capsys.readouterr().err
    assert main([str(written(tmp_path, sweeps=sweep(gpu=["cpu-all", "h200", "mi300x"])))]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert [note.split(":")[1] for note in notes] == [" mi300x"]


def test_the_study_of_a_call_is_named_or_given_as_configuration(tmp_path):
    assert study_file({"study": "a.yaml"}, ["config/config.yaml"]) == Path("a.yaml")
    given = written(tmp_path)
    assert study_file({"study": "a.yaml"}, [given, "config/config.yaml"]) == given
    given.write_text(given.read_text().replace("sweeps:", "sweep:"), encoding="utf-8")
    assert study_file({"study": "a.yaml"}, [given, "config/config.yaml"]) == given
    with pytest.raises(StudyError, match="must name a study file"):
        study_file({}, [])


COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = get_model("tiny-llama-57m").config


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "given").mkdir()
    shutil.copy(CONFIG, tmp_path / "given")
    return tmp_path / "given"


@pytest.fixture
def write_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RESULTS", str(tmp_path / "results"))
    sweep = {"gpu": "h100-sxm", "model": "mine"}
    return lambda own: made_studies.write_study(tmp_path, sweep, name="own", models={"mine": own})


def test_a_folder_is_a_model_of_the_study(write_own, folder, tmp_path):
    path, environment = write_own({"folder": str(folder)}), dict(os.environ)
    study = load_study(path)
    assert dict(os.environ) == environment
    (model,) = resolved_models(study).values()
    assert (model.name, model.load_format, model.hub_repo) == ("mine", "dummy", None)
    (record,) = predict_cells(study, expand(study))
    assert record.output_tokens_per_s.value > 0
    assert prepare_model(["--study", str(path), "--model", "mine", "--out", str(tmp_path / "made")]) == 0
    assert (tmp_path / "made/config.json").read_bytes() == CONFIG.read_bytes()


def test_another_config_is_another_model_and_a_stored_one_stands_in_for_a_lost_folder(write_own, folder, tmp_path):
    path, paths = write_own({"folder": str(folder)}), StudyPaths(tmp_path / "results", "own")
    study = load_study(path)
    before = Cells(study).definitions
    assert not paths.root.exists()  # reading a study changes no file
    store_configs(study, paths)
    (folder / "config.json").write_text(json.dumps(json.loads(CONFIG.read_text()) | {"num_hidden_layers": 4}))
    assert Cells(load_study(path)).definitions.keys() == before.keys()
    assert Cells(load_study(path)).definitions != before
    shutil.rmtree(folder)
    assert Cells(load_study(path)).definitions == before
    shutil.rmtree(paths.root)
    with pytest.raises(CatalogError, match=r"model 'mine': .*given/config.json: "):
        load_study(path)


@pytest.fixture
def checkpoint(folder):
    (folder / "tokenizer.json").write_text(build_tokenizer(32_000, {}).to_str())
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_tokenizer_and_weights_of_a_folder_are_those_of_the_model(write_own, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    path, paths = write_own({"folder": checkpoint.name, "load_format": "auto"}), StudyPaths(tmp_path / "results", "own")
    study = load_study(path)
    assert not without_tokenizer(study)
    store_configs(study, paths)
    seen = {hash_of := resolved_models(study)["mine"].files_sha256}
    for name, content in (("model.safetensors", b"others!"), ("tokenizer.json", b"{}")):
        (checkpoint / name).write_bytes(content)
        seen.add(resolved_models(load_study(path))["mine"].files_sha256)
    assert len(seen) == 3
    out = tmp_path / "made"
    assert prepare_model(["--study", str(path), "--model", "mine", "--out", str(out)]) == 0
    assert (out / "model.safetensors").resolve() == checkpoint / "model.safetensors"
    assert (out / "tokenizer.json").read_bytes() == b"{}"
    shutil.rmtree(checkpoint)
    assert resolved_models(load_study(path))["mine"].files_sha256 == hash_of
    assert prepare_model(["--study", str(path), "--model", "mine", "--out", str(out)]) == 2
    write_own({"folder": f"{checkpoint}-misspelt", "load_format": "auto"})
    with pytest.raises(CatalogError, match=r"given-misspelt/config\.json: there is"):
        load_study(path)


def test_a_folder_without_a_tokenizer_is_told_and_without_weights_refused(write_own, checkpoint):
    for missing, told in (("model.safetensors", "no weights"), ("tokenizer.json", "no tokenizer")):
        content = (checkpoint / missing).read_bytes()
        (checkpoint / missing).unlink()
        with pytest.raises(CatalogError, match=told):
            load_study(write_own({"folder": str(checkpoint), "load_format": "auto"}))
        (checkpoint / missing).write_bytes(content)
    (checkpoint / "tokenizer.json").unlink()
    (note,) = without_tokenizer(load_study(write_own({"folder": str(checkpoint)})))
    assert "no tokenizer" in note
    with pytest.raises(StudyError, match="load_format auto needs `folder`"):
        load_study(write_own({"hub": "org/model", "revision": COMMIT, "load_format": "auto"}))


def test_a_repository_needs_the_hub_once(write_own, tmp_path, monkeypatch):
    path, paths = write_own({"hub": "org/model", "revision": COMMIT}), StudyPaths(tmp_path / "results", "own")
    monkeypatch.setattr(hub, "fetch", lambda *asked: [CONFIG])
    study = load_study(path)
    (model,) = resolved_models(study).values()
    assert (model.hub_repo, model.revision, model.load_format) == ("org/model", COMMIT, "hub")
    store_configs(study, paths)
    monkeypatch.undo()
    study_models.clear()
    monkeypatch.setattr(hub, "snapshot_download", Mock(side_effect=hub.LocalEntryNotFoundError("no network")))
    assert resolved_models(load_study(path, tmp_path / "results"))["mine"] == model
    with pytest.raises(InputError, match=f"org/model at {COMMIT}: the hub cannot be reached"):
        load_study(path, tmp_path / "elsewhere")


@pytest.mark.parametrize(("given", "meant"), [("studdy", "study"), ("resutls", "results"), ("occasion_vary", None)])
def test_an_unknown_key_of_a_call_is_refused(given, meant):
    known = ("study", "results")
    check_config({"study": "a.yaml", "repeats": 3}, known)  # a study file given as --configfile has keys of its own
    with pytest.raises(StudyError, match=given) as refused:
        check_config({"study": "a.yaml", given: 1}, known)
    assert (f"did you mean {meant!r}" in str(refused.value)) == (meant is not None)

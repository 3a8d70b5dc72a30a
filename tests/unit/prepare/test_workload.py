"""The command that writes the requests of a workload, and the page that describes the kinds."""

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import TypeAdapter

from tests.unit import made_studies
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.files import read_json, read_jsonl, sha256_of, write_json
from workflow_scripts.prepare.model import main as prepare_model
from workflow_scripts.prepare.workload import main
from workflow_scripts.study.check import main as check
from workflow_scripts.workloads.make_requests import GENERATORS
from workflow_scripts.workloads.workload_kinds import SharedTextWorkload, Workload

SYNTHETIC = {
    "kind": "synthetic",
    "num_prompts": 6,
    "prompt_tokens": {"median": 20, "sigma": 0.5, "minimum": 4, "maximum": 60},
    "output_tokens": {"median": 12, "sigma": 0.5, "minimum": 4, "maximum": 40},
}
SHARED = {"kind": "shared_prefix", "num_prompts": 5, "prefix_tokens": 32, "prompt_tokens": 8, "output_tokens": 4}


@pytest.fixture
def prepare(model_dir, tmp_path):
    def run(study, *flags, workload="load", model="tiny-llama-57m", folder=model_dir):
        arguments = ["--study", study, "--workload", workload, "--model", model, "--model-dir", folder]
        return main([*map(str, arguments), "--out", str(tmp_path / "made" / "workload.jsonl"), *flags])

    return run


@pytest.fixture
def fails(prepare, tmp_path, capsys):
    """Runs the command, expects it to refuse, and returns its one message."""

    def run(*arguments, **named):
        assert prepare(*arguments, **named) == 2
        assert not (tmp_path / "made").exists()
        said = capsys.readouterr().err
        assert re.fullmatch("kvsweep prepare-workload: .*\n", said)
        return said

    return run


def test_requests_and_warmup_are_written(prepare, write_study, tmp_path):
    assert prepare(write_study(SYNTHETIC)) == 0
    made = tmp_path / "made"
    requests, warmup = (list(read_jsonl(made / name)) for name in ("workload.jsonl", "warmup.jsonl"))
    assert [one["request_id"] for one in requests] == [*"012345"]
    assert [one["request_id"] for one in warmup] == [f"warmup-{i}" for i in range(6)]
    for request in requests + warmup:
        assert request.keys() == {"request_id", "prompt_token_ids", "output_tokens", "arrival_s"}
    manifest = read_json(made / "workload.json")
    assert manifest.items() >= {"workload": "load", "kind": "synthetic", "num_requests": 6}.items()
    outputs = sorted(request["output_tokens"] for request in requests)
    assert manifest["output_tokens"] == {"min": outputs[0], "median": sum(outputs[2:4]) / 2, "max": outputs[-1]}


def test_requests_say_which_prefix_they_share_and_a_stand_in_what_it_is(prepare, write_study, tmp_path):
    assert prepare(write_study({**SHARED, "share": 0.4})) == 0
    found = [(r.get("prefix_id"), r.get("prefix_tokens")) for r in read_jsonl(tmp_path / "made" / "workload.jsonl")]
    assert found == [(0, 32), (None, None), (0, 32), (None, None), (None, None)]
    file = {"file": str(tmp_path / "missing.json"), "sha256": "0" * 64}
    assert prepare(write_study({"kind": "sharegpt", "num_prompts": 3, "fallback": SYNTHETIC} | file)) == 0
    assert read_json(tmp_path / "made" / "workload.json")["kind"].startswith("synthetic, stands in")


def test_the_neediest_cell_decides_how_many_unless_a_count_is_given(prepare, write_study, tmp_path):
    study = write_study({**SYNTHETIC, "prompts_per_seq": 3}, {"max_num_seqs": [1, 7, 4]})
    for flags, count in (((), 21), (("--num-prompts", "2"), 2)):
        assert prepare(study, *flags) == 0
        assert len(list(read_jsonl(tmp_path / "made" / "workload.jsonl"))) == count
    for count in ("0", "-1", "x"):
        with pytest.raises(SystemExit, match="2"):
            prepare(study, "--num-prompts", count)


def test_a_request_must_fit_the_shortest_context_of_its_cells(prepare, fails, write_study, tmp_path):
    # Lengths are drawn, so the study alone does not tell that one of them is 40.
    drawn = {"median": 1000, "sigma": 0, "maximum": 40}
    workload = {**SYNTHETIC, "prompt_tokens": drawn, "output_tokens": {"median": 4, "sigma": 0, "maximum": 4}}
    message = fails(write_study(workload, {"max_model_len": [64, 43, 128]}))
    for part in ("40 prompt and 4 output", "max_model_len 43", "cpu-all/vllm/tiny-llama-57m/load/len43"):
        assert part in message
    assert prepare(write_study(workload, {"max_model_len": [64, 44, 128]})) == 0


def test_what_cannot_be_prepared_is_one_message(fails, prepare, write_study, model_dir, tmp_path):
    # Without the knob the model's own context counts.
    assert "max_model_len 2048" in fails(write_study({**SHARED, "output_tokens": 2010}))
    study, folder = write_study(SYNTHETIC), tmp_path / "model"
    assert "the workload 'other'" in fails(study, workload="other")
    assert str(folder) in fails(study, folder=folder)
    folder.mkdir()
    (folder / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    assert "no tokenizer there" in fails(study, folder=folder)
    (tmp_path / "made").write_text("a file")
    assert prepare(study) == 2


def test_check_says_the_same_before_anything_is_prepared(fails, write_study, tmp_path, capsys):
    """A text has as many tokens as bytes, also in a chat."""
    for chat, lines, told in (
        (False, "über\n", "3 requests are needed"),
        (True, "ü" * 20 + "\nb\nc", "58 prompt and 8"),
    ):
        (tmp_path / "texts.txt").write_text(lines)
        source = {"file": str(tmp_path / "texts.txt"), "sha256": sha256_of(tmp_path / "texts.txt")}
        texts = {"kind": "prompts", "num_prompts": 3, "output_tokens": 8, "chat": chat, **source}
        study = write_study(texts, {"max_model_len": 64})
        said = fails(study)
        assert told in said
        assert check([str(study)]) == 2
        assert capsys.readouterr().err.partition("workload 'load'")[1:] == said.partition("workload 'load'")[1:]


def test_check_refuses_special_tokens_beyond_the_vocabulary_as_prepare_does(tmp_path, capsys):
    config = read_json(get_model("tiny-llama-57m").config) | {"pad_token_id": 4096, "vocab_size": 4096}
    write_json(tmp_path / "model/config.json", config)
    sweep = {"gpu": "cpu-all", "model": "mine"}
    study = str(made_studies.write_study(tmp_path, sweep, models={"mine": {"folder": str(tmp_path / "model")}}))
    assert (check([study]), prepare_model(["--study", study, "--model", "mine", "--out", str(tmp_path / "o")])) == (
        2,
        2,
    )
    assert capsys.readouterr().err.count("a vocabulary of 4096 tokens has no room") == 2
    # With a tokenizer of its own, how many tokens a text has is known when it is prepared.
    (tmp_path / "model/tokenizer.json").write_text("{}")
    assert check([study]) == 0


PAGES = [(Path(__file__).parents[3] / "docs" / f"{name}.md").read_text() for name in ("workloads", "traffic")]
EXAMPLES = {
    name: TypeAdapter(Workload).validate_python(content)
    for page in PAGES
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for name, content in yaml.safe_load(block).items()
    if "kind" in content
}


def test_every_kind_has_a_generator_and_an_example_on_the_page():
    kinds = {get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in get_args(get_args(Workload)[0])}
    assert set(kinds) == {example.kind for example in EXAMPLES.values()}
    assert set(GENERATORS) == {name for name, kind in kinds.items() if not issubclass(kind, SharedTextWorkload)}

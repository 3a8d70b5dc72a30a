"""The model folder, from only a config and from a hub, which this module serves on localhost."""

import json
from pathlib import Path

import pytest

from tests.unit.prepare.fake_hub import serving
from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.common.files import write_text
from workflow_scripts.prepare.model import main, prepare_model

WORKLOAD = {"kind": "fixed", "num_prompts": 4, "prompt_tokens": 8, "output_tokens": 4}
OPT = get_model("opt-125m")
OPT_FILES = {
    "config.json": OPT.config.read_bytes(),
    "vocab.json": b'{"kettle": 0}',
    "merges.txt": b"#version: 0.2\n",
    "README.md": b"about the model",
    "pytorch_model.bin": b"weights of torch",
    "onnx/config.json": b"{}",
}


@pytest.fixture
def serve():
    with serving() as start:
        yield lambda files=OPT_FILES, refusal=None: start(files, str(OPT.hub_repo), str(OPT.revision), refusal)


@pytest.fixture
def prepare(tmp_path, write_study, command):
    def run(hub, *flags, token=None, **changes):
        study = write_study(WORKLOAD, model="opt-125m", **changes)
        words = ("prepare-model", "--study", study, "--model", "opt-125m", "--out", tmp_path / "out", *flags)
        return command(hub, *words, token=token)

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_model_without_weights_gets_its_config_and_a_tokenizer(model_dir):
    model = get_model("tiny-llama-57m")
    files = contents(model_dir)
    assert files.keys() == {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert files["config.json"] == model.config.read_bytes()


def test_a_folder_is_replaced_as_a_whole_by_the_same_bytes(tmp_path):
    model = get_model("tiny-llama-57m")
    out = tmp_path / "models" / "tiny"
    prepare_model(model, "dummy", out)
    first = contents(out)
    (out / "of_before.json").write_text("{}")
    prepare_model(model, "dummy", out)
    assert contents(out) == first
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]


def test_a_study_may_ask_for_random_weights_of_a_hub_model_but_not_for_one_of_no_sweep(write_study, tmp_path, capsys):
    options = ["--model", "opt-125m", "--out", str(tmp_path / "out")]
    assert main(["--study", str(write_study(WORKLOAD)), *options]) == 2
    assert "'opt-125m'; allowed: tiny-llama-57m" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    study = write_study(WORKLOAD, model="opt-125m", models={"opt-125m": {"load_format": "dummy"}})
    assert main(["--study", str(study), *options]) == 0
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_config_and_tokenizer_come_from_the_hub_without_the_weights_or_from_the_cache(serve, prepare, tmp_path):
    hub, out = serve(), tmp_path / "out"
    done = prepare(hub)
    assert done.returncode == 0, done.stderr
    assert hub.downloaded == {"config.json", "vocab.json", "merges.txt"}
    assert contents(out).keys() == hub.downloaded
    assert not any(path.is_symlink() for path in out.iterdir())
    assert {authorization for _, authorization in hub.requests} == {None}
    (out / "vocab.json").unlink()
    assert prepare(None).returncode == 0
    assert contents(out)["vocab.json"] == OPT_FILES["vocab.json"]


def test_the_token_is_sent_and_not_shown(serve, prepare, tmp_path):
    hub = serve()
    done = prepare(hub, token="hf_of_the_test")
    assert {authorization for _, authorization in hub.requests} == {"Bearer hf_of_the_test"}
    assert "hf_of_the_test" not in f"{done.stdout} {done.stderr} {contents(tmp_path / 'out')}"


def test_weights_are_linked_to_the_cache_and_safetensors_preferred(serve, prepare, tmp_path):
    assert prepare(serve(), "--weights").returncode == 0
    weights = tmp_path / "out" / "pytorch_model.bin"
    assert weights.is_symlink()
    assert weights.read_bytes() == b"weights of torch"
    assert (tmp_path / "hf").resolve() in weights.resolve().parents

    hub = serve({**OPT_FILES, "model.safetensors": b"weights", "model.safetensors.index.json": b"{}"})
    (tmp_path / "hf").rename(tmp_path / "hf-of-before")
    assert prepare(hub, "--weights").returncode == 0
    names = contents(tmp_path / "out").keys()
    assert {"model.safetensors", "model.safetensors.index.json"} <= names
    assert "pytorch_model.bin" not in names | hub.downloaded


def test_code_of_a_repository_is_fetched_only_where_the_study_trusts_it(serve, prepare, tmp_path):
    hub = serve({**OPT_FILES, "modeling_opt.py": b"raise SystemExit"})
    assert prepare(hub).returncode == 0
    assert "modeling_opt.py" not in hub.downloaded | contents(tmp_path / "out").keys()
    done = prepare(hub, models={"opt-125m": {"trust_remote_code": True}})
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out")["modeling_opt.py"] == b"raise SystemExit"


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((403, "GatedRepo"), "gated or private: accept its licence on the hub and set HF_TOKEN"),
        ((404, "RepoNotFound"), "is not on the hub"),
        ((404, "RevisionNotFound"), f"{OPT.revision}: the hub answers: 404"),
    ],
)
def test_a_refusal_of_the_hub_is_one_message(serve, prepare, tmp_path, refusal, message):
    write_text(tmp_path / "out" / "of_before.json", "{}")
    done = prepare(serve(refusal=refusal), token="hf_of_the_test")
    assert (done.returncode, done.stderr.count("\n"), message in done.stderr) == (2, 1, True)
    assert "hf_of_the_test" not in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["of_before.json"]
    assert not list(tmp_path.glob(".out*"))


THEIRS = {**json.loads(OPT_FILES["config.json"]), "num_hidden_layers": 13, "unknown_here": 1}


@pytest.mark.parametrize(
    ("changed", "flags", "message"),
    [
        ({"config.json": None}, (), "has no config.json"),
        ({"pytorch_model.bin": None}, ("--weights",), "has no weights in the formats *.safetensors, *.bin"),
        ({"config.json": json.dumps(THEIRS).encode()}, (), "num_hidden_layers (12, hub: 13)"),
    ],
)
def test_a_repository_with_other_files_than_the_catalogue_means_is_refused(
    serve, prepare, tmp_path, changed, flags, message
):
    done = prepare(serve({name: data for name, data in (OPT_FILES | changed).items() if data is not None}), *flags)
    assert (done.returncode, message in done.stderr, "unknown_here" in done.stderr) == (2, True, False)
    assert not (tmp_path / "out").exists()

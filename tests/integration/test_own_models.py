"""Models that are not in the catalogue, from a folder and from a hub on this machine, measured to the report."""

import html
import json
import shutil
import subprocess

import pandas as pd
import pytest

from tests.integration.conftest import CHECKOUT, snakemake_command
from tests.unit.made_studies import fixed, write_study
from tests.unit.prepare.fake_hub import serving
from workflow_scripts.tables.measurements import read_measurements

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.timeout(600)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIZES = {
    **{"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256, "pad_token_id": 0},
}
# transformers runs it, and no reader of this project knows its structure.
OLMO = SIZES | {"model_type": "olmo_hybrid", "architectures": ["OlmoHybridForCausalLM"], "num_hidden_layers": 4}
# Its code is in its repository.
OWN = SIZES | {
    "model_type": "own",
    "architectures": ["OwnModel"],
    "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
}
CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
from workflow_scripts.tables.measurements import read_measurements
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Config, code, tokenizer and weights of a repository."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from workflow_scripts.prepare.tokenizer import write_tokenizer

    folder = tmp_path_factory.mktemp("repository")
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    write_tokenizer(folder, OWN)
    (folder / "config.json").write_text(json.dumps(OWN))
    (folder / "own.py").write_text(CODE)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_own_models_are_measured_to_the_report(tmp_path, repository, environment):
    folder, results = tmp_path / "given", tmp_path / "results"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(OLMO))
    models = {
        "given": {"folder": str(folder)},
        "theirs": {"hub": "org/own", "revision": COMMIT, "trust_remote_code": True},
    }
    knobs = {"batch_size": 2, "cache_implementation": "dynamic"}
    sweep = {"gpu": "cpu-1core", "engine": "hf-static", "model": list(models), "knobs": knobs}
    workloads = {"load": fixed(2, 8, 4)}
    times = {"repeats": 1, "cell_time_limit_s": 150}
    study = write_study(tmp_path, sweep, name="own", models=models, workloads=workloads, **times)

    def call(hub: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        own = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        command = snakemake_command(study, results, *arguments)
        return subprocess.run(command, cwd=CHECKOUT, env=environment | own, capture_output=True, text=True, timeout=500)

    with serving() as start:
        hub = start(repository, "org/own", COMMIT)
        done = call(hub.address, "all")
    assert done.returncode == 0, done.stderr
    assert {"config.json", "own.py", "model.safetensors"} <= hub.downloaded
    root = results / "own"
    cells = read_measurements(root / "tables").set_index("model")
    assert cells["outcome"].to_dict() == {"given": "ok", "theirs": "ok"}, cells["reason"].to_dict()
    assert cells.loc["given", "output_tokens_per_s"] > 0
    plan = pd.read_parquet(root / "plan/plan.parquet").set_index("model")
    report = html.unescape((root / "report.html").read_text(encoding="utf-8"))
    for model, kind in (("given", "olmo_hybrid"), ("theirs", "own")):
        told = f"model_type '{kind}' is not supported"
        assert told in plan.loc[model, "unknown"]
        assert f"predictions of {model} are unknown: {told}." in report

    # Neither the hub nor the folder is needed again.
    shutil.rmtree(folder)
    again = call("http://127.0.0.1:9", "--dry-run", "all")
    assert again.returncode == 0, again.stderr
    assert "Nothing to be done" in again.stdout + again.stderr

"""Models that are not in the catalogue, from a folder and from a hub on this machine, measured to the report."""

import html
import json
import shutil
import subprocess

import pandas as pd
import pytest

from tests.integration.conftest import CHECKOUT, snakemake_command
from tests.unit.made_rates import made_rates
from tests.unit.made_studies import fixed, write_study
from tests.unit.prepare.fake_hub import serving
from workflow_scripts.common.files import sha256_of
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
    made_rates(1e13, 1e16, gpu="cpu-1core").write(results / "own/prepared/devices/cpu-1core.json")

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


@pytest.fixture
def checkpoint(tmp_path):
    """A folder as training leaves it: config, a tokenizer trained on texts of this repository, and all weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, special_tokens=["<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train([str(path) for path in sorted((CHECKOUT / "docs").glob("*.md"))], trainer)
    folder = tmp_path / "checkpoint"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(1)
    # So large that the two most likely tokens are far apart, and rounding decides nothing.
    sizes = SIZES | {"vocab_size": 1024, "hidden_size": 128, "initializer_range": 0.2, "eos_token_id": 0}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    return folder


def test_a_local_checkpoint_gives_the_same_greedy_answers_in_both_engines(tmp_path, checkpoint, environment):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    texts = ["How many blocks does a request hold?", "The KV cache keeps keys and values.", "vLLM measures"]
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"{text}\n" for text in texts))
    workload = {"kind": "prompts", "file": str(prompts), "sha256": sha256_of(prompts), "num_prompts": len(texts)}
    knobs = {"block_size": 32, "max_model_len": 256, "enforce_eager": True, "cpu_kv_cache_gib": 1, "max_num_seqs": 1}
    sweep = {"gpu": "cpu-1core", "model": "mine"}
    study = write_study(
        tmp_path,
        sweep | {"name": "vllm", "knobs": knobs},
        sweep | {"name": "hf", "engine": "hf-static", "knobs": {"batch_size": 1}},
        name="local",
        models={"mine": {"folder": str(checkpoint), "load_format": "auto"}},
        workloads={"texts": workload | {"output_tokens": 12, "keep_answers": True}},
        **{"repeats": 1, "cell_time_limit_s": 300},
    )
    results = tmp_path / "results"
    made_rates(1e13, 1e16, gpu="cpu-1core").write(results / "local/prepared/devices/cpu-1core.json")
    command = snakemake_command(study, results, str(results / "local/parsed/cpu-1core/requests.parquet"))
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    root = results / "local"
    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModelForCausalLM.from_pretrained(checkpoint)
    model.generation_config.eos_token_id = None  # engines go on after it
    requests = pd.read_parquet(next((root / "parsed").rglob("requests.parquet")))
    measured = requests.groupby("cell_id")["token_ids"].agg(lambda ids: {*map(tuple, ids)})
    expected = set()
    for text in texts:
        given = tokenizer(text, return_tensors="pt").input_ids
        assert given.shape[1] < len(text) / 2
        answer = model.generate(given, max_new_tokens=12, do_sample=False)
        expected.add(tuple(answer[0, given.shape[1] :].tolist()))
    assert measured.tolist() == [expected, expected]

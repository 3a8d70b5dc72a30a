"""The recipe "a GPU" of docs/extending.md: its entry alone makes a GPU that predictions know."""

import pytest

from tests.recipes import blocks, recipe
from workflow_scripts.catalog.gpus_and_models import GPUS, load_gpus, resolve
from workflow_scripts.engines.vllm import capacity as kv_capacity

(ENTRY,) = blocks(recipe("A GPU"), "yaml")


@pytest.fixture
def catalogue(tmp_path, monkeypatch):
    path = tmp_path / "gpus.yaml"
    path.write_text(GPUS.read_text(encoding="utf-8") + "\n" + ENTRY, encoding="utf-8")
    monkeypatch.setenv("KVSWEEP_GPUS", str(path))
    return path


def test_an_entry_is_a_gpu(catalogue, capsys):
    name = ENTRY.partition(":")[0]
    assert name not in load_gpus(GPUS)
    gpu = load_gpus()[name]
    assert gpu.is_called("NVIDIA RTX 6000 Ada Generation")
    assert resolve(gpu.aliases[0]) == (gpu,)
    options = ["--block-size", "16", "--gpu-memory-utilization", "0.9", "--max-model-len", "8192"]
    assert kv_capacity.main(["--model", "llama-3.1-8b-instruct", "--gpu", name, *options]) == 0
    assert f"on 1 x {name}," in capsys.readouterr().out

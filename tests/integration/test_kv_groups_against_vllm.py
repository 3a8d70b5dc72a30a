"""The recorded plans of vLLM's pools, which unit tests hold predictions against, and those that vLLM makes now.

vLLM builds each model on no device (PyTorch's `meta`), asks its layers what they keep, and plans the pool
(vllm/v1/core/kv_cache_utils.py). A process of its own, because vLLM keeps one group of ranks per process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = pytest.mark.studies  # three minutes, and only another vLLM changes its plans

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "vllm_plans.json").read_text(encoding="utf-8"))

PLAN = """
import json, sys
import torch
from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs

settings, started = json.loads(sys.argv[1]), False
memory = settings.pop("kv_cache_memory_bytes")
for folder in sys.argv[2:]:
    common = dict(load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, dtype="float32")
    config = EngineArgs(model=folder, **common, **settings).create_engine_config()
    with set_current_vllm_config(config):
        if not started:
            init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
            initialize_model_parallel(1, 1)
            started = True
        with torch.device("meta"):
            model = initialize_model(config)
        current_platform.update_block_size_for_backend(config)
        config.cache_config.kv_cache_layout = "LBNHC"
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        specs = {name: spec for name, layer in layers.items() if (spec := layer.get_kv_cache_spec(config))}
        plan = get_kv_cache_configs(config, [specs], [memory])[0]
        tokens, concurrency = get_kv_cache_capacity(config, plan)
    parameters = sum(p.numel() for p in model.parameters())
    names = ("num_blocks", "kv_cache_tokens", "max_concurrency", "parameters")
    print("PLAN", json.dumps(dict(zip(names, (plan.num_blocks, tokens, concurrency, parameters)))))
"""


def test_recorded_plans_are_those_of_the_installed_vllm(tmp_path):
    models = RECORDED["models"]
    for name, recorded in models.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(recorded["config"]))
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PLAN, json.dumps(RECORDED["settings"]), *(str(tmp_path / name) for name in models)],
        env=os.environ | quiet | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    plans = [json.loads(line.removeprefix("PLAN ")) for line in done.stdout.splitlines() if line.startswith("PLAN ")]
    assert len(plans) == len(models), done.stderr[-2000:]
    assert dict(zip(models, plans, strict=True)) == {name: recorded["plan"] for name, recorded in models.items()}

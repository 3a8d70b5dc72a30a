"""The pools of `predict.kv_groups` against those that vLLM plans for its own layers, one small model of each kind.

vLLM builds each model on no device (PyTorch's `meta`), asks its layers what they keep, and plans the pool
(vllm/v1/core/kv_cache_utils.py). A process of its own, because vLLM keeps one group of ranks per process.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.unit.made_models import shape
from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.physics.model_facts import model_facts
from workflow_scripts.predict.engine_memory import EngineSettings
from workflow_scripts.predict.kv_capacity import predict_capacity

pytest.importorskip("vllm", reason="vLLM is not installed")
pytestmark = pytest.mark.studies  # three minutes, and only another vLLM changes its plans

MEMORY = 2**27
COMMON = shape(layers=4, hidden=128, inner=256, heads=4, kv_heads=2, head_dim=32, vocab=512, positions=1024)
COMMON |= {"dtype": "float32"}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 32}


def model(architecture, **keys):
    return {"architectures": [f"{architecture}ForCausalLM"], **shape(**keys)}


# Experts come first, because they are what vLLM's group of ranks is made for.
MODELS = {
    "mixtral": model("Mixtral", sliding_window=128) | EXPERTS,
    "gpt_oss": model("GptOss", sliding_window=128) | EXPERTS,
    "gemma3_text": model("Gemma3", sliding_window=128, layers=13),
    "llama4_text": EXPERTS
    | model("Llama4", layers=8, intermediate_size_mlp=256, attention_chunk_size=128, num_experts_per_tok=1),
    "qwen3_next": {
        **model("Qwen3Next", layers=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128),
        **{"shared_expert_intermediate_size": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
        **{"linear_key_head_dim": 32, "linear_value_head_dim": 32},
    },
    "nemotron_h": model("NemotronH", layers=9, hybrid_override_pattern="M-M-M*-M-", ssm_state_size=32)
    | {"mamba_num_heads": 8, "mamba_head_dim": 32, "n_groups": 2},
    "jamba": model("Jamba", layers=8, num_experts=4, num_experts_per_tok=2),
    "glm4_moe": model("Glm4Moe", n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1)
    | {"moe_intermediate_size": 128, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "gemma4_text": model("Gemma4", layers=12, sliding_window=128, global_head_dim=64, hidden_size_per_layer_input=0),
    "minimax_m2": model("MiniMaxM2", rotary_dim=16, scoring_func="sigmoid") | EXPERTS,
    "granitemoehybrid": model("GraniteMoeHybrid", shared_intermediate_size=128)
    | EXPERTS
    | MAMBA
    | {"layer_types": ["mamba", "mamba", "mamba", "attention"]},
    "falcon_h1": model("FalconH1", mamba_d_ssm=256) | MAMBA,
}
# vLLM counts as parameters what transformers has as buffers: a bias of each routed expert in three layers.
MORE_PARAMETERS = {"glm4_moe": 3 * 4}
SETTINGS = {"block_size": 32, "max_model_len": 1024, "max_num_batched_tokens": 256, "max_num_seqs": 8}

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

started = False
for folder in sys.argv[3:]:
    common = dict(load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, dtype="float32")
    config = EngineArgs(model=folder, **common, **json.loads(sys.argv[1])).create_engine_config()
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
        plan = get_kv_cache_configs(config, [specs], [int(sys.argv[2])])[0]
        tokens, concurrency = get_kv_cache_capacity(config, plan)
    parameters = sum(p.numel() for p in model.parameters())
    print("PLAN", json.dumps([plan.num_blocks, tokens, concurrency, parameters]))
"""


def test_pools_are_those_that_vllm_plans(tmp_path):
    configs = {name: COMMON | config | {"model_type": name} for name, config in MODELS.items()}
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PLAN, json.dumps(SETTINGS), str(MEMORY), *(str(tmp_path / name) for name in configs)],
        env=os.environ | quiet | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    plans = [json.loads(line.removeprefix("PLAN ")) for line in done.stdout.splitlines() if line.startswith("PLAN ")]
    assert len(plans) == len(configs), done.stderr[-2000:]
    asked = EngineSettings(**SETTINGS, kv_cache_memory_bytes=MEMORY, usage="offline")
    for (name, config), (blocks, tokens, concurrency, parameters) in zip(configs.items(), plans, strict=True):
        facts = model_facts(config)
        terms = predict_capacity(facts, get_gpu("cpu-1core"), asked)
        found = [terms[term].value for term in ("num_blocks", "kv_cache_tokens")]
        assert found == [blocks, tokens], name
        assert terms["max_concurrency"].value == round(concurrency, 4), name
        assert facts.parameters + MORE_PARAMETERS.get(name, 0) == parameters, name

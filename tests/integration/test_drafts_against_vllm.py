"""Steps and KV blocks of a model with layers that draft, as predicted and as vLLM runs it on this CPU.

Its weights are random, so that no drafted token is right. A process of its own, because of vLLM's environment.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from workflow_scripts.catalog.gpus_and_models import get_gpu
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.engines.vllm.predictions import vllm_capacity, vllm_steps
from workflow_scripts.physics.model_facts import model_facts
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.scheduler import make_schedule

pytest.importorskip("vllm", reason="vLLM is not installed")
CONFIG = {
    **{"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "torch_dtype": "float32", "vocab_size": 128},
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_nextn_predict_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 2048},
    **{"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False},
}
KNOBS = VllmKnobs(
    block_size=32,
    max_model_len=512,
    max_num_seqs=4,
    cpu_kv_cache_gib=1,
    enable_prefix_caching=False,
    speculative_method="mtp",
    num_speculative_tokens=1,
)
PROMPTS, OUTPUTS = np.array([20, 27, 34, 41, 48, 55]), np.array([30, 31, 32, 33, 34, 35])
RUN = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, arguments, prompts, outputs = json.loads(sys.argv[1])
    llm = LLM(folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, dtype="float32", **arguments)
    engine, steps = llm.llm_engine, 0
    limits = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False) for n in outputs]
    for number, (prompt, limit) in enumerate(zip(prompts, limits)):
        engine.add_request(str(number), {"prompt_token_ids": [2 + number] * prompt}, limit)
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
    print("RAN", json.dumps([engine.vllm_config.cache_config.num_gpu_blocks, steps]))
"""


def test_a_model_that_drafts_with_its_own_layers_takes_the_predicted_steps_and_blocks(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    asked = [str(tmp_path), KNOBS.engine_arguments(), PROMPTS.tolist(), OUTPUTS.tolist()]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(asked)],
        env=os.environ
        | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        | {"GLOO_SOCKET_IFNAME": "lo", **KNOBS.environment()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    ran = [line.removeprefix("RAN ") for line in done.stdout.splitlines() if line.startswith("RAN ")]
    assert ran, done.stderr[-2000:]
    facts, cpu = model_facts(CONFIG), get_gpu("cpu-all")
    blocks = int(vllm_capacity(KNOBS, cpu, facts).value("num_blocks") or 0)
    never_right = KNOBS.model_copy(update={"synthetic_acceptance_length": 1.0})
    settings = replace(vllm_steps(never_right, cpu, facts).decides, num_blocks=blocks)
    schedule = make_schedule(RequestLengths(PROMPTS, OUTPUTS), settings)
    assert json.loads(ran[0]) == [blocks, schedule.segments.steps.sum()]

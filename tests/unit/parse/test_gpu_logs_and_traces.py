"""Logs of vLLM 0.25.1 and NVML's samples as one H200 and one H100 gave them."""

import pytest

from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.engines.vllm.predictions import vllm_steps
from workflow_scripts.parse.engine_log import read_engine_log
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.study.outcome import Outcome

CELL = "{}/vllm/llama-3.1-8b-instruct/chat/bs{}-seqs{}-len4096-util0.9"
FACTS = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
GIB, BYTES_PER_TOKEN = 2**30, 2 * 2 * 32 * 8 * 128


@pytest.fixture(scope="module")
def starts(two_gpus_evidence):
    """Each start that ended well: its folder of raw files, and its outcome."""
    records = sorted((two_gpus_evidence / "cells").rglob("outcome.json"))
    assert len(records) == 30
    evidence = [(record.parent / "raw", Outcome.read(record)) for record in records]
    return [(raw, outcome) for raw, outcome in evidence if outcome.outcome == "ok"]


@pytest.fixture
def raw(two_gpus_evidence):
    return lambda *cell: two_gpus_evidence / "cells" / CELL.format(*cell) / "raw"


# --- logs ------------------------------------------------------------------------------------------------------------


def test_facts_of_an_h200_and_of_a_block_size_that_it_refuses(raw):
    facts = read_engine_log(raw("h200", 16, 256) / "engine.log")
    assert {name: getattr(facts, name) for name in facts.read_from} == {
        **{"attention_backend": "FLASH_ATTN", "cudagraph_mode": "FULL_AND_PIECEWISE", "engine_version": "0.25.1"},
        **{"available_kv_cache_gib": 108.81, "cuda_graph_gib": 0.59, "model_weights_gib": 15.0, "compile_s": 18.21},
        **{"kv_cache_tokens": 891_392, "max_concurrency": 217.62, "max_concurrency_tokens_per_request": 4096},
        **{"block_size": 16, "max_cudagraph_capture_size": 512, "prefix_cache_hit_rate_pct": 0.0},
        **{"graphs_from_cache": False, "status": "ok"},
    }
    assert facts.derived == {"num_gpu_blocks": 55_712}
    facts = read_engine_log(raw("h200", 8, 256) / "engine.log")
    assert (facts.status, facts.block_size) == ("unsupported_block_size", 8)
    assert facts.error is not None
    assert facts.error.startswith("ValueError: No valid attention backend found")


@pytest.mark.parametrize("sequences", [1, 4, 16, 64, 256])
def test_the_captured_sizes_are_those_that_predictions_assume(raw, sequences):
    steps = vllm_steps(VllmKnobs(max_num_seqs=sequences, max_model_len=4096), get_gpu("h200"), FACTS)
    shown = read_engine_log(raw("h200", 16, sequences) / "engine.log")
    assert (steps.graphs.tokens, steps.graphs.mode) == (shown.max_cudagraph_capture_size, shown.cudagraph_mode)
    assert steps.graphs.decode_tokens == sequences


def test_every_log_gives_the_blocks_that_the_engine_reported(starts):
    of_vllm = [(folder, outcome) for folder, outcome in starts if outcome.cell_id.split("/")[1] == "vllm"]
    assert len(of_vllm) == 26
    for folder, outcome in of_vllm:
        facts, effective = read_engine_log(folder / "engine.log"), outcome.effective
        assert facts.derived["num_gpu_blocks"] == effective["num_gpu_blocks"]
        assert facts.kv_cache_tokens == effective["num_gpu_blocks"] * effective["block_size"]
        assert facts.max_concurrency == pytest.approx(facts.kv_cache_tokens / effective["max_model_len"], abs=0.005)
        if "llama" in outcome.cell_id:
            assert facts.kv_cache_tokens * BYTES_PER_TOKEN / GIB == pytest.approx(
                facts.available_kv_cache_gib, abs=0.02
            )


# --- samples of the GPU ----------------------------------------------------------------------------------------------

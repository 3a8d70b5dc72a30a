"""What stands at a knob's field decides the ids of cells, the engine's arguments and what analyses look at."""

from typing import Annotated, Any

import pytest

from workflow_scripts.common.knob import Knob
from workflow_scripts.engines.knobs import ENGINE_ARGS, Knobs
from workflow_scripts.engines.registry import load_engines
from workflow_scripts.engines.vllm.knobs import VllmKnobs

VLLM: dict[str, Any] = {
    "block_size": 16,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "max_model_len": 256,
    "gpu_memory_utilization": 0.9,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": False,
    "kv_cache_dtype": "fp8",
    "quantization": "awq",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 3,
    "enforce_eager": True,
    "attention_backend": "FLASH_ATTN",
    "cpu_kv_cache_gib": 1,
    "num_gpu_blocks_override": 65,
    "speculative_method": "draft_model",
    "num_speculative_tokens": 4,
    "speculative_model": "smollm-135m",
}
LOAD = {"request_rate_per_s": 2.0, "burstiness": 0.5, "users": 7}
OF_VLLM = (
    "bs16-seqs8-tokens512-len256-util0.9-pc1-cp0-kvfp8-quantawq-tp2-pp3-eager1-attnFLASH_ATTN-cpukv1"
    "-pool65-specdraft_model-draft4-bysmollm-135m"
)
OF_SGLANG = {
    **{"block_size": 16, "max_num_seqs": 8, "max_model_len": 256, "mem_fraction_static": 0.8, "max_total_tokens": 4096},
    **{"chunked_prefill_size": 128, "enable_prefix_caching": False, "kv_cache_dtype": "fp8_e5m2"},
    **{"tensor_parallel_size": 2, "enforce_eager": True, "attention_backend": "flashinfer"},
}
LOOKUP = {"speculative_method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
SYNTHETIC = {"speculative_method": "mtp", "num_speculative_tokens": 4, "synthetic_acceptance_length": 2.5}
SIZES = {
    **{"kv_cache_memory_bytes": 2**32, "mamba_ssm_cache_dtype": "float32"},
    **{"decode_context_parallel_size": 2, "tensor_parallel_size": 4},
}
SERVERS: list[tuple[str, dict[str, Any], str]] = [
    ("vllm-serve", {}, ""),
    ("sglang-serve", {}, ""),
    ("openai", {"endpoint": "tgi"}, "at-tgi-"),
]
OF_OTHERS = "bs16-watermark0.2-async_scheduling1"
# Results that exist are found by these names, so none of them may ever change.
SLUGS: list[tuple[str, dict[str, Any], str]] = [
    ("vllm", {"tensor_parallel_size": 2, "data_parallel_size": 4, "enable_expert_parallel": True}, "tp2-dp4-ep1"),
    ("vllm", VLLM, OF_VLLM),
    ("vllm", SIZES, "ssmfloat32-tp4-dcp2-kvbytes4294967296"),
    ("vllm", {"block_size": 16, "engine_args": {"watermark": 0.2, "async_scheduling": True}}, OF_OTHERS),
    ("vllm", {"engine_args": {"cudagraph_capture_sizes": [1, 2]}}, "cudagraph_capture_sizes3a316d6d"),
    ("vllm", LOOKUP, "specngram-draft4-lookup3"),
    ("vllm", SYNTHETIC, "specmtp-draft4-accept2.5"),
    ("vllm-serve", LOAD | VLLM, f"{OF_VLLM}-rate2-burst0.5-users7"),
    ("vllm-serve", {"users": 2, "reasoning_parser": "deepseek_r1"}, "reasondeepseek_r1-users2"),
    *((name, {**more, "find": "highest_rate"}, f"{at}find-highest_rate") for name, more, at in SERVERS),
    (
        "sglang-serve",
        LOAD | OF_SGLANG,
        "bs16-seqs8-len256-static0.8-kvtokens4096-chunk128-pc0-kvfp8_e5m2-tp2-eager1"
        "-attnflashinfer-rate2-burst0.5-users7",
    ),
    ("openai", LOAD | {"endpoint": "tgi"}, "at-tgi-rate2-burst0.5-users7"),
    ("hf-static", {"batch_size": 4}, "static-batch4-cachedynamic"),
    (
        "hf-continuous",
        {"page_size": 32, "num_blocks": 64, "max_batch_tokens": 128},
        "continuous-page32-blocks64-tokens128",
    ),
]


@pytest.mark.parametrize(("engine", "settings", "slug"), SLUGS)
def test_a_setting_keeps_its_name_for_ever(engine, settings, slug):
    assert load_engines()[engine].knobs.model_validate(settings).slug() == slug


def test_every_knob_of_every_engine_is_in_a_name_that_is_kept():
    named: dict[str, set[str]] = {}
    for engine, settings, _ in SLUGS:
        named.setdefault(engine, set()).update(settings)
    named["vllm-serve"] |= named["vllm"]
    named["hf-static"].add("cache_implementation")
    of_all = {name: set(engine.knobs.model_fields) - {ENGINE_ARGS} for name, engine in load_engines().items()}
    assert {name: knobs - {ENGINE_ARGS} for name, knobs in named.items()} == of_all


def test_a_field_without_a_description_is_refused_by_name():
    class Bare(Knobs):
        size: Annotated[int, Knob("s")]
        other: int | None = None

    with pytest.raises(TypeError, match=r"^Bare: give other a Knob\(\.\.\.\) in Annotated"):
        Bare(size=1).slug()


def test_parts_of_a_structured_argument_are_passed_together():
    arguments = VllmKnobs.model_validate(VLLM).engine_arguments("models/draft")
    assert arguments["speculative_config"] == {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "model": "models/draft",
    }
    accepted = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    assert VllmKnobs.model_validate(SYNTHETIC).engine_arguments()["speculative_config"] == {
        "method": "mtp",
        "num_speculative_tokens": 4,
        **accepted,
    }
    assert VllmKnobs.model_validate(SYNTHETIC | {"num_speculative_tokens": 0}).engine_arguments() == {}
    speculation = {"speculative_method", "num_speculative_tokens", "speculative_model"}
    assert VLLM.keys() - arguments.keys() == speculation | {"cpu_kv_cache_gib"}
    assert VllmKnobs(speculative_method="ngram", num_speculative_tokens=0).engine_arguments() == {}

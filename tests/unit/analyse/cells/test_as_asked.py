"""Settings that an engine silently replaced."""

import pandas as pd
import pytest

from workflow_scripts.analyse.cells.as_asked import not_as_asked


def differences(asked: dict[str, object], effective: dict[str, object]) -> object:
    knobs = pd.DataFrame([{f"knob_{name}": value for name, value in asked.items()}]).convert_dtypes()
    told = pd.DataFrame([{f"effective.{name}": value for name, value in effective.items()}], dtype=object)
    return not_as_asked(knobs, told).iloc[0]


@pytest.mark.parametrize(
    ("asked", "effective", "replaced"),
    [
        ({"attention_backend": "FLASH_ATTN"}, {"attention_backend": "CPU_ATTN"}, "CPU_ATTN, not FLASH_ATTN"),
        ({"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 2048.0}, "2048, not 64"),
        ({"enable_chunked_prefill": False}, {"enable_chunked_prefill": 1.0}, "True, not False"),
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.92}, "0.92, not 0.9"),
        ({"block_size": 32}, {"block_size": 32.0}, None),
        ({"enable_prefix_caching": True}, {"enable_prefix_caching": 1.0}, None),
        ({"enable_prefix_caching": False}, {"enable_prefix_caching": 0.0}, None),
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.9}, None),
        ({"quantization": "awq"}, {"quantization": "awq"}, None),
        # Left to the engine, not set, or not told.
        ({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8"}, None),
        ({"max_model_len": None}, {"max_model_len": 512.0}, None),
        ({"quantization": "fp8"}, {"quantization": None}, None),
        ({"cpu_kv_cache_gib": 1}, {"num_gpu_blocks": 2048.0}, None),
    ],
)
def test_only_what_was_replaced_is_told_with_what_was_asked_for(asked, effective, replaced):
    found = differences(asked, effective)
    (name,) = asked
    assert (None if pd.isna(found) else found) == (replaced and f"{name} {replaced}")
    several = differences({"block_size": 16, **asked}, {"block_size": 32.0, **effective})  # all are named
    expected = ["block_size 32, not 16", f"{name} {replaced}"] if replaced else ["block_size 32, not 16"]
    assert name == "block_size" or several == "; ".join(expected)

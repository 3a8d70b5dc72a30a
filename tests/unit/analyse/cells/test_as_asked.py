"""Settings that an engine silently replaced."""

import pandas as pd
import pytest

from workflow_scripts.analyse.cells.as_asked import not_as_asked


def differences(asked: dict[str, object], effective: dict[str, object]) -> object:
    knobs = pd.DataFrame([{f"knob_{name}": value for name, value in asked.items()}]).convert_dtypes()
    told = pd.DataFrame([{f"effective.{name}": value for name, value in effective.items()}], dtype=object)
    return not_as_asked(knobs, told).iloc[0]


@pytest.mark.parametrize(
    ("asked", "effective", "text"),
    [
        ({"attention_backend": "FLASH_ATTN"}, {"attention_backend": "CPU_ATTN"}, "CPU_ATTN, not FLASH_ATTN"),
        ({"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 2048.0}, "2048, not 64"),
        ({"enable_chunked_prefill": False}, {"enable_chunked_prefill": 1.0}, "True, not False"),
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.92}, "0.92, not 0.9"),
    ],
)
def test_what_was_replaced_is_told_with_what_was_asked_for(asked, effective, text):
    (name,) = asked
    assert differences(asked, effective) == f"{name} {text}"


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        ({"block_size": 32}, {"block_size": 32.0}),
        ({"enable_prefix_caching": True}, {"enable_prefix_caching": 1.0}),
        ({"enable_prefix_caching": False}, {"enable_prefix_caching": 0.0}),
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.9}),
        ({"quantization": "awq"}, {"quantization": "awq"}),
        # Left to the engine, not set, or not told.
        ({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8"}),
        ({"max_model_len": None}, {"max_model_len": 512.0}),
        ({"quantization": "fp8"}, {"quantization": None}),
        ({"cpu_kv_cache_gib": 1}, {"num_gpu_blocks": 2048.0}),
    ],
)
def test_what_is_as_asked_or_unknown_is_not_named(asked, effective):
    assert pd.isna(differences(asked, effective))


def test_all_replacements_of_a_cell_are_named():
    asked = {"block_size": 16, "max_num_seqs": 8, "max_model_len": 512}
    effective = {"block_size": 32.0, "max_num_seqs": 8.0, "max_model_len": 256.0}
    assert differences(asked, effective) == "block_size 32, not 16; max_model_len 256, not 512"

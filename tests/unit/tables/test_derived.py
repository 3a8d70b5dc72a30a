"""Bytes of keys and values, speculative decoding, and settings that an engine silently replaced."""

import json

import numpy as np
import pandas as pd
import pytest

from tests.unit.made_studies import fixed, made_study
from tests.unit.questions.parsed_tables import COLUMNS, repeated, requests, started, write_parsed
from workflow_scripts.parse.cell_tables import frame
from workflow_scripts.study.grid import expand
from workflow_scripts.tables.cells import measured_rows
from workflow_scripts.tables.derived import kv_memory, not_as_asked
from workflow_scripts.tables.request_lives import request_lives, tokens_held

BYTES_PER_TOKEN = 2 * 8 * 4 * 64 * 4  # tiny-llama-57m: key and value, layers, KV heads, elements, float32

STUDY = made_study(
    *(
        {"name": engine, "gpu": "cpu-all", "engine": engine, "model": "tiny-llama-57m", "knobs": knobs}
        for engine, knobs in {
            "vllm": {"block_size": 32, "speculative_method": "ngram", "num_speculative_tokens": 4},
            "hf-static": {"batch_size": 1},
            "hf-continuous": {"page_size": 32, "num_blocks": 8, "max_batch_tokens": 64},
        }.items()
    ),
    name="kv",
    repeats=1,
    workloads={"w": fixed(1, 10, 3)},
)


def cells(**columns: object) -> pd.DataFrame:
    known: dict[str, object] = {"model": "tiny-llama-57m", "dtype": "float32", "start": 1, "repeat": 0}
    known |= dict.fromkeys(("num_gpu_blocks", "block_size_effective", "kv_pool_bytes", "kv_tokens_live_mean"))
    known |= dict.fromkeys(("kv_bytes_reserved_mean", "kv_bytes_reserved_peak", "kv_cache_usage_mean"))
    return pd.DataFrame([known | columns])


POOL = {"num_gpu_blocks": 4, "block_size_effective": 32}
LIVE = {"kv_tokens_live_mean": 16.0}
NAN = float("nan")


@pytest.mark.parametrize(
    ("columns", "reserved_mean", "reserved_peak", "used_mean"),
    [
        # A pool is reserved whole, and counted from its blocks.
        (POOL | LIVE, 128 * BYTES_PER_TOKEN, 128 * BYTES_PER_TOKEN, 16 * BYTES_PER_TOKEN),
        # A prompt that waits for its blocks takes no more than those in use.
        *(
            (POOL | LIVE | {"kv_cache_usage_mean": share}, *[128 * BYTES_PER_TOKEN] * 2, tokens * BYTES_PER_TOKEN)
            for share, tokens in ((0.0625, 8), (0.5, 16))
        ),
        # What the engine tells goes before what is counted.
        (POOL | {"kv_pool_bytes": 1e6}, 1e6, 1e6, NAN),
        ({"kv_bytes_reserved_mean": 2e6, "kv_bytes_reserved_peak": 3e6}, 2e6, 3e6, NAN),
        # A smaller type takes fewer bytes.
        (LIVE | {"knob_kv_cache_dtype": "fp8"}, NAN, NAN, 16 * BYTES_PER_TOKEN / 4),
        # Not known: the model, or what a cell that failed would have reserved.
        (LIVE | {"model": "llama-9"}, NAN, NAN, NAN),
        (POOL | {"repeat": None}, NAN, NAN, NAN),
    ],
)
def test_bytes_that_are_reserved_and_used(columns, reserved_mean, reserved_peak, used_mean):
    row = kv_memory(cells(**columns)).iloc[0].astype(object)
    found = [row[f"kv_bytes_{name}"] for name in ("reserved_mean", "reserved_peak", "used_mean")]
    expected = [reserved_mean, reserved_peak, used_mean]
    assert [NAN if pd.isna(value) else value for value in found] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("columns", "times"),
    [
        # A draft model of the same shape: half as many blocks of both fill the memory.
        ({"knob_speculative_model": "tiny-llama-57m", "knob_num_speculative_tokens": 4}, 2),
        ({"knob_speculative_model": "tiny-llama-57m", "knob_num_speculative_tokens": 0}, 1),
        # Tensor ranks share the 4 heads, and copy them where there are more ranks.
        *(({"knob_tensor_parallel_size": ranks}, heads / 4) for ranks, heads in ((1, 4), (2, 4), (4, 4), (8, 8))),
    ],
)
def test_draft_models_and_copied_heads_take_bytes_too(columns, times):
    row = kv_memory(cells(**POOL, **LIVE, **columns)).iloc[0]
    assert row["kv_bytes_reserved_peak"] == 128 * times * BYTES_PER_TOKEN
    assert row["kv_bytes_used_mean"] == 16 * times * BYTES_PER_TOKEN


def held(table: pd.DataFrame) -> pd.Series:
    return tokens_held(request_lives(table.assign(workload="w", number=0), {}), np.full(len(table), 32.0))


def test_tokens_held_over_the_lives_of_requests():
    # The first holds 10 tokens for 2 s, 11 for 0.5 s and 12 for 0.5 s; the second 8 tokens for 1 s.
    table = requests("c", (10, 3, 0, 0.0, 2.0, 3.0), (8, 1, 0, 3.0, 4.0, 4.0))
    assert held(table)[0] == pytest.approx((31.5 + 8) / 4)
    assert held(requests("c", (8, 1, 0, 3.0, 3.0, 3.0))).isna().all()
    assert held(table.head(0)).empty


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """Parsed tables of one cell of each engine."""
    of_blocks = {"num_gpu_blocks": 8, "block_size_effective": 32}
    of_start = {"vllm": of_blocks, "hf-continuous": of_blocks | {"kv_pool_bytes": 10_000_000}}
    of_repeat = {"vllm": {"drafts": 2, "draft_tokens": 8, "accepted_draft_tokens": 6}}
    of_repeat |= {"hf-continuous": {"torch_memory_bytes_max": 7e8}}
    tables = {name: [] for name in ("starts", "repeats", "requests", "steps", "trace")}
    for cell in expand(STUDY):
        at = {"cell_id": cell.id, "start": 1, "repeat": 0}
        known = {"dtype": "float32", "process_memory_bytes_before": 5e8}
        tables["starts"].append(started(cell.id, **known | of_start.get(cell.engine, {})))
        tables["repeats"].append(repeated(cell.id, **of_repeat.get(cell.engine, {})))
        tables["requests"].append(requests(cell.id, (10, 3, 0, 0.0, 2.0, 3.0)))
        steps = [
            at
            | {"time_s": time_s, "kv_tokens_live": n, "kv_slots_reserved": n, "kv_bytes_reserved": n * BYTES_PER_TOKEN}
            for time_s, n in ((0.0, 10), (1.0, 10), (2.0, 12))
            if cell.engine == "hf-static"
        ]
        tables["steps"].append(frame(steps, COLUMNS["steps"]))
        tables["trace"].append(frame([at | {"time_s": 0.5, "process_memory_bytes": 8e8}], COLUMNS["trace"]))
    folder = tmp_path_factory.mktemp("parsed")
    for name, frames in tables.items():
        write_parsed(folder / "cpu-all", name, *frames)
    return folder


def test_reserved_and_used_stand_beside_each_other_for_every_engine(parsed):
    table = measured_rows(STUDY, expand(STUDY), parsed).set_index("engine")
    reserved, used = table["kv_bytes_reserved_peak"], table["kv_bytes_used_mean"]
    assert reserved.to_dict() == {
        "vllm": 8 * 32 * BYTES_PER_TOKEN,
        "hf-static": 12 * BYTES_PER_TOKEN,
        "hf-continuous": 1e7,
    }
    assert used["vllm"] == used["hf-continuous"] == pytest.approx(31.5 / 3 * BYTES_PER_TOKEN)
    assert used["hf-static"] == pytest.approx((10 + 12) / 2 * BYTES_PER_TOKEN)
    assert table["process_memory_growth_bytes_max"].to_list() == [3e8] * 3
    assert table.loc["hf-continuous", "torch_memory_bytes_max"] == 7e8
    assert {"kv_pool_bytes", "process_memory_bytes_before", "drafts"}.isdisjoint(table)


def test_what_was_drafted_and_accepted_is_told(parsed):
    table = measured_rows(STUDY, expand(STUDY), parsed).set_index("engine")
    row = table.loc["vllm"]
    assert (row["draft_tokens"], row["accepted_draft_tokens"]) == (8, 6)
    assert (row["draft_acceptance_rate"], row["tokens_per_draft_mean"]) == (0.75, 4)
    assert table["draft_tokens"].isna().to_dict() == {"vllm": False, "hf-static": True, "hf-continuous": True}


def differences(asked: dict[str, object], effective: dict[str, object]) -> object:
    knobs = pd.DataFrame([{f"knob_{name}": value for name, value in asked.items()}]).convert_dtypes()
    return not_as_asked(knobs, pd.Series([json.dumps(effective)])).iloc[0]


@pytest.mark.parametrize(
    ("asked", "effective", "replaced"),
    [
        ({"attention_backend": "FLASH_ATTN"}, {"attention_backend": "CPU_ATTN"}, "CPU_ATTN, not FLASH_ATTN"),
        ({"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 2048}, "2048, not 64"),
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.92}, "0.92, not 0.9"),
        ({"block_size": 32}, {"block_size": 32}, None),
        ({"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.9}, None),
        # Left to the engine, not set, or not told.
        ({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8"}, None),
        ({"max_model_len": None}, {"max_model_len": 512}, None),
        ({"cpu_kv_cache_gib": 1}, {"num_gpu_blocks": 2048}, None),
    ],
)
def test_only_what_was_replaced_is_told_with_what_was_asked_for(asked, effective, replaced):
    found = differences(asked, effective)
    (name,) = asked
    assert (None if pd.isna(found) else found) == (replaced and f"{name} {replaced}")
    several = differences({"block_size": 16, **asked}, {"block_size": 32, **effective})  # all are named
    expected = ["block_size 32, not 16", f"{name} {replaced}"] if replaced else ["block_size 32, not 16"]
    assert name == "block_size" or several == "; ".join(expected)

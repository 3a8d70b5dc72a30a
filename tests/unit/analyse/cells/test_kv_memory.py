"""Reserved and used bytes of keys and values, and the columns of speculative decoding."""

import numpy as np
import pandas as pd
import pytest

from tests.unit.analyse.parsed_tables import requests
from tests.unit.made_studies import fixed, made_study
from workflow_scripts.analyse.cells.cells import _without_drafts, cells_table
from workflow_scripts.analyse.cells.kv_memory import kv_memory
from workflow_scripts.analyse.cells.request_lives import request_lives, tokens_held
from workflow_scripts.parse.cell_facts import TABLES, frame
from workflow_scripts.study.grid import expand

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
    known = {
        "model": "tiny-llama-57m",
        "dtype": "float32",
        "start": 1,
        "repeat": 0,
        "num_gpu_blocks": None,
        "block_size_effective": None,
    }
    known |= dict.fromkeys(("kv_pool_bytes", "kv_tokens_live_mean", "kv_bytes_reserved_mean", "kv_bytes_reserved_peak"))
    return pd.DataFrame([known | columns])


def test_a_pool_is_reserved_whole_and_counted_from_its_blocks():
    row = kv_memory(cells(num_gpu_blocks=4, block_size_effective=32, kv_tokens_live_mean=16.0)).iloc[0]
    assert row["kv_bytes_reserved_mean"] == row["kv_bytes_reserved_peak"] == 4 * 32 * BYTES_PER_TOKEN
    assert row["kv_bytes_used_mean"] == 16 * BYTES_PER_TOKEN


def test_what_the_engine_tells_goes_before_what_is_counted():
    told = kv_memory(cells(num_gpu_blocks=4, block_size_effective=32, kv_pool_bytes=1e6)).iloc[0]
    assert told["kv_bytes_reserved_peak"] == 1e6
    steps = kv_memory(cells(kv_bytes_reserved_mean=2e6, kv_bytes_reserved_peak=3e6)).iloc[0]
    assert (steps["kv_bytes_reserved_mean"], steps["kv_bytes_reserved_peak"]) == (2e6, 3e6)


def test_a_smaller_type_of_the_cache_takes_fewer_bytes():
    row = kv_memory(cells(kv_tokens_live_mean=16.0, knob_kv_cache_dtype="fp8")).iloc[0]
    assert row["kv_bytes_used_mean"] == 16 * BYTES_PER_TOKEN / 4


def test_a_draft_model_keeps_keys_and_values_in_the_same_blocks():
    # Of the same shape, so that half as many blocks of both fill the memory.
    drafting = {"num_gpu_blocks": 4, "block_size_effective": 32, "knob_speculative_model": "tiny-llama-57m"}
    row = kv_memory(cells(**drafting, knob_num_speculative_tokens=4, kv_tokens_live_mean=16.0)).iloc[0]
    assert row["kv_bytes_reserved_peak"] == 4 * 32 * 2 * BYTES_PER_TOKEN
    assert row["kv_bytes_used_mean"] == 16 * 2 * BYTES_PER_TOKEN
    off = kv_memory(cells(**drafting, knob_num_speculative_tokens=0)).iloc[0]
    assert off["kv_bytes_reserved_peak"] == 4 * 32 * BYTES_PER_TOKEN


@pytest.mark.parametrize(("ranks", "heads"), [(1, 4), (2, 4), (4, 4), (8, 8)])
def test_tensor_ranks_share_the_heads_and_copy_them_where_there_are_more_ranks(ranks, heads):
    row = kv_memory(cells(num_gpu_blocks=4, block_size_effective=32, knob_tensor_parallel_size=ranks)).iloc[0]
    assert row["kv_bytes_reserved_peak"] == 4 * 32 * BYTES_PER_TOKEN * heads / 4


def test_a_model_or_a_cell_that_is_not_known_has_no_bytes():
    assert pd.isna(kv_memory(cells(model="llama-9", kv_tokens_live_mean=16.0)).iloc[0]["kv_bytes_used_mean"])
    failed = kv_memory(cells(repeat=None, num_gpu_blocks=4, block_size_effective=32)).iloc[0]
    assert pd.isna(failed["kv_bytes_reserved_peak"])


def held(table: pd.DataFrame, block_size: int = 32) -> pd.Series:
    return tokens_held(request_lives(table.assign(workload="w"), {}), np.full(len(table), float(block_size)))


def test_tokens_held_over_the_lives_of_requests():
    # The first holds 10 tokens for 2 s, 11 for 0.5 s and 12 for 0.5 s; the second 8 tokens for 1 s.
    table = requests("c", (10, 3, 0, 0.0, 2.0, 3.0), (8, 1, 0, 3.0, 4.0, 4.0))
    assert held(table).loc["c", 1, 0] == pytest.approx((31.5 + 8) / 4)
    assert held(requests("c", (8, 1, 0, 3.0, 3.0, 3.0))).isna().all()
    assert held(table.head(0)).empty


def test_tokens_of_a_shared_prefix_are_held_once():
    # Both live for a second and have 32 of 40 tokens in common: two blocks of 16, or none of 64.
    table = requests("c", (40, 1, 0, 0.0, 1.0, 1.0), (40, 1, 32, 0.0, 1.0, 1.0))
    assert held(table, 16).loc["c", 1, 0] == 80 - 32
    assert held(table, 64).loc["c", 1, 0] == 80


@pytest.fixture
def parsed(tmp_path):
    """Facts of one cell of each engine."""
    facts: list[dict[str, object]] = []
    steps: list[dict[str, object]] = []
    trace: list[dict[str, object]] = []
    served: list[pd.DataFrame] = []
    for cell in expand(STUDY):
        of_cell: dict[str, object] = {
            "outcome": "ok",
            "effective.dtype": "float32",
            "trace.process_memory_bytes_before": 5e8,
        }
        of_repeat: dict[str, object] = {"wall_s": 4.0}
        if cell.engine == "vllm":
            of_cell |= {"effective.num_gpu_blocks": 8, "effective.block_size": 32}
            names = {"num_drafts": 2, "num_draft_tokens": 8, "num_accepted_tokens": 6}
            of_repeat |= {f"metric.vllm:spec_decode_{name}": value for name, value in names.items()}
        if cell.engine == "hf-continuous":
            of_cell |= {"effective.num_gpu_blocks": 8, "effective.block_size": 32, "effective.kv_cache_bytes": 1e7}
            of_repeat |= {"metric.torch_max_memory_allocated_bytes": 7e8}
        if cell.engine == "hf-static":
            for time_s, slots in ((0.0, 10), (1.0, 10), (2.0, 12)):
                reserved = {"kv_tokens_live": slots, "kv_slots_reserved": slots}
                reserved["kv_bytes_reserved"] = slots * BYTES_PER_TOKEN
                steps.append({"cell_id": cell.id, "start": 1, "repeat": 0, "time_s": time_s, **reserved})
        for repeat, named in ((None, of_cell), (0, of_repeat)):
            facts += [
                {"cell_id": cell.id, "start": 1, "repeat": repeat, "name": name}
                | ({"text": value} if isinstance(value, str) else {"value": value})
                for name, value in named.items()
            ]
        trace.append({"cell_id": cell.id, "start": 1, "repeat": 0, "time_s": 0.5, "process_memory_bytes": 8e8})
        served.append(requests(cell.id, (10, 3, 0, 0.0, 2.0, 3.0)))
    folder = tmp_path / "cpu-all"
    folder.mkdir()
    for name, rows in {"facts": facts, "steps": steps, "trace": trace}.items():
        frame(rows, TABLES[name]).to_parquet(folder / f"{name}.parquet")
    pd.concat(served).reindex(columns=list(TABLES["requests"])).to_parquet(folder / "requests.parquet")
    return tmp_path


def test_reserved_and_used_stand_beside_each_other_for_every_engine(parsed):
    table = cells_table(STUDY, expand(STUDY), parsed).set_index("engine")
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


def test_a_cell_that_asks_for_no_drafts_has_none(parsed):
    asked = expand(STUDY)
    table = cells_table(STUDY, asked, parsed).set_index("engine")
    assert table["draft_tokens"].isna().to_dict() == {"vllm": False, "hf-static": True, "hf-continuous": True}
    none = _without_drafts(table.assign(knob_num_speculative_tokens=0, draft_tokens=None))
    assert none["draft_tokens"].to_list() == [0, 0, 0]
    failed = table.assign(knob_num_speculative_tokens=0, draft_tokens=None, wall_s=None)
    assert _without_drafts(failed)["draft_tokens"].isna().all()


def test_what_was_drafted_and_accepted_is_told(parsed):
    row = cells_table(STUDY, expand(STUDY), parsed).set_index("engine").loc["vllm"]
    assert (row["draft_tokens"], row["accepted_draft_tokens"]) == (8, 6)
    assert (row["draft_acceptance_rate"], row["tokens_per_draft_mean"]) == (0.75, 4)

"""Effects on the latencies of servers, also of those whose requests arrive at a rate."""

from typing import Any

import pandas as pd
import pytest

from tests.unit.questions.synthetic_cells import around, cell, starts_table
from workflow_scripts.questions.knobs.table import knob_effects
from workflow_scripts.questions.serving.latencies import LATENCIES, SCHEMA, latency_effects


def server(ttft_s: float, engine: str = "vllm-serve", **knobs: Any) -> list[dict[str, Any]]:
    """Three starts of a cell with about this median TTFT; the other latencies are the same for all."""
    others = {"tpot_s_p50": around(0.02), "e2e_s_p50": around(1.0)}
    return cell(knobs, [100.0] * 3, engine=engine, ttft_s_p50=around(ttft_s), **others)


def effects(*cells: list[dict[str, Any]], saturated: tuple[str, ...] = ()) -> pd.DataFrame:
    ids = [rows[0]["cell_id"] for rows in cells]
    serving = pd.DataFrame({"cell_id": ids, "saturated": [name in saturated for name in ids]})
    serving["saturated"] = serving["saturated"].astype("boolean").replace(False, pd.NA)
    return SCHEMA.validate(latency_effects(starts_table(*cells), serving, 2.0))


def pairs(found: pd.DataFrame, knob: str, metric: str = "ttft_s_p50") -> list[dict[str, Any]]:
    rows = found[(found["comparison"] == "pair") & (found["knob"] == knob) & (found["metric"] == metric)]
    return rows.to_dict("records")


def test_cells_at_a_rate_have_effects_on_latency_and_none_on_throughput():
    cells = [server(ttft_s, max_num_seqs=seqs, request_rate_per_s=4.0) for seqs, ttft_s in ((4, 0.8), (64, 0.2))]
    found = effects(*cells)
    (ttft,) = pairs(found, "max_num_seqs")
    assert ttft["ratio"] == pytest.approx(0.25, rel=1e-3)
    assert ttft["ratio_low"] <= ttft["ratio"] <= ttft["ratio_high"]
    assert (ttft["verdict"], ttft["scope"]) == ("changes", "between starts on this device")
    (tpot,) = pairs(found, "max_num_seqs", "tpot_s_p50")
    assert tpot["verdict"] == "flat"
    assert set(found["metric"]) == set(LATENCIES)
    assert knob_effects(starts_table(*cells), 2.0).empty


def test_the_longest_latency_of_all_values_is_the_value():
    ttft_s = {4: 0.8, 16: 0.3, 64: 0.2}
    cells = [server(at, max_num_seqs=seqs, request_rate_per_s=4.0) for seqs, at in ttft_s.items()]
    found = effects(*cells)
    (row,) = found[(found["comparison"] == "overall") & (found["metric"] == "ttft_s_p50")].to_dict("records")
    assert (row["value"], row["baseline"], row["ratio"]) == ("4", "64", pytest.approx(4.0, rel=1e-3))


def test_the_rate_is_a_knob_that_needs_no_proof_of_its_effect():
    cells = [server(ttft_s, request_rate_per_s=rate, max_num_seqs=64) for rate, ttft_s in ((2.0, 0.1), (8.0, 0.5))]
    for row in (row for rows in cells for row in rows):
        row |= {"running_peak": 3, "num_requests": 64, "preemptions": 0, "kv_cache_usage_peak": 0.1}
    (row,) = pairs(effects(*cells), "request_rate_per_s")
    assert (row["value"], row["baseline"]) == ("8", "2")
    assert pd.isna(row["took_effect"])
    assert pd.isna(row["bound_by"])  # few requests at once are no sign of a token budget if they arrive at a rate
    offline = [server(ttft_s, engine="vllm", max_num_seqs=seqs) for seqs, ttft_s in ((4, 0.8), (64, 0.2))]
    assert effects(*offline).empty


def test_a_load_that_was_too_high_is_named():
    few, many = (server(ttft_s, max_num_seqs=seqs, request_rate_per_s=4.0) for seqs, ttft_s in ((4, 9.0), (64, 0.2)))
    few_id, many_id = (rows[0]["cell_id"] for rows in (few, many))
    for saturated, which in (((few_id,), "baseline"), ((many_id,), "value"), ((few_id, many_id), "both")):
        (row,) = pairs(effects(few, many, saturated=saturated), "max_num_seqs")
        assert row["saturated"] == which
    (row,) = pairs(effects(few, many), "max_num_seqs")
    assert pd.isna(row["saturated"])

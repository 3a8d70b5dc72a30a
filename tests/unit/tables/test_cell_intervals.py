import math

import pandas as pd
import pytest

from tests.unit.questions.synthetic_cells import cell, starts_table, table
from workflow_scripts.tables.cell_intervals import SCHEMA, cell_intervals, with_waste
from workflow_scripts.tables.summary import Summaries


def of_rate(cells: pd.DataFrame) -> pd.DataFrame:
    found = SCHEMA.validate(cell_intervals(Summaries(cells)))
    return found[found["measure"] == "output_tokens_per_s"].reset_index(drop=True)


def test_a_cell_of_three_starts_has_their_geometric_mean_and_an_interval_around_it():
    rates = (98.0, 100.0, 102.0)
    row = of_rate(starts_table(cell({"block_size": 16}, rates))).iloc[0]
    assert row["value"] == pytest.approx(math.prod(rates) ** (1 / 3))
    assert row["low"] < 98 < 102 < row["high"]
    assert row["low"] * row["high"] == pytest.approx(row["value"] ** 2)
    assert (row["repeats"], row["scope"]) == (3, "between starts on this device")
    assert row["starts_apart_pct"] == pytest.approx(100 * (102 / 98 - 1))


def test_every_engine_and_measure_has_rows_but_not_what_failed_or_arrives_at_a_rate():
    served = {"max_num_seqs": 4, "request_rate_per_s": 2.0}
    cells = table(
        cell({"block_size": 16}, (98, 102), ttft_s_p50=[0.1, 0.2], steady_output_tokens_per_s=[110, 112]),
        cell({"batch_size": 4}, (50, 51), engine="hf-static"),
        cell({"block_size": 32}, (9, 9), outcome="invalid"),
        cell(served, (7, 7), engine="vllm-serve", e2e_s_p50=1.0),
    )
    found = SCHEMA.validate(cell_intervals(Summaries(cells)))
    assert not found["cell_id"].str.contains("bs32").any()
    told = {(row.cell_id.split("/")[1], row.measure) for row in found.itertuples() if "_s" in row.measure}
    assert told == {
        ("vllm", "output_tokens_per_s"),
        ("vllm", "steady_output_tokens_per_s"),
        ("vllm", "total_tokens_per_s"),
        ("vllm", "ttft_s_p50"),
        ("hf-static", "output_tokens_per_s"),
        ("hf-static", "total_tokens_per_s"),
        ("vllm-serve", "e2e_s_p50"),
        ("vllm-serve", "output_tokens_per_s"),
        ("vllm-serve", "total_tokens_per_s"),
    }
    rates = of_rate(cells).set_index("cell_id")
    assert rates.filter(like="vllm-serve", axis=0)["value"].tolist() == pytest.approx([7])
    requests = found[found["measure"] == "num_requests"]
    assert (len(rates), len(requests)) == (3, 3)
    assert requests["low"].isna().all()


@pytest.mark.parametrize(("starts", "low", "high"), [(1, 0.1, 0.4), (3, 0.03575, 1.119)])
def test_the_latency_of_a_server_has_the_interval_of_its_own_load(starts, low, high):
    """Beside a load whose latencies vary by 1 %; the rows are one start's three repeats, or a repeat each of three."""
    seen = {"ttft_s_p50": [0.1, 0.2, 0.4]}, {"ttft_s_p50": [0.1, 0.101, 0.1]}
    make = table if starts == 1 else starts_table
    loads = [{"max_num_seqs": 4, "request_rate_per_s": rate} for rate in (4.0, 2.0)]
    cells = make(*(cell(load, (7.0,) * 3, engine="vllm-serve", **of) for load, of in zip(loads, seen, strict=True)))
    row = cell_intervals(Summaries(cells)).query("measure == 'ttft_s_p50'").iloc[0]
    assert row[["value", "low", "high"]].tolist() == pytest.approx([0.2, low, high], rel=1e-3)
    assert row["scope"] == "repeats of this load"


def test_what_is_the_same_in_all_repeats_is_exact_and_zero_is_a_value():
    held = {"kv_bytes_used_mean": [4.0e9, 4.0e9], "running_while_others_wait": [0.0, 0.0]}
    cells = table(cell({"block_size": 16}, (98, 102), **held))
    measured = pd.DataFrame({"source": "measured", "waste_pct": [2.2, 2.3]}).join(cells[["cell_id", "start", "repeat"]])
    found = SCHEMA.validate(with_waste(cell_intervals(Summaries(cells)), cells, measured)).set_index("measure")
    exact = found.loc[list(held)]
    assert exact["value"].tolist() == pytest.approx([4.0e9, 0.0])
    assert exact["low"].isna().all()
    assert found.loc["waste_pct", ["low", "value", "high"]].is_monotonic_increasing
    assert found.loc["waste_pct", "high"] < 3


def test_one_repeat_has_the_interval_of_what_others_vary_and_nothing_gives_an_empty_table():
    row = of_rate(table(cell({"block_size": 16}, (100,)))).iloc[0]
    assert row["value"] == pytest.approx(100)
    assert 85 < row["low"] < 95 < 105 < row["high"] < 115
    assert of_rate(table(cell({"block_size": 16}, (100,), outcome="timeout"))).empty

import numpy as np
import pandas as pd
import pytest

from tests.unit.questions.synthetic_cells import cell, starts_table
from workflow_scripts.tables.summary import (
    ENVIRONMENT,
    IDENTITY,
    Summaries,
    comparable_rows,
    summarise,
)

RATE = "output_tokens_per_s"


def summed(cells, measure):
    return Summaries(cells)(measure)[0]


def test_only_cells_that_ended_ok_are_as_the_study_says_and_have_the_metric_count():
    cells = starts_table(
        cell({"max_num_seqs": 1}),
        cell({"max_num_seqs": 2}, outcome="timeout"),
        cell({"max_num_seqs": 3}, comparable=False),
        cell({"max_num_seqs": 4}, comparable=None),
        cell({"max_num_seqs": 5}, outcome=None),
    )
    assert comparable_rows(cells)["knobs"].tolist() == ["seqs1"]
    assert summed(cells, RATE)["knobs"].tolist() == ["seqs1"]
    cells = starts_table(cell({"max_num_seqs": 1}, [np.nan, np.nan]), cell({"max_num_seqs": 2}, [np.nan, 5.0]))
    assert summed(cells, RATE)[["knobs", "repeats"]].to_dict("index") == {0: {"knobs": "seqs2", "repeats": 1}}


def test_a_row_a_cell_with_its_identity_knobs_and_logs():
    cells = starts_table(
        cell({"max_num_seqs": 16, "enable_prefix_caching": True}, [np.e, np.e**3]),
        cell({"max_num_seqs": 4}, [1.0], gpu="l40s"),
    )
    summary = summed(cells, RATE)
    assert set(IDENTITY) < set(summary)
    assert ("study", "source", "gpu", "engine", "model", "workload", "knobs", "cell_id", *ENVIRONMENT) == IDENTITY
    names = ["gpu", "knobs", "starts", "repeats", "log_mean", "max_concurrency_allowed", "knob_max_num_seqs"]
    assert summary[names].values.tolist() == [
        ["h200", "seqs16-pc1", 2, 2, 2.0, 16, 16],
        ["l40s", "seqs4", 1, 1, 0.0, 4, 4],
    ]
    assert summary["knob_enable_prefix_caching"].tolist() == [True, pd.NA]


def test_a_rate_of_arrivals_is_no_throughput_of_the_engine():
    cells = starts_table(cell({"max_num_seqs": 4}), cell({"max_num_seqs": 8}))
    cells = cells.assign(knob_request_rate_per_s=[None, 2.0], ttft_s_p99=1.0)
    metrics = {"output_tokens_per_s": [4], "total_tokens_per_s": [4], "ttft_s_p99": [4, 8]}
    assert {metric: summed(cells, metric)["knob_max_num_seqs"].tolist() for metric in metrics} == metrics


def test_other_columns_become_one_value_a_cell():
    seen = {"preemptions": [None, 2, 3], "running_peak": [4.0, 7.0, None], "kv_cache_tokens": [None, 8, 9]}
    seen |= {"num_requests": [4, 4, 5]}
    wanted = {
        "preemptions": 5,
        "running_peak": 7.0,
        "kv_cache_tokens": 8,
        "num_requests": 4,
        "num_requests_values": 2,
    }
    cells = starts_table(cell({"max_num_seqs": 1}, [1.0] * 3, **seen), cell({"max_num_seqs": 2}, [1.0], gpu="l40s"))
    summary = summed(cells, RATE)
    assert summary.loc[0, list(wanted)].to_dict() == wanted
    assert summary.loc[1, list(seen)].drop("num_requests").isna().all()


def bound(knobs, engine="vllm", rates=(1.0,), **observed):
    cells = starts_table(cell(knobs, rates, engine=engine, **({"num_requests": 64} | observed)))
    (limit,) = summed(cells, RATE)["bound_by"].tolist()
    return None if pd.isna(limit) else limit


@pytest.mark.parametrize(
    ("observed", "limit"),
    [
        ({"running_peak": 16, "preemptions": 0, "kv_cache_usage_peak": 1.0}, "sequences"),
        ({"running_peak": 17}, "sequences"),
        ({"running_peak": 16, "num_requests": 16}, "sequences"),
        ({"running_peak": 16, "preemptions": 1}, "kv_blocks"),
        ({"running_peak": 12, "num_requests": 12, "kv_cache_usage_peak": 0.99}, "prompts"),
        ({"running_peak": 12, "kv_cache_usage_peak": 0.95}, "kv_blocks"),
        ({"running_peak": 12, "kv_cache_usage_peak": 0.949}, "token_budget"),
        ({"running_peak": 12}, "token_budget"),
        # What is not known bounds nothing.
        ({"kv_cache_usage_peak": 1.0}, None),
        ({"running_peak": 5, "num_requests": None}, None),
        ({"preemptions": 3}, "kv_blocks"),
        # The extremes of all repeats tell.
        ({"rates": [1.0] * 3, "running_peak": [15, 16, 14], "preemptions": 0}, "sequences"),
        ({"rates": [1.0] * 2, "running_peak": 16, "preemptions": [0, 2]}, "kv_blocks"),
    ],
)
def test_what_bound_the_sequences_that_ran(observed, limit):
    assert bound({"max_num_seqs": 16}, **observed) == limit


def test_a_token_budget_is_no_limit_of_sequences():
    knobs = {"page_size": 32, "num_blocks": 8, "max_batch_tokens": 16}
    assert bound(knobs, "hf-continuous", running_peak=16) == "token_budget"
    assert bound({"batch_size": 16}, "hf-static", running_peak=16) == "sequences"


# --- starts, rounds and cards


def levels(starts, **columns):
    """Rows of one cell from tuples of its start, its round and the logarithms of its repeats."""
    return pd.DataFrame(
        [
            {"gpu": "h200", "cell": "a", "start": start, "round": round_, "rate": np.exp(log)} | columns
            for start, round_, logs in starts
            for log in logs
        ]
    )


def samples_of(*rows, by=("gpu", "cell")):
    return summarise(pd.concat(rows, ignore_index=True), by, "rate")


def test_a_start_counts_once_however_many_repeats_it_has():
    summary, samples = samples_of(levels([(1, 1, [1.0, 2.0, 3.0]), (2, 2, [6.0])]))
    assert samples.log.tolist() == [[2.0, 6.0]]
    assert summary[["starts", "repeats", "log_mean"]].values.tolist() == [[2, 4, 4.0]]
    assert samples.within.tolist() == [1.0]


def test_cells_are_side_by_side_in_the_rounds_in_which_they_were_measured():
    a, b = levels([(1, 1, [1.0]), (2, 3, [2.0])]), levels([(1, 2, [5.0]), (2, 3, [6.0])], cell="b", gpu="cpu-all")
    _, samples = samples_of(a, b)
    np.testing.assert_allclose(samples.log, [[1.0, np.nan, 2.0], [np.nan, 5.0, 6.0]])
    assert samples.shared.tolist() == [False, True]  # the machine of a CPU
    # A second start in a round is compared with no other.
    _, samples = samples_of(levels([(1, 1, [1.0]), (2, 1, [9.0])]), levels([(1, 1, [5.0])], cell="b"))
    np.testing.assert_allclose(samples.log, [[1.0, 9.0], [5.0, np.nan]])


def test_on_several_cards_a_card_is_the_unit_and_only_the_same_card_is_paired():
    rows = levels([(1, 1, [1.0]), (2, 2, [3.0]), (3, 1, [6.0])]).assign(device_uuid=["A", "A", "B"])
    other = levels([(1, 1, [2.0])], engine="hf", cell="c").assign(device_uuid="B")
    more = levels([(1, 1, [4.0])], engine="hf", cell="d").assign(device_uuid="C")
    alone = levels([(1, 1, [0.0]), (2, 2, [0.0])], gpu="l40s", cell="b")
    _, samples = samples_of(rows, alone, other, more, by=("gpu", "engine", "cell"))
    assert samples.between_cards.tolist() == [True, False, True, True]
    np.testing.assert_allclose(np.sort(samples.log[0])[:2], [2.0, 6.0])
    shared = ~np.isnan(samples.log[0]) & ~np.isnan(samples.log[2])
    assert samples.log[0][shared].tolist() == [6.0]
    assert not (~np.isnan(samples.log[0]) & ~np.isnan(samples.log[1])).any()


def test_cells_of_one_device_and_engine_are_pooled_whatever_their_model():
    cells = (("a", "vllm", "h200"), ("b", "vllm", "h200"), ("c", "hf", "h200"), ("d", "vllm", "l4"))
    rows = [levels([(1, 1, [1.0])], cell=cell, engine=engine, gpu=gpu) for cell, engine, gpu in cells]
    _, samples = samples_of(*rows, by=("gpu", "engine", "cell"))
    assert samples.group[0] == samples.group[1]
    assert len(set(samples.group.tolist())) == 3


def test_what_is_not_above_zero_is_no_repeat():
    rows = levels([(1, 1, [0.0, 0.0, 0.0])])
    rows["rate"] = pd.array([np.e, 0.0, None], dtype="Float64")
    summary, samples = samples_of(rows)
    assert (summary["repeats"].tolist(), samples.log.tolist()) == ([1], [[1.0]])
    nothing, _ = samples_of(rows.assign(rate=np.nan))
    assert (nothing["repeats"].tolist(), nothing["starts"].tolist()) == ([0], [0])

"""The table of all comparisons: which cells are compared, in which direction, and what is shown."""

import pandas as pd
import pytest

from tests.unit.questions.synthetic_cells import NOT_COUNTED, OTHER_PLACES, around, cell, only, starts_table
from workflow_scripts.questions.comparisons.table import SCHEMA, comparisons_table
from workflow_scripts.questions.knobs.pairs import MOST_VALUES

RATE = "output_tokens_per_s"
ONE, FOUR = {"max_num_seqs": 1}, {"max_num_seqs": 4}
HF = {"engine": "hf-static"}


def compared(*cells, metric=RATE, margin_pct=5.0):
    found = SCHEMA.validate(comparisons_table(starts_table(*cells), margin_pct))
    return found[found["metric"] == metric]


# Two cells with the rates 100 and 200, each with its other columns -> what the pair is.
PAIRS = {
    "a knob": (ONE, {}, FOUR, {}, ("knob", "max_num_seqs", "1", "4", True)),
    "a switch": (
        *({"enable_prefix_caching": False}, {}, {"enable_prefix_caching": True}, {}),
        ("knob", "enable_prefix_caching", "false", "true", True),
    ),
    "left to the engine": (FOUR, {}, FOUR | {"block_size": 32}, {}, ("knob", "block_size", "default", "32", True)),
    "the model": (FOUR, {}, FOUR, {"model": "opt-125m"}, ("model", "model", "llama-3.1-8b-instruct", "opt-125m", True)),
    "the device": (FOUR, {"gpu": "l40s"}, FOUR, {}, ("device", "gpu", "l40s", "h200", None)),
    "the engine": (
        *({"batch_size": 4}, HF, FOUR, {}),
        ("engine", "engine", "hf-static/static-batch4-cachedynamic", "vllm/seqs4", None),
    ),
    "a server's users": (
        *({"users": 1} | FOUR, {"engine": "vllm-serve"}, {"users": 2} | FOUR, {"engine": "vllm-serve"}),
        ("load", "users", "1", "2", True),
    ),
}


@pytest.mark.parametrize(("knobs_a", "more_a", "knobs_b", "more_b", "expected"), PAIRS.values(), ids=PAIRS)
def test_two_cells_that_differ_in_one_thing_are_one_row(knobs_a, more_a, knobs_b, more_b, expected):
    a, b = cell(knobs_a, around(100.0), **more_a), cell(knobs_b, around(200.0), **more_b)
    row = only(compared(a, b))
    assert (
        tuple(None if pd.isna(of) else of for of in row[["kind", "name", "value_a", "value_b", "from_first"]])
        == expected
    )
    assert (row["a"], row["b"]) == (a[0]["cell_id"], b[0]["cell_id"])
    assert row[["mean_a", "mean_b", "ratio"]].tolist() == pytest.approx([100, 200, 2])
    assert 1 < row["again_low"] < row["low"] < row["at_least"] < 2 < row["high"] < row["again_high"]
    assert (row["verdict"], row["starts"]) == ("changes", 3)
    assert pd.isna(row["work"]) if row["kind"] == "device" else row["work"] == "equal"


def test_two_environments_of_a_setting_are_compared():
    rows = starts_table(cell(FOUR, around(100.0)), cell(FOUR, around(200.0), lock_sha256="other"))
    old = rows["lock_sha256"].eq("other").fillna(False)
    for name in ("engine", "cell_id"):
        rows[name] = rows[name].mask(old, rows[name].str.replace("vllm", "vllm@old"))
    row = only(comparisons_table(rows, 5.0))
    assert row[["kind", "value_a", "value_b", "verdict"]].tolist() == ["environment", "default", "old", "changes"]


@pytest.mark.parametrize(
    "other", [*({"knobs": {"block_size": 32, **FOUR}, **place} for place in [*OTHER_PLACES, *NOT_COUNTED])]
)
def test_what_differs_in_more_or_does_not_count_is_not_compared(other):
    knobs = other.pop("knobs")
    assert compared(cell(FOUR, around(100.0)), cell(knobs, around(200.0), **other)).empty


@pytest.mark.parametrize(
    ("rate", "sd", "margin_pct", "verdict", "bounded"),
    [
        (100.2, 0.001, 5.0, "flat", False),
        (200.0, 0.001, 5.0, "changes", True),
        (106.0, 0.01, 5.0, "likely", True),
        (101.0, 0.2, 5.0, "not decided", False),
    ],
)
def test_the_verdict_and_the_bound_follow_from_the_margin_and_the_interval(rate, sd, margin_pct, verdict, bounded):
    row = only(compared(cell(ONE, around(100.0, sd)), cell(FOUR, around(rate, sd, turn=1)), margin_pct=margin_pct))
    assert (row["verdict"], pd.notna(row["at_least"])) == (verdict, bounded)
    assert row[["starts_needed"]].eq(0).fillna(False).item() == (verdict in ("flat", "changes"))


def test_cells_with_other_requests_are_compared_while_full_and_the_whole_rate_is_not_tested():
    cells = [
        cell({"max_num_seqs": n}, around(rate), steady_output_tokens_per_s=rate * 1.1, num_requests=n)
        for n, rate in ((1, 100.0), (4, 200.0))
    ]
    full = only(compared(*cells, metric="steady_output_tokens_per_s"))
    whole = only(compared(*cells))
    assert (full["work"], full["verdict"], whole["ratio"]) == ("differs", "changes", pytest.approx(2))
    assert whole[["verdict", "at_least", "low"]].isna().all()


@pytest.mark.parametrize(("count", "pairs"), [(MOST_VALUES, MOST_VALUES * (MOST_VALUES - 1) // 2), (20, 19 + 18)])
def test_pairs_of_a_knob_with_many_values_grow_with_their_number(count, pairs):
    found = compared(*(cell({"max_num_seqs": n}, around(100.0 + n)) for n in range(1, count + 1)))
    assert len(found) == pairs
    assert found["from_first"].sum() == count - 1

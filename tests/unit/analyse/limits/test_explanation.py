import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.analyse.limits.explanation import capability_ratios, explain, explanation_of
from workflow_scripts.catalog.gpus_and_models import get_gpu

NAN = math.nan
TWO = {"bandwidth": 2.0, "flop": 4.0}


def test_what_a_data_sheet_does_not_say_has_no_ratio():
    h200, cpu = get_gpu("h200"), get_gpu("cpu-all")
    for pair in ((h200, cpu), (cpu, h200), (None, h200), (h200, None)):
        assert all(math.isnan(ratio) for ratio in capability_ratios(*pair, "bfloat16"))
    bandwidth, flop = capability_ratios(h200, h200, None)
    assert bandwidth == 1
    assert math.isnan(flop)


@pytest.mark.parametrize(
    ("observed", "candidates", "shown", "compatible", "support", "nearest"),
    [
        ((2.1, 1.9, 2.19), TWO, "bandwidth", "", "shown", "bandwidth"),
        ((2.1, 2.05, 2.19), TWO, "bandwidth", "", "shown", "bandwidth"),  # near enough, although not equal
        ((2.1, 1.81, 2.21), TWO, "", "bandwidth", "compatible", "bandwidth"),
        ((3.0, 1.5, 4.5), TWO, "", "bandwidth flop", "compatible", "flop"),
        ((3.0, 2.5, 3.5), TWO, "", "", "none", "flop"),
        ((2.0, 1.9, 2.1), TWO | {"kv": 2.05}, "bandwidth kv", "", "shown", "bandwidth"),
        ((2.0, 1.9, 2.1), {"bandwidth": 2.0, "flop": 1.9}, "bandwidth", "flop", "shown", "bandwidth"),
        ((2.0, 1.0, 2.1), {"bandwidth": 2.15, "flop": 1.1}, "", "flop", "compatible", "flop"),
        ((2.0, 1.9, 2.1), {"bandwidth": NAN, "flop": 2.0}, "flop", "", "shown", "flop"),
        ((2.0, 1.9, 2.1), {"bandwidth": NAN}, "", "", None, None),
        ((2.0, NAN, NAN), TWO, "bandwidth", "", "near", "bandwidth"),
        ((2.199, NAN, NAN), {"bandwidth": 2.0}, "bandwidth", "", "near", "bandwidth"),
        ((2.21, NAN, NAN), {"bandwidth": 2.0}, "", "", "none", "bandwidth"),
        ((1.801, NAN, NAN), {"bandwidth": 2.0}, "bandwidth", "", "near", "bandwidth"),
        ((1.79, NAN, NAN), {"bandwidth": 2.0}, "", "", "none", "bandwidth"),
    ],
)
def test_what_an_interval_shows_excludes_or_leaves_open(observed, candidates, shown, compatible, support, nearest):
    found = explain(*observed, candidates)
    assert (found.shown, found.compatible) == (tuple(shown.split()), tuple(compatible.split()))
    assert (found.support, found.nearest) == (support, nearest)


@given(st.floats(0.2, 5), st.floats(0, 1), st.dictionaries(st.sampled_from("abcd"), st.floats(0.2, 5)))
def test_more_data_never_make_an_explanation_of_what_was_excluded(ratio, reach, candidates):
    wide = explain(ratio, ratio / (1 + reach), ratio * (1 + reach), candidates)
    narrow = explain(ratio, ratio / (1 + reach / 2), ratio * (1 + reach / 2), candidates)
    assert set(wide.shown) <= set(narrow.shown)
    assert set(narrow.compatible) <= {*wide.shown, *wide.compatible}


def row(ratio, low=math.nan, high=math.nan, bandwidth=NAN, flop=NAN, **more):
    interval = {"ratio": ratio, "ratio_low": low, "ratio_high": high}
    return interval | {"bandwidth_ratio": bandwidth, "flop_ratio": flop} | more


BOTH = ["bandwidth_ratio", "flop_ratio"]


@pytest.mark.parametrize(
    ("observed", "columns"),
    [
        (row(2.1, 1.9, 4.5, 2.0, 4.0), ("none", "bandwidth, flop", "compatible", "bandwidth", pytest.approx(5))),
        (row(3.0, 2.9, 3.1, 2.0, 4.0), ("none", None, "none", "flop", pytest.approx(-25))),
        (row(3.0, 2.9, 3.1), (None, None, None, None, pytest.approx(math.nan, nan_ok=True))),
    ],
)
def test_columns_of_an_explanation(observed, columns):
    names = ("explanation", "compatible_with", "support", "nearest", "nearest_difference_pct")
    assert explanation_of(observed, BOTH) == dict(zip(names, columns, strict=True))
    # Only the columns that are named may explain.
    assert explanation_of(row(2.0, 1.9, 2.1, 2.0, 2.05), ["flop_ratio"])["explanation"] == "flop"

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.analyse.limits import explanation
from workflow_scripts.analyse.limits.explanation import (
    NEAR_PCT,
    Explanation,
    capability_ratios,
    explain,
    explanation_of,
)
from workflow_scripts.catalog.gpus_and_models import get_gpu

UNKNOWN = math.nan
TWO = {"bandwidth": 2.0, "flop": 4.0}


# --- ratios of devices


@pytest.mark.parametrize(
    ("a", "b", "bandwidth", "flop"),
    [
        ("h200", "l40s", 5.556, 2.733),
        ("h100-sxm", "a100-pcie-80gb", 1.731, 3.171),
        ("h100-sxm", "a100-pcie-40gb", 2.154, 3.171),
        ("l40s", "h200", 0.18, 0.3659),
    ],
)
def test_ratios_of_data_sheets(a, b, bandwidth, flop):
    assert capability_ratios(get_gpu(a), get_gpu(b), "bfloat16") == pytest.approx((bandwidth, flop), rel=1e-3)


def test_the_rate_is_that_of_the_dtype():
    h200, rtx4090 = get_gpu("h200"), get_gpu("rtx4090")
    assert capability_ratios(h200, rtx4090, "float16")[1] == pytest.approx(989.5 / 330.3)
    assert capability_ratios(h200, rtx4090, "bfloat16")[1] == pytest.approx(989.5 / 165.2)


def test_what_a_data_sheet_does_not_say_has_no_ratio():
    h200, cpu = get_gpu("h200"), get_gpu("cpu-all")
    for pair in ((h200, cpu), (cpu, h200), (None, h200), (h200, None)):
        assert all(math.isnan(ratio) for ratio in capability_ratios(*pair, "bfloat16"))
    bandwidth, flop = capability_ratios(h200, h200, None)
    assert bandwidth == 1
    assert math.isnan(flop)


# --- which of them explains what was observed


def test_an_explanation_is_shown_if_the_whole_interval_is_within_ten_percent_of_it():
    assert explain(2.1, 1.9, 2.19, TWO) == Explanation(("bandwidth",), (), "shown", "bandwidth", pytest.approx(5))
    assert explain(2.1, 1.81, 2.21, TWO).support == "compatible"
    assert explain(2.1, 2.05, 2.19, TWO).support == "shown"  # near enough, although not equal
    assert NEAR_PCT == 10


def test_a_wide_interval_explains_nothing():
    found = explain(3.0, 1.5, 4.5, TWO)
    assert (found.shown, found.compatible, found.support) == ((), ("bandwidth", "flop"), "compatible")
    assert explain(2.0, 1.9, 2.1, TWO | {"kv": 2.05}).shown == ("bandwidth", "kv")
    found = explain(2.0, 1.9, 2.1, {"bandwidth": 2.0, "flop": 1.9})
    assert (found.shown, found.compatible) == (("bandwidth",), ("flop",))
    assert explain(3.0, 2.5, 3.5, TWO) == Explanation((), (), "none", "flop", pytest.approx(-25))


def test_without_an_interval_the_nearest_within_ten_percent():
    for ratio, support in ((2.199, "near"), (2.21, "none"), (1.801, "near"), (1.79, "none")):
        assert explain(ratio, math.nan, math.nan, {"bandwidth": 2.0}).support == support


def test_what_is_just_so_far_off_is_near(monkeypatch):
    monkeypatch.setattr(explanation, "NEAR_PCT", 12.5)
    assert explain(1.125, math.nan, math.nan, {"flop": 1.0}).support == "near"
    assert explain(1.1251, math.nan, math.nan, {"flop": 1.0}).support == "none"


def test_without_an_interval_nothing_is_shown():
    assert explain(2.0, math.nan, math.nan, TWO) == Explanation(("bandwidth",), (), "near", "bandwidth", 0)


def test_one_in_the_interval_is_nearer_than_any_outside():
    assert explain(2.0, 1.0, 2.1, {"bandwidth": 2.15, "flop": 1.1}).nearest == "flop"


def test_unknown_ratios_explain_nothing():
    assert explain(2.0, 1.9, 2.1, {"bandwidth": UNKNOWN, "flop": 2.0}).shown == ("flop",)
    nothing = explain(2.0, 1.9, 2.1, {"bandwidth": UNKNOWN})
    assert (nothing.shown, nothing.support, nothing.nearest) == ((), None, None)
    assert math.isnan(nothing.difference_pct)


@given(st.floats(0.2, 5), st.floats(0, 1), st.dictionaries(st.sampled_from("abcd"), st.floats(0.2, 5)))
def test_more_data_never_make_an_explanation_of_what_was_excluded(ratio, reach, candidates):
    wide = explain(ratio, ratio / (1 + reach), ratio * (1 + reach), candidates)
    narrow = explain(ratio, ratio / (1 + reach / 2), ratio * (1 + reach / 2), candidates)
    assert set(wide.shown) <= set(narrow.shown)
    assert set(narrow.compatible) <= {*wide.shown, *wide.compatible}


# --- as columns and in words


def row(ratio, low=math.nan, high=math.nan, bandwidth=UNKNOWN, flop=UNKNOWN, **more):
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
    assert explanation_of(observed, BOTH)[0] == dict(zip(names, columns, strict=True))


def test_only_the_columns_that_are_named_may_explain():
    known, text = explanation_of(row(2.0, 1.9, 2.1, 2.0, 2.05), ["flop_ratio"])
    assert known["explanation"] == "flop"
    assert "memory bandwidths" not in text


BETWEEN = " The observed ratio lies between those of FLOP rates and of bandwidths, as for a mix of steps bound by each."


@pytest.mark.parametrize(
    ("observed", "phrase", "between"),
    [
        (row(2.1, 1.9, 2.15, 2.0, 4.0), "shown to be", False),
        (row(3.0, 1.5, 4.5, 2.0, 4.0), "too wide", True),
        (row(2.95, bandwidth=5.556, flop=2.733), "7.9 % above", True),
        (row(3.0, 2.9, 3.1, 2.0, 4.0), "25.0 % below", True),
        (row(1.2, flop=4.0), "70.0 % below", False),
        (row(1.99, bandwidth=2.0), "0.5 % below", False),
        (row(2.01, bandwidth=2.0), "0.5 % above", False),
        (row(2.0, bandwidth=2.0, flop=4.0), "0.0 % below", False),
        (row(2.0, bandwidth=1.0, flop=2.0), "0.0 % below", False),
        (row(1.2, 1.1, 1.3), "No known ratio", False),
    ],
)
def test_explanations_in_words(observed, phrase, between):
    text = explanation_of(observed, BOTH)[1]
    assert phrase in text
    assert text.endswith(BETWEEN) == between


def test_measured_rates_may_enclose_what_was_observed_too():
    measured = {"measured_bandwidth_ratio": 2.0, "measured_flop_ratio": 4.0}
    _, text = explanation_of(row(3.0, 2.9, 3.1, **measured), list(measured))
    assert "rates (4):" in text
    assert text.endswith(BETWEEN)
    _, text = explanation_of(row(4.2, 4.1, 4.3, 4.4, 5.0, **measured), list(measured))
    assert BETWEEN not in text
    _, text = explanation_of(row(2.0, 1.9, 1.95, 2.0, 4.0), BOTH)
    assert BETWEEN not in text

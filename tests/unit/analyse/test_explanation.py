import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.analyse import explanation
from workflow_scripts.analyse.explanation import (
    CANDIDATES,
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
    return {
        "ratio": ratio,
        "ratio_low": low,
        "ratio_high": high,
        "bandwidth_ratio": bandwidth,
        "flop_ratio": flop,
    } | more


BOTH = ["bandwidth_ratio", "flop_ratio"]


def test_columns_of_an_explanation():
    known, _ = explanation_of(row(2.1, 1.9, 4.5, 2.0, 4.0), BOTH)
    assert known == {
        "explanation": "none",
        "compatible_with": "bandwidth, flop",
        "support": "compatible",
        "nearest": "bandwidth",
        "nearest_difference_pct": pytest.approx(5),
    }
    known, _ = explanation_of(row(3.0, 2.9, 3.1, 2.0, 4.0), BOTH)
    assert (known["explanation"], known["support"], known["nearest"]) == ("none", "none", "flop")
    known, _ = explanation_of(row(3.0, 2.9, 3.1), BOTH)
    assert (known["explanation"], known["support"], known["nearest"]) == (None, None, None)


def test_only_the_columns_that_are_named_may_explain():
    known, text = explanation_of(row(2.0, 1.9, 2.1, 2.0, 2.05), ["flop_ratio"])
    assert known["explanation"] == "flop"
    assert "memory bandwidths" not in text


def test_each_candidate_has_its_own_name():
    assert CANDIDATES == {
        "bandwidth_ratio": ("bandwidth", "memory bandwidths"),
        "flop_ratio": ("flop", "FLOP rates"),
        "measured_bandwidth_ratio": ("measured_bandwidth", "measured memory bandwidths"),
        "measured_flop_ratio": ("measured_flop", "measured matrix-product rates"),
        "measured_cache_ratio": ("measured_cache", "measured rates of reading the weights from cache"),
        "kv_tokens_ratio": ("kv_capacity", "KV-cache capacities"),
        "expected_ratio": ("expected", "rates that the step model expects"),
    }


BETWEEN = " The observed ratio lies between those of FLOP rates and of bandwidths, as for a mix of steps bound by each."


@pytest.mark.parametrize(
    ("observed", "text"),
    [
        (
            row(2.1, 1.9, 2.15, 2.0, 4.0),
            "It is shown to be within 10 % of the ratio of memory bandwidths (2). It does not support FLOP rates (4).",
        ),
        (
            row(3.0, 1.5, 4.5, 2.0, 4.0),
            "It is compatible with memory bandwidths (2) and FLOP rates (4), but the interval is too wide to show that."
            + BETWEEN,
        ),
        (
            row(2.95, bandwidth=5.556, flop=2.733),
            "The nearest ratio is that of FLOP rates (2.73): the observed ratio lies 7.9 % above it."
            " It does not support memory bandwidths (5.56)." + BETWEEN,
        ),
        (
            row(3.0, 2.9, 3.1, 2.0, 4.0),
            "The interval excludes every known ratio. The nearest is that of FLOP rates (4): the observed ratio lies "
            "25.0 % below it." + BETWEEN,
        ),
        (
            row(1.2, bandwidth=UNKNOWN, flop=4.0),
            "No known ratio is within 10 %. The nearest is that of FLOP rates (4): the observed ratio lies 70.0 % "
            "below it.",
        ),
        (row(1.2, 1.1, 1.3), "No known ratio of the two devices could explain it."),
    ],
)
def test_explanations_in_words(observed, text):
    assert explanation_of(observed, BOTH)[1] == text


def test_above_and_below_in_words():
    for ratio, text in ((2.01, "0.5 % above it"), (1.99, "0.5 % below it"), (2.0, "0.0 % below it")):
        assert text in explanation_of(row(ratio, bandwidth=2.0), ["bandwidth_ratio"])[1]


def test_what_equals_a_bound_is_not_between():
    for bandwidth, flop in ((2.0, 4.0), (1.0, 2.0)):
        assert BETWEEN not in explanation_of(row(2.0, bandwidth=bandwidth, flop=flop), BOTH)[1]


def test_measured_rates_may_enclose_what_was_observed_too():
    measured = {"measured_bandwidth_ratio": 2.0, "measured_flop_ratio": 4.0}
    _, text = explanation_of(row(3.0, 2.9, 3.1, **measured), list(measured))
    assert text == (
        "The interval excludes every known ratio. The nearest is that of measured matrix-product rates (4):"
        " the observed ratio lies 25.0 % below it." + BETWEEN
    )
    _, text = explanation_of(row(4.2, 4.1, 4.3, 4.4, 5.0, **measured), list(measured))
    assert BETWEEN not in text
    _, text = explanation_of(row(2.0, 1.9, 1.95, 2.0, 4.0), BOTH)
    assert BETWEEN not in text

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import ttost_ind

from workflow_scripts.analyse.statistics import (
    CHANGES,
    FLAT,
    MOST_FURTHER_REPEATS,
    NOT_DECIDED,
    LogSamples,
    further_repeats,
    interval_text,
    is_beyond,
    is_equivalent,
    is_not_below,
    log_margin,
    mean_interval,
    number_text,
    ratio_interval,
    summarise,
    verdicts,
)


def samples(*repeats):
    """Each argument holds the repeats of a cell."""
    logs = [np.log(r) for r in repeats]
    return LogSamples(
        np.array([float(len(x)) for x in logs]),
        np.array([x.mean() for x in logs]),
        np.array([x.var(ddof=1) if len(x) > 1 else np.nan for x in logs]),
    )


def cell(n, mean=1.0, sd=0.0):
    """One cell by its number of repeats, geometric mean, and standard deviation of the logarithms."""
    return LogSamples(np.array([float(n)]), np.log([mean]), np.array([sd**2]))


rates = st.lists(st.floats(50, 200), min_size=2, max_size=6).filter(lambda x: np.ptp(np.log(x)) > 1e-3)


# --- summing up


def test_repeats_are_summed_up_by_group_and_only_values_above_zero_count():
    rows = pd.DataFrame(
        {
            "cell": ["b", "a", "b", "a", "b", "a", "c", None],
            "rate": pd.array([np.e, 1.0, np.e**3, 0.0, None, -5.0, None, 7.0], dtype="Float64"),
        }
    )
    summary = summarise(rows, ["cell"], "rate")
    assert summary.columns.tolist() == ["cell", "repeats", "log_mean", "log_variance"]
    assert summary["cell"].fillna("none").tolist() == ["b", "a", "c", "none"]
    assert summary["repeats"].tolist() == [2, 1, 0, 1]
    assert summary["log_mean"].tolist() == pytest.approx([2.0, 0.0, np.nan, np.log(7)], nan_ok=True)
    assert summary["log_variance"].tolist() == pytest.approx([2.0, np.nan, np.nan, np.nan], nan_ok=True)


def test_samples_are_read_off_columns_with_a_suffix():
    table = pd.DataFrame({"repeats_b": [3], "log_mean_b": [1.5], "log_variance_b": pd.array([None], dtype="Float64")})
    taken = LogSamples.of(table, "_b")
    assert (taken.n.tolist(), taken.mean.tolist()) == ([3.0], [1.5])
    assert np.isnan(taken.variance).all()


def test_cells_are_taken_by_position_as_often_as_they_are_named():
    taken = LogSamples(*(np.array([x, x + 1, x + 2]) for x in (10.0, 20.0, 30.0))).at([2, 0, 2])
    assert (taken.n.tolist(), taken.mean.tolist()) == ([12.0, 10.0, 12.0], [22.0, 20.0, 22.0])
    assert taken.variance.tolist() == [32.0, 30.0, 32.0]


# --- intervals


@settings(deadline=None)
@given(rates)
def test_the_interval_of_a_mean_is_that_of_scipy(x):
    value, low, high = mean_interval(samples(x))
    expected = stats.ttest_1samp(np.log(x), 0).confidence_interval(0.95)
    assert value[0] == pytest.approx(stats.gmean(x))
    assert (low[0], high[0]) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))


@settings(deadline=None)
@given(rates, rates, st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_of_a_ratio_is_welchs_as_scipy_has_it(x, y, confidence):
    value, low, high = ratio_interval(samples(x), samples(y), confidence)
    expected = stats.ttest_ind(np.log(x), np.log(y), equal_var=False).confidence_interval(confidence)
    assert value[0] == pytest.approx(stats.gmean(x) / stats.gmean(y))
    assert (low[0], high[0]) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))


@settings(deadline=None)
@given(rates, rates, st.floats(0.1, 10))
def test_a_ratio_turned_round_is_its_inverse_and_scale_falls_out(x, y, scale):
    value, low, high = (end[0] for end in ratio_interval(samples(x), samples(y)))
    assert low <= value <= high
    assert [1 / end[0] for end in ratio_interval(samples(y), samples(x))] == pytest.approx([value, high, low])
    scaled = ratio_interval(samples(np.multiply(x, scale)), samples(np.multiply(y, scale)))
    assert [end[0] for end in scaled] == pytest.approx([value, low, high])


def test_default_confidence_is_95_percent():
    a, b = samples([1.0, 1.1, 1.2]), samples([1.0, 1.3, 1.1])
    assert ratio_interval(a, b) == ratio_interval(a, b, 0.95)
    assert mean_interval(a) == mean_interval(a, 0.95)


def test_one_repeat_has_a_value_and_no_interval():
    for value, low, high in (
        mean_interval(samples([50.0])),
        ratio_interval(samples([50.0]), samples([1.0, 1.0, 1.0])),
        ratio_interval(samples([50.0, 50.0]), samples([1.0])),
        ratio_interval(samples([50.0]), samples([1.0])),
    ):
        assert value[0] == pytest.approx(50)
        assert np.isnan([low[0], high[0]]).all()


def test_no_repeat_has_nothing():
    nothing = LogSamples(np.array([0.0]), np.array([np.nan]), np.array([np.nan]))
    assert np.isnan(mean_interval(nothing)).all()
    assert np.isnan(ratio_interval(nothing, samples([1.0, 2.0]))).all()


def test_repeats_that_agree_to_the_last_digit_have_an_interval_without_width():
    assert [end[0] for end in ratio_interval(cell(3, 2.0), cell(2))] == [2.0, 2.0, 2.0]
    assert [end[0] for end in mean_interval(cell(2, 3.0))] == pytest.approx([3.0, 3.0, 3.0])


def test_one_side_without_variance_leaves_the_degrees_of_freedom_of_the_other():
    _, low, high = ratio_interval(cell(5), cell(3, sd=0.01))
    half = stats.t.ppf(0.975, 2) * 0.01 / np.sqrt(3)
    assert (np.log(low[0]), np.log(high[0])) == pytest.approx((-half, half))


def test_many_cells_at_once_are_each_as_alone():
    a, b = [[1.0, 1.2], [3.0, 3.1, 3.3], [5.0]], [[1.0, 1.1, 1.05], [3.0, 2.9], [5.0, 5.5]]
    together = np.array(ratio_interval(samples(*a), samples(*b)))
    alone = [ratio_interval(samples(x), samples(y)) for x, y in zip(a, b, strict=True)]
    assert together == pytest.approx(np.array(alone)[:, :, 0].T, nan_ok=True)


# --- equivalence


@settings(max_examples=300, deadline=None)
@given(rates, rates, st.floats(0.5, 50))
def test_equivalence_is_statsmodels_two_one_sided_tests(x, y, margin_pct):
    bound = log_margin(margin_pct)
    p, _, _ = ttost_ind(np.log(x), np.log(y), -bound, bound, usevar="unequal")
    if abs(p - 0.05) > 1e-6:
        assert is_equivalent(samples(x), samples(y), margin_pct)[0] == (p < 0.05)


@settings(max_examples=300, deadline=None)
@given(rates, rates, st.floats(0.5, 50))
def test_not_below_is_scipys_one_sided_test(x, y, margin_pct):
    shifted = np.log(x) + log_margin(margin_pct)
    p = stats.ttest_ind(shifted, np.log(y), equal_var=False, alternative="greater").pvalue
    if abs(p - 0.05) > 1e-6:
        assert is_not_below(samples(x), samples(y), margin_pct)[0] == (p < 0.05)


def test_the_margin_reaches_as_far_down_as_up():
    assert log_margin(25.0) == pytest.approx(np.log(1.25))
    for mean, within in ((1.0199, True), (1.0201, False), (1 / 1.0199, True), (1 / 1.0201, False)):
        assert is_equivalent(cell(3, mean), cell(3), 2.0)[0] == within
        assert is_beyond(cell(3, mean), cell(3), 2.0)[0] != within
    assert is_not_below(cell(3, 0.9805), cell(3), 2.0)[0]
    assert not is_not_below(cell(3, 0.98), cell(3), 2.0)[0]
    assert is_not_below(cell(3, 5.0), cell(3), 2.0)[0]


def test_what_lies_on_the_margin_is_within_it():
    edge = LogSamples(np.array([2.0]), np.array([log_margin(2.0)]), np.array([0.0]))
    assert is_equivalent(edge, cell(2), 2.0)[0]
    assert not is_beyond(edge, cell(2), 2.0)[0]
    assert is_not_below(cell(2), edge, 2.0)[0]


def test_a_change_is_an_interval_that_leaves_the_margin_out():
    # Half the width of the 95 % interval is t(0.975, 4) * sd * sqrt(2/3) = 2.267 * sd.
    b = cell(3, sd=0.01)
    half = stats.t.ppf(0.975, 4) * 0.01 * np.sqrt(2 / 3)
    just_enough = np.exp(log_margin(2.0) + half)
    assert is_beyond(cell(3, just_enough * 1.0001, 0.01), b, 2.0)[0]
    assert not is_beyond(cell(3, just_enough * 0.9999, 0.01), b, 2.0)[0]
    assert is_beyond(b, cell(3, just_enough * 1.0001, 0.01), 2.0)[0]


def test_several_comparisons_share_the_five_percent():
    b = cell(3, sd=0.01)
    half = stats.t.ppf(1 - 0.025 / 10, 4) * 0.01 * np.sqrt(2 / 3)
    just_enough = np.exp(log_margin(2.0) + half)
    assert is_beyond(cell(3, just_enough * 1.0001, 0.01), b, 2.0, comparisons=10)[0]
    assert not is_beyond(cell(3, just_enough * 0.9999, 0.01), b, 2.0, comparisons=10)[0]
    assert is_beyond(cell(3, just_enough * 0.9999, 0.01), b, 2.0, comparisons=9)[0]


def test_verdicts():
    a = LogSamples(np.full(5, 3.0), np.log([1.001, 1.5, 0.5, 1.02, 1.0]), np.array([1e-6, 1e-6, 1e-6, 1e-4, np.nan]))
    b = LogSamples(np.full(5, 3.0), np.zeros(5), np.full(5, 1e-6))
    assert verdicts(a, b, 2.0).tolist() == [FLAT, CHANGES, CHANGES, NOT_DECIDED, NOT_DECIDED]
    assert [FLAT, CHANGES, NOT_DECIDED] == ["flat", "changes", "not decided"]
    assert verdicts(cell(3, 1.045, 0.01), cell(3, 1.0, 0.01), 2.0)[0] == CHANGES
    assert verdicts(cell(3, 1.045, 0.01), cell(3, 1.0, 0.01), 2.0, comparisons=5)[0] == NOT_DECIDED


@settings(deadline=None)
@given(rates, rates, st.floats(0.5, 50))
def test_flat_and_changes_exclude_each_other_and_do_not_depend_on_the_order(x, y, margin_pct):
    a, b = samples(x), samples(y)
    assert not (is_equivalent(a, b, margin_pct) & is_beyond(a, b, margin_pct)).any()
    assert verdicts(a, b, margin_pct) == verdicts(b, a, margin_pct)


# --- planning


def test_no_further_repeats_where_it_is_decided():
    assert further_repeats(cell(2, 1.001), cell(2), 2.0).tolist() == [0]
    assert further_repeats(cell(3, 1.5, 0.001), cell(3, 1.0, 0.001), 2.0).tolist() == [0]


def test_no_plan_without_a_variance_or_on_the_margin_itself():
    single = samples([100.0])
    assert np.isnan(further_repeats(single, cell(3, 100.0, 0.01), 2.0)).all()
    assert np.isnan(further_repeats(cell(3, 1.02, 0.01), cell(3, 1.0, 0.01), 2.0)).all()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 5),
    st.integers(2, 5),
    st.floats(0.95, 1.05),
    st.floats(0.001, 0.06),
    st.floats(0.001, 0.06),
    st.sampled_from([1, 3]),
)
def test_the_plan_is_the_first_number_that_decides(n_a, n_b, mean, sd_a, sd_b, comparisons):
    k = np.arange(MOST_FURTHER_REPEATS + 1.0)
    a, b = (
        LogSamples(n + k, np.full(len(k), np.log(m)), np.full(len(k), sd**2))
        for n, m, sd in ((n_a, mean, sd_a), (n_b, 1.0, sd_b))
    )
    decided = verdicts(a, b, 2.0, comparisons) != NOT_DECIDED
    planned = further_repeats(cell(n_a, mean, sd_a), cell(n_b, 1.0, sd_b), 2.0, comparisons)[0]
    assert planned == decided.argmax() if decided.any() else np.isnan(planned)


def test_the_most_further_repeats_are_100():
    def planned(sd):
        return further_repeats(cell(3, 1.0, sd), cell(3, 1.0, sd), 2.0)[0]

    # With n repeats the 90 % interval reaches t(0.95, 2n - 2) * sd * sqrt(2/n) from 1.
    enough = log_margin(2.0) / (stats.t.ppf(0.95, 2 * 103 - 2) * np.sqrt(2 / 103))
    assert planned(enough * 0.9999) == 100
    assert np.isnan(planned(enough * 1.0001))


def test_plans_of_many_cells_are_each_as_alone():
    sds = np.array([0.0, 0.015, 0.03, 0.06, np.nan, 1.0])
    a = LogSamples(np.full(6, 3.0), np.zeros(6), sds**2)
    alone = [further_repeats(cell(3, 1.0, sd), cell(3, 1.0, sd), 2.0)[0] for sd in sds]
    assert further_repeats(a, a, 2.0).tolist() == pytest.approx(alone, nan_ok=True)
    assert alone[0] == 0
    assert 0 < alone[1] < alone[2] < alone[3] <= 100
    assert np.isnan(alone[4:]).all()


# --- what the promises are worth


@pytest.mark.parametrize(("n_a", "n_b", "sd_a", "sd_b"), [(3, 3, 0.01, 0.01), (3, 5, 0.03, 0.005), (10, 4, 0.2, 0.1)])
def test_95_percent_intervals_cover_the_truth_that_often(n_a, n_b, sd_a, sd_b):
    rng = np.random.default_rng(20261121)
    a = rng.normal(np.log(300), sd_a, (20_000, n_a))
    b = rng.normal(np.log(100), sd_b, (20_000, n_b))
    a_samples, b_samples = (
        LogSamples(np.full(len(x), float(x.shape[1])), x.mean(axis=1), x.var(axis=1, ddof=1)) for x in (a, b)
    )
    _, low, high = ratio_interval(a_samples, b_samples)
    assert 0.92 <= ((low <= 3) & (high >= 3)).mean() <= 0.98
    _, low, high = mean_interval(a_samples)
    assert 0.94 <= ((low <= 300) & (high >= 300)).mean() <= 0.96


@pytest.mark.parametrize("true_ratio", [1.02, 1 / 1.02, 1.03])
@pytest.mark.parametrize(("n", "sd"), [(3, 0.002), (3, 0.02), (10, 0.01)])
def test_a_difference_of_the_margin_or_more_is_called_flat_in_at_most_5_percent(true_ratio, n, sd):
    rng = np.random.default_rng(7)
    a = rng.normal(np.log(true_ratio), sd, (20_000, n))
    b = rng.normal(0, sd, (20_000, n))
    a_samples, b_samples = (
        LogSamples(np.full(len(x), float(n)), x.mean(axis=1), x.var(axis=1, ddof=1)) for x in (a, b)
    )
    found = verdicts(a_samples, b_samples, 2.0)
    assert (found == FLAT).mean() <= 0.05
    # No difference beyond the margin is claimed more often than the 95 % interval allows where it is just not there.
    if true_ratio == 1.02:
        assert (found == CHANGES).mean() <= 0.05


# --- words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999.4, "999.4"),
        (1000.0, "1,000"),
        (-1234.5, "-1,234"),
        (12.3456, "12.35"),
        (0.001234567, "0.001235"),
        (3.0, "3"),
    ],
)
def test_numbers_in_words(value, text):
    assert number_text(value) == text


def test_intervals_in_words():
    assert interval_text(11976.6, 11900.2, 12050.4) == "11,977 (95 % interval 11,900 to 12,050)"
    assert interval_text(2.5, 2.25, 2.75, "x") == "2.5x (95 % interval 2.25x to 2.75x)"
    assert interval_text(2.5, np.nan, np.nan, "x") == "2.5x (too few repeats for an interval)"

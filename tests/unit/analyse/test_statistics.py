import dataclasses
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats import multitest
from statsmodels.stats.weightstats import ttost_paired

from tests.unit.analyse.synthetic_starts import another_run, ends, pair, samples
from workflow_scripts.analyse.statistics import (
    ASSUMED_SD,
    CHANGES,
    FLAT,
    NOT_DECIDED,
    OCCASION_SD,
    STARTS_TO_SEE_MODES,
    compare,
    directions,
    holm,
    interval_text,
    is_higher,
    log_margin,
    mean_interval,
    quantile_interval,
    verdicts,
)

# Two cells are too few to be pooled, so each comparison has its own variance.
rates = st.lists(st.tuples(st.floats(50, 200), st.floats(50, 200)), min_size=2, max_size=6).filter(
    lambda pairs: np.ptp([np.log(a / b) for a, b in pairs]) > 1e-3
)


# --- intervals


@given(rates)
def test_the_interval_of_a_mean_is_scipys_for_another_run(x):
    logs = np.log([a for a, _ in x])
    (value, low, high), scope = mean_interval(samples([logs, logs]))
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert value[0] == pytest.approx(np.exp(logs.mean()))
    if np.ptp(logs) > 1e-3 and not np.isnan(low[0]):
        assert (low[0], high[0]) == pytest.approx(another_run(expected))
    assert scope.tolist() == [None if np.isnan(end) else "between starts on this device" for end in low]


@given(rates, st.lists(st.floats(-2, 2), min_size=6, max_size=6), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_of_a_ratio_is_that_of_a_paired_t_test_whatever_rounds_do(x, drift, confidence):
    a, b = np.log(x).T
    found = pair(a + drift[: len(a)], b + drift[: len(a)])
    expected = stats.ttest_rel(a, b).confidence_interval(confidence)
    assert ends(found.interval())[0] == pytest.approx(np.exp((a - b).mean()))
    if not found.bimodal[0]:
        assert ends(found.interval(confidence))[1:] == pytest.approx(another_run(expected))


def test_only_rounds_that_both_were_measured_in_count():
    found = pair([1.0, 2.0, np.nan, 4.0], [0.5, np.nan, 9.0, 3.6])
    assert found.starts.tolist() == [2]
    assert found.difference[0] == pytest.approx(0.45)


def test_cells_that_share_no_round_have_no_interval_and_decide_only_what_another_occasion_would_not_overturn():
    found = pair([1.0, 1.2, np.nan, np.nan], [np.nan, np.nan, 0.5, 0.5])
    assert (found.difference[0], found.scope[0], found.starts[0]) == (pytest.approx(0.6), None, 0)
    assert np.isnan(ends(found.interval())[1:]).all()
    for distance, verdict in ((0.5, CHANGES), (0.4, NOT_DECIDED), (0.0, NOT_DECIDED)):
        found = pair([1.0, 1.0, np.nan, np.nan], [np.nan, np.nan, 1 - distance, 1 - distance])
        assert verdicts(found, 2.0).tolist() == [verdict]
    assert verdicts(pair([9.0, np.nan], [np.nan, 0.5]), 2.0).tolist() == [NOT_DECIDED]


def test_the_cards_of_two_devices_are_not_paired():
    nan = np.nan
    found = pair([1.0, 1.1, 1.3, nan, nan], [nan, nan, nan, 0.5, 0.6], cards=True, group=[0, 1])
    expected = stats.ttest_ind([1.0, 1.1, 1.3], [0.5, 0.6], equal_var=False).confidence_interval(0.95)
    assert ends(found.interval())[1:] == pytest.approx(another_run(expected))
    assert found.scope.tolist() == ["between cards"]
    alone = pair([1.0, 1.1, nan], [nan, nan, 0.5], cards=True, group=[0, 1])
    assert np.isnan(ends(alone.interval())[1:]).all()


def test_one_start_has_welchs_interval_of_its_repeats():
    found = pair([1.0], [0.5], within=[0.0004, 0.0001], repeats=[3.0, 4.0])
    expected = stats.ttest_ind_from_stats(1.0, 0.02, 3, 0.5, 0.01, 4, equal_var=False)
    half = abs(0.5 / expected.statistic) * stats.t.ppf(0.975, 1)
    assert found.scope[0] == "within one start"
    df = (0.0004 / 3 + 0.0001 / 4) ** 2 / ((0.0004 / 3) ** 2 / 2 + (0.0001 / 4) ** 2 / 3)
    half = stats.t.ppf(0.975, df) * (2 * (0.0004 / 3 + 0.0001 / 4)) ** 0.5
    assert np.log(ends(found.interval())) == pytest.approx([0.5, 0.5 - half, 0.5 + half])


def test_what_one_start_decides_holds_also_if_starts_vary():
    needed = log_margin(2.0) + stats.norm.ppf(0.975) * np.sqrt(2 * ASSUMED_SD**2 + 2e-6 / 3)
    for distance, verdict in ((needed * 1.001, CHANGES), (needed * 0.999, NOT_DECIDED), (0.0, NOT_DECIDED)):
        assert verdicts(pair([distance], [0.0], within=1e-6, repeats=3.0), 2.0).tolist() == [verdict]


def test_other_cells_with_several_starts_tell_what_a_single_start_is_worth():
    rng = np.random.default_rng(1)
    log = rng.normal(0, 0.001, (8, 4))
    log[0, 1:] = np.nan
    found = compare(samples(log), [0], [1])
    assert (found.starts[0], found.scope[0], bool(found.pooled[0])) == (1, "between starts on this device", True)
    assert verdicts(found, 2.0).tolist() == [FLAT]


def test_a_single_start_beside_others_shows_no_change_that_two_modes_make():
    log = np.random.default_rng(1).normal(0, 0.001, (8, 4))
    log[0, 1:] = np.nan
    for factor, verdict in ((0.9, NOT_DECIDED), (1.1, CHANGES)):
        log[0, 0] = log[1, 0] + log_margin(2.0) + ASSUMED_SD * factor
        found = compare(samples(log), [0], [1])
        assert found.pooled.tolist() == [True]
        assert verdicts(found, 2.0).tolist() == [verdict]


def residuals(log):
    """Mean square of what is left without cells and rounds, and its degrees of freedom."""
    left = log - log.mean(axis=0) - log.mean(axis=1)[:, None] + log.mean()
    df = (len(log) - 1) * (log.shape[1] - 1)
    return (left**2).sum() / df, df


def test_cells_of_one_device_and_engine_share_a_variance_and_those_of_two_have_a_sum_of_mean_squares():
    log = np.random.default_rng(5).normal(0, 0.02, (9, 4))
    found = compare(samples(log, group=[0] * 6 + [1] * 3), [0, 1, 0], [1, 2, 8])
    assert found.pooled.tolist() == [True] * 3
    assert found.df.tolist()[:2] == [15, 15]
    assert found.variance[0] == found.variance[1]
    # What rounds do to the mean of each engine, and what a cell is beside the mean of its own.
    means = log[:6].mean(axis=0) - log[6:].mean(axis=0)
    (of_a, df_a), (of_b, df_b) = residuals(log[:6]), residuals(log[6:])
    parts, df = [means.var(ddof=1), 5 / 6 * of_a, 2 / 3 * of_b], [3, df_a, df_b]
    assert found.variance[2] == pytest.approx(sum(parts))
    assert found.df[2] == pytest.approx(sum(parts) ** 2 / sum(part**2 / of for part, of in zip(parts, df, strict=True)))


def test_a_cell_that_is_alone_of_its_engine_has_only_its_own_error_beside_that_of_the_pooled_cells():
    log = np.random.default_rng(4).normal(0, 0.02, (7, 3))
    found = compare(samples(log, group=[0] * 6 + [1]), [0], [6])
    own = (log[:6].mean(axis=0) - log[6]).var(ddof=1)
    of_a, df = residuals(log[:6])
    assert found.pooled.tolist() == [True]
    assert found.variance[0] == pytest.approx(own + 5 / 6 * of_a)
    assert found.df[0] == pytest.approx((own + 5 / 6 * of_a) ** 2 / (own**2 / 2 + (5 / 6 * of_a) ** 2 / df))
    # Of two cells that are both alone nothing is pooled.
    assert not compare(samples(log[:2], group=[0, 1]), [0], [1]).pooled[0]


@pytest.mark.parametrize("apart", [0.0, 0.05, 0.2])
def test_intervals_of_two_engines_hold_another_run_also_if_rounds_move_engines_apart(apart):
    rng = np.random.default_rng(8)
    sd = np.repeat([0.05, 0.02], [6, 3])[:, None]

    def run():
        rounds = rng.normal(0, 0.2, (3000, 1, 3)) + rng.normal(0, apart, (3000, 2, 3))[:, [0] * 6 + [1] * 3]
        log = rng.normal(0, 1, (3000, 9, 3)) * sd + rounds
        return compare(samples(log, group=[0] * 6 + [1] * 3), [0, 3], [6, 8])

    one, other = run(), run()
    _, low, high = one.interval()
    again = other.interval().value
    assert one.pooled.mean() > 0.5
    assert 0.93 <= ((low <= again) & (again <= high)).mean() <= 0.97
    assert (directions(one) != NOT_DECIDED).any(axis=-1).mean() <= 0.05


def test_two_engines_whose_rounds_lack_cells_are_pooled_without_bias():
    log = np.random.default_rng(9).normal(0, 0.1, (2000, 9, 4))
    log[:, 3:6, 2:] = np.nan
    log[:, 7, 3] = np.nan
    found = compare(samples(log, group=[0] * 6 + [1] * 3), [0], [8])
    assert found.variance[found.pooled].mean() == pytest.approx(0.02, rel=0.08)


def test_between_cards_is_said():
    assert pair([1.0, 2.0], [0.5, 1.6], cards=True).scope.tolist() == ["between cards"]


def test_a_ratio_is_between_cards_only_if_both_devices_were_several():
    cells = samples([[1.0, 2.0], [0.5, 1.6]], group=[0, 1])
    found = compare(dataclasses.replace(cells, between_cards=np.array([True, False])), [0, 1], [1, 0])
    assert found.scope.tolist() == ["between starts on this device"] * 2


def test_starts_that_agree_to_the_last_digit_have_an_interval_without_width():
    assert ends(pair([1.0, 1.0], [0.0, 0.0]).interval()) == pytest.approx([np.e] * 3)
    assert verdicts(pair([1.0, 1.0], [0.0, 0.0]), 2.0).tolist() == [CHANGES]
    assert verdicts(pair([0.01, 0.01], [0.0, 0.0]), 2.0).tolist() == [FLAT]


def test_no_start_has_nothing():
    nothing = samples([[np.nan, np.nan], [1.0, 2.0]])
    assert np.isnan([end[0] for end in mean_interval(nothing)[0]]).all()
    found = compare(nothing, [0], [1])
    assert np.isnan(ends(found.interval())).all()
    assert verdicts(found, 2.0).tolist() == [NOT_DECIDED]


def test_independent_studies_are_each_as_alone():
    log = np.random.default_rng(5).normal(0, 0.05, (4, 5, 4))
    together = compare(samples(log), [0, 1], [2, 3])
    for study, of_study in enumerate(log):
        alone = compare(samples(of_study), [0, 1], [2, 3])
        np.testing.assert_allclose(np.array(together.interval())[:, study], np.array(alone.interval()))
        assert verdicts(together, 20.0)[study].tolist() == verdicts(alone, 20.0).tolist()


# --- verdicts


@given(rates, st.floats(0.5, 50))
def test_flat_is_statsmodels_two_one_sided_tests(x, margin_pct):
    a, b = np.log(x).T
    found, bound = pair(a, b), log_margin(margin_pct)
    p, _, _ = ttost_paired(a, b, -bound, bound)
    if abs(p - 0.05) > 1e-6 and not found.bimodal[0]:
        assert found.is_within(margin_pct)[0] == (p < 0.05)


@given(rates, st.floats(0.5, 50))
def test_verdicts_do_not_depend_on_the_order_and_exclude_each_other(x, margin_pct):
    a, b = np.log(x).T
    assert verdicts(pair(a, b), margin_pct) == verdicts(pair(b, a), margin_pct)
    found = pair(a, b)
    assert not (found.is_within(margin_pct) & (found.p_beyond(margin_pct) <= 0.05)).any()


def test_a_change_is_an_interval_that_leaves_the_margin_out():
    noise = np.array([0.01, -0.01, 0.005, -0.005, 0.0, 0.0])
    half = stats.t.ppf(0.975, 5) * noise.std(ddof=1) / np.sqrt(6)
    for factor, verdict in ((1.001, CHANGES), (0.999, NOT_DECIDED)):
        assert verdicts(pair(noise + log_margin(2.0) + half * factor, np.zeros(6)), 2.0).tolist() == [verdict]


def test_fewer_than_five_starts_show_only_changes_that_two_modes_do_not_make():
    for starts in range(2, 7):
        small, large = (np.full(starts, log_margin(2.0) + ASSUMED_SD * factor) for factor in (0.99, 1.01))
        enough = starts >= STARTS_TO_SEE_MODES
        assert verdicts(pair(small, np.zeros(starts)), 2.0).tolist() == [CHANGES if enough else NOT_DECIDED]
        assert verdicts(pair(large, np.zeros(starts)), 2.0).tolist() == [CHANGES]


# statsmodels collects garbage in every call, which takes long once a whole suite is loaded.
@mock.patch("gc.collect", mock.Mock())
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holms_method_is_that_of_statsmodels(p):
    assert holm(np.array(p)) == pytest.approx(multitest.multipletests(p, method="holm")[1])
    assert holm(np.array([p, p]))[1] == pytest.approx(holm(np.array(p)))


def test_looks_and_comparisons_share_the_error():
    rng = np.random.default_rng(2)
    noise = rng.normal(0, 0.01, (2, 6))
    alone = pair(noise[0] + 0.05, noise[1])
    assert verdicts(alone, 2.0).tolist() == [CHANGES]
    assert verdicts(alone, 2.0, share=0.005).tolist() == [NOT_DECIDED]
    several = compare(samples([noise[0] + 0.05, noise[1]]), [0] * 200, [1] * 200)
    assert set(verdicts(several, 2.0)) == {NOT_DECIDED}
    assert not is_higher(pair(noise[0], noise[0])).any()
    assert is_higher(alone).all()


def test_not_below_is_one_sided():
    noise = np.array([0.001, -0.001, 0.0])
    assert pair(noise + 1.0, np.zeros(3)).is_not_below(2.0).tolist() == [True]
    assert pair(noise - 0.01, np.zeros(3)).is_not_below(2.0).tolist() == [True]
    assert pair(noise - 0.03, np.zeros(3)).is_not_below(2.0).tolist() == [False]


# --- what the promises are worth


@pytest.mark.parametrize("starts", [2, 3, 5])
def test_95_percent_intervals_hold_the_ratio_of_another_run_that_often(starts):
    rng = np.random.default_rng(20261121)
    one, other = (
        compare(samples(rng.normal(0, 0.05, (3000, 8, starts)) + drift), [0, 2, 4], [1, 3, 5]).interval()
        for drift in rng.normal(0, 0.2, (2, 3000, 1, starts))
    )
    inside = (one.low <= other.value) & (other.value <= one.high)
    assert 0.935 <= inside[~np.isnan(one.low)].mean() <= 0.965


def test_another_run_that_may_show_the_other_direction_is_no_change():
    noise = np.array([0.05, -0.05, 0.0])
    error = noise.std(ddof=1) / np.sqrt(3) * stats.t.ppf(0.975, 2)
    for factor, verdict in ((0.99, NOT_DECIDED), (1.01, CHANGES)):
        found = pair(noise + np.sqrt(2) * error * factor, np.zeros(3))
        assert found.p_beyond(0.001)[0] <= 0.05 or verdict == NOT_DECIDED
        assert verdicts(found, 0.001).tolist() == [verdict]


def test_on_a_shared_machine_intervals_allow_for_another_occasion():
    noise = np.array([0.002, -0.002, 0.001, 0.0, -0.001])
    quiet, shared = (pair(noise + 0.05, np.zeros(5), shared=shared) for shared in (False, True))
    half = stats.norm.ppf(0.975) * np.sqrt(2 * 2) * OCCASION_SD
    assert np.log(ends(shared.interval())) == pytest.approx([0.05 - 0.0002, -half + 0.05, half + 0.05], abs=2e-3)
    assert (verdicts(quiet, 2.0).tolist(), verdicts(shared, 2.0).tolist()) == ([CHANGES], [NOT_DECIDED])
    # What holds for the occasion that was measured is not touched: flat is flat.
    assert verdicts(pair(noise, np.zeros(5), shared=True), 2.0).tolist() == [FLAT]
    single = pair([1.0], [0.5], within=0.0001, repeats=3.0, shared=True)
    assert single.interval().low == pair([1.0], [0.5], within=0.0001, repeats=3.0).interval().low


def test_occasions_are_covered_as_often_as_promised():
    rng = np.random.default_rng(4)
    one, other = (
        compare(
            samples(rng.normal(0, 0.03, (3000, 8, 3)) + rng.normal(0, OCCASION_SD, (3000, 8, 1)), shared=True), [0], [1]
        ).interval()
        for _ in range(2)
    )
    assert 0.935 <= ((one.low <= other.value) & (other.value <= one.high)).mean() <= 0.97


def test_a_direction_is_shown_over_all_comparisons():
    noise = np.array([0.002, -0.002, 0.001])
    found = compare(samples([noise + 1, np.zeros(3), noise * 2]), [0, 1, 1], [1, 0, 2])
    assert directions(found).tolist() == ["faster", "slower", "not decided"]


@pytest.mark.parametrize("starts", [2, 5])
def test_a_difference_of_the_margin_is_called_flat_or_a_change_in_at_most_5_percent(starts):
    rng = np.random.default_rng(7)
    log = rng.normal(0, 0.01, (4000, 6, starts))
    log[:, 0] += log_margin(2.0)
    found = verdicts(compare(samples(log), [0], [1]), 2.0)
    assert (found == FLAT).mean() <= 0.055
    assert (found == CHANGES).mean() <= 0.055


def test_in_few_starts_two_modes_that_are_near_are_no_change():
    rng = np.random.default_rng(1)
    log = rng.normal(0, 0.01, (1000, 9, 2)) + rng.normal(0, 0.05, (1000, 1, 2))
    log[:, 0] += 0.1 * rng.integers(0, 2, (1000, 2))
    found = compare(samples(log), *np.triu_indices(9, 1))
    assert (holm(found.p_beyond(2.0)) <= 0.05).any(axis=-1).mean() < 0.01


def test_the_exact_interval_of_a_quantile_covers_it():
    rng = np.random.default_rng(3)
    found = np.array([quantile_interval(rng.exponential(size=400), 0.99) for _ in range(1000)])
    truth = stats.expon.ppf(0.99)
    assert 0.945 <= ((found[:, 1] <= truth) & (found[:, 2] >= truth)).mean() <= 1
    assert not np.isnan(quantile_interval(np.arange(368), 0.99)).any()
    assert np.isnan(quantile_interval(np.arange(367), 0.99)).all()
    assert np.isnan(quantile_interval([], 0.99)).all()


# --- words


def test_intervals_in_words():
    assert interval_text(11976.6, 11900.2, 12050.4) == "12,000 (95 % interval 11,900 to 12,100)"
    assert interval_text(2.5, 2.0, 3.0, " times", "between cards") == "2.5 times (95 % interval 2 to 3, between cards)"
    assert interval_text(2.5, 2.251, 2.7549, " J") == "2.5 J (95 % interval 2.25 to 2.75)"
    assert interval_text(2.5, np.nan, np.nan, " times", "between cards") == "2.5 times (no interval)"

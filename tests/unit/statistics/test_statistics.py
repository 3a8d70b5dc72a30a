import dataclasses
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats import multitest
from statsmodels.stats.weightstats import ttost_paired

from tests.unit.questions.synthetic_starts import as_ratio, ends, pair, samples
from workflow_scripts.statistics.comparisons import (
    CHANGES,
    FLAT,
    GPU_OCCASION_SD,
    MODES_APART,
    NOT_DECIDED,
    OCCASION_SD,
    ONE_START,
    STARTS_TO_SEE_MODES,
    compare,
    directions,
    holm,
    is_higher,
    log_margin,
    mean_interval,
    verdicts,
)
from workflow_scripts.statistics.variation import UNKNOWN

# Two cells are too few to be pooled, so each comparison has its own variance.
rates = st.lists(st.tuples(st.floats(50, 200), st.floats(50, 200)), min_size=2, max_size=6).filter(
    lambda pairs: np.ptp([np.log(a / b) for a, b in pairs]) > 1e-3
)


# --- intervals


@given(rates)
def test_the_interval_of_a_mean_is_scipys_for_as_ratio(x):
    logs = np.log([a for a, _ in x])
    (value, low, high), scope = mean_interval(samples([logs, logs]))
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert value[0] == pytest.approx(np.exp(logs.mean()))
    if np.ptp(logs) > 1e-3 and not np.isnan(low[0]):
        assert (low[0], high[0]) == pytest.approx(as_ratio(expected))
    assert scope.tolist() == [None if np.isnan(end) else "between starts on this device" for end in low]


@given(rates, st.lists(st.floats(-2, 2), min_size=6, max_size=6), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_of_a_ratio_is_that_of_a_paired_t_test_whatever_rounds_do(x, drift, confidence):
    a, b = np.log(x).T
    found = pair(a + drift[: len(a)], b + drift[: len(a)])
    expected = stats.ttest_rel(a, b).confidence_interval(confidence)
    assert ends(found.interval())[0] == pytest.approx(np.exp((a - b).mean()))
    assert ends(found.interval(confidence))[1:] == pytest.approx(as_ratio(expected))


def test_a_ratio_is_that_of_the_means_over_all_starts_of_each():
    found = pair([1.0, 2.0, np.nan, 4.0], [0.5, np.nan, 9.0, 3.6])
    assert found.starts.tolist() == [2]
    assert found.difference[0] == pytest.approx(7 / 3 - 13.1 / 3)
    nothing = samples([[np.nan, np.nan], [1.0, 2.0]])
    assert np.isnan([end[0] for end in mean_interval(nothing)[0]]).all()
    found = compare(nothing, [0], [1])
    assert np.isnan(ends(found.interval())).all()
    assert verdicts(found, 2.0).tolist() == [NOT_DECIDED]


def test_the_effect_of_a_round_that_only_one_cell_was_measured_in_widens_the_interval():
    slow = np.array([0.0, 0.0, -0.5])  # the third round
    cells = np.random.default_rng(1).normal(0, 0.01, (6, 3)) + slow
    cells[0, 2] = np.nan
    missed = compare(samples(cells), [0, 2], [1, 1])
    widths = missed.interval().high / missed.interval().low
    assert np.exp(missed.difference[0]) == pytest.approx(np.exp(1 / 6), rel=0.05)
    assert widths[0] > 1.3 > 1.1 > widths[1]


def test_starts_that_agree_to_the_last_digit_have_an_interval_without_width():
    assert ends(pair([1.0, 1.0], [0.0, 0.0]).interval()) == pytest.approx([np.e] * 3)
    for difference, verdict in ((1.0, CHANGES), (0.01, FLAT)):
        assert verdicts(pair([difference] * 2, [0.0, 0.0]), 2.0).tolist() == [verdict]


def test_cells_that_share_no_round_are_two_samples_and_on_cpus_of_two_occasions():
    nan, a, b = [np.nan] * 3, [1.0, 1.2, 1.1], [0.5, 0.52, 0.48]
    found, shared = (pair([*a, *nan], [*nan, *b], group=[0, 1], device=[0, 1], shared=cpu) for cpu in (False, True))
    in_one_occasion = pair([*a, *nan], [*nan, *b], group=[0, 1], device=[0, 0])
    low, high = stats.ttest_ind(a, b).confidence_interval(0.95)
    assert ends(in_one_occasion.interval()) == pytest.approx(np.exp([0.6, low, high]))
    assert found.starts.tolist() == [3]
    for of_occasions, sd in ((found, GPU_OCCASION_SD), (shared, OCCASION_SD)):
        assert (of_occasions.variance - in_one_occasion.variance)[0] / 3 == pytest.approx(2 * sd**2)
    assert verdicts(pair([9.0, np.nan], [np.nan, 0.5]), 2.0).tolist() == [NOT_DECIDED]


def test_the_cards_of_two_devices_are_not_paired():
    nan, options = np.nan, {"cards": True, "group": [0, 1], "device": [0, 1]}
    found = pair([1.0, 1.1, 1.3, 1.2], [0.5, 0.6, 0.4, 0.5], **options)
    low, high = stats.ttest_ind([1.0, 1.1, 1.3, 1.2], [0.5, 0.6, 0.4, 0.5]).confidence_interval(0.95)
    assert ends(found.interval())[1:] == pytest.approx(np.exp([low, high]), rel=0.02)
    assert found.scope.tolist() == ["between cards"]
    # What is known of starts says nothing about cards.
    alone = pair([1.0, nan], [nan, 0.5], known=(0.001, 9, 0.001, 9), **options)
    assert alone.scope.tolist() == [None]
    # A ratio is between cards only if both devices were several.
    of_one = dataclasses.replace(samples([[1.0, 2.0], [0.5, 1.6]], group=[0, 1]), between_cards=np.array([True, False]))
    assert compare(of_one, [0, 1], [1, 0]).scope.tolist() == ["between starts on this device"] * 2


def test_a_start_varies_at_least_as_much_as_its_repeats():
    known = (0.0001, 9, 0, 0)
    quiet, noisy = (pair([1.0], [0.5], within=within, repeats=4.0, known=known) for within in (0.0001, 0.04))
    assert quiet.scope.tolist() == noisy.scope.tolist() == [ONE_START]
    assert quiet.variance[0] == pytest.approx(2 * 0.0001)
    assert noisy.variance[0] == pytest.approx(2 * 0.01)
    # What is known elsewhere counts as few starts at most.
    one, several = (pair([1.0], [0.5], known=(0.0001, df, 0, 0)) for df in (2, 100))
    assert one.df[0] < several.df[0] <= UNKNOWN.studies_df
    assert pair([1.0], [0.5]).scope.tolist() == [None]


@pytest.mark.parametrize(("apart", "verdict"), [(0.0, FLAT), (1.0, NOT_DECIDED), (2.0, CHANGES)])
def test_other_cells_with_several_starts_tell_what_a_single_start_is_worth(apart, verdict):
    log = np.random.default_rng(1).normal(0, 0.001, (8, 4))
    log[0, 1:] = np.nan
    log[0, 0] = log[1, 0] + log_margin(2.0) * apart
    found = compare(samples(log), [0], [1])
    assert (found.starts[0], found.scope[0]) == (1, ONE_START)
    assert verdicts(found, 2.0).tolist() == [verdict]


@pytest.mark.parametrize("elsewhere", [0.0001, 0.0025])
def test_every_further_start_narrows_the_interval(elsewhere):
    """The median width, whether starts vary as elsewhere, less or more."""
    rng = np.random.default_rng(3)
    log = rng.normal(0, 0.02, (500, 5, 8)) + rng.normal(0, 0.05, (500, 1, 8))
    several = [samples(log[..., :n], known=(elsewhere, 30, 0.0025, 8)) for n in range(1, 9)]
    of_pairs = [compare(of, [0], [1]).interval() for of in several]
    of_means = [mean_interval(of)[0] for of in several]
    for found in (of_pairs, of_means):
        widths = [float(np.median(of.high / of.low)) for of in found]
        assert widths == sorted(widths, reverse=True)


def test_a_noisy_cell_is_believed_more_than_the_others():
    log = np.random.default_rng(1).normal(0, 0.01, (12, 5))
    log[0] *= 8
    found = samples(log).variation
    assert found.variance[0] > 0.7 * log[0].var(ddof=1)
    assert found.df[0] < 8 < found.df[1]
    assert found.variance[1:].max() < 0.0003


def test_many_cells_that_vary_differently_show_few_false_directions():
    rng = np.random.default_rng(1)
    sd = 0.02 * np.exp(rng.normal(0, 0.8, (40, 700, 1)))
    cells = samples(rng.normal(0, sd, (40, 700, 2)))
    false = directions(compare(cells, np.arange(0, 700, 2), np.arange(1, 700, 2))) != NOT_DECIDED
    assert false.any(axis=-1).mean() <= 0.1


@pytest.mark.parametrize("apart", [0.0, 0.05, 0.2])
def test_intervals_of_two_engines_hold_another_run_also_if_rounds_move_engines_apart(apart):
    rng = np.random.default_rng(8)
    sd = np.repeat([0.05, 0.02], [6, 3])[:, None]

    def run():
        rounds = rng.normal(0, 0.2, (3000, 1, 3)) + rng.normal(0, apart, (3000, 2, 3))[:, [0] * 6 + [1] * 3]
        log = rng.normal(0, 1, (3000, 9, 3)) * sd + rounds
        return compare(samples(log, group=[0] * 6 + [1] * 3), [0, 3], [6, 8])

    one, other = run(), run()
    low, high = one.another_run()
    again = np.exp(other.difference)
    assert 0.93 <= ((low <= again) & (again <= high)).mean() <= 0.98
    assert (directions(one) != NOT_DECIDED).any(axis=-1).mean() <= 0.05


def test_engines_with_one_round_in_common_have_an_interval_from_the_other_rounds_of_the_study():
    """The second engine has one start; nothing is known from other studies."""
    rounds = np.random.default_rng(4).normal(0, 0.05, (2000, 1, 3))
    log = np.random.default_rng(3).normal(0, 0.01, (2000, 5, 3)) + rounds
    log[:, 3:, 1:] = np.nan
    found = compare(samples(log, group=[0] * 3 + [1] * 2), [0], [4])
    _, low, high = found.interval()
    assert ((low <= 1) & (high >= 1)).mean() >= 0.95
    assert np.log(np.median(high)) < 0.3
    alone = compare(samples(log[..., :1], group=[0] * 3 + [1] * 2), [0], [4])
    assert alone.scope[0].tolist() == [None]
    # Two engines whose rounds lack cells have an unbiased variance.
    log = np.random.default_rng(9).normal(0, 0.1, (2000, 9, 4))
    log[:, 3:6, 2:] = np.nan
    log[:, 7, 3] = np.nan
    found = compare(samples(log, group=[0] * 6 + [1] * 3), [0], [8])
    assert found.variance.mean() == pytest.approx(0.02, rel=0.08)


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
    if abs(p - 0.025) > 1e-6:
        # The interval of 95 % must lie within the margin too, which is a test of 2.5 %.
        assert (found.p_within(margin_pct)[0] < 0.05) == (p < 0.025)


@given(rates, st.floats(0.5, 50))
def test_verdicts_do_not_depend_on_the_order_and_exclude_each_other(x, margin_pct):
    a, b = np.log(x).T
    assert verdicts(pair(a, b), margin_pct) == verdicts(pair(b, a), margin_pct)
    found = pair(a, b)
    assert not ((found.p_within(margin_pct) <= 0.05) & (found.p_beyond(margin_pct) <= 0.05)).any()


def test_a_change_is_an_interval_that_leaves_the_margin_out():
    noise = np.array([0.01, -0.01, 0.005, -0.005, 0.0, 0.0])
    half = stats.t.ppf(0.975, 5) * noise.std(ddof=1) / np.sqrt(6)
    for factor, verdict in ((1.001, CHANGES), (0.999, NOT_DECIDED)):
        assert verdicts(pair(noise + log_margin(2.0) + half * factor, np.zeros(6)), 2.0).tolist() == [verdict]


def test_fewer_than_five_starts_show_only_changes_that_two_modes_do_not_make():
    for starts in range(2, 7):
        small, large = (np.full(starts, log_margin(20.0) + MODES_APART * factor) for factor in (0.99, 1.01))
        enough = starts >= STARTS_TO_SEE_MODES
        of_shared = [verdicts(pair(log, np.zeros(starts), shared=True), 20.0)[0] for log in (small, large)]
        assert of_shared == [CHANGES if enough else NOT_DECIDED, CHANGES]
        assert verdicts(pair(small, np.zeros(starts)), 20.0)[0] == CHANGES  # a GPU has one mode


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


def test_not_below_is_one_sided_and_a_direction_is_shown_over_all_comparisons():
    noise = np.array([0.001, -0.001, 0.0])
    for difference, is_shown in ((1.0, True), (-0.01, True), (-0.03, False)):
        assert (pair(noise + difference, np.zeros(3)).p_not_below(2.0) <= 0.05).tolist() == [is_shown]
    noise = np.array([0.002, -0.002, 0.001])
    found = compare(samples([noise + 1, np.zeros(3), noise * 2]), [0, 1, 1], [1, 0, 2])
    assert directions(found).tolist() == ["faster", "slower", "not decided"]


# --- what the promises are worth


@pytest.mark.parametrize("starts", [2, 3, 5])
def test_95_percent_intervals_hold_the_ratio_and_that_of_another_run_that_often(starts):
    rng = np.random.default_rng(20261121)
    one, other = (
        compare(samples(rng.normal(0, 0.05, (3000, 8, starts)) + drift), [0, 2, 4], [1, 3, 5])
        for drift in rng.normal(0, 0.2, (2, 3000, 1, starts))
    )
    low, high = one.another_run()
    again = np.exp(other.difference)
    assert 0.935 <= ((low <= again) & (again <= high))[~np.isnan(low)].mean() <= 0.98
    _, low, high = one.interval()
    assert 0.935 <= ((low <= 1) & (high >= 1))[~np.isnan(low)].mean() <= 0.98


def test_another_run_that_may_show_the_other_direction_is_no_change():
    noise = np.array([0.05, -0.05, 0.0])
    error = noise.std(ddof=1) / np.sqrt(3) * stats.t.ppf(0.975, 2)
    for factor, verdict in ((0.99, NOT_DECIDED), (1.01, CHANGES)):
        found = pair(noise + np.sqrt(2) * error * factor, np.zeros(3))
        assert found.p_beyond(0.001)[0] <= 0.05 or verdict == NOT_DECIDED
        assert verdicts(found, 0.001).tolist() == [verdict]


def test_on_a_shared_machine_another_run_may_be_another_occasion():
    noise = np.array([0.002, -0.002, 0.001, 0.0, -0.001])
    quiet, shared = (pair(noise + 0.05, np.zeros(5), shared=shared) for shared in (False, True))
    half = stats.norm.ppf(0.975) * np.sqrt(2 * 2) * OCCASION_SD
    assert np.log(np.array(shared.another_run()).ravel()) == pytest.approx([0.05 - half, 0.05 + half], abs=2e-3)
    assert (verdicts(quiet, 2.0).tolist(), verdicts(shared, 2.0).tolist()) == ([CHANGES], [NOT_DECIDED])
    # The interval, and what is flat, are about the occasion that was measured.
    assert ends(shared.interval()) == ends(quiet.interval())
    assert verdicts(pair(noise, np.zeros(5), shared=True), 2.0).tolist() == [FLAT]


@pytest.mark.parametrize("starts", [2, 5])
def test_a_study_whose_differences_are_the_margin_calls_any_flat_or_a_change_in_at_most_5_percent(starts):
    rng = np.random.default_rng(7)
    log = rng.normal(0, 0.002, (4000, 10, starts))
    log[:, :5] += log_margin(2.0)
    found = verdicts(compare(samples(log), range(5), range(5, 10)), 2.0)
    assert 0 < (found == FLAT).any(axis=-1).mean() <= 0.05
    assert (found == CHANGES).any(axis=-1).mean() <= 0.05

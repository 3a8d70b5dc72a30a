"""Ratios, their intervals and verdicts."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats import multitest

from tests.unit.questions.synthetic_starts import ends, pair, samples
from workflow_scripts.statistics.comparisons import (
    CHANGES,
    FLAT,
    NOT_DECIDED,
    compare,
    holm,
    log_margin,
    mean_interval,
    verdicts,
)
from workflow_scripts.statistics.variation import known_elsewhere

GPU, CPU = known_elsewhere(False), known_elsewhere(True)
# Repeats that leave no doubt.
SURE = {"within": 1e-8, "within_df": 100}
rates = st.lists(st.tuples(st.floats(50, 200), st.floats(50, 200)), min_size=1, max_size=6)


# --- intervals


@given(rates, st.lists(st.floats(-2, 2), min_size=6, max_size=6))
def test_what_a_round_does_to_both_cells_cancels_in_their_ratio(x, drift):
    a, b = np.log(x).T
    found, moved = (pair(a + of, b + of, **SURE) for of in (0.0, np.array(drift[: len(a)])))
    assert ends(found.interval()) == pytest.approx(ends(moved.interval()))
    assert ends(found.interval())[0] == pytest.approx(np.exp((a - b).mean()))


@pytest.mark.parametrize("starts", [20, 80])
def test_many_starts_have_the_intervals_of_students_tests(starts):
    a, b = np.random.default_rng(1).normal(0, 0.02, (2, starts))
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert np.log(ends(pair(a, b, **SURE).interval())[1:]) == pytest.approx([*expected], abs=0.0015)
    # Two devices do not share their rounds, which are then a part of how their starts vary.
    expected = stats.ttest_ind(a, b).confidence_interval(0.95)
    found = pair(a, b, group=[0, 1], device=[0, 1], **SURE)
    assert np.log(ends(found.interval())[1:]) == pytest.approx([*expected], abs=0.004)


def test_a_ratio_is_that_of_the_means_over_all_starts_of_each():
    found = pair([1.0, 2.0, np.nan, 4.0], [0.5, np.nan, 9.0, 3.6])
    assert found.starts.tolist() == [2]
    assert found.difference[0] == pytest.approx(7 / 3 - 13.1 / 3)
    nothing = samples([[np.nan, np.nan], [1.0, 2.0]])
    (_, low, high), scope = mean_interval(nothing)
    assert np.isnan([low[0], high[0]]).all()
    assert scope[0] is None
    found = compare(nothing, [0], [1])
    assert np.isnan(ends(found.interval())).all()
    assert verdicts(found, 2.0).tolist() == [NOT_DECIDED]


def test_the_effect_of_a_round_that_only_one_cell_was_measured_in_widens_the_interval():
    slow = np.array([0.0, 0.0, -0.5])  # the third round
    cells = np.random.default_rng(1).normal(0, 0.01, (6, 3)) + slow
    cells[0, 2] = np.nan
    missed = compare(samples(cells, **SURE), [0, 2], [1, 1])
    widths = missed.interval().high / missed.interval().low
    assert np.exp(missed.difference[0]) == pytest.approx(np.exp(1 / 6), rel=0.05)
    assert widths[0] > 1.2 > 1.1 > widths[1]


@pytest.mark.parametrize("starts", [1, 2, 5])
def test_a_ratio_is_open_only_if_the_intervals_of_its_cells_overlap(starts):
    log = np.random.default_rng(4).normal(0, 0.02, (500, 8, starts)) + np.linspace(0, 0.5, 8)[:, None]
    of = samples(log, within=0.02**2, within_df=6, repeats=3.0)
    a, b = np.triu_indices(8, 1)
    (_, low, high), _ = mean_interval(of)
    apart = (low[:, a] > high[:, b]) | (low[:, b] > high[:, a])
    _, low, high = compare(of, a, b).interval()
    assert apart.mean() > 0.4
    assert not (apart & (low <= 1) & (high >= 1)).any()


def test_cells_of_two_devices_share_no_rounds_and_each_device_has_an_occasion():
    nan, a, b = [np.nan] * 3, [1.0, 1.02, 1.01], [0.5, 0.52, 0.51]
    together = pair(a, b, **SURE)
    apart = pair([*a, *nan], [*nan, *b], group=[0, 1], device=[0, 1], **SURE)
    assert apart.starts.tolist() == [3]
    assert apart.error.variance[0] > together.error.variance[0]
    assert together.occasions.variance[0] == pytest.approx(2 * GPU.occasions**2)
    assert apart.occasions.variance[0] == pytest.approx(2 * (GPU.occasions**2 + GPU.cards**2))


def test_the_cards_of_two_devices_are_not_paired():
    options = {"cards": True, "group": [0, 1], "device": [0, 1], **SURE}
    found = pair([1.0, 1.1, 1.3, 1.2], [0.5, 0.6, 0.4, 0.5], **options)
    assert found.scope.tolist() == ["between cards"]
    low, high = stats.ttest_ind([1.0, 1.1, 1.3, 1.2], [0.5, 0.6, 0.4, 0.5]).confidence_interval(0.95)
    assert np.log(ends(found.interval())[1:]) == pytest.approx([low, high], abs=0.12)
    # A ratio is between cards only if both devices were several.
    of_one = dataclasses.replace(samples([[1.0, 2.0], [0.5, 1.6]], group=[0, 1]), between_cards=np.array([True, False]))
    assert compare(of_one, [0, 1], [1, 0]).scope.tolist() == ["between starts on this device"] * 2


@pytest.mark.parametrize(("apart", "shared"), [(0.0, False), (0.01, False), (0.05, True)])
def test_intervals_of_two_engines_allow_for_what_a_round_does_to_one_of_them(apart, shared):
    rng = np.random.default_rng(8)
    sd = np.repeat([0.03, 0.01], [6, 3])[:, None]
    rounds = rng.normal(0, 0.05, (1500, 1, 3)) + rng.normal(0, apart, (1500, 2, 3))[:, [0] * 6 + [1] * 3]
    log = rng.normal(0, 1, (1500, 9, 3)) * sd + rounds
    found = compare(samples(log, group=[0] * 6 + [1] * 3, shared=shared, **SURE), [0, 3], [6, 8])
    _, low, high = found.interval()
    assert 0.92 <= ((low <= 1) & (high >= 1)).mean() <= 0.99
    assert (verdicts(found, 0.0) != NOT_DECIDED).any(axis=-1).mean() <= 0.05


def test_independent_studies_are_each_as_alone():
    log = np.random.default_rng(5).normal(0, 0.05, (4, 5, 4))
    together = compare(samples(log), [0, 1], [2, 3])
    for study, of_study in enumerate(log):
        alone = compare(samples(of_study), [0, 1], [2, 3])
        np.testing.assert_allclose(np.array(together.interval())[:, study], np.array(alone.interval()))
        assert verdicts(together, 20.0)[study].tolist() == verdicts(alone, 20.0).tolist()


# --- verdicts


@given(rates, st.floats(0.5, 50))
def test_verdicts_do_not_depend_on_the_order_and_exclude_each_other(x, margin_pct):
    a, b = np.log(x).T
    found, turned = pair(a, b), pair(b, a)
    assert verdicts(found, margin_pct) == verdicts(turned, margin_pct)
    assert not ((found.p_within(margin_pct) <= 0.05) & (found.p_beyond(margin_pct) <= 0.05)).any()
    assert found.at_least() == pytest.approx(turned.at_least())


def test_a_change_is_of_the_settings_and_flat_of_the_occasion():
    noise = np.tile([0.001, -0.001], 20)
    half = stats.norm.ppf(0.975) * np.sqrt(2) * GPU.occasions
    # What occasions vary is not known exactly.
    for factor, verdict in ((1.5, CHANGES), (0.95, NOT_DECIDED)):
        found = pair(noise + log_margin(2.0) + half * factor, np.zeros(40), **SURE)
        assert verdicts(found, 2.0).tolist() == [verdict]
    found = pair(noise + 0.015, np.zeros(40), **SURE)
    assert verdicts(found, 2.0).tolist() == [FLAT]
    low, high = (float(end[0]) for end in found.another_run())
    assert low < 1 / 1.02 < 1.02 < high


# statsmodels collects garbage in every call, which takes long once a whole suite is loaded.
@mock.patch("gc.collect", mock.Mock())
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holms_method_is_that_of_statsmodels(p):
    assert holm(np.array(p)) == pytest.approx(multitest.multipletests(p, method="holm")[1])
    assert holm(np.array([p, p]))[1] == pytest.approx(holm(np.array(p)))


def test_above_is_one_sided_and_a_direction_is_shown_over_all_comparisons():
    noise = np.array([0.001, -0.001, 0.0])
    for difference, shown in ((1.0, 1), (0.1, 1), (0.01, 0), (-0.1, -1)):
        found = pair(noise + difference, np.zeros(3), **SURE)
        assert [found.p_above(2.0, sign)[0] <= 0.05 for sign in (1, -1)] == [shown == 1, shown == -1]
    noise = np.array([0.002, -0.002, 0.001])
    found = compare(samples([noise + 1, np.zeros(3), noise * 2], **SURE), [0, 1, 1], [1, 0, 2])
    assert verdicts(found, 0.0).tolist() == [CHANGES, CHANGES, NOT_DECIDED]


@pytest.mark.parametrize(("shared", "decided"), [(False, 0.06), (True, 0.08)])
def test_on_a_shared_machine_verdicts_allow_for_a_part_of_what_occasions_vary(shared, decided):
    """With 100 starts, only the occasion is left."""
    noise = np.tile([0.002, -0.002], 50)
    known = CPU if shared else GPU
    of = pair(noise + decided, np.zeros(100), shared=shared, **SURE)
    assert of.occasions.variance[0] == pytest.approx(2 * known.occasions**2)
    assert verdicts(of, 1.0).tolist() == [CHANGES]
    assert verdicts(pair(noise + decided / 3, np.zeros(100), shared=shared, **SURE), 1.0).tolist() == [NOT_DECIDED]


# --- what the promises are worth


@pytest.mark.parametrize("starts", [1, 2, 5])
@pytest.mark.parametrize("known", [GPU, CPU], ids=["gpu", "cpu"])
def test_of_studies_that_vary_like_others_95_percent_of_intervals_are_right(known, starts):
    """Each study is drawn from what is known of others: 93 to 98 % of intervals hold what they say."""
    rng = np.random.default_rng([starts, 7])
    studies, cells, repeats = 1000, 6, 3
    of_study = rng.normal(0, known.studies_differ, (studies, 1, 1))
    start = known.starts * np.exp(of_study + rng.normal(0, known.cells_differ, (studies, cells, 1)))
    repeat = known.repeats * np.exp(rng.normal(0, known.repeats_differ, (studies, cells, 1)))
    rounds = known.rounds * np.exp(rng.normal(0, known.others_differ, (studies, 1, 1)))

    def run():
        occasion = rng.normal(0, known.occasions, (studies, cells, 1))
        effects = rng.normal(0, rounds, (studies, 1, starts)) + rng.normal(0, start, (studies, cells, starts))
        each = rng.normal(0, 1, (studies, cells, starts, repeats)) * repeat[..., None]
        log = occasion[..., None] + effects[..., None] + each
        return samples(
            log.mean(axis=-1),
            within=log.var(axis=-1, ddof=1).mean(axis=-1),
            within_df=starts * (repeats - 1),
            repeats=3.0,
            shared=known is CPU,
        ), occasion[..., 0]

    (one, occasion), (other, _) = run(), run()
    a, b = [0, 1, 2], [3, 4, 5]
    found, again = compare(one, a, b), compare(other, a, b).difference
    truth = occasion[:, a] - occasion[:, b]
    (_, low, high), _ = mean_interval(one)
    assert 0.93 <= ((np.log(low) <= occasion) & (occasion <= np.log(high))).mean() <= 0.98
    _, low, high = found.interval()
    assert 0.93 <= ((np.log(low) <= truth) & (truth <= np.log(high))).mean() <= 0.98
    low, high = found.another_run()
    assert 0.93 <= ((np.log(low) <= again) & (again <= np.log(high))).mean() <= 0.98
    # On CPUs verdicts allow for a part of what occasions vary.
    assert known is CPU or (verdicts(found, 0.1) != NOT_DECIDED).any(axis=-1).mean() <= 0.05


@pytest.mark.parametrize("starts", [2, 5])
def test_a_study_whose_differences_are_the_margin_calls_any_flat_or_a_change_in_at_most_5_percent(starts):
    rng = np.random.default_rng(7)
    log = rng.normal(0, 0.002, (2000, 10, starts))
    log[:, :5] += log_margin(2.0)
    found = verdicts(compare(samples(log, within=1e-6, within_df=10), range(5), range(5, 10)), 2.0)
    assert (found == FLAT).any(axis=-1).mean() <= 0.05
    assert (found == CHANGES).any(axis=-1).mean() <= 0.05

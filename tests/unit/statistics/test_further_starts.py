import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.unit.questions.synthetic_starts import pair, samples
from workflow_scripts.statistics.comparisons import MODES_APART, STARTS_TO_SEE_MODES, compare, log_margin
from workflow_scripts.statistics.further_starts import MOST_FURTHER_STARTS, Looks, decide, further_starts

NOISE = np.array([0.01, -0.01, 0.005])


@given(st.integers(1, 6), st.integers(0, 12))
def test_all_looks_at_a_study_have_the_whole_error_and_the_last_of_a_plan_most_of_its(at_least, more):
    plans = [Looks(at_least, at_least + more, earlier) for earlier in range(20)]
    shares = [[float(plan.share(n)) for n in range(at_least, at_least + more + 1)] for plan in plans]
    assert [sum(of_plan) for of_plan in shares[:3]] == pytest.approx([3 / 4, 3 / 16, 3 / 64])
    assert sum(map(sum, shares)) == pytest.approx(1)
    assert all(of_plan == sorted(of_plan) for of_plan in shares)


def test_the_plan_is_the_first_number_that_decides():
    for mean in (0.0, 0.005, 0.03, 0.3):
        found = pair(NOISE + mean, np.zeros(3))
        n, sd = np.arange(3, 3 + MOST_FURTHER_STARTS + 1), NOISE.std(ddof=1)
        mean_now = abs(found.difference[0])
        error = 0.05 * 3 / 16  # what a second plan has
        flat = mean_now + stats.t.ppf(1 - error, n - 1) * sd / np.sqrt(n) <= log_margin(2.0)
        beyond = mean_now - stats.t.ppf(1 - error / 2, n - 1) * sd / np.sqrt(n) > log_margin(2.0)
        beyond &= (n >= STARTS_TO_SEE_MODES) | (mean_now > log_margin(2.0) + MODES_APART)
        assert further_starts(found, 2.0)[0] == (flat | beyond).argmax()


def test_no_plan_on_the_margin_itself_or_where_nothing_shows_what_starts_vary():
    on_margin = samples([NOISE - NOISE.mean() + log_margin(2.0), np.zeros(3)])
    found = decide(on_margin, [0], [1], 2.0)
    assert np.isnan(found.needed).all()
    assert 0 < found.least[0] < MOST_FURTHER_STARTS  # it may lie beside it
    found = decide(samples([[0.0], [0.0]], within=1e-6, repeats=3.0), [0], [1], 2.0)
    assert np.isnan([found.needed, found.least]).all()


def test_the_plan_for_a_single_start_beside_others():
    log = np.random.default_rng(1).normal(0, 0.001, (8, 4))
    log[0, 1:] = np.nan
    for factor, needed in ((0.9, STARTS_TO_SEE_MODES - 1), (1.1, 0)):
        log[0, 0] = log[1, 0] + log_margin(20.0) + MODES_APART * factor
        assert further_starts(compare(samples(log, shared=True), [0], [1]), 20.0).tolist() == [needed]


def test_more_looks_and_more_comparisons_take_more_starts():
    found = pair(NOISE + 0.05, np.zeros(3))
    once = further_starts(found, 2.0)[0]
    assert further_starts(found, 2.0, looks=Looks(2, 40), rounds=3)[0] > once
    assert further_starts(found, 2.0, family=100)[0] > once

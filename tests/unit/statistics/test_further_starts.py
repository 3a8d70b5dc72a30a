import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.questions.synthetic_starts import pair, samples
from workflow_scripts.statistics.comparisons import NOT_DECIDED, compare, log_margin, verdicts
from workflow_scripts.statistics.further_starts import MOST_FURTHER_STARTS, Looks, decide, further_starts

NOISE = np.array([0.01, -0.01, 0.005])
SURE = {"within": 1e-8, "within_df": 100}


@given(st.integers(1, 6), st.integers(0, 12))
def test_all_looks_at_a_study_have_the_whole_error_and_the_last_of_a_plan_most_of_its(at_least, more):
    plans = [Looks(at_least, at_least + more, earlier) for earlier in range(20)]
    shares = [[float(plan.share(n)) for n in range(at_least, at_least + more + 1)] for plan in plans]
    assert [sum(of_plan) for of_plan in shares[:3]] == pytest.approx([3 / 4, 3 / 16, 3 / 64])
    assert sum(map(sum, shares)) == pytest.approx(1)
    assert all(of_plan == sorted(of_plan) for of_plan in shares)


@pytest.mark.parametrize("mean", [0.0, 0.005, 0.07, 0.3])
def test_the_plan_is_the_first_number_that_decides(mean):
    found = pair(NOISE + mean, np.zeros(3), **SURE)
    needed = int(further_starts(found, 2.0)[0])
    share = 3 / 16  # what a second plan has

    def decided(further):
        return verdicts(found.after(further), 2.0, share)[0] != NOT_DECIDED

    assert decided(needed)
    assert needed == 0 or not decided(needed - 1)


def test_no_plan_on_the_margin_itself_or_for_what_occasions_move_as_much():
    on_margin = samples([NOISE - NOISE.mean() + log_margin(5.0), np.zeros(3)], **SURE)
    found = decide(on_margin, [0], [1], 5.0)
    assert np.isnan(found.needed).all()
    assert 0 < found.least[0] < MOST_FURTHER_STARTS  # it may lie beside it
    close = samples([NOISE + log_margin(5.0) + 0.02, np.zeros(3)], **SURE)
    assert np.isnan(decide(close, [0], [1], 5.0).needed).all()


def test_the_plan_for_a_single_start_beside_others():
    log = np.random.default_rng(1).normal(0, 0.01, (8, 4))
    log[0, 1:] = np.nan
    log[0, 0] = log[1, 0] + 0.1
    found = compare(samples(log, **SURE), [0], [1])
    assert 1 <= further_starts(found, 5.0)[0] <= 5


def test_more_looks_and_more_comparisons_take_more_starts():
    found = pair(NOISE, np.zeros(3), **SURE)
    once = further_starts(found, 2.0)[0]
    assert further_starts(found, 2.0, looks=Looks(2, 40), rounds=3)[0] > once
    assert further_starts(found, 2.0, family=30)[0] > once

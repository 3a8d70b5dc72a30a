import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.questions.synthetic_starts import samples
from workflow_scripts.statistics.comparisons import NOT_DECIDED, log_margin, verdicts
from workflow_scripts.statistics.further_starts import MOST_FURTHER_STARTS, Looks, decide

NOISE = np.array([0.01, -0.01, 0.005])
SURE = {"within": 1e-8, "within_df": 100}


@given(st.integers(1, 6), st.integers(0, 12))
def test_all_looks_at_a_study_have_the_whole_error_and_the_last_of_a_plan_most_of_its(at_least, more):
    plans = [Looks(at_least, at_least + more, earlier) for earlier in range(20)]
    shares = [[float(plan.share(n)) for n in range(at_least, at_least + more + 1)] for plan in plans]
    assert [sum(of_plan) for of_plan in shares[:3]] == pytest.approx([3 / 4, 3 / 16, 3 / 64])
    assert sum(map(sum, shares)) == pytest.approx(1)
    assert all(of_plan == sorted(of_plan) for of_plan in shares)


@pytest.mark.parametrize(("mean", "noise"), [(0.0, 1), (0.005, 1), (0.07, 4), (0.3, 1)])
def test_the_plan_is_the_first_number_that_decides(mean, noise):
    found = decide(samples([noise * NOISE + mean, np.zeros(3)], **SURE), [0], [1], 2.0)
    needed = int(found.needed[0])
    # A second plan has 3 / 16 of the error.
    decided = [verdicts(found.found.after(n), 2.0, 3 / 16)[0] != NOT_DECIDED for n in range(needed + 1)]
    assert (needed == 0) == (found.verdict[0] != NOT_DECIDED)
    assert needed == 0 or (decided[needed] and not any(decided[:needed]))


def test_no_plan_on_the_margin_itself_or_for_what_occasions_move_as_much():
    on_margin = samples([NOISE - NOISE.mean() + log_margin(5.0), np.zeros(3)], **SURE)
    found = decide(on_margin, [0], [1], 5.0)
    assert np.isnan(found.needed).all()
    assert 0 < found.least[0] < MOST_FURTHER_STARTS  # it may lie beside it
    close = samples([NOISE + log_margin(5.0) + 0.02, np.zeros(3)], **SURE)
    assert np.isnan(decide(close, [0], [1], 5.0).needed).all()

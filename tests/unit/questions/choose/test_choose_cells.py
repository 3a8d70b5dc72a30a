import numpy as np
import pandas as pd
import pytest

from workflow_scripts.questions.choose.choose_cells import ALL_ANSWERED, NO_TIME, NOTHING_HELPS, choose
from workflow_scripts.questions.choose.estimates import Estimates
from workflow_scripts.questions.choose.open_questions import KNOBS, Question

DRAWS = np.random.default_rng(5).normal(0, 0.05, (2000, 4))


def known(draws=DRAWS, cost_s=(10.0, 10.0, 10.0, 10.0), noise=1e-6):
    names = list("abcd")
    return Estimates(pd.DataFrame({"cost_s": cost_s}, index=pd.Index(names, name="cell_id")), draws, noise)


NEW = dict.fromkeys("abcd", 0)


def question(values, needs=(), is_answered=False):
    return Question("knobs", "here", "it", "flat", 0.5, is_answered, values, needs)


def test_the_cells_come_first_that_explain_a_question():
    choice = choose(known(), [question(DRAWS[:, 2] + 0.6 * DRAWS[:, 0])], NEW)
    assert choice.cells[0] == "c"
    assert "b" not in choice.cells
    assert choice.ended is None
    # What a question needs is measured whatever it explains.
    assert choose(known(), [question(np.zeros(2000), needs=("d",))], NEW).cells == ("d",)


def test_of_equally_good_cells_the_cheaper_one_is_chosen_and_the_other_is_then_worth_nothing():
    draws = DRAWS.copy()
    draws[:, 1] = draws[:, 0]
    for cheap in (0, 1):
        costs = np.where(np.arange(4) == cheap, 5.0, 50.0)
        assert choose(known(draws, costs), [question(draws[:, 0])], NEW).cells == (("a", "b")[cheap],)


def of_pairs(draws, *pairs):
    a, b = at = np.array(pairs).T
    spread = np.abs(draws[:, a] - draws[:, b]).max(axis=1)
    return Question(KNOBS, "here", "it", "flat", 0.8, False, spread, pairs=at, margin=0.1)


def test_of_nearly_equal_cells_those_are_measured_that_may_be_beyond_the_margin():
    # The difference of two equal cells is explained by neither of them.
    draws = DRAWS * [0.2, 1, 0.8, 0]
    assert choose(known(draws), [of_pairs(draws, (0, 3), (1, 3), (2, 3))], NEW).cells == ("b", "c")
    # Noisy starts of a measured cell are less worth than those of a new one.
    draws = DRAWS * [1, 0.2, 1, 1]
    assert choose(known(draws, noise=1e-3), [of_pairs(draws, (1, 2))], {**NEW, "b": 1}, at_most=2).cells == ("c", "b")


@pytest.mark.parametrize(("noise", "at_most", "is_measured"), [(1e-4, 1, True), (1e-2, 1, False), (1e-2, 20, True)])
def test_nothing_is_measured_for_a_verdict_that_all_starts_of_all_cells_would_leave_open(noise, at_most, is_measured):
    choice = choose(known(noise=noise), [of_pairs(DRAWS, (0, 1))], NEW, at_most=at_most)
    assert (set(choice.cells) == {"a", "b"}, choice.ended == NOTHING_HELPS) == (is_measured, not is_measured)


def test_why_nothing_is_chosen():
    of_a = question(DRAWS[:, 0])
    answered = question(DRAWS[:, 0], is_answered=True)
    assert choose(known(), [answered], NEW).ended == ALL_ANSWERED
    assert choose(known(), [of_a], {**NEW, "a": 1}).ended == NOTHING_HELPS
    assert choose(known(), [of_a], NEW, budget_s=9).ended == NO_TIME
    assert choose(known(), [of_a], NEW, 19, at_least=2, at_most=2).ended == NO_TIME
    assert choose(known(), [of_a], NEW, 20, at_least=2, at_most=2).cells == ("a",)
    # A measured cell takes one start more, up to as many as the study allows.
    assert choose(known(), [of_a], {**NEW, "a": 2}, 10, at_least=2, at_most=3).cells == ("a",)
    assert choose(known(), [of_a], {**NEW, "a": 3}, 10, at_least=2, at_most=3).ended == NOTHING_HELPS

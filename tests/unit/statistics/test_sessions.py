"""Cells that one process of an engine served share its deviation."""

import numpy as np
import pandas as pd
import pytest

from tests.unit.questions.synthetic_starts import ends, samples
from workflow_scripts.statistics.comparisons import compare, mean_interval
from workflow_scripts.tables.summary import summarise

SURE = {"within": 1e-8, "within_df": 100}


def starts(seed, settings=3, count=4, sd=0.05):
    """Logarithms of one cell of each setting, and a number for each session."""
    log = np.random.default_rng(seed).normal(0, sd, (settings, count))
    return log, np.arange(settings * count).reshape(settings, count)


def test_what_a_session_does_to_both_cells_cancels_in_their_ratio():
    log, session = starts(1, settings=1)
    pair = np.random.default_rng(2).normal(0, 0.002, (2, 4))
    both = np.repeat(session, 2, axis=0)
    found, quiet = (compare(samples(of, session=both, **SURE), [0], [1]) for of in (pair + log, pair))
    assert ends(found.interval()) == pytest.approx(ends(quiet.interval()))
    # Sessions that vary more do not widen it.
    others, of_others = starts(3, settings=4, sd=0.3)
    log, session = np.vstack([pair + log, others]), np.vstack([both, of_others + 4])
    beside = compare(samples(log, session=session, **SURE), [0], [1])
    assert np.log(beside.interval().high[0] / beside.interval().low[0]) < 0.05


def test_a_mean_over_the_cells_of_a_session_has_the_error_of_its_sessions():
    """Cells that are equal in each session show as much as one of them."""
    log, session = starts(4, settings=6, count=5)
    alone = samples(log, **SURE)
    each = np.repeat(np.arange(6), 4)
    together = samples(log[each], session=session[each], **SURE)
    for end, of_one in zip(mean_interval(together)[0], mean_interval(alone)[0], strict=True):
        np.testing.assert_allclose(np.log(end[::4]), np.log(of_one), atol=0.004)
    one, four = (compare(of, [a], [b]) for of, a, b in ((alone, 0, 1), (together, 3, 7)))
    np.testing.assert_allclose(np.log(four.interval()).ravel(), np.log(one.interval()).ravel(), atol=0.006)


def test_of_a_session_that_only_one_of_two_cells_had_the_whole_start_counts():
    log, session = starts(5, settings=5)
    log[0] = log[1] + np.random.default_rng(6).normal(0, 0.002, 4)
    session[0] = session[1]
    both = session.copy()
    both[1, 3] = 99
    of_all, of_three = (compare(samples(log, session=of, **SURE), [0], [1]) for of in (session, both))
    assert (of_all.starts[0], of_three.starts[0]) == (4, 3)
    of_all, of_three = (np.log(found.interval().high[0]) - found.difference[0] for found in (of_all, of_three))
    assert of_all < 0.013 < 0.02 < of_three < 0.1  # a quarter of each mean differs by 5 % of its own


def test_cells_of_sessions_and_others_of_one_study_are_compared_as_each_was_started():
    """Coverage of the ratio of two cells: in one session, in two sessions, and of a session and a start of its own."""
    rng = np.random.default_rng(7)
    of_sessions, of_rounds = rng.normal(0, 0.02, (800, 3, 4)), rng.normal(0, 0.02, (800, 1, 4))
    session = np.array([[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2 + [[-1] * 4])
    log = of_rounds + of_sessions[:, [0, 0, 1, 1, 2]] + rng.normal(0, 0.004, (800, 5, 4))
    found = compare(samples(log, session=session, **SURE), [0, 0, 0], [1, 2, 4])
    _, low, high = found.interval()
    assert ((low <= 1) & (high >= 1)).mean(axis=0) == pytest.approx([0.98, 0.96, 0.94], abs=0.03)
    half = np.median(np.log(high / low), axis=0) / 2
    assert half[0] < 0.015 < half[1] < 0.05


def test_a_process_that_served_one_cell_is_no_session():
    rows = pd.DataFrame({"gpu": "h200", "cell": list("aabbc"), "start": [1, 2, 1, 2, 1], "round": [1, 2, 1, 2, 1]})
    rows = rows.assign(rate=1.0, session=["s", "t", "s", None, "u"])
    assert summarise(rows, ["gpu", "cell"], "rate")[1].session.tolist() == [[0, -1], [0, -1], [-1, -1]]
    assert summarise(rows[1:], ["gpu", "cell"], "rate")[1].session is None
    # Processes of two engines are two sessions, whatever their names.
    of_two = rows.assign(engine=["vllm", "vllm", "hf", "hf", "hf"])
    assert summarise(of_two, ["gpu", "engine", "cell"], "rate")[1].session is None

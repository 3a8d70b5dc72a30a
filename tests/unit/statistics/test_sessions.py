"""Cells that one process of an engine served share its deviation."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.unit.questions.synthetic_starts import as_ratio, ends, samples
from workflow_scripts.statistics.comparisons import compare, mean_interval
from workflow_scripts.statistics.summary import summarise

KNOWN = (0.02**2, 6.0, 0.015**2, 4.0, 2.5, 2.5)


def starts(seed, settings=3, count=4, sd=0.05):
    """Logarithms of one cell of each setting, and a number for each session."""
    log = np.random.default_rng(seed).normal(0, sd, (settings, count))
    return log, np.arange(settings * count).reshape(settings, count)


def test_two_cells_of_the_same_sessions_are_compared_by_their_differences():
    log, session = starts(1, settings=1)
    pair = log + np.random.default_rng(2).normal(0, 0.002, (2, 4))
    found = compare(samples(pair, session=np.repeat(session, 2, axis=0)), [0], [1])
    expected = stats.ttest_rel(*pair).confidence_interval(0.95)
    assert ends(found.interval())[1:] == pytest.approx(as_ratio(expected))
    # Cells of other sessions that vary more do not widen it.
    others, of_others = starts(3, settings=4, sd=0.3)
    log, session = np.vstack([pair, others]), np.vstack([np.repeat(session, 2, axis=0), of_others + 4])
    assert ends(compare(samples(log, session=session), [0], [1]).interval())[1:] == pytest.approx(as_ratio(expected))


# What other studies show of starts counts a little as variation within a session.
@pytest.mark.parametrize(("known", "more"), [((), 1e-9), (KNOWN, 0.03)])
@pytest.mark.parametrize("device", [[0, 0, 0], [0, 0, 1]])
def test_cells_that_are_equal_in_each_session_show_as_much_as_one_of_them(known, more, device):
    log, session = starts(4)
    alone = samples(log, known=known, group=device, device=device)
    each = np.repeat([0, 1, 2], 4)
    group = np.array(device)[each]
    together = samples(log[each], known=known, group=group, device=group, session=session[each])
    a, b = [0, 0, 1], [1, 2, 2]
    of_a, of_b = (4 * np.array(side) + 3 for side in (a, b))
    one, four = compare(alone, a, b), compare(together, of_a, of_b)
    np.testing.assert_allclose([four.variance, four.df], [one.variance, one.df], rtol=more)
    for end, end_of_one in zip(mean_interval(together)[0], mean_interval(alone)[0], strict=True):
        np.testing.assert_allclose(end[::4], end_of_one, rtol=more)
    # A mean over the cells of a session has the error of one of them.
    np.testing.assert_allclose(together.covariance()[:4, :4].mean(), alone.covariance()[0, 0], rtol=more)


def test_of_a_session_that_only_one_of_two_cells_had_the_whole_start_counts():
    log, session = starts(5, settings=1)
    pair, both = log + np.random.default_rng(6).normal(0, 0.002, (2, 4)), np.repeat(session, 2, axis=0)
    both[1, 3] = 9
    of_all, of_three = (compare(samples(pair, session=of), [0], [1]) for of in (np.repeat(session, 2, axis=0), both))
    assert (of_all.starts[0], of_three.starts[0]) == (4, 3)
    of_all, of_three = (np.log(found.interval().high[0]) - found.difference[0] for found in (of_all, of_three))
    assert of_all < 0.01 < 0.02 < of_three < 0.2  # a quarter of each mean differs by 5 % of its own


def test_a_process_that_served_one_cell_is_no_session():
    rows = pd.DataFrame({"gpu": "h200", "cell": list("aabbc"), "start": [1, 2, 1, 2, 1], "round": [1, 2, 1, 2, 1]})
    rows = rows.assign(rate=1.0, session=["s", "t", "s", None, "u"])
    assert summarise(rows, ["gpu", "cell"], "rate")[1].session.tolist() == [[0, -1], [0, -1], [-1, -1]]
    assert summarise(rows[1:], ["gpu", "cell"], "rate")[1].session is None
    # Processes of two engines are two sessions, whatever their names.
    of_two = rows.assign(engine=["vllm", "vllm", "hf", "hf", "hf"])
    assert summarise(of_two, ["gpu", "engine", "cell"], "rate")[1].session is None

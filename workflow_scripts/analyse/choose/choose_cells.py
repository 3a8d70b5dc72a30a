"""Which cells are measured next: those that are expected to settle most of the open questions per device second.

What a cell is worth is the share of the variance of each open question that its value explains in the joint draws: the
squared correlation, after what the cells chosen before it in the same round explain is taken out. A cell that a
question needs in any case has its share of that question too. Where no cell explains anything, as where values are
nearly equal, those cells of an open question are measured of which a measurement knows more than the estimate.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from workflow_scripts.analyse.choose.estimates import Estimates
from workflow_scripts.analyse.choose.questions import Question
from workflow_scripts.analyse.intervals.start_spread import FloatArray

# Why no cell is chosen.
ALL_ANSWERED = "every question is answered"
NOTHING_HELPS = "no cell that can be measured helps to answer an open question"
NO_TIME = "the cells that would help take more device time than is left"
# Share of the time of all cells that one round takes at most, beside its first few cells: later choices know more.
_OF_A_ROUND, _FIRST_FEW = 0.03, 4
# Cells that together explain less of the questions than this are not worth measuring.
_LEAST_WORTH = 1e-3
# Squared correlations below this, over the number of draws, are chance.
_BY_CHANCE = 10.0
# A question of which this share is explained waits for the round's results.
_ENOUGH = 0.9


@dataclass(frozen=True)
class Choice:
    """The cells to measure next, in the order in which they were chosen; or why there are none."""

    cells: tuple[str, ...]
    ended: str | None


def choose(
    estimates: Estimates,
    questions: Sequence[Question],
    can_measure: Collection[str],
    budget_s: float = inf,
    starts: int = 1,
) -> Choice:
    """Choose the cells that the next round measures.

    Args:
        estimates: of all cells.
        questions: about these, from `ask`.
        can_measure: ids of the cells that may be measured.
        budget_s: device seconds that are left for them.
        starts: starts of each chosen cell, which its costs are multiplied by.
    """
    asked = [question for question in questions if not question.is_answered]
    if not asked:
        return Choice((), ALL_ANSWERED)
    table = estimates.table
    cost_s = table["cost_s"].to_numpy() * starts
    possible = table.index.isin(list(can_measure))
    needed = _needed(list(table.index), asked)
    compared = table.index.isin([cell for question in asked for cell in question.compares])
    cells = len(table)
    cov = np.cov(np.hstack([estimates.draws, np.stack([q.values for q in asked], axis=1)]), rowvar=False)
    whole = np.diag(cov)[cells:].copy()
    whole[whole <= 0] = inf
    round_s = min(budget_s, _OF_A_ROUND * float(cost_s.sum()))
    chosen: list[int] = []
    spent_s = 0.0
    ended = NOTHING_HELPS
    while possible.any():
        share = cov[:cells, cells:] ** 2 / (np.diag(cov)[:cells, None] + estimates.noise) / whole
        share[share < _BY_CHANCE / len(estimates.draws)] = 0.0
        left = np.diag(cov)[cells:] / whole > 1 - _ENOUGH
        worth = np.where(possible, (share * left).sum(axis=1) + needed.sum(axis=1), 0.0)
        if not (worth > _LEAST_WORTH).any():
            unknown = np.diag(cov)[:cells] / (np.diag(cov)[:cells] + estimates.noise)
            worth = np.where(possible & compared & (unknown > 1 / 2), unknown, 0.0)
        useful = worth > _LEAST_WORTH
        affordable = useful & (spent_s + cost_s <= (budget_s if len(chosen) < _FIRST_FEW else round_s))
        if not affordable.any():
            ended = NO_TIME if useful.any() else NOTHING_HELPS
            break
        best = int(np.where(affordable, worth / cost_s, -inf).argmax())
        chosen.append(best)
        spent_s += float(cost_s[best])
        possible[best], needed[best] = False, 0.0
        cov = cov - np.outer(cov[:, best], cov[best]) / (cov[best, best] + estimates.noise)
    return Choice(tuple(table.index[chosen]), None if chosen else ended)


def _needed(ids: Sequence[str], asked: Sequence[Question]) -> FloatArray:
    """The share of each cell, (cells, questions), in what a question needs in any case."""
    place = {cell: at for at, cell in enumerate(ids)}
    needed = np.zeros((len(place), len(asked)))
    for column, question in enumerate(asked):
        for cell in question.needs:
            needed[place[cell], column] = 1 / len(question.needs)
    return needed

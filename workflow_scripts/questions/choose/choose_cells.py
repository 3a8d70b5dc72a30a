"""Which cells are measured next: those that are expected to settle most of the open questions per device second.

What a cell is worth is the share of the variance of each open question that its value explains in the joint draws: the
squared correlation, after what the cells chosen before it in the same round explain is taken out. A cell that a
question needs in any case has its share of that question too. Where no cell explains anything, as where values are
nearly equal, those cells of an open question are measured of which a measurement knows more than the estimate. Nothing
is measured for a knob whose verdict would hardly be decided if every cell were measured with all its starts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import pandas as pd
from scipy import special

from workflow_scripts.questions.choose.estimates import Estimates, check_cells, estimate
from workflow_scripts.questions.choose.open_questions import Question, ask
from workflow_scripts.statistics.comparisons import EQUIVALENCE_ALPHA
from workflow_scripts.statistics.start_spread import FloatArray
from workflow_scripts.study.rounds import OpenQuestion, RoundPlan
from workflow_scripts.study.study import Measure, Study

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
# Chance of a verdict, if every cell is measured, below which nothing is measured for it.
_LEAST_CHANCE = 0.1
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
    started: Mapping[str, int],
    budget_s: float = inf,
    at_least: int = 1,
    at_most: int = 1,
) -> Choice:
    """Choose the cells that the next round measures in at most `budget_s` device seconds.

    `started` is how many starts each cell has that may be measured, by id; a new one gets `at_least`, others one more.
    """
    asked = [question for question in questions if not question.is_answered]
    if not asked:
        return Choice((), ALL_ANSWERED)
    table, draws = estimates.table, estimates.draws
    had = table.index.to_series().map(started).fillna(at_most).to_numpy(dtype=float)
    further = np.where(had < at_least, at_least - had, 1.0)
    cost_s, noise = table["cost_s"].to_numpy() * further, estimates.noise / further
    possible = had < at_most
    cells = len(table)
    cov = np.asarray(np.cov(draws, rowvar=False), dtype=np.float64)
    # The covariance that is left when all possible cells have been measured.
    at, left_noise = np.flatnonzero(possible), estimates.noise / np.maximum(at_most - had, 1.0)[possible]
    after = cov - cov[:, at] @ np.linalg.solve(cov[np.ix_(at, at)] + np.diag(left_noise), cov[at])
    mean = np.asarray(draws.mean(axis=0), dtype=np.float64)
    asked = [question for question in asked if _chance(question, mean, cov, after) >= _LEAST_CHANCE]
    if not asked:
        return Choice((), NOTHING_HELPS)
    # The share of each cell in what a question needs in any case, shape (cells, questions).
    needed = np.array([table.index.isin(question.needs) / max(len(question.needs), 1) for question in asked]).T
    risk = np.sum([_risk(question, draws) for question in asked], axis=0)
    joint = np.hstack([draws, np.stack([q.values for q in asked], axis=1)])
    cov = np.asarray(np.cov(joint, rowvar=False), dtype=np.float64)
    whole = np.diag(cov)[cells:].copy()
    whole[whole <= 0] = inf
    round_s = min(budget_s, _OF_A_ROUND * float(table["cost_s"].sum()) * at_least)
    chosen: list[int] = []
    spent_s = 0.0
    while True:
        variance = np.diag(cov)[:cells]
        share = cov[:cells, cells:] ** 2 / (variance + noise)[:, None] / whole
        share[share < _BY_CHANCE / len(draws)] = 0.0
        left = np.diag(cov)[cells:] / whole > 1 - _ENOUGH
        worth = np.where(possible, (share * left).sum(axis=1) + needed.sum(axis=1), 0.0)
        worth[worth < _LEAST_WORTH] = 0.0
        if not worth.any():
            worth = np.where(possible, risk * variance / (variance + noise), 0.0)
        useful = worth > 0
        affordable = useful & (spent_s + cost_s <= (budget_s if len(chosen) < _FIRST_FEW else round_s))
        if not affordable.any():
            ended = NO_TIME if useful.any() else NOTHING_HELPS
            break
        best = int(np.where(affordable, worth / cost_s, -inf).argmax())
        chosen.append(best)
        spent_s += float(cost_s[best])
        possible[best], needed[best] = False, 0.0
        cov = cov - np.outer(cov[:, best], cov[best]) / (cov[best, best] + noise[best])
    return Choice(tuple(table.index[chosen]), None if chosen else ended)


def _chance(question: Question, mean: FloatArray, cov: FloatArray, after: FloatArray) -> float:
    """Upper bound of the probability that a knob's verdict is decided when the covariance of the cells has shrunk from
    `cov` to `after`; 1 for other questions."""
    a, b = question.pairs
    if not len(a):
        return 1.0
    difference, count = mean[a] - mean[b], len(a)
    now, left = (of[a, a] + of[b, b] - 2 * of[a, b] for of in (cov, after))
    left = np.clip(left, 0, now)
    moves = np.sqrt(np.maximum(now - left, 1e-12))

    def below(limit: FloatArray) -> FloatArray:
        return np.asarray(special.ndtr((limit - difference) / moves))

    within, beyond = (
        question.margin - sign * special.ndtri(alpha) * np.sqrt(left)
        for sign, alpha in ((-1, EQUIVALENCE_ALPHA), (1, EQUIVALENCE_ALPHA / count))
    )
    is_flat = np.where(within > 0, below(within) - below(-within), 0.0).min()
    return float(is_flat + (below(-beyond) + 1 - below(beyond)).sum())


def _risk(question: Question, draws: FloatArray) -> FloatArray:
    """For each cell the greatest probability that a pair with it is beyond the margin."""
    risk = np.zeros(draws.shape[1])
    a, b = question.pairs
    is_beyond = (np.abs(draws[:, a] - draws[:, b]) > question.margin).mean(axis=0)
    for end in (a, b):
        np.maximum.at(risk, end, is_beyond)
    return risk


# Why comparisons are given up, and why measuring ends.
NOT_ASKED = "no open question needs it"
HOURS_SPENT = "the device hours are spent"


def estimates_and_questions(
    study: Study, measure: Measure, plan: pd.DataFrame, cells: pd.DataFrame
) -> tuple[Estimates, tuple[Question, ...], tuple[str, ...]]:
    """What is estimated of every cell, what this answers, and the ids of the cells that check it. `measure` is the
    study's field of that name; `plan` has all predictions, and `cells` is the cells table without simulated rows."""
    plan = plan[plan["cell_id"].isin(cells["cell_id"])]
    check = check_cells(plan, measure.check_pct, study.name)
    estimates = estimate(plan, cells, check)
    bound_s = study.slo.tpot_s if study.slo else None
    return estimates, ask(estimates, plan, cells, study.equivalence_margin_pct, measure.decide, bound_s), check


def choose_round(
    further: RoundPlan,
    study: Study,
    measure: Measure,
    plan: pd.DataFrame,
    cells: pd.DataFrame,
    starts: Mapping[str, Collection[int]],
    budget_s: float,
) -> tuple[RoundPlan, set[str]]:
    """The decision on a round, and the cells that it starts once.

    `further` is what was decided of all comparisons of measured cells, of which only the chosen cells get their starts;
    `starts` are those that have ended of each cell that can be measured now.
    """
    estimates, questions, check = estimates_and_questions(study, measure, plan, cells)
    cost_s, at_least = estimates.table["cost_s"], study.starts.at_least
    had = {cell: len(ended) for cell, ended in starts.items() if cell in cost_s.index and cell not in further.failed}
    due = {cell for cell in had if had[cell] < at_least and (had[cell] or cell in check)}
    takes_s = {cell: float(cost_s[cell]) * max(at_least - count, 1) for cell, count in had.items()}
    due_s = sum(takes_s[cell] for cell in due)
    others = {cell: count for cell, count in had.items() if cell not in due}
    choice = choose(estimates, questions, others, max(0.0, budget_s - due_s), at_least, study.starts.at_most)
    chosen = due | {*choice.cells} if budget_s > 0 else set()
    not_asked = [pair for pair in further.undecided if not {*pair.cells} <= chosen]
    given_up = {"given_up": NOT_ASKED}
    changes = {
        "undecided": tuple(pair for pair in further.undecided if {*pair.cells} <= chosen),
        "not_decidable": (*further.not_decidable, *(pair.model_copy(update=given_up) for pair in not_asked)),
        "left_s": due_s + sum(takes_s[cell] for cell in choice.cells),
        "ended": None if chosen else HOURS_SPENT if budget_s <= 0 else choice.ended,
        "asked": len(questions),
        "questions": tuple(
            OpenQuestion.model_validate(q, from_attributes=True) for q in questions if not q.is_answered
        ),
    }
    return further.model_copy(update=changes), chosen

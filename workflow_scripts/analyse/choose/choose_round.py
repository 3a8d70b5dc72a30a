"""Which cells a round starts in a study with `measure`: those that may change an answer, and those that check it."""

from collections.abc import Collection, Mapping

import pandas as pd

from workflow_scripts.analyse.choose.choose_cells import choose
from workflow_scripts.analyse.choose.estimates import Estimates, check_cells, estimate
from workflow_scripts.analyse.choose.questions import Question, ask
from workflow_scripts.study.rounds import OpenQuestion, RoundPlan
from workflow_scripts.study.study import Measure, Study

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

    Args:
        further: what was decided of all comparisons of measured cells; only the chosen cells get their starts.
        study: the study.
        measure: its field of that name.
        plan: the prediction of every cell.
        cells: the cells table.
        starts: the starts that have ended of each cell that can be measured now.
        budget_s: device seconds that are left.
    """
    estimates, questions, check = estimates_and_questions(study, measure, plan, cells)
    cost_s, at_least = estimates.table["cost_s"], study.starts.at_least
    had = {cell: len(ended) for cell, ended in starts.items() if cell in cost_s.index and cell not in further.failed}
    due = {cell for cell in had if had[cell] < at_least and (had[cell] or cell in check)}
    due_s = sum(float(cost_s[cell]) * (at_least - had[cell]) for cell in due)
    others = {cell: count for cell, count in had.items() if cell not in due}
    choice = choose(estimates, questions, others, max(0.0, budget_s - due_s), at_least, study.starts.at_most)
    chosen = due | {*choice.cells} if budget_s > 0 else set()
    chosen_s = sum(float(cost_s[cell]) * (1 if had[cell] else at_least) for cell in choice.cells)
    not_asked = [pair for pair in further.undecided if not {*pair.cells} <= chosen]
    opened = [
        OpenQuestion(
            kind=question.kind,
            place=question.place,
            subject=question.subject,
            answer=question.answer,
            probability=float(question.probability),
        )
        for question in questions
        if not question.is_answered
    ]
    changes = {
        "undecided": tuple(pair for pair in further.undecided if pair not in not_asked),
        "not_decidable": (
            *further.not_decidable,
            *(pair.model_copy(update={"given_up": NOT_ASKED}) for pair in not_asked),
        ),
        "left_s": due_s + chosen_s,
        "ended": None if chosen else HOURS_SPENT if budget_s <= 0 else choice.ended,
        "asked": len(questions),
        "questions": tuple(opened),
    }
    return further.model_copy(update=changes), chosen

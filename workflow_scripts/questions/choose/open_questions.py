"""The questions of a study, and what the estimates of its cells answer.

`recommendation`: per device, model and workload the measured setting of vLLM that no other one exceeds by more than the
margin, of those that keep the study's latency. `knobs`: per place and knob whether it changes the rate, from all pairs
that differ in nothing else: `flat` if each pair is within the margin [Berger], `changes` if any is beyond. `devices`:
the mean ratio of two devices over the cells that both have. `memory`: where cells begin to preempt or are refused, with
measured cells on both sides.

All questions of a study share its error (Holm's method), with posterior probabilities in place of p values.

Source: [Berger] Berger and Hsu, Bioequivalence trials, intersection-union tests and equivalence confidence sets,
Statistical Science 11, 1996.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.questions.choose.estimates import CHECK, INFEASIBLE, MEASURED, PREDICTED, Estimates
from workflow_scripts.questions.knobs.pairs import knob_groups
from workflow_scripts.statistics.comparisons import CHANGES, EQUIVALENCE_ALPHA, FLAT, NOT_DECIDED, holm, log_margin
from workflow_scripts.statistics.samples import IntArray
from workflow_scripts.statistics.start_spread import FloatArray
from workflow_scripts.statistics.summary import ENVIRONMENT, comparable_rows, knob_columns, knob_text, numbers
from workflow_scripts.study.grid import COORDINATES

RECOMMENDATION, KNOBS, DEVICES, MEMORY = KINDS = ("recommendation", "knobs", "devices", "memory")
# How a cell uses its memory.
FITS, PREEMPTS, REFUSED = "fits", "preempts", "infeasible"


@dataclass(frozen=True)
class Question:
    """A question and its answer.

    Attributes:
        kind: one of KINDS.
        place: what it is asked of, e.g. `h200, vllm, opt-125m, chat`.
        subject: the knob, the two devices or the bound.
        answer: the cell, the verdict, the ratio or the limit, as far as it is known.
        probability: that the answer holds, by the estimates; of `memory` 1 or 0.
        is_answered: whether it is shown at the study's error.
        values: what it depends on, for each draw: the regret of the recommended cell, the largest difference between
            values of a knob, the ratio of two devices, as logarithms.
        needs: cells that must be measured, whatever they show.
        pairs: of a knob, the positions of cells that are compared, shape (2, pairs); the others have none.
        margin: within which pairs are flat, of logarithms.
    """

    kind: str
    place: str
    subject: str
    answer: str
    probability: float
    is_answered: bool
    values: FloatArray
    needs: tuple[str, ...] = ()
    pairs: IntArray = field(default_factory=lambda: np.empty((2, 0), dtype=int))
    margin: float = 0.0


@dataclass(frozen=True)
class _Grid:
    """The cells of a study, in the order of the draws: `rows` has their settings with `at`, the position, and `state`,
    `cost_s`, `memory`, `is_tried` and `keeps`, whether the latency may be kept."""

    rows: pd.DataFrame
    draws: FloatArray
    margin: float
    bound: str


def ask(
    estimates: Estimates,
    plan: pd.DataFrame,
    cells: pd.DataFrame,
    margin_pct: float,
    decide: Collection[str] = KINDS,
    tpot_p99_s: float | None = None,
) -> tuple[Question, ...]:
    """The questions of a study, of the kinds `decide`, answered as far as its estimates show.

    `cells` has a row of every cell of the plan. `tpot_p99_s` bounds the 99th percentile of the time per output token of
    recommended settings.
    """
    grid = _grid(estimates, plan, cells, log_margin(margin_pct), tpot_p99_s)
    kinds = {RECOMMENDATION: _recommendations, KNOBS: _knobs, DEVICES: _devices}
    estimated = [question for kind, ask_of in kinds.items() if kind in decide for question in ask_of(grid)]
    shown = holm(np.array([1 - question.probability for question in estimated])) <= EQUIVALENCE_ALPHA
    answered = [
        replace(q, is_answered=is_shown, answer=q.answer if is_shown or q.kind != KNOBS else NOT_DECIDED)
        for q, is_shown in zip(estimated, shown.tolist(), strict=True)
    ]
    # Limits of memory are seen, not estimated.
    return (*answered, *(_memory(grid) if MEMORY in decide else ()))


def _grid(
    estimates: Estimates, plan: pd.DataFrame, cells: pd.DataFrame, margin: float, tpot_p99_s: float | None
) -> _Grid:
    table, plan = estimates.table, plan.set_index("cell_id")
    settings = ["cell_id", *COORDINATES, "knobs", *knob_columns(cells)]
    rows = cells[settings].drop_duplicates("cell_id").set_index("cell_id").reindex(plan.index)
    by_cell = comparable_rows(cells).groupby("cell_id")
    outcomes = cells.groupby("cell_id")["outcome"].agg(set).reindex(plan.index)
    ran, was_refused = (np.array([name in outcome for outcome in outcomes]) for name in ("ok", "infeasible"))
    preempted = np.where(ran, numbers(by_cell["preemptions"].sum().reindex(plan.index)), numbers(plan["preemptions"]))
    refused = ~ran & (was_refused | plan["infeasible"].notna().to_numpy())
    # Before a cell is measured, the low end of its band counts.
    tpot = by_cell["tpot_s_p99"].mean().reindex(plan.index)
    least = numbers(tpot.fillna(plan["tpot_s_p99_low"]).fillna(plan["tpot_s_p99"]))
    rows = rows.assign(
        at=np.arange(len(rows)),
        state=table["state"],
        cost_s=table["cost_s"],
        memory=np.select([refused, preempted > 0], [REFUSED, PREEMPTS], FITS),
        is_tried=[outcome != {"missing"} for outcome in outcomes],
        keeps=True if tpot_p99_s is None else ~(least > tpot_p99_s),
        # Cells are compared whether or not they were measured.
        **dict.fromkeys((*ENVIRONMENT, "study", "source"), ""),
    )
    bound = "" if tpot_p99_s is None else f"p99 TPOT <= {1000 * tpot_p99_s:g} ms"
    return _Grid(rows.reset_index(), estimates.draws, margin, bound)


def _recommendations(grid: _Grid) -> Iterator[Question]:
    rows = grid.rows[grid.rows["state"].ne(INFEASIBLE) & grid.rows["keeps"] & grid.rows["engine"].eq(VLLM.name)]
    for names, place in rows.groupby(COORDINATES, sort=False):
        ids, draws = place["cell_id"].to_numpy(), grid.draws[:, place["at"]]
        mean, is_measured = draws.mean(axis=0), place["state"].isin([MEASURED, CHECK]).to_numpy()
        fastest = int(mean.argmax())
        best = int(np.where(is_measured, mean, -np.inf).argmax()) if is_measured.any() else fastest
        regret = draws.max(axis=1) - draws[:, best]
        needs = () if is_measured[fastest] else (ids[fastest],)
        probability = float((regret <= grid.margin).mean()) if is_measured.any() else 0.0
        name = ", ".join(map(str, names))
        yield Question(RECOMMENDATION, name, grid.bound, ids[best], probability, False, regret, needs)


def _groups(rows: pd.DataFrame) -> Iterator[tuple[str, str, list[IntArray]]]:
    """The name of each place, each knob that varies there, and the positions of cells that differ in nothing else, in
    the order of the knob's values, for each group of them."""
    knobs = knob_columns(rows)
    for column in knobs:
        rows_of = knob_groups(rows, column, [knob for knob in knobs if knob != column])
        for names, place in rows_of.groupby(COORDINATES, sort=False):
            groups = np.split(place["at"].to_numpy(), np.flatnonzero(np.diff(place["group"])) + 1)
            yield ", ".join(map(str, names)), column.removeprefix("knob_"), groups


def _knobs(grid: _Grid) -> Iterator[Question]:
    is_check, is_predicted = grid.rows["state"].eq(CHECK).to_numpy(), grid.rows["state"].eq(PREDICTED).to_numpy()
    for name, knob, groups in _groups(grid.rows[grid.rows["state"] != INFEASIBLE]):
        spread = np.max([np.ptp(grid.draws[:, at], axis=1) for at in groups], axis=0)
        a, b = pairs = np.array([pair for at in groups for pair in combinations(at, 2)]).T
        within = (np.abs(grid.draws[:, a] - grid.draws[:, b]) <= grid.margin).mean(axis=0)
        # What is flat for every pair needs no correction; that any pair changes may be seen in each of them.
        # An estimate beside a check cell may differ from it by the very error that the cell shows.
        own = ~(is_check[a] & is_predicted[b] | is_predicted[a] & is_check[b])
        is_flat, changes = float(within.min()), max(0.0, 1 - len(within) * float(within[own].min(initial=1.0)))
        answer = FLAT if is_flat >= changes else CHANGES
        probability = max(is_flat, changes)
        yield Question(KNOBS, name, knob, answer, probability, False, spread, pairs=pairs, margin=grid.margin)


def _devices(grid: _Grid) -> Iterator[Question]:
    rows = grid.rows[grid.rows["state"] != INFEASIBLE]
    for names, place in rows.groupby(["engine", "model"], sort=False):
        of_devices = {
            str(gpu): of.set_index(["workload", "knobs"])["at"] for gpu, of in place.groupby("gpu", sort=False)
        }
        for a, b in combinations(of_devices, 2):
            both = pd.concat([of_devices[a], of_devices[b]], axis=1, join="inner").to_numpy()
            if len(both):
                ratio = (grid.draws[:, both[:, 0]] - grid.draws[:, both[:, 1]]).mean(axis=1)
                probability = float((np.abs(ratio - ratio.mean()) <= grid.margin).mean())
                answer = f"{np.exp(ratio.mean()):.3g}"
                yield Question(DEVICES, ", ".join(map(str, names)), f"{a} / {b}", answer, probability, False, ratio)


def _memory(grid: _Grid) -> Iterator[Question]:
    nothing = np.zeros(len(grid.draws))
    memory, is_tried, cost_s, ids = (grid.rows[of].to_numpy() for of in ("memory", "is_tried", "cost_s", "cell_id"))
    for name, knob, groups in _groups(grid.rows):
        limits: dict[tuple[str, str], tuple[float, tuple[str, ...], str]] = {}
        values = grid.rows[f"knob_{knob}"]
        for lower, upper in (pair for at in groups for pair in pairwise(at)):
            if memory[lower] != memory[upper]:
                untried = [at for at in (lower, upper) if not is_tried[at]]
                between = " to ".join(knob_text(values[at]) for at in (lower, upper))
                limit = sum(cost_s[untried]), tuple(ids[untried]), between
                # Of the limits with other settings the one that costs least to see.
                of = memory[lower], memory[upper]
                limits[of] = min(limits.get(of, limit), limit, key=lambda candidate: candidate[0])
        for (below, above), (_, needs, between) in limits.items():
            subject = f"{knob}: {below}, then {above}"
            yield Question(MEMORY, name, subject, between, float(not needs), not needs, nothing, needs)

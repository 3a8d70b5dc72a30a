"""Decide which cells the next round of a study measures again, or that measuring has ended.

    kvsweep next-round --study config/studies/my-study.yaml --number 3 --gpus h200 \\
        --tables results/my-study/rounds/h200/tables --out results/my-study/rounds/h200/round-3.json

The cells table holds what was measured so far. The plan says which starts the round measures, and which comparisons
they may decide. It also lists the comparisons that cannot be decided within the study's counts and minutes, with
what they would need, and the reason if measuring has ended.
"""

from argparse import Namespace
from collections.abc import Collection, Mapping
from itertools import count
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from workflow_scripts.common.command import RESULTS, STUDY, TABLES_OPTION, command, option, out, positive
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json
from workflow_scripts.questions.comparisons.pairs import compared_pairs, looks_at
from workflow_scripts.statistics.comparisons import NOT_DECIDED
from workflow_scripts.statistics.further_starts import Looks
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import outcome_in
from workflow_scripts.study.paths import StudyPaths, cell_of
from workflow_scripts.study.rounds import CellStart, OpenComparison, RoundPlan, ended_starts, in_random_order
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import read_measurements
from workflow_scripts.tables.summary import Row, Summaries, comparable_rows, records

# Why comparisons are given up, and why measuring ends.
TOO_MANY_STARTS = "it needs more starts than the study allows"
TOO_LITTLE_TIME = "it needs more device time than is left"
ALL_DECIDED = "every comparison is decided"
NONE_DECIDABLE = "no undecided comparison can be decided within the study's starts and budget"
NO_START = "one of its cells failed, or has as many starts as the study allows"
# Minimum number of starts for a variance.
_LEAST_TO_VARY = 2


def decide_round(
    study: Study,
    paths: StudyPaths,
    table: pd.DataFrame,
    number: int,
    gpus: Collection[str],
    tried: Collection[str] = (),
) -> RoundPlan:
    """The plan of round `number` for the cells on `gpus`, after all earlier rounds.

    `table` is the cells table; `tried` are cells that were measured without an outcome.
    """
    cells = [cell for cell in expand(study) if cell.gpu in gpus]
    definitions = Cells(study).definitions
    ended = ended_starts({cell.id: definitions[cell.id] for cell in cells}, paths)
    seconds = {
        cell.id: [_device_seconds(cell, paths.outcome(cell, n), study) for n in ended[cell.id]] for cell in cells
    }
    spent_s = sum(map(sum, seconds.values()))
    budget_s = inf if study.starts.budget_min is None else 60 * study.starts.budget_min - spent_s
    failed = {cell for cell, starts in ended.items() if len(starts) < study.starts.at_least} | {*tried}
    opened, decided, left_s = open_comparisons(
        table[table["gpu"].isin(gpus)],
        study.equivalence_margin_pct,
        looks_at(study.starts, table),
        {cell: fmean(of_starts) for cell, of_starts in seconds.items() if of_starts},
        budget_s,
        failed | {cell for cell, starts in ended.items() if len(starts) >= study.starts.at_most},
    )
    undecided = tuple(pair for pair in opened if not pair.given_up)
    chosen = {cell for pair in undecided for cell in pair.cells}
    free = {cell: next(start for start in count(1) if start not in ended[cell]) for cell in chosen}
    return RoundPlan(
        round=number,
        starts=tuple(CellStart(cell, free[cell]) for cell in in_random_order(chosen, number)),
        undecided=undecided,
        not_decidable=tuple(pair for pair in opened if pair.given_up),
        decided=decided,
        spent_s=spent_s,
        left_s=left_s,
        ended=None if undecided else NONE_DECIDABLE if opened else ALL_DECIDED,
    )


def _device_seconds(cell: Cell, outcome: Path, study: Study) -> float:
    """What a start of a cell took, times its devices; a start that was killed took all its time."""
    record = outcome_in(outcome)
    phases_s = record.phases_s if record else {}
    return cell.knobs.ranks * (sum(phases_s.values()) if phases_s else study.cell_time_limit_s)


def open_comparisons(
    cells: pd.DataFrame,
    margin_pct: float,
    looks: Looks,
    seconds_per_start: Mapping[str, float],
    budget_s: float = inf,
    no_start: Collection[str] = (),
) -> tuple[list[OpenComparison], int, float]:
    """The comparisons of the effects table that are not decided, the cheapest first, with why they are given up; how
    many are decided; and the device seconds that those take which are not given up.

    The first rounds, up to the study's minimum number of starts, measure every cell. Both cells of a comparison are
    always in the same round. `seconds_per_start` are device seconds by `cell_id`, with every compared cell (else a
    KeyError); `budget_s` are those that are left; the cells `no_start` are not started again.
    """
    started = comparable_rows(cells).groupby("cell_id")["start"].nunique()
    pairs = []
    for column, rows, of_column in compared_pairs(Summaries(cells), margin_pct, looks):
        ids = rows["cell_id"].to_numpy()
        pairs += [
            pair | {"knob": column.removeprefix("knob_"), "cells": (ids[pair["a"]], ids[pair["b"]])}
            for pair in records(of_column)
        ]
    undecided = [pair for pair in pairs if pair["verdict"] == NOT_DECIDED]
    for pair in undecided:
        pair["further"] = _further(pair, looks.at_least)
        pair["cost_s"] = pair["further"] * sum(seconds_per_start[cell] for cell in pair["cells"])
    opened: list[OpenComparison] = []
    starts: dict[str, float] = {}
    left_s = 0.0
    for pair in sorted(undecided, key=lambda pair: (pair["cost_s"], pair["cells"])):
        then = starts | {cell: max(starts.get(cell, 0), pair["further"]) for cell in pair["cells"]}
        then_s = float(sum(count * seconds_per_start[cell] for cell, count in then.items()))
        reasons = {
            TOO_MANY_STARTS: any(started[cell] + pair["further"] > looks.at_most for cell in pair["cells"]),
            NO_START: any(cell in no_start for cell in pair["cells"]),
            TOO_LITTLE_TIME: then_s > budget_s,
        }
        given_up = next((reason for reason, holds in reasons.items() if holds), None)
        needed = None if np.isnan(pair["starts_needed"]) else int(pair["starts_needed"])
        opened.append(OpenComparison(knob=pair["knob"], cells=pair["cells"], further_starts=needed, given_up=given_up))
        starts, left_s = (starts, left_s) if given_up else (then, then_s)
    return opened, len(pairs) - len(undecided), left_s


def _further(pair: Row, at_least: int) -> float:
    """The fewest further starts of both cells that may decide; if no variance is known, as many as show one."""
    needed = pair["starts_needed_at_least"]
    if np.isnan(needed) and pair["starts"] < _LEAST_TO_VARY:
        needed = _LEAST_TO_VARY - pair["starts"]
    return inf if np.isnan(needed) else float(max(needed, at_least - pair["starts"]))


@command(
    "next-round",
    STUDY,
    RESULTS,
    option("--number", type=positive, required=True, help="the number of the round"),
    option("--gpus", nargs="+", required=True, help="devices whose cells can be measured"),
    TABLES_OPTION,
    option("--measured", type=Path, nargs="*", default=[], help="lists of what the rounds before have measured"),
    out("the plan of the round, as JSON"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    if not study.starts.is_adaptive:
        raise InputError(f"{args.study}: starts: every cell gets {study.starts.at_least}; there is nothing to decide")
    paths = StudyPaths(args.results, study.name)
    listed = (read_json(path).items() for path in args.measured)
    tried = {cell_of(folder) for of_round in listed for folder, outcome in of_round if outcome is None}
    cells = read_measurements(args.tables)
    plan = decide_round(study, paths, cells, args.number, args.gpus, tried)
    plan.write(args.out)
    print(f"round {plan.round}: {plan.in_words()}")

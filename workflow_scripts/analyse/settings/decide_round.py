"""Decide which cells the next round of a study measures again, or that measuring has ended.

    kvsweep next-round --study config/studies/my-study.yaml --number 3 --gpus h200 \\
        --cells results/my-study/rounds/cells.parquet --parsed results/my-study/rounds/parsed \\
        --devices results/my-study/prepared/devices --out results/my-study/rounds/round-3.json

The cells table holds what was measured so far. The plan says which starts the round measures, and which comparisons
they may decide. It also lists the comparisons that cannot be decided within the study's counts and device hours, with
what they would need, and the reason if measuring has ended.
"""

from argparse import Namespace
from collections.abc import Collection
from itertools import count
from math import inf
from pathlib import Path
from statistics import fmean

import pandas as pd

from workflow_scripts.analyse.cells.cells import SCHEMA, SIMULATED
from workflow_scripts.analyse.choose.choose_cells import choose_round
from workflow_scripts.analyse.limits.limits import checked
from workflow_scripts.analyse.settings.knob_pairs import looks_at
from workflow_scripts.analyse.settings.next_round import next_round
from workflow_scripts.analyse.tables import read_table
from workflow_scripts.cluster.batches import known_sha256, without_outcome
from workflow_scripts.common.command import PARSED, RESULTS, STUDY, command, option, out, positive
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json
from workflow_scripts.common.parquet import read_parquet
from workflow_scripts.study.definition import definitions_sha256
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import CellStart, EndedStarts, RoundPlan, ended_starts, in_random_order, read_plan
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

# Why measuring ends although comparisons are open.
NONE_TO_MEASURE = "the cells of open comparisons failed, or have as many starts as the study allows"
# Why a comparison is given up.
NO_START = "one of its cells failed, or has as many starts as the study allows"


def decide_round(
    study: Study,
    paths: StudyPaths,
    table: pd.DataFrame,
    number: int,
    gpus: Collection[str],
    before: RoundPlan | None,
    tried: Collection[str] = (),
    predicted: pd.DataFrame | None = None,
) -> RoundPlan:
    """The plan of round `number` for the cells on `gpus`, after all earlier rounds.

    `table` is the cells table; `before` is the plan of the last round, if this call of snakemake made it. `tried` are
    cells that this call measured without an outcome. `predicted`: the prediction of every cell, which a study with
    `measure` chooses by.
    """
    cells = [cell for cell in expand(study) if cell.gpu in gpus]
    definitions = definitions_sha256(study)
    ended = ended_starts({cell.id: definitions[cell.id] for cell in cells}, paths)
    seconds = {
        cell.id: [_device_seconds(cell, paths.outcome(cell, n), study) for n in ended[cell.id]] for cell in cells
    }
    drift = [_device_seconds(cell, path, study) for cell in cells for path in paths.drift_outcomes(cell)]
    spent_s = sum(map(sum, [*seconds.values(), drift]))
    hours = study.device_hours
    budget_s = inf if hours is None else 3600 * hours - spent_s
    table = table[table["source"].ne(SIMULATED)]
    found = next_round(
        table[table["gpu"].isin(gpus)],
        study.equivalence_margin_pct,
        looks_at(study.starts, table),
        seconds_per_start={cell: fmean(of_starts) for cell, of_starts in seconds.items() if of_starts},
        budget_s=budget_s,
    )
    failed = _failed(ended, 0 if study.measure else study.starts.at_least, before) | {*tried}
    hopeless = failed | {cell for cell, starts in ended.items() if len(starts) >= study.starts.at_most}
    going = [one for one in found.undecided if hopeless.isdisjoint(one.cells)]
    given_up = [
        one.model_copy(update={"given_up": NO_START}) for one in found.undecided if not hopeless.isdisjoint(one.cells)
    ]
    chosen = {cell for one in going for cell in one.cells}
    decided = RoundPlan(
        round=number,
        starts=_starts(chosen, ended, number),
        undecided=tuple(going),
        not_decidable=(*given_up, *found.not_decidable),
        decided=found.decided,
        spent_s=spent_s,
        left_s=found.left_s,
        ended=found.ended or (None if chosen else NONE_TO_MEASURE),
        failed=tuple(sorted(failed)),
        known=known_sha256(study, paths, gpus),
    )
    if study.measure is None or predicted is None:
        return decided
    decided, chosen = choose_round(decided, study, study.measure, predicted, table, ended, budget_s)
    return decided.model_copy(update={"starts": _starts(chosen, ended, number)})


def _device_seconds(cell: Cell, outcome: Path, study: Study) -> float:
    """What a start of a cell took, times its devices; a start that was killed took all its time."""
    phases_s = read_json(outcome)["phases_s"]
    return cell.knobs.ranks * float(sum(phases_s.values()) if phases_s else study.cell_time_limit_s)


def _failed(ended: EndedStarts, at_least: int, before: RoundPlan | None) -> set[str]:
    """Cells that lack the outcome of a start that an earlier round should have measured."""
    failed = {cell for cell, starts in ended.items() if len(starts) < at_least}
    if before is not None:
        failed |= {*before.failed, *(one.cell for one in before.starts if one.start not in ended.get(one.cell, {}))}
    return failed


def _starts(cells: Collection[str], ended: EndedStarts, number: int) -> tuple[CellStart, ...]:
    """The next start of each cell, in the order of the round."""
    free = {cell: next(start for start in count(1) if start not in ended[cell]) for cell in cells}
    return tuple(CellStart(cell, free[cell]) for cell in in_random_order(cells, number))


@command(
    "next-round",
    STUDY,
    RESULTS,
    option("--number", type=positive, required=True, help="the number of the round"),
    option("--gpus", nargs="+", required=True, help="devices whose cells can be measured"),
    option("--cells", type=Path, required=True, help="cells.parquet with what was measured so far"),
    PARSED,
    option("--devices", type=Path, required=True, help="folder with NAME.json of each measured device"),
    option("--batches", type=Path, nargs="*", default=[], help="files of batches that this call of snakemake measured"),
    option("--plan", type=Path, help="plan.parquet of the study, if it has `measure`"),
    option("--first", action="store_true", help="try cells again that failed in former calls"),
    out("the plan of the round, as JSON"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    if not study.is_adaptive:
        raise InputError(f"{args.study}: starts: every cell gets {study.starts.at_least}; there is nothing to decide")
    if study.measure and args.plan is None:
        raise InputError(f"{args.study}: measure: cells are chosen by predictions; give --plan PLAN.parquet")
    paths = StudyPaths(args.results, study.name)
    last = paths.round_plan(args.number - 1)
    before = read_plan(last) if last.exists() and not args.first else None
    tried = {one.cell for one in without_outcome(args.batches, study, paths)}
    # A cell above the ceiling of its device decides nothing.
    cells, _, _ = checked(read_table(args.cells, SCHEMA.name), study, args.parsed, args.devices)
    predicted = None if args.plan is None else read_parquet(args.plan)
    plan = decide_round(study, paths, cells, args.number, args.gpus, before, tried, predicted)
    plan.write(args.out)
    print(f"round {plan.round}: {plan.in_words()}")

"""Show how much the speed of a round's first cell changed until its end, and whether later places in a session matter.

    kvsweep table-drift --study config/studies/my-study.yaml --out results/my-study/tables/drift.parquet

One row per round and host (on a cluster: per job) whose first cell was measured once more at the end. These
measurements do not count as starts of the cell, nor in its mean and its intervals. And one row per device whose
sessions serve the same cells in other orders.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import log
from statistics import fmean
from typing import TypeGuard

import numpy as np
import pandas as pd

from workflow_scripts.common.command import RESULTS, STUDY, command, out
from workflow_scripts.statistics.comparisons import CONFIDENCE, half_width
from workflow_scripts.statistics.start_spread import FloatArray
from workflow_scripts.statistics.summary import Row
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Outcome, outcome_in
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, table_schema, write_table

SCHEMA = table_schema(
    "drift",
    "The first cell of a round, measured again at the end of the round (on a cluster: of the job). "
    "No other table counts these measurements.",
    TEXT("cell_id gpu", "as in `cells`"),
    INTEGER("round", "as in `starts`"),
    INTEGER("cells", "cells from the first measurement to the last, both included"),
    TEXT("host", "as in `starts`"),
    NUMBER("minutes", "time between the two"),
    NUMBER("drift_pct", "how much faster the cell was at the end"),
    NUMBER("place_pct place_low_pct place_high_pct", "how much faster cells are one place later in a session, 95 %"),
    notes="A row with `place_pct` is of all cells that share sessions on a device; it has no cell and no round.",
)


def drift_table(cells: Sequence[Cell], paths: StudyPaths) -> pd.DataFrame:
    rows = [row for cell in cells for row in _of_cell(cell, paths)]
    rows += [_of_places(gpu, of_gpu, paths) for gpu, of_gpu in groupby(sorted(cells, key=_gpu), _gpu)]
    table = pd.DataFrame(rows, columns=list(SCHEMA.columns))
    return table.dropna(subset=["drift_pct", "place_pct"], how="all").sort_values(["round", "cell_id"])


def _of_places(gpu: str, cells: Iterable[Cell], paths: StudyPaths) -> Row:
    """The effect of a later place in a session on the speed, beside those of the cell and of the session."""
    outcomes = [outcome_in(path) for cell in cells for path in paths.outcomes(cell).values()]
    starts = [(o.cell_id, o.start.session, o.start.place_in_session, -log(_mean_s(o))) for o in outcomes if _counts(o)]
    table = pd.DataFrame(starts, columns=["cell", "session", "place", "speed"])
    others = pd.get_dummies(table[["cell", "session"]].astype("string"), dtype=float).to_numpy()
    effect = effect_of(table["place"].to_numpy(dtype=float), table["speed"].to_numpy(dtype=float), others)
    names = ("place_pct", "place_low_pct", "place_high_pct")
    return {"gpu": gpu, "cells": table["cell"].nunique(), **dict(zip(names, 100 * np.expm1(effect), strict=True))}


def _gpu(cell: Cell) -> str:
    return cell.gpu


def _counts(outcome: Outcome | None) -> TypeGuard[Outcome]:
    return outcome is not None and outcome.outcome == "ok" and bool(outcome.repeats and outcome.start.session)


def effect_of(x: FloatArray, y: FloatArray, others: FloatArray) -> FloatArray:
    """The slope of `y` by `x` beside `others`, by least squares, with the ends of its interval; NaN if the others
    explain `x`, or nothing is left over.

    >>> effect_of(np.arange(3.0), np.array([0.0, 1.1, 1.9]), np.ones((3, 1))).round(2).tolist()
    [0.95, -0.15, 2.05]
    """
    both = np.column_stack([x, y])
    explained, _, rank, _ = np.linalg.lstsq(others, both, rcond=None)
    x, y = (both - others @ explained).T
    squares, df = x @ x, len(y) - int(rank) - 1
    if df < 1 or squares < 1e-9:
        return np.full(3, np.nan)
    slope = x @ y / squares
    error = ((y - slope * x) ** 2).sum() / df / squares
    return np.asarray(slope + half_width(error, np.asarray(df), CONFIDENCE) * np.array([0, -1, 1]))


def _of_cell(cell: Cell, paths: StudyPaths) -> Iterator[Row]:
    for path in paths.drift_outcomes(cell):
        again = outcome_in(path)
        first_path = paths.outcome(cell, again.start.start) if again else path
        first = outcome_in(first_path) if first_path.exists() else None
        if first and again and _is_pair(first, again):
            yield {
                "cell_id": cell.id,
                "gpu": cell.gpu,
                "round": again.start.round,
                "cells": again.start.position - (first.start.position or 1) + 1 if again.start.position else None,
                "host": again.provenance.get("host"),
                "minutes": _seconds_between(first, again) / 60,
                "drift_pct": 100 * (_mean_s(first) / _mean_s(again) - 1),
            }


def _seconds_between(first: Outcome, again: Outcome) -> float:
    """By the monotonic clock, which nobody sets, if the host was not booted in between."""
    one, other = first.repeats[0], again.repeats[0]
    if first.start.boot_id and first.start.boot_id == again.start.boot_id:
        return other.start_monotonic_s - one.start_monotonic_s
    return other.start_unix_s - one.start_unix_s


def _is_pair(first: Outcome, again: Outcome) -> bool:
    """Whether both are of one round and host, and have values."""
    where = [(outcome.start.round, outcome.provenance.get("host"), outcome.definition) for outcome in (first, again)]
    return where[0] == where[1] and first.outcome == again.outcome == "ok" and bool(first.repeats and again.repeats)


def _mean_s(outcome: Outcome) -> float:
    return fmean(r.end_monotonic_s - r.start_monotonic_s for r in outcome.repeats)


@command("table-drift", STUDY, RESULTS, out("drift.parquet; drift.csv is written beside it"))
def main(args: Namespace) -> None:
    study = load_study(args.study)
    write_table(drift_table(expand(study), StudyPaths(args.results, study.name)), args.out, SCHEMA.name)

"""Show how much the speed of a round's first cell changed until its end.

    kvsweep table-drift --study config/studies/my-study.yaml --out results/my-study/tables/drift.parquet

One row per round and host (on a cluster: per job) whose first cell was measured once more at the end. These
measurements do not count as starts of the cell, nor in its mean and its intervals.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from statistics import fmean

import pandas as pd

from workflow_scripts.common.command import RESULTS, STUDY, command, out
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
    INTEGER("round", "as in `cells`"),
    INTEGER("cells", "cells from the first measurement to the last, both included"),
    TEXT("host", "as in `cells`"),
    NUMBER("minutes", "time between the two"),
    NUMBER("drift_pct", "how much faster the cell was at the end"),
)


def drift_table(cells: Iterable[Cell], paths: StudyPaths) -> pd.DataFrame:
    rows = [row for cell in cells for row in _of_cell(cell, paths)]
    return pd.DataFrame(rows, columns=list(SCHEMA.columns)).sort_values(["round", "cell_id"])


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

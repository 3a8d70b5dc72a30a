"""One run of a study as a comparison needs it, from its tables: what each cell measured, with what, where and when."""

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.wording import finite
from workflow_scripts.statistics.comparisons import mean_errors
from workflow_scripts.study.setting_words import labels
from workflow_scripts.tables.measurements import read_measurements
from workflow_scripts.tables.summary import RATE, Summaries, comparable_rows, knob_columns

# Columns that say where and with what a cell was measured.
_ENVIRONMENT = (
    *("host", "device_name", "device_uuid", "processor", "engine_version", "lock_sha256", "git_commit", "protocol"),
    "dtype",
)
# Fields of a cell's definition that a comparison may examine, or that are among its environment.
NOT_CONTENT = ("gpu", "engine", "knobs", "repeats", "protocol")
# By these the same cell of two runs is compared; of a cell whose requests arrive at a rate the rate has no mean.
JUDGED_BY = ("ttft_s_p50", "tpot_s_p50")
_MEASURES = (RATE, *JUDGED_BY, "energy_j_per_output_token")


class Mean(NamedTuple):
    """One measure of a cell: the mean of its logarithms over starts, as `mean_errors` gives it; None: not known."""

    measure: str
    log_mean: float
    squared_error: float | None
    df: float | None


@dataclass(frozen=True)
class RunCell:
    """A cell. `content`: its weights and requests; `environment`: with what and where it was measured, by column of the
    tables; `effective`: the settings that took effect, empty if not known; `label`: the settings in words that tell it
    from others of its study.

    `comparable`: whether it was measured as its study defines it. `began`: when its first repeat began, UTC.
    """

    id: str
    outcome: str
    reason: str | None
    comparable: bool
    source: str
    began: str | None
    content: dict[str, Any]
    environment: dict[str, list[str]]
    effective: dict[str, Any]
    means: list[Mean]
    label: str


@dataclass(frozen=True)
class Run:
    """All that a comparison of a run with another one needs."""

    study: str
    margin_pct: float
    cells: list[RunCell]

    @property
    def began(self) -> str | None:
        """When the first repeat began, UTC; None if not known."""
        return min((cell.began for cell in self.cells if cell.began), default=None)

    def judged(self) -> "Run":
        """The run with the measures by which `--fail-if-worse` judges it: the rate of a cell, or its latencies if
        requests arrive at a rate."""

        def by(cell: RunCell) -> RunCell:
            rate = [mean for mean in cell.means if mean.measure == RATE]
            return replace(cell, means=rate or [mean for mean in cell.means if mean.measure in JUDGED_BY])

        return replace(self, cells=list(map(by, self.cells)))


def read_run(place: Path) -> Run:
    """The run whose tables are in a study's results folder, or in an unpacked archive.

    Raises:
        InputError: there are none, or they are not those of a study.
    """
    folders = [place / "tables", *sorted(place.glob("results/*/tables"))]
    there = [folder for folder in folders if (folder / "cells.parquet").exists()]
    if len(there) != 1:
        what = f"holds {len(there)} studies; name one of their folders" if there else "has no tables/cells.parquet"
        raise InputError(
            f"{place}: {what}. Allowed: a study's folder below results/, or an unpacked archive. "
            "`snakemake --config partial=1` makes the tables of what has been measured"
        )
    return run_of(read_measurements(there[0]), there[0])


def run_of(cells: pd.DataFrame, where: Path) -> Run:
    """The run of a frame of `tables.measurements`, without cells that were imported. Raises InputError if it is
    not of one study."""
    cells = cells[cells["definition"].notna()]
    names, margins = (cells[name].dropna().unique().tolist() for name in ("study", "equivalence_margin_pct"))
    if len(names) != 1 or len(margins) != 1 or not 0 < margins[0] <= 50:
        what = f"cells of the studies {names} with the margins {margins}"
        raise InputError(f"{where}: {what}; allowed: one of each, a margin above 0 and up to 50 %")
    words = labels(cells.drop_duplicates("cell_id").set_index("cell_id"), knob_columns(cells)).to_dict()
    # Starts with an earlier definition do not count, and neither does their environment.
    comparable = cells.index.isin(comparable_rows(cells).index)
    rank = pd.Series(np.select([comparable, cells["outcome"].eq("ok").fillna(False)], [0, 1], 2), cells.index)
    rows = cells[rank == rank.groupby(cells["cell_id"]).transform("min")]
    told = rows.drop_duplicates("cell_id").set_index("cell_id")
    told = told[["outcome", "reason", "source", "effective", "definition"]].assign(
        comparable=pd.Series(comparable, cells.index).groupby(cells["cell_id"]).any(),
        began=rows.dropna(subset="started_at").groupby("cell_id")["started_at"].min(),
    )
    means, environments = _means(Summaries(cells)), _environments(rows)
    known: dict[Any, Any] = told.astype(object).where(told.notna(), None).to_dict("index")
    run_cells = []
    for name, fields in known.items():
        definition, effective = (json.loads(fields.pop(key) or "{}") for key in ("definition", "effective"))
        content = {key: value for key, value in definition.items() if key not in NOT_CONTENT}
        found: dict[str, Any] = {"content": content, "effective": effective, "label": words[name]}
        found |= {"environment": environments.get(name, {}), "means": means.get(name, [])}
        run_cells.append(RunCell(id=name, **fields, **found))
    return Run(names[0], margins[0], run_cells)


def _environments(rows: pd.DataFrame) -> dict[Any, dict[str, list[str]]]:
    """For each cell, what is known of where and with what its rows were measured: values by column, sorted."""
    found: dict[Any, dict[str, list[str]]] = defaultdict(dict)
    for name in _ENVIRONMENT:
        known = rows[["cell_id", name]].dropna().drop_duplicates().sort_values(name)
        for cell, value in zip(known["cell_id"], known[name].map(str), strict=True):
            found[cell].setdefault(name, []).append(value)
    return found


def _means(summed: Summaries) -> dict[Any, list[Mean]]:
    """The means of each cell that may be compared. If a cell has several environments, the first one counts."""
    means = defaultdict(list)
    for measure in _MEASURES:
        summary, samples = summed(measure)
        log_mean, error = mean_errors(samples)
        first = summary.drop_duplicates("cell_id")
        values = np.stack([part[first["sample"]] for part in (log_mean, error.variance, error.df)], axis=-1)
        for cell, (log, squared, df) in zip(first["cell_id"], values.tolist(), strict=True):
            means[cell].append(Mean(measure, log, finite(squared), finite(df)))
    return means

"""The digest of a study: all that a comparison with another study needs, as `kvsweep tables` writes it.

It holds what was measured in each cell, with what, where and when.
"""

import json
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from workflow_scripts.common.wording import finite
from workflow_scripts.questions.compare.digest import Digest, DigestCell, Mean
from workflow_scripts.statistics.comparisons import mean_errors
from workflow_scripts.study.definition import cell_definition, resolved_models
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.setting_words import labels
from workflow_scripts.study.study import Study
from workflow_scripts.tables.summary import RATE, Summaries, knob_columns

# Columns of the cells table that say where and with what a cell was measured.
ENVIRONMENT = (
    *("host", "device_name", "device_uuid", "processor", "engine_version", "lock_sha256", "git_commit", "protocol"),
    "dtype",
)
# Fields of a cell's definition that a comparison may examine, or that are among its environment.
NOT_CONTENT = ("gpu", "engine", "knobs", "repeats", "protocol")
# By these the same cell of two studies is compared; of a cell whose requests arrive at a rate the rate has no mean.
MEASURES = (RATE, "ttft_s_p50", "tpot_s_p50", "energy_j_per_output_token")
# Settings of a study apart from its grid.
SETTINGS = {"repeats", "starts", "cell_time_limit_s", "equivalence_margin_pct", "slo"}


def digest_of(study: Study, grid: Sequence[Cell], summed: Summaries) -> Digest:
    """The digest of a study with these cells."""
    models, cells = resolved_models(study), summed.cells
    words = labels(cells.drop_duplicates("cell_id").set_index("cell_id"), knob_columns(cells))
    means = _means(summed)
    # Starts with an earlier definition do not count, and neither does their environment.
    ok = cells["outcome"].eq("ok").fillna(False).astype(bool)
    comparable = ok & cells["comparable"].eq(True).fillna(False).astype(bool)
    rank = pd.Series(np.select([comparable, ok], [0, 1], 2), cells.index)
    counted = rank == rank.groupby(cells["cell_id"]).transform("min")
    rows = cells.loc[counted, ["cell_id", "outcome", "reason", "source", "effective", "started_at", *ENVIRONMENT]]
    told = (
        rows.drop_duplicates("cell_id")
        .set_index("cell_id")[["outcome", "reason", "source", "effective"]]
        .assign(
            comparable=comparable.groupby(cells["cell_id"]).any(),
            began=rows.dropna(subset="started_at").groupby("cell_id")["started_at"].min(),
        )
        .to_dict("index")
    )
    environments = _environments(rows)
    digest_cells = []
    for cell in grid:
        if (row := told.get(cell.id)) is None:
            continue
        content = cell_definition(study, cell, models).as_json()
        digest_cells.append(
            DigestCell(
                id=cell.id,
                outcome=str(row["outcome"]),
                reason=None if pd.isna(row["reason"]) else str(row["reason"]),
                comparable=bool(row["comparable"]),
                source=str(row["source"]),
                began=None if pd.isna(row["began"]) else str(row["began"]),
                content={name: value for name, value in content.items() if name not in NOT_CONTENT},
                environment=environments.get(cell.id, {}),
                effective={} if pd.isna(row["effective"]) else json.loads(row["effective"]),
                means=means.get(cell.id, []),
                label=words[cell.id],
            )
        )
    return Digest(
        study=study.name,
        settings=study.model_dump(mode="json", include=SETTINGS),
        cells=digest_cells,
    )


def _environments(rows: pd.DataFrame) -> dict[str, dict[str, list[str]]]:
    """For each cell, what is known of where and with what its rows were measured: values by column, sorted."""
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for name in ENVIRONMENT:
        known = rows[["cell_id", name]].dropna().drop_duplicates().sort_values(name)
        for cell, value in zip(known["cell_id"], known[name].map(str), strict=True):
            found[cell].setdefault(name, []).append(value)
    return found


def _means(summed: Summaries) -> dict[str, list[Mean]]:
    """The means of each cell that may be compared. If a cell has several environments, the first one counts."""
    means = defaultdict(list)
    for measure in MEASURES:
        summary, samples = summed(measure)
        mean, error = mean_errors(samples)
        first = summary.drop_duplicates("cell_id")
        values = np.stack([of[first["sample"]] for of in (mean, error.variance, error.df)], axis=-1)
        for cell, of_cell in zip(first["cell_id"], values.tolist(), strict=True):
            log_mean, squared_error, df = (finite(float(f"{value:.10g}")) for value in of_cell)
            found = {"measure": measure, "log_mean": log_mean, "squared_error": squared_error, "df": df}
            means[cell].append(Mean.model_validate(found))
    return means

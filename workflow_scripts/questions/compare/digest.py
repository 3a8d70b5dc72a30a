"""The digest of a study: all that a comparison with another study needs, a file among its tables.

It holds what was measured in each cell, with what, where and when.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import FailFast, Field, JsonValue, model_validator

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_bytes
from workflow_scripts.common.records import StrictRecord
from workflow_scripts.common.wording import finite
from workflow_scripts.statistics.comparisons import mean_errors
from workflow_scripts.study.definition import cell_definition, resolved_models
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.paths import DIGEST
from workflow_scripts.study.setting_words import labels
from workflow_scripts.study.study import Study
from workflow_scripts.tables.summary import RATE, Summaries, knob_columns

# Far beyond any rate or time, and near enough to 1 that no computation with them overflows.
_Log = Annotated[float, Field(ge=-300, le=300)]
# Far more measures, devices and versions than a cell has; the first fault is enough.
_MOST = 1000
_Texts = Annotated[list[str], FailFast()]


class Mean(StrictRecord):
    """One measure of a cell: the mean of its logarithms over starts, as `mean_errors` gives it."""

    measure: str
    log_mean: _Log
    squared_error: Annotated[float, Field(ge=0)] | None
    df: Annotated[float, Field(ge=0)] | None


class DigestCell(StrictRecord):
    """A cell. `content`: its weights and requests; `environment`: with what and where it was measured; `effective`: the
    settings that took effect, empty if not known; `label`: the settings in words that tell it from others of its study.

    `comparable`: whether it was measured as its study defines it. `began`: when its first repeat began, UTC.
    """

    id: str
    outcome: str
    reason: str | None
    comparable: bool
    source: str
    began: str | None
    content: dict[str, JsonValue]
    environment: Annotated[dict[str, _Texts], Field(max_length=_MOST)]
    effective: dict[str, JsonValue]
    means: Annotated[list[Mean], Field(max_length=_MOST), FailFast()]
    label: str | None = None

    @model_validator(mode="after")
    def _one_mean_of_a_measure(self) -> "DigestCell":
        if len({mean.measure for mean in self.means}) < len(self.means):
            raise ValueError("several means of one measure")
        return self


class Digest(StrictRecord):
    """All that a comparison of a study with another one needs."""

    version: Literal[1] = 1
    study: str
    settings: dict[str, JsonValue]
    cells: Annotated[list[DigestCell], FailFast()]

    @model_validator(mode="after")
    def _has_a_margin(self) -> "Digest":
        margin = self.settings.get("equivalence_margin_pct")
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 < margin <= 50:
            raise ValueError(f"settings.equivalence_margin_pct: a number above 0 and up to 50, not {margin!r}")
        return self

    @property
    def margin_pct(self) -> float:
        """The study's margin."""
        return float(self.settings["equivalence_margin_pct"])  # type: ignore[arg-type]  # see _has_a_margin

    @property
    def began(self) -> str | None:
        """When the first repeat began, UTC; None if not known."""
        return min((cell.began for cell in self.cells if cell.began), default=None)

    def judged(self) -> "Digest":
        """The run with the measures by which `--fail-if-worse` judges it: the rate of a cell, or its latencies if
        requests arrive at a rate."""

        def by(cell: DigestCell) -> DigestCell:
            rate = [mean for mean in cell.means if mean.measure == RATE]
            return cell.model_copy(update={"means": rate or [mean for mean in cell.means if mean.measure in JUDGED_BY]})

        return self.model_copy(update={"cells": list(map(by, self.cells))})


def read_digest(place: Path) -> Digest:
    """The digest of a study's results folder, of an unpacked archive, or the file itself.

    Raises:
        InputError: there is none, or what is there is not one.
    """
    if place.is_dir():
        candidates = [place / "tables" / DIGEST, *sorted(place.glob(f"results/*/tables/{DIGEST}"))]
        there = [path for path in candidates if path.is_file()]
        if len(there) != 1:
            what = f"holds {len(there)} studies; name one of their folders" if there else f"has no tables/{DIGEST}"
            raise InputError(
                f"{place}: {what}. Allowed: a study's folder below results/, an unpacked archive, a digest.json. "
                "`snakemake --config partial=1` writes the digest of what has been measured"
            )
        place = there[0]
    return Digest.of_json(read_bytes(place), f"{place}: not a digest")


# Columns of the cells table that say where and with what a cell was measured.
ENVIRONMENT = (
    *("host", "device_name", "device_uuid", "processor", "engine_version", "lock_sha256", "git_commit", "protocol"),
    "dtype",
)
# Fields of a cell's definition that a comparison may examine, or that are among its environment.
NOT_CONTENT = ("gpu", "engine", "knobs", "repeats", "protocol")
# By these the same cell of two studies is compared; of a cell whose requests arrive at a rate the rate has no mean.
JUDGED_BY = ("ttft_s_p50", "tpot_s_p50")
MEASURES = (RATE, *JUDGED_BY, "energy_j_per_output_token")
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
    rows = cells[counted]
    told = rows.drop_duplicates("cell_id").set_index("cell_id")[["outcome", "reason", "source", "effective"]]
    told = told.assign(
        comparable=comparable.groupby(cells["cell_id"]).any(),
        began=rows.dropna(subset="started_at").groupby("cell_id")["started_at"].min(),
    )
    fields: dict[Any, Any] = told.astype(object).where(told.notna(), None).to_dict("index")
    environments = _environments(rows)
    digest_cells = [
        DigestCell(
            **{**fields[cell.id], "effective": json.loads(fields[cell.id]["effective"] or "{}")},
            id=cell.id,
            content={
                name: value
                for name, value in cell_definition(study, cell, models).as_json().items()
                if name not in NOT_CONTENT
            },
            environment=environments.get(cell.id, {}),
            means=means.get(cell.id, []),
            label=words[cell.id],
        )
        for cell in grid
        if cell.id in fields
    ]
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
        values = np.stack([part[first["sample"]] for part in (mean, error.variance, error.df)], axis=-1)
        for cell, of_cell in zip(first["cell_id"], values.tolist(), strict=True):
            log_mean, squared_error, df = (finite(float(f"{value:.10g}")) for value in of_cell)
            found = {"measure": measure, "log_mean": log_mean, "squared_error": squared_error, "df": df}
            means[cell].append(Mean.model_validate(found))
    return means

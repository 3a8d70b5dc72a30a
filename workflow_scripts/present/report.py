"""The inputs of the page: the study, its tables, its figures, and the places of its files."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.files import last_line, read_json
from workflow_scripts.present.blocks import Absent, Block, Link
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.series import NAMES
from workflow_scripts.study.cell_status import status_of_starts
from workflow_scripts.study.paths import ENGINE_LOG, MEASURE_LOG, RAW, StudyPaths, start_folder
from workflow_scripts.study.progress import Progress, may_grow, progress
from workflow_scripts.study.setting_words import labels
from workflow_scripts.study.study import Study

REPORT = CHECKOUT / "report"


@dataclass(frozen=True)
class Report:
    """Everything that a section may show; `out` is the page itself, whose links lead to other files."""

    study: Study
    tables: Tables
    figures: Path
    cells: Path
    prepared: Path
    out: Path

    @cached_property
    def manifest(self) -> dict[str, dict[str, Any]]:
        """What `present.figures` says about each figure; empty if it has not run."""
        path = self.figures / "figures.json"
        return read_json(path) if path.exists() else {}

    @cached_property
    def grid(self) -> pd.DataFrame:
        """The cells of the study as in `Tables.grid`.

        The reason of a missing cell is the last line of its log; that of a measured cell names starts that failed.
        """
        grid = self.tables.grid
        logs = {cell: self.logs(cell)[-1] for cell in grid.loc[grid["outcome"] == "missing", "cell_id"]}
        said = {cell: last_line(log) for cell, log in logs.items() if log.exists()}
        reason = grid["reason"].where(grid["reason"].notna(), grid["cell_id"].map(said))
        return grid.assign(reason=reason.where(grid["failed_starts"].isna(), grid["failed_starts"]))

    def logs(self, cell_id: str, start: float = 1) -> tuple[Path, Path]:
        """The logs of the engine and of the measuring command, in a start of a cell; NaN is the first."""
        folder = self.cells / cell_id / (start_folder(int(start)) if start > 1 else "")
        return folder / RAW / ENGINE_LOG, folder / MEASURE_LOG

    @cached_property
    def labels(self) -> dict[str, str]:
        """For each cell, by its id, the settings in words that tell it from others."""
        return dict(zip(self.grid["cell_id"], labels(self.grid, self.tables.knobs), strict=True))

    @cached_property
    def settings(self) -> dict[str, str]:
        """For each slug of settings the settings in words."""
        return dict(zip(self.grid["knobs"], self.labels.values(), strict=True))

    @cached_property
    def names(self) -> dict[str, str]:
        """For each cell, by its id, what distinguishes it from others: device, engine, model, workload and settings."""
        differing = [name for name in NAMES if self.grid[name].nunique() > 1]
        places = map(", ".join, self.grid[differing].to_numpy(dtype=object))
        pairs = zip(self.labels.items(), places, strict=True)
        return {cell: f"{place}: {label}" if place else label for (cell, label), place in pairs}

    def named(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows, with cells and settings in words; the words for a cell of the study are a link to it."""
        rows = rows.copy()
        for name in {"knobs", "vllm_knobs", "hf_knobs"} & set(rows):
            rows[name] = rows[name].map(lambda slug: self.settings.get(slug, slug))
        for name, words in (("knobs", self.labels), ("cell_id", self.names)):
            if name in rows and "cell_id" in rows:
                each = zip(rows["cell_id"], rows[name], strict=True)
                links = [self.cell_link(cell, words[cell]) if cell in words else old for cell, old in each]
                rows[name] = pd.Series(links, index=rows.index, dtype=object)
        return rows

    def cell_link(self, cell_id: str, text: str = "") -> Link:
        """A link that opens a cell of the study in the page; its text is the cell's name, unless another is given."""
        return Link(f"#view=report&cell={quote(cell_id)}", text or self.names[cell_id])

    @cached_property
    def progress(self) -> Progress | None:
        """The study's progress now, from its cells' files; None if it is complete or the tables are of other files."""
        paths = StudyPaths(self.cells.parents[1], self.cells.parent.name)
        starts = self.tables.cells.groupby("cell_id")["start"].nunique()
        lacks = self.grid["outcome"].eq("missing").any() or (starts < self.study.starts.at_least).any()
        if not self.cells.is_dir() or not (lacks or may_grow(self.study, paths)):
            return None
        seen = progress(self.study, paths, status_of_starts(self.study, paths), time.time())
        cells = self.tables.cells
        held = cells[cells["comparable"].eq(True) & cells["outcome"].ne("missing")]
        known = len(held.drop_duplicates(["cell_id", "start"]))
        return None if seen.is_complete or seen.ended < known else seen

    def link(self, path: Path, text: str) -> Link | None:
        """A link from the page to a file, or None if the file is not there."""
        return Link(os.path.relpath(path, self.out.parent), text) if path.exists() else None


Part = Callable[[Report], Iterable[Block]]


def blocks_of(part: Part, report: Report) -> Iterator[Block]:
    """The blocks of a part; if something that it needs is missing, one block that says so."""
    try:
        yield from list(part(report))
    except MissingError as e:
        yield Absent("", str(e))

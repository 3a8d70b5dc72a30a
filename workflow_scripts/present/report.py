"""The inputs of the page: the study, its tables, its figures, and the places of its files."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.files import last_line, read_json
from workflow_scripts.present.blocks import Absent, Block, Link
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.study.cell_status import progress, status_of_starts
from workflow_scripts.study.paths import StudyPaths, start_folder
from workflow_scripts.study.progress import Progress, may_grow
from workflow_scripts.study.study_file import Study

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

        The reason of a missing cell is the last line of its log; that of a measured cell tells of starts that failed.
        """
        grid = self.tables.grid
        logs = {cell: self.logs(cell)[-1] for cell in grid.loc[grid["outcome"] == "missing", "cell_id"]}
        said = {cell: last_line(log) for cell, log in logs.items() if log.exists()}
        reason = grid["reason"].where(grid["reason"].notna(), grid["cell_id"].map(said))
        return grid.assign(reason=reason.where(grid["failed_starts"].isna(), grid["failed_starts"]))

    def logs(self, cell_id: str, start: float = 1) -> tuple[Path, Path]:
        """The logs of the engine and of the measuring command, in a start of a cell; NaN is the first."""
        folder = self.cells / cell_id / (start_folder(int(start)) if start > 1 else "")
        return folder / "raw" / "engine.log", folder / "measure.log"

    @cached_property
    def progress(self) -> Progress | None:
        """How far the study is now, as its cells' files say; None if it is complete, or the tables are not of them."""
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

    @cached_property
    def outcome_records(self) -> list[dict[str, Any]]:
        """`outcome.json` of one cell of each device and engine: the whole provenance."""
        ended = self.grid[self.grid["outcome"] != "missing"].drop_duplicates(["gpu", "engine"])
        paths = [self.cells / cell_id / "outcome.json" for cell_id in ended["cell_id"]]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


Part = Callable[[Report], Iterable[Block]]


def blocks_of(part: Part, report: Report) -> Iterator[Block]:
    """The blocks of a part; if it lacks something, one block that says what is absent."""
    try:
        yield from list(part(report))
    except MissingError as e:
        yield Absent("", str(e))

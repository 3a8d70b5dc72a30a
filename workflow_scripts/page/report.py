"""The report: its inputs, and the subjects of which it consists, with their figures, tables and sentences."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.columns import COLUMNS, column, unit_of
from workflow_scripts.common.files import read_json
from workflow_scripts.common.wording import listed, number, plural
from workflow_scripts.page.answers import Answer
from workflow_scripts.page.blocks import Absent, Block, Figure, Fold, Link, table_of
from workflow_scripts.page.kit import SIZES, Plot
from workflow_scripts.page.plot import inline, size_px
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import labels
from workflow_scripts.study.study import Study
from workflow_scripts.tables.results import MissingError, Tables, require

REPORT = CHECKOUT / "report"


@dataclass(frozen=True)
class Report:
    """Everything that a section may show; `out` is the page itself, whose links lead to other files."""

    study: Study
    tables: Tables
    figures: Path
    cells: Path
    out: Path

    @cached_property
    def manifest(self) -> dict[str, dict[str, Any]]:
        """What `present.figures` says about each figure; empty if it has not run."""
        path = self.figures / "figures.json"
        return read_json(path) if path.exists() else {}

    @cached_property
    def grid(self) -> pd.DataFrame:
        """The cells of the study as in `Tables.cells`.

        The reason of a missing cell is the last line of its log; that of a measured cell names starts that failed.
        """
        grid = self.tables.cells
        said = self._logs(last=True)["value"].reindex(grid.loc[grid["outcome"] == "missing", "cell_id"])
        last_lines = said.astype("string").str.rsplit("\n", n=1).str[-1].str.split().str.join(" ")
        reason = grid["reason"].where(grid["reason"].notna(), grid["cell_id"].map(last_lines))
        return grid.assign(reason=reason.where(grid["failed_starts"].isna(), grid["failed_starts"]))

    @cached_property
    def logs(self) -> pd.DataFrame:
        """By cell, the log of the engine of the start that is shown, or another if there is none: `what` is its place
        in the cell's folder, and `value` its end."""
        return self._logs(last=False)

    def _logs(self, *, last: bool) -> pd.DataFrame:
        """By cell, the first or the last of the logs of the start that is shown; that of the engine is the first."""
        rows = self.tables.get("provenance", "cell_id", "start", "what", "value")
        shown = self.tables.cells[["cell_id", "start"]].fillna({"start": 1})
        of_cells = shown.merge(rows, on=["cell_id", "start"]).groupby("cell_id", sort=False)
        return (of_cells.tail(1) if last else of_cells.head(1)).set_index("cell_id")

    @cached_property
    def labels(self) -> dict[str, str]:
        """For each cell, by its id, the settings that tell it from others of its engine, model and workload."""
        return dict(zip(self.grid["cell_id"], labels(self.grid, self.tables.knobs), strict=True))

    @cached_property
    def names(self) -> dict[str, str]:
        """For each cell, by its id, what distinguishes it from others: device, engine, model, workload and settings."""
        differing = [name for name in COORDINATES if self.grid[name].nunique() > 1]
        places = map(", ".join, self.grid[differing].to_numpy(dtype=object))
        pairs = zip(self.labels.items(), places, strict=True)
        return {cell: f"{place}: {label}" if place else label for (cell, label), place in pairs}

    def named(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows, with cells and settings in words; the words for a cell of the study are a link to it."""
        rows = rows.copy()
        for name, words in (("knobs", self.labels), ("cell_id", self.names)):
            if name in rows and "cell_id" in rows:
                each = zip(rows["cell_id"], rows[name], strict=True)
                links = [self.cell_link(cell, words[cell]) if cell in words else old for cell, old in each]
                rows[name] = pd.Series(links, index=rows.index, dtype=object)
        return rows

    def cell_link(self, cell_id: str, text: str = "") -> Link:
        """A link that opens a cell of the study in the page; its text is the cell's name, unless another is given."""
        return Link(f"#view=report&cell={quote(cell_id)}", text or self.names[cell_id])

    def cell_mark(self, cell_id: str, measure: str, told: Sequence[float], x: float, y: float) -> dict[str, Any]:
        """The mark of a cell at a place of a figure in pixels: the address that opens the cell, and its name with what
        the figure shows of it: the value of a measure with the ends of its interval."""
        usual = unit_of(measure)[1]
        unit, factor = unit_of(measure, told[0] / usual)
        value, *ends = (number(end * factor / usual) for end in told)
        words = f"{column(measure).in_words} " if measure in COLUMNS else ""
        interval = f" (95 % interval {' to '.join(ends)})" if ends else ""
        text = f"{self.names.get(cell_id, cell_id)}: {words}{value} {unit or 'times'}{interval}"
        return {"href": self.cell_link(cell_id, text).href, "text": text, "x": round(x, 1), "y": round(y, 1)}

    def link(self, path: Path, text: str) -> Link | None:
        """A link from the page to a file, or None if the file is not there."""
        return Link(os.path.relpath(path, self.out.parent), text) if path.exists() else None


Shown = Callable[[Report], Iterable[Block]]


def blocks_of(part: Shown, report: Report) -> Iterator[Block]:
    """The blocks of a part; if something that it needs is missing, one block that says so."""
    try:
        yield from list(part(report))
    except MissingError as e:
        yield Absent(str(e))


SHOWN_ROWS = 100
# Columns that most tables share: where a cell was measured, and how.
PLACE_HEADINGS: Mapping[str, str] = {"gpu": "Device", "engine": "Engine", "model": "Model", "workload": "Workload"}
CELL: Mapping[str, str] = {**PLACE_HEADINGS, "knobs": "Settings"}


Draw = Callable[[Tables], Plot]


def figure_of(draw: Draw, report: Report) -> Figure | Absent:
    """A figure as it was drawn, or why it was not; its name is that of the function that draws it."""
    name = draw.__name__
    facts = report.manifest.get(name, {"missing": "the figures were not drawn"})
    if "missing" in facts or not all((report.figures / f"{name}{kind}.svg").exists() for kind in SIZES):
        return Absent(facts.get("missing", f"there is no figure {name.replace('_', ' ')}"))
    return figure_in(report.figures, name, facts, caption_of(draw), report.cell_mark)


def figure_in(
    folder: Path, name: str, facts: Mapping[str, Any], shows: str, mark: Callable[..., dict[str, Any]] | None = None
) -> Figure:
    """A figure that `write_plot` has drawn into a folder, with the facts of its plot and what it shows; `mark` makes
    the mark of a cell from the cell, the measure, what is told, and its place in pixels."""
    drawn, sizes, marks = {}, {}, {}
    for kind in SIZES:
        path, which = folder / f"{name}{kind}.svg", kind.removeprefix(".")
        drawn[which], sizes[which] = inline(path), size_px(path)
        wide, high = sizes[which]
        of_kind = sorted(facts.get("marks", {}).get(kind, ()), key=itemgetter(3)) if mark else ()
        marks[which] = [mark(cell, measure, told, x * wide, y * high) for cell, measure, told, x, y in of_kind if mark]
    caption = f"{shows} Numbers are {listed(facts['sources'])}. {facts['note']}".strip()
    return Figure(name, facts["title"], drawn, sizes, marks, facts["alt"], caption)


def caption_of(draw: Callable[..., Plot]) -> str:
    """What a figure shows and how to read it: the text of the function that draws it."""
    return " ".join((draw.__doc__ or "").split())


@dataclass(frozen=True)
class TablePart:
    """The part that shows a table: `columns` (column -> heading) of its first `SHOWN_ROWS` rows, and a link to it.

    `keep` selects the rows of the source table; `rows` gives them if they are not in one table. Nothing is said of an
    `optional` table without any.
    """

    source: str
    columns: Mapping[str, str]
    caption: str
    keep: Callable[[pd.DataFrame], pd.DataFrame] = field(default=lambda rows: rows)
    rows: Callable[[Tables], pd.DataFrame] | None = None
    note: str = ""
    optional: bool = False

    def __call__(self, report: Report) -> Iterator[Block]:
        try:
            rows = self.rows(report.tables) if self.rows else self.keep(report.tables.need(self.source))
            require(rows, f"nothing to show of: {self.caption}")
        except MissingError:
            if self.optional:
                return
            raise
        few = f"{SHOWN_ROWS} of {len(rows):,} rows; the file holds all." if len(rows) > SHOWN_ROWS else ""
        whole = report.link(report.tables.folder / f"{self.source}.csv", f"{self.source}.csv")
        note = " ".join(filter(None, (few, self.note)))
        shown = table_of(report.named(rows.head(SHOWN_ROWS)), self.columns, self.caption, note, whole)
        yield Fold(f"{self.caption}: {plural(len(rows), 'row')}", [shown])


def of_cells(measures: Sequence[str], caption: str, needs: str = "") -> TablePart:
    """The part with measures of every cell that has any of them, or the one that it needs."""

    def rows(tables: Tables) -> pd.DataFrame:
        values = tables.values.reindex(columns=list(measures)).dropna(how="all", subset=needs or None)
        return tables.cells[["cell_id", *CELL]].merge(values, on="cell_id")

    return TablePart("intervals", {**CELL, **dict.fromkeys(measures, "")}, caption, rows=rows)


@dataclass(frozen=True)
class Subject:
    """One subject of the report; `id` is the address of its section in the page.

    Its section has one `sentence`, which answers its title, the first of its `figures`, and two folds: one with why
    is so and further figures, one with its `tables` and the published claims. Its `answers` stand on the first screen,
    in the order in which the study's question has words that `asked` (a pattern) finds. Only studies for which `is_in`
    holds have the section.
    """

    id: str
    title: str
    sentence: Callable[[Report], str] | None = None
    figures: Sequence[Draw] = ()
    why: Sequence[Shown] = ()
    tables: Sequence[Shown] = ()
    answers: Callable[[Report], Iterable[Answer]] | None = None
    asked: str = r"\Z"
    is_in: Callable[[Study], bool] = lambda study: True

    def asked_at(self, question: str) -> int | None:
        """Where the question asks for this subject; None if it does not."""
        found = re.search(self.asked, question, re.IGNORECASE)
        return found.start() if found and found.group() else None

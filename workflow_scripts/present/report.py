"""The inputs of the page: the study, its tables, its figures, and the places of its files."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.files import last_line, read_json
from workflow_scripts.present.blocks import Absent, Block, Figure, Fold, Link, table_of
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.svg import data_address, size_px
from workflow_scripts.study.study_file import Study

REPORT = CHECKOUT / "report"
CAPTIONS = REPORT / "captions"
MOST_ROWS = 100
MOST_OPEN_ROWS = 12


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
        """The cells of the study, one row each; the reason of a missing cell is the last line of its log."""
        grid = self.tables.cells.drop_duplicates("cell_id")
        logs = {cell: self.log(cell) for cell in grid.loc[grid["outcome"] == "missing", "cell_id"]}
        said = {cell: last_line(log) for cell, log in logs.items() if log.exists()}
        return grid.assign(reason=grid["reason"].where(grid["reason"].notna(), grid["cell_id"].map(said)))

    def log(self, cell_id: str) -> Path:
        """The log of measuring a cell."""
        return self.cells / cell_id / "measure.log"

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


def figure(name: str) -> Part:
    """The part that shows one figure with its caption."""

    def part(report: Report) -> Iterator[Block]:
        facts = report.manifest.get(name, {"missing": "the figures were not drawn"})
        wide, narrow = report.figures / f"{name}.svg", report.figures / f"{name}.column.svg"
        if "missing" in facts or not (wide.exists() and narrow.exists()):
            yield Absent(f"figure {name.replace('_', ' ')}", facts.get("missing", "its file is not there"))
            return
        width, height = size_px(wide)
        yield Figure(
            name=name,
            wide=data_address(wide),
            narrow=data_address(narrow),
            width_px=width,
            height_px=height,
            alt=facts["alt"],
            caption=caption_of(name),
            facts=figure_facts(facts),
        )

    return part


def caption_of(name: str) -> list[tuple[str, str]]:
    """Paragraphs of a figure's caption, each with its bold words at the beginning, if any."""
    text = (CAPTIONS / f"{name}.rst").read_text(encoding="utf-8")
    return [_split(" ".join(paragraph.split())) for paragraph in text.split("\n\n") if paragraph.strip()]


def _split(paragraph: str) -> tuple[str, str]:
    if not paragraph.startswith("**"):
        return "", paragraph
    lead, rest = paragraph.removeprefix("**").split("**", 1)
    return lead, rest.strip()


def figure_facts(facts: dict[str, Any]) -> str:
    """A sentence that says where a figure's numbers come from.

    >>> figure_facts({"sources": ["measured", "predicted"], "repeats": "3 repeats a cell", "notes": ["two are drawn"]})
    'Source: measured and predicted; 3 repeats a cell. Two are drawn.'
    """
    *others, last = facts["sources"]
    source = "Source: " + (f"{', '.join(others)} and {last}" if others else last)
    source += f"; {facts['repeats']}" if facts["repeats"] else ""
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in (source, *facts["notes"]))


def table(
    name: str, columns: dict[str, str], caption: str, keep: Callable[[pd.DataFrame], pd.DataFrame] | None = None
) -> Part:
    """The part that shows columns of a table's first `MOST_ROWS` rows, and links to the whole table."""

    def part(report: Report) -> Iterator[Block]:
        rows = report.tables.need(name)
        rows = keep(rows) if keep else rows
        if rows.empty:
            raise MissingError(f"the table {name} has no rows of: {caption}")
        note = f"{MOST_ROWS} of {len(rows)} rows; the file holds all." if len(rows) > MOST_ROWS else ""
        whole = report.link(report.tables.folder / f"{name}.csv", f"{name}.csv")
        shown = table_of(rows.head(MOST_ROWS), columns, caption, note, whole)
        yield shown if len(rows) <= MOST_OPEN_ROWS else Fold(f"{caption}: {len(rows)} rows", [shown])

    return part

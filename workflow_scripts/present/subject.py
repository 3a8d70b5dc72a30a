"""What a subject of the report consists of: its section, figures with captions, tables, and headline sentences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import plural
from workflow_scripts.present.blocks import Absent, Block, Figure, Fold, table_of
from workflow_scripts.present.plot import Plot, data_address, size_px
from workflow_scripts.present.report import REPORT, Part, Report
from workflow_scripts.present.report_tables import Tables, require
from workflow_scripts.study.study import Study

MOST_ROWS = 100
# Columns that most tables share: where a cell was measured, and how.
PLACE: Mapping[str, str] = {"gpu": "Device", "engine": "Engine", "model": "Model", "workload": "Workload"}
CELL: Mapping[str, str] = {**PLACE, "knobs": "Settings"}
REPEAT_COLUMNS: Mapping[str, str] = {"start": "Start", "repeat": "Repeat"}


@dataclass(frozen=True)
class FigurePart:
    """The part of a section that shows one figure; `plot` raises a MissingError if it lacks something.

    Its caption is in `report/captions`, by its name: what it shows, how to read it, and what it does not show.
    """

    plot: Callable[[Tables], Plot]

    @property
    def name(self) -> str:
        """The figure's name, which is that of the function that draws it."""
        return self.plot.__name__

    @property
    def caption(self) -> str:
        """The caption, as Snakemake's own report reads it."""
        return (REPORT / "captions" / f"{self.name}.rst").read_text(encoding="utf-8")

    @property
    def paragraphs(self) -> Sequence[tuple[str, str]]:
        """The paragraphs of the caption, each with its bold words at the beginning, if any."""
        parts = [" ".join(paragraph.split()).rpartition(":** ") for paragraph in self.caption.split("\n\n")]
        return [(f"{lead.removeprefix('**')}:" if lead else "", text) for lead, _, text in parts]

    def __call__(self, report: Report) -> Iterator[Block]:
        facts = report.manifest.get(self.name, {"missing": "the figures were not drawn"})
        wide, narrow = report.figures / f"{self.name}.svg", report.figures / f"{self.name}.column.svg"
        if "missing" in facts or not (wide.exists() and narrow.exists()):
            reason = facts.get("missing", "its file does not exist")
            yield Absent(f"figure {self.name.replace('_', ' ')}", reason)
            return
        yield Figure(
            self.name,
            wide=data_address(wide),
            narrow=data_address(narrow),
            wide_px=size_px(wide),
            narrow_px=size_px(narrow),
            alt=facts["alt"],
            caption=self.paragraphs,
            facts=figure_facts(facts),
        )


def figure_facts(facts: Mapping[str, Any]) -> str:
    """A sentence that says where a figure's numbers come from.

    >>> figure_facts({"sources": ["measured", "predicted"], "repeats": "3 repeats per cell", "notes": ["x is y"]})
    'Source: measured and predicted; 3 repeats per cell. X is y.'
    """
    *others, last = facts["sources"]
    source = "Source: " + (f"{', '.join(others)} and {last}" if others else last)
    source += f"; {facts['repeats']}" if facts["repeats"] else ""
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in (source, *facts["notes"]))


@dataclass(frozen=True)
class TablePart:
    """The part that shows a table: `columns` (column -> heading) of its first `MOST_ROWS` rows, and a link to the file.

    `keep` selects the rows, or computes them from the source table.
    """

    source: str
    columns: Mapping[str, str]
    caption: str
    keep: Callable[[pd.DataFrame], pd.DataFrame] = field(default=lambda rows: rows)

    def __call__(self, report: Report) -> Iterator[Block]:
        rows = self.keep(report.tables.need(self.source))
        require(rows, f"the table {self.source} has no rows for: {self.caption}")
        note = f"{MOST_ROWS} of {len(rows)} rows; the file holds all." if len(rows) > MOST_ROWS else ""
        whole = report.link(report.tables.folder / f"{self.source}.csv", f"{self.source}.csv")
        shown = table_of(report.named(rows.head(MOST_ROWS)), self.columns, self.caption, note, whole)
        yield Fold(f"{self.caption}: {plural(len(rows), 'row')}", [shown])


def first_rows(report: Report, rows: pd.DataFrame, columns: Mapping[str, str], caption: str, summary: str) -> Fold:
    """A table of the first `MOST_ROWS` rows below a line that says how many there are."""
    return Fold(f"{summary}: {len(rows)}", [table_of(report.named(rows.head(MOST_ROWS)), columns, caption)])


def several_starts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, without the column `start` if all are of the same one.

    >>> list(several_starts(pd.DataFrame({"start": [1, 1], "repeat": [0, 1]})))
    ['repeat']
    """
    return rows if rows["start"].nunique() > 1 else rows.drop(columns="start")


def medians_by_cell(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """One row per cell and value of the other `keys`: the medians of numbers, and the first value of other columns.

    >>> rows = pd.DataFrame({"cell_id": "a", "start": [1, 2], "repeat": 0, "mbu": [0.2, 0.4], "bound_by": "memory"})
    >>> medians_by_cell(rows).to_dict("records")
    [{'cell_id': 'a', 'mbu': 0.30000000000000004, 'bound_by': 'memory'}]
    """
    by = ["cell_id", *keys]
    others = [name for name in rows.columns if name not in {*by, *REPEAT_COLUMNS}]
    how = {name: "median" if pd.api.types.is_float_dtype(rows[name]) else "first" for name in others}
    return rows.groupby(by, sort=False, dropna=False).agg(how).reset_index()


@dataclass(frozen=True)
class Subject:
    """One subject of the report; `id` is the address of its section in the page.

    Its section begins with its `findings`, which are sentences from tables and texts that end them, and then shows its
    `parts`. Only studies for which `is_in` holds have the section.
    """

    id: str
    title: str
    parts: Sequence[Part] = ()
    findings: Sequence[Part] = ()
    is_in: Callable[[Study], bool] = lambda study: True

    @property
    def figures(self) -> Sequence[FigurePart]:
        return [part for part in self.parts if isinstance(part, FigurePart)]

"""The blocks of which sections consist, and which the page's template can write."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.columns import heading, unit_of
from workflow_scripts.common.wording import number
from workflow_scripts.tables.results import records

UNKNOWN = "–"
# Significant digits in tables.
DIGITS = 4
# A column with a longer text breaks its lines.
LONG = 20
# Columns of a single row that stand side by side.
MOST_ACROSS = 5
# Names of a row that a narrow window shows above its numbers.
_MOST_NAMES = 3


@dataclass(frozen=True)
class Text:
    """One paragraph."""

    text: str


@dataclass(frozen=True)
class Absent:
    """Why something that the report would show is missing."""

    reason: str


@dataclass(frozen=True)
class Figure:
    """A drawn figure by the kind of its size (wide: "", a `column`, the `first` screen): its elements, their sizes in
    pixels and the marks of cells in them, as `Report.cell_mark` makes them."""

    name: str
    title: str
    drawn: Mapping[str, str]
    sizes: Mapping[str, tuple[int, int]]
    marks: Mapping[str, Sequence[Mapping[str, Any]]]
    alt: str
    caption: str


@dataclass(frozen=True)
class Link:
    """A table cell with a link, such as to a file beside the page."""

    href: str
    text: str


@dataclass(frozen=True)
class Table:
    """Rows with headings. `numeric` says which columns hold numbers."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    numeric: Sequence[bool]
    note: str = ""
    link: Link | None = None

    @property
    def is_single(self) -> bool:
        """Whether it has one row, of so many columns that they are read better below each other."""
        return len(self.rows) == 1 and len(self.headings) > MOST_ACROSS

    @property
    def classes(self) -> list[str]:
        """The classes of each column: `number`; `long` if a text in it is; `name` if a narrow window shows it first, as
        it does with those few columns before the first number that tell the most rows apart.

        >>> Table("", ["Device", "Rate", "Settings"], [["a", "1", "x"], ["a", "2", "y"]], [False, True, False]).classes
        ['name', 'number', '']
        """
        count = range(len(self.numeric))
        columns = [[str(getattr(row[i], "text", row[i])) for row in self.rows] for i in count]
        leading = count[: max(1, [*self.numeric, True].index(True))]
        names = sorted(leading, key=lambda i: -len({*columns[i]}))[:_MOST_NAMES]
        kinds = []
        for i, (is_number, column) in enumerate(zip(self.numeric, columns, strict=True)):
            is_long = not is_number and max(map(len, column), default=0) > LONG
            kinds.append(" ".join(["number"] * is_number + ["long"] * is_long + ["name"] * (i in names)))
        return kinds


@dataclass(frozen=True)
class Fold:
    """Blocks below a line that shows and hides them."""

    summary: str
    blocks: Sequence[Any]


@dataclass(frozen=True)
class Command:
    """A command line to copy, with its purposes; empty if there is no command."""

    title: str
    command: str
    why: Sequence[str]


@dataclass(frozen=True)
class Definitions:
    """Words and their meanings."""

    entries: Sequence[tuple[str, str]]


Block = Text | Absent | Figure | Table | Fold | Command | Definitions


def shown(value: Any, column: str = "", largest: float = math.inf) -> str:
    """A value as the page writes it: in the unit of its column, with four digits, or a dash if it is not known.
    `largest` is the largest value of the column (`unit_of`).

    >>> shown(12345.678), shown(0.0123456), shown(2**31, "kv_bytes"), shown(None), shown(True)
    ('12,350', '0.01235', '2', '–', 'yes')
    """
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return UNKNOWN
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, int | float | np.number):
        return str(value)
    scaled = float(value) * unit_of(column, largest)[1]
    return f"{int(scaled):,}" if abs(scaled) < 1e15 and scaled == int(scaled) else number(scaled, DIGITS)


def outcome_words(outcome: object) -> str:
    """An outcome in a reader's words, as the page's views have them.

    >>> outcome_words("engine_error"), outcome_words("ok")
    ('engine error', 'measured')
    """
    return {"ok": "measured", "missing": "not run"}.get(str(outcome), str(outcome).replace("_", " "))


def table_of(
    rows: pd.DataFrame, columns: Mapping[str, str] | None, caption: str, note: str = "", link: Link | None = None
) -> Table:
    """A table of those `columns` of `rows` (column -> heading; None for all, as they are declared) with any value.

    Values and headings have the units of their columns. An interval, from the columns `*_low` and `*_high`, is written
    into the column of its value. What is the same in all rows appears only once, in the note.
    """
    numbers = {c for c in rows if pd.api.types.is_numeric_dtype(rows[c]) and not pd.api.types.is_bool_dtype(rows[c])}
    largest = {c: rows[c].max() for c in numbers}
    rows = with_intervals(rows)
    columns = columns or dict.fromkeys(map(str, rows), "")
    columns = {name: heading(name, words, largest.get(name, math.inf)) for name, words in columns.items()}
    used = {c: heading for c, heading in columns.items() if c in rows and rows[c].notna().any()}
    varied = [
        c for c in used if len(rows) == 1 or rows[c].nunique(dropna=False) > 1 or isinstance(rows[c].iloc[0], Link)
    ]
    alike = [c for c in used if varied and c not in varied]
    same = [f"{used.pop(c)} {shown(rows[c].iloc[0], c, largest.get(c, math.inf))}" for c in alike]
    if same:
        note = f"All rows: {'; '.join(same)}. {note}".strip()
    numeric = [c in numbers for c in used]
    body = [
        [value if isinstance(value, Link) else shown(value, c, largest.get(c, math.inf)) for c, value in row.items()]
        for row in records(rows[list(used)])
    ]
    return Table(caption, list(used.values()), body, numeric, note, link)


def with_intervals(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with each value that has an interval, or a bound, written as text together with it.

    >>> ends = {"ratio_low": [1.5, 1.5, None], "ratio_high": [2.5, None, 2.5]}
    >>> with_intervals(pd.DataFrame({"ratio": [2.0, 2.0, 2.0]} | ends))["ratio"].tolist()
    ['2 (1.5 to 2.5)', '2 (at least 1.5)', '2 (at most 2.5)']
    """
    measured = [c for c in map(str, rows) if {f"{c}_low", f"{c}_high"} <= set(rows)]
    texts = {
        c: [
            shown(value, c, top) + _ends(shown(low, c, top), shown(high, c, top))
            for value, low, high in zip(rows[c], rows[f"{c}_low"], rows[f"{c}_high"], strict=True)
        ]
        for c in measured
        if rows[[f"{c}_low", f"{c}_high"]].notna().any(axis=None)
        for top in [rows[c].max()]
    }
    return rows.assign(**texts)


def _ends(low: str, high: str) -> str:
    if UNKNOWN not in (low, high):
        return f" ({low} to {high})"
    return f" (at least {low})" if low != UNKNOWN else f" (at most {high})" if high != UNKNOWN else ""

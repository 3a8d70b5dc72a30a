"""CSV whose texts a spreadsheet does not read as formulas; CSV files and Markdown tables as rows of plain values, for
commands that start without pandas."""

import csv
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import bounded, read_text

if TYPE_CHECKING:
    import pandas as pd

Text = TypeVar("Text")
Value = bool | int | float | str | None
Fields = dict[str, Value]

_MOST_ROWS, MOST_COLUMNS = 10_000, 1_000
# What tables write for no value, as pandas reads them.
_NULLS = ("", "-", "--", "–", "—", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "<NA>")

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_QUOTED = re.compile(r"'+[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?", re.IGNORECASE)


def read_rows(path: Path) -> tuple[list[str], list[Fields]]:
    """Names of the columns, and the rows, of a CSV or a Markdown table.

    A column of only numbers, or of true and false, has such values. None is a field without a value. The second column
    of one name gets the name with `.1`.

    Raises:
        InputError: the file cannot be opened, is not a CSV table in UTF-8, or is larger than `_MOST_ROWS` and
            `MOST_COLUMNS` allow.
    """
    try:
        text = read_text(path)
    except OSError as e:
        raise InputError(f"{path}: {e.strerror}") from None
    try:
        return _rows(text)
    except (ValueError, csv.Error) as e:
        raise InputError(f"{path}: not a CSV table: {' '.join(str(e).split())}") from None


def _rows(text: str) -> tuple[list[str], list[Fields]]:
    lines = text.splitlines()
    # The line below the names, with or without strokes at its ends.
    rules = [i for i, line in enumerate(lines) if re.fullmatch(r"\s*+\|?(\s*+:?-++:?\s*+\|)++(\s*+:?-++:?\s*+)?", line)]
    if len(rules) > 1:
        raise ValueError(f"it has {len(rules)} tables (at lines {', '.join(map(str, rules))}): keep one")
    if rules:
        table = _markdown(lines[max(rules[0] - 1, 0) :])
    else:
        separator = max(",;\t", key=text.partition("\n")[0].count)
        read = csv.reader(text.splitlines(True), delimiter=separator)
        table = [[_plain(as_written(field)) for field in row] for row in read if row]
    if not table:
        raise ValueError("it has no columns")
    names, *rows = table
    if len(rows) > _MOST_ROWS or len(names) > MOST_COLUMNS:
        raise ValueError(f"{len(rows)} rows, {len(names)} columns; allowed: {_MOST_ROWS} rows, {MOST_COLUMNS} columns")
    for number, row in enumerate(rows, start=1):
        if len(row) > len(names):
            raise ValueError(f"row {number} has {len(row)} fields, and {len(names)} columns have a name")
    names = [f"{name}.{count}" if (count := names[:i].count(name)) else name for i, name in enumerate(names)]
    columns = [_typed([row[i] if i < len(row) else "" for row in rows]) for i in range(len(names))]
    return names, [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _markdown(lines: Sequence[str]) -> list[list[str]]:
    """The table that these lines begin with; it ends at the first line without a stroke."""
    rows = [line.rstrip() for line in takewhile(lambda line: "|" in line, lines) if re.search(r"[^-:|\s]", line)]
    if all(row.lstrip().startswith("|") for row in rows):
        rows = [row.lstrip()[1:].removesuffix("|") for row in rows]
    return [[_plain(cell) for cell in row.split("|")] for row in rows]


def _plain(text: str) -> str:
    """A value without the markup of Markdown and HTML.

    >>> _plain("**`4,036`**"), _plain("<b>H200</b><sup>1</sup> ")
    ('4,036', 'H200')
    """
    return re.sub(r"<(su[pb])>[^<>]*</\1>|<[^<>]*>", "", text).strip("*` \t")


def _typed(texts: Sequence[str]) -> Sequence[Value]:
    """The values of a column.

    >>> _typed(["1", ""]), _typed(["1", "2.5"]), _typed(["1", "~2"])
    ([1, None], [1.0, 2.5], ['1', '~2'])
    """
    given = [None if text.strip() in _NULLS else text for text in texts]
    if {text.lower() for text in given if text} <= {"true", "false"} and any(given):
        return [text and text.lower() == "true" for text in given]
    for kind in (int, float):
        try:
            return [None if text is None else bounded(kind(text)) for text in given]
        except ValueError:
            continue
    return given


def as_text(value: Text) -> Text | str:
    """A text with an apostrophe in front if a spreadsheet would read it as a formula, and everything else unchanged.

    >>> [as_text(value) for value in ("=1+1", "-bs32", "-1.5e-3", "'=1", "bs32", -2, None)]
    ["'=1+1", "'-bs32", '-1.5e-3', "''=1", 'bs32', -2, None]
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def as_written(value: Text) -> Text | str:
    """What `as_text` was given.

    >>> [as_written(value) for value in ("'=1+1", "-1.5e-3", "''=1", "'bs32'", None)]
    ['=1+1', '-1.5e-3', "'=1", "'bs32'", None]
    """
    return value[1:] if isinstance(value, str) and _QUOTED.match(value) else value


def with_texts(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The table with `as_text` of its texts and of the names of its columns, for a CSV."""
    changed: dict[str, pd.Series] = {}
    for name, column in frame.select_dtypes(["object", "string", "category"]).items():
        texts = {value: text for value in column.dropna().unique() if (text := as_text(value)) != value}
        if texts:
            changed[str(name)] = column.astype("object").replace(texts)
    return frame.assign(**changed).rename(columns=as_text)

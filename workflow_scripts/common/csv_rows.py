"""CSV files and Markdown tables as rows of plain values, for commands that start without pandas."""

import csv
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from workflow_scripts.common.csv_text import as_written
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import bounded, read_text

Value = bool | int | float | str | None
Fields = dict[str, Value]

MOST_ROWS, MOST_COLUMNS = 10_000, 1_000
# What tables write for no value, as pandas reads them.
_NULLS = ("", "-", "--", "–", "—", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "<NA>")


def read_rows(path: Path) -> tuple[list[str], list[Fields]]:
    """Names of the columns, and the rows, of a CSV or a Markdown table.

    A column of only numbers, or of true and false, has such values. None is a field without a value. The second column
    of one name gets the name with `.1`.

    Raises:
        InputError: the file cannot be opened, is not a CSV table in UTF-8, or is larger than `MOST_ROWS` and
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
    if len(rows) > MOST_ROWS or len(names) > MOST_COLUMNS:
        raise ValueError(f"{len(rows)} rows, {len(names)} columns; allowed: {MOST_ROWS} rows, {MOST_COLUMNS} columns")
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

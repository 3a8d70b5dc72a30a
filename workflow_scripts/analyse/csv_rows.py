"""CSV files and Markdown tables as rows of plain values, for commands that start without pandas."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from workflow_scripts.common.faults import InputError

Value = bool | int | float | str | None
Row = dict[str, Value]

# What tables write for no value, as pandas reads them.
_NULLS = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A", "<NA>")


def read_rows(path: Path, fault: type[InputError]) -> tuple[list[str], list[Row]]:
    """Names of the columns, and the rows, of a CSV or a Markdown table.

    A column of only numbers, or of true and false, has such values. None is a field without a value. The second column
    of one name gets the name with `.1`.

    Raises:
        fault: the file cannot be opened, or is not a CSV table in UTF-8.
    """
    try:
        return _rows(path)
    except OSError as e:
        raise fault(f"{path}: {e.strerror}") from None
    except (ValueError, csv.Error) as e:
        raise fault(f"{path}: not a CSV table: {' '.join(str(e).split())}") from None


def _rows(path: Path) -> tuple[list[str], list[Row]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        found = [row for row in csv.reader(lines) if row]
        table = found if not found or not found[0][0].lstrip().startswith("|") else _markdown(lines)
    if not table:
        raise ValueError("it has no columns")
    names, *rows = table
    for number, row in enumerate(rows, start=1):
        if len(row) > len(names):
            raise ValueError(f"row {number} has {len(row)} fields, and {len(names)} columns have a name")
    names = [f"{name}.{count}" if (count := names[:i].count(name)) else name for i, name in enumerate(names)]
    columns = [_typed([row[i] if i < len(row) else "" for row in rows]) for i in range(len(names))]
    return names, [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _markdown(lines: TextIO) -> list[list[str]]:
    lines.seek(0)
    table = [[cell.strip().strip("*`") for cell in line.strip().strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in table if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]


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
            return [None if text is None else kind(text) for text in given]
        except ValueError:
            continue
    return given

"""CSV whose texts a spreadsheet does not read as formulas."""

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pandas as pd

Value = TypeVar("Value")

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_QUOTED = re.compile(r"'+[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?", re.IGNORECASE)


def as_text(value: Value) -> Value | str:
    """A text with an apostrophe in front if a spreadsheet would read it as a formula, and everything else unchanged.

    >>> [as_text(value) for value in ("=1+1", "-bs32", "-1.5e-3", "'=1", "bs32", -2, None)]
    ["'=1+1", "'-bs32", '-1.5e-3', "''=1", 'bs32', -2, None]
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def as_written(value: Value) -> Value | str:
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

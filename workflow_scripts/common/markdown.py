"""Tables in Markdown."""

import re
from collections.abc import Iterable, Sequence

from workflow_scripts.common.printable import printable


def rows_of(headings: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[bool] = ()) -> list[str]:
    """The lines of a table; columns of numbers are aligned to the right.

    >>> rows_of(["GPU", "tok/s"], [["H200", "9 | 8"]], [False, True])
    ['| GPU | tok/s |', '| --- | ---: |', '| H200 | 9 \\\\| 8 |']
    """
    rules = ["---:" if is_number else "---" for is_number in numeric] or ["---"] * len(headings)
    written = [[cell(str(value)) for value in row] for row in (headings, *rows)]
    return [f"| {' | '.join(row)} |" for row in (written[0], rules, *written[1:])]


def cell(text: str) -> str:
    """Text in a table, with all of its special characters escaped.

    >>> print(cell("a|b <img src=x>\\nc [d](https://e) `f` g\\\\"))
    a\\|b &lt;img src=x> c \\[d\\](https://e) \\`f\\` g\\\\
    """
    escaped = re.sub(r"[\\|`*\[\]]", r"\\\g<0>", printable(" ".join(text.splitlines())))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")

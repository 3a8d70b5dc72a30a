"""That a quantity has one label and one unit wherever people see it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.columns import COLUMNS

DRAWS = [
    *(path for part in ("page", "present") for path in (CHECKOUT / "workflow_scripts" / part).glob("*.py")),
    *(CHECKOUT / "workflow_scripts/questions").glob("*/*.py"),
    *(CHECKOUT / "report/page").glob("*.js"),
]
# A unit as axes and headings have it.
UNIT = re.compile(r"\((?:m?s|[MG]i?B|%|W|J|J/token|MHz|tokens/s|requests/s|GB/s|TFLOP/s)\)|\bper s\b")


def texts(path: Path) -> Iterator[str]:
    """The texts in a source: constants of Python except docstrings, and those in quotes of JavaScript."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        yield from re.findall(r'["`]([^"`\n]*)["`]', source)
        return
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.value


@pytest.mark.parametrize("path", DRAWS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_label_and_no_unit_is_written_a_second_time(path):
    labels = {of.label for of in COLUMNS.values() if " " in of.label}
    assert [text for text in texts(path) if text in labels or UNIT.search(text)] == []

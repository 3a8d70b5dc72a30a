"""The packages of the pipeline: no two modules share a name, and each package says what it contains."""

import ast
from collections import Counter

from workflow_scripts.common.checkout import CHECKOUT

MODULES = sorted((CHECKOUT / "workflow_scripts").rglob("*.py"))


def test_no_two_modules_share_a_name() -> None:
    packages = [path.parent.name for path in MODULES if path.name == "__init__.py"]
    names = Counter([path.stem for path in MODULES if path.name != "__init__.py"] + packages)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_module_says_what_it_holds() -> None:
    assert [str(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))] == []

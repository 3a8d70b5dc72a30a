"""The package's regular expressions, and texts that each of them may be slow to search: what it repeats, after what
comes before it, many times, with an end that does not match."""

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import workflow_scripts

parser: Any = re._parser  # type: ignore[attr-defined]  # how the standard library reads a pattern

PACKAGE = Path(workflow_scripts.__file__).parent
AT_START = {"match", "fullmatch"}
METHODS = AT_START | {"search", "finditer", "findall", "split", "sub", "subn"}
_OF_CLASS = {"CATEGORY_DIGIT": "1", "CATEGORY_WORD": "a", "CATEGORY_SPACE": " \n"}


@cache
def patterns() -> dict[str, tuple[re.Pattern[str], bool]]:
    """Patterns in the constants of modules, and in calls of `re`; whether each is only tried at the start of a text."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    used: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for path, node in nodes:
        if isinstance(node, ast.Attribute):
            name = getattr(node.value, "id", "") or getattr(node.value, "attr", "")
            used[str(path) if name.startswith("_") else "", name].add(node.attr)
    found: dict[str, tuple[re.Pattern[str], bool]] = {}

    def note(key: tuple[str, str], held: Any, depth: int = 0) -> None:
        if isinstance(held, re.Pattern) and isinstance(held.pattern, str):
            how = used[key] & METHODS
            found.setdefault(held.pattern, (held, bool(how) and how <= AT_START))
        elif depth < 4 and isinstance(held, dict | list | tuple | set | frozenset):
            for each in (*held, *(held.values() if isinstance(held, dict) else ())):
                note(("", ""), each, depth + 1)

    for module in pkgutil.walk_packages(workflow_scripts.__path__, "workflow_scripts."):
        with suppress(ImportError):
            imported = importlib.import_module(module.name)
            for name, held in vars(imported).items():
                note((str(imported.__file__) if name.startswith("_") else "", name), held)
    for _, call in nodes:
        match call:
            case ast.Call(ast.Attribute(ast.Name("re"), how), [ast.Constant(str(pattern)), *_]) if how != "escape":
                found.setdefault(pattern, (re.compile(pattern), how in AT_START))
    return found


def sample(tree: Any) -> str:
    """A text that a pattern matches, or nearly."""
    return "".join(_sample(operation, value) for operation, value in tree)


def _sample(operation: Any, value: Any) -> str:
    match str(operation):
        case "LITERAL":
            return chr(value)
        case "IN":
            return characters(value)[0]
        case "ANY" | "NOT_LITERAL":
            return "a"
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return sample(value[2]) * max(1, min(value[0], 20))
        case "SUBPATTERN":
            return sample(value[3])
        case "ATOMIC_GROUP":
            return sample(value)
        case "BRANCH":
            return sample(value[1][0])
        case "ASSERT" if value[0] < 0:
            return sample(value[1])
    return ""


def characters(members: Any) -> str:
    """Characters of a class: one of each part, if it is not what the class leaves out."""
    if str(members[0][0]) == "NEGATE":
        return "a 1\n"
    parts = ((str(operation), value) for operation, value in members)
    texts = (
        chr(value) if how == "LITERAL" else chr(value[0]) if how == "RANGE" else _OF_CLASS.get(str(value), "-")
        for how, value in parts
    )
    return "".join(texts)


def repeats(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """What a pattern repeats, with a text that leads to it."""
    for operation, value in tree:
        match str(operation):
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                (inner, *more) = value[2]
                single = not more and str(inner[0]) == "IN"
                yield from ((before, unit) for unit in (characters(inner[1]) if single else [sample(value[2])]))
                yield from repeats(value[2], before)
            case "SUBPATTERN":
                yield from repeats(value[3], before)
            case "ATOMIC_GROUP":
                yield from repeats(value, before)
            case "BRANCH":
                for branch in value[1]:
                    yield before, sample(branch)
                    yield from repeats(branch, before)
            case "ASSERT" | "ASSERT_NOT":
                yield from repeats(value[1], before)
        before += _sample(operation, value)
    yield "", before


def texts(pattern: re.Pattern[str], length: int) -> Iterator[str]:
    made = dict.fromkeys(found for found in repeats(parser.parse(pattern.pattern, pattern.flags)) if found[1])
    for before, unit in made:
        yield before + unit * (length // len(unit)) + "\x01"
        yield (before + unit) * (length // len(before + unit)) + "\x01"
        yield before + (unit + " ") * (length // len(unit + " ")) + "\x01"

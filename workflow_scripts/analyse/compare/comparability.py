"""Whether a cell of one study may be compared with the same cell of another one, and if not, why.

Two cells may differ in what a comparison examines: host, device, processor, versions, and the settings that an engine
chooses because of these. They may not differ in what the study specifies: weights, requests, protocol. Each rule gives
a sentence. `report/page/comparability.js` has the same rules for the page; a test compares the two.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from workflow_scripts.analyse.cells.cells import SIMULATED
from workflow_scripts.analyse.compare.digest import Digest, DigestCell

# Maximum number of differing weights or requests that a sentence names.
MOST_NAMED = 3


@dataclass(frozen=True)
class Side:
    """A cell with what its digest says about it."""

    cell: DigestCell
    content: dict[str, Any]
    environment: dict[str, list[str]]
    effective: dict[str, Any]


class Difference(NamedTuple):
    """A value that differs between two records, by the path of its keys."""

    path: str
    a: Any
    b: Any


def side(digest: Digest, cell: DigestCell) -> Side:
    """A cell with its content, environment and effective settings, empty where they are not known."""

    def at(values: list[Any], place: int) -> dict[str, Any]:
        return values[place] if place >= 0 else {}

    return Side(
        cell,
        at(digest.contents, cell.content),
        at(digest.environments, cell.environment),
        at(digest.effective, cell.effective),
    )


def differences(a: Any, b: Any, path: str = "") -> Iterator[Difference]:
    """Where two JSON values differ, in the order of their keys; a missing value is None.

    >>> [tuple(d) for d in differences({"x": {"y": 1, "z": [1, 2]}}, {"x": {"z": [1, 3]}, "w": "new"})]
    [('w', None, 'new'), ('x.y', 1, None), ('x.z.1', 2, 3)]
    """
    if isinstance(a, list) and isinstance(b, list):
        a, b = ({str(place): value for place, value in enumerate(values)} for values in (a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            yield from differences(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif a != b or isinstance(a, bool) != isinstance(b, bool):
        yield Difference(path, a, b)


def value_text(value: Any) -> str:
    """A value as it appears in a sentence.

    >>> [value_text(value) for value in (None, True, 32.0, 0.6, "bfloat16", -0.0, 1e16, 1e-5)]
    ['nothing', 'true', '32', '0.6', 'bfloat16', '0', '1e+16', '1e-05']
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value + 0.0:.15g}"  # + 0.0 turns -0 into 0
    return value if isinstance(value, str) else "other values"


def _not_defined(a: Side, b: Side) -> str | None:
    sides = [name for name, of in (("A", a), ("B", b)) if not of.cell.comparable]
    return f"in {' and '.join(sides)} it was measured with another definition than the study's" if sides else None


def _source(a: Side, b: Side) -> str | None:
    if a.cell.source != b.cell.source:
        return f"its numbers are {a.cell.source} in A and {b.cell.source} in B"
    return "its numbers are simulated and say nothing about a GPU" if a.cell.source == SIMULATED else None


def _unlike(name: str, words: str, a: Side, b: Side) -> str | None:
    values = [", ".join(of.environment.get(name, ["an unknown one"])) for of in (a, b)]
    return words.format(*values) if values[0] != values[1] else None


def _several(a: Side, b: Side) -> str | None:
    for name, words in (("lock_sha256", "locks"), ("processor", "processors")):
        for letter, of in (("A", a), ("B", b)):
            if len(of.environment.get(name, [])) > 1:
                return f"in {letter} its starts were measured with several {words}"
    return None


def _content(a: Side, b: Side) -> str | None:
    found = list(differences(a.content, b.content))
    if not found:
        return None
    named = [f"{d.path} is {value_text(d.a)} in A and {value_text(d.b)} in B" for d in found[:MOST_NAMED]]
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"weights or requests differ: {'; '.join(named)}{more}"


def _same(a: Side, b: Side) -> str | None:
    one, other = ((of.cell.began, of.environment.get("host")) for of in (a, b))
    return "A and B hold the same measurement of it" if a.cell.began is not None and one == other else None


# Each rule gives a sentence, or None if it allows the comparison.
Rule = Callable[[Side, Side], str | None]
RULES: tuple[Rule, ...] = (
    _not_defined,
    _source,
    partial(_unlike, "protocol", "it was measured by protocol {} in A and {} in B"),
    _content,
    partial(_unlike, "dtype", "it was computed in {} in A and in {} in B"),
    _several,
    _same,
)


def why_not(a: Side, b: Side) -> list[str]:
    """Every reason not to compare two cells, or only their outcomes if these differ; empty if they may be compared."""
    rules = RULES if a.cell.outcome == b.cell.outcome else (_source, _content)
    return [why for rule in rules if (why := rule(a, b)) is not None]

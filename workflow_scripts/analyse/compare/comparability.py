"""Whether a cell of one study may be compared with the same cell of another one, and if not, why.

Two cells may differ in what a comparison examines: host, device, processor, versions, and the settings that an engine
chooses because of these. They may not differ in what the study specifies: weights, requests, protocol.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from workflow_scripts.analyse.cells.cells import SIMULATED
from workflow_scripts.analyse.compare.digest import DigestCell

# Maximum number of differing weights or requests that a sentence names.
MOST_NAMED = 3


class Difference(NamedTuple):
    """A value that differs between two records, by the path of its keys."""

    path: str
    a: Any
    b: Any


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


def why_not(a: DigestCell, b: DigestCell) -> list[str]:
    """Every reason not to compare two cells, or only their outcomes if these differ; empty if they may be compared."""
    reasons = _reasons(a, b) if a.outcome == b.outcome else (_source(a, b), _content(a, b))
    return [why for why in reasons if why]


def _reasons(a: DigestCell, b: DigestCell) -> Iterator[str | None]:
    sides = (("A", a), ("B", b))
    if undefined := [name for name, of in sides if not of.comparable]:
        yield f"in {' and '.join(undefined)} it was measured with another definition than the study's"
    yield _source(a, b)
    yield _unlike("protocol", "it was measured by protocol {} in A and {} in B", a, b)
    yield _content(a, b)
    yield _unlike("dtype", "it was computed in {} in A and in {} in B", a, b)
    kinds = (("lock_sha256", "locks"), ("processor", "processors"))
    several = [(name, words) for key, words in kinds for name, of in sides if len(of.environment.get(key, [])) > 1]
    if several:
        yield "in {} its starts were measured with several {}".format(*several[0])
    if a.began is not None and (a.began, a.environment.get("host")) == (b.began, b.environment.get("host")):
        yield "A and B hold the same measurement of it"


def _source(a: DigestCell, b: DigestCell) -> str | None:
    if a.source != b.source:
        return f"its numbers are {a.source} in A and {b.source} in B"
    return "its numbers are simulated and say nothing about a GPU" if a.source == SIMULATED else None


def _unlike(name: str, words: str, *cells: DigestCell) -> str | None:
    values_a, values_b = (", ".join(of.environment.get(name, ["an unknown one"])) for of in cells)
    return words.format(values_a, values_b) if values_a != values_b else None


def _content(a: DigestCell, b: DigestCell) -> str | None:
    clauses = [
        f"{d.path} is {value_text(d.a)} in A and {value_text(d.b)} in B" for d in differences(a.content, b.content)
    ]
    more = [f"and {len(clauses) - MOST_NAMED} more"] if len(clauses) > MOST_NAMED else []
    return f"weights or requests differ: {'; '.join(clauses[:MOST_NAMED] + more)}" if clauses else None

"""Where two records, or many pairs of records, differ."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import JsonValue

from workflow_scripts.common.records import Record


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
    ['not set', 'true', '32', '0.6', 'bfloat16', '0', '1e+16', '1e-05']
    >>> value_text({"ttft_s": 1.0, "tokens": [8, 16]})
    'ttft_s: 1, tokens: 8, 16'
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value + 0.0:.15g}"  # + 0.0 turns -0 into 0
    if isinstance(value, dict):
        return ", ".join(f"{name}: {value_text(item)}" for name, item in value.items())
    return ", ".join(map(value_text, value)) if isinstance(value, list) else str(value)


class Different(Record):
    """Something that differs between A and B: the first pair of values, in how many cells it differs, and how
    many other pairs of values they have."""

    what: str
    a: JsonValue
    b: JsonValue
    cells: int
    others: int


def counted(all_differences: Iterable[Difference]) -> list[Different]:
    """What differs in any of several pairs of records, by its path."""
    values = defaultdict(list)
    for what, a, b in all_differences:
        values[what].append((a, b))
    return [
        Different(
            what=what,
            a=pairs[0][0],
            b=pairs[0][1],
            cells=len(pairs),
            others=len({(value_text(a), value_text(b)) for a, b in pairs}) - 1,
        )
        for what, pairs in values.items()
    ]

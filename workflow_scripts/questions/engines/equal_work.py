"""Whether cells of two engines did equal work in one environment, so that they may be compared."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.engines.registry import every_knob
from workflow_scripts.questions.comparisons.pairs import WORK
from workflow_scripts.statistics.summary import Row, records

# Knobs that change what is computed, in how many steps or on how many devices, with their neutral values.
_UNEQUAL = {f"knob_{name}": knob.neutral for name, knob in every_knob().items() if knob.neutral is not None}


def why_unequal(rows: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """For each of the `pairs` of rows what makes their work or their environment unequal; None if nothing does."""
    cells = dict(zip(rows.index, records(rows), strict=True))
    faults = {row: list(_faults(cells[row])) for row in {*pairs["a"], *pairs["b"]}}
    each = zip(pairs["a"], pairs["b"], strict=True)
    reasons = [[*_apart(cells[a], cells[b]), *faults[b], *faults[a], *_amounts(cells[a], cells[b])] for a, b in each]
    return pd.Series(["; ".join(dict.fromkeys(of)) or None for of in reasons], pairs.index, dtype="string")


def _faults(cell: Row) -> Iterator[str]:
    """What forbids to compare a cell with one of another engine."""
    for name in WORK:
        if not cell[f"{name}_values"]:
            yield f"{name} is not known"
        elif cell[f"{name}_values"] > 1:
            yield f"{name} differs between repeats"
    for knob, equal in _UNEQUAL.items():
        if not pd.isna(cell.get(knob)) and cell[knob] not in equal:
            yield f"{knob.removeprefix('knob_')} {cell[knob]} on one side"


def _apart(a: Row, b: Row) -> Iterator[str]:
    for name, words in (("lock_sha256", "environments differ: lock"), ("processor", "processors differ:")):
        values = {str(of[name])[:12] if name == "lock_sha256" else str(of[name]) for of in (a, b)}
        if len(values) > 1:
            yield f"the {words} {' against '.join(sorted(values))}"


def _amounts(a: Row, b: Row) -> Iterator[str]:
    for name in WORK:
        if a[f"{name}_values"] == b[f"{name}_values"] == 1 and a[name] != b[name]:
            yield f"{name} differs: {b[name]:g} against {a[name]:g}"

"""Colours and marks of all figures: one place, so that a device looks the same in every figure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle

# Readers with common colour-vision deficiencies can tell them apart, and their contrast to white and to the dark page
# is at least 3:1; devices also differ by their marks.
COLOURS = ("#0173b2", "#d55e00", "#029e73", "#9944ee", "#aa88aa", "#cc7744", "#ee44dd", "#cc0044")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")

# These four change when the page is dark, so no other part of a figure may have exactly these colours.
INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d8dee4", "#fefefe"
DARK: Mapping[str, str] = {INK: "#e6edf3", MUTED: "#9aa4af", GRID: "#343b44", PAPER: "#14181d"}

OUTCOMES: Mapping[str, tuple[str, str]] = {
    # outcome -> colour, and the sign with the same meaning
    "ok": ("#029e73", ""),
    "infeasible": ("#9944ee", "×"),
    "timeout": ("#aa88aa", "T"),
    "engine_error": ("#d55e00", "!"),
    "invalid": ("#0173b2", "?"),
    "unknown": ("#e0c000", "~"),
    "missing": (PAPER, "–"),
}

LineStyle = str | tuple[float, tuple[float, ...]]


@dataclass(frozen=True)
class Mark:
    """How one device or engine is drawn, wherever it appears."""

    color: str
    marker: str


def marks(names: Iterable[str]) -> dict[str, Mark]:
    """A mark for each name, in the given order; with more names than colours, colour and mark together still differ.

    >>> marks(["h200", "l40s"])["l40s"].marker
    's'
    """
    pairs = zip(cycle(COLOURS), cycle(MARKERS), strict=False)
    return {name: Mark(*pair) for name, pair in zip(dict.fromkeys(names), pairs, strict=False)}

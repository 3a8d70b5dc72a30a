"""Which cells the next round of a study measures: those of comparisons that it may decide, the cheapest first.

The first rounds, up to the study's minimum number of starts, measure every cell. After each of them a comparison is
decided (`flat` or `changes`), may be decided with further starts, or would take more than the study allows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
import pandas as pd

from workflow_scripts.analyse.intervals.further_starts import Looks
from workflow_scripts.analyse.intervals.repeats import Row, counted, records
from workflow_scripts.analyse.intervals.statistics import NOT_DECIDED
from workflow_scripts.analyse.settings.knob_pairs import compared_pairs
from workflow_scripts.study.rounds import OpenComparison

# Why comparisons are given up, and why a study ends.
TOO_MANY_STARTS = "it needs more starts than the study allows"
TWO_MODES = "the starts of a cell fall into two groups, so no single number describes it"
TOO_LITTLE_TIME = "it needs more device time than is left"
ALL_DECIDED = "every comparison is decided"
NONE_DECIDABLE = "no undecided comparison can be decided within the study's starts and budget"
# Minimum number of starts for a variance.
_LEAST_TO_VARY = 2


@dataclass(frozen=True)
class NextRound:
    """What a study measures next.

    Attributes:
        cells: `cell_id` of the cells to start once more, in the order of their comparisons.
        undecided: comparisons that these starts may decide.
        not_decidable: comparisons that the study cannot decide, with the reason.
        decided: how many comparisons are decided.
        left_s: estimated device seconds until the comparisons in `undecided` are decided.
        ended: why there is no next round; None if there is one.
    """

    cells: tuple[str, ...]
    undecided: tuple[OpenComparison, ...]
    not_decidable: tuple[OpenComparison, ...]
    decided: int
    left_s: float
    ended: str | None


def next_round(
    cells: pd.DataFrame,
    margin_pct: float,
    looks: Looks,
    *,
    seconds_per_start: Mapping[str, float],
    budget_s: float = inf,
) -> NextRound:
    """Decide which cells the next round measures, after the first rounds, which measure every cell.

    The comparisons are those of the effects table: cells that differ in one knob only, or in the model. Both cells of a
    comparison are always in the same round.

    Args:
        cells: rows of the cells table, one per start and repeat; needed are the columns of a cell's identity, those of
            knobs, `outcome`, `comparable`, `start`, `round`, `output_tokens_per_s` and `max_concurrency_allowed`.
        margin_pct: the study's margin.
        looks: the looks at the study, with the starts of each cell.
        seconds_per_start: device seconds that a start of each cell takes, by `cell_id`.
        budget_s: device seconds that are left.

    Raises:
        KeyError: a compared cell is not in `seconds_per_start`.
    """
    started = counted(cells).groupby("cell_id")["start"].nunique().to_dict()
    pairs = list(_pairs(cells, margin_pct, looks))
    undecided = [pair for pair in pairs if pair["verdict"] == NOT_DECIDED]
    for pair in undecided:
        pair["further"] = _further(pair, looks.at_least)
        pair["cost_s"] = pair["further"] * sum(seconds_per_start[cell] for cell in pair["cells"])
    going: list[OpenComparison] = []
    not_decidable: list[OpenComparison] = []
    starts: dict[str, float] = {}
    for pair in sorted(undecided, key=lambda pair: (pair["cost_s"], pair["cells"])):
        then = starts | {cell: max(starts.get(cell, 0), pair["further"]) for cell in pair["cells"]}
        total_s = sum(count * seconds_per_start[cell] for cell, count in then.items())
        if pair["bimodal"]:
            not_decidable.append(_open(pair, TWO_MODES))
        elif any(started[cell] + pair["further"] > looks.at_most for cell in pair["cells"]):
            not_decidable.append(_open(pair, TOO_MANY_STARTS))
        elif total_s > budget_s:
            not_decidable.append(_open(pair, TOO_LITTLE_TIME))
        else:
            starts = then
            going.append(_open(pair))
    ended = None if going else NONE_DECIDABLE if not_decidable else ALL_DECIDED
    left_s = float(sum(count * seconds_per_start[cell] for cell, count in starts.items()))
    return NextRound(tuple(starts), tuple(going), tuple(not_decidable), len(pairs) - len(undecided), left_s, ended)


def _pairs(cells: pd.DataFrame, margin_pct: float, looks: Looks) -> Iterator[Row]:
    for column, rows, pairs in compared_pairs(cells, margin_pct, looks):
        ids = rows["cell_id"].to_numpy()
        for pair in records(pairs):
            yield pair | {"knob": column.removeprefix("knob_"), "cells": (ids[pair["b"]], ids[pair["a"]])}


def _further(pair: Row, at_least: int) -> float:
    """The fewest further starts of both cells that may decide; if no variance is known, as many as show one."""
    needed = pair["starts_needed_at_least"]
    if np.isnan(needed) and pair["starts"] < _LEAST_TO_VARY:
        needed = _LEAST_TO_VARY - pair["starts"]
    return inf if np.isnan(needed) else float(max(needed, at_least - pair["starts"]))


def _open(pair: Row, given_up: str | None = None) -> OpenComparison:
    needed = pair["starts_needed"]
    further = None if np.isnan(needed) else int(needed)
    return OpenComparison(knob=pair["knob"], cells=pair["cells"], further_starts=further, given_up=given_up)

"""Rounds: when starts of cells are measured, in which order, and what was decided about further ones.

A round measures each of its cells once, in a fresh start of its engine. So cells that are compared are measured close
together, and again in later rounds. The first rounds are the first starts of all cells; further ones are decided on.
A record has the number of its round in the order of time: a start that failed, or a cell that was added, is measured
in a round of its own, because what varies with time differs from that of the others' rounds.
"""

import contextlib
import math
import random
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import NamedTuple

from workflow_scripts.common.records import Record
from workflow_scripts.study.outcome import outcome_of
from workflow_scripts.study.paths import PARTIAL, StudyPaths

# An interrupted round goes on as the same round if the break was at most this long.
LONGEST_BREAK_S = 1800.0


class CellStart(NamedTuple):
    """A cell, by its id, and the number of one of its starts, from 1."""

    cell: str
    start: int


class Ended(NamedTuple):
    """A start that has ended: the round it was measured in, when it ended (Unix time in seconds), and how."""

    round: int
    at_s: float
    outcome: str = "ok"


# By cell and number of the start.
EndedStarts = Mapping[str, Mapping[int, Ended]]


def ended_starts(definitions: Mapping[str, str], paths: StudyPaths) -> dict[str, dict[int, Ended]]:
    """The starts of each cell that ended by its present definition; `definitions` holds the hash of each cell's."""
    ended: dict[str, dict[int, Ended]] = {}
    for cell, definition in definitions.items():
        records = {number: outcome_of(path, definition) for number, path in paths.outcomes(cell).items()}
        ended[cell] = {n: Ended(one.start.round, one.ended_s, one.outcome) for n, one in records.items() if one}
    return ended


class OpenComparison(Record):
    """A comparison of two cells that is not decided. `knob`: in what the cells differ. `further_starts`: how many
    starts of each cell would decide it if means and variances stay the same; null if that is not known or too many.
    `given_up`: why the cells are not measured again; null if they are."""

    knob: str
    cells: tuple[str, str]
    further_starts: int | None
    given_up: str | None = None


class RoundPlan(Record):
    """What was decided after a round: the starts of the next one, in their order, or why measuring `ended`.

    `undecided` comparisons are measured again, those that are `not_decidable` are not; `decided` is the number of the
    others. `spent_s`: device seconds that all starts took; `left_s`: those that the undecided comparisons will take.
    """

    round: int
    starts: tuple[CellStart, ...]
    undecided: tuple[OpenComparison, ...]
    not_decidable: tuple[OpenComparison, ...]
    decided: int
    spent_s: float
    left_s: float
    ended: str | None

    def in_words(self) -> str:
        opens = len(self.undecided) + len(self.not_decidable)
        decided = f"{self.decided} of {self.decided + opens} comparisons decided"
        follows = f"round {self.round} measures {len(self.starts)} cells; about {_hours(self.left_s)} are left"
        if self.ended:
            follows = f"{self.ended}. All starts took {_hours(self.spent_s)}"
        return f"After round {self.round - 1}: {decided}; {follows} of device time"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2g} h"


def last_plan(paths: StudyPaths, at_least: int) -> RoundPlan | None:
    """The last decision of each group of devices that decides for itself: one that has not ended measuring, if there
    is any. `at_least`: the number of rounds before the first decision."""
    last = []
    for folder in sorted((paths.root / "rounds").glob("*/")):
        number, plan = at_least + 1, None
        while (plan is None or not plan.ended) and (path := paths.round_plan(folder.name, number)).exists():
            number, plan = number + 1, RoundPlan.read(path)
        last += [plan] if plan else []
    return min(last, key=lambda plan: (plan.ended is not None, plan.round), default=None)


def last_seen_s(ended: EndedStarts, paths: StudyPaths) -> float:
    """When a start that has not ended last wrote evidence (Unix time in seconds); -inf if there is none."""
    seen = [-math.inf]
    for cell, starts in ended.items():
        evidence = paths.start(cell, _free_number(starts)) / PARTIAL
        with contextlib.suppress(FileNotFoundError):  # the start has ended meanwhile
            seen += [file.stat().st_mtime for file in evidence.iterdir()]
    return max(seen)


def present_round(ended: EndedStarts, now_s: float, seen_s: float = -math.inf) -> int:
    """The round that a start now belongs to (`now_s`, Unix time): the last one, or the next after a longer break. A
    break is also taken for long if the clock was set back by as much."""
    ends = [end for starts in ended.values() for end in starts.values()]
    last = max((end.round for end in ends), default=0)
    at_s = [end.at_s for end in ends if end.round == last]
    return last if last and abs(now_s - max(*at_s, seen_s)) <= LONGEST_BREAK_S else last + 1


def next_start(ended: EndedStarts, cell: str, present: int) -> tuple[CellStart, int]:
    """The next start of a cell, even if it has all that its study asks for, and the round of that start."""
    return CellStart(cell, _free_number(ended.get(cell, ()))), round_of([cell], ended, present)


def round_of(cells: Iterable[str], ended: EndedStarts, present: int) -> int:
    """The round of starts that begin now: the present one, or the next if it has measured one of the cells already."""
    return present + any(end.round == present for cell in cells for end in ended.get(cell, {}).values())


def in_random_order(cells: Iterable[str], number: int) -> list[str]:
    """The order of cells in a round: random, but the same in each call, and different in each round."""
    order = sorted(cells)
    random.Random(f"round {number}").shuffle(order)
    return order


def _free_number(taken: Collection[int]) -> int:
    """The lowest number that no start has; one that failed is tried again under its number."""
    return next(number for number in count(1) if number not in taken)

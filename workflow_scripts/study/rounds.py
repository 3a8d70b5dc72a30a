"""Rounds: which starts of which cells are measured next, and in which order.

A round measures each of its cells once, in a fresh start of its engine. So cells that are compared are measured close
together, and again in later rounds. Rounds are numbered in the order of time: a start that failed, or a cell that was
added, is measured in a new round, because what varies with time differs from that of the others' rounds.
"""

import contextlib
import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workflow_scripts.common.records import Record
from workflow_scripts.study.outcome import is_of, outcome_in
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


@dataclass(frozen=True)
class Round:
    """The starts that a round still has to measure, in their order; the cells `done` were measured in it before."""

    number: int
    starts: tuple[CellStart, ...]
    done: tuple[str, ...] = ()


def ended_starts(definitions: Mapping[str, str], paths: StudyPaths) -> dict[str, dict[int, Ended]]:
    """The starts of each cell that ended by its present definition; `definitions` holds the hash of each cell's."""
    ended: dict[str, dict[int, Ended]] = {}
    for cell, definition in definitions.items():
        records = {number: outcome_in(path) for number, path in paths.outcomes(cell).items()}
        own = {number: record for number, record in records.items() if record and is_of(record, definition)}
        ended[cell] = {
            number: Ended(record.start.round, record.ended_s, record.outcome) for number, record in own.items()
        }
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
    `failed`: cells that have no outcome of a start that was due, and are not measured again by this call. `known`: a
    hash of all that the decision depends on.
    """

    round: int
    starts: tuple[CellStart, ...]
    undecided: tuple[OpenComparison, ...]
    not_decidable: tuple[OpenComparison, ...]
    decided: int
    spent_s: float
    left_s: float
    ended: str | None
    failed: tuple[str, ...] = ()
    known: str

    def in_words(self) -> str:
        opens = len(self.undecided) + len(self.not_decidable)
        decided = f"{self.decided} of {self.decided + opens} comparisons decided"
        follows = f"round {self.round} measures {len(self.starts)} cells; about {_hours(self.left_s)} are left"
        if self.ended:
            follows = f"{self.ended}. All starts took {_hours(self.spent_s)}"
        return f"After round {self.round - 1}: {decided}; {follows} of device time"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2g} h"


def plans(paths: StudyPaths) -> list[RoundPlan]:
    round_plans = map(RoundPlan.read, paths.round_plan("*").parent.glob("round-*.json"))
    return sorted(round_plans, key=lambda plan: plan.round)


def last_plan(paths: StudyPaths) -> RoundPlan | None:
    return next(iter(plans(paths)[::-1]), None)


def forget_plans(paths: StudyPaths, first: int) -> None:
    """Remove the plans of the round `first` and of later ones, which are decided on anew."""
    for plan in plans(paths):
        if plan.round >= first:
            paths.round_plan(plan.round).unlink()


def last_round(ended: EndedStarts) -> int:
    return max((end.round for starts in ended.values() for end in starts.values()), default=0)


def last_seen_s(ended: EndedStarts, paths: StudyPaths) -> float:
    """When a start that has not ended last wrote evidence (Unix time in seconds); -inf if there is none."""
    seen = [-math.inf]
    for cell, starts in ended.items():
        evidence = paths.start(cell, _free_numbers(starts, len(starts) + 1)[0]) / PARTIAL
        with contextlib.suppress(FileNotFoundError):  # the start has ended meanwhile
            seen += [file.stat().st_mtime for file in evidence.iterdir()]
    return max(seen)


def present_round(ended: EndedStarts, now_s: float, seen_s: float = -math.inf) -> int:
    """The round that a start now belongs to (`now_s`, Unix time): the last one, or the next after a longer break. A
    break is also taken for long if the clock was set back by as much."""
    last = last_round(ended)
    at_s = [end.at_s for starts in ended.values() for end in starts.values() if end.round == last]
    return last if last and abs(now_s - max(*at_s, seen_s)) <= LONGEST_BREAK_S else last + 1


def rounds_to_measure(
    ended: EndedStarts, plan: RoundPlan | None, cells: Sequence[str], at_least: int, present: int
) -> list[Round]:
    """The rounds that are known before anything more is measured, if no start fails: first the rest of one that was
    decided on by the last `plan` and interrupted, then rounds after which each of `cells` has that many starts. The
    first may be the `present` one."""
    due: Sequence[CellStart] = ()
    if plan and plan.round == last_round(ended) == present:
        due = [start for start in plan.starts if start.cell in cells and start.start not in ended.get(start.cell, {})]
    taken = {cell: {*ended.get(cell, ()), *(start.start for start in due if start.cell == cell)} for cell in cells}
    missing = {cell: _free_numbers(numbers, at_least) for cell, numbers in taken.items()}
    rounds: list[Round] = []
    number = present
    while due or any(missing.values()):
        done = tuple(cell for cell, starts in ended.items() if any(end.round == number for end in starts.values()))
        has_start = {*done, *(start.cell for start in due)}
        taking = [cell for cell in cells if missing[cell] and cell not in has_start]
        starts = (*due, *(CellStart(cell, missing[cell].pop(0)) for cell in in_random_order(taking, number)))
        if starts:
            rounds.append(Round(number, starts, done))
        due, number = (), number + 1
    return rounds


def next_start(ended: EndedStarts, cell: str, present: int) -> tuple[CellStart, int]:
    """The next start of a cell, even if it has all that its study asks for, and the round of that start."""
    (next_round,) = rounds_to_measure(ended, None, [cell], len(ended.get(cell, {})) + 1, present)
    return next_round.starts[0], next_round.number


def in_random_order(cells: Iterable[str], number: int) -> list[str]:
    """The order of cells in a round: random, but the same in each call, and different in each round."""
    order = sorted(cells)
    random.Random(f"round {number}").shuffle(order)
    return order


def _free_numbers(taken: Collection[int], at_least: int) -> list[int]:
    """Numbers of the starts that are missing; one that failed is tried again under its number."""
    numbers = [number for number in range(1, at_least + 1) if number not in taken]
    return numbers[: max(0, at_least - len(taken))]

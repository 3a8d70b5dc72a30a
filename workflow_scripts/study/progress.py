"""How far a study is, from its files alone: how many starts of its cells have ended, of how many."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workflow_scripts.study.cell_status import CellStatus
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import last_plan
from workflow_scripts.study.study import Study


@dataclass(frozen=True)
class Progress:
    """How many starts of how many cells have ended, and how many are requested.

    `at_s`, `last_end_s`: Unix times of looking, and of the last end. `may_grow`: further rounds may follow.
    """

    ended: int
    wanted: int
    cells: int
    at_s: float
    last_end_s: float | None
    may_grow: bool

    @property
    def is_complete(self) -> bool:
        return self.ended == self.wanted and not self.may_grow

    def in_words(self) -> Iterator[str]:
        what = f"starts of {self.cells} cells" if self.wanted > self.cells else "cells"
        grow = "; further rounds may follow" if self.may_grow else ""
        yield f"{self.ended} of {self.wanted} {what} have ended{grow}."
        if self.last_end_s is not None:
            yield f"The last one ended {_length(self.at_s - self.last_end_s)} ago."


def clock(unix_s: float) -> str:
    """A time of day in UTC, with its date.

    >>> clock(1795342732.8)
    '2026-11-22 10:18 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))


def _length(seconds: float) -> str:
    """A length of time in words.

    >>> _length(0.2), _length(42.1), _length(75), _length(600), _length(7500), _length(400000)
    ('0 s', '42 s', '1.2 min', '10 min', '2.1 h', '4.6 days')
    """
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    size, unit = (60, "min") if seconds < 3600 else (3600, "h") if seconds < 172800 else (86400, "days")
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"


def may_grow(study: Study, paths: StudyPaths) -> bool:
    plan = last_plan(paths, study.starts.at_least) if study.is_adaptive else None
    return study.is_adaptive and (plan is None or not plan.ended)


def progress(study: Study, paths: StudyPaths, starts: Mapping[Cell, Sequence[CellStatus]], now_s: float) -> Progress:
    """How far the study is, given the status of the starts of all cells at the Unix time `now_s`."""
    ends = {
        cell.id: {status.start: status.ended_s for status in of_cell if status.ended_s is not None}
        for cell, of_cell in starts.items()
    }
    plan = last_plan(paths, study.starts.at_least) if study.is_adaptive else None
    due = Counter(cell for cell, start in (plan.starts if plan else ()) if start not in ends.get(cell, ()))
    ended = sum(map(len, ends.values()))
    return Progress(
        ended=ended,
        wanted=ended + sum(max(study.starts.at_least - len(of_cell), due[cell]) for cell, of_cell in ends.items()),
        cells=len(ends),
        at_s=now_s,
        last_end_s=max((ended_s for of_cell in ends.values() for ended_s in of_cell.values()), default=None),
        may_grow=may_grow(study, paths),
    )

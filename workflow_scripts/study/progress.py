"""The status of every start of every cell of a study, and how far the study is, from their files alone."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import last_line
from workflow_scripts.study.definition import definitions_sha256
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Outcome, is_of, never_ran
from workflow_scripts.study.paths import ENGINE_LOG, MEASURE_LOG, OUTCOME, RAW, StudyPaths, within
from workflow_scripts.study.rounds import last_plan
from workflow_scripts.study.study import Study


@dataclass(frozen=True)
class CellStatus:
    """A start of a cell and its state. `reason` is one line; `log` is None if the start was never tried; `ended_s`:
    Unix time, None unless the start has ended by the cell's present definition; `others_pct`: CPU that other programs
    and virtual machines used while it was timed, in per cent of all cores.
    """

    cell: Cell
    state: str
    reason: str
    log: Path | None
    lock: str | None
    host: str | None
    processor: str | None = None
    start: int = 1
    ended_s: float | None = None
    others_pct: float = 0.0


def status_of_starts(study: Study, paths: StudyPaths) -> dict[Cell, list[CellStatus]]:
    """The starts that the study asks for and those tried beyond, by number, for every cell of the grid in its order."""
    definitions = definitions_sha256(study)
    by_cell = {}
    for cell in expand(study):
        asked = study.starts.at_least
        numbers = [*range(1, asked + 1), *paths.tried_beyond(cell, asked)]
        starts = [_status_of_start(study, cell, paths, definitions[cell.id], start) for start in numbers]
        by_cell[cell] = starts
    return by_cell


def status_of_cell(starts: Sequence[CellStatus], at_least: int) -> CellStatus:
    """The status of a cell: that of its first start that is not ok; beyond `at_least`, a missing one does not count."""
    bad = (start for start in starts if start.state != "ok" and (start.state != "missing" or start.start <= at_least))
    return next(bad, starts[0])


def _status_of_start(study: Study, cell: Cell, paths: StudyPaths, definition: str, start: int) -> CellStatus:
    folder = paths.start(cell, start)
    outcome, logs = folder / OUTCOME, (folder / RAW / ENGINE_LOG, folder / MEASURE_LOG)
    within(folder, paths.root, (outcome, *logs))
    if not outcome.exists():
        log = _there(logs[1])
        why = (last_line(log) or "its log is empty") if log else "not tried yet"
        return CellStatus(cell, "missing", why, log, None, None, start=start)
    try:
        record = Outcome.read(outcome)
    except InputError as e:
        return CellStatus(cell, "missing", str(e), _there(logs[0]) or outcome, None, None, start=start)
    provenance = record.provenance
    state, reason = str(record.outcome), _one_line(record.reason or "")
    ended_s: float | None = record.ended_s
    if never_ran(record):
        state, reason, ended_s = "missing", f"did not run: {reason}", None
    elif not is_of(record, definition):
        protocol = record.definition.get("protocol")
        state, reason, ended_s = "outdated", f"measured by another definition, protocol {protocol}", None
    log = _there(logs[0]) or _there(logs[1])
    return CellStatus(
        cell,
        state,
        reason,
        log,
        (provenance.get("lock_sha256") or "")[:12] or None,
        provenance.get("host"),
        record.device.get("processor"),
        start,
        ended_s,
        max(record.host_load.get("cpu_others_pct", 0.0), record.host_load.get("cpu_steal_pct", 0.0)),
    )


def _there(path: Path) -> Path | None:
    return path if path.exists() else None


def _one_line(text: str) -> str:
    """The first line that is not blank; an engine's message may have many lines."""
    return next((" ".join(line.split()) for line in text.split("\n") if line.strip()), "")


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

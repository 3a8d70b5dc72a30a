"""The status of every start of every cell of a study, and how far the study is, from their files alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
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
    """A start of a cell and its state. `reason` is one line; `log` is None if the start was never tried; `has_ended`:
    by the cell's present definition."""

    cell: Cell
    state: str
    reason: str
    log: Path | None
    start: int
    has_ended: bool = False


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
        return CellStatus(cell, "missing", why, log, start)
    try:
        record = Outcome.read(outcome)
    except InputError as e:
        return CellStatus(cell, "missing", str(e), _there(logs[0]) or outcome, start)
    state, reason, has_ended = str(record.outcome), _one_line(record.reason or ""), True
    if never_ran(record):
        state, reason, has_ended = "missing", f"did not run: {reason}", False
    elif not is_of(record, definition):
        protocol = record.definition.get("protocol")
        state, reason, has_ended = "outdated", f"measured by another definition, protocol {protocol}", False
    return CellStatus(cell, state, reason, _there(logs[0]) or _there(logs[1]), start, has_ended)


def _there(path: Path) -> Path | None:
    return path if path.exists() else None


def _one_line(text: str) -> str:
    """The first line that is not blank; an engine's message may have many lines."""
    return next((" ".join(line.split()) for line in text.split("\n") if line.strip()), "")


@dataclass(frozen=True)
class Progress:
    """How many starts of how many cells have ended, and how many are requested; whether further rounds may follow."""

    ended: int
    wanted: int
    cells: int
    may_grow: bool

    @property
    def is_complete(self) -> bool:
        return self.ended == self.wanted and not self.may_grow

    def in_words(self) -> str:
        what = f"starts of {self.cells} cells" if self.wanted > self.cells else "cells"
        grow = "; further rounds may follow" if self.may_grow else ""
        return f"{self.ended} of {self.wanted} {what} have ended{grow}."


def progress(study: Study, paths: StudyPaths, starts: Mapping[Cell, Sequence[CellStatus]]) -> Progress:
    """How far the study is, given the status of the starts of all cells."""
    ends = {cell.id: {status.start for status in of_cell if status.has_ended} for cell, of_cell in starts.items()}
    plan = last_plan(paths, study.starts.at_least) if study.is_adaptive else None
    due = Counter(cell for cell, start in (plan.starts if plan else ()) if start not in ends.get(cell, ()))
    ended = sum(map(len, ends.values()))
    return Progress(
        ended=ended,
        wanted=ended + sum(max(study.starts.at_least - len(of_cell), due[cell]) for cell, of_cell in ends.items()),
        cells=len(ends),
        may_grow=study.is_adaptive and (plan is None or not plan.ended),
    )

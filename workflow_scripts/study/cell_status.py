"""The status of every start of every cell of a study, from their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import last_line
from workflow_scripts.study.definition import definitions_sha256
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Outcome, is_of, never_ran
from workflow_scripts.study.paths import ENGINE_LOG, MEASURE_LOG, OUTCOME, RAW, StudyPaths, within
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

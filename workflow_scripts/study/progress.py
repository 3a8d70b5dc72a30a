"""How far a study is, from its files alone: what has ended, what is being measured, and when all will have ended.

The processes of another host of a cluster cannot be asked. That a cell is being measured shows in the trace of its
device, which grows ten times per second.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise, product
from pathlib import Path
from statistics import fmean, median

from workflow_scripts.common.files import read_jsonl
from workflow_scripts.study.cell_status import CellStatus, Run
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.paths import ENGINE_LOG, HERE, JOB, PARTIAL, START_FOLDER, TRACE, StudyPaths, start_number
from workflow_scripts.study.rounds import last_plan
from workflow_scripts.study.study import Study

# If a trace has not grown for so long, its process was killed. Shared file systems show growth late.
SILENT_S = 180.0
# For so long after the end of a cell, the next one may still be starting.
BETWEEN_S = 60.0
# Cells that a sentence names.
MOST_NAMED = 4


# The starts of each cell that have ended by its present definition, by their numbers.
Runs = Mapping[Cell, Mapping[int, Run]]


@dataclass(frozen=True)
class Running:
    """A start of a cell that is being measured, and for how many seconds."""

    cell: Cell
    start: int
    for_s: float


@dataclass(frozen=True)
class Progress:
    """How many starts of cells have ended, how many are requested, and which are being measured.

    `at_s`, `last_end_s`: Unix times of looking, and of the last end. `left_s`: seconds until all have ended, if each
    cell takes as long as those like it; None if nothing is being measured or nothing has ended. `waiting`: devices with
    cells left, none of which is being measured; they are not in `left_s`. `is_late`: a start that is being measured has
    taken longer than those like it, so more is left than `left_s`. `may_grow`: further rounds may follow.
    """

    ended: int
    wanted: int
    cells: int
    running: Sequence[Running]
    at_s: float
    last_end_s: float | None
    left_s: float | None
    waiting: Sequence[str]
    is_late: bool
    may_grow: bool

    @property
    def is_complete(self) -> bool:
        return self.ended == self.wanted and not self.may_grow

    def in_words(self, name: Callable[[Cell], str] = lambda cell: cell.id) -> Iterator[str]:
        of = f"starts of {self.cells} cells" if self.wanted > self.cells else "cells"
        yield f"{self.ended} of {self.wanted} {of} have ended."
        if self.running:
            yield f"Being measured: {'; '.join(self._running_in_words(name))}."
        elif self.last_end_s is None:
            yield "No cell is being measured."
        else:
            yield f"No cell is being measured; the last one ended {_length(self.at_s - self.last_end_s)} ago."
        if self.left_s is not None:
            without = f", without the cells of {', '.join(self.waiting)}, which wait" if self.waiting else ""
            grow = "; further rounds may follow" if self.may_grow else ""
            left_s, about = max(1.0, self.left_s), "At least" if self.is_late else "About"
            yield f"{about} {_length(left_s)} left, until {clock(self.at_s + left_s)}{without}{grow}."

    def _running_in_words(self, name: Callable[[Cell], str]) -> Iterator[str]:
        for run in self.running[:MOST_NAMED]:
            start = f", start {run.start}" if run.start > 1 else ""
            yield f"{name(run.cell)}{start} (for {_length(run.for_s)})"
        if len(self.running) > MOST_NAMED:
            yield f"and {len(self.running) - MOST_NAMED} more"


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
    plan = last_plan(paths) if study.is_adaptive else None
    return study.is_adaptive and (plan is None or not plan.ended)


def progress(study: Study, paths: StudyPaths, starts: Mapping[Cell, Sequence[CellStatus]], now_s: float) -> Progress:
    """How far the study is, given the status of the starts of all cells at the Unix time `now_s`."""
    runs = {cell: {status.start: status.run for status in of_cell if status.run} for cell, of_cell in starts.items()}
    plan = last_plan(paths) if study.is_adaptive else None
    by_id = {cell.id: ended for cell, ended in runs.items()}
    due = Counter(cell for cell, start in (plan.starts if plan else ()) if start not in by_id.get(cell, ()))
    missing = {cell: max(study.starts.at_least - len(ended), due[cell.id]) for cell, ended in runs.items()}
    ended = sum(map(len, runs.values()))
    running = sorted(_running(paths, runs, study.cell_time_limit_s, now_s), key=lambda start: start.for_s)
    ends = [run.ended_s for of_cell in runs.values() for run in of_cell.values()]
    # A call on one machine has batches that are not done; their cells wait for each other, also on different devices.
    batches = paths.batch(HERE, "*").parent.glob("*.json")
    is_one_machine = any(not batch.with_suffix(".done").exists() for batch in batches)
    left_s, waiting, is_late = _left(runs, missing, running, is_one_machine, now_s)
    return Progress(
        ended=ended,
        wanted=ended + sum(missing.values()),
        cells=len(runs),
        running=running,
        at_s=now_s,
        last_end_s=max(ends, default=None),
        left_s=left_s,
        waiting=waiting,
        is_late=is_late,
        may_grow=may_grow(study, paths),
    )


def _running(paths: StudyPaths, cells: Iterable[Cell], limit_s: float, now_s: float) -> Iterator[Running]:
    for cell in cells:
        folder = paths.cell(cell)
        for evidence in (folder / PARTIAL, *folder.glob(f"{START_FOLDER}*/{PARTIAL}")):
            for_s = _measured_for(evidence, limit_s, now_s)
            if for_s is not None:
                yield Running(cell, start_number(evidence.parent), for_s)


def _measured_for(evidence: Path, limit_s: float, now_s: float) -> float | None:
    """For how many seconds a start with this evidence has been measured; None if it is not or was killed."""
    trace = evidence / TRACE
    try:
        if trace.exists():
            is_silent = now_s - trace.stat().st_mtime > SILENT_S
            began_s = _first_sample_s(trace) or trace.stat().st_mtime
        else:
            # A server elsewhere has no trace, and a start that has just begun has none yet. If a log
            # gets no line within the time limit, its process was killed; without a log, the start waits for its device.
            is_silent = now_s - (evidence / ENGINE_LOG).stat().st_mtime > limit_s
            began_s = (evidence / JOB).stat().st_mtime
    except OSError:  # it is not there, or its start ended meanwhile
        return None
    return None if is_silent else max(0.0, now_s - began_s)


def _first_sample_s(trace: Path) -> float | None:
    with suppress(StopIteration, ValueError, TypeError, KeyError):  # not written yet, or damaged
        return float(next(islice(read_jsonl(trace), 1, None))["time_unix_s"])
    return None


def _left(
    runs: Runs, missing: Mapping[Cell, int], running: Sequence[Running], is_one_machine: bool, now_s: float
) -> tuple[float | None, list[str], bool]:
    """Seconds until the last missing start has ended, the devices whose cells wait, and whether a start is late."""
    expected = _expected_s(runs)

    def device(cell: Cell) -> str:
        return HERE if is_one_machine else cell.gpu

    work: dict[str, float] = defaultdict(float)
    for cell, starts in missing.items():
        if starts:
            work[device(cell)] += starts * (expected(cell) or 0.0)
    at_once = Counter(device(start.cell) for start in running)
    for cell, of_cell in runs.items():
        if any(now_s - run.ended_s < BETWEEN_S for run in of_cell.values()):
            at_once.setdefault(device(cell), 1)
    is_late = False
    for start in running:
        if device(start.cell) in work:
            in_all = expected(start.cell) or 0.0
            work[device(start.cell)] -= min(start.for_s, in_all)
            is_late |= start.for_s >= in_all
    waiting = [name for name in work if name not in at_once]
    remaining_s = [seconds / at_once[name] for name, seconds in work.items() if name in at_once]
    return (max(remaining_s) if remaining_s and any(runs.values()) else None), waiting, is_late


def _expected_s(runs: Runs) -> Callable[[Cell], float | None]:
    """How long a start of a cell takes: the mean of the cell's own starts, or of the cells that are most like it."""
    between = _between_s(runs)
    took: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for cell, of_cell in runs.items():
        for key, run in product(_alike(cell), of_cell.values()):
            took[key].append(run.took_s + between)
    means = {key: fmean(values) for key, values in took.items()}
    return lambda cell: next((means[key] for key in _alike(cell) if key in means), None)


def _alike(cell: Cell) -> list[tuple[object, ...]]:
    return [
        (cell.id,),
        (cell.gpu, cell.engine_at, cell.model, cell.workload),
        (cell.gpu, cell.engine),
        (cell.engine,),
        (),
    ]


def _between_s(runs: Runs) -> float:
    """Median seconds from the end of a start to the beginning of the next one on its host. Pauses are rare, so the
    median leaves them out; on a host that measures several cells at once it is 0."""
    in_order = sorted(
        (run for of_cell in runs.values() for run in of_cell.values()), key=lambda r: (str(r.host), r.ended_s)
    )
    pairs = ((before, after) for before, after in pairwise(in_order) if before.host == after.host)
    gaps = [max(0.0, after.ended_s - after.took_s - before.ended_s) for before, after in pairs]
    return median(gaps) if gaps else 0.0

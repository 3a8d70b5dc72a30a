"""Measure the cells of a batch one after another, and write its manifest.

    kvsweep measure-batch --study config/studies/demo.yaml --gpus h200 --round 1 --batch x1b-0a1b2c3d \\
        --out results/demo/measured/h200/round-1/x1b-0a1b2c3d.json

Each cell has its own log and outcome: a cell that fails does not stop the others. Cells that differ only in their
workload or load share a start of their engine, in a command of their own. The cells of a batch share an allocation, and
so one wait in the queue, the node's page cache, the compile cache and the fork server. A start that already has its
outcome, from an earlier attempt or another job, is skipped, unless it failed before this job and is tried again.
SIGTERM lets it end after the present cells.

Exit code 0: every cell has an outcome of any kind; 1: some have none, and there is no manifest. In a study of several
rounds, these are left to the next call after the last attempt: the manifest says so, and the later rounds are measured.
"""

import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from workflow_scripts.cluster.batches import Batch, Round
from workflow_scripts.cluster.pending import manifest_of, starts_of
from workflow_scripts.cluster.site import Attempt
from workflow_scripts.cluster.terminal_lines import time_left
from workflow_scripts.common.command import ATTEMPT, ATTEMPTS, RESULTS, STUDY, command, option, out, positive
from workflow_scripts.common.files import last_line, write_json
from workflow_scripts.measure.cell import WRONG_DEVICE
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.outcome import Start, outcome_of
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.reruns import ONLY_FAILED, set_aside, to_rerun
from workflow_scripts.study.rounds import CellStart, ended_starts, last_seen_s, present_round, round_of
from workflow_scripts.study.study_file import load_study


def without_outcome(starts: Sequence[CellStart], grid: Cells, paths: StudyPaths) -> list[CellStart]:
    """The starts that have no outcome by their present definition."""
    return [start for start in starts if not outcome_of(paths.outcome(*start), grid.definitions[start.cell])]


def measure_batch(
    study_file: Path, grid: Cells, paths: StudyPaths, batch: Batch, attempt: Attempt, told: Sequence[int] = ()
) -> list[CellStart]:
    """Measure the starts that have no outcome; return those that have none afterwards. If a job of one device finds the
    wrong one, or a signal has `told` it to end, the remaining cells are not tried. With several devices, only one may
    be missing."""
    starts = {start.cell: start for start in without_outcome(batch.starts, grid, paths)}
    if not starts:
        return []
    gpus = batch.gpus.split("+")
    ended = ended_starts({name: grid.definitions[name] for name, cell in grid.cells.items() if cell.gpu in gpus}, paths)
    number = round_of(starts, ended, present_round(ended, time.time(), last_seen_s(ended, paths)))
    failed: list[CellStart] = []
    done, began_s = 0, time.monotonic()
    for cells in grid.in_sessions(starts):
        if told:
            print("    told to end by SIGTERM; the next call measures the other cells", flush=True)
            return without_outcome(batch.starts, grid, paths)
        session = [starts[cell] for cell in cells]
        left = time_left(time.monotonic() - began_s, done, len(starts))
        for place, cell in enumerate(cells, start=done + 1):
            print(f"[{place}/{len(starts)} of round {batch.round}{left}] {cell}", flush=True)
        where = Start(start=1, round=number, position=batch.places[session[0]])
        status = _measure(study_file, paths, session, where, attempt)
        done += len(session)
        for start in without_outcome(session, grid, paths) if status else ():
            failed.append(start)
            log = paths.log(start.cell, start.start)
            why = f": {last_line(log)}" if log.exists() else ""
            print(f"    no outcome (exit {status}){why}; its log is {log}", flush=True)
        if status == WRONG_DEVICE and len(gpus) == 1:
            print("    the wrong device; the other cells wait for another one", flush=True)
            return without_outcome(batch.starts, grid, paths)
    return failed


def _measure(study_file: Path, paths: StudyPaths, starts: Sequence[CellStart], where: Start, attempt: Attempt) -> int:
    command = [sys.executable, "-m", "workflow_scripts", "measure-cell", "--study", str(study_file)]
    command += ["--cell", *(start.cell for start in starts), "--start", *(str(start.start) for start in starts)]
    command += ["--results", str(paths.results), "--attempt", str(attempt.number), "--attempts", str(attempt.of)]
    command += ["--round", str(where.round), "--position", str(where.position)]
    command += ["--unless-done", "--with-logs"]
    return subprocess.run(command).returncode


@command(
    "measure-batch",
    STUDY,
    option("--gpus", required=True, help="its devices, joined by +"),
    option("--round", type=positive, required=True, help="its round: how many starts every cell then has"),
    option("--batch", required=True, help="its name"),
    option("--plan", type=Path, help="the decision on its round"),
    RESULTS,
    ATTEMPT,
    ATTEMPTS,
    option("--rerun", default=ONLY_FAILED, help="which ended starts the first attempt measures again (%(default)s)"),
    option("--tries", type=positive, default=2, help="attempts of a failed start (%(default)s)"),
    out("the manifest"),
)
def main(args: Namespace) -> int:
    study = load_study(args.study)
    paths, grid, attempt = StudyPaths(args.results, study.name), Cells(study), Attempt(args.attempt, args.attempts)
    batch = Round(args.round, starts_of(args.round, grid, args.plan), grid).named(args.gpus, args.batch)
    if attempt.number == 1:
        cells = [grid.cells[start.cell] for start in batch.starts]
        ended = ended_starts({cell.id: grid.definitions[cell.id] for cell in cells}, paths)
        for start in {*batch.starts} & to_rerun(ended, cells, paths, args.rerun, args.tries).keys():
            set_aside(paths.start(*start))
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    failed = measure_batch(args.study, grid, paths, batch, attempt, told)
    signal.signal(signal.SIGTERM, before)
    if failed:
        print(f"{len(failed)} of {len(batch.starts)} cells have no outcome", file=sys.stderr)
        if study.starts.at_most == 1 or not attempt.last or told:
            return 1
    write_json(args.out, manifest_of(batch, grid.definitions, paths))
    return 0

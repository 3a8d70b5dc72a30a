"""Measure cells one after another: a batch of a cluster, or a round on this machine.

    kvsweep measure-batch --study config/studies/demo.yaml --batch results/demo/batches/h200/1f0.json

Each cell has its own log and outcome: a cell that fails does not stop the others. Cells that differ only in their
workload or load share a start of their engine, in a command of their own. The cells of a batch share an allocation, and
so one wait in the queue, the node's page cache, the compile cache and the fork server. A start that already has its
outcome, from an earlier attempt or another job, is skipped.

Exit code 0: every cell has an outcome of any kind; 1: some have none. In a study of several rounds, these are left to
the next call after the last attempt; the exit code is then 0, so that the later rounds are measured.
"""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from workflow_scripts.cluster.batches import Batch, in_sessions, read_batch, without_outcome
from workflow_scripts.cluster.site import Attempt
from workflow_scripts.common.command import ATTEMPT, ATTEMPTS, RESULTS, STUDY, command, option
from workflow_scripts.common.files import last_line
from workflow_scripts.measure.cell import WRONG_DEVICE
from workflow_scripts.study.definition import session_keys
from workflow_scripts.study.outcome import Start
from workflow_scripts.study.paths import HERE, StudyPaths
from workflow_scripts.study.rounds import CellStart
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study


def measure_batch(study: Study, study_file: Path, paths: StudyPaths, batch: Batch, attempt: Attempt) -> list[CellStart]:
    """Measure starts one after another; return those that have no outcome afterwards. If a cluster's node has the wrong
    device, the remaining cells are not tried. A single machine goes on with the other cells, because it may lack only
    one of several devices, or only for a while."""
    failed: list[CellStart] = []
    done = 0
    for starts in in_sessions(batch.starts, session_keys(study)):
        for number, start in enumerate(starts, start=done + 1):
            print(f"[{number}/{len(batch.starts)}] {start.cell}", flush=True)
        where = Start(start=1, round=batch.round, position=batch.first_position + done)
        status = _measure(study_file, paths, starts, where, attempt)
        done += len(starts)
        for start in without_outcome(starts, study, paths) if status else ():
            failed.append(start)
            log = paths.log(start.cell, start.start)
            why = f": {last_line(log)}" if log.exists() else ""
            print(f"    no outcome (exit {status}){why}; its log is {log}", flush=True)
        if status == WRONG_DEVICE and batch.gpu != HERE:
            print("    this node has the wrong device; the other cells wait for another one", flush=True)
            return [*failed, *batch.starts[done:]]
    return failed


def _measure(study_file: Path, paths: StudyPaths, starts: Sequence[CellStart], where: Start, attempt: Attempt) -> int:
    command = [sys.executable, "-m", "workflow_scripts", "measure-cell", "--study", str(study_file)]
    command += ["--cell", *(start.cell for start in starts), "--start", *(str(start.start) for start in starts)]
    command += ["--results", str(paths.results), "--attempt", str(attempt.number), "--attempts", str(attempt.of)]
    command += ["--round", str(where.round), "--position", str(where.position)]
    command += ["--unless-done", "--with-logs"]
    return subprocess.run(command).returncode


def measure_device(gpu: str, record: Path, limit_s: float | None = None) -> None:
    """Measure the device's own rates while the job holds it, unless they are known; cells do not depend on them."""
    if record.exists():
        return
    command = [sys.executable, "-m", "workflow_scripts", "measure-device", "--gpu", gpu, "--out", str(record)]
    try:
        print(f"rates of {gpu}: exit {subprocess.run(command, timeout=limit_s).returncode}", flush=True)
    except subprocess.TimeoutExpired:
        print(f"rates of {gpu}: not measured within {limit_s:g} s", flush=True)


@command(
    "measure-batch",
    STUDY,
    option("--batch", type=Path, required=True, help="the file that lists its cells"),
    RESULTS,
    ATTEMPT,
    ATTEMPTS,
)
def main(args: Namespace) -> int:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    batch, attempt = read_batch(args.batch), Attempt(args.attempt, args.attempts)
    failed = measure_batch(study, args.study, paths, batch, attempt)
    if failed:
        print(f"{len(failed)} of {len(batch.starts)} cells have no outcome", file=sys.stderr)
        if study.starts.at_most == 1 or not attempt.last:
            return 1
    if batch.gpu != HERE and not failed:
        measure_device(batch.gpu, paths.device(batch.gpu))
    return 0

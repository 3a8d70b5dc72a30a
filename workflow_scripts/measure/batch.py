"""Measure cells one after another in one allocation of a cluster.

    kvsweep measure-batch --study config/studies/demo.yaml --batch results/demo/batches/h200/1f0.json

Each cell runs as its own command with its own log and exit status: a cell that fails does not stop the others. The
cells share what an allocation saves: the wait in the queue, the node's page cache, the compile cache and the warm
parent of the engines. A cell that already has its outcome, from an earlier attempt or another job, is skipped.

Exit code 0: every cell has an outcome, whatever it is; 1: some have none.
"""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from workflow_scripts.cluster.batches import read_batch
from workflow_scripts.common.command import ATTEMPT, ATTEMPTS, RESULTS, STUDY, command, option
from workflow_scripts.measure.cell import WRONG_DEVICE
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study


def measure_batch(study_file: Path, paths: StudyPaths, cells: Sequence[str], attempt: int, attempts: int) -> list[str]:
    """Measure cells one after another; return those that have no outcome afterwards.

    If the node has the wrong device, the remaining cells are not tried.
    """
    failed = []
    for number, cell in enumerate(cells, start=1):
        print(f"[{number}/{len(cells)}] {cell}", flush=True)
        status = _measure_one(study_file, paths, cell, attempt, attempts)
        if status != 0:
            failed.append(cell)
            print(f"    no outcome (exit {status}); its log is {paths.log(cell)}", flush=True)
        if status == WRONG_DEVICE:
            print("    this node has the wrong device; the other cells wait for another one", flush=True)
            return [*failed, *cells[number:]]
    return failed


def _measure_one(study_file: Path, paths: StudyPaths, cell: str, attempt: int, attempts: int) -> int:
    command = [sys.executable, "-m", "workflow_scripts", "measure-cell", "--study", str(study_file), "--cell", cell]
    command += ["--results", str(paths.results), "--attempt", str(attempt), "--attempts", str(attempts)]
    paths.log(cell).parent.mkdir(parents=True, exist_ok=True)
    with paths.log(cell).open("wb") as log:
        return subprocess.run([*command, "--unless-done"], stdout=log, stderr=subprocess.STDOUT).returncode


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
    option("--batch", type=Path, required=True, help="JSON list of cell ids"),
    RESULTS,
    ATTEMPT,
    ATTEMPTS,
)
def main(args: Namespace) -> int:
    """Measure the cells of a batch."""
    paths = StudyPaths(args.results, load_study(args.study).name)
    cells = read_batch(args.batch)
    failed = measure_batch(args.study, paths, cells, args.attempt, args.attempts)
    if failed:
        print(f"{len(failed)} of {len(cells)} cells have no outcome", file=sys.stderr)
        return 1
    measure_device(gpu := cells[0].split("/")[0], paths.device(gpu))
    return 0

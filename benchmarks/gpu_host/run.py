"""Measure the cells of one GPU of a study unattended within a time budget; call it again to continue.

    python3 -m benchmarks.gpu_host.run --study STUDY.yaml --gpu h200 --budget-s 480 --evidence OUT

It describes the host, then measures the device's own rates and the cells in the study's order. The calibrations
follow the first cells, second starts of chosen cells the last one, and then the overhead of measuring one of them. A
cell is measured by `measure-cell` and counts as soon as it is done. A cell is started only if it is expected to end in
time. A cell that hangs or exceeds the budget is killed and left to the next call. At the end the results so far are
packed. README.md says how to get a host ready for it.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

from benchmarks.gpu_host.evidence import pack
from benchmarks.gpu_host.probe import main as probe
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import run_command
from workflow_scripts.measure.cell import WRONG_DEVICE
from workflow_scripts.study.calibrations import calibrations_of
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import Cell, expand, find_cell
from workflow_scripts.study.outcome import Outcome, outcome_of
from workflow_scripts.study.paths import PARTIAL, StudyPaths
from workflow_scripts.study.rounds import CellStart
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study

PACKING_S = 20.0
RATES_S = 60.0
# Limit of a cell's first attempt, including all imports and compilation; a cell that takes longer counts as hanging.
FIRST_TRY_S = 180.0
LAST_LINES = 25
RETRY_S = 5.0
FAILURES_IN_A_ROW = 3
# Turn off what the reduced installation lacks, and what needs a network.
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
}


@dataclass(frozen=True)
class Visit:
    """What is to be measured on a host, and until when.

    `deadline_s`: when the last measurement ends, on the monotonic clock. `cell_s`: seconds that must be left to start a
    cell. `calibrate_after`: the calibrations are measured when this many cells have an outcome. `again`: cells that get
    a second start, as patterns of their names.
    """

    file: Path
    study: Study
    paths: StudyPaths
    gpu: str
    deadline_s: float
    cell_s: float
    calibrate_after: int = 3
    again: Sequence[str] = field(default=())

    @cached_property
    def cells(self) -> list[Cell]:
        return [cell for cell in expand(self.study) if cell.gpu == self.gpu]

    def left_s(self) -> float:
        return self.deadline_s - time.monotonic()

    def outcomes(self) -> dict[CellStart, str | None]:
        """The outcome of each start; None if there is none for the cell's present definition."""
        models = resolved_models(self.study)
        chosen = [cell for cell in self.cells if any(fnmatch(cell.id, pattern) for pattern in self.again)]
        found = {}
        for number, cells in ((1, self.cells), (2, chosen)):
            for cell in cells:
                wanted = definition_sha256(cell_definition(self.study, cell, models))
                record = outcome_of(self.paths.outcome(cell, number), wanted)
                found[CellStart(cell.id, number)] = record and record.outcome
        return found

    def command(self, name: str, *arguments: str) -> list[str]:
        known = ["--study", str(self.file), "--results", str(self.paths.results)]
        return [sys.executable, "-m", "workflow_scripts", name, *known, *arguments]


def measure_until(visit: Visit) -> None:
    """Measure starts of cells one after another, until the visit ends.

    First starts come before second ones. Among these, cells that were never tried come first, then those that were
    killed in an earlier call, then those whose engine failed. If several in a row fail, the host is at fault and the
    remaining cells are not tried.
    """
    before = visit.outcomes()
    waiting = sorted(_waiting(visit, before), key=lambda one: one.start)
    ended = sum(outcome is not None for one, outcome in before.items() if one.start == 1)
    first = min(max(visit.calibrate_after - ended, 0), len(waiting))
    failures = 0
    for number, one in enumerate(waiting, start=1):
        if number == first + 1:
            calibrate(visit)
        if (left_s := visit.left_s()) < visit.cell_s:
            print(f"{left_s:.0f} s are left, too few for a cell; {len(waiting) - number + 1} starts remain", flush=True)
            return
        began = time.monotonic()
        log = visit.paths.log(*one)
        status = _measure(visit, one, left_s if log.exists() else min(left_s, FIRST_TRY_S))
        if status == WRONG_DEVICE and left_s > RETRY_S:  # the previous cell may still be leaving it
            time.sleep(RETRY_S)
            status = _measure(visit, one, visit.left_s())
        outcome, reason = _end_of(visit.paths, one, status)
        print(
            f"[{number}/{len(waiting)}] {time.monotonic() - began:5.1f} s  {outcome}  {one.cell}"
            + (f", start {one.start}" if one.start > 1 else ""),
            flush=True,
        )
        if outcome != "ok":
            print(f"    {reason}\n{_last_lines(visit.paths, one, status)}", flush=True)
        failures = 0 if outcome in ("ok", "infeasible") else failures + 1
        if failures == FAILURES_IN_A_ROW:
            print(f"{failures} cells in a row have failed; the rest is left alone", flush=True)
            return
    if first == len(waiting):
        calibrate(visit)


def _waiting(visit: Visit, before: dict[CellStart, str | None]) -> Iterator[CellStart]:
    none = [one for one, outcome in before.items() if outcome is None]
    yield from sorted(none, key=lambda one: visit.paths.log(*one).exists())
    yield from (one for one, outcome in before.items() if outcome == "engine_error")


def calibrate(visit: Visit) -> None:
    """Measure the calibrations of the GPU, once, if there is time for two starts of an engine."""
    records = [visit.paths.calibration(name) for name in calibrations_of(visit.study, visit.cells)]
    if all(record.exists() for record in records) or visit.left_s() < 2 * visit.cell_s:
        return
    run_within(visit, "calibration", visit.command("calibrate", "--gpu", visit.gpu))


def run_within(visit: Visit, what: str, command: list[str]) -> None:
    """Run a command until the visit ends, with its log in the study's folder, and print how it ended."""
    visit.paths.root.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        with (visit.paths.root / f"{what}-{visit.gpu}.log").open("wb") as log:
            status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=visit.left_s()).returncode
        print(f"{what}: {time.monotonic() - began:.1f} s, exit {status}", flush=True)
    except subprocess.TimeoutExpired:
        print(f"{what}: killed, because the time is over", flush=True)


def _end_of(paths: StudyPaths, one: CellStart, status: int | None) -> tuple[str, str | None]:
    """The outcome of a start, and the reason."""
    if status == 0:
        outcome = Outcome.read(paths.outcome(*one))
        return outcome.outcome, outcome.reason
    return "no outcome", "its time was up, and it was killed" if status is None else f"exit {status}"


def _last_lines(paths: StudyPaths, one: CellStart, status: int | None) -> str:
    """The end of the engine's log, or of the measuring command's if the measuring process broke."""
    folder = {0: "raw", None: PARTIAL}.get(status)
    logs = [paths.log(*one), *([paths.start(*one) / folder / "engine.log"] if folder else [])]
    lines = next((lines for log in reversed(logs) if (lines := _lines(log))), [])
    return "\n".join(f"    | {line}" for line in lines[-LAST_LINES:])


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []


def _measure(visit: Visit, one: CellStart, left_s: float) -> int | None:
    """Exit status of a measurement; None if its time ran out."""
    start = str(one.start)
    command = visit.command("measure-cell", "--cell", one.cell, "--start", start, "--round", start)
    # As the first of two attempts: a device that is not free yet, or too little time, then gives no outcome.
    command += ["--attempt", "1", "--attempts", "2"]
    log_file = visit.paths.log(*one)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log_file.open("wb") as log:
            return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=left_s).returncode
    except subprocess.TimeoutExpired:
        return None


def compare_within(visit: Visit, cell: str) -> None:
    """Measure the overhead of measuring on a cell, once, if there is time for two starts of an engine."""
    out = visit.paths.root / f"compare-{visit.gpu}.json"
    if not out.exists() and visit.left_s() >= 2 * visit.cell_s:
        command = [sys.executable, "-m", "benchmarks.gpu_host.compare", "--study", str(visit.file), "--results"]
        run_within(visit, "compare", [*command, str(visit.paths.results), "--cell", cell, "--out", str(out)])


def measure_device(gpu: str, record: Path, limit_s: float) -> None:
    """Measure the device's own rates, unless they are known; cells do not depend on them."""
    if record.exists():
        return
    command = [sys.executable, "-m", "workflow_scripts", "measure-device", "--gpu", gpu, "--out", str(record)]
    try:
        print(f"rates of {gpu}: exit {subprocess.run(command, timeout=limit_s).returncode}", flush=True)
    except subprocess.TimeoutExpired:
        print(f"rates of {gpu}: not measured within {limit_s:g} s", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measure a study unattended within a time budget; call it again to go on.",
        epilog="exit 0: every start has an outcome; 1: some have none yet; 2: bad input",
    )
    parser.add_argument("--study", type=Path, required=True, help="the study's YAML file")
    parser.add_argument("--gpu", help="the study's name of the GPU here (default: its only one)")
    parser.add_argument(
        "--results", type=Path, default=CHECKOUT / "results", help="folder of all studies (%(default)s)"
    )
    parser.add_argument("--evidence", type=Path, required=True, help="folder for the packed evidence")
    parser.add_argument("--budget-s", type=float, default=480, help="seconds within which the call ends (%(default)s)")
    parser.add_argument("--cell-s", type=float, default=140, help="seconds needed to start a cell (%(default)s)")
    parser.add_argument(
        "--calibrate-after", type=int, default=3, help="cells that come before the calibrations (%(default)s)"
    )
    parser.add_argument(
        "--again", action="append", default=[], help="cells that get a second start, such as '*/chat/*'; repeatable"
    )
    parser.add_argument("--compare", help="cell of vLLM on which the overhead of measuring is measured at the end")
    args = parser.parse_args(argv)
    deadline_s = time.monotonic() + args.budget_s - PACKING_S
    try:
        study = load_study(args.study)
        gpus = list(dict.fromkeys(cell.gpu for cell in expand(study)))
        if (gpu := args.gpu or (gpus[0] if len(gpus) == 1 else None)) not in gpus:
            raise StudyError(f"study {study.name!r}: --gpu must be one of {', '.join(gpus)}")
        if args.compare:
            find_cell(study, args.compare)
    except StudyError as e:
        print(e, file=sys.stderr)
        return 2
    paths = StudyPaths(args.results, study.name)
    visit = Visit(args.study, study, paths, gpu, deadline_s, args.cell_s, args.calibrate_after, args.again)
    os.environ |= ENVIRONMENT | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    }
    probe()
    measure_device(gpu, paths.device(gpu), RATES_S)
    measure_until(visit)
    waiting = None in visit.outcomes().values()
    if args.compare and not waiting:
        compare_within(visit, args.compare)
    for archive in pack(paths, gpu, args.evidence):
        print(f"{archive.stat().st_size / 2**20:6.2f} MiB  {archive}")
    return 1 if waiting else 0


if __name__ == "__main__":
    run_command(main)

"""Measure a study unattended within a time budget; call it again to continue.

    python3 -m benchmarks.h200.run --budget-s 480 --evidence OUT

It describes the host, then measures the device's own rates, the cells in the study's order, and finally the overhead of
measuring. A cell is measured by `measure.cell` and counts as soon as it is done. A cell is started only if it
is expected to end in time. A cell that hangs or exceeds the budget is killed and left to the next call. At the end the
results so far are packed. README.md says how to get a host ready for it.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.h200.evidence import pack
from benchmarks.h200.probe import main as probe
from workflow_scripts.common.command import run_command
from workflow_scripts.measure.batch import measure_device
from workflow_scripts.measure.cell import PARTIAL, WRONG_DEVICE
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import is_outcome_of, read_outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import Study, StudyError, load_study

CHECKOUT = Path(__file__).resolve().parents[2]
STUDY = CHECKOUT / "config/studies/h200_reference.yaml"
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


def outcomes(study: Study, paths: StudyPaths) -> dict[Cell, str | None]:
    """The outcome of each cell, in the study's order; None if there is no outcome for its present definition."""
    models = resolved_models(study)

    def outcome(cell: Cell) -> str | None:
        record = paths.outcome(cell)
        wanted = definition_sha256(cell_definition(study, cell, models))
        return read_outcome(record).outcome if is_outcome_of(record, wanted) else None

    return {cell: outcome(cell) for cell in expand(study)}


def measure_until(deadline_s: float, study_file: Path, study: Study, paths: StudyPaths, cell_s: float) -> None:
    """Measure cells one after another, until `deadline_s` on the monotonic clock.

    Cells that were never tried come first, then those that were killed in an earlier call, then those whose engine
    failed. A cell is started if `cell_s` are left for it. If several in a row fail, the host is at fault and the
    remaining cells are not tried.
    """
    before = outcomes(study, paths)
    waiting = sorted((cell for cell in before if before[cell] is None), key=lambda cell: paths.log(cell).exists())
    waiting += [cell for cell in before if before[cell] == "engine_error"]
    failures = 0
    for number, cell in enumerate(waiting, start=1):
        left_s = deadline_s - time.monotonic()
        if left_s < cell_s:
            print(f"{left_s:.0f} s are left, too few for a cell; {len(waiting) - number + 1} cells remain", flush=True)
            return
        began = time.monotonic()
        status = _measure(study_file, paths, cell, left_s if paths.log(cell).exists() else min(left_s, FIRST_TRY_S))
        if status == WRONG_DEVICE and left_s > RETRY_S:  # the previous cell may still be leaving it
            time.sleep(RETRY_S)
            status = _measure(study_file, paths, cell, deadline_s - time.monotonic())
        ended, reason = _end_of(paths, cell, status)
        print(f"[{number}/{len(waiting)}] {time.monotonic() - began:5.1f} s  {ended}  {cell.id}", flush=True)
        if ended != "ok":
            print(f"    {reason}\n{_last_lines(paths, cell, status)}", flush=True)
        failures = 0 if ended in ("ok", "infeasible") else failures + 1
        if failures == FAILURES_IN_A_ROW:
            print(f"{failures} cells in a row have failed; the rest is left alone", flush=True)
            return


def _end_of(paths: StudyPaths, cell: Cell, status: int | None) -> tuple[str, str | None]:
    """The outcome of a cell, and the reason."""
    if status == 0:
        outcome = read_outcome(paths.outcome(cell))
        return outcome.outcome, outcome.reason
    return "no outcome", "its time was up, and it was killed" if status is None else f"exit {status}"


def _last_lines(paths: StudyPaths, cell: Cell, status: int | None) -> str:
    """The end of the engine's log, or of the measuring command's if the measuring process broke."""
    folder = {0: "raw", None: PARTIAL}.get(status)
    logs = [paths.log(cell), *([paths.cell(cell) / folder / "engine.log"] if folder else [])]
    lines = next((lines for log in reversed(logs) if (lines := _lines(log))), [])
    return "\n".join(f"    | {line}" for line in lines[-LAST_LINES:])


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []


def _measure(study_file: Path, paths: StudyPaths, cell: Cell, left_s: float) -> int | None:
    """Exit status of a cell's measurement; None if its time ran out."""
    command = [sys.executable, "-m", "workflow_scripts", "measure-cell", "--study", str(study_file), "--cell", cell.id]
    # As the first of two attempts: a device that is not free yet, or too little time, then gives no outcome.
    command += ["--results", str(paths.results), "--attempt", "1", "--attempts", "2"]
    paths.log(cell).parent.mkdir(parents=True, exist_ok=True)
    try:
        with paths.log(cell).open("wb") as log:
            return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=left_s).returncode
    except subprocess.TimeoutExpired:
        return None


def compare_within(left_s: float, study_file: Path, study: Study, paths: StudyPaths, cell_s: float) -> None:
    """Measure the overhead of measuring, if there is time for two starts of an engine.

    It uses the study's second cell; the first one only shows that the host works.
    """
    out, cells = paths.root / "compare.json", expand(study)
    if out.exists() or left_s < 2 * cell_s or len(cells) < 2 or cells[1].engine != "vllm":
        return
    command = [sys.executable, "-m", "benchmarks.h200.compare", "--study", str(study_file), "--results"]
    command += [str(paths.results), "--cell", cells[1].id, "--out", str(out)]
    try:
        with (paths.root / "compare.log").open("wb") as log:
            status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=left_s).returncode
        print(f"comparison with vLLM's own benchmark: exit {status}", flush=True)
    except subprocess.TimeoutExpired:
        print("no time was left for the comparison with vLLM's own benchmark", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a study within a time budget and pack the evidence."""
    parser = argparse.ArgumentParser(
        description="Measure a study unattended within a time budget; call it again to go on.",
        epilog="exit 0: every cell has an outcome; 1: some have none yet; 2: bad input",
    )
    parser.add_argument("--study", type=Path, default=STUDY, help="the study's YAML file (%(default)s)")
    parser.add_argument(
        "--results", type=Path, default=CHECKOUT / "results", help="folder of all studies (%(default)s)"
    )
    parser.add_argument("--evidence", type=Path, required=True, help="folder for the packed evidence")
    parser.add_argument("--budget-s", type=float, default=480, help="seconds within which the call ends (%(default)s)")
    parser.add_argument("--cell-s", type=float, default=140, help="seconds needed to start a cell (%(default)s)")
    args = parser.parse_args(argv)
    deadline_s = time.monotonic() + args.budget_s - PACKING_S
    try:
        study = load_study(args.study)
        gpus = {cell.gpu for cell in expand(study)}
    except StudyError as e:
        print(e, file=sys.stderr)
        return 2
    paths = StudyPaths(args.results, study.name)
    os.environ |= ENVIRONMENT | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    }
    probe()
    for gpu in gpus:
        measure_device(gpu, paths.device(gpu), RATES_S)
    measure_until(deadline_s, args.study, study, paths, args.cell_s)
    waiting = None in outcomes(study, paths).values()
    if not waiting:
        compare_within(deadline_s - time.monotonic(), args.study, study, paths, args.cell_s)
    for archive in pack(paths, args.evidence):
        print(f"{archive.stat().st_size / 2**20:6.2f} MiB  {archive}")
    return 1 if waiting else 0


if __name__ == "__main__":
    run_command(main)

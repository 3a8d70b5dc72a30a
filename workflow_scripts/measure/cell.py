"""Measure one cell of a study.

    kvsweep measure-cell --study config/studies/demo.yaml \\
        --cell cpu-all/vllm/tiny-llama-57m/chat/bs32-seqs4-len128-eager1-cpukv1

writes `results/{study}/cells/{cell}/raw/` (engine log, requests, steps, metrics, device trace) and, last,
`outcome.json` beside it. A cell that has been measured before is measured in a further start of its engine, into
`start-2/` in that folder and so on; the earlier results stay. `--start 1` measures the first start again.

If the engine refuses the cell, fails on it or takes too long, that is a result: the command writes an outcome and exits
with 0. It exits with 1 for a fault of the infrastructure (a killed process, a full disk), and for a time limit that was
reached while `--attempts` are left. It exits with 3 on the wrong device, without an outcome, because the cell never
ran.
"""

import os
import shutil
import sys
import time
from argparse import Namespace
from pathlib import Path
from statistics import mean

from filelock import FileLock, Timeout

from workflow_scripts.catalog.environments import is_installed
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.cluster.site import Attempt
from workflow_scripts.common.command import ATTEMPT, ATTEMPTS, RESULTS, STUDY, command, option, positive
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import last_line, read_json, write_text
from workflow_scripts.device.device_lock import boot_id, device_lock
from workflow_scripts.device.host_load import suspension
from workflow_scripts.engines.engine import SCRATCH
from workflow_scripts.measure.forkserver import ForkServerError
from workflow_scripts.measure.provenance import provenance_of
from workflow_scripts.measure.run import MEASURED, Job, NoEnvironmentError
from workflow_scripts.statistics.repeats import best_repeats
from workflow_scripts.study.definition import (
    cell_definition,
    definition_sha256,
    definitions_sha256,
    model_key,
    resolved_models,
    workload_key,
)
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Measured, Outcome, Start, is_outcome_of
from workflow_scripts.study.paths import ENGINE_LOG, JOB, OUTCOME, PARTIAL, RAW, StudyPaths
from workflow_scripts.study.protocol import SEED
from workflow_scripts.study.rounds import ended_starts, last_seen_s, next_start, present_round
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study

LOG_TAIL_LINES = 60
WRONG_DEVICE = 3


def _repeats(study: Study, cell: Cell, paths: StudyPaths, start: Start) -> int:
    """The study's repeats; in further starts those that the first one shows to be best, if there may be more."""
    first = paths.outcome(cell)
    if study.most_repeats == study.repeats or start.start == 1 or not first.exists():
        return study.repeats
    took = Outcome.read(first)
    repeats_s = [one.end_monotonic_s - one.start_monotonic_s for one in took.repeats]
    if not repeats_s:
        return study.repeats
    start_s = sum(seconds for phase, seconds in took.phases_s.items() if phase != "measure")
    is_cpu = load_gpus()[cell.gpu].kind == "cpu"
    return best_repeats(start_s, mean(repeats_s), is_cpu, study.repeats, study.most_repeats)


def measure_cell(study: Study, cell: Cell, paths: StudyPaths, attempt: Attempt, start: Start) -> int:
    """Measure a cell in one start of its engine and write the start's folder; return the exit status. The status is 3
    on the wrong device, and 1 if an attempt other than the last reached the time limit. Raises StudyError if the cell's
    model or workload was not prepared, and ForkServerError if the process that should measure the cell could not be
    started."""
    folder = folder_of(paths, cell.id, start)
    definition = cell_definition(study, cell, resolved_models(study))
    definition = definition.model_copy(update={"repeats": _repeats(study, cell, paths, start)})
    model_dir = paths.model(cell.model, model_key(definition.model))
    draft = definition.draft_model
    draft_model_dir = paths.model(draft.name, model_key(draft)) if draft else None
    workload = paths.workload(cell.model, cell.workload, workload_key(definition))
    configs = [folder / "config.json" for folder in (model_dir, draft_model_dir) if folder]
    for needed in (*configs, workload):
        if not needed.exists():
            raise StudyError(f"{needed} is not there; `snakemake {paths.outcome(cell)}` prepares and measures")
    evidence = folder / PARTIAL
    shutil.rmtree(evidence, ignore_errors=True)
    evidence.mkdir(parents=True)
    time_limit_s = attempt.time_limit_s(study.cell_time_limit_s)
    job = Job(
        definition=definition,
        model_dir=model_dir,
        draft_model_dir=draft_model_dir,
        workload=workload,
        evidence=evidence,
        start_limit_s=min(study.server_start_limit_s, time_limit_s),
        # All cells of a round get the same arrivals, and each round gets others.
        arrival_seed=SEED + start.round - 1,
    )
    job.write(evidence / JOB)
    with device_lock(load_gpus()[cell.gpu], cell.knobs.ranks) as idle_before_s:
        print(f"measuring {cell.id}" + (f", start {start.start}" if start.start > 1 else ""), flush=True)
        began = time.monotonic()
        try:
            name, kind = cell.environment, load_gpus()[cell.gpu].engine_kind
            tried = paths.environment(name, kind)  # in this call
            if tried.exists() and not is_installed(name, kind) and (fault := read_json(tried)["fault"]):
                raise NoEnvironmentError(f"environment {name} could not be installed: {fault}")
            with suspension() as why_suspended:
                exit_status, measured = job.run(time_limit_s)
        except NoEnvironmentError as e:
            # As of a cell that never ran: the next call measures it if the environment then works.
            exit_status, measured = 0, Measured(outcome="invalid", reason=str(e))
    if exit_status is None:
        reason = f"not done after {time_limit_s:g} s; the engine and all its processes were killed"
        if (why := why_suspended()) or not attempt.last:
            message = f"{reason}, in which {why}" if why else reason
            return _left_to_the_next(attempt, evidence, message, status=1)
        record = Measured(outcome="timeout", reason=reason)
    elif measured is None:
        _report_failure(evidence, exit_status)
        return 1
    else:
        record = measured
        (evidence / MEASURED).unlink(missing_ok=True)
    (evidence / JOB).unlink()
    if record.wrong_device:
        reason = record.reason or "the wrong device"
        note_wrong_node(paths.wrong_nodes(cell.gpu), reason)
        return _left_to_the_next(attempt, evidence, reason, status=WRONG_DEVICE)
    now = {"idle_before_s": idle_before_s, "boot_id": boot_id(), "planned": study.starts.in_words}
    outcome = Outcome(
        cell_id=cell.id,
        definition=definition.as_json(),
        definition_sha256=definition_sha256(definition),
        start=start.model_copy(update=now),
        provenance=provenance_of(cell, definition.endpoint),
        **record.model_dump(exclude={"wrong_device"}),
    )
    _put_in_place(evidence, folder, outcome)
    print(
        f"{outcome.outcome} after {time.monotonic() - began:.1f} s" + (f": {outcome.reason}" if outcome.reason else "")
    )
    return 0


def _left_to_the_next(attempt: Attempt, evidence: Path, reason: str, status: int) -> int:
    print(f"{reason}; attempt {attempt.number} of {attempt.of}, and this cell has no outcome yet", file=sys.stderr)
    shutil.rmtree(evidence)
    return status


def note_wrong_node(folder: Path, reason: str) -> None:
    """Tell the next attempts which node of a cluster to avoid."""
    if node := os.environ.get("SLURMD_NODENAME"):
        write_text(folder / node, f"{reason}\n")


def _put_in_place(evidence: Path, folder: Path, outcome: Outcome) -> None:
    shutil.rmtree(evidence / SCRATCH, ignore_errors=True)  # of an engine that was killed
    for half in folder.glob(f".{OUTCOME}.*"):  # of a command that was killed while it wrote
        half.unlink()
    raw = folder / RAW
    (folder / OUTCOME).unlink(missing_ok=True)
    shutil.rmtree(raw, ignore_errors=True)
    evidence.replace(raw)
    outcome.write(folder / OUTCOME)


def _report_failure(evidence: Path, exit_status: int) -> None:
    """Copy the end of the engine's log to this command's log, and leave no incomplete evidence behind."""
    last = last_line(evidence / ENGINE_LOG)
    how = f"was killed by signal {-exit_status}" if exit_status < 0 else f"ended with status {exit_status} ({last})"
    log = (evidence / ENGINE_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    print("\n".join(log[-LOG_TAIL_LINES:]), file=sys.stderr)
    print(f"the measuring process {how}; nothing of this cell counts. The end of its log is above.", file=sys.stderr)
    shutil.rmtree(evidence)


def folder_of(paths: StudyPaths, cell: str, start: Start) -> Path:
    return paths.again(cell, start.round) if start.again else paths.start(cell, start.start)


def find_cell(study: Study, cell_id: str) -> Cell:
    """The cell with that id. Raises StudyError if the grid of the study has no such cell."""
    cells = {cell.id: cell for cell in expand(study)}
    if cell_id not in cells:
        some = "\n  ".join(sorted(cells)[:40])
        raise StudyError(f"study {study.name!r} has no cell {cell_id!r}; it has {len(cells)}, such as:\n  {some}")
    return cells[cell_id]


@command(
    "measure-cell",
    STUDY,
    option("--cell", required=True, help="gpu/engine[@environment]/model/workload/knobs"),
    RESULTS,
    ATTEMPT,
    ATTEMPTS,
    option("--start", type=positive, help="number of this start of the cell's engine (default: the next)"),
    option("--round", type=positive, help="the round of the study that it belongs to (default: by the present time)"),
    option("--position", type=positive, help="its place in the order of the round"),
    option("--again", action="store_true", help="measure it once more in its round, into again-ROUND, to show drift"),
    option("--unless-done", action="store_true", help="do nothing if the start already has its outcome"),
)
def main(args: Namespace) -> int:
    study = load_study(args.study)
    cell = find_cell(study, args.cell)
    paths = StudyPaths(args.results, study.name)
    # Only one process at a time measures a cell, of all jobs on all hosts that share the results.
    lock = FileLock(paths.lock(cell), mode=0o666)
    try:
        paths.lock(cell).parent.mkdir(parents=True, exist_ok=True)
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            print("waiting: another process measures this cell", flush=True)
            held = lock.acquire(poll_interval=1)
        with held:
            number, round_number = args.start, args.round
            if number is None or round_number is None:
                # The next start, and the round that it belongs to if it begins now.
                ended = ended_starts(definitions_sha256(study), paths)
                present = present_round(ended, time.time(), last_seen_s(ended, paths))
                (_, next_number), present = next_start(ended, cell.id, present)
                number, round_number = number or next_number, round_number or present
            start = Start(start=number, round=round_number, position=args.position, again=args.again)
            folder = folder_of(paths, cell.id, start)
            definition = cell_definition(study, cell, resolved_models(study))
            if args.unless_done and is_outcome_of(folder / OUTCOME, definition_sha256(definition)):
                print("this start of the cell has its outcome already")
                return 0
            try:
                return measure_cell(study, cell, paths, Attempt(args.attempt, args.attempts), start)
            except InputError:
                shutil.rmtree(folder / PARTIAL, ignore_errors=True)
                raise
            except OSError:  # such as a full disk
                shutil.rmtree(folder / PARTIAL, ignore_errors=True)
                print(file=sys.stderr)  # the log may have had no room for the end of its last line
                raise
    except (ForkServerError, OSError) as e:
        print(f"kvsweep measure-cell: {e}", file=sys.stderr)
        return 1

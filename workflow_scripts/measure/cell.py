"""Measure cells of a study: one, or several that share a start of their engine.

    kvsweep measure-cell --study config/studies/demo.yaml \\
        --cell cpu-all/vllm/tiny-llama-57m/chat/bs32-seqs4-len128-eager1-cpukv1

writes `results/{study}/cells/{cell}/raw/` (engine log, requests, steps, metrics, device trace) and, last,
`outcome.json` beside it. A cell that has been measured before is measured in a further start of its engine, into
`start-2/` in that folder and so on; the earlier results stay. `--start 1` measures the first start again. Cells that
differ only in their workload or load may share a start; each of them keeps its folder and its outcome.

If the engine refuses the cell, fails on it or takes too long, that is a result: the command writes an outcome and exits
with 0. It exits with 1 for a fault of the infrastructure (a killed process, a full disk), and for a time limit that was
reached while `--attempts` are left. It exits with 3 on the wrong device, without an outcome, because the cell never
ran.
"""

import secrets
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import cache, partial
from itertools import count, takewhile
from pathlib import Path

from workflow_scripts.catalog.environments import is_installed
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.cluster.site import Attempt, note_wrong_node
from workflow_scripts.common.command import (
    ATTEMPT,
    ATTEMPTS,
    LOG,
    RESULTS,
    STUDY,
    command,
    option,
    positive,
    print_to,
)
from workflow_scripts.common.files import last_line, read_json
from workflow_scripts.common.wording import listed
from workflow_scripts.device.device_lock import boot_id, device_lock, locked
from workflow_scripts.device.host_load import suspension
from workflow_scripts.engines.engine import SCRATCH
from workflow_scripts.engines.installation import missing_packages
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.forkserver import ForkServerError
from workflow_scripts.measure.provenance import now_in_utc, provenance_of
from workflow_scripts.measure.session import MEASURED_FILE, Job, NoEnvironmentError, Session, end_of_log
from workflow_scripts.study.definition import (
    Cells,
    Definition,
    cell_definition,
    definition_sha256,
    model_key,
    resolved_models,
    session_key,
    workload_key,
)
from workflow_scripts.study.grid import Cell, find_cell
from workflow_scripts.study.outcome import Measured, Observed, Outcome, Provenance, Start, outcome_of
from workflow_scripts.study.paths import ENGINE_LOG, JOB, MEASURE_LOG, OUTCOME, PARTIAL, RAW, StudyPaths
from workflow_scripts.study.protocol import SEED
from workflow_scripts.study.rounds import ended_starts, last_seen_s, next_start, present_round
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study

WRONG_DEVICE = 3


class _Series:
    """A start of a cell that a session measures, into `folder`."""

    def __init__(
        self, study: Study, cell: Cell, definition: Definition, start: Start, paths: StudyPaths, attempt: Attempt
    ) -> None:
        """Raises StudyError if the cell's model or workload was not prepared."""
        self.cell, self.start, self._paths, self._attempt = cell, start, paths, attempt
        self.folder, draft = paths.start(cell, start.start), definition.draft_model
        self._limit_s = attempt.time_limit_s(study.cell_time_limit_s)
        self.job = Job(
            definition=definition,
            model_dir=paths.model(cell.model, model_key(definition.model)),
            draft_model_dir=paths.model(draft.name, model_key(draft)) if draft else None,
            workload=paths.workload(cell.model, cell.workload, workload_key(definition)),
            evidence=self.folder / PARTIAL,
            start_limit_s=min(study.server_start_limit_s, self._limit_s),
            # All cells of a round get the same arrivals, and each round gets others.
            arrival_seed=SEED + start.round - 1,
        )
        configs = [folder / "config.json" for folder in (self.job.model_dir, self.job.draft_model_dir) if folder]
        for needed in (*configs, self.job.workload):
            if not needed.exists():
                raise StudyError(f"{needed} is not there; `snakemake {paths.outcome(cell)}` prepares and measures")

    def measure(self, session: Session, start: Start, provenance: Callable[[], Provenance]) -> int:
        """Write the folder of the start; return the exit status."""
        evidence, definition = self.job.evidence, self.job.definition
        evidence.mkdir(parents=True, exist_ok=True)
        print(f"measuring {self.cell.id}" + (f", start {start.start}" if start.start > 1 else ""), flush=True)
        began = time.monotonic()
        try:
            name, kind = self.cell.environment, load_gpus()[self.cell.gpu].kind
            tried = [*takewhile(Path.exists, self._paths.environments(name, kind))][-1:]
            if tried and not is_installed(name, kind) and (fault := read_json(tried[0])["fault"]):
                raise NoEnvironmentError(f"environment {name} could not be installed: {fault}")
            with suspension() as why_suspended:
                exit_status, measured = session.serve(self.job, self._limit_s)
        except NoEnvironmentError as e:
            # As of a cell that never ran: the next call measures it if the environment then works.
            exit_status, measured = 0, Measured(outcome="invalid", reason=str(e))
        if exit_status is None:
            reason = f"not done after {self._limit_s:g} s; the engine and all its processes were killed"
            if (why := why_suspended()) or not self._attempt.last:
                return self._left_to_the_next(f"{reason}, in which {why}" if why else reason)
            measured = Measured(outcome="timeout", reason=reason)
        elif measured is None:
            last = last_line(evidence / ENGINE_LOG) or "its log is empty, as on a full disk"
            killed, ended = f"was killed by signal {-exit_status}", f"ended with status {exit_status} ({last})"
            print(end_of_log(evidence), file=sys.stderr)
            how = killed if exit_status < 0 else ended
            return self._left_to_the_next(f"the measuring process {how}; the end of its log is above")
        elif measured.wrong_device:
            reason = measured.reason or "the wrong device"
            note_wrong_node(self._paths.wrong_nodes(self.cell.gpu), reason)
            return self._left_to_the_next(reason, status=WRONG_DEVICE)
        outcome = Outcome(
            cell_id=self.cell.id,
            definition=definition.as_json(),
            definition_sha256=definition_sha256(definition),
            start=start,
            provenance={**provenance(), "ended_at": now_in_utc()},
            **measured.model_dump(include={*Observed.model_fields}),
        )
        for file in (MEASURED_FILE, JOB):
            (evidence / file).unlink(missing_ok=True)
        shutil.rmtree(evidence / SCRATCH, ignore_errors=True)  # of an engine that was killed
        for half in self.folder.glob(f".{OUTCOME}.*"):  # of a command that was killed while it wrote
            half.unlink()
        (self.folder / OUTCOME).unlink(missing_ok=True)
        shutil.rmtree(self.folder / RAW, ignore_errors=True)
        evidence.replace(self.folder / RAW)
        outcome.write(self.folder / OUTCOME)
        why_so = f": {outcome.reason}" if outcome.reason else ""
        print(f"{outcome.outcome} after {time.monotonic() - began:.1f} s{why_so}", flush=True)
        return 0

    def _left_to_the_next(self, reason: str, status: int = 1) -> int:
        attempt = self._attempt
        print(f"{reason}; attempt {attempt.number} of {attempt.of}, and this cell has no outcome yet", file=sys.stderr)
        return status


def measure_series(left: list[_Series], study: Study, with_logs: bool) -> int:
    """Measure series in one start of their engine, or in a new one after a cell that ended it, and write the folder of
    each as soon as it has ended; return the highest exit status of one. The status is 3 on the wrong device, where the
    remaining ones are not tried, and 1 if an attempt other than the last reached the time limit. Raises ForkServerError
    if the process that should measure could not be started. With `with_logs`, what is printed about a cell goes to the
    log in its folder."""
    first, status = left[0], 0
    definition = first.job.definition
    # Asked once the engine is up, because its environment may be installed for it.
    provenance = cache(partial(provenance_of, definition))
    with device_lock(load_gpus()[definition.gpu], definition.knobs.ranks):
        held = {"boot_id": boot_id(), "planned": study.starts.in_words}
        while left and status != WRONG_DEVICE:
            several, name = len(left) > 1, secrets.token_hex(4)
            with closing(Session(*(one.job for one in left))) as session:
                for place in count(1):
                    one = left.pop(0)
                    if with_logs and one is not first:
                        print_to(one.folder / MEASURE_LOG)
                    in_session = {"session": name, "place_in_session": place} if several else {}
                    start = one.start.model_copy(update={**held, **in_session})
                    status = max(status, one.measure(session, start, provenance))
                    if not session.goes_on:
                        break
    return status


@command(
    "measure-cell",
    STUDY,
    option("--cell", nargs="+", required=True, help="gpu/engine[@environment]/model/workload/knobs; several share it"),
    RESULTS,
    ATTEMPT,
    ATTEMPTS,
    option("--start", nargs="+", type=positive, help="number of each cell's start of its engine (default: the next)"),
    option("--round", type=positive, help="the round of the study that it belongs to (default: by the present time)"),
    option("--position", type=positive, help="place of the first cell in the order of the round"),
    option("--unless-done", action="store_true", help="leave out starts that already have their outcome"),
    option("--with-logs", action="store_true", help="print to the log in each cell's folder"),
    LOG,
)
def main(args: Namespace) -> int:
    study = load_study(args.study)
    cells, models = [find_cell(study, cell) for cell in args.cell], resolved_models(study)
    definitions = [cell_definition(study, cell, models) for cell in cells]
    if len(set(map(session_key, definitions))) > 1:
        raise StudyError("--cell: these cells differ in more than their workload and load, and cannot share a start")
    paths, numbers = StudyPaths(args.results, study.name), args.start or [None] * len(cells)
    if len(numbers) != len(cells):
        raise StudyError(f"--start: {len(numbers)} numbers for {len(cells)} cells; allowed: one for each")
    if args.with_logs:
        print_to(paths.log(cells[0].id, numbers[0] or 1))
    engine = get_engine(cells[0].engine)
    if not cells[0].environment and (lacking := missing_packages(engine)):
        print(
            f"{engine.name} needs {listed(lacking)}, which this environment lacks; nothing was measured",
            file=sys.stderr,
        )
        return 1
    try:
        with ExitStack() as locks:
            # Only one process at a time measures a cell, of all jobs on all hosts that share the results. All take the
            # locks in one order, so that no two wait for each other.
            for lock in sorted(map(paths.lock, cells)):
                lock.parent.mkdir(parents=True, exist_ok=True)
                locks.enter_context(locked(lock, _tell))
            series = []
            for index, (cell, definition, number) in enumerate(zip(cells, definitions, numbers, strict=True)):
                round_number = args.round
                if number is None or round_number is None:
                    # The next start, and the round that it belongs to if it begins now.
                    ended = ended_starts(Cells(study).definitions, paths)
                    present = present_round(ended, time.time(), last_seen_s(ended, paths))
                    (_, next_number), present = next_start(ended, cell.id, present)
                    number, round_number = number or next_number, round_number or present
                position = args.position and args.position + index
                start = Start(start=number, round=round_number, position=position)
                outcome = paths.outcome(cell, number)
                if args.unless_done and outcome_of(outcome, definition_sha256(definition)):
                    print(f"{cell.id}, start {number}: it has its outcome already")
                else:
                    attempt = Attempt(args.attempt, args.attempts)
                    series.append(_Series(study, cell, definition, start, paths, attempt))
            return measure_series(series, study, args.with_logs) if series else 0
    except (ForkServerError, OSError) as e:
        if isinstance(e, OSError):  # such as a full disk
            print(file=sys.stderr)  # the log may have had no room for the end of its last line
        print(f"kvsweep measure-cell: {e}", file=sys.stderr)
        return 1


@cache
def _tell(holder: str) -> None:
    print(f"waiting: {holder} measures this cell", flush=True)

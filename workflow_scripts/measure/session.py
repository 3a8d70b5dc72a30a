"""A session: one start of an engine, which serves the requests of one job after another.

The engine runs in a forked process of its own (`measure.run`), which holds the device. Each job is a file in its own
folder of evidence; the process waits for the file of the next job, so that nothing else of the pipeline works while it
measures. What a job observed is complete when its `measured.json` is there.
"""

import math
import os
import shutil
import time
from pathlib import Path

from workflow_scripts.catalog.environments import NEEDED, install, python_of
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import read_end, write_bytes
from workflow_scripts.common.records import Record
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.forkserver import Child, NotImportedError, begin
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import ENGINE_LOG, JOB, WARMUP
from workflow_scripts.study.protocol import SEED

# Written last by the process, beside its input: what it observed.
MEASURED_FILE = "measured.json"
LOOK_S = 0.1
LOG_TAIL_LINES = 60


def end_of_log(evidence: Path) -> str:
    """The last lines of an engine's log."""
    return "\n".join(read_end(evidence / ENGINE_LOG).splitlines()[-LOG_TAIL_LINES:])


class NoEnvironmentError(RuntimeError):
    """An environment that cannot be installed or started, so that no cell of it is measured; the message says why."""


class Job(Record):
    """What an engine has to serve: the cell's definition, and the paths of its inputs and its evidence.

    A calibration has `passes` instead of a warm-up and repeats: which requests of the workload each one serves. No pass
    begins later than `passes_s` after the first, if that is set.

    The session adds the rest. The engine is warmed up once for all its cells: with requests of the files `warmup`, and
    the highest limit of `users`, if each cell has one. `session` is the folder with the log and the temporary files of
    the engine, and `following` the file of the next job, which is written when the session goes on."""

    definition: Definition
    model_dir: Path
    draft_model_dir: Path | None = None
    workload: Path
    evidence: Path
    start_limit_s: float = math.inf
    arrival_seed: int = SEED
    passes: list[list[int]] | None = None
    passes_s: float | None = None
    warmup: list[Path] = []
    users: int | None = None
    session: Path = Path()
    following: Path | None = None


class Session:
    """A start of an engine, for the `jobs` of cells, in their order. Their folders of evidence are new; what is left of
    them when the session is closed is removed. The last one also has the engine's log and temporary files, so it stays
    in its place until then."""

    def __init__(self, *jobs: Job) -> None:
        self._jobs, self._left, self._folder = jobs, [*jobs], jobs[-1].evidence
        self._child: Child | None = None
        self.close()  # a job that a killed command left would be taken for the next one

    def close(self) -> None:
        self._end()
        for job in self._jobs:
            shutil.rmtree(job.evidence, ignore_errors=True)

    def _end(self) -> None:
        """End all processes of the session."""
        child, self._child = self._child, None
        if child:
            child.close()

    @property
    def goes_on(self) -> bool:
        """Whether the engine is up and waits for the next job."""
        return self._child is not None

    def serve(self, job: Job, limit_s: float) -> tuple[int | None, Measured | None]:
        """Serve the next of the jobs. Return the exit status of the process, 0 if it goes on, None if it was killed
        after `limit_s`; and what it observed, None if it broke. Raises as `forkserver.begin` and `Child.wait` do, and
        NoEnvironmentError if an environment other than the default one cannot be installed or started."""
        self._left = self._left[1:]
        users = [getattr(one.definition.knobs, "users", None) for one in self._jobs]
        of_session = {
            "warmup": [*dict.fromkeys(one.workload.with_name(WARMUP) for one in self._jobs)],
            "users": max(filter(None, users)) if all(users) else None,
            "session": self._folder,
            "following": self._left[0].evidence / JOB if self._left else None,
        }
        job.model_copy(update=of_session).write(job.evidence / JOB)
        self._child = self._child or self._begun(job)
        end_s, measured = time.monotonic() + limit_s, job.evidence / MEASURED_FILE
        while (status := self._child.wait(LOOK_S)) is None and time.monotonic() < end_s:
            if measured.exists() and Measured.read(measured).goes_on:  # else the process is about to end
                status = 0
                break
        else:
            self._end()
        record = Measured.read(measured) if status == 0 and measured.exists() else None
        # With a job stays what the engine logged at its start, and since the job began.
        whole = (self._folder / ENGINE_LOG).read_bytes()
        until, since = record.log_bytes if record else (0, 0)
        write_bytes(job.evidence / ENGINE_LOG, whole[:until] + whole[since:])
        return status, record

    def _begun(self, job: Job) -> Child:
        """The process of the engine; its environment is installed if this host lacks it."""
        name, preload = job.definition.environment, get_engine(job.definition.engine).preload
        kind = load_gpus()[job.definition.gpu].kind
        endpoint = job.definition.endpoint
        # What differs in each run, such as a port, is no variable that libraries read on load.
        own = {name: value for name, value in endpoint.environment.items() if "{" not in value} if endpoint else {}
        log = (self._folder / ENGINE_LOG).resolve()
        write_bytes(log, b"")
        words = ("workflow_scripts.measure.run", [str(job.evidence / JOB)], log, {**os.environ, **own})
        if not name:
            return begin(*words, preload)
        if fault := install(name, kind):
            raise NoEnvironmentError(f"environment {name} could not be installed: {fault}")
        try:
            return begin(*words, (*preload, *NEEDED), python_of(name, kind))
        except NotImportedError as e:
            raise NoEnvironmentError(f"environment {name}: {e}") from None

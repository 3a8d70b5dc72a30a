"""A session: one start of an engine, which serves the requests of one job after another.

The engine runs in a forked process of its own (`measure.run`), which holds the device. Each job is a file in its own
folder of evidence; the process waits for the file of the next job, so that nothing else of the pipeline works while it
measures. What a job observed is complete when its `measured.json` is there.
"""

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Self

from workflow_scripts.catalog.environments import NEEDED, install, python_of
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import write_bytes
from workflow_scripts.common.records import Record
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.forkserver import Child, NotImportedError, begin
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import ENGINE_LOG, JOB
from workflow_scripts.study.protocol import SEED

# Written last by the process, beside its input: what it observed.
MEASURED = "measured.json"
LOOK_S = 0.1


class NoEnvironmentError(RuntimeError):
    """An environment that cannot be installed or started, so that no cell of it is measured; the message says why."""


class Job(Record):
    """What an engine has to serve: the cell's definition, and the paths of its inputs and its evidence.

    `session` is the folder with the log and the temporary files of the engine: the evidence of the last job that it
    serves. `following` is the file of the next one; it is written when the session goes on. The engine is warmed up
    once for all cells of the session: with requests of the files `warmup`, and the highest limit of `users`, if each
    cell has one. A calibration has `passes` instead of a warm-up and repeats: which requests of the workload each one
    serves. No pass begins later than `passes_s` after the first, if that is set."""

    definition: Definition
    model_dir: Path
    draft_model_dir: Path | None = None
    workload: Path
    warmup: list[Path] = []
    users: int | None = None
    evidence: Path
    session: Path
    following: Path | None = None
    start_limit_s: float = math.inf
    arrival_seed: int = SEED
    passes: list[list[int]] | None = None
    passes_s: float | None = None


class Session:
    """A context, at whose end all processes of the session are gone."""

    def __init__(self) -> None:
        self._context = contextlib.ExitStack()
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child = None
        self._context.close()

    @property
    def goes_on(self) -> bool:
        """Whether the engine is up and waits for the next job."""
        return self._child is not None

    def serve(self, job: Job, limit_s: float) -> tuple[int | None, Measured | None]:
        """Serve a job: the first one, or the one that the last one said would follow. Return the exit status of the
        process, 0 if it goes on, None if it was killed after `limit_s`; and what it observed, None if it broke. Raises
        as `forkserver.begin` and `Child.wait` do, and NoEnvironmentError if an environment other than the default one
        cannot be installed or started."""
        if self._child is None:
            self._child = self._context.enter_context(_begun(job, limit_s))
        else:
            job.write(job.evidence / JOB)
        end_s, measured = time.monotonic() + limit_s, job.evidence / MEASURED
        while (status := self._child.wait(LOOK_S)) is None and time.monotonic() < end_s:
            if measured.exists() and Measured.read(measured).goes_on:  # else the process is about to end
                status = 0
                break
        else:
            self.__exit__()
        record = Measured.read(measured) if status == 0 and measured.exists() else None
        _keep_own_log(job, record)
        return status, record


def _begun(job: Job, limit_s: float) -> Child:
    """The process of a new session; its environment is installed if this host lacks it."""
    name, preload = job.definition.environment, get_engine(job.definition.engine).preload
    kind = load_gpus()[job.definition.gpu].engine_kind
    job.session.mkdir(parents=True, exist_ok=True)
    job.write(job.evidence / JOB)
    with (job.session / ENGINE_LOG).open("wb") as log:
        words = ("workflow_scripts.measure.run", [str(job.evidence / JOB)], log, dict(os.environ), limit_s)
        if name and (fault := install(name, kind)):
            raise NoEnvironmentError(f"environment {name} could not be installed: {fault}")
        python = python_of(name, kind) if name else None
        try:
            return begin(*words, (*preload, *NEEDED) if name else preload, python)
        except NotImportedError as e:
            if not name:
                raise
            raise NoEnvironmentError(f"environment {name}: {e}") from None


def _keep_own_log(job: Job, measured: Measured | None) -> None:
    """Keep with a job what the engine logged at its start, and since the job began."""
    whole = (job.session / ENGINE_LOG).read_bytes()
    until, since = measured.log_bytes if measured else (0, 0)
    write_bytes(job.evidence / ENGINE_LOG, whole[:until] + whole[since:])

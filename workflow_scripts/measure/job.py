"""The input of the process that measures a cell: the record `job.json`."""

import math
import os
from pathlib import Path

from workflow_scripts.catalog.environments import NEEDED, install, python_of
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import read_json
from workflow_scripts.common.records import Record
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.forkserver import NotImportedError
from workflow_scripts.measure.forkserver import run as run_forked
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import ENGINE_LOG, JOB
from workflow_scripts.study.protocol import SEED

# Written last by that process, beside its input: what it observed.
MEASURED = "measured.json"


class NoEnvironmentError(RuntimeError):
    """An environment that cannot be installed or started, so that no cell of it is measured; the message says why."""


class Job(Record):
    """The cell's definition, and the paths of its inputs and its evidence. A calibration has `passes` instead of a
    warm-up and repeats: which requests of the workload each one serves. No pass begins later than `passes_s` after the
    first, if that is set."""

    definition: Definition
    model_dir: Path
    draft_model_dir: Path | None = None
    workload: Path
    evidence: Path
    start_limit_s: float = math.inf
    arrival_seed: int = SEED
    passes: list[list[int]] | None = None
    passes_s: float | None = None

    def run(self, limit_s: float) -> tuple[int | None, Measured | None]:
        """Run the record, as it was written into the evidence, in a forked process of the cell's environment, which is
        installed if this host lacks it; raises as `forkserver.run` does, and NoEnvironmentError if an environment other
        than the default one cannot be installed or started. Return the process's exit status, None if it was killed
        after `limit_s`, and what it observed, None if it broke."""
        with (self.evidence / ENGINE_LOG).open("wb") as log:
            words = ("workflow_scripts.measure.run", [str(self.evidence / JOB)], log, dict(os.environ), limit_s)
            name, preload = self.definition.environment, get_engine(self.definition.engine).preload
            kind = load_gpus()[self.definition.gpu].engine_kind
            if name and (fault := install(name, kind)):
                raise NoEnvironmentError(f"environment {name} could not be installed: {fault}")
            python = python_of(name, kind) if name else None
            try:
                status = run_forked(*words, (*preload, *NEEDED) if name else preload, python)
            except NotImportedError as e:
                if not name:
                    raise
                raise NoEnvironmentError(f"environment {name}: {e}") from None
        measured = self.evidence / MEASURED
        return status, Measured.model_validate(read_json(measured)) if status == 0 and measured.exists() else None

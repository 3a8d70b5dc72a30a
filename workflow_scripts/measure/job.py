"""The input of the process that measures a cell: the record `job.json`."""

import math
from pathlib import Path

from workflow_scripts.common.files import read_json
from workflow_scripts.common.records import Record
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.protocol import SEED

# Written last by that process, beside its input: what it observed.
MEASURED = "measured.json"


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


def read_job(path: Path) -> Job:
    """Read the record. Raises pydantic.ValidationError if the file does not follow the schema."""
    return Job.model_validate(read_json(path))

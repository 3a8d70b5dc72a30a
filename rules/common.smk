"""The study, its grid and its paths, for all rules."""

import re
import sys
from functools import cache
from pathlib import Path

from workflow_scripts.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.grid import expand
from workflow_scripts.paths import CELL_PATTERN, StudyPaths
from workflow_scripts.study import StudyError, load_study, study_file


PYTHON = sys.executable

try:
    STUDY_FILE = study_file(config, workflow.configfiles)
    STUDY = load_study(STUDY_FILE)
    CELLS = {cell.id: cell for cell in expand(STUDY)}
except StudyError as e:
    raise WorkflowError(str(e)) from None

PATHS = StudyPaths(Path(config["results"]), STUDY.name)
GPUS = tuple(dict.fromkeys(cell.gpu for cell in CELLS.values()))


def one_of(names):
    return "|".join(re.escape(name) for name in sorted(set(names)))


# An off-grid target is an error at once, not a job that fails.
wildcard_constraints:
    gpu=one_of(cell.gpu for cell in CELLS.values()),
    engine=one_of(cell.engine for cell in CELLS.values()),
    model=one_of(cell.model for cell in CELLS.values()),
    workload=one_of(cell.workload for cell in CELLS.values()),
    knobs=one_of(cell.knobs.slug() for cell in CELLS.values()),


def cell_id(wildcards):
    return "/".join((wildcards.gpu, wildcards.engine, wildcards.model, wildcards.workload, wildcards.knobs))


@cache
def definition_of(cell_id):
    return definition_sha256(cell_definition(STUDY, CELLS[cell_id], MODELS))


def most_prompts(model, workload):
    """The most requests that any cell takes from a workload."""
    cells = (cell for cell in CELLS.values() if (cell.model, cell.workload) == (model, workload))
    return max(STUDY.workloads[workload].prompts_for(cell.knobs.max_concurrency) for cell in cells)

"""The study, its grid and its paths, for all rules."""

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from workflow_scripts.catalog.environments import is_installed
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.engines.registry import load_engines, modules_that_predict
from workflow_scripts.questions.all_tables import TABLE_MODULES, TABLES
from workflow_scripts.study.runs_file import files_of
from workflow_scripts.study.definition import (
    cell_definition,
    definition_sha256,
    json_sha256,
    model_key,
    resolved_models,
    workload_key,
)
from workflow_scripts.study.grid import expand as expand_study
from workflow_scripts.study.calibrations import calibrations_of
from workflow_scripts.study.outcome import is_outcome_of
from workflow_scripts.study.paths import CELL_PATTERN, StudyPaths, usable
from workflow_scripts.study.progress import may_grow
from workflow_scripts.common.checkout import CHECKOUT, own_or_of_checkout
from workflow_scripts.common.records import read_yaml
from workflow_scripts.common.sources import sources_sha256
from workflow_scripts.study.study_file import check_config, load_study, store_configs, study_file, without_tokenizer
from workflow_scripts.common.faults import InputError

# A module of another workflow has only the keys that this gives it.
config = read_yaml(CHECKOUT / "config/config.yaml") | config
# Where files of the workflow are: relative in the checkout itself.
HOME = Path() if Path.cwd() == CHECKOUT else CHECKOUT
# Keys of `--config`, each read by the rule that needs it.
CONFIG_KEYS = (
    "study",
    "results",
    "site",
    "runs",
    "against",
    "fail_if_worse",
    "occasions_vary",
    "pick",
)
CONFIG_KEYS += ("workload", "host", "image", "rerun", "tries")
PARSED = ("starts.parquet", "repeats.parquet", "requests.parquet", "steps.parquet", "trace.parquet")

try:
    usable(Path.cwd(), "the working directory")
    usable(CHECKOUT, "the folder of the Snakefile")
    RESULTS = usable(config["results"], "results")
    STUDY_FILE = usable(study_file(config, workflow.configfiles), "the study's file")
    STUDY = load_study(STUDY_FILE, RESULTS)
    check_config(config, CONFIG_KEYS)
    CELLS = {cell.id: cell for cell in expand_study(STUDY)}
    MODELS = resolved_models(STUDY)
    CALIBRATIONS = calibrations_of(STUDY, CELLS.values())
    # Of runs that were measured elsewhere: the files that their mapping file names.
    RUNS = usable(config["runs"], "runs") if "runs" in config else None
    RUN_FILES = [usable(file, f"{RUNS}, a file") for file in files_of(RUNS)] if RUNS else []
except InputError as e:
    raise WorkflowError(str(e)) from None

PUBLISHED = sorted(map(str, HOME.glob("config/published/*.*"))) if STUDY.claims else []
PATHS = StudyPaths(RESULTS, STUDY.name)

# Variables of every command. In the text of the rules they would make a study under another path look like other code.
COMMAND_ENVIRONMENT = [f"STUDY={quote(str(STUDY_FILE))}", f"RESULTS={quote(str(PATHS.results))}"]
# A file yaml.py in the working folder is no module of a command.
COMMAND_ENVIRONMENT += ["PYTHONSAFEPATH=1"]
COMMAND_ENVIRONMENT += [f"PYTHONPATH={quote(str(CHECKOUT))}${{{{PYTHONPATH:+:$PYTHONPATH}}}}"]
COMMAND_ENVIRONMENT += [f"PATH={quote(str(Path(sys.executable).parent))}:$PATH"]
shell.prefix(f"set -euo pipefail; export {' '.join(COMMAND_ENVIRONMENT)}; ")

# Set by the slurm profile; then cells are measured in batches (rules/cluster.smk).
CELLS_PER_JOB = workflow.resource_settings.overwrite_scatter.get("cells_per_job")

# Targets that read what is there, and wait for no measurement.
READS = {"plan", "partial_report", "import_runs", "status", "check_study", "fetch_sharegpt", "prepare", "compare"}


def measures():
    """Whether what is drawn waits for measurements. Only for functions of inputs, params and resources: Snakemake knows
    its targets after reading the rules."""
    targets = set(workflow.dag_settings.targets)
    return workflow.is_main_process and (not targets or not targets <= READS)


class Measuring(NamedTuple):
    """What and where this call measures, as rules/machine.smk or rules/cluster.smk define it.

    `batches`: those known in advance, by GPU and key, in the order of their rounds. `decided`: the number of the first
    round that is decided while measuring; None if there is none. `of_round` makes the batches of a round. `gpus`: the
    devices whose cells this call can measure. `again`: starts that are tried again, with their outcomes. `left`: cells without a device on this machine, and `why_left` in words.
    `calibrated`: lists of devices that share a calibration job. `on_nodes`: rules that run on a cluster's nodes.
    """

    batches: dict = {}
    decided: int | None = None
    of_round: Callable | None = None
    gpus: tuple = ()
    again: dict = {}
    left: dict = {}
    why_left: str = ""
    calibrated: list = []
    resources: dict = {}
    calibrate_resources: dict = {}
    prepare_resources: dict = {}
    setup: str = ""
    launcher: str = ""
    attempts: int = 1
    threads: int = workflow.resource_settings.cores or 1
    on_nodes: tuple = ()


# Settings of the study besides its cells that tables and pages read; an edit of them makes these again.
SETTINGS = STUDY.model_dump_json(include={"question", "equivalence_margin_pct", "slo", "claims"})

GPUS = tuple(dict.fromkeys(cell.gpu for cell in CELLS.values()))


def one_of(names):
    return "|".join(re.escape(name) for name in sorted(set(names)))


# A target outside the grid is an error at once, not a job that fails. Knobs are looked up by `cell_id` instead: a
# pattern of thousands of them would cost more than the rest of planning.
wildcard_constraints:
    gpu=one_of(cell.gpu for cell in CELLS.values()),
    engine=one_of(cell.engine_at for cell in CELLS.values()),
    model=one_of(MODELS),
    workload=one_of(cell.workload for cell in CELLS.values()),
    knobs="[^/]+",
    key="[0-9a-f]{8}",
    prompts="[0-9]+",


def cell_id(wildcards):
    id = "/".join((wildcards.gpu, wildcards.engine, wildcards.model, wildcards.workload, wildcards.knobs))
    if id not in CELLS:
        raise WorkflowError(f"study {STUDY.name!r} has no cell {id!r}")
    return id


@cache
def definition(cell_id):
    return cell_definition(STUDY, CELLS[cell_id], MODELS)


@cache
def prepared_model(model):
    return PATHS.model(model, model_key(MODELS[model])) / "config.json"


@cache
def prepared_workload(cell_id):
    cell = CELLS[cell_id]
    return PATHS.workload(cell.model, cell.workload, workload_key(definition(cell_id)))


def prepared_models(cell_id):
    """Those of the cell's model and of its draft model, if it has one."""
    cell = CELLS[cell_id]
    return [prepared_model(model) for model in (cell.model, cell.knobs.draft_model) if model is not None]


def environments_of(cell_id):
    """The record of the cell's environment; none for the default one."""
    cell = CELLS[cell_id]
    return [PATHS.environment(cell.environment, load_gpus()[cell.gpu].engine_kind)] if cell.environment else []


def needed_to_measure(wildcards):
    """The prepared files of a cell; none if they are missing but the cell is measured, for example on another host."""
    cell = cell_id(wildcards)
    files = [*prepared_models(cell), prepared_workload(cell), *environments_of(cell)]
    if not all(file.exists() for file in files) and is_current(cell):
        return []
    return [ancient(file) for file in files]


def is_current(cell, start=1):
    """Whether the outcome of a start of the cell is there and matches the cell's present definition."""
    return is_outcome_of(PATHS.outcome(cell, start), definition_sha256(definition(cell)))


def all_measured(gpu):
    return all(PATHS.outcome(id).exists() for id, cell in CELLS.items() if cell.gpu == gpu and id not in MEASURING.left)


def is_complete():
    """Whether all measurements of the study have ended."""
    return all(len(PATHS.outcomes(id)) >= STUDY.starts.at_least for id in CELLS) and not may_grow(STUDY, PATHS)


def now_if_unfinished(wildcards):
    """A parameter of what each `partial_report` writes again until all is measured: it says what is being measured."""
    return 0 if measures() or is_complete() else int(time.time())


def device_records(gpus=GPUS):
    """Records of the devices' rates; none for a device whose cells were all measured on another host. On a cluster the
    jobs that measure cells make them."""
    only_known = CELLS_PER_JOB or not measures()
    wanted = [gpu for gpu in gpus if PATHS.device(gpu).exists() or not (only_known or all_measured(gpu))]
    return [PATHS.device(gpu) for gpu in wanted]


def rates_to_predict_with():
    """What is new when devices' rates are: the lists of what has ended, which come after them. A plan alone
    waits for no list."""
    is_plan = set(workflow.dag_settings.targets) == {"plan"}
    return [PATHS.ended(gpu) for gpu in GPUS if PATHS.ended(gpu).exists() or not is_plan]


def other_runs(key):
    """The other runs for `compare`: a list, or text with commas."""
    named = config.get(key) or []
    places = named if isinstance(named, list) else str(named).split(",")
    if missing := [place for place in places if not Path(place).exists()]:
        raise WorkflowError(f"--config {key}=: there is no {', '.join(map(str, missing))}")
    if not places:
        raise WorkflowError(f"name what to compare with: --config {key}=REPORT, a study's folder, or an archive")
    return places


def runs_to_import():
    """The mapping file of the runs that `import_runs` reads."""
    if RUNS is None:
        raise WorkflowError("name the mapping file of the runs: --config runs=FILE (docs/importing.md)")
    return RUNS


def calibration_records():
    """Records of the calibrations that `snakemake calibrate` made."""
    records = (PATHS.calibration(name) for name in CALIBRATIONS)
    return [record for record in records if record.exists()]


def calibrations_sha256(gpus):
    """A hash over everything that the calibrations of some devices depend on."""
    wanted = {}
    for name, calibration in CALIBRATIONS.items():
        if calibration.cell.gpu in gpus:
            cell = definition(calibration.cell.id).as_json()
            parts = [cell["model"], cell["knobs"], cell["protocol"]]
            wanted[name] = [*parts, calibration.sequences, calibration.tokens]
    return json_sha256(wanted)


def table(name):
    return PATHS.tables / f"{name}.parquet"

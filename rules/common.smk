"""The study, its grid and its paths, for all rules."""

import re
import sys
from functools import cache
from itertools import count, islice, takewhile
from pathlib import Path
from shlex import quote

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.cluster.batches import Round, gpus_of
from workflow_scripts.cluster.pending import Pending, starts_of
from workflow_scripts.cluster.site import Attempt, cells_per_job, job_resources, load_site
from workflow_scripts.cluster.site import queue_resources, what_fits
from workflow_scripts.cluster.terminal_lines import TerminalLines
from workflow_scripts.common.files import read_json
from workflow_scripts.engines.registry import modules_that_predict
from workflow_scripts.questions.all_tables import TABLE_MODULES, TABLES
from workflow_scripts.study.runs_file import files_of
from workflow_scripts.study.definition import Cells, json_sha256, model_key, resolved_models, workload_key
from workflow_scripts.study.calibrations import calibrations_of
from workflow_scripts.study.gpus_here import cells_without_gpu, gpus_here, unmeasurable, what_is_left
from workflow_scripts.study.paths import CELL_PATTERN, StudyPaths, usable
from workflow_scripts.study.rounds import RoundPlan
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
CONFIG_KEYS = "study results site runs against fail_if_worse occasions_vary pick host".split()
CONFIG_KEYS += ["partial", "rerun", "tries"]
# A dry run and --verbose show all that Snakemake says.
IS_BRIEF = not (workflow.output_settings.dryrun or workflow.output_settings.verbose)
LINES = TerminalLines(logger.handlers, lambda: measuring_jobs(), IS_BRIEF) if workflow.is_main_process else None
PARSED = ("starts.parquet", "repeats.parquet", "requests.parquet", "steps.parquet", "trace.parquet")

try:
    check_config(config, CONFIG_KEYS)
    usable(Path.cwd(), "the working directory")
    usable(CHECKOUT, "the folder of the Snakefile")
    RESULTS = usable(config["results"], "results")
    STUDY_FILE = usable(study_file(config, workflow.configfiles), "the study's file")
    STUDY = load_study(STUDY_FILE, RESULTS)
    GRID = Cells(STUDY)
    CELLS = GRID.cells
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

# Draw the report of what is there, and wait for no measurement.
PARTIAL = bool(config.get("partial"))

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
    round="[0-9]+",
    batch="x[0-9+]+b[01]*-[0-9a-f]{8}(-[0-9]+)?",


def cell_id(wildcards):
    id = "/".join((wildcards.gpu, wildcards.engine, wildcards.model, wildcards.workload, wildcards.knobs))
    if id not in CELLS:
        raise WorkflowError(f"study {STUDY.name!r} has no cell {id!r}")
    return id


@cache
def prepared_model(model):
    return PATHS.model(model, model_key(MODELS[model])) / "config.json"


@cache
def prepared_workload(cell_id):
    cell = CELLS[cell_id]
    return PATHS.workload(cell.model, cell.workload, workload_key(GRID.measured[cell_id]))


def prepared_models(cell_id):
    """Those of the cell's model and of its draft model, if it has one."""
    cell = CELLS[cell_id]
    return [prepared_model(model) for model in (cell.model, cell.knobs.draft_model) if model is not None]


def environments_of(cell_id):
    """The record of the cell's environment, of a new attempt if it is not there; none for the default one."""
    cell = CELLS[cell_id]
    kind = load_gpus()[cell.gpu].kind
    return [current_attempt(cell.environment, kind)] if cell.environment else []


@cache
def current_attempt(environment, kind):
    attempts = PATHS.environments(environment, kind)
    if not workflow.is_main_process:  # inside a job, the record that it was given
        return [*takewhile(Path.exists, attempts)][-1]
    return next(path for path in attempts if not path.exists() or read_json(path)["fault"] is None)


def ancient_files(cells):
    """The prepared files of cells. `ancient`: they never change, but may be newer than results from elsewhere."""
    files = {file for id in cells for file in (*prepared_models(id), prepared_workload(id), *environments_of(id))}
    return [ancient(file) for file in sorted(files)]


def other_runs(key):
    """The other runs for `compare`: a list, or text with commas."""
    named = config.get(key) or []
    places = named if isinstance(named, list) else str(named).split(",")
    if missing := [place for place in places if not Path(place).exists()]:
        raise WorkflowError(f"--config {key}=: there is no {', '.join(map(str, missing))}")
    if not places:
        raise WorkflowError(f"name what to compare with: --config {key}=FOLDER of a study")
    return places


def calibration_records():
    """Records of the calibrations that `snakemake calibrate` made."""
    records = (PATHS.calibration(name) for name in CALIBRATIONS)
    return [record for record in records if record.exists()]


def calibrations_sha256(gpus):
    """A hash over everything that the calibrations of some devices depend on."""
    wanted = {}
    for name, calibration in CALIBRATIONS.items():
        if calibration.cell.gpu in gpus:
            cell = GRID.measured[calibration.cell.id].as_json()
            parts = [cell["model"], cell["knobs"], cell["protocol"]]
            wanted[name] = [*parts, calibration.sequences, calibration.tokens]
    return json_sha256(wanted)


def table(name):
    return PATHS.tables / f"{name}.parquet"

"""The command `kvsweep`: every command of the project, by name.

A command is registered here, with the module that holds its `main`; its one sentence in the overview is the first line
of that module. Only the module of the command that is called is imported.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from workflow_scripts import __version__
from workflow_scripts.common.checkout import CHECKOUT, how_to_install
from workflow_scripts.common.command import BAD_INPUT, run_command

GROUPS = {
    "Questions that need no engine and no study": {
        "audit": "questions.claims.audit",
        "capacity": "engines.vllm.capacity",
        "log": "parse.engine_log",
        "trace": "parse.device_trace",
        "predict": "predict.predict_cell",
        "hits": "predict.hits",
        "trace-blocks": "predict.block_trace",
    },
    "A study, before and after it is measured": {
        "init": "study.first_study",
        "check": "study.check",
        "plan": "predict.plan",
        "sbatch": "cluster.site",
        "status": "study.status",
        "archive": "study.archive",
        "report": "study.report_of_archive",
        "columns": "questions.table_docs",
        "tables": "questions.make_tables",
        "compare": "present.compare",
        "export": "deploy.export",
    },
}
STEPS = {
    "Steps of the workflow; Snakemake calls them": {
        "install-environment": "catalog.environments",
        "prepare-model": "prepare.model",
        "prepare-workload": "prepare.workload",
        "measure-device": "measure.device_speed",
        "calibrate": "measure.calibration_run",
        "measure-cell": "measure.cell",
        "measure-batch": "measure.batch",
        "list-ended": "cluster.batches",
        "parse-cells": "parse.cell_tables",
        "read-imported": "parse.imported_runs",
        "figures": "present.figures",
        "next-round": "questions.knobs.decide_round",
        "draw-report": "present.page",
    },
    "Upkeep of the project": {"write-schemas": "study.schemas", "write-arguments": "engines.write_arguments"},
    "Processes that other commands start": {"sample-device": "measure.trace"},
}
COMMANDS = {name: module for group in (GROUPS | STEPS).values() for name, module in group.items()}
_HEAD = """usage: kvsweep COMMAND [OPTIONS]

`kvsweep COMMAND --help` explains a command and its options. `kvsweep --help-steps` lists those for rules and upkeep.
`kvsweep --folder` prints the folder of Snakefile and config/.
"""
_END = """
Exit codes: 0: done; 1: a fault of the infrastructure; 2: bad input, with a message that says what is wrong, where, and
which values are allowed. A command that has others says so.
"""


def sentence(module: str) -> str:
    """What a module is for: the first line of its docstring, read without importing it."""
    path = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    with path.open(encoding="utf-8") as lines:
        return next(lines).strip().removeprefix("r").strip('"')


def overview(groups: Mapping[str, Mapping[str, str]]) -> str:
    width = max(len(name) for group in groups.values() for name in group) + 2
    parts = [_HEAD]
    for group, commands in groups.items():
        parts += [f"\n{group}:\n", *(f"  {name:{width}}{sentence(module)}\n" for name, module in commands.items())]
    return "".join(parts) + _END


def main(argv: Sequence[str] | None = None) -> int:
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("--help", "-h"):
        print(overview(GROUPS), end="")
        return 0
    if name == "--help-steps":
        print(overview(STEPS), end="")
        return 0
    if name == "--version":
        print(f"kvsweep {__version__}")
        return 0
    if name == "--folder":
        print(CHECKOUT)
        return 0
    if name not in COMMANDS:
        from workflow_scripts.common.wording import allowed_names  # not imported for the overview

        public = [command for group in GROUPS.values() for command in group]
        print(f"kvsweep: no command {name!r}; {allowed_names(name, public)}", file=sys.stderr)
        return BAD_INPUT
    try:
        status: int = importlib.import_module(f"workflow_scripts.{COMMANDS[name]}").main(words)
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("workflow_scripts"):
            raise
        print(
            f"kvsweep {name}: this environment lacks {e.name}; a full one: {how_to_install('cpu')}"
            f" or, for NVIDIA GPUs, {how_to_install('cuda')}",
            file=sys.stderr,
        )
        return BAD_INPUT
    return status


def console() -> None:
    run_command(main)


if __name__ == "__main__":
    run_command(main)

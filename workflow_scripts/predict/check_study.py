"""Ask the installed vLLM whether it accepts the settings of a study.

    kvsweep check-engines --study config/studies/paged_attention.yaml

Needs no GPU, weights or network. Each distinct setting goes through vLLM's own argument parser and, if this host has a
device of that kind, its config classes, with the model's configuration from config/models/; other engines say what they
refuse when they start. Before that, the installed versions are compared with those that the pipeline can measure. It
takes about 15 s for each environment, nearly all of it for imports, so only this command does it, not a dry run. It
prints one line per fault: sweep, settings, and the reason in vLLM's words. A cell predicted to end as `infeasible` is a
result, not a fault; it is listed as a note. Cells in another environment are checked by its own Python, if it is
installed.
"""

import importlib.util
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.environments import is_installed, python_of
from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models
from workflow_scripts.common.checkout import CHECKOUT, how_to_install
from workflow_scripts.common.command import STUDY, command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.engines.vllm.check import Fault, Setting, vllm_faults
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.predict.capacity_of_cells import predict_study
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.study_file import load_study


def check_cells(cells: Iterable[Cell]) -> Iterator[tuple[list[Cell], Fault]]:
    """Every fault with the cells that have it; settings that differ only in the workload are checked once."""
    alike: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        if get_engine(cell.engine).library == VLLM.library:
            alike.setdefault((cell.engine, cell.gpu, cell.model, cell.knobs), []).append(cell)
    groups = list(alike.values())
    faults = vllm_faults([_setting(group[0]) for group in groups])
    yield from ((group, fault) for group, fault in zip(groups, faults, strict=True) if fault is not None)


def _setting(cell: Cell) -> Setting:
    models, gpu, draft = load_models(), load_gpus()[cell.gpu], cell.knobs.draft_model
    return Setting(
        gpu=gpu,
        model_dir=models[cell.model].config.parent,
        dtype=dtype_on(models[cell.model].dtype, gpu, cpu_here(gpu)),
        knobs=cell.knobs,
        draft_dir=models[draft].config.parent if draft else None,
        serves=get_engine(cell.engine).serves,
    )


def fault_lines(study: Path, faults: Iterable[tuple[list[Cell], Fault]]) -> list[str]:
    """One line per fault; a fault that several devices share is one line."""
    gpus: dict[tuple[str, str], list[str]] = {}
    for cells, fault in faults:
        values, first = cells[0].knobs.set_values(), cells[0]
        setting = ", ".join(f"{name}={value}" for name, value in values.items())
        sweeps = ", ".join(dict.fromkeys(sweep for cell in cells for sweep in cell.sweeps))
        where = f"{study}: sweep {sweeps}: {first.engine_at} with {first.model} on"
        gpus.setdefault((where, f"{setting}: {fault.words}"), []).extend(cell.gpu for cell in cells)
    return [f"{where} {', '.join(dict.fromkeys(on))}: {refusal}" for (where, refusal), on in gpus.items()]


def notes(cells: Sequence[Cell]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for capacity in predict_study(cells):
        if capacity.infeasible:
            reasons.setdefault(capacity.infeasible, []).append(capacity.cell_id)
    return [
        f"note: {len(ids)} cell{'s' * (len(ids) > 1)} will probably end as infeasible, for example {ids[0]}: {reason}"
        for reason, ids in reasons.items()
    ]


def unsupported(cells: Iterable[Cell]) -> Iterator[str]:
    """A line for each engine of the cells whose installed version its adapter cannot measure."""
    for engine in map(get_engine, dict.fromkeys(cell.engine for cell in cells)):
        if (package := engine.installed()) and not engine.supports(package[1]):
            yield f"{engine.name} can be measured with {package[0]} {engine.versions}; {package[1]} is installed here"


def check_here(study: Path, cells: Sequence[Cell]) -> None:
    """Check cells with the engines of this Python, and print notes. Raises InputError with one line per fault."""
    asked = VLLM.library in {get_engine(cell.engine).library for cell in cells}
    if asked and importlib.util.find_spec(VLLM.library) is None:
        raise InputError("vllm is not installed here; run this in the environment that measures")
    if wrong := list(unsupported(cells)):
        raise InputError("\n".join(wrong))
    cell_faults = list(check_cells(cells))
    lacking = fault_lines(study, (pair for pair in cell_faults if pair[1].lacks))
    unchecked = fault_lines(study, (pair for pair in cell_faults if pair[1].only_here))
    infeasible = [f"note: will end as infeasible: {line}" for line in lacking]
    for note in [*notes(cells), *infeasible, *(f"note: this installation cannot check {line}" for line in unchecked)]:
        print(note)
    if faults := fault_lines(study, (pair for pair in cell_faults if not (pair[1].only_here or pair[1].lacks))):
        raise InputError("\n".join(faults))
    by = " ".join(VLLM.installed() or [VLLM.name]) if asked else "no engine, because vLLM alone can be asked"
    print(f"{study}: {len(cells)} cells, no setting refused; checked with {by}")


def check_elsewhere(study: Path, environment: str, kind: str, count: int) -> bool:
    """Have an environment's Python check its cells, of which there are `count`; whether there was no fault."""
    if not is_installed(environment, kind):
        lock = f"{environment}-{kind}"
        print(f"note: {count} cells are not checked: {lock} is not installed yet ({how_to_install(lock)})")
        return True
    words = [str(python_of(environment, kind)), "-m", "workflow_scripts", "check-engines", "--study", str(study)]
    path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
    sys.stdout.flush()
    try:
        return not subprocess.call([*words, "--within", environment, kind], env={**os.environ, "PYTHONPATH": path})
    except OSError as e:
        raise InputError(f"environment {environment}: {words[0]}: {e.strerror}") from None


@command(
    "check-engines",
    STUDY,
    option(
        "--within",
        nargs=2,
        metavar=("NAME", "KIND"),
        help="only the cells in this environment, whose Python this is; the command calls itself so",
    ),
)
def main(args: Namespace) -> None:
    by_environment: dict[tuple[str, str], list[Cell]] = {}
    for cell in expand(load_study(args.study)):
        kind = load_gpus()[cell.gpu].engine_kind if cell.environment else ""
        by_environment.setdefault((cell.environment, kind), []).append(cell)
    if args.within:
        return check_here(args.study, by_environment.get(tuple(args.within), []))
    here = by_environment.pop(("", ""), [])
    refused = ["-".join(at) for at, cells in by_environment.items() if not check_elsewhere(args.study, *at, len(cells))]
    if here or not by_environment:
        check_here(args.study, here)
    if refused:
        raise InputError(f"refused in {', '.join(refused)}, for the reasons above")

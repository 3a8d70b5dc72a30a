"""Ask the installed vLLM whether it accepts the settings of a study.

    kvsweep check-engines --study config/studies/paged_attention.yaml

Needs no GPU, weights or network. Each distinct setting goes through vLLM's own argument parser and, if this host has a
device of that kind, its config classes, with the model's configuration from config/models/; other engines say what they
refuse when they start. It takes about 15 s, nearly all of it for imports, so only this command does it, not a dry run.
It prints one line per fault: sweep, settings, and the reason in vLLM's words. Cells of another version of vLLM are left
to the Python of their environment. `kvsweep plan` says which cells will probably end as infeasible.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.environments import version_of
from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models
from workflow_scripts.common.command import STUDY, command
from workflow_scripts.common.faults import InputError
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.engines.vllm.check import Fault, Setting, vllm_faults
from workflow_scripts.engines.vllm.knobs import VLLM
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


@command("check-engines", STUDY)
def main(args: Namespace) -> None:
    if (installed := VLLM.installed()) is None:
        raise InputError("vllm is not installed here; run this in the environment that measures")
    if not VLLM.supports(installed[1]):
        raise InputError(f"vllm can be measured with {VLLM.versions}; {installed[1]} is installed here")
    cells = expand(load_study(args.study))
    here = [cell for cell in cells if not cell.environment or version_of(cell.environment) == installed[1]]
    if len(here) < len(cells):
        print(f"note: {len(cells) - len(here)} cells are of other environments, whose own Python can check them")
    faults = list(check_cells(here))
    for line in fault_lines(args.study, (pair for pair in faults if not pair[1].refused)):
        print(f"note: not checked: {line}")
    if refused := fault_lines(args.study, (pair for pair in faults if pair[1].refused)):
        raise InputError("\n".join(refused))
    print(f"{args.study}: {len(here)} cells, no setting refused; checked with {' '.join(installed)}")

"""Starts that are measured again although they have ended: failed ones, or those that a call asks for.

A failure may be one of the installation or of the moment, so the next call tries it again, at most `tries` times with
the same code, packages and driver. The old record and its evidence stay beside the new ones, in `attempt-N/`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from workflow_scripts.catalog.environments import load_environments
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.checkout import CHECKOUT, commit_of
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import sha256_of
from workflow_scripts.engines.installation import installed_versions, lock_of, lock_sha256, missing_packages
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.outcome import FAILED, outcome_in
from workflow_scripts.study.paths import ATTEMPT_FOLDER, MEASURE_LOG, OUTCOME, RAW, StudyPaths
from workflow_scripts.study.rounds import CellStart, EndedStarts

ONLY_FAILED, _NONE, ALL = "failed", "none", "all"
_DRIVER = Path("/proc/driver/nvidia/version")


def installation_of(cell: Cell) -> Mapping[str, object]:
    """What a failure of a cell here may come from: fields of provenance, and the driver, as far as they are known. What
    is not, as where a container measures, does not tell installations apart."""
    return _installation(cell.engine, cell.environment, load_gpus()[cell.gpu].kind)


@cache
def _installation(engine: str, environment: str, kind: str) -> Mapping[str, object]:
    known: dict[str, object] = {"git_commit": commit_of(CHECKOUT)[0]}
    text = _DRIVER.read_text(encoding="utf-8") if kind != "cpu" and _DRIVER.exists() else ""
    if found := re.search(r"\s(\d+\.[\d.]+)\s", text):
        known["driver_version"] = found[1]
    if environment:
        return known | {"lock_sha256": sha256_of(load_environments()[environment][kind])}
    if get_engine(engine).installed() is None or missing_packages(get_engine(engine)):
        return known
    return known | {"versions": installed_versions(), "lock_sha256": lock_sha256(lock_of(engine))}


def attempts(folder: Path) -> list[Path]:
    """The records of earlier attempts of the start in `folder`, in their order."""
    found = (path for path in folder.glob(f"{ATTEMPT_FOLDER}*/{OUTCOME}"))
    return sorted(found, key=lambda path: int(path.parent.name.removeprefix(ATTEMPT_FOLDER)))


def is_tried_again(folder: Path, cell: Cell, tries: int) -> bool:
    """Whether the failed start in `folder` has had fewer than `tries` attempts with the present installation."""
    here, before = installation_of(cell), 0
    for record in filter(None, map(outcome_in, (folder / OUTCOME, *attempts(folder)))):
        # One without a driver may be of any.
        driver = record.device.get("driver_version") or here.get("driver_version")
        before += here.items() <= {**record.provenance, "driver_version": driver}.items()
    return before < tries


def chosen(cells: Iterable[Cell], rerun: str) -> list[Cell]:
    """The cells that `rerun` is about."""
    return [cell for cell in cells if rerun in (ONLY_FAILED, _NONE, ALL) or fnmatchcase(cell.id, rerun)]


def check_rerun(cells: Iterable[Cell], rerun: str) -> None:
    """Raise InputError if `rerun` is a pattern that is no cell's."""
    if not chosen(cells, rerun) and rerun not in (ONLY_FAILED, _NONE, ALL):
        raise InputError(f"--config rerun={rerun}: no cell has such a name; allowed: failed, none, all, or a pattern")


def to_rerun(
    ended: EndedStarts, cells: Iterable[Cell], paths: StudyPaths, rerun: str = ONLY_FAILED, tries: int = 2
) -> dict[CellStart, str]:
    """The starts that this call measures again, with their outcomes. `rerun`: `failed`, `none`, `all`, or a pattern of
    cells (`*` stands for any text)."""
    found = {}
    for cell in chosen(cells, rerun) if rerun != _NONE else ():
        for start, end in ended.get(cell.id, {}).items():
            if rerun == ONLY_FAILED and end.outcome not in FAILED:
                continue
            if rerun != ONLY_FAILED or is_tried_again(paths.start(cell, start), cell, tries):
                found[CellStart(cell.id, start)] = end.outcome
    return found


def in_words(reruns: Mapping[CellStart, str]) -> str:
    """How many starts of how many cells are tried again.

    >>> in_words({CellStart("a", 1): "timeout", CellStart("b", 1): "engine_error", CellStart("c", 1): "engine_error"})
    '3 cells are tried again: engine_error 2, timeout 1'
    """
    cells = len({start.cell for start in reruns})
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(reruns.values()).items()))
    return f"{cells} {'cell is' if cells == 1 else 'cells are'} tried again: {kinds}"


def set_aside(folder: Path) -> None:
    """Move the record, the evidence and the log of the start in `folder` into its next `attempt-N/`. The record is
    last: if this is interrupted, the start still counts as ended, and the next call completes the move."""
    target = folder / f"{ATTEMPT_FOLDER}{len(attempts(folder)) + 1}"
    target.mkdir(exist_ok=True)
    for name in (RAW, MEASURE_LOG, OUTCOME):
        if (folder / name).exists() and not (target / name).exists():
            (folder / name).replace(target / name)

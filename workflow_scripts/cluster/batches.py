"""List the cells of a GPU that have ended.

    kvsweep list-ended --study config/studies/demo.yaml --gpu h200 --out ended.json

Parsing waits for this list, which has a hash of each outcome.

A batch is a list of cells of one GPU type and one model, which share one cluster job. Its key follows from its cells
and their definitions, and its file tells the job what to measure. Only the cells' own files decide what is done: a
cell is done if its `outcome.json` belongs to its present definition, whichever batch, call or machine produced it.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workflow_scripts.common.command import RESULTS, STUDY, command, option, out
from workflow_scripts.common.files import read_json, sha256_of, write_json
from workflow_scripts.study.definition import json_sha256
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study


@dataclass(frozen=True)
class Batch:
    """Cells that one job measures one after another, by their ids."""

    gpu: str
    key: str
    cells: tuple[str, ...]


def batches(cells: Iterable[Cell], definitions: Mapping[str, str], size: int) -> Iterator[Batch]:
    """Batches of at most `size` cells; `definitions` holds the hash of each cell's definition.

    Cells of one model follow each other, so that its weights stay in the node's page cache.
    """
    alike: dict[tuple[str, str, int], list[str]] = {}
    for cell in cells:
        alike.setdefault((cell.gpu, cell.model, cell.knobs.ranks), []).append(cell.id)
    for (gpu, _, _), ids in alike.items():
        for first in range(0, len(ids), size):
            some = tuple(ids[first : first + size])
            yield Batch(gpu, json_sha256({cell: definitions[cell] for cell in some})[:8], some)


def write_batch(path: Path, batch: Batch) -> None:
    """Write what a batch measures, for its job; the name depends on the content, so an existing file is right."""
    if not path.exists():
        write_json(path, list(batch.cells))


def read_batch(path: Path) -> tuple[str, ...]:
    """The ids of the cells of a batch."""
    return tuple(read_json(path))


def ended_cells(cells: Iterable[Cell], paths: StudyPaths) -> dict[str, str]:
    """The starts of cells that have an outcome, by their folders below `cells/`, with the SHA-256 of its record."""
    return {
        path.parent.relative_to(paths.root / "cells").as_posix(): sha256_of(path)
        for cell in cells
        for path in paths.outcomes(cell).values()
    }


def write_ended(path: Path, ended: dict[str, str]) -> None:
    """Write the list only if it changed: a newer file would cause everything to be parsed and drawn again."""
    if not path.exists() or read_json(path) != ended:
        write_json(path, ended)


@command(
    "list-ended",
    STUDY,
    RESULTS,
    option("--gpu", required=True, help="the GPU's name in the study"),
    out("the JSON file to write"),
)
def main(args: Namespace) -> None:
    """List the cells of a GPU that have ended."""
    study = load_study(args.study)
    cells = [cell for cell in expand(study) if cell.gpu == args.gpu]
    write_ended(args.out, ended_cells(cells, StudyPaths(args.results, study.name)))

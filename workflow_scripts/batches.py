"""Which cells are still to be measured, and which of them share one job of a cluster.

A batch is a list of cells of one GPU type and one model. Its key follows from its cells and their definitions, and its
file says to the job what to measure. The cells' own files are what counts: a cell is done when its `outcome.json` is
that of its present definition, whichever batch, call or machine it comes from.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workflow_scripts.definition import definition_sha256
from workflow_scripts.files import read_json, write_json
from workflow_scripts.grid import Cell


@dataclass(frozen=True)
class Batch:
    """Cells that one job measures one after another, by their ids."""

    gpu: str
    key: str
    cells: tuple[str, ...]


def batches(cells: Iterable[Cell], definitions: Mapping[str, str], size: int) -> Iterator[Batch]:
    """Batches of at most `size` cells; `definitions` holds the hash of each cell's definition.

    Cells of one model come after one another, so that its weights stay in the node's page cache.
    """
    alike: dict[tuple[str, str, int], list[str]] = {}
    for cell in cells:
        knobs = cell.knobs.set_values()
        ranks = knobs.get("tensor_parallel_size", 1) * knobs.get("pipeline_parallel_size", 1)
        alike.setdefault((cell.gpu, cell.model, ranks), []).append(cell.id)
    for (gpu, _, _), ids in alike.items():
        for first in range(0, len(ids), size):
            some = tuple(ids[first : first + size])
            yield Batch(gpu, definition_sha256({cell: definitions[cell] for cell in some})[:8], some)


def write_batch(path: Path, batch: Batch) -> None:
    """Write what a batch measures, for its job; the name says the content, so a file that is there is right."""
    if not path.exists():
        write_json(path, list(batch.cells))


def read_batch(path: Path) -> tuple[str, ...]:
    """The ids of the cells of a batch."""
    return tuple(read_json(path))

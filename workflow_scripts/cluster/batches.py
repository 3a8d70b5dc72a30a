"""Batches: which starts one job measures, and the manifest that it leaves: the starts with the hash of each outcome.

    kvsweep list-ended --measured results/demo/measured --names h200/round-1/x1b-0a1b2c3d --out round-1.json

merges manifests into the list of a round.

The sessions of a round are the leaves of a binary tree, in a random order of the round's own. A batch is a part of
this tree, so its cells are a random part of the round. Its name says which part, and has a hash of the starts and
definitions in it: what a batch measures follows from its name and the study alone, and copied manifests of another
definition are none of the study. A job leaves out what has its outcome, so what is pending can be packed anew in each
call: the largest parts with no more pending starts than a job should have.
"""

import hashlib
from argparse import Namespace
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import TypedDict

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json, write_json
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.paths import start_folder
from workflow_scripts.study.rounds import CellStart, in_random_order


@dataclass(frozen=True)
class Batch:
    """Starts of cells that one job measures in turn, with the place of each in its round. `gpus` are joined by `+`;
    `part` is its place in the tree, and `name` has a hash of what it measures too."""

    gpus: str
    round: int
    part: str
    name: str
    starts: tuple[CellStart, ...]
    places: Mapping[CellStart, int] = field(hash=False)


class Round:
    """The starts of a round as trees: one for each device and number of devices."""

    def __init__(self, number: int, starts: Iterable[CellStart], grid: Cells) -> None:
        self.number, self._grid = number, grid
        trees: dict[tuple[str, int], list[tuple[str, CellStart]]] = {}
        for start in starts:
            trees.setdefault(grid.needs(grid.cells[start.cell]), []).append((self._branch(start.cell), start))
        self._trees = {needs: sorted(leaves) for needs, leaves in trees.items()}
        self._places: dict[str, dict[str, int]] = {}

    def _branch(self, cell: str) -> str:
        """Where a cell is in its tree: 32 bits of its session, and 32 of its own."""
        parts = (self._grid.sessions[cell], cell)
        digits = (hashlib.sha256(f"{self.number} {part}".encode()).hexdigest()[:8] for part in parts)
        return f"{int(''.join(digits), 16):064b}"

    def _places_on(self, gpus: str) -> dict[str, int]:
        """The places of cells in the random order of the round on these devices; a session's follow each other."""
        if gpus not in self._places:
            trees = (leaves for (gpu, _), leaves in self._trees.items() if gpu in gpus.split("+"))
            order = in_random_order((start.cell for _, start in chain(*trees)), self.number)
            self._places[gpus] = {cell: n for n, cell in enumerate(chain(*self._grid.in_sessions(order)), 1)}
        return self._places[gpus]

    def _leaves(self, gpus: str, part: str) -> list[CellStart]:
        counts, _, bits = part.removeprefix("x").partition("b")
        found: list[CellStart] = []
        for needs in product(gpus.split("+"), map(int, counts.split("+"))):
            tree = self._trees.get(needs, [])
            first, last = (bisect_left(tree, (bits + end,)) for end in ("", "2"))
            found += [start for _, start in tree[first:last]]
        return found

    def batch(self, gpus: str, part: str, number: int = 1) -> Batch:
        """A part of the round; another `number` makes another name of the same batch."""
        places, starts = self._places_on(gpus), self._leaves(gpus, part)
        lines = sorted(f"{start.cell} {start.start} {self._grid.definitions[start.cell]}" for start in starts)
        key = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
        name = f"{part}-{key}" + (f"-{number}" if number > 1 else "")
        starts.sort(key=lambda start: places[start.cell])
        return Batch(gpus, self.number, part, name, tuple(starts), {start: places[start.cell] for start in starts})

    def named(self, gpus: str, name: str) -> Batch:
        """The batch of this name. Raises InputError if the round has none, because the study was changed."""
        part, _, rest = name.partition("-")
        batch = self.batch(gpus, part, int(rest.partition("-")[2] or 1))
        if batch.name != name:
            raise InputError(f"{gpus}: round {self.number} has no batch {name}; the study was changed meanwhile")
        return batch

    def roots(self, in_one: bool, here: Collection[tuple[str, int]]) -> list[tuple[str, str]]:
        """The largest parts, as devices and part. `in_one`: all that is `here` in one, if that has a name."""
        mine = [needs for needs in self._trees if needs in here]
        gpus, counts = sorted({gpu for gpu, _ in mine}), sorted({devices for _, devices in mine})
        every = {needs for needs in product(gpus, counts) if needs in self._trees}
        if in_one and len(mine) > 1 and every == {*mine}:
            return [("+".join(gpus), f"x{'+'.join(map(str, counts))}b")]
        return [(gpu, f"x{devices}b") for gpu, devices in mine]

    def parts_of(self, gpus: str, part: str) -> Iterator[tuple[str, str]]:
        """The next smaller parts of a part; none of one start."""
        counts, _, bits = part.removeprefix("x").partition("b")
        if "+" in gpus + counts:
            yield from self.roots(False, {*product(gpus.split("+"), map(int, counts.split("+")))})
        elif len(bits) < 64 and len(self._leaves(gpus, part)) > 1:
            # A bit in which all agree is no branch.
            halves = [f"{part}{bit}" for bit in "01" if self._leaves(gpus, part + bit)]
            yield from self.parts_of(gpus, halves[0]) if len(halves) == 1 else ((gpus, half) for half in halves)


class Listed(TypedDict):
    """What a manifest says of a start that has ended: the SHA-256 of its record and of its definition, and how."""

    sha256: str
    definition_sha256: str
    round: int
    at_s: float
    outcome: str


def folder_of(start: CellStart) -> str:
    """The name of a start in manifests: its folder below `cells/`."""
    return start.cell if start.start == 1 else f"{start.cell}/{start_folder(start.start)}"


def gpus_of(cells: Iterable[Cell]) -> list[str]:
    """The devices of cells, in the order of the catalogue."""
    names = {cell.gpu for cell in cells}
    return [gpu for gpu in load_gpus() if gpu in names]


@command(
    "list-ended",
    option("--measured", type=Path, required=True, help="the folder of manifests"),
    option("--names", nargs="*", default=[], help="manifests in it, without .json"),
    out("the JSON file to write"),
)
def main(args: Namespace) -> None:
    merged: dict[str, object] = {}
    for name in args.names:
        merged |= read_json(args.measured / f"{name}.json")
    write_json(args.out, merged)

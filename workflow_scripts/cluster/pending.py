"""What a call of snakemake measures: the batches of each round that have pending starts, and what is there already."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from workflow_scripts.cluster.batches import Batch, Listed, Round, folder_of
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json, sha256_of
from workflow_scripts.study.definition import Cells, json_sha256
from workflow_scripts.study.outcome import outcome_of
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.reruns import ONLY_FAILED, check_rerun, in_words, to_rerun
from workflow_scripts.study.rounds import CellStart, Ended, RoundPlan

# By the folder of a start; None if it has no outcome.
Manifest = Mapping[str, Listed | None]


@dataclass(frozen=True)
class Wanted:
    """A batch whose manifest a call needs, and its starts that are pending: none if the manifest is there."""

    batch: Batch
    pending: tuple[CellStart, ...]


def listed(path: Path, definition_sha256: str) -> Listed | None:
    """How a manifest lists a start whose record is in a file; None unless it ended by this definition."""
    record = outcome_of(path, definition_sha256)
    if record is None:
        return None
    return {
        "sha256": sha256_of(path),
        "definition_sha256": definition_sha256,
        "round": record.start.round,
        "at_s": record.ended_s,
        "outcome": record.outcome,
    }


def manifest_of(batch: Batch, definitions: Mapping[str, str], paths: StudyPaths) -> Manifest:
    """What the manifest of a batch says: None for a start that has no outcome by its present definition."""
    return {folder_of(start): listed(paths.outcome(*start), definitions[start.cell]) for start in batch.starts}


class Pending:
    """The evidence in `cells/` and the manifests when a call begins, and what the call wants. `here`: the cells that it
    can measure. `size`: pending starts of a job at most; None for any number. `rerun`, `tries`: which starts are
    tried again although they have ended, as of `reruns.to_rerun`."""

    def __init__(
        self,
        grid: Cells,
        paths: StudyPaths,
        here: Collection[str],
        size: int | None = None,
        rerun: str = ONLY_FAILED,
        tries: int = 2,
    ) -> None:
        """Raises InputError if `rerun` names no cell."""
        self._grid, self._paths, self._size = grid, paths, size
        check_rerun(grid.cells.values(), rerun)
        self.here = {cell: grid.cells[cell] for cell in here}
        self._needs_here = {grid.needs(cell) for cell in self.here.values()}
        self._manifests = {(path.parts[-3], path.parts[-2], path.stem): _read(path) for path in paths.manifests()}
        self._sha256: dict[str, str] = {}
        self.ended = {cell: self._ended(cell) for cell in grid.cells}
        self.again = to_rerun(self.ended, self.here.values(), paths, rerun, tries)
        self._wanted: dict[tuple[int, tuple[CellStart, ...] | None], list[Wanted]] = {}

    def _ended(self, cell: str) -> dict[int, Ended]:
        """The starts of a cell that ended by its present definition. A record that a manifest lists is not read."""
        ended = {}
        for number, path in self._paths.outcomes(cell).items():
            folder, definition = folder_of(CellStart(cell, number)), self._grid.definitions[cell]
            self._sha256[folder] = sha256 = sha256_of(path)
            known = self._known.get((folder, sha256)) or listed(path, definition)
            if known and known["definition_sha256"] == definition:
                ended[number] = Ended(known["round"], known["at_s"], known["outcome"])
        return ended

    @cached_property
    def _known(self) -> dict[tuple[str, str], Listed]:
        entries = (entry for manifest in self._manifests.values() for entry in manifest.items())
        return {(folder, one["sha256"]): one for folder, one in entries if one}

    def wanted(self, number: int, decided: tuple[CellStart, ...] | None = None) -> list[Wanted]:
        """The batches of a round whose manifests the call needs; `decided`: the starts of one that was decided on."""
        if (number, decided) not in self._wanted:
            starts = decided if decided is not None else (CellStart(cell, number) for cell in self._grid.cells)
            this, elsewhere = Round(number, starts, self._grid), {*map(self._grid.needs, self._grid.cells.values())}
            roots = [
                *this.roots(self._size is None, self._needs_here),
                *this.roots(False, elsewhere - self._needs_here),
            ]
            self._wanted[number, decided] = [one for root in roots for one in self._cover(this, *root)]
        return self._wanted[number, decided]

    def _cover(self, this: Round, gpus: str, part: str) -> Iterator[Wanted]:
        """A part with pending starts, if these are few enough for a job, or with a manifest that still holds; else what
        its own parts need."""
        batch = this.batch(gpus, part)
        pending = tuple(start for start in batch.starts if self._is_pending(start))
        parts = list(this.parts_of(gpus, part))
        if pending and (self._size is None or len(pending) <= self._size or not parts):
            taken = {name for *folder, name in self._manifests if folder == [gpus, f"round-{this.number}"]}
            # A manifest is never written again, so this one gets a name that none has.
            batches = (this.batch(gpus, part, number) for number in count(1))
            yield Wanted(next(one for one in batches if one.name not in taken), pending)
        elif not pending and (name := self._holds(batch)):
            yield Wanted(this.named(gpus, name), ())
        else:
            for one in parts:
                yield from self._cover(this, *one)

    def _is_pending(self, start: CellStart) -> bool:
        return start.cell in self.here and (start in self.again or start.start not in self.ended[start.cell])

    def _holds(self, batch: Batch) -> str | None:
        """The name of a manifest of the batch that lists the records that are there; None if there is none."""
        for (gpus, folder, name), manifest in self._manifests.items():
            is_named = (gpus, folder) == (batch.gpus, f"round-{batch.round}") and name.startswith(batch.name)
            if is_named and all(self._lists(manifest, folder_of(start)) for start in batch.starts):
                return name
        return None

    def _lists(self, manifest: Manifest, folder: str) -> bool:
        one = manifest.get(folder)
        return one is not None and one["sha256"] == self._sha256.get(folder)

    def not_listed_sha256(self, gpu: str, at_least: int, partial: bool = False) -> str:
        """A hash of the evidence of a GPU that no manifest of this call lists; of all of it for a `partial` report."""
        wanted = () if partial else [one for number in range(1, at_least + 1) for one in self.wanted(number)]
        covered: set[str] = set()
        for one in wanted:
            manifest = self._manifests.get((one.batch.gpus, f"round-{one.batch.round}", one.batch.name), {})
            folders = [folder_of(start) for start in one.batch.starts]
            covered |= {folder for folder in folders if one.pending or self._lists(manifest, folder)}
        decided = (
            manifest
            for (gpus, folder, _), manifest in self._manifests.items()
            if int(folder.removeprefix("round-")) > at_least
            and {*gpus.split("+")} <= {c.gpu for c in self.here.values()}
        )
        for manifest in () if partial else decided:
            covered |= {folder for folder in manifest if self._lists(manifest, folder)}
        others = {folder: sha256 for folder, sha256 in self._sha256.items() if folder not in covered}
        return json_sha256({folder: sha256 for folder, sha256 in others.items() if folder.startswith(f"{gpu}/")})

    def in_words(self, one: Wanted) -> str:
        """What a job would measure, a line for each start."""
        again = {start: f" ({outcome}, tried again)" for start, outcome in self.again.items()}
        lines = (f"    {start.cell}, start {start.start}{again.get(start, '')}" for start in one.pending)
        return "\n".join([f"Round {one.batch.round}, batch {one.batch.name} of {one.batch.gpus}:", *lines])

    def notes(self, wanted: Iterable[Wanted]) -> Iterator[str]:
        """Which starts are measured though they have a record: one of a failure, of another definition, or of a cell
        that did not run."""
        pending = [start for one in wanted for start in one.pending]
        if again := {start: self.again[start] for start in pending if start in self.again}:
            yield f"{in_words(again)}."
        others = sorted(one for one in pending if one not in again and folder_of(one) in self._sha256)
        if others:
            yield (
                f"{len(others)} cells were measured by another definition or protocol, or did not run, and are measured"
                f" again. The first is {self._paths.outcome(*others[0])}."
            )


def _read(path: Path) -> Manifest:
    try:
        content = read_json(path)
        return content if isinstance(content, dict) else {}
    except InputError:
        return {}


def starts_of(number: int, grid: Cells, plan: Path | None) -> list[CellStart]:
    """The starts of a round: one of every cell, or those of the file of a decision."""
    return [*RoundPlan.read(plan).starts] if plan else [CellStart(cell, number) for cell in grid.cells]

"""List the cells of a GPU that have ended.

    kvsweep list-ended --study config/studies/demo.yaml --gpu h200 --out ended.json

Parsing waits for this list, which has a hash of each outcome.

A batch is a list of starts of cells, in one round, which one job measures: those of one GPU type on a cluster, those
of all devices on one machine. Its key follows from them and from the cells' definitions, and its file tells the job
what to measure. Only the cells' own files decide what is done: a start is done if its `outcome.json` belongs to the
cell's present definition, no matter which batch, call or machine produced it.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from pydantic import JsonValue

from workflow_scripts.common.command import RESULTS, STUDY, command, option, out
from workflow_scripts.common.files import read_json, sha256_of, write_json
from workflow_scripts.study.definition import definitions_sha256, json_sha256
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import is_outcome_of
from workflow_scripts.study.paths import HERE, StudyPaths
from workflow_scripts.study.rounds import (
    CellStart,
    EndedStarts,
    Round,
    last_plan,
    last_round,
    last_seen_s,
    plans,
    present_round,
    rounds_to_measure,
)
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study


@dataclass(frozen=True)
class Batch:
    """Starts of cells that one job measures in turn; `first_position` is the place of the first one in the round."""

    gpu: str
    key: str
    round: int
    starts: tuple[CellStart, ...]
    first_position: int


def batches_of_machine(of: Round, definitions: Mapping[str, str], sessions: Mapping[str, str]) -> Iterator[Batch]:
    """The one batch of a round on this machine. `definitions` holds the hash of each cell's definition, `sessions` that
    of the settings of its engine."""
    starts = list(chain(*in_sessions(of.starts, sessions)))
    yield _batch(HERE, of, starts, len(of.done) + 1, definitions)


def batches_of_cluster(
    of: Round, cells: Mapping[str, Cell], definitions: Mapping[str, str], sessions: Mapping[str, str], size: int
) -> Iterator[Batch]:
    """The batches of a round, each of at most `size` cells that need the same GPUs; places are counted per GPU type. A
    batch has whole sessions, unless one alone has more cells."""
    alike: dict[tuple[str, int], list[CellStart]] = {}
    for start in of.starts:
        alike.setdefault((cells[start.cell].gpu, cells[start.cell].knobs.ranks), []).append(start)
    places = Counter(cells[cell].gpu for cell in of.done)
    for (gpu, _), starts in alike.items():
        for some in _filled(in_sessions(starts, sessions), size):
            yield _batch(gpu, of, some, places[gpu] + 1, definitions)
            places[gpu] += len(some)


def in_sessions(starts: Iterable[CellStart], sessions: Mapping[str, str]) -> list[list[CellStart]]:
    """The starts that may share a start of their engine, in the order of the first of each."""
    shared: dict[str, list[CellStart]] = {}
    for start in starts:
        shared.setdefault(sessions[start.cell], []).append(start)
    return list(shared.values())


def _filled(sessions: Iterable[Sequence[CellStart]], size: int) -> Iterator[list[CellStart]]:
    """Sessions in groups of at most `size` cells.

    >>> [len(group) for group in _filled(["ab", "c", "defgh", "i"], 3)]
    [3, 3, 3]
    """
    group: list[CellStart] = []
    for session in sessions:
        for part in (session[first : first + size] for first in range(0, len(session), size)):
            if len(group) + len(part) > size:
                yield group
                group = []
            group += part
    if group:
        yield group


def _batch(
    gpu: str, of: Round, starts: Sequence[CellStart], first_position: int, definitions: Mapping[str, str]
) -> Batch:
    by_cell: dict[str, JsonValue] = {start.cell: [start.start, definitions[start.cell]] for start in starts}
    content: JsonValue = {"round": of.number, "place": first_position, "starts": by_cell}
    return Batch(gpu, json_sha256(content)[:8], of.number, tuple(starts), first_position)


def write_batch(path: Path, batch: Batch) -> None:
    """Write what a batch measures, for its job; the name depends on the content, so an existing file is right."""
    if not path.exists():
        write_json(path, asdict(batch))


def read_batch(path: Path) -> Batch:
    record = read_json(path)
    return Batch(**{**record, "starts": tuple(CellStart(*values) for values in record["starts"])})


def ended_cells(cells: Iterable[Cell], paths: StudyPaths) -> dict[str, str]:
    """The starts of cells that have an outcome, by their folders below `cells/`, with the SHA-256 of its record."""
    return {
        path.parent.relative_to(paths.root / "cells").as_posix(): sha256_of(path)
        for cell in cells
        for path in paths.outcomes(cell).values()
    }


def is_list_of(path: Path, ended: Mapping[str, str]) -> bool:
    return path.exists() and bool(read_json(path) == ended)


def known_sha256(study: Study, paths: StudyPaths, gpus: Iterable[str]) -> str:
    """A hash of all that the decision on a further round of the cells on `gpus` depends on."""
    names = sorted({*gpus})
    ended: dict[str, JsonValue] = {**ended_cells([cell for cell in expand(study) if cell.gpu in names], paths)}
    asked: dict[str, JsonValue] = study.model_dump(mode="json", include={"starts"})
    return json_sha256({"gpus": [*names], "ended": ended, **asked, "margin": study.equivalence_margin_pct})


@dataclass(frozen=True)
class Pending:
    """What a call of snakemake measures: the `rounds` that are known now, and further ones that are decided on later.
    `decided`: the number of the first round that is decided on while measuring; None if there is none."""

    rounds: Sequence[Round]
    decided: int | None


def pending(study: Study, paths: StudyPaths, ended: EndedStarts, cells: Sequence[str], now_s: float) -> Pending:
    """What a call that can measure `cells` measures, at the Unix time `now_s`."""
    present = present_round(ended, now_s, last_seen_s(ended, paths))
    rounds = rounds_to_measure(ended, last_plan(paths), cells, study.starts.at_least, present)
    if not study.is_adaptive or not cells:
        return Pending(rounds, None)
    if not rounds:
        facts_sha256 = known_sha256(study, paths, {cell.partition("/")[0] for cell in cells})
        if any(plan.ended and not plan.failed and plan.known == facts_sha256 for plan in plans(paths)):
            return Pending(rounds, None)
    return Pending(rounds, 1 + max([last_round(ended), *(planned_round.number for planned_round in rounds)]))


def without_outcome(starts: Iterable[CellStart], study: Study, paths: StudyPaths) -> list[CellStart]:
    """The starts that have no outcome by their present definition."""
    definitions = definitions_sha256(study)
    return [start for start in starts if not is_outcome_of(paths.outcome(*start), definitions.get(start.cell, ""))]


@command(
    "list-ended",
    STUDY,
    RESULTS,
    option("--gpu", required=True, help="the GPU's name in the study"),
    option("--batches", type=Path, nargs="*", default=[], help="files of batches that should have been measured"),
    out("the JSON file to write"),
)
def main(args: Namespace) -> int:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    starts = [start for path in args.batches for start in read_batch(path).starts]
    if missing := without_outcome(starts, study, paths):
        print(f"{len(missing)} starts have no outcome, and the next call tries them again:", file=sys.stderr)
        print("\n".join(f"    {start.cell}  {paths.log(*start)}" for start in missing), file=sys.stderr)
        return 1
    write_json(args.out, ended_cells([cell for cell in expand(study) if cell.gpu == args.gpu], paths))
    return 0

"""Print what became of every cell of a study, with reasons and logs.

    kvsweep status --study config/studies/demo.yaml

counts cells by GPU, engine, model and workload, then lists each start of a cell that is not `ok`, with the reason in
one line and the path of its log; those with the same reason are grouped. A cell counts as its first start that is not
`ok`. Cells that have not ended are `missing`; those of an older protocol or another definition are `outdated`;
`snakemake` measures both again. If further starts depend on what is not decided, the open comparisons follow.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from workflow_scripts.common.command import RESULTS, STUDY, command
from workflow_scripts.common.files import last_line, read_json
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Verdict, is_of, never_ran
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import last_plan
from workflow_scripts.study.study_file import Study, load_study

STATES = (*get_args(Verdict), "outdated", "missing")
_STYLES = {"ok": "green", "infeasible": "yellow", "missing": "dim", "outdated": "cyan"}


@dataclass(frozen=True)
class CellStatus:
    """A start of a cell and its state. `reason` is one line; `log` is None if the start was never tried."""

    cell: Cell
    state: str
    reason: str
    log: Path | None
    lock: str | None
    host: str | None
    processor: str | None = None
    start: int = 1


def status_of_starts(study: Study, paths: StudyPaths) -> dict[Cell, list[CellStatus]]:
    """The starts that the study asks for and those beyond, by their number, for every cell of the grid in its order."""
    models = resolved_models(study)
    found = {}
    for cell in expand(study):
        definition = definition_sha256(cell_definition(study, cell, models))
        numbers = sorted({*range(1, study.starts.at_least + 1), *paths.outcomes(cell)})
        found[cell] = [_status_of_start(cell, paths, definition, start) for start in numbers]
    return found


def status_of_cell(starts: Sequence[CellStatus]) -> CellStatus:
    """The status of a cell, given those of its starts: that of the first one that is not ok."""
    return next((one for one in starts if one.state != "ok"), starts[0])


def _status_of_start(cell: Cell, paths: StudyPaths, definition: str, start: int) -> CellStatus:
    log = paths.log(cell, start) if paths.log(cell, start).exists() else None
    if not paths.outcome(cell, start).exists():
        return CellStatus(cell, "missing", _why_missing(log), log, None, None, start=start)
    record = read_json(paths.outcome(cell, start))
    provenance = record["provenance"]
    state, reason = record["outcome"], _one_line(record["reason"] or "")
    if never_ran(record):
        state, reason = "missing", f"did not run: {reason}"
    elif not is_of(record, definition):
        state, reason = "outdated", f"measured by another definition, protocol {record['definition'].get('protocol')}"
    raw = paths.start(cell, start) / "raw" / "engine.log"
    return CellStatus(
        cell,
        state,
        reason,
        raw if raw.exists() else log,
        str(provenance.get("lock_sha256"))[:12],
        provenance.get("host"),
        record.get("device", {}).get("processor"),
        start,
    )


def _why_missing(log: Path | None) -> str:
    return (last_line(log) or "its log is empty") if log else "not tried yet"


def _one_line(text: str) -> str:
    """The first line that is not blank; an engine's message may have many lines.

    >>> _one_line("ValueError: no block size fits\\n  at layer 3")
    'ValueError: no block size fits'
    """
    return next((" ".join(line.split()) for line in text.split("\n") if line.strip()), "")


def counts(statuses: Iterable[CellStatus]) -> Table:
    """One row per GPU, engine, model and workload, with the number of cells in each state."""
    statuses = list(statuses)
    seen = [state for state in STATES if any(s.state == state for s in statuses)]
    table = Table("GPU", "engine", "model", "workload", box=None, pad_edge=False)
    for state in seen:
        table.add_column(state, justify="right", style=_STYLES.get(state, "red"))
    groups: dict[tuple[str, str, str, str], Counter[str]] = {}
    for s in statuses:
        key = (s.cell.gpu, s.cell.engine, s.cell.model, s.cell.workload)
        groups.setdefault(key, Counter())[s.state] += 1
    for key, count in groups.items():
        table.add_row(*key, *(str(count[state] or "·") for state in seen))
    total = Counter(s.state for s in statuses)
    table.add_row("all", "", "", "", *(str(total[state]) for state in seen), style="bold")
    return table


def failures(statuses: Iterable[CellStatus]) -> Iterator[Text]:
    """One line per reason, and below it one per start that ended so, with its log."""
    bad = [s for s in statuses if s.state != "ok" and s.log is not None]
    bad.sort(key=lambda s: (STATES.index(s.state), s.reason))
    for (state, reason), alike in groupby(bad, key=lambda s: (s.state, s.reason)):
        yield Text(f"{state}: {reason}", style=_STYLES.get(state, "red"))
        for s in alike:
            yield Text(f"    {s.cell.id}{f' start {s.start}' if s.start > 1 else ''}  {s.log}")


def differences(statuses: Iterable[CellStatus]) -> Iterator[str]:
    """Why cells cannot be compared: environments from more than one lock, or more than one processor."""
    statuses = list(statuses)
    yield from _kept_apart("in environments of different locks", [(s.lock, s) for s in statuses])
    yield from _kept_apart("on different processors", [(s.processor, s) for s in statuses])


def _kept_apart(how: str, named: Iterable[tuple[str | None, CellStatus]]) -> Iterator[str]:
    groups: dict[str, list[CellStatus]] = {}
    for name, status in named:
        if name is not None:
            groups.setdefault(name, []).append(status)
    if len(groups) > 1:
        yield f"Measured {how}, so not compared with each other:"
        for name, alike in groups.items():
            where = ", ".join(sorted({f"{s.cell.gpu} on {s.host}" for s in alike}))
            yield f"    {name}: {len({s.cell for s in alike})} cells, {where}"


def rounds(study: Study, paths: StudyPaths) -> Iterator[str]:
    """How far the comparisons of a study with further starts are, with what the open ones would take."""
    plan = last_plan(paths) if study.starts.is_adaptive else None
    if plan is None:
        return
    hours = study.starts.device_hours
    left = "" if hours is None or plan.ended else f"; {hours - plan.spent_s / 3600:.2g} of {hours:g} hours are left"
    yield plan.in_words() + left
    opened = sorted([*plan.undecided, *plan.not_decidable], key=lambda one: one.given_up or "")
    for given_up, alike in groupby(opened, key=lambda one: one.given_up):
        yield f"Not decided, {given_up}:" if given_up else "Not decided yet:"
        for one in alike:
            needed = f"{one.further_starts} further starts of each" if one.further_starts else "starts not known"
            yield f"    {one.knob}: {needed}  {'  '.join(one.cells)}"


@command("status", STUDY, RESULTS)
def main(args: Namespace) -> None:
    """Print what became of every cell of a study."""
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    of_cells = status_of_starts(study, paths).values()
    statuses = [one for of_cell in of_cells for one in of_cell]
    # Lines are not wrapped: a wrapped path cannot be copied.
    console = Console(soft_wrap=True, highlight=False)
    console.print(counts(map(status_of_cell, of_cells)))
    for line in [*failures(statuses), *differences(statuses), *rounds(study, paths)]:
        console.print(line)

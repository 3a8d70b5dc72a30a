"""Print the outcome of every cell of a study, with reasons and logs.

    kvsweep status --study config/studies/demo.yaml

says how far an unfinished study is and why Slurm lets its jobs wait, counts cells by GPU, engine, model and workload,
then lists each start of a cell that is not `ok`, with the reason in one line and the path of its log; those with the
same reason are grouped. A cell counts in the state of its first start that is not `ok`; a start beyond those that every
cell gets counts only if it has ended. Cells that have not ended are `missing`; those of an older protocol or another
definition are `outdated`; `snakemake` measures both again. Undecided comparisons are listed last.
"""

import shutil
import subprocess
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import get_args

from rich.table import Table
from rich.text import Text

from workflow_scripts.common.command import RESULTS, STUDY, command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import last_line
from workflow_scripts.common.terminal import Terminal
from workflow_scripts.common.wording import shortened
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import WHAT_TO_DO, Outcome, OutcomeKind, is_of, never_ran
from workflow_scripts.study.paths import ENGINE_LOG, MEASURE_LOG, OUTCOME, RAW, StudyPaths, within
from workflow_scripts.study.rounds import RoundPlan, last_plan
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

STATES = (*get_args(OutcomeKind), "outdated", "missing")
# States that no further call changes.
_FINAL = {"ok", "infeasible"}
# Letters of a reason; the log has all.
_MOST_REASON = 200
# Slurm's tools may hang while its controller is away.
_WAIT_S = 10
_STYLES = {"ok": "green", "infeasible": "yellow", "missing": "dim", "outdated": "cyan"}


@dataclass(frozen=True)
class CellStatus:
    """A start of a cell and its state. `reason` is one line; `log` is None if the start was never tried; `has_ended`:
    by the cell's present definition."""

    cell: Cell
    state: str
    reason: str
    log: Path | None
    start: int
    has_ended: bool = False


def status_of_starts(study: Study, paths: StudyPaths) -> dict[Cell, list[CellStatus]]:
    """The starts that the study asks for and those tried beyond, by number, for every cell of the grid in its order."""
    definitions, asked = Cells(study).definitions, study.starts.at_least
    return {
        cell: [
            _status_of_start(cell, paths, definitions[cell.id], start)
            for start in (*range(1, asked + 1), *paths.tried_beyond(cell, asked))
        ]
        for cell in expand(study)
    }


def status_of_cell(starts: Sequence[CellStatus], at_least: int) -> CellStatus:
    """The status of a cell: that of its first start that is not ok; beyond `at_least`, a missing one does not count."""
    bad = (start for start in starts if start.state != "ok" and (start.state != "missing" or start.start <= at_least))
    return next(bad, starts[0])


def _status_of_start(cell: Cell, paths: StudyPaths, definition: str, start: int) -> CellStatus:
    folder = paths.start(cell, start)
    outcome, of_engine, of_command = folder / OUTCOME, folder / RAW / ENGINE_LOG, folder / MEASURE_LOG
    within(folder, paths.root, (outcome, of_engine, of_command))
    if not outcome.exists():
        if not of_command.exists():
            return CellStatus(cell, "missing", "not tried yet", None, start)
        return CellStatus(cell, "missing", last_line(of_command) or "its log is empty", of_command, start)
    log = next((log for log in (of_engine, of_command) if log.exists()), outcome)
    try:
        record = Outcome.read(outcome)
    except InputError as e:
        return CellStatus(cell, "missing", str(e), log, start)
    # The first line that is not blank: an engine's message may have many.
    reason = next((" ".join(line.split()) for line in (record.reason or "").split("\n") if line.strip()), "")
    if never_ran(record):
        return CellStatus(cell, "missing", f"did not run: {reason}", log, start)
    if not is_of(record, definition):
        why = f"measured by another definition, protocol {record.definition.get('protocol')}"
        return CellStatus(cell, "outdated", why, log, start)
    return CellStatus(cell, record.outcome, reason, log, start, has_ended=True)


def progress(study: Study, starts: Mapping[Cell, Sequence[CellStatus]], plan: RoundPlan | None) -> str | None:
    """How many of the requested starts have ended, given the status of those of all cells; None if all have, and no
    round may follow. `plan`: the last decision on further starts."""
    ends = {cell.id: {status.start for status in of_cell if status.has_ended} for cell, of_cell in starts.items()}
    due = Counter(cell for cell, start in (plan.starts if plan else ()) if start not in ends.get(cell, ()))
    ended = sum(map(len, ends.values()))
    wanted = ended + sum(max(study.starts.at_least - len(of_cell), due[cell]) for cell, of_cell in ends.items())
    may_grow = study.starts.is_adaptive and (plan is None or not plan.ended)
    if ended == wanted and not may_grow:
        return None
    what = f"starts of {len(ends)} cells" if wanted > len(ends) else "cells"
    return f"{ended} of {wanted} {what} have ended{'; further rounds may follow' if may_grow else ''}."


def counts(statuses: Iterable[CellStatus]) -> Table:
    count = Counter((s.cell.gpu, s.cell.engine_at, s.cell.model, s.cell.workload, s.state) for s in statuses)
    table = Table("GPU", "engine", "model", "workload", box=None, pad_edge=False)
    total = {state: sum(cells for key, cells in count.items() if key[-1] == state) for state in STATES}
    seen = [state for state in STATES if total[state]]
    for state in seen:
        table.add_column(state, justify="right", style=_STYLES.get(state, "red"))
    for group in dict.fromkeys(key[:-1] for key in count):
        table.add_row(*group, *(str(count[*group, state] or "·") for state in seen))
    table.add_row("all", "", "", "", *(str(total[state]) for state in seen), style="bold")
    return table


def failures(statuses: Iterable[CellStatus]) -> Iterator[Text]:
    """One line per reason, and below it one per start that ended so, with its log; then what one does about each."""
    bad = [s for s in statuses if s.state != "ok" and s.log is not None]
    bad.sort(key=lambda s: (STATES.index(s.state), s.reason))
    for (state, reason), alike in groupby(bad, key=lambda s: (s.state, s.reason)):
        yield Text(f"{state}: {shortened(reason, _MOST_REASON)}", style=_STYLES.get(state, "red"))
        for s in alike:
            yield Text(f"    {s.cell.id}{f' start {s.start}' if s.start > 1 else ''}  {s.log}")
    for state in [state for state in WHAT_TO_DO if any(s.state == state for s in bad)]:
        yield Text(f"What you do about {state}: {WHAT_TO_DO[state]}.")


def rounds(plan: RoundPlan, budget: float | None) -> Iterator[str]:
    """How many comparisons are decided, and those that are open with what they would take."""
    left = "" if budget is None or plan.ended else f"; {budget - plan.spent_s / 60:.2g} of {budget:g} minutes are left"
    yield plan.in_words() + left
    opened = [*plan.undecided, *plan.not_decidable]
    opened.sort(key=lambda pair: pair.given_up or "")
    for given_up, alike in groupby(opened, key=lambda pair: pair.given_up):
        yield f"Not decided, {given_up}:" if given_up else "Not decided yet:"
        for pair in alike:
            count = pair.further_starts or "an unknown number of"
            yield f"    {pair.knob}: {count} further starts of each  {'  '.join(pair.cells)}"


def in_short(study: Study, states: "Counter[str]") -> str:
    """The number of cells in each state, the largest first."""
    return f"{study.name}: {', '.join(f'{cells} {state}' for state, cells in states.most_common())}"


def ending(study: Study, paths: StudyPaths, states: "Counter[str]", args: Namespace) -> Iterator[str]:
    """The lines; `args.failed`: the failure that matters, if the call failed."""
    again = f"kvsweep status {args.study}" + f" --results {paths.results}" * (paths.results != Path("results"))
    yield in_short(study, states)
    if args.failed:
        yield f"failed: {args.failed}"
    if paths.report.exists():
        yield f"report: {paths.report}"
    if args.failed is not None:
        yield f"next: the same call goes on; {again} says what failed, and what you do about it"
    elif states.keys() - _FINAL:
        yield f"next: {again} says why cells are missing, and what you do about it"
    else:
        yield f"next: open the report; another run: kvsweep compare {paths.root} OTHER/{study.name}"


def queued_jobs(folder: Path) -> Iterator[str]:
    """One line per state and reason of the jobs that Snakemake submitted from this folder and that have not ended;
    nothing without Slurm, or if it does not answer."""
    if not shutil.which("squeue"):
        return
    command = ["squeue", "--me", "--noheader", "--format=%Z|%T|%r|%P|%l|%k|%i"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    yield from _jobs_in_words(said, folder)


def _jobs_in_words(said: str, folder: Path) -> Iterator[str]:
    """The lines for what squeue said.

    >>> said = "/w|PENDING|PartitionTimeLimit|short|4:15:00|rule_measure_h200|7\\n/other|RUNNING|None|a|1|rule_x|8"
    >>> [line.partition(" with")[0] for line in _jobs_in_words(said, Path("/w"))]
    ['Slurm: 1 x PENDING (PartitionTimeLimit) in short']
    """
    rows = [line.split("|") for line in said.splitlines() if line.count("|") == 6]
    own = [row for row in rows if Path(row[0]) == folder.resolve() and "rule_" in row[5]]
    for (state, reason, partition, limit), count in Counter((*row[1:5],) for row in own).items():
        jobs = ", ".join(row[6] for row in own if (*row[1:5],) == (state, reason, partition, limit))
        what = f"{state} ({reason})" if reason not in ("None", "") else state
        yield f"Slurm: {count} x {what} in {partition} with {limit}; job {jobs}"


@command(
    "status",
    STUDY,
    RESULTS,
    option("--brief", action="store_true", help="what came out, where the report is, and what to type next"),
    option("--failed", metavar="WHAT", help="with --brief: what failed in the call"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    starts = status_of_starts(study, paths)
    of_cells = [status_of_cell(of_cell, study.starts.at_least) for of_cell in starts.values()]
    states = Counter(cell.state for cell in of_cells)
    if args.brief:
        print(*ending(study, paths, states, args), sep="\n")
        return
    # Lines are not wrapped: a wrapped path cannot be copied.
    terminal = Terminal(soft_wrap=True)
    terminal.print(in_short(study, states))
    plan = last_plan(paths, study.starts.at_least) if study.starts.is_adaptive else None
    if seen := progress(study, starts, plan):
        terminal.print(seen, *queued_jobs(Path.cwd()), "", sep="\n")
    terminal.print(counts(of_cells))
    for line in [*failures(chain(*starts.values())), *(rounds(plan, study.starts.budget_min) if plan else ())]:
        terminal.print(line)

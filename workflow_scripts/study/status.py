"""Print the outcome of every cell of a study, with reasons and logs.

    kvsweep status --study config/studies/demo.yaml

says how far an unfinished study is and why Slurm lets its jobs wait, counts cells by GPU, engine, model and workload,
then lists each start of a cell that is not `ok`, with the reason in one line and the path of its log; those with the
same reason are grouped. A cell counts in the state of its first start that is not `ok`; a start beyond those that every
cell gets counts only if it has ended. Cells that have not ended are `missing`; those of an older protocol or another
definition are `outdated`; `snakemake` measures both again. Undecided comparisons are listed last.

Starts that were timed while others used more than 5 % of the CPU are named. `--remeasure-loaded` sets their outcomes
aside, as `loaded.json`, so that the next call of snakemake measures them again.

`--watch` shows the progress and the counts again and again until all cells have ended; Ctrl-C ends it.
"""

import contextlib
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import get_args

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from workflow_scripts.common.command import RESULTS, STUDY, command, option, positive
from workflow_scripts.common.terminal import Terminal
from workflow_scripts.device.device_record import NOISY_PCT
from workflow_scripts.study.cell_status import CellStatus, status_of_cell, status_of_starts
from workflow_scripts.study.ending import ending
from workflow_scripts.study.outcome import WHAT_TO_DO, OutcomeKind
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.progress import progress
from workflow_scripts.study.queued import queued_jobs
from workflow_scripts.study.rounds import last_plan
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

STATES = (*get_args(OutcomeKind), "outdated", "missing")
# Seconds between two updates of `--watch`, which spends at most this share of its time on them.
WATCH_S, WATCH_SHARE = 5, 0.1
_STYLES = {"ok": "green", "infeasible": "yellow", "missing": "dim", "outdated": "cyan"}


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
        yield Text(f"{state}: {reason}", style=_STYLES.get(state, "red"))
        for s in alike:
            yield Text(f"    {s.cell.id}{f' start {s.start}' if s.start > 1 else ''}  {s.log}")
    for state in [state for state in WHAT_TO_DO if any(s.state == state for s in bad)]:
        yield Text(f"What you do about {state}: {WHAT_TO_DO[state]}.")


def differences(statuses: Sequence[CellStatus]) -> Iterator[str]:
    """Why cells cannot be compared: environments from more than one lock, or more than one processor."""
    for how, field in (("in environments of different locks", "lock"), ("on different processors", "processor")):
        groups: dict[str, list[CellStatus]] = {}
        for status in statuses:
            if (name := getattr(status, field)) is not None:
                groups.setdefault(name, []).append(status)
        if len(groups) > 1:
            yield f"Measured {how}, so not compared with each other:"
            for name, alike in groups.items():
                where = ", ".join(sorted({f"{s.cell.gpu} on {s.host}" for s in alike}))
                yield f"    {name}: {len({s.cell for s in alike})} cells, {where}"


def loaded(statuses: Iterable[CellStatus]) -> list[CellStatus]:
    """The starts that ended by their present definition while others used much of the CPU."""
    return [s for s in statuses if s.ended_s is not None and s.others_pct > NOISY_PCT]


def rounds(study: Study, paths: StudyPaths) -> Iterator[str]:
    """How many comparisons are decided, and those that are open with what they would take."""
    plan = last_plan(paths, study.starts.at_least) if study.is_adaptive else None
    if plan is None:
        return
    budget = study.starts.budget_min
    left = "" if budget is None or plan.ended else f"; {budget - plan.spent_s / 60:.2g} of {budget:g} minutes are left"
    yield plan.in_words() + left
    opened = [*plan.undecided, *plan.not_decidable]
    opened.sort(key=lambda pair: pair.given_up or "")
    for given_up, alike in groupby(opened, key=lambda pair: pair.given_up):
        yield f"Not decided, {given_up}:" if given_up else "Not decided yet:"
        for pair in alike:
            count = pair.further_starts or "an unknown number of"
            yield f"    {pair.knob}: {count} further starts of each  {'  '.join(pair.cells)}"


def _watch(study: Study, paths: StudyPaths, every_s: float) -> None:
    with Live(console=Terminal(), auto_refresh=False) as live:
        while True:
            began_s = time.monotonic()
            starts = status_of_starts(study, paths)
            seen = progress(study, paths, starts, time.time())
            table = counts(status_of_cell(of_cell, study.starts.at_least) for of_cell in starts.values())
            live.update(Group(*seen.in_words(), *queued_jobs(Path.cwd()), "", table), refresh=True)
            if seen.is_complete:
                return
            time.sleep(max(every_s, (time.monotonic() - began_s) / WATCH_SHARE))


@command(
    "status",
    STUDY,
    RESULTS,
    option(
        "--watch",
        type=positive,
        nargs="?",
        const=WATCH_S,
        metavar="SECONDS",
        help="update every SECONDS (default: %(const)s), until all cells have ended",
    ),
    option("--brief", action="store_true", help="what came out, where the report is, and what to type next"),
    option("--failed", type=Path, metavar="LOG", help="with --brief: Snakemake's log of a call that failed"),
    option("--remeasure-loaded", action="store_true", help="let the next call measure starts on loaded hosts again"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    paths = StudyPaths(args.results, study.name)
    if args.brief:
        print(*ending(study, args.study, paths, args.failed), sep="\n")
        return
    if args.watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(study, paths, args.watch)
        return
    starts = status_of_starts(study, paths)
    statuses = [status for of_cell in starts.values() for status in of_cell]
    # Lines are not wrapped: a wrapped path cannot be copied.
    terminal = Terminal(soft_wrap=True)
    seen = progress(study, paths, starts, time.time())
    if not seen.is_complete:
        terminal.print(*seen.in_words(), *queued_jobs(Path.cwd()), "", sep="\n")
    terminal.print(counts(status_of_cell(of_cell, study.starts.at_least) for of_cell in starts.values()))
    disturbed = loaded(statuses)
    of_load = [f"    {s.others_pct:.0f} %  {paths.start(s.cell, s.start)}" for s in disturbed]
    if of_load:
        of_load.insert(0, f"Others used more than {NOISY_PCT:g} % of the CPU (--remeasure-loaded measures again):")
    for line in [*failures(statuses), *of_load, *differences(statuses), *rounds(study, paths)]:
        terminal.print(line)
    for s in disturbed if args.remeasure_loaded else ():
        outcome = paths.outcome(s.cell, s.start)
        outcome.replace(outcome.with_name("loaded.json"))

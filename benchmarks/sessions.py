"""Measure studies with shared starts of engines and with a start for each cell: the device time, and the results.

    make bench-sessions         (or: python -m benchmarks.sessions [--studies serving concurrency] [--out DIR])

Each study is the cut for a CPU in config/studies/tiny/. For each it prints the device time of both ways, their ratio,
the quotients of the cells' rates and the comparisons that contradict each other. The exit code is 1 if a goal is
missed. An interrupted run continues where it stopped.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import yaml
from rich.table import Table

from benchmarks.agreement import ended_at, measure, pairs_of
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import BAD_INPUT, run_command
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.common.wording import number
from workflow_scripts.present.compare import wide_terminal
from workflow_scripts.questions.compare.comparison import comparison
from workflow_scripts.questions.compare.run import read_run
from workflow_scripts.statistics.comparisons import CHANGES
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import OUTCOME, StudyPaths

TINY = CHECKOUT / "config" / "studies" / "tiny"
STUDIES = ("serving", "concurrency", "prefix_caching")
GOAL_RATIO = 0.55


def measured(study: Path, folder: Path, share: bool) -> StudyPaths:
    """The results of a study in a folder of its own, measured if they are not there."""
    content = yaml.safe_load(study.read_text(encoding="utf-8"))
    file = folder / ("shared" if share else "alone") / study.name
    write_text(file, yaml.safe_dump({**content, "share_starts": share}))
    if ended_at(file.parent, content["name"]) is None:
        measure(file, file.parent)
    return StudyPaths(file.parent, content["name"])


def device_s(paths: StudyPaths) -> float:
    """Seconds of all phases of all starts."""
    outcomes = map(Outcome.read, (paths.root / "cells").glob(f"**/{OUTCOME}"))
    return sum(sum(outcome.phases_s.values()) for outcome in outcomes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure studies with shared starts and with a start for each cell.")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=STUDIES, help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/sessions"), help="folder of the runs (%(default)s)")
    args = parser.parse_args(argv)
    headings = ("study", "alone, s", "shared, s", "ratio", "rate over alone", "rates that changed", "contradictions")
    table = Table(*headings, title=f"Device time; goal: at most {GOAL_RATIO:g} and no contradiction", box=None)
    reached = True
    for name in args.studies:
        try:
            runs = [measured(TINY / f"{name}.yaml", args.out.resolve() / name, share) for share in (False, True)]
        except InputError as e:
            print(f"bench-sessions: {e}", file=sys.stderr)
            return BAD_INPUT
        alone_s, shared_s = map(device_s, runs)
        a, b = (read_run(paths.root) for paths in runs)
        found = comparison([a], b)
        ratios = [cell.ratio for cell in found.cells if cell.ratio]
        contradictions = int(pairs_of(runs)["contradicts"].notna().sum())
        reached &= shared_s <= GOAL_RATIO * alone_s and not contradictions
        changed = sum(cell.verdict == CHANGES for cell in found.cells)
        table.add_row(
            name,
            *(f"{seconds:.0f}" for seconds in (alone_s, shared_s)),
            f"{shared_s / alone_s:.2f}",
            f"{number(median(ratios))} ({number(min(ratios))} to {number(max(ratios))})",
            f"{changed} of {len(found.cells)}",
            str(contradictions),
        )
    wide_terminal().print(table)
    return 0 if reached else 1


if __name__ == "__main__":
    run_command(main)

"""Measure a study twice from scratch, half an hour apart, and print whether the two runs agree.

    make bench-agreement         (or: python -m benchmarks.agreement [--pause-min 30] [--first DIR] [--second DIR])

It prints the output of `kvsweep compare` for the two runs, then every tested comparison with its verdict in both runs,
and each goal with its value. The exit code is 1 if a goal is missed. Each run has its own results folder below `--out`.
An interrupted run continues where it stopped. `--first` and `--second` name results folders of existing runs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import BAD_INPUT, run_command
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.common.wording import number
from workflow_scripts.questions.compare.compare import markdown, print_comparison, wide_terminal
from workflow_scripts.questions.compare.comparison import FLAT_AGAINST_CHANGES, OPPOSITE, Comparison, comparison
from workflow_scripts.questions.compare.digest import read_digest
from workflow_scripts.statistics.comparisons import CHANGES, NOT_DECIDED
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

DEMO = CHECKOUT / "config" / "studies" / "demo.yaml"


class Goal(NamedTuple):
    """A goal, the value that was found, and whether the goal is reached."""

    words: str
    found: str
    is_reached: bool


def goals(found: Comparison) -> Iterator[Goal]:
    """The results that another run must reproduce; a goal without any data is not reached."""
    inside = [pair.inside for pair in found.pairs if pair.inside is not None]
    yield _share("ratios of the second run inside the first run's interval", sum(inside), len(inside), 0.93)
    agree = sum(cell.verdict != CHANGES for cell in found.cells)
    yield _share("rates that agree within what their scope promises", agree, len(found.cells), 0.90)
    contradictions = [pair.contradiction for pair in found.pairs]
    yield _none(
        "comparisons that are flat in one run and change in the other", contradictions.count(FLAT_AGAINST_CHANGES)
    )
    yield _none("comparisons that change in opposite directions", contradictions.count(OPPOSITE))
    # A headline is one of these statements; which of them the first screen shows is a choice of the report.
    yield _none(
        "statements that the other run contradicts, headlines included", len(list(filter(None, contradictions)))
    )
    for run, sides in (("first", [pair.a for pair in found.pairs]), ("second", [pair.b for pair in found.pairs])):
        tested = [side.verdict for side in sides if side.verdict is not None]
        decided = sum(verdict != NOT_DECIDED for verdict in tested)
        yield _share(f"tested comparisons that the {run} run decided", decided, len(tested), 0.60)


def _share(words: str, count: int, of: int, least: float) -> Goal:
    share = count / of if of else 0.0
    return Goal(f"{words}: at least {100 * least:g} %", f"{count} of {of} ({100 * share:.0f} %)", share >= least)


def _none(words: str, count: int) -> Goal:
    return Goal(f"{words}: none", str(count), count == 0)


def tested(found: Comparison) -> Table:
    """Every comparison that has a verdict in a run; `decided` counts these."""
    pairs = [pair for pair in found.pairs if (pair.a.verdict, pair.b.verdict) != (None, None)]
    title = f"Tested comparisons: {len(pairs)} of {len(found.pairs)}, the others have no test"
    headings = ("of", "cell", "over", "first run", "verdict", "second run", "verdict")
    table = Table(*headings, title=title, title_justify="left", box=None, pad_edge=False)
    for pair in sorted(pairs, key=lambda pair: (pair.kind, pair.name, pair.baseline, pair.cell)):
        runs = [(number(run.ratio), run.verdict or "none") for run in (pair.a, pair.b)]
        table.add_row(pair.name, pair.cell, pair.baseline, *runs[0], *runs[1])
    return table


def print_agreement(found: Comparison) -> bool:
    """Print the comparison and the goals; return whether all goals are reached."""
    print_comparison(found)
    console = wide_terminal()
    console.print()
    console.print(tested(found))
    table = Table("goal", "found", "reached", box=None, pad_edge=False)
    reached = list(goals(found))
    for goal in reached:
        table.add_row(goal.words, goal.found, "yes" if goal.is_reached else "NO")
    console.print()
    console.print(table)
    return all(goal.is_reached for goal in reached)


def measure(study: Path, results: Path) -> None:
    """Measure a study, or the rest of it, and draw its report. Raises InputError if the run failed."""
    results.mkdir(parents=True, exist_ok=True)
    config = ("--config", f"study={study}", f"results={results}")
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--rerun-incomplete", *config]
    # A fork server of its own, so that no run begins with libraries that another one loaded.
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        done = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, "TMPDIR": scratch})
    if done.returncode:
        raise InputError(f"{' '.join(command)} failed; called again, this continues where it ended")


def ended_at(results: Path, name: str) -> float | None:
    """When a run wrote its report, in seconds of the system's clock; None if it has not."""
    report = StudyPaths(results, name).report
    return report.stat().st_mtime if report.exists() else None


def agreement(study: Path, first: Path, second: Path, pause_s: float) -> Comparison:
    """Measure the runs that do not exist yet, and compare them."""
    name = load_study(study).name
    if ended_at(first, name) is None:
        measure(study, first)
    if ended_at(second, name) is None:
        if not StudyPaths(second, name).root.exists():
            left = pause_s - (time.time() - (ended_at(first, name) or 0.0))
            if left > 0:
                print(f"The second run begins in {left / 60:.0f} minutes.", flush=True)
                time.sleep(left)
        measure(study, second)
    return comparison(read_digest(StudyPaths(first, name).root), read_digest(StudyPaths(second, name).root))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure a study twice and print whether the two runs agree.")
    parser.add_argument("--study", type=Path, default=DEMO, help="the study's YAML file (%(default)s)")
    parser.add_argument("--pause-min", type=float, default=30.0, help="minimum minutes between the runs (%(default)g)")
    parser.add_argument("--out", type=Path, default=Path("results/agreement"), help="folder of the runs (%(default)s)")
    parser.add_argument("--first", type=Path, help="results folder of the first run (default: first/ below --out)")
    parser.add_argument("--second", type=Path, help="results folder of the second run (default: second/ below --out)")
    args = parser.parse_args(argv)
    first, second = (
        (given or args.out / name).resolve() for given, name in ((args.first, "first"), (args.second, "second"))
    )
    try:
        found = agreement(args.study.resolve(), first, second, 60 * args.pause_min)
    except InputError as e:
        print(f"bench-agreement: {e}", file=sys.stderr)
        return BAD_INPUT
    write_text(args.out / "agreement.md", markdown(found))
    return 0 if print_agreement(found) else 1


if __name__ == "__main__":
    run_command(main)

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

import pandas as pd
from rich.table import Table

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import BAD_INPUT, run_command
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.wording import number
from workflow_scripts.present.compare import print_comparison, wide_terminal
from workflow_scripts.questions.compare.comparison import Comparison, comparison
from workflow_scripts.questions.compare.run import read_run
from workflow_scripts.statistics.comparisons import CHANGES, FLAT
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.typed_tables import read_table

DEMO = CHECKOUT / "config" / "studies" / "demo.yaml"


class Goal(NamedTuple):
    """A goal, the value that was found, and whether the goal is reached."""

    words: str
    found: str
    is_reached: bool


def pairs_of(runs: Sequence[StudyPaths]) -> pd.DataFrame:
    """The tested comparisons of two runs: `inside`, whether the second run's ratio lies in the interval of further runs
    of the first one (null without one), and `contradicts`: `flat`, `direction` or null."""
    first, second = (read_table(paths.tables / "comparisons.parquet") for paths in runs)
    rows = first[first["from_first"].ne(False)].merge(second, on=["kind", "name", "a", "b", "metric"])
    rows = rows.dropna(subset=["verdict_x", "verdict_y"])
    ends = rows[["again_low_x", "again_high_x"]].notna().all(axis=1)
    inside = rows["ratio_y"].between(rows["again_low_x"], rows["again_high_x"]).astype("boolean").mask(~ends)
    changes, flat = ([rows[f"verdict_{run}"].eq(of) for run in "xy"] for of in (CHANGES, FLAT))
    turned = changes[0] & changes[1] & (rows["ratio_x"].gt(1) != rows["ratio_y"].gt(1))
    one_flat = (changes[0] & flat[1]) | (flat[0] & changes[1])
    contradicts = pd.Series(None, index=rows.index, dtype="string").mask(one_flat, "flat").mask(turned, "direction")
    return rows.assign(inside=inside, contradicts=contradicts)


def goals(found: Comparison, pairs: pd.DataFrame) -> Iterator[Goal]:
    """The results that another run must reproduce; a goal without any data is not reached."""
    inside = pairs["inside"].dropna()
    yield _share("ratios of the second run inside the first run's interval", int(inside.sum()), len(inside), 0.93)
    agree = sum(cell.verdict != CHANGES for cell in found.cells)
    yield _share("rates that agree within what their scope promises", agree, len(found.cells), 0.90)
    yield _none("comparisons that are flat in one run and change in the other", pairs["contradicts"].eq("flat").sum())
    yield _none("comparisons that change in opposite directions", pairs["contradicts"].eq("direction").sum())
    for run, side in (("first", "x"), ("second", "y")):
        decided = int(pairs[f"verdict_{side}"].isin([CHANGES, FLAT]).sum())
        yield _share(f"tested comparisons that the {run} run decided", decided, len(pairs), 0.60)


def _share(words: str, count: int, of: int, least: float) -> Goal:
    share = count / of if of else 0.0
    return Goal(f"{words}: at least {100 * least:g} %", f"{count} of {of} ({100 * share:.0f} %)", share >= least)


def _none(words: str, count: int) -> Goal:
    return Goal(f"{words}: none", str(count), count == 0)


def tested(pairs: pd.DataFrame) -> Table:
    """Every tested comparison; `decided` counts these."""
    headings = ("of", "cell", "over", "first run", "verdict", "second run", "verdict")
    table = Table(*headings, title=f"Tested comparisons: {len(pairs)}", title_justify="left", box=None, pad_edge=False)
    for row in pairs.sort_values(["kind", "name", "a", "b"]).to_dict("records"):
        runs = [(number(row[f"ratio_{run}"]), row[f"verdict_{run}"]) for run in "xy"]
        table.add_row(row["name"], row["b"], row["a"], *runs[0], *runs[1])
    return table


def print_agreement(found: Comparison, pairs: pd.DataFrame) -> bool:
    """Print the comparison and the goals; return whether all goals are reached."""
    print_comparison(found)
    console = wide_terminal()
    console.print()
    console.print(tested(pairs))
    table = Table("goal", "found", "reached", box=None, pad_edge=False)
    reached = list(goals(found, pairs))
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


def agreement(study: Path, first: Path, second: Path, pause_s: float) -> tuple[Comparison, pd.DataFrame]:
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
    runs = [StudyPaths(results, name) for results in (first, second)]
    first_run, second_run = (read_run(paths.root) for paths in runs)
    return comparison([first_run], second_run), pairs_of(runs)


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
        found, pairs = agreement(args.study.resolve(), first, second, 60 * args.pause_min)
    except InputError as e:
        print(f"bench-agreement: {e}", file=sys.stderr)
        return BAD_INPUT
    found.write(args.out / "agreement.json")
    return 0 if print_agreement(found, pairs) else 1


if __name__ == "__main__":
    run_command(main)

"""How the cost of analysis and drawing grows: simulated studies of 1,000 and 10,000 cells, three repeats each.

    make bench-analysis          (or: python -m benchmarks.analysis [--cells 1000 10000])

It runs the commands of the rules one after another, and prints the seconds and the peak memory of each.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import checked
from tests.generated_study import write_generated_study
from workflow_scripts.common.command import run_command

GOAL_S, GOAL_GB = 60, 1


@dataclass(frozen=True)
class Cost:
    """The cost of one command."""

    seconds: float
    peak_bytes: int


def commands(study: Path) -> dict[str, list[str]]:
    """The commands of the rooms analyse and present, by name, in the order of the rules."""
    root = study.parent / "results" / study.stem
    tables, results = root / "tables", str(root.parent)
    common, of_parsed = ["--study", str(study)], ["--parsed", str(root / "parsed")]

    def kvsweep(name: str, *options: str) -> list[str]:
        return ["workflow_scripts", name, *common, *options]

    figures = str(root / "figures")
    return {
        "plan": kvsweep("plan", "--results", results, "--quiet"),
        "tables": kvsweep("tables", "--results", results),
        "figures": kvsweep("figures", "--tables", str(tables), *of_parsed, "--out", figures),
        "page": kvsweep(
            *("report", "--tables", str(tables), "--figures", figures),
            *("--cells", str(root / "cells"), "--out", str(root / "report.html")),
        ),
    }


def run(command: Sequence[str]) -> Cost:
    """Run a command to its end; if it fails, exit with its output."""
    began = time.monotonic()
    # An intermediate process, so that the peak memory is that of this command and not of an earlier one.
    timed = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)"
    )
    printed = checked([sys.executable, "-c", timed, sys.executable, "-m", *command])
    return Cost(time.monotonic() - began, int(printed.split()[-1]) * 1024)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cost of analysis and drawing for simulated studies.")
    parser.add_argument("--cells", type=int, nargs="+", default=[1000, 10000], help="sizes (default: %(default)s)")
    args = parser.parse_args(argv)
    costs: dict[int, dict[str, Cost]] = {}
    for size in args.cells:
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            study = write_generated_study(Path(scratch), size)
            costs[size] = {name: run(command) for name, command in commands(study).items()}
    table = Table("command", *(f"{size} cells" for size in costs), title="seconds, peak GB", box=None)
    for name in next(iter(costs.values())):
        table.add_row(name, *(f"{c[name].seconds:6.1f} s {c[name].peak_bytes / 1e9:5.2f}" for c in costs.values()))
    totals = {size: sum(c.seconds for c in by_name.values()) for size, by_name in costs.items()}
    peaks = {size: max(c.peak_bytes for c in by_name.values()) / 1e9 for size, by_name in costs.items()}
    table.add_row("all", *(f"{totals[size]:6.1f} s {peaks[size]:5.2f}" for size in costs), style="bold")
    console = Console(width=100)
    console.print(table)
    console.print(f"goal for 10,000 cells: at most {GOAL_S} s and {GOAL_GB} GB")
    if len(totals) > 1:
        small, large = min(totals), max(totals)
        console.print(f"{large / small:g} times as many cells take {totals[large] / totals[small]:.2f} times as long")
    return 0


if __name__ == "__main__":
    run_command(main)

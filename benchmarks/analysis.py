"""How the cost of analysis and drawing grows: simulated studies of 1,000 and 10,000 cells, three repeats each.

    make bench-analysis          (or: python -m benchmarks.analysis [--cells 1000 10000])
    make check-growth            (or: python -m benchmarks.analysis --check)

It runs the commands of the rules one after another, and prints the seconds and the peak memory of each. The check
depends on no machine: with four times the cells no command may take more than 4.8 times the CPU time, nor more than its
budget, in multiples of a yardstick that is measured beside it.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import checked
from benchmarks.generated_study import write_generated_study
from workflow_scripts.common.command import run_command

GOAL_S, GOAL_GB = 60, 1
CHECKED_CELLS, MOST_GROWTH = (500, 2000), 4.8
# CPU time of each command for 2,000 cells, in yardsticks: about 4 times what it takes on an AMD EPYC, as processors
# with wider vectors sort and multiply faster, and run Python no faster.
BUDGETS = {"plan": 14, "tables": 72, "figures": 29, "page": 27}
# Sorting and multiplying, of fixed size.
YARDSTICK = """
import numpy as np
values, matrix = np.random.default_rng(1).random(5_000_000), np.random.default_rng(2).random((1500, 1500))
for _ in range(3):
    np.sort(values), matrix @ matrix
"""


@dataclass(frozen=True)
class Cost:
    """The cost of one command."""

    seconds: float
    peak_bytes: int
    cpu_s: float


def commands(study: Path) -> dict[str, list[str]]:
    """The commands of the rooms analyse and present, by name, in the order of the rules."""
    root = study.parent / "results" / study.stem
    tables, results = root / "tables", str(root.parent)
    common = ["--study", str(study)]

    def kvsweep(name: str, *options: str) -> list[str]:
        return ["workflow_scripts", name, *common, *options]

    figures = str(root / "figures")
    return {
        "plan": kvsweep("plan", "--results", results, "--quiet"),
        "tables": kvsweep("tables", "--results", results),
        "figures": kvsweep("figures", "--tables", str(tables), "--out", figures),
        "page": kvsweep(
            *("draw-report", "--tables", str(tables), "--figures", figures),
            *("--cells", str(root / "cells"), "--out", str(root / "report.html")),
        ),
    }


def run(command: Sequence[str], *options: str) -> Cost:
    """Run a module, or with other `options` of Python, to its end; if it fails, exit with its output."""
    began = time.monotonic()
    # An intermediate process, so that the peak memory is that of this command and not of an earlier one.
    timed = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(used.ru_maxrss, used.ru_utime + used.ru_stime); sys.exit(done.returncode)"
    )
    printed = checked([sys.executable, "-c", timed, sys.executable, *(options or ["-m"]), *command])
    peak_kib, cpu_s = printed.split()[-2:]
    return Cost(time.monotonic() - began, int(peak_kib) * 1024, float(cpu_s))


def costs_of(size: int) -> dict[str, Cost]:
    """The cost of each command for a simulated study of so many cells."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        study = write_generated_study(Path(scratch), size)
        return {name: run(command) for name, command in commands(study).items()}


def check_growth() -> int:
    """Print the CPU time of each command with few and many cells, and return 1 if one grows or takes too much."""
    # One thread, because other threads of a matrix product take CPU time while they wait.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    yardsticks = [run([YARDSTICK], "-c").cpu_s]
    few, many = map(costs_of, CHECKED_CELLS)
    yardsticks.append(run([YARDSTICK], "-c").cpu_s)
    unit_s = sum(yardsticks) / 2
    too_much = 0
    print(f"yardstick: {unit_s:.2f} s of CPU time")
    for name, budget in BUDGETS.items():
        growth, taken = many[name].cpu_s / few[name].cpu_s, many[name].cpu_s / unit_s
        fails = growth > MOST_GROWTH or taken > budget
        too_much += fails
        print(
            f"{'FAILS ' if fails else ''}{name}: {many[name].cpu_s:.1f} s for {CHECKED_CELLS[1]} cells, "
            f"{growth:.2f} times that of {CHECKED_CELLS[0]} (at most {MOST_GROWTH}); "
            f"{taken:.1f} yardsticks (at most {budget})"
        )
    return int(too_much > 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cost of analysis and drawing for simulated studies.")
    parser.add_argument("--cells", type=int, nargs="+", default=[1000, 10000], help="sizes (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="fail if a command grows, or takes, too much")
    args = parser.parse_args(argv)
    if args.check:
        return check_growth()
    costs = {size: costs_of(size) for size in args.cells}
    table = Table("command", *(f"{size} cells" for size in costs), title="seconds, CPU seconds, peak GB", box=None)
    for name in next(iter(costs.values())):
        of_sizes = (by_name[name] for by_name in costs.values())
        table.add_row(name, *(f"{c.seconds:6.1f} s, CPU {c.cpu_s:6.1f} s, {c.peak_bytes / 1e9:5.2f}" for c in of_sizes))
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

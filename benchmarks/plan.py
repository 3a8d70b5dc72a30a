"""The cost of planning and its growth: an engine's schedule; plans and dry runs of studies of 100 to 10,000 cells.

    make bench-plan          (or: python -m benchmarks.plan [--cells 100 1000 10000] [--requests 10000 100000 1000000])

Schedules are for random requests of ShareGPT-like lengths and are made in this process, on one core. A plan is
`predict.plan` in one process, with 300 such requests per cell. A dry run is `snakemake --dry-run` of a study without
any results, on this machine and with the batches of `--profile slurm`.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.analysis import Cost, run
from benchmarks.generated_study import write_study_file
from workflow_scripts.common.command import run_command
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.scheduler import make_schedule

SETTINGS = SchedulerSettings(
    max_num_seqs=256, max_num_batched_tokens=8192, block_size=16, max_model_len=2048, num_blocks=60_000
)
CHAT = {
    "kind": "synthetic",
    "num_prompts": 300,
    "prompt_tokens": {"median": 120, "sigma": 1.2, "minimum": 4, "maximum": 1024},
    "output_tokens": {"median": 200, "sigma": 0.9, "minimum": 4, "maximum": 1024},
}
GOAL_SCHEDULE = "1,000,000 requests in at most 120 s of one core"
GOALS = {"plan": "10,000 cells in at most 30 s of one core", "dry run": "10,000 cells in at most 60 s and 2 GB"}
console = Console(width=100)


def sharegpt_like(requests: int) -> RequestLengths:
    """Prompts of about 215 tokens and answers of about 280 on average, with long tails."""
    rng = np.random.default_rng(0)

    def lengths(median: float, sigma: float) -> npt.NDArray[np.int64]:
        return rng.lognormal(np.log(median), sigma, requests).clip(4, 1024).astype(np.int64)

    return RequestLengths(prompt_tokens=lengths(120, 1.2), output_tokens=lengths(200, 0.9))


def schedule_s(requests: int) -> float:
    lengths = sharegpt_like(requests)
    began = time.process_time()
    make_schedule(lengths, SETTINGS)
    return time.process_time() - began


def costs_of_study(cells: int) -> dict[str, Cost]:
    """The cost of a plan of this many cells, and of a dry run for each way to measure them."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        study = str(write_study_file(Path(scratch), cells, CHAT))
        dry_run = ["snakemake", "--dry-run", "--quiet", "--configfile", study, "--config", f"results={scratch}"]
        return {
            "plan": run(["workflow_scripts", "plan", "--study", study, "--results", scratch, "--quiet"]),
            "dry run, here": run(dry_run),
            "dry run, in batches": run([*dry_run, "--profile", "slurm"]),
        }


def _growth(costs: Mapping[int, float]) -> str:
    small, large = min(costs), max(costs)
    return f"{large / small:g} times as many take {costs[large] / costs[small]:.2f} times as long"


def _print_schedules(sizes: Sequence[int]) -> None:
    costs = {size: schedule_s(size) for size in sizes}
    table = Table(*(f"{size:,} requests" for size in sizes), title="schedule of an engine, max-num-seqs 256", box=None)
    table.add_row(*(f"{seconds:.1f} s" for seconds in costs.values()))
    console.print(table)
    console.print(f"goal: {GOAL_SCHEDULE}; {_growth(costs)}\n")


def _print_studies(sizes: Sequence[int]) -> None:
    costs = {size: costs_of_study(size) for size in sizes}
    table = Table("", *(f"{size:,} cells" for size in sizes), title="seconds, peak GB of a process", box=None)
    for what in costs[sizes[0]]:
        table.add_row(what, *(f"{c[what].seconds:.1f} s {c[what].peak_bytes / 1e9:.2f}" for c in costs.values()))
    console.print(table)
    for what in costs[sizes[0]]:
        growth = _growth({size: c[what].seconds for size, c in costs.items()})
        console.print(f"{what}: {growth}; goal: {GOALS[what.partition(',')[0]]}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cost of planning, and how it grows.")
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N")
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 1000, 10_000], metavar="N")
    args = parser.parse_args(argv)
    _print_schedules(args.requests)
    _print_studies(args.cells)
    return 0


if __name__ == "__main__":
    run_command(main)

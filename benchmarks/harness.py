"""The overhead of the pipeline: its time for the demo's vLLM cells, compared with a loop of vLLM's own benchmark.

    make bench-harness            (or: python -m benchmarks.harness [--cells 2] [--agreement-runs 1])

Both measure the same cells on the same requests, one pass per cell. The loop starts `vllm.benchmarks.throughput` in a
new process for each cell, as users do. The output has both times, their ratio, and the pipeline's time by phase. For
one cell it compares the pipeline's total tokens/s with vLLM's own benchmark, in one process (as the pipeline runs on a
CPU) and in vLLM's default processes, to show the effect of using one process.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import checked
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import read_json, read_jsonl, write_json
from workflow_scripts.device.device_check import found_device
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.study.definition import cell_definition, model_key, resolved_models, workload_key
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

DEMO = CHECKOUT / "config" / "studies" / "demo.yaml"
REFUSED_BLOCK_SIZE = 16  # the cell that demonstrates a refusal; there is nothing to time
GOAL_RATIO = 0.20
console = Console(width=110)


class Bench:
    """A copy of the demo's vLLM cells in a folder of its own."""

    def __init__(self, folder: Path, repeats: int, cells: int | None) -> None:
        content = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
        content.update(name="harness", repeats=repeats, cell_time_limit_s=600)
        self.file = folder / "harness.yaml"
        self.file.write_text(yaml.safe_dump(content), encoding="utf-8")
        self.study: Study = load_study(self.file)
        self.paths = StudyPaths(folder / "results", self.study.name)
        self.cells = [
            cell
            for cell in expand(self.study)
            if cell.engine == "vllm" and cell.knobs.set_values()["block_size"] != REFUSED_BLOCK_SIZE
        ][:cells]

    def run_pipeline(self, cells: Sequence[Cell]) -> float:
        """Measure the cells with snakemake, including preparation; seconds."""
        # This run has its own fork server, so that the server's start is part of the time.
        environment = {**os.environ, "TMPDIR": str(self.file.parent)}
        config = ("--config", f"study={self.file}", f"results={self.paths.results}")
        targets = [str(self.paths.outcome(cell)) for cell in cells]
        began = time.monotonic()
        checked([sys.executable, "-m", "snakemake", "--cores", "all", *config, "--", *targets], environment)
        return time.monotonic() - began

    def run_own_benchmark(self, cell: Cell, one_process: bool, warm_up: bool) -> tuple[float, float]:
        """Run vLLM's benchmark on a cell: seconds of the whole process, and total tokens/s."""
        definition = cell_definition(self.study, cell, resolved_models(self.study))
        knobs = cell.knobs.set_values()
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": str(knobs.pop("cpu_kv_cache_gib", 1))}
        if one_process:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        device = found_device(gpu := load_gpus()[cell.gpu])
        cores = device["cores"]
        environment["OMP_NUM_THREADS"] = str(len(cores))
        job, result = self.file.with_name("job.json"), self.file.with_name("result.json")
        arguments = {
            "model": str(self.paths.model(cell.model, model_key(definition.model))),
            "load_format": definition.model.load_format,
            "dtype": dtype_on(definition.model.dtype, gpu, device),
            **knobs,
        }
        workload = self.paths.workload(cell.model, cell.workload, workload_key(definition))
        write_json(job, {"engine_args": arguments, "workload": str(workload), "warm_up": warm_up})
        pin = ["taskset", "--cpu-list", ",".join(map(str, cores))]
        began = time.monotonic()
        checked([*pin, sys.executable, "-m", "benchmarks.vllm_throughput", str(job), str(result)], environment)
        return time.monotonic() - began, read_json(result)["total_tokens_per_s"]

    def total_tokens_per_s(self, cell: Cell) -> list[float]:
        """The pipeline's rate of a cell, one value per repeat."""
        requests = list(read_jsonl(self.paths.cell(cell) / "raw" / "requests.jsonl"))
        rates = []
        for repeat in Outcome.read(self.paths.outcome(cell)).repeats:
            tokens = sum(r["prompt_tokens"] + r["output_tokens"] for r in requests if r["repeat"] == repeat.repeat)
            rates.append(tokens / (repeat.end_monotonic_s - repeat.start_monotonic_s))
        return rates


def cost(folder: Path, cells: int | None) -> None:
    """Time both ways over all cells and print the pipeline's time by phase."""
    bench = Bench(folder, repeats=1, cells=cells)
    pipeline_s = bench.run_pipeline(bench.cells)
    loop_s = 0.0
    table = Table("cell", "pipeline", "vLLM's own", "ratio", title="total tokens/s, one pass per cell", box=None)
    for cell in bench.cells:
        seconds, own = bench.run_own_benchmark(cell, one_process=False, warm_up=False)
        loop_s += seconds
        ours = bench.total_tokens_per_s(cell)[0]
        table.add_row(
            f"{cell.gpu} {cell.workload} {cell.knobs.slug()}", f"{ours:.1f}", f"{own:.1f}", f"{ours / own:.3f}"
        )
    console.print(table)
    phases: dict[str, float] = {}
    for cell in bench.cells:
        for name, seconds in Outcome.read(bench.paths.outcome(cell)).phases_s.items():
            phases[name] = phases.get(name, 0.0) + seconds
    phases["import, planning and the rest"] = pipeline_s - sum(phases.values())
    shares = Table("phase", "seconds", "share", title="the pipeline's time by phase", box=None)
    for name, seconds in phases.items():
        shares.add_row(name, f"{seconds:.1f}", f"{100 * seconds / pipeline_s:.0f} %")
    console.print(shares)
    console.print(
        f"{len(bench.cells)} cells: pipeline {pipeline_s:.0f} s, loop {loop_s:.0f} s, "
        f"ratio {pipeline_s / loop_s:.3f} (goal: at most {GOAL_RATIO})"
    )


def agreement(folder: Path, runs: int) -> None:
    """Print the pipeline's rate of one cell beside vLLM's own, warmed up in the same way."""
    bench = Bench(folder, repeats=runs, cells=None)
    cell = next(c for c in bench.cells if c.gpu == "cpu-all" and c.knobs.max_concurrency == 16)
    bench.run_pipeline([cell])
    measured = {"pipeline": bench.total_tokens_per_s(cell)}
    for name, one_process in (("vLLM's own, one process", True), ("vLLM's own, default processes", False)):
        measured[name] = [bench.run_own_benchmark(cell, one_process, warm_up=True)[1] for _ in range(runs)]
    table = Table("", "total tokens/s of each run", "mean", "to the pipeline", title=cell.id, box=None)
    mean_of_ours = sum(measured["pipeline"]) / runs
    for name, rates in measured.items():
        mean = sum(rates) / len(rates)
        table.add_row(name, " ".join(f"{r:.1f}" for r in rates), f"{mean:.1f}", f"{mean / mean_of_ours:.3f}")
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Overhead of the pipeline beside a loop of vLLM's own benchmark.")
    parser.add_argument("--cells", type=int, help="number of cells, the first ones (default: all)")
    parser.add_argument("--agreement-runs", type=int, default=3, help="runs of the cell that is compared")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cost(Path(folder), args.cells)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        agreement(Path(folder), args.agreement_runs)
    return 0


if __name__ == "__main__":
    run_command(main)

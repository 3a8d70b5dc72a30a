"""How much a rate varies within a start of the engine, between starts, and between occasions.

    make bench-variance ARGS="--starts 12"
    make bench-variance ARGS="--starts 12 --variant huge-pages THP_MEM_ALLOC_ENABLE=1"

Each call is one occasion: it measures the cells of `variance.yaml` in rounds, every cell once per round in a fresh
start and in random order, and adds the starts to those of earlier calls in `results/variance/starts.jsonl`. Starts of
a variant have additional environment variables, and run in the same rounds as the others. A copy of memory is timed
before and after each start, because neighbours on the host can take memory bandwidth without any load being visible.
The table that is printed covers all occasions so far.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from statsmodels.formula.api import mixedlm

from benchmarks import checked
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.common.ownership import own_folder, temporary_folder
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import read_measurements
from workflow_scripts.tables.summary import RATE, comparable_rows

STUDY = CHECKOUT / "benchmarks" / "variance.yaml"
PROBE_BYTES = 2**28
PLAIN = "default"
console = Console(width=150)


def copy_gb_per_s() -> float:
    """The best of ten copies of a large array by one thread: gigabytes read and written per second."""
    source, target = np.ones(PROBE_BYTES // 8), np.empty(PROBE_BYTES // 8)
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return 2 * PROBE_BYTES / min(seconds) / 1e9


class Occasion:
    """One call: rounds of starts, added to a file."""

    def __init__(self, results: Path, variants: Mapping[str, Mapping[str, str]]) -> None:
        self.variants = variants
        self.paths = {name: StudyPaths(results / name, load_study(STUDY).name) for name in variants}
        self.cells = expand(load_study(STUDY))
        self.file = results / "starts.jsonl"
        self.began = time.time()

    def prepare(self) -> None:
        """Prepare models and workloads by measuring every cell once; this start does not count."""
        for name, paths in self.paths.items():
            targets = [str(paths.outcome(cell)) for cell in self.cells if not paths.outcome(cell).exists()]
            config = ("--config", f"study={STUDY}", f"results={paths.results}")
            if targets:
                self._call(name, "snakemake", "--cores", "all", *config, "--", *targets)

    def round(self, number: int) -> None:
        """Measure every cell of every variant once, in random order."""
        order = [(name, cell) for name in self.variants for cell in self.cells]
        random.Random(number + int(self.began)).shuffle(order)
        for position, (name, cell) in enumerate(order):
            paths = self.paths[name]
            start = 2 + len(list(paths.cell(cell).glob("start-*")))
            idle_from, before = time.time(), copy_gb_per_s()
            arguments = ("--cell", cell.id, "--results", str(paths.results), "--start", str(start))
            self._call(name, "workflow_scripts", "measure-cell", "--study", str(STUDY), *arguments)
            outcome = Outcome.read(paths.cell(cell) / f"start-{start}" / "outcome.json")
            row = {
                "occasion": self.began,
                "variant": name,
                "cell": cell.id,
                "round": number,
                "position": position,
                "unix_s": idle_from,
                "copy_before_gb_per_s": before,
                "copy_after_gb_per_s": copy_gb_per_s(),
                "host_load": outcome.host_load,
                "warmup_s": outcome.warmup.passes_s if outcome.warmup else [],
                "repeats_s": [one.end_monotonic_s - one.start_monotonic_s for one in outcome.repeats],
            }
            with self.file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")

    def _call(self, variant: str, module: str, *arguments: str) -> None:
        # Every variant has its own fork server, whose variables were set before its libraries were imported.
        scratch = temporary_folder() / f"variance-{variant}"
        with own_folder(temporary_folder()):
            scratch.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(scratch), **self.variants[variant]}
        checked([sys.executable, "-m", module, *arguments], environment)


def components(starts: pd.DataFrame) -> dict[str, float]:
    """Standard deviations (%) of one cell's times at three levels, each without the contribution of the levels below.

    `starts` has one row per start: `occasion` and `repeats_s`. The moments are those of Kalibera and Jones (2013).
    """
    logs = starts["repeats_s"].map(np.log)
    repeats = logs.map(len).mean()
    within = logs.map(lambda one: one.var(ddof=1)).mean()
    by_occasion = logs.map(np.mean).groupby(starts["occasion"])
    between_starts = by_occasion.var(ddof=1).mean()
    between_occasions = by_occasion.mean().var(ddof=1)
    per_occasion = by_occasion.size().mean()
    pure = {
        "within a start": within,
        "between starts": between_starts - within / repeats,
        "between occasions": between_occasions - between_starts / per_occasion,
    }
    return {level: 100 * float(np.sqrt(np.clip(variance, 0.0, None))) for level, variance in pure.items()}


def between_occasions(starts: pd.DataFrame) -> dict[str, float]:
    """Standard deviations (%) of an occasion's effect on all cells together, and on one cell relative to the others.

    `starts` has one row per start: `cell`, `occasion` and `repeats_s`. NaN with one occasion or one cell. The
    first does not affect the ratio of two cells of one occasion. The second does, and rounds that are minutes apart do
    not show it.
    """
    mean = starts["repeats_s"].map(lambda one: np.log(one).mean())
    by = mean.groupby([starts["cell"], starts["occasion"]])
    cells = by.mean().unstack("occasion").dropna()
    count, occasions = cells.shape
    if count < 2 or occasions < 2:
        return {"all cells together": np.nan, "one cell beside the others": np.nan}
    together = cells.mean(axis=0)
    left = cells.sub(cells.mean(axis=1), axis=0) - (together - together.mean())
    own = float((left**2).sum().sum()) / ((count - 1) * (occasions - 1))
    of_starts = (by.var(ddof=1) / by.size()).mean()
    pure = {"all cells together": together.var(ddof=1) - own / count, "one cell beside the others": own - of_starts}
    return {level: 100 * float(np.sqrt(np.clip(variance, 0.0, None))) for level, variance in pure.items()}


def of_studies(cells: pd.DataFrame) -> dict[str, float]:
    """How much starts of a cell and rounds vary over all studies of GPUs, with degrees of freedom, for the medians of
    config/variation.yaml: a mixed model by REML, with a round of a booted host as the random effect.

    A cell of several studies counts as one, so starts are on several days and cards. Empty if no cell has two starts.
    """
    rows = comparable_rows(cells)
    rows = rows[rows["boot_id"].notna() & ~rows["processor"].notna()].dropna(subset=[RATE])
    rows = rows.assign(rate=np.log(rows[RATE].astype(float)), occasion=rows["boot_id"] + rows["round"].astype(str))
    of_start = {"rate": ("rate", "mean"), "count": ("rate", "count"), "variance": ("rate", "var")}
    starts = rows.groupby(["cell_id", "occasion", "start"]).agg(**of_start).reset_index()
    starts = starts[starts["cell_id"].duplicated(keep=False)]
    if starts.empty:
        return {}
    fit = mixedlm("rate ~ 0 + C(cell_id)", starts, groups=starts["occasion"]).fit(reml=True)
    both = pd.get_dummies(starts[["cell_id", "occasion"]], dtype=float)
    rank, count = np.linalg.matrix_rank(both), starts["cell_id"].nunique()
    parts = {"starts": (fit.scale, len(starts) - rank), "rounds": (fit.cov_re.iloc[0, 0], rank - count)}
    shown = {
        name: value
        for part, (variance, df) in parts.items()
        for name, value in ((f"{part}_pct", 100 * np.sqrt(variance)), (f"{part}_df", df))
    }
    of_repeats = (starts["variance"] * (starts["count"] - 1)).sum() / (starts["count"] - 1).sum()
    beyond = max(0.0, fit.scale - of_repeats * (1 / starts["count"]).mean())
    shown |= {"starts_alone_pct": 100 * np.sqrt(beyond), "repeats_pct": 100 * np.sqrt(of_repeats)}
    return {name: round(float(value), 2) for name, value in shown.items()}


def _per_cell(starts: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and variant: its variation by level, and the correlations of its starts."""
    rows = {}
    mean_log = starts["repeats_s"].map(lambda one: np.log(one).mean())
    cell = [starts["variant"], starts["cell"]]
    deviation = mean_log - mean_log.groupby(cell).transform("mean")
    in_round = deviation - deviation.groupby([starts["occasion"], starts["round"]]).transform("mean")
    copied = np.log((starts["copy_before_gb_per_s"] + starts["copy_after_gb_per_s"]) / 2)
    for key, own in starts.groupby(cell):
        first, later = (
            own["repeats_s"].map(part).mean() for part in (lambda one: one[0], lambda one: np.mean(one[1:]))
        )
        rows[key] = {
            "starts": len(own),
            **{f"{level} (%)": value for level, value in components(own).items()},
            "start minus its round (%)": 100 * in_round[own.index].std(ddof=1),
            "first repeat over later": first / later,
            "correlation with copy rate": deviation[own.index].corr(-copied[own.index]),
            "correlation with position": deviation[own.index].corr(own["position"]),
        }
    return pd.DataFrame(rows).T


def _show(values: pd.DataFrame, title: str) -> None:
    table = Table(Column("", overflow="fold", min_width=48), *values.columns, title=title, title_justify="left")
    for key, row in values.iterrows():
        when = pd.Timestamp(key, unit="s").strftime("%Y-%m-%d %H:%M") if isinstance(key, float) else key
        name = " ".join(key) if isinstance(key, tuple) else when
        table.add_row(name, *("" if np.isnan(value) else f"{value:.2f}" for value in row))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="Variation of rates within and between starts, and between occasions.")
    parser.add_argument("--starts", type=int, default=12, help="rounds of this occasion; 0 prints only (%(default)s)")
    parser.add_argument("--results", type=Path, default=CHECKOUT / "results" / "variance", help="folder of all starts")
    parser.add_argument(
        "--variant", nargs="+", action="append", default=[], metavar=("NAME", "VARIABLE=VALUE"), help="add a variant"
    )
    parser.add_argument("--of", type=Path, nargs="+", metavar="FOLDER", help="only print what GPU studies' tables show")
    args = parser.parse_args()
    if args.of:
        cells = pd.concat(map(read_measurements, args.of), ignore_index=True)
        console.print(of_studies(cells))
        return 0
    variants = {PLAIN: {}} | {name: dict(one.split("=", 1) for one in given) for name, *given in args.variant}
    args.results.mkdir(parents=True, exist_ok=True)
    occasion = Occasion(args.results, variants)
    if args.starts:
        occasion.prepare()
        for number in track(range(1, args.starts + 1), "rounds", console=console):
            occasion.round(number)
    starts = pd.DataFrame(list(read_jsonl(occasion.file)))
    starts["repeats_s"] = starts["repeats_s"].map(np.array)
    _show(_per_cell(starts), "Variation of a cell's times, and correlations of its starts")
    spread = {name: between_occasions(of_variant) for name, of_variant in starts.groupby("variant")}
    _show(pd.DataFrame(spread).T, "Standard deviation between occasions (%)")
    columns = ["copy_before_gb_per_s", "copy_after_gb_per_s"]
    _show(starts.groupby("occasion")[columns].mean(), "Memory copied by one thread (GB/s), mean of each occasion")
    return 0


if __name__ == "__main__":
    run_command(main)

"""Fit costs of `config/calibration/public_runs.yaml` to runs of others, and predict each source by a fit without it.

    python -m benchmarks.external_fit FOLDER [--out FILE]

FOLDER is that of `benchmarks.external`. Costs are fitted, first of current versions, to times per output token, or to
rates where a run states no such time, and for servers also to times to the first token. A small error counts squared, a
large one by its size; a source counts like the square root of its runs. What is known of a cost without these runs
holds it (`Free`); these values were written down after earlier fits. The last table has the errors of the runs whose
source was left out, on the schedules of the present costs. The file is not touched.
"""

import argparse
import copy
import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.table import Table
from scipy.optimize import least_squares

from benchmarks.external import MEASURED, cells_of, console, in_words, version_of
from workflow_scripts.physics.layers import Experts
from workflow_scripts.physics.step_time import StepCosts, StepWork
from workflow_scripts.predict.predictions import tasks_of
from workflow_scripts.predict.public_costs import Beyond, PublicCosts, public_costs
from workflow_scripts.predict.schedule import RequestLengths, Schedule
from workflow_scripts.predict.speed import schedule_for, work_of
from workflow_scripts.predict.timing import time_schedule


class Free(NamedTuple):
    """A cost that is fitted: its keys in the file, what is known of it without public runs, and the factor by which
    that may be off (one standard deviation)."""

    path: str
    known: float
    within: float


# Launches of the calibrated H200 and H100 take 2.4 ms per step and 25 us per sequence. The rates of links are those of
# data sheets. Other values are orders of magnitude: of an all-reduce of NCCL, of a message between processes.
CURRENT, SYNCHRONOUS = "current", "synchronous"
FREE: Mapping[str, Sequence[Free]] = {
    CURRENT: (
        Free("links.nvlink[2-5].latency_s.2", 4e-6, 3),
        Free("links.nvlink[2-5].latency_s.4", 8e-6, 3),
        Free("links.nvlink[2-5].latency_s.8", 16e-6, 3),
        Free("link_share", 0.5, 2),
        Free("server_steps", 2e-4, 2),
        Free("server_s", 5e-3, 2),
        Free("multi_head_reading", 0.9, 1.5),
        Free("kernel_share", 0.1, 2),
    ),
    SYNCHRONOUS: (
        Free("synchronous.steps", 2.4e-3, 1.5),
        Free("synchronous.sequences", 2.5e-5, 3),
        Free("links.pcie[3-5].latency_s.2", 40e-6, 2),
        Free("links.pcie4.bytes_per_s", 32e9, 1.5),
    ),
}


@dataclass(frozen=True)
class Run:
    """A public run, and the work of the steps by which it is predicted."""

    row: Any
    beyond: Beyond
    costs: StepCosts
    requests: RequestLengths
    schedule: Schedule
    work: StepWork
    users: int | None

    @property
    def no_ttft(self) -> bool:
        return "ttft unusable" in str(self.row.notes)

    def ratios(self, public: PublicCosts) -> dict[str, float]:
        """Predicted over measured, by measured column."""
        costs = self.beyond.costs(self.costs, public)
        timed = time_schedule(self.schedule, self.work, costs, self.requests, self.users)
        output, prompts = self.requests.output_tokens.sum(), self.requests.prompt_tokens.sum()
        predicted = {
            "tpot_ms": 1e3 * float(np.nanmedian(timed.tpot_s)) if not np.isnan(timed.tpot_s).all() else math.nan,
            "ttft_ms": 1e3 * (float(np.median(timed.ttft_s)) + public.server_s * self.beyond.served),
            "output_tokens_per_s": output / timed.wall_s,
            "total_tokens_per_s": (output + prompts) / timed.wall_s,
        }
        found = {name: predicted[name] / getattr(self.row, name) for name in MEASURED}
        return {n: ratio for n, ratio in found.items() if ratio == ratio and not (n == "ttft_ms" and self.no_ttft)}

    def fitted_to(self) -> list[str]:
        """The columns that count in a fit."""
        names = [
            n for n in ("tpot_ms", "output_tokens_per_s", "total_tokens_per_s") if not math.isnan(getattr(self.row, n))
        ]
        served = self.beyond.served and not self.beyond.synchronous and not self.no_ttft
        return names[:1] + ["ttft_ms"] * (served and not math.isnan(self.row.ttft_ms))


def runs_of(folder: Path, only: str = "") -> Iterator[Run]:
    """The folder's usable runs whose speed is predicted."""
    table = pd.read_csv(folder / "runs.csv")
    by_sweep = {row.sweep: row for row in table.itertuples()}
    versions = {name: version_of(str(row.vllm)) for name, row in by_sweep.items()}
    sources = {name: row.source for name, row in by_sweep.items()}
    of_one_gpu: dict[int, tuple[Beyond, StepCosts, StepCosts]] = {}
    add = Beyond.costs

    def noted(beyond: Beyond, costs: StepCosts) -> StepCosts:
        found = add(beyond, costs)
        of_one_gpu[id(found)] = beyond, costs, found
        return found

    Beyond.costs = noted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as scratch:
        for study, cells in cells_of(folder, versions, sources, Path(scratch), only):
            for task in tasks_of(study, [cell for cell, _ in cells.values()])[0]:
                made: list[Schedule] = []
                for cell in sorted(task.cells, key=lambda cell: -(cell.record.num_blocks or 0)):
                    if cell.speed is None:
                        continue
                    beyond, costs, _ = of_one_gpu[id(cell.speed.costs)]
                    schedule = schedule_for(cell, task, made)
                    work = work_of(schedule, cell, task)
                    for sweep in cells[cell.record.cell_id][1]:
                        row = by_sweep[sweep]
                        if row.flag != row.flag:
                            yield Run(row, beyond, costs, task.requests, schedule, work, cell.users)
    Beyond.costs = add  # type: ignore[method-assign]


def with_values(public: PublicCosts, values: Mapping[str, float]) -> PublicCosts:
    """The costs with these values; a key of a path may be a pattern for several."""
    content: dict[str, Any] = copy.deepcopy(public.model_dump())
    for path, value in values.items():
        *keys, last = path.split(".")
        places = [content]
        for key in keys:
            places = [part for place in places for name, part in place.items() if re.fullmatch(key, str(name))]
        for place in places:
            place[int(last) if last.isdigit() else last] = value
    return PublicCosts.model_validate(content)


def fitted(runs: Sequence[Run], free: Sequence[Free], public: PublicCosts) -> dict[str, float]:
    known = np.log([cost.known for cost in free])
    spread = np.log([cost.within for cost in free])
    counts = Counter(run.row.source for run in runs)

    def costs_of(logs: np.ndarray) -> dict[str, float]:
        return dict(zip((cost.path for cost in free), np.exp(logs).tolist(), strict=True))

    def residuals(logs: np.ndarray) -> np.ndarray:
        tried, found = with_values(public, costs_of(logs)), []
        for run in runs:
            ratios = run.ratios(tried)
            for name in run.fitted_to():
                # Huber's function of errors of 8 %.
                error = math.log(ratios[name]) / 0.08
                size = math.copysign(math.sqrt(2 * (math.sqrt(1 + error**2) - 1)), error)
                found.append(size / counts[run.row.source] ** 0.25)
        return np.concatenate([found, (logs - known) / spread])

    found = least_squares(residuals, known, diff_step=0.02, xtol=3e-3, ftol=3e-3, max_nfev=8)
    return costs_of(found.x)


def described(run: Run) -> dict[str, Any]:
    """What tells the groups of a run: that of its band, and that of its goal."""
    beyond = run.beyond
    experts = any(beyond.facts.of_kind(Experts)) if beyond.facts else False
    sheet = "data sheet" if beyond.calibrated is None else "calibrated"
    ranks = "1 and 2" if beyond.ranks <= 2 else "4 and 8"
    goal = f"{CURRENT}, {sheet}, TP {ranks}"
    if beyond.synchronous:
        goal = f"{SYNCHRONOUS}, {'experts' if experts else 'dense'}"
    return {"run_id": run.row.run_id, "source": run.row.source, "band": beyond.band.group, "goal": f"({goal})"}


def holding(errors: pd.Series, share: float = 0.9) -> float:
    """Half width in per cent of a band, from value / width to value x width, that holds this share of further runs.

    >>> round(holding(pd.Series([100.0, -50.0])))
    100
    """
    widths = np.sort(np.maximum(1 + errors / 100, 1 / (1 + errors / 100)))
    return 100 * float(widths[min(len(widths), math.ceil((len(widths) + 1) * share)) - 1] - 1)


def print_left_out(table: pd.DataFrame) -> None:
    table = table.reindex(columns=["band", "goal", *MEASURED])
    table["rate"] = table["output_tokens_per_s"].fillna(table["total_tokens_per_s"])
    shown = Table(title="Source left out, errors in %: median / 90th percentile / worst; band that holds 90 %")
    for heading in ("group", "runs", "TPOT", "band", "TTFT", "band", "throughput", "band"):
        shown.add_column(heading)
    by_group = [*table.groupby("band"), *table.groupby("goal")]
    for group, part in by_group:
        cells = []
        for name in ("tpot_ms", "ttft_ms", "rate"):
            errors = part[name].dropna()
            cells += [in_words(errors), f"{holding(errors):.0f}" if len(errors) else ""]
        shown.add_row(str(group), str(len(part)), *cells)
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="CSV file with the errors of each run, its source left out")
    args = parser.parse_args()
    all_runs, errors, public = list(runs_of(args.folder)), [], public_costs()
    for generation, free in FREE.items():
        synchronous = generation == SYNCHRONOUS
        runs = [run for run in all_runs if run.beyond.synchronous == synchronous and run.fitted_to()]
        for left_out in [None, *sorted({run.row.source for run in runs})]:
            values = fitted([run for run in runs if run.row.source != left_out], free, public)
            shown = ", ".join(f"{path} {value:.3g}" for path, value in values.items())
            console.print(f"{generation}, {'all' if left_out is None else f'without {left_out}'}: {shown}")
            if left_out is None:
                public = with_values(public, values)  # what newer versions cost, older ones cost too
            for run in (run for run in runs if run.row.source == left_out):
                ratios = run.ratios(with_values(public, values))
                errors.append({**described(run), **{name: 100 * (ratio - 1) for name, ratio in ratios.items()}})
    print_left_out(pd.DataFrame(errors))
    if args.out:
        pd.DataFrame(errors).to_csv(args.out, index=False)


if __name__ == "__main__":
    main()

"""How well one minute of calibration per device predicts cells on this machine.

    make bench-predict       (or: python -m benchmarks.predict [--gpu cpu-1core cpu-all] [--seconds 8] [--keep FOLDER])

First the devices are calibrated for the demo's cells and for a second model. Then all predictions are made, and last
the cells are measured. Errors are of output tokens per second and of the median TTFT. The other model's cells are also
predicted from the calibration of the first model alone, and vice versa. Requests reach a server at a low rate, so that
none waits long.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from workflow_scripts.cluster.batches import Round
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.predict.predictions import predict_cells
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import CellStart
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

DEMO = CHECKOUT / "config/studies/demo.yaml"
MODEL, OTHER = "tiny-llama-57m", "smollm-135m"
SERVER = "vllm-serve"
GOALS = {
    "median error": "at most 8 %",
    "90th percentile": "at most 20 %",
    "cells within their band": "at least 80 %",
    "another model, median error": "at most 15 %",
    "TTFT of servers below saturation": "at most 30 %",
}
console = Console(width=120)

# Predicted values by cell: output tokens/s with the ends of its band, and median TTFT.
Predictions = Mapping[str, Mapping[str, Any]]


def study_file(folder: Path, gpus: Sequence[str]) -> Path:
    """The demo on some devices, with one start of each cell, and two cells of another model."""
    study = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    sweeps = [{**sweep, "gpu": [*gpus]} for sweep in study["sweeps"]]
    knobs = {"block_size": 32, "max_num_seqs": [1, 16]}
    other = {"name": "other-model", "gpu": gpus[0], "engine": "vllm", "model": OTHER, "workload": "few", "knobs": knobs}
    served = {
        "name": "served",
        "gpu": gpus[-1],
        "engine": SERVER,
        "model": MODEL,
        "workload": "few",
        "knobs": {"block_size": 32, "max_num_seqs": 16, "request_rate_per_s": [3, 6]},
    }
    study["workloads"]["few"] = study["workloads"]["chat"] | {"num_prompts": 12}
    study["engine_defaults"][SERVER] = study["engine_defaults"]["vllm"]
    study |= {"name": "bench-predict", "starts": 1, "sweeps": [*sweeps, other, served]}
    study["models"] = {OTHER: {"load_format": "dummy"}}
    path = folder / "bench-predict.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return path


def batch_words(study: Study) -> list[str]:
    """The batch of all cells, in a random order, as words of `measure-batch`."""
    of = Cells(study)
    whole = Round(1, (CellStart(cell, 1) for cell in of.cells), of)
    ((gpus, part),) = whole.roots(True, {of.needs(cell) for cell in of.cells.values()})
    return ["--gpus", gpus, "--round", "1", "--batch", whole.batch(gpus, part).name]


def predicted(study: Study, cells: Sequence[Cell], prepared: Path) -> Predictions:
    return {record.cell_id: record.row() for record in predict_cells(study, cells, prepared, prepared / "no-files")}


def crossed(study: Study, cells: Sequence[Cell], prepared: Path, folder: Path) -> Predictions:
    """Predictions of vLLM's cells of each of the two models, without any calibration of the model itself."""
    found: dict[str, Mapping[str, Any]] = {}
    for model in (MODEL, OTHER):
        alone = folder / model
        shutil.copytree(prepared / "devices", alone / "devices")
        shutil.copytree(prepared / "calibrations", alone / "calibrations", ignore=shutil.ignore_patterns(model))
        gpu = next(cell.gpu for cell in cells if cell.model == OTHER)
        some = [cell for cell in cells if (cell.model, cell.gpu, cell.engine) == (model, gpu, "vllm")]
        found |= predicted(study, some, alone)
    return found


def measured(paths: StudyPaths, cell: Cell) -> tuple[float, float] | None:
    """Output tokens/s and median TTFT of a cell, each the median over its repeats; None if it did not end `ok`."""
    outcome = Outcome.read(paths.outcome(cell))
    if outcome.outcome != "ok":
        return None
    requests = list(read_jsonl(paths.cell(cell) / "raw/requests.jsonl"))
    rates, firsts = [], []
    for repeat in outcome.repeats:
        own = [request for request in requests if request["repeat"] == repeat.repeat]
        rates.append(sum(r["output_tokens"] for r in own) / (repeat.end_monotonic_s - repeat.start_monotonic_s))
        waited_s = [
            r["first_token_s"] - (r["queued_s"] if cell.engine == SERVER else repeat.start_monotonic_s) for r in own
        ]
        firsts.append(float(np.median(waited_s)))
    return float(np.median(rates)), float(np.median(firsts))


def errors_pct(predictions: Predictions, values: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Error of each cell's rate and TTFT in per cent, with sign: positive if the value is predicted too high.

    >>> errors_pct({"a": {"output_tokens_per_s": 110, "ttft_s_p50": 1}}, {"a": (100, 2)})
    {'a': (10.0, -50.0)}
    """
    return {
        cell: (
            round(100 * (predictions[cell]["output_tokens_per_s"] / rate - 1), 1),
            round(100 * (predictions[cell]["ttft_s_p50"] / first_s - 1), 1),
        )
        for cell, (rate, first_s) in values.items()
        if predictions.get(cell, {}).get("output_tokens_per_s") is not None
    }


def within_band(predictions: Predictions, values: Mapping[str, tuple[float, float]]) -> list[bool]:
    found = []
    for cell, (rate, _) in values.items():
        low, high = (predictions.get(cell, {}).get(f"output_tokens_per_s_{end}") for end in ("low", "high"))
        if low is not None and high is not None:
            found.append(low <= rate <= high)
    return found


def show(whole: Predictions, cross: Predictions, values: Mapping[str, tuple[float, float]]) -> None:
    errors, other = errors_pct(whole, values), errors_pct(cross, values)
    table = Table(title="Errors (%), positive if predicted too high", title_justify="left")
    for heading in ("cell", "output tok/s", "TTFT p50", "from", "by another model's calibration"):
        table.add_column(heading, overflow="fold", justify="left" if heading in ("cell", "from") else "right")
    for cell in values:
        rate, first = errors.get(cell, (None, None))
        source = whole.get(cell, {}).get("speed_source")
        table.add_row(cell, *map(_text, (rate, first)), str(source), _text(other.get(cell, (None,))[0]))
    console.print(table)
    rates = np.abs([rate for cell, (rate, _) in errors.items() if f"/{OTHER}/" not in cell and SERVER not in cell])
    waits = np.abs([first for cell, (_, first) in errors.items() if SERVER in cell])
    inside = within_band(whole, values)
    of_other = np.abs([rate for rate, _ in other.values()])
    figures = {  # a function is only called if there are values
        "median error": (rates, lambda: f"{np.median(rates):.1f} %, {len(rates)} of {len(values)} cells"),
        "90th percentile": (rates, lambda: f"{np.percentile(rates, 90):.1f} %"),
        "cells within their band": (inside, lambda: f"{100 * np.mean(inside):.0f} % of {len(inside)}"),
        "another model, median error": (of_other, lambda: f"{np.median(of_other):.1f} %"),
        "TTFT of servers below saturation": (waits, lambda: f"{waits.max():.1f} % at most, {len(waits)} cells"),
    }
    goals = Table("", "here", "goal", title="Figures and goals", title_justify="left")
    for name, (of, figure) in figures.items():
        goals.add_row(name, figure() if len(of) else "none", GOALS[name])
    console.print(goals)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f}"


def _call(*command: str) -> None:
    subprocess.run([sys.executable, "-m", *command], cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure how well short calibrations predict the demo's cells here.")
    parser.add_argument("--gpu", nargs="+", default=["cpu-1core", "cpu-all"], help="devices (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8, help="for each calibration (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="a new folder for calibrations and cells (default: none are kept)")
    args = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-predict-") as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        file, results = study_file(folder, args.gpu), folder / "results"
        study = load_study(file)
        cells, paths = expand(study), StudyPaths(results, study.name)
        flow = ("snakemake", "--quiet", "all", "--cores", "all", "--nolock", "--config", f"study={file}")
        flow += (f"results={results}", "--")
        _call(*flow, "prepare", *(str(paths.device(gpu)) for gpu in args.gpu))
        where = ("--study", str(file), "--results", str(results))
        _call("workflow_scripts", "calibrate", *where, "--gpu", *args.gpu, "--seconds", str(args.seconds))
        console.print(f"calibrated after {time.monotonic() - began:.0f} s")
        whole, cross = predicted(study, cells, paths.prepared), crossed(study, cells, paths.prepared, folder)
        _call("workflow_scripts", "measure-batch", *where, *batch_words(study), "--out", str(folder / "batch.json"))
        found = {cell.id: measured(paths, cell) for cell in cells}
        show(whole, cross, {cell: values for cell, values in found.items() if values is not None})
        console.print(f"{time.monotonic() - began:.0f} s in total (goal: at most 300 s)")
    return 0


if __name__ == "__main__":
    run_command(main)

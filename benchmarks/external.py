"""How well the plan predicts runs of others, by the group of each prediction.

    make bench-external RUNS=FOLDER      (or: python -m benchmarks.external FOLDER [--out FILE])

FOLDER holds runs.csv, with one row per run: its `source`, engine `vllm` version and measured `ttft_ms`, `tpot_ms`,
`output_tokens_per_s` and `total_tokens_per_s`, the `flag` of a run that says nothing (saturated or limited by its
client), and the `sweep` of a study in studies/ that is the run. Models and traces that a study names below
`ext_models/` are in models/. kv.csv, if there is one, holds KV sizes from logs. Nothing of it is in the repository.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from workflow_scripts.catalog.any_model import find_model
from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.common.files import read_json
from workflow_scripts.engines.vllm.capacity import predict_capacity
from workflow_scripts.engines.vllm.memory import EngineSettings
from workflow_scripts.physics.layers import Experts
from workflow_scripts.physics.model_facts import facts_on, read_model_facts
from workflow_scripts.predict.prediction_record import Band
from workflow_scripts.predict.predictions import at_version, predict_cells
from workflow_scripts.predict.public_costs import is_synchronous
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

# Measured columns, the predicted ones, and the factor between their units.
MEASURED = {
    "tpot_ms": ("tpot_s_p50", 1e3),
    "ttft_ms": ("ttft_s_p50", 1e3),
    "output_tokens_per_s": ("output_tokens_per_s", 1.0),
    "total_tokens_per_s": ("total_tokens_per_s", 1.0),
}

KINDS = {"TPOT": "tpot_ms", "TTFT": "ttft_ms", "throughput": "rate"}
# Median and 90th percentile of errors in per cent.
GOALS = {
    "TPOT from 0.15 on, calibrated GPU, TP 1 and 2": (3, 9),
    "TPOT from 0.15 on, calibrated GPU, TP 4 and 8": (6, 12),
    "TTFT from 0.15 on, calibrated GPU": (8, 20),
    "TPOT of 0.10 to 0.11, dense models": (10, 30),
    "KV tokens": (1.5, 4),
}
console = Console(width=180)
# Sources whose logs say that their GPUs do not reach each other's memory, which the name of a GPU does not tell:
# https://github.com/dennislee22/vLLM-benchmarking, log/vllm-7B-2gpuA10080GB-0.5GRAM-same-node.log
WITHOUT_NVLINK = ("dennislee22",)
# A checkpoint that a study has no name for: meta-llama/Llama-3.1-405B-FP8 has attention and the first and last MLP in
# 16 bits (https://github.com/dstackai/benchmarks: "model weights took 56.7677 GB in each GPU").
IN_FP8, LEFT_OUT = "llama-3.1-405b", [f"model.layers.{n}.self_attn" for n in range(126)]
LEFT_OUT += [f"model.layers.{n}.mlp" for n in (0, 125)]


def version_of(text: str) -> str:
    """The version that a run names, the first of several.

    >>> version_of("0.5.3-0.6.x (V0)"), version_of("~0.10 (2025-08)")
    ('0.5.3', '0.10')
    """
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else ""


def cells_of(
    folder: Path, versions: dict[str, str], sources: dict[str, str], scratch: Path, only: str = ""
) -> Iterator[tuple[Study, dict[str, tuple[Cell, list[str]]]]]:
    """The folder's studies, each with its cells by ID, for the engine's version of their runs, and their sweeps."""
    stored = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": LEFT_OUT}
    config = json.dumps(read_json(get_model(IN_FP8).config) | {"quantization_config": stored})
    (scratch / "config.json").write_text(config, encoding="utf-8")
    for path in sorted((folder / "studies").glob(f"*{only}*.yaml" if only else "*.yaml")):
        text = path.read_text(encoding="utf-8").replace("ext_models/", f"{folder.resolve()}/models/")
        text = text.replace(f"  {IN_FP8}:\n    load_format: dummy", f"  {IN_FP8}-fp8:\n    folder: {scratch}")
        own = scratch / path.name
        own.write_text(text.replace(f"model: {IN_FP8}\n", f"model: {IN_FP8}-fp8\n"), encoding="utf-8")
        study = load_study(own, scratch)
        cells: dict[str, tuple[Cell, list[str]]] = {}
        for cell in expand(study):
            for sweep in cell.sweeps:
                if version := versions.get(sweep):
                    (own_cell,) = at_version([cell], version)
                    if sources[sweep] in WITHOUT_NVLINK and cell.knobs.ranks > 1:
                        own_cell = replace(own_cell, gpu=cell.gpu.replace("sxm", "pcie"))
                    cells.setdefault(own_cell.id, (own_cell, []))[1].append(sweep)
        yield study, cells


def compared(folder: Path, only: str = "") -> pd.DataFrame:
    """One row per run: what was measured and predicted, errors in per cent of the measured value, whether the band
    holds it, and the group of its band."""
    runs = pd.read_csv(folder / "runs.csv").set_index("run_id")
    versions = {row.sweep: version_of(str(row.vllm)) for row in runs.itertuples()}
    sources = dict(zip(runs["sweep"], runs["source"], strict=True))
    with tempfile.TemporaryDirectory() as scratch:
        return _compared(runs, versions, list(cells_of(folder, versions, sources, Path(scratch), only)))


def _compared(
    runs: pd.DataFrame, versions: dict[str, str], studies: list[tuple[Study, dict[str, tuple[Cell, list[str]]]]]
) -> pd.DataFrame:
    records = {
        sweep: record
        for study, cells in studies
        for record in predict_cells(study, [cell for cell, _ in cells.values()])
        for sweep in cells[record.cell_id][1]
    }
    rows = []
    for run in runs[runs["sweep"].isin(records)].itertuples():
        record = records[run.sweep]
        row = {
            **{"run_id": run.Index, "how": record.how, "refused": record.infeasible or record.unknown},
            **{"speed_source": record.speed_source, "group": record.band_group or "own calibration"},
            "synchronous": is_synchronous(versions[run.sweep]),
            "experts": any(read_model_facts(get_model(record.model).config, weights=False).of_kind(Experts)),
        }
        for column, (name, factor) in MEASURED.items():
            band, measured = getattr(record, name), getattr(run, column)
            if isinstance(band, Band) and measured == measured:
                row[f"predicted_{column}"] = factor * band.value
                row[f"error_{column}"] = 100 * (factor * band.value / measured - 1)
                if band.low is not None and band.high is not None:
                    row[f"held_{column}"] = factor * band.low <= measured <= factor * band.high
        rows.append(row)
    return told(runs.join(pd.DataFrame(rows).set_index("run_id"), how="inner"))


def told(table: pd.DataFrame) -> pd.DataFrame:
    """Without what a flag or a note calls unusable, and with one error of throughput: of output, or of all tokens. The
    flag `refused` is of runs that an earlier plan did not predict."""
    usable = table[(table["flag"].isna() | (table["flag"] == "refused")) & table["refused"].isna()].copy()
    for name in (f"{what}_{column}" for what in ("error", "held") for column in MEASURED):
        if name not in usable:
            usable[name] = np.nan
    no_ttft = usable["notes"].fillna("").str.contains("ttft unusable")
    for what in ("error", "held"):
        usable.loc[no_ttft, f"{what}_ttft_ms"] = np.nan
        output, total = (usable[f"{what}_{name}_tokens_per_s"] for name in ("output", "total"))
        usable[f"{what}_rate"] = output.where(output.notna(), total)
    return usable


def in_words(errors: pd.Series) -> str:
    """Median, 90th percentile and worst error.

    >>> in_words(pd.Series([1.0, -4.0, 2.0]))
    '2.0 / 3.6 / -4'
    """
    sizes = errors.dropna().abs()
    if sizes.empty:
        return ""
    return f"{sizes.median():.1f} / {sizes.quantile(0.9):.1f} / {errors[sizes.idxmax()]:+.0f}"


def print_groups(table: pd.DataFrame) -> None:
    shown = Table(
        title="Errors in %: median / 90th percentile / worst; throughput +: too fast; then how many bands hold"
    )
    for heading in ("group of the band", "runs", *(f"{title}{held}" for title in KINDS for held in ("", " held"))):
        shown.add_column(heading)
    for group, part in table.groupby("group"):
        cells = []
        for name in KINDS.values():
            held = part.loc[part[f"error_{name}"].notna(), f"held_{name}"]
            cells += [
                in_words(part[f"error_{name}"]),
                f"{int(held.eq(True).sum())} of {len(held)}" if len(held) else "",
            ]
        shown.add_row(str(group), str(len(part)), *cells)
    console.print(shown)


def print_goals(table: pd.DataFrame, kv: pd.Series) -> None:
    now = ~table["synchronous"] & (table["speed_source"] == "project file")
    chosen = {
        "TPOT from 0.15 on, calibrated GPU, TP 1 and 2": table.loc[now & (table["tp"] <= 2), "error_tpot_ms"],
        "TPOT from 0.15 on, calibrated GPU, TP 4 and 8": table.loc[now & (table["tp"] > 2), "error_tpot_ms"],
        "TTFT from 0.15 on, calibrated GPU": table.loc[now, "error_ttft_ms"],
        "TPOT of 0.10 to 0.11, dense models": table.loc[table["synchronous"] & ~table["experts"], "error_tpot_ms"],
        "KV tokens": kv,
    }
    shown = Table("goal", "runs", "median / p90 / worst", "goal", "", title="Goals, in %")
    for name, errors in chosen.items():
        sizes, (median, p90) = errors.dropna().abs(), GOALS[name]
        met = len(sizes) and sizes.median() <= median and sizes.quantile(0.9) <= p90
        shown.add_row(name, str(len(sizes)), in_words(errors), f"{median:g} / {p90:g}", "met" if met else "missed")
    console.print(shown)


def kv_errors(path: Path) -> pd.Series:
    """Errors of KV tokens or blocks in the rows of kv.csv whose model is of the catalogue or the folder, with what its
    name says after a blank: `fp8`, `expert parallel`. A connector has memory of its own."""
    errors = []
    for row in pd.read_csv(path).itertuples() if path.exists() else ():
        name, _, settings_in_words = str(row.model).partition(" ")
        folder, gpu = path.parent / "models" / name, get_gpu(row.gpu)
        if "connector" in settings_in_words:
            console.print(f"not predicted: {row.model}")
            continue
        settings = EngineSettings(
            **{
                name: int(value)
                for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
                if (value := getattr(row, name)) == value
            },
            tensor_parallel_size=int(row.tp),
            enable_expert_parallel="expert parallel" in settings_in_words,
            gpu_memory_utilization=row.gpu_memory_utilization,
            vllm_version=version_of(str(row.vllm)),
        )
        model = find_model(str(folder if folder.is_dir() else name))
        facts = facts_on(model, gpu, {}, "fp8" if "fp8" in settings_in_words else None)
        # Logs have tokens; blocks are these over the block size.
        tokens = predict_capacity(facts, gpu, settings)["kv_cache_tokens"].value
        errors.append(100 * (tokens / settings.block_size ** (row.unit == "blocks") / row.logged - 1))
        console.print(f"KV of {row.model} on {row.gpu}: {errors[-1]:+.1f} %")
    return pd.Series(errors, dtype=float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="CSV file with one row per run")
    parser.add_argument("--only", default="", help="part of the name of the studies to predict")
    args = parser.parse_args()
    table = compared(args.folder, args.only)
    if args.out:
        table.to_csv(args.out)
    print_groups(table)
    print_goals(table, kv_errors(args.folder / "kv.csv"))


if __name__ == "__main__":
    main()

"""How well the plan predicts runs of others, by the group of each prediction.

    make bench-external RUNS=FOLDER      (or: python -m benchmarks.external FOLDER [--out FILE])

FOLDER holds runs.csv, with one row per run: its `source`, engine `vllm` version and measured `ttft_ms`, `tpot_ms`,
`output_tokens_per_s` and `total_tokens_per_s`, the `flag` of a run that says nothing (saturated or limited by its
client), and the `sweep` of a study in studies/ that is the run. Models and traces that a study names below
`ext_models/` are in models/. kv.csv, if there is one, holds KV sizes from logs. Nothing of it is in the repository.
"""

import argparse
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from workflow_scripts.predict.prediction_record import Band, Prediction
from workflow_scripts.predict.predictions import at_version, predict_cells
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study

# Measured columns, the predicted ones, and the factor between their units.
MEASURED = {
    "tpot_ms": ("tpot_s_p50", 1e3),
    "ttft_ms": ("ttft_s_p50", 1e3),
    "output_tokens_per_s": ("output_tokens_per_s", 1.0),
    "total_tokens_per_s": ("total_tokens_per_s", 1.0),
}

# Sources whose logs say that their GPUs do not reach each other's memory, which the name of a GPU does not tell:
# https://github.com/dennislee22/vLLM-benchmarking, log/vllm-7B-2gpuA10080GB-0.5GRAM-same-node.log
WITHOUT_NVLINK = ("dennislee22",)


def version_of(text: str) -> str:
    """The version that a run names, the first of several.

    >>> version_of("0.5.3-0.6.x (V0)"), version_of("~0.10 (2025-08)")
    ('0.5.3', '0.10')
    """
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else ""


def predictions(
    folder: Path, versions: dict[str, str], sources: dict[str, str], only: str = ""
) -> Iterator[tuple[str, Prediction]]:
    """Each sweep of the folder's studies with its prediction, for the engine's version of its run."""
    for path in sorted((folder / "studies").glob(f"*{only}*.yaml" if only else "*.yaml")):
        with tempfile.TemporaryDirectory() as scratch:
            own = Path(scratch) / path.name
            own.write_text(path.read_text(encoding="utf-8").replace("ext_models/", f"{folder.resolve()}/models/"))
            study = load_study(own, Path(scratch))
        cells = {}
        for cell in expand(study):
            for sweep in cell.sweeps:
                if version := versions.get(sweep):
                    (own_cell,) = at_version([cell], version)
                    if sources[sweep] in WITHOUT_NVLINK and cell.knobs.ranks > 1:
                        own_cell = replace(own_cell, gpu=cell.gpu.replace("sxm", "pcie"))
                    cells.setdefault(own_cell.id, (own_cell, []))[1].append(sweep)
        for record in predict_cells(study, [cell for cell, _ in cells.values()]):
            for sweep in cells[record.cell_id][1]:
                yield sweep, record


def compared(folder: Path, only: str = "") -> pd.DataFrame:
    """One row per run: what was measured and predicted, errors in per cent of the measured value, and whether the band
    holds it."""
    runs = pd.read_csv(folder / "runs.csv").set_index("run_id")
    versions = {row.sweep: version_of(str(row.vllm)) for row in runs.itertuples()}
    sources = dict(zip(runs["sweep"], runs["source"], strict=True))
    records = dict(predictions(folder, versions, sources, only))
    rows = []
    for run in runs[runs["sweep"].isin(records)].itertuples():
        record = records[run.sweep]
        row = {"run_id": run.Index, "how": record.how, "refused": record.infeasible or record.unknown}
        for column, (name, factor) in MEASURED.items():
            band, measured = getattr(record, name), getattr(run, column)
            if isinstance(band, Band):
                row[f"predicted_{column}"] = factor * band.value
                row[f"error_{column}"] = 100 * (factor * band.value / measured - 1)
                if band.low is not None and band.high is not None and measured == measured:
                    row[f"held_{column}"] = factor * band.low <= measured <= factor * band.high
        rows.append(row)
    return runs.join(pd.DataFrame(rows).set_index("run_id"), how="inner")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    table = compared(args.folder, args.only)
    if args.out:
        table.to_csv(args.out)
    print(table.filter(regex="^error").describe())


if __name__ == "__main__":
    main()

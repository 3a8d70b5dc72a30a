"""Fit the constants of a device to a few measured cells, and test them on the others.

    kvsweep step-work --study config/studies/demo.yaml --out work.parquet
    kvsweep calibrate --gpu cpu-all --work work.parquet \\
        --cells results/demo/tables/cells.parquet --source "where and when" --out config/calibration/cpu-all.yaml

At most three constants are fitted: the rate of reading, the rate of computing, and the additional cost of a step. Cells
to fit to are chosen only by their work, without any measured value. docs/plan.md describes the method and the file.
"""

import itertools
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from workflow_scripts.analyse.start_spread import FloatArray
from workflow_scripts.catalog.gpus_and_models import Gpu, get_gpu
from workflow_scripts.common.command import command, one_of, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.engines.vllm_engines import VLLM
from workflow_scripts.physics.calibration import (
    DEFAULT_FLOP_EFFICIENCY,
    DEFAULT_MEMORY_EFFICIENCY,
    DEFAULT_OVERHEAD_S,
    Calibration,
    EngineCalibration,
    FitQuality,
    read_calibration,
)
from workflow_scripts.physics.step_time import StepConstants, StepWork, segment_times_s

MOST_FITTED = 5
MOST_CHOICES = 20_000
# If cells cannot separate two constants, the values without a calibration decide: a factor of e away from them weighs
# as much as an error of this share in one cell.
PRIOR_WEIGHT = 0.04
# Starting values for the rates of a CPU, which no data sheet gives.
CPU_BYTES_PER_S, CPU_FLOP_PER_S = 10e9, 50e9

Works = Mapping[str, StepWork]


class CalibrationInputError(InputError):
    """Cells or work to which nothing can be fitted; the message says why."""


def predicted_s(work: StepWork, constants: StepConstants) -> float:
    """Wall time of one repeat of a cell."""
    return float(segment_times_s(work, constants).sum())


def starting_point(gpu: Gpu, dtype: str) -> StepConstants:
    """The constants that the device would have without a calibration."""
    bandwidth = gpu.memory_bandwidth_bytes_per_s or CPU_BYTES_PER_S
    return StepConstants(
        memory_bytes_per_s=DEFAULT_MEMORY_EFFICIENCY * bandwidth,
        flop_per_s=DEFAULT_FLOP_EFFICIENCY[gpu.kind] * (gpu.peak_flop_per_s(dtype) or CPU_FLOP_PER_S),
        step_overhead_s=DEFAULT_OVERHEAD_S[gpu.kind],
        overlap=gpu.kind != "cpu",
    )


def choose(works: Works, most: int, start: StepConstants) -> list[str]:
    """The cells that separate the constants best, by what their steps read and compute; at most half of the cells.

    A cell's shares of reading, computing and overhead say how much its time changes with each constant. The chosen
    cells are those for which the product of these shares with themselves has the largest determinant (D-optimal).
    """
    names = list(works)
    count = max(1, min(most, len(names) // 2))
    shares = np.array([_shares(works[name], start) for name in names])

    def determinant(chosen: tuple[int, ...]) -> float:
        rows = shares[list(chosen)]
        return float(np.linalg.det(rows.T @ rows + PRIOR_WEIGHT**2 * np.eye(rows.shape[1])))

    choices = itertools.islice(itertools.combinations(range(len(names)), count), MOST_CHOICES)
    return [names[i] for i in max(choices, key=determinant)]


def _shares(work: StepWork, constants: StepConstants) -> FloatArray:
    steps, read_bytes, flops = work.totals()
    parts = [read_bytes / constants.memory_bytes_per_s, flops / constants.flop_per_s, steps * constants.step_overhead_s]
    return np.array(parts) / sum(parts)


def fit(works: Works, wall_s: Mapping[str, float], start: StepConstants) -> StepConstants:
    """The constants with which the predicted times of these cells are nearest to the measured ones, as ratios."""
    first = np.log([start.memory_bytes_per_s, start.flop_per_s, start.step_overhead_s])

    def constants(x: FloatArray) -> StepConstants:
        memory, flop, overhead = np.exp(x)
        return StepConstants(
            memory_bytes_per_s=memory, flop_per_s=flop, step_overhead_s=overhead, overlap=start.overlap
        )

    def residuals(x: FloatArray) -> FloatArray:
        now = constants(x)
        off = [np.log(predicted_s(work, now) / wall_s[name]) for name, work in works.items()]
        return np.array([*off, *(PRIOR_WEIGHT * (x - first))])

    # The maximum of two times has a kink, so that a fit from a single start may miss the optimum.
    starts = [first + np.array(shift) for shift in itertools.product((-1.0, 0.0), (-1.5, 0.0), (-1.0, 0.0))]
    return constants(min((least_squares(residuals, x) for x in starts), key=lambda found: found.cost).x)


def errors_pct(works: Works, wall_s: Mapping[str, float], constants: StepConstants) -> dict[str, float]:
    """Error of the predicted tokens/s in per cent of the measured ones; positive if predicted too fast."""
    return {name: round(100 * (wall_s[name] / predicted_s(work, constants) - 1), 2) for name, work in works.items()}


def calibrate(
    works: Works, wall_s: Mapping[str, float], start: StepConstants, fitted: Sequence[str]
) -> tuple[StepConstants, FitQuality]:
    """Constants fitted to the cells `fitted`, and how well they predict those and all other cells."""
    constants = fit({name: works[name] for name in fitted}, wall_s, start)
    return constants, tested(works, wall_s, constants, fitted)


def tested(works: Works, wall_s: Mapping[str, float], constants: StepConstants, fitted: Sequence[str]) -> FitQuality:
    """How well constants predict the cells `fitted`, to which they were fitted, and all other cells."""
    errors = errors_pct(works, wall_s, constants)
    held_out = {name: error for name, error in errors.items() if name not in fitted}
    size = np.abs(list(held_out.values()))
    return FitQuality(
        fitted={name: errors[name] for name in fitted},
        held_out=held_out,
        median_error_pct=round(float(np.median(size)), 2) if len(size) else None,
        p90_error_pct=round(float(np.percentile(size, 90)), 2) if len(size) else None,
    )


def read_work(path: Path, gpu: str) -> pd.DataFrame:
    """Rows of `predict.step_work` for one device.

    Raises:
        CalibrationInputError: there is no such file, or it has no rows of the device.
    """
    try:
        work = pd.read_parquet(path)
    except (OSError, ValueError) as e:
        raise CalibrationInputError(f"{path}: not the work of cells: {e}") from None
    of_gpu = work[work["gpu"] == gpu]
    if of_gpu.empty:
        known = ", ".join(sorted(work["gpu"].unique()))
        raise CalibrationInputError(f"{path}: holds no cell of {gpu}; it has {known}")
    return of_gpu


def works_of(rows: pd.DataFrame) -> dict[str, StepWork]:
    """The work of each cell, by its id."""
    names = tuple(StepWork.__dataclass_fields__)
    return {
        str(cell): StepWork(*(part[name].to_numpy(dtype=float) for name in names))
        for cell, part in rows.groupby("cell_id", sort=False)
    }


def read_cells(path: Path) -> pd.DataFrame:
    """The columns of a cells table that a calibration needs; the table may be from an older version.

    Raises:
        CalibrationInputError: there is no such file, or one of the columns is missing.
    """
    try:
        return pd.read_parquet(path, columns=["cell_id", "gpu", "engine", "outcome", "wall_s", "device_name"])
    except (OSError, ValueError) as e:
        raise CalibrationInputError(f"{path}: not a table of cells: {' '.join(str(e).split())}") from None


def measured(cells: pd.DataFrame) -> tuple[dict[str, float], float | None]:
    """Median wall time of each cell that ended ok, and how much repeats differ: see `EngineCalibration`."""
    ok = cells[cells["outcome"].eq("ok") & cells["wall_s"].gt(0)]
    logs = ok["wall_s"].astype(float).map(np.log).groupby(ok["cell_id"])
    sd = logs.std().median()
    walls = {str(cell): float(np.exp(value)) for cell, value in logs.median().items()}
    return walls, None if np.isnan(sd) else round(float(sd), 5)


def published(path: Path, rows: pd.DataFrame) -> dict[str, float]:
    """Wall time of each point of a published sweep, from its output tokens per s.

    Raises:
        CalibrationInputError: the file has no such column or row.
    """
    tokens = rows.groupby("cell_id")["output_tokens"].first()
    try:
        rates = pd.read_csv(path)["output_tokens_per_s"]
        return {
            str(cell): float(tokens[cell] / rates.iloc[int(str(cell).rsplit("/", 1)[1]) - 1]) for cell in tokens.index
        }
    except (OSError, ValueError, KeyError, IndexError) as e:
        raise CalibrationInputError(f"{path}: not the sweep that the work was made from: {e}") from None


def _calibration(args: Namespace, gpu: Gpu) -> Calibration:
    rows = read_work(args.work, gpu.name)
    rows = rows[rows["engine"] == args.engine]
    models = sorted(rows["model"].unique())
    if len(models) > 1:
        raise CalibrationInputError(f"{args.work}: cells of {', '.join(models)}; constants belong to one model")
    device_name, repeat_sd = None, None
    if args.cells:
        cells = read_cells(args.cells)
        wall_s, repeat_sd = measured(cells[cells["gpu"].eq(gpu.name) & cells["engine"].eq(args.engine)])
        names = cells.loc[cells["gpu"].eq(gpu.name), "device_name"].dropna().unique()
        device_name = str(names[0]) if len(names) == 1 else None
    else:
        wall_s = published(args.published, rows)
    works = {name: work for name, work in works_of(rows).items() if name in wall_s}
    if len(works) < 2 or not models:
        raise CalibrationInputError(f"{len(works)} cells of {args.engine} on {gpu.name} were measured; 2 are needed")
    dtype = rows["dtype"].iloc[0]
    start = starting_point(gpu, dtype)
    if unknown := set(args.fit or ()) - set(works):
        raise CalibrationInputError(f"--fit {min(unknown)}: no such measured cell; there are {', '.join(works)}")
    engines = _others(args.out, gpu.name, device_name)
    if args.constants_of is None:
        constants, quality = calibrate(works, wall_s, start, args.fit or choose(works, args.most, start))
        engines = {name: other for name, other in engines.items() if other.constants_of != args.engine}
    elif (known := engines.get(args.constants_of)) and (known.model, known.dtype) == (models[0], dtype):
        constants, quality = known.constants, tested(works, wall_s, known.constants, ())
    else:
        raise CalibrationInputError(
            f"--constants-of {args.constants_of}: {args.out} has none of it for {models[0]} in {dtype} on this device"
        )
    engines[args.engine] = EngineCalibration(
        model=models[0],
        dtype=dtype,
        constants=constants,
        constants_of=args.constants_of,
        quality=quality,
        repeat_sd=repeat_sd,
    )
    return Calibration(gpu=gpu.name, device_name=device_name, source=args.source, engines=engines)


def _others(path: Path, gpu: str, device_name: str | None) -> dict[str, EngineCalibration]:
    """Other engines' calibrations in a file that will be rewritten, if they are for the same device."""
    if not path.exists():
        return {}
    known = read_calibration(path)
    return dict(known.engines) if (known.gpu, known.device_name) == (gpu, device_name) else {}


@command(
    "calibrate",
    option("--gpu", required=True, help="name in config/gpus.yaml"),
    option("--engine", default=VLLM.name, help="the engine of the cells (%(default)s)"),
    option("--work", type=Path, required=True, help="the file that `kvsweep step-work` wrote"),
    one_of(
        option("--cells", type=Path, help="cells.parquet with the measurements"),
        option("--published", type=Path, help="the CSV file of sweeps that the work was made from"),
        required=True,
    ),
    option(
        "--most",
        type=int,
        default=MOST_FITTED,
        help="maximum number of cells to fit to; at most half of them are used (%(default)s)",
    ),
    one_of(
        option("--fit", nargs="+", metavar="CELL_ID", help="fit to these cells instead of those that are chosen"),
        option("--constants-of", metavar="ENGINE", help="fit nothing: test this engine's constants of the file"),
    ),
    option("--source", required=True, help="a sentence on where and when the cells were measured"),
    out("the YAML file to write"),
)
def main(args: Namespace) -> None:
    """Calibrate one device."""
    gpu = get_gpu(args.gpu)
    calibration = _calibration(args, gpu)
    calibration.write(args.out)
    quality = calibration.engines[args.engine].quality
    print(
        f"{gpu.name}, {args.engine}: fitted to {len(quality.fitted)} cells; on {len(quality.held_out)} others the "
        f"error of tokens/s is {quality.median_error_pct} % (median) and {quality.p90_error_pct} % (p90)"
    )

"""The data that the page's views use: every cell with its repeats, limits and predictions, and timelines of some cells.

`page_data` makes the whole from the tables, and `packed` makes it a text for the page: JSON, compressed and in base64.
Numbers keep five significant digits. A column without any value is left out; a value that is not known is null.

A page cannot hold the timelines of a large study. It holds up to `MOST_CELLS` of them, of up to `MOST_BYTES` together:
first that of the fastest cell of each device, engine, model and workload, then of the second fastest, and so on. For a
long repeat it holds evenly chosen rows, and says how many there were. If a cell was started several times, its timeline
is that of the first start.
"""

import base64
import gzip
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import CatalogError, Dtype, Gpu, Model, load_gpus, load_models
from workflow_scripts.catalog.published import PUBLISHED, Published
from workflow_scripts.catalog.rate_columns import PATTERNS
from workflow_scripts.common.metrics import LATENCIES, METRICS
from workflow_scripts.physics.formulas import decode_step_flops, prefill_flops
from workflow_scripts.physics.model_facts import DTYPE_BYTES, ModelFactsError, read_model_facts
from workflow_scripts.present.report import Report, medians_by_cell
from workflow_scripts.present.report_tables import REPEAT, MissingError, Tables
from workflow_scripts.present.series import NAMES
from workflow_scripts.present.style import COLOURS
from workflow_scripts.study.setting_words import knob_name, settings_in_words

MEASURES = tuple(metric.column for metric in METRICS)
# The serving table has these too, with further percentiles.
SERVED = (*(metric.column for metric in LATENCIES), "goodput_requests_per_s", "slo_attainment")
OF_CELLS = (
    *("cell_id", "gpu", "engine", "model", "workload", "knobs", "sweeps", "outcome", "reason", "comparable", "source"),
    *("max_concurrency_allowed", "host", "device_name", "processor", "engine_version", "dtype", "attention_backend"),
    *("not_as_asked", "effective", "block_size_effective", "num_gpu_blocks", "kv_cache_tokens", "max_concurrency"),
    *("warmup_steady", "git_commit"),
)
LIMITS = (
    *("output_tokens_per_s_ceiling", "total_tokens_per_s_ceiling", "wall_s_min", "mbu", "mfu", "factor"),
    *("bound_by", "steps_bound_by", "exceeds", "ceiling_broken"),
)
PREDICTIONS = ("quantity", "predicted", "low", "high", "measured", "error_pct", "flagged", "why", "speed_source")
# Lines of a log that the page shows, and bytes of its end in which they are looked for.
LOG_LINES, LOG_BYTES = 12, 4096

MOST_BYTES = 700_000
MOST_CELLS = 128
# Rows per repeat.
MOST_ROWS: Mapping[str, int] = {"requests": 500, "steps": 1500, "trace": 400}
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "requests": (
        *("repeat", "prompt_tokens", "output_tokens", "queued_s", "scheduled_s", "first_token_s", "last_token_s"),
        *("preemptions", "cached_prompt_tokens", "error"),
    ),
    "steps": (
        *("repeat", "time_s", "running", "waiting", "kv_cache_usage", "prompt_tokens", "generation_tokens"),
        *("preempted", "kv_tokens_live", "kv_slots_reserved"),
    ),
    "trace": (
        *("repeat", "time_s", "memory_used_bytes", "process_memory_bytes"),
        *("utilization_pct", "power_w", "sm_clock_mhz"),
    ),
}

# A column of values; of texts that repeat, the different ones (`of`) and the place of each row's text among them.
Column = list[Any] | dict[str, list[Any]]
Columns = dict[str, Column]


def page_data(report: Report, study_file: Path) -> dict[str, Any]:
    """Everything that the views read of a study.

    `knobs` are the settings that some cell sets, each with its words. `cell` in `repeats`, `limits`, `predictions` and
    `intervals` is a row of `cells`; `intervals` holds the value of a cell's measure with its 95 % interval.
    """
    grid = report.grid.reset_index(drop=True)
    knobs = [name for name in report.tables.knobs if grid[name].notna().any()]
    logs = pd.DataFrame([_log(report, *of) for of in zip(grid["cell_id"], grid["start"], strict=True)], dtype=object)
    place = pd.Series(grid.index, index=grid["cell_id"])
    intervals = _intervals(report, place)
    scopes = intervals.drop_duplicates("cell").set_index("cell")["scope"]
    cells = grid.assign(
        settings=settings_in_words(grid, knobs),
        label=grid["cell_id"].map(report.labels),
        log_file=logs[0],
        log=logs[1],
        scope=scopes,
    )
    limits = medians_by_cell(report.tables.get("limits", *REPEAT, "rates", *LIMITS), "rates")
    return {
        "version": 1,
        "study": {
            "name": report.study.name,
            "question": report.study.question,
            "repeats": report.study.repeats,
            "file": _path_from_here(study_file),
            "cells": _path_from_here(report.cells),
            "beside": os.path.relpath(report.cells, report.out.parent),
        },
        "colours": COLOURS,
        "knobs": [{"name": name.removeprefix("knob_"), "words": knob_name(name)} for name in knobs],
        "cells": columns_of(cells, [*OF_CELLS, "scope", "settings", "label", "log", "log_file", *knobs]),
        "repeats": columns_of(_repeats(report, place), ["cell", "start", "repeat", *MEASURES]),
        # One row per cell and source of the device's rates.
        "limits": columns_of(_of_cells(limits, place), ["cell", "rates", *LIMITS]),
        "predictions": columns_of(
            _of_cells(report.tables.get("predictions", "cell_id"), place), ["cell", *PREDICTIONS]
        ),
        "intervals": columns_of(intervals, ["cell", "measure", "value", "low", "high", "n"]),
        "catalog": catalog(),
    }


def _path_from_here(path: Path) -> str:
    """A path as a command in the working directory names it, without the folders of this machine.

    >>> _path_from_here(Path.cwd() / "results"), _path_from_here(Path("/elsewhere"))
    ('results', '/elsewhere')
    """
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else path)


def packed(data: Any) -> str:
    """Data as a text for the page: JSON, compressed by gzip, in base64. The same data give the same text."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def columns_of(rows: pd.DataFrame, names: Sequence[str], digits: int = 5) -> Columns:
    """Those of the columns that have any value, with numbers of this many significant digits.

    >>> rows = pd.DataFrame({"a": [1.0, None], "b": ["x", "x"], "c": [None, None], "d": [True, None]})
    >>> columns_of(rows, ["a", "b", "c", "d", "e"])
    {'a': [1, None], 'b': {'of': ['x'], 'at': [0, 0]}, 'd': [True, None]}
    """
    return {name: _column(rows[name], digits) for name in names if name in rows and rows[name].notna().any()}


def _column(values: "pd.Series[Any]", digits: int) -> Column:
    if values.dtype == object:
        values = values.convert_dtypes()
    if pd.api.types.is_bool_dtype(values):
        return [None if pd.isna(value) else bool(value) for value in values]
    if pd.api.types.is_numeric_dtype(values):
        return _numbers(values.to_numpy(dtype=float, na_value=np.nan), digits)
    codes, texts = pd.factorize(values)
    return {"of": list(texts), "at": [int(code) if code >= 0 else None for code in codes]}


def _numbers(values: "np.ndarray[Any, Any]", digits: int) -> list[float | int | None]:
    """The values with this number of significant digits; whole numbers keep all, and what is not finite is null.

    >>> _numbers(np.array([131072.0, 0.0123456, -98765.4, 0.0, np.nan]), 5)
    [131072, 0.012346, -98765, 0, None]
    """
    finite = np.where(np.isfinite(values), values, 0.0)
    rounded = np.char.mod(f"%.{digits}g", finite).astype(float)
    shortened = np.where(finite == np.trunc(finite), finite, rounded)
    is_whole = (shortened == np.trunc(shortened)) & (np.abs(shortened) < 1e15)
    each = zip(shortened.tolist(), is_whole.tolist(), np.isfinite(values).tolist(), strict=True)
    return [(int(value) if whole else value) if is_finite else None for value, whole, is_finite in each]


def _log(report: Report, cell_id: str, start: float) -> tuple[str, str] | tuple[None, None]:
    """The first log of a start that is not empty: its place in the cell's folder, and its last lines."""
    for path in report.logs(cell_id, start):
        if path.exists() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_BYTES))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
            return path.relative_to(report.cells / cell_id).as_posix(), "\n".join(lines[-LOG_LINES:])
    return None, None


def _of_cells(rows: pd.DataFrame, place: "pd.Series[int]") -> pd.DataFrame:
    """The rows of cells of the study, each with the place of its cell."""
    study_rows = rows[rows["cell_id"].isin(place.index)]
    return study_rows.assign(cell=study_rows["cell_id"].map(place))


def _repeats(report: Report, place: "pd.Series[int]") -> pd.DataFrame:
    cells = report.tables.cells
    rows = cells[cells["repeat"].notna()]
    # If a device's rates have two sources, the data sheet is preferred; it may not have every rate.
    limits = report.tables.get("limits", *REPEAT, "rates", "mbu", "mfu").sort_values("rates")
    rows = rows.merge(limits.groupby(REPEAT, sort=False)[["mbu", "mfu"]].first().reset_index(), on=REPEAT, how="left")
    served = report.tables.get("serving", *REPEAT, *SERVED)[[*REPEAT, *SERVED]].drop_duplicates(REPEAT)
    serving_values = rows[REPEAT].merge(served, how="left").set_index(rows.index)
    return _of_cells(serving_values.combine_first(rows), place)


def _intervals(report: Report, place: "pd.Series[int]") -> pd.DataFrame:
    """The intervals that tables hold of single cells: one row per cell and measure, with what the interval covers.

    The measures in the table of servers are its own.
    """
    served = _of_cells(report.tables.get("serving_summary", "cell_id"), place).rename(columns={"repeats": "n"})
    others = _of_cells(report.tables.get("intervals", "cell_id"), place).rename(columns={"repeats": "n"})
    parts = [
        served.assign(measure=of, value=served[of], low=served[f"{of}_low"], high=served[f"{of}_high"])
        for of in MEASURES
        if f"{of}_low" in served
    ]
    columns = ["cell", "measure", "value", "low", "high", "n", "scope"]
    intervals = pd.concat([part.reindex(columns=columns) for part in (*parts, others)])
    return intervals.drop_duplicates(["cell", "measure"]).dropna(subset=["low", "high"])


def timelines(tables: Tables, most_bytes: int = MOST_BYTES) -> dict[str, str]:
    """Packed timelines by cell, in the order of interest, up to `most_bytes` together."""
    ran = tables.cells[tables.cells["repeat"].notna()]
    rates = ran.groupby("cell_id", sort=False)["output_tokens_per_s"].median()
    first = ran.drop_duplicates("cell_id").set_index("cell_id")
    rank = rates.groupby([first[name] for name in NAMES], sort=False).rank(ascending=False, method="first")
    ids = rank.sort_values(kind="stable").index[:MOST_CELLS]
    facts = {}
    for name in COLUMNS:
        with suppress(MissingError):
            facts[name] = tables.facts(name, ids)
    counts = {name: rows["cell_id"].value_counts() for name, rows in facts.items()}
    parts = {name: dict(iter(_chosen(name, rows).groupby("cell_id", sort=False))) for name, rows in facts.items()}
    chosen: dict[str, str] = {}
    for cell_id in ids:
        if any(cell_id in of_cells for of_cells in parts.values()):
            timeline = {
                name: {
                    "columns": columns_of(of_cells.get(cell_id, facts[name].head(0)), COLUMNS[name], digits=9),
                    "rows": int(counts[name].get(cell_id, 0)),
                }
                for name, of_cells in parts.items()
            }
            text = packed(timeline)
            most_bytes -= len(text)
            if most_bytes < 0:
                break
            chosen[cell_id] = text
    return chosen


def _chosen(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells, at most `MOST_ROWS` per repeat."""
    most = MOST_ROWS[name]
    of_repeat = rows.groupby(["cell_id", "repeat"])["repeat"]
    place, count = of_repeat.cumcount(), of_repeat.transform("size")
    # Row r is kept if it is the first in one of `most` equal parts.
    part = (place * most // count).where(count > most, place)
    kept = rows[~rows[["cell_id", "repeat"]].assign(part=part).duplicated()]
    # Times keep a tenth of a millisecond, in a repeat of any length.
    times = {column: kept[column].round(4) for column in COLUMNS[name] if column.endswith("_s") and column in kept}
    return kept.assign(**times)


# Types of weights that the page offers; None is the model's own.
QUANTIZATIONS: tuple[str | None, ...] = (None, "fp8", "awq", "gptq")


def request_flops(
    layer_parameters: float,
    lm_head_parameters: float,
    attention_width: float,
    prompt_tokens: float,
    output_tokens: float,
) -> float:
    """Operations of a whole request of a model with full attention alone, as `ModelFacts.request_flops` counts them."""
    further = output_tokens - 1
    prompt = prefill_flops(layer_parameters, lm_head_parameters, prompt_tokens, attention_width)
    kv_tokens = further * (prompt_tokens + (further + 1) / 2)
    return prompt + decode_step_flops(layer_parameters + lm_head_parameters, further, kv_tokens, attention_width)


def catalog() -> dict[str, Any]:
    """All devices with data-sheet rates, all models whose facts can be read, and the first published table of rates.

    `columns` has the patterns by which the columns of a table of rates are known.
    """
    models, shapes = load_models(), []
    for name in models:
        try:
            shapes.append(_shape(models[name]))
        except (CatalogError, ModelFactsError):
            continue  # these formulas do not apply to the model; the report of a study with it says why
    published = next(claim for claim in Published(PUBLISHED).claims if claim.table and claim.model)
    return {
        "devices": [_device(gpu) for gpu in load_gpus().values() if not gpu.simulated],
        "models": shapes,
        "columns": PATTERNS,
        "published": {
            "source": published.source,
            "model": published.model,
            "table": (PUBLISHED / str(published.table)).read_text(encoding="utf-8"),
        },
    }


def _device(gpu: Gpu) -> dict[str, Any]:
    """One device; null is not known. `flop_per_s` has the dense rate by dtype, `highest_flop_per_s` that of any."""
    rates = gpu.dense_flop_per_s or {}
    memory = None if gpu.memory_bytes is None else max(gpu.memory_bytes, gpu.usable_memory_bytes or 0)
    return {
        "name": gpu.name,
        "names": [gpu.name, gpu.title, *gpu.aliases],
        "memory_bytes": memory,
        "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        "flop_per_s": {dtype: gpu.peak_flop_per_s(dtype) for dtype in get_args(Dtype)},
        "highest_flop_per_s": max(rates.values(), default=None),
    }


def _shape(model: Model) -> dict[str, Any]:
    """The facts of a model that determine its memory and operations.

    `weights` has by type, "" for the model's own, the bytes of all and of those that a decode step reads.
    """
    facts = read_model_facts(model.config, model.fixed_dtype).uniform()
    weights = {}
    for quantization in QUANTIZATIONS:
        if quantization and facts.quantization:
            continue  # the checkpoint has its own
        of = read_model_facts(model.config, model.fixed_dtype, quantization) if quantization else facts
        weights[quantization or ""] = {"weight_bytes": of.weight_bytes, "decode_weight_bytes": of.decode_weight_bytes}
    layer, head, width = facts.layer_matmul_parameters, facts.vocab * facts.hidden, facts.attention_width
    # The page computes a request's operations from these three; models for which that is wrong are left out.
    if not math.isclose(request_flops(layer, head, width, 10, 5), facts.request_flops(10, 5)):
        raise ModelFactsError(f"{model.name}: its operations do not follow from its matrices and attention alone")
    return {
        "name": model.name,
        "dtype": facts.dtype,
        "quantization": facts.quantization,
        "max_positions": facts.max_positions,
        "weights": weights,
        "kv_bytes_per_token": {kind: facts.bytes_per_token(kind) for kind in ("auto", *DTYPE_BYTES)},
        "layer_parameters": layer,
        "lm_head_parameters": head,
        "attention_width": width,
    }

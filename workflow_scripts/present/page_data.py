"""The data that the page's views use: every cell with its repeats, limits and predictions, and timelines of some cells.

`page_data` makes the whole from the tables, and `packed` makes it a text for the page: JSON, compressed and in base64.
Numbers keep five significant digits. A column without any value is left out; a value that is not known is null.

A page cannot hold the timelines of a large study. It holds up to `_MOST_CELLS` of them, of up to `MOST_BYTES` together:
first that of the fastest cell of each device, engine, model and workload, then of the second fastest, and so on. For a
long repeat it holds evenly chosen rows, and says how many there were. If a cell was started several times, its timeline
is that of the first start.
"""

import base64
import gzip
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.columns import COLUMNS, LATENCIES
from workflow_scripts.page.report import Report
from workflow_scripts.page.series import environments_in_words
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import knob_name, knobs_that_differ, settings_in_words
from workflow_scripts.tables.parsed_facts import REPEAT
from workflow_scripts.tables.results import RAN_IN, MissingError, Tables

_MEASURES = tuple(COLUMNS)
# The serving table has these too, with further percentiles.
SERVED = (*(latency.name for latency in LATENCIES), "goodput_requests_per_s", "slo_attainment")
OF_CELLS = (
    *("cell_id", "gpu", "engine", "model", "workload", "knobs", "sweeps", "outcome", "reason", "comparable", "source"),
    *("max_concurrency_allowed", "host", "device_name", "processor", "engine_version", "dtype", "attention_backend"),
    *("not_as_asked", "effective", "block_size_effective", "num_gpu_blocks", "kv_cache_tokens", "max_concurrency"),
    *("steady", "git_commit", RAN_IN),
)
OF_PAGE = ("environment", "scope", "settings", "label", "weights", "log", "log_file", "output_tokens_per_device_hour")
LIMITS = (
    *("output_tokens_per_s_ceiling", "total_tokens_per_s_ceiling", "wall_s_min", "mbu", "mfu", "ceiling_share"),
    *("bound_by", "steps_bound_by", "exceeds", "ceiling_broken"),
)
PREDICTIONS = ("quantity", "predicted", "low", "high", "measured", "error_pct", "flagged", "why", "speed_source")
MOST_BYTES = 700_000
_MOST_CELLS = 128
# Rows per repeat.
MOST_POINTS: Mapping[str, int] = {"requests": 500, "steps": 1500, "trace": 400}
FACTS: Mapping[str, tuple[str, ...]] = {
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

    `knobs` are the settings that some cell sets, each with its words, and whether cells of one engine differ in it.
    `cell` in `repeats`, `limits`, `predictions` and `intervals` is a row of `cells`. `values` has the rows of `cells`
    and a column per measure.
    """
    grid = report.grid.reset_index(drop=True)
    knobs = [name for name in report.tables.knobs if grid[name].notna().any()]
    differing = knobs_that_differ(grid, knobs)
    place = pd.Series(grid.index, index=grid["cell_id"])
    intervals, repeats = _intervals(report, place), _repeats(report, place)
    scopes = intervals.drop_duplicates("cell").set_index("cell")["scope"]
    values = _values(report, repeats, grid["cell_id"])
    random = [name for name, model in resolved_models(report.study).items() if model.load_format == "dummy"]
    cells = grid.assign(
        settings=settings_in_words(grid, knobs),
        environment=_environments,
        label=lambda rows: rows["cell_id"].map(report.labels) + environments_in_words(rows),
        weights=grid["model"].map(dict.fromkeys(random, "random")),
        log_file=grid["cell_id"].map(report.logs["what"]),
        log=grid["cell_id"].map(report.logs["value"]),
        scope=scopes,
        output_tokens_per_device_hour=values["output_tokens_per_s"] * 3600 / _devices(grid),
    )
    return {
        "version": 1,
        "study": {
            "name": report.study.name,
            "question": report.study.question,
            "repeats": report.study.repeats,
            # A cell is measured again by this with its id and `outcome.json`.
            "measure": f"snakemake --cores all --configfile {_quoted(study_file)} --force {_quoted(report.cells)}",
            "beside": os.path.relpath(report.cells, report.out.parent),
        },
        "knobs": [
            {"name": name.removeprefix("knob_"), "words": knob_name(name), "differs": name in differing}
            for name in knobs
        ],
        "cells": columns_of(cells, [*OF_CELLS, *OF_PAGE, *knobs]),
        "values": columns_of(values, _MEASURES),
        "repeats": columns_of(repeats, ["cell", "start", "repeat", "started_at", *_MEASURES]),
        # One row per cell and source of the device's rates.
        "limits": columns_of(_of_cells(report.tables.limits, place), ["cell", "rates", *LIMITS]),
        "predictions": columns_of(
            _of_cells(report.tables.get("predictions", "cell_id"), place), ["cell", *PREDICTIONS]
        ),
        "intervals": columns_of(intervals, ["cell", "measure", "low", "high"]),
    }


def _environments(rows: pd.DataFrame) -> list[str]:
    """The environment of each cell in words, if those of an engine have several; else nothing tells them apart."""
    several = environments_in_words(rows).ne("").any()
    return [f"environment {number:g}" if several and pd.notna(number) else "" for number in rows[RAN_IN]]


def _quoted(path: Path) -> str:
    """A path as a command in the working directory names it, without the folders of this machine.

    >>> _quoted(Path.cwd() / "results"), _quoted(Path("/else where"))
    ('results', "'/else where'")
    """
    whole, here = path.absolute(), Path.cwd()
    return quote(str(whole.relative_to(here) if whole.is_relative_to(here) else path))


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


def _of_cells(rows: pd.DataFrame, place: "pd.Series[int]") -> pd.DataFrame:
    """The rows of cells of the study, each with the place of its cell."""
    study_rows = rows[rows["cell_id"].isin(place.index)]
    return study_rows.assign(cell=study_rows["cell_id"].map(place))


def _repeats(report: Report, place: "pd.Series[int]") -> pd.DataFrame:
    rows = report.tables.repeats
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
    served, others = (_of_cells(report.tables.get(name, "cell_id"), place) for name in ("serving_summary", "intervals"))
    parts = [
        served.assign(measure=key, value=served[key], low=served[f"{key}_low"], high=served[f"{key}_high"])
        for key in _MEASURES
        if f"{key}_low" in served
    ]
    columns = ["cell", "measure", "value", "low", "high", "scope"]
    intervals = pd.concat([part.reindex(columns=columns) for part in (*parts, others)])
    return intervals.drop_duplicates(["cell", "measure"]).dropna(subset=["low", "high"])


def _values(report: Report, repeats: pd.DataFrame, cells: "pd.Series[str]") -> pd.DataFrame:
    """The value of each measure of each cell, from the tables; of cells and measures that these lack, the median."""
    measures = repeats[repeats.columns.intersection(list(_MEASURES))].select_dtypes("number")
    medians = measures.groupby(repeats["cell"]).median().reindex(cells.index)
    summary = report.tables.get("serving_summary", "cell_id").set_index("cell_id")
    served = summary.reindex(index=cells, columns=summary.columns.intersection(list(_MEASURES))).set_index(cells.index)
    stored = report.tables.values.reindex(cells).set_index(cells.index)
    return served.combine_first(stored).combine_first(medians)[medians.columns]


def _devices(cells: pd.DataFrame) -> "pd.Series[float]":
    """The number of devices that the engine of a cell takes.

    >>> _devices(pd.DataFrame({"knob_tensor_parallel_size": [2, None], "knob_data_parallel_size": [3, 4]})).tolist()
    [6.0, 4.0]
    """
    ranks = cells.reindex(columns=[f"knob_{kind}_parallel_size" for kind in ("tensor", "pipeline", "data")])
    return ranks.astype(float).fillna(1).prod(axis="columns")


def timelines(tables: Tables, most_bytes: int = MOST_BYTES) -> dict[str, str]:
    """Packed timelines by cell, in the order of interest, up to `most_bytes` together."""
    rates = tables.repeats.groupby("cell_id", sort=False)["output_tokens_per_s"].median()
    places = tables.cells.set_index("cell_id").loc[rates.index]
    rank = rates.groupby([places[name] for name in COORDINATES], sort=False).rank(ascending=False, method="first")
    ids = rank.sort_values(kind="stable").index[:_MOST_CELLS]
    facts = {}
    for name in FACTS:
        with suppress(MissingError):
            facts[name] = tables.facts(name, ids)
    counts = {name: rows["cell_id"].value_counts() for name, rows in facts.items()}
    parts = {name: dict(iter(_chosen(name, rows).groupby("cell_id", sort=False))) for name, rows in facts.items()}
    chosen: dict[str, str] = {}
    for cell_id in ids:
        if any(cell_id in of_cells for of_cells in parts.values()):
            timeline = {
                name: {
                    "columns": columns_of(of_cells.get(cell_id, facts[name].head(0)), FACTS[name], digits=9),
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
    """The rows of cells, at most `MOST_POINTS` per repeat."""
    most = MOST_POINTS[name]
    of_repeat = rows.groupby(["cell_id", "repeat"])["repeat"]
    place, count = of_repeat.cumcount(), of_repeat.transform("size")
    # Row r is kept if it is the first in one of `most` equal parts.
    part = (place * most // count).where(count > most, place)
    kept = rows[~rows[["cell_id", "repeat"]].assign(part=part).duplicated()]
    # Times keep a tenth of a millisecond, in a repeat of any length.
    times = {column: kept[column].round(4) for column in FACTS[name] if column.endswith("_s") and column in kept}
    return kept.assign(**times)

"""The cells table with the repeats of each cell summed up: one row per cell, for comparisons of cells."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from workflow_scripts.analyse.statistics import FloatArray, summarise
from workflow_scripts.catalog.gpus_and_models import readable_models
from workflow_scripts.engines.registry import every_knob, load_engines

Record = dict[str, Any]

# The environment of a cell, which is not part of its definition. Cells with different locks ran different versions of
# an engine, and a CPU device has the same name on different processors; such cells are never compared. Records of GPUs,
# and records from before processors were recorded, have no processor.
ENVIRONMENT = ("lock_sha256", "processor")

# The identity of a cell. Cells of different studies or sources are never pooled either, whatever their names.
IDENTITY = ("study", "source", "gpu", "engine", "model", "workload", "knobs", "cell_id", *ENVIRONMENT)

# From this share of used KV blocks on, the cache counts as full: a waiting request needs several blocks.
KV_CACHE_FULL = 0.95


# If the study sets the rate of arrivals, the throughput is that rate and not the engine's.
RATE_OF_ARRIVALS = "knob_request_rate_per_s"
THROUGHPUT = ("output_tokens_per_s", "total_tokens_per_s")


def counted(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows that comparisons may use: the cell ended `ok` and was measured as the study defines it."""
    return cells[cells["outcome"].eq("ok").fillna(False) & cells["comparable"].fillna(False)]


def cell_summary(cells: pd.DataFrame, metric: str, observed: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One row per counted cell: identity, knobs, and `repeats`, `log_mean`, `log_variance` of `metric`.

    A cell without any value of the metric has no row. For a throughput, a cell whose requests arrived at a rate has no
    row either. `observed` names further columns of the cells table and how to reduce their values over the repeats:
    `first`, `min`, `max`, `mean` or `sum`. Nulls are ignored; if all values are null, the result is null.
    """
    rows = counted(cells)
    if RATE_OF_ARRIVALS in rows and metric in THROUGHPUT:
        rows = rows[rows[RATE_OF_ARRIVALS].isna()]
    summary = summarise(rows, IDENTITY, metric)
    further = dict.fromkeys(["max_concurrency_allowed", *knob_columns(cells)], "first") | dict(observed or {})
    groups = rows.groupby(list(IDENTITY), dropna=False, sort=False)
    for name, how in further.items():
        taken = groups[name].sum(min_count=1) if how == "sum" else groups[name].agg(how)
        summary[name] = taken.array
    return summary[summary["repeats"] > 0].reset_index(drop=True)


def dtypes(cells: pd.DataFrame) -> pd.Series:
    """The type in which each row was computed: the recorded one, else the model's own, else `not recorded`."""
    own = {name: model.dtype for name, model in readable_models().items() if model.dtype != "native"}
    asked = cells["model"].map(own)
    return (cells["dtype"].fillna(asked) if "dtype" in cells else asked).fillna("not recorded").astype("string")


def knob_columns(cells: pd.DataFrame) -> list[str]:
    """Names of the columns that hold knobs."""
    return [str(name) for name in cells.columns if str(name).startswith("knob_")]


def as_applied(cells: pd.DataFrame, knob: str) -> pd.Series:
    """Each cell's value of a knob; where the study leaves it out, the neutral value, or an empty text if it has none.

    >>> cells = pd.DataFrame({"knob_tensor_parallel_size": [4, 2]})
    >>> list(as_applied(cells, "tensor_parallel_size")), list(as_applied(cells, "kv_cache_dtype"))
    ([4, 2], ['auto', 'auto'])
    """
    column, unset = f"knob_{knob}", (every_knob()[knob].neutral or ("",))[0]
    values = cells[column] if column in cells else pd.Series(None, index=cells.index, dtype=object)
    return values.astype(object).where(values.notna(), unset).infer_objects()


def knob_text(value: Any) -> str:
    """A knob's value as a study writes it.

    >>> [knob_text(v) for v in (16, 32.0, 0.9, True, "fp8")]
    ['16', '32', '0.9', 'true', 'fp8']
    """
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    return f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)


# What `bound_by` looks at.
BOUND_BY_NEEDS = {
    "num_requests": "first",
    "running_peak": "max",
    "preemptions": "sum",
    "kv_cache_usage_peak": "max",
}


def bound_by(summary: pd.DataFrame) -> pd.Series:
    """The limit that kept a cell from running more sequences at once.

    `kv_blocks`: requests were preempted, or waited while the cache was full; `sequences`: as many ran as the settings
    allow; `prompts`: all requests ran; `token_budget`: none of these, so only a step's budget of tokens remains.
    Null if the engine does not report how many sequences ran.
    """
    running, requests = numbers(summary["running_peak"]), numbers(summary["num_requests"])
    unbounded = [engine.name for engine in load_engines().values() if not engine.bounds_sequences]
    allowed = np.where(summary["engine"].isin(unbounded), np.inf, numbers(summary["max_concurrency_allowed"]))
    limit = np.select(
        [
            numbers(summary["preemptions"]) > 0,
            running >= allowed,
            running >= requests,
            (running < requests) & (numbers(summary["kv_cache_usage_peak"]) >= KV_CACHE_FULL),
            running < requests,
        ],
        ["kv_blocks", "sequences", "prompts", "kv_blocks", "token_budget"],
        "",
    )
    return pd.Series(limit, index=summary.index, dtype="string").replace("", pd.NA)


def records(frame: pd.DataFrame) -> list[Record]:
    """Rows as mappings of column to value."""
    return cast(list[Record], frame.to_dict("records"))


def numbers(column: pd.Series) -> FloatArray:
    """A column as floats, null as NaN."""
    return column.to_numpy(dtype=float, na_value=np.nan)

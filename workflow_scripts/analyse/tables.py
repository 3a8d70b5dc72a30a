"""Tables of a study: how they are written and read, and the schemas that they are held to.

docs/tables.md documents every column. A module that makes a table enters its schema here with `table_schema`.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa
import pyarrow as arrow
from pandera.errors import SchemaErrors

from workflow_scripts.files import write_bytes, write_text

# Types of columns; each can hold a null.
TEXT, INTEGER, NUMBER, FLAG = "string", "Int64", "float64", "boolean"

TABLE_SCHEMAS: dict[str, pa.DataFrameSchema] = {}


class TableError(ValueError):
    """A table that is missing, is not Parquet, or does not hold what its schema says."""


def table_schema(table: str, columns: Mapping[str, str], knobs: bool = False) -> pa.DataFrameSchema:
    """Enter the schema of a table: its columns in order, each with its type, and no others.

    With `knobs`, columns `knob_*` of any type may follow.
    """
    schema = {name: pa.Column(kind, nullable=True) for name, kind in columns.items()}
    if knobs:
        schema["^knob_.+$"] = pa.Column(nullable=True, regex=True, required=False)
    TABLE_SCHEMAS[table] = pa.DataFrameSchema(schema, coerce=True, strict=True, name=table)
    return TABLE_SCHEMAS[table]


def write_table(frame: pd.DataFrame, path: Path, table: str | None = None) -> None:
    """Write a table as Parquet to `path` and as CSV beside it, each whole or not at all.

    Args:
        frame: the rows; columns of another type than the schema's are converted where no value is lost.
        path: a file with the suffix .parquet.
        table: name of the schema; the file's name without its suffix if None.

    Raises:
        TableError: the frame does not hold what the schema says.
    """
    checked = _checked(frame, table or path.stem, path)
    buffer = io.BytesIO()
    checked.to_parquet(buffer, index=False)
    write_text(path.with_suffix(".csv"), checked.to_csv(index=False))
    write_bytes(path, buffer.getvalue())


def read_table(path: Path, table: str | None = None) -> pd.DataFrame:
    """Read a table that `write_table` wrote, held to its schema.

    Raises:
        TableError: there is no such file, it is not Parquet, or it does not hold what the schema says.
    """
    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError:
        raise TableError(f"{path}: there is no such table") from None
    except arrow.ArrowInvalid as e:
        raise TableError(f"{path}: not readable as Parquet: {e}") from None
    return _checked(frame, table or path.stem, path)


def _checked(frame: pd.DataFrame, table: str, path: Path) -> pd.DataFrame:
    if table not in TABLE_SCHEMAS:
        raise TableError(f"{path}: no schema of a table {table!r}; allowed: {', '.join(sorted(TABLE_SCHEMAS))}")
    try:
        checked: pd.DataFrame = TABLE_SCHEMAS[table].validate(frame.reset_index(drop=True), lazy=True)
    except SchemaErrors as e:
        raise TableError(f"{path}: not a table {table!r}: {_faults(e.failure_cases)}") from None
    return checked


def _faults(cases: pd.DataFrame) -> str:
    """Every fault once."""
    return "; ".join(dict.fromkeys(_fault(case) for case in cases.itertuples()))


def _fault(case: Any) -> str:
    if case.check == "column_in_schema":
        return f"column {case.failure_case!r} is not allowed"
    if case.check == "column_in_dataframe":
        return f"column {case.failure_case!r} is missing"
    return f"column {case.column!r} is not of {case.check.removeprefix('coerce_')}"


table_schema(
    "cells",
    {
        "cell_id": TEXT,
        "study": TEXT,
        "sweeps": TEXT,
        "gpu": TEXT,
        "engine": TEXT,
        "model": TEXT,
        "workload": TEXT,
        "knobs": TEXT,
        "max_concurrency_allowed": INTEGER,
        "outcome": TEXT,
        "reason": TEXT,
        "comparable": FLAG,
        "repeat": INTEGER,
        "num_requests": INTEGER,
        "prompt_tokens": INTEGER,
        "output_tokens": INTEGER,
        "wall_s": NUMBER,
        "output_tokens_per_s": NUMBER,
        "total_tokens_per_s": NUMBER,
        "requests_per_s": NUMBER,
        "steady_output_tokens_per_s": NUMBER,
        "ttft_s_p50": NUMBER,
        "ttft_s_p90": NUMBER,
        "ttft_s_p99": NUMBER,
        "tpot_s_p50": NUMBER,
        "tpot_s_p99": NUMBER,
        "e2e_s_p50": NUMBER,
        "e2e_s_p99": NUMBER,
        "prefill_s_mean": NUMBER,
        "decode_s_mean": NUMBER,
        "running_peak": NUMBER,
        "running_mean": NUMBER,
        "waiting_peak": INTEGER,
        "kv_cache_usage_peak": NUMBER,
        "kv_cache_usage_mean": NUMBER,
        "preemptions": INTEGER,
        "draft_tokens": NUMBER,
        "accepted_draft_tokens": NUMBER,
        "draft_acceptance_rate": NUMBER,
        "tokens_per_draft_mean": NUMBER,
        "prefix_cache_queries": NUMBER,
        "prefix_cache_hits": NUMBER,
        "prefix_cache_hit_rate": NUMBER,
        "prefix_cache_hit_rate_predicted": NUMBER,
        "prefix_cache_saved_pct": NUMBER,
        "requests_with_prefix_hits": INTEGER,
        "estimated_read_bytes": NUMBER,
        "estimated_write_bytes": NUMBER,
        "estimated_flops": NUMBER,
        "block_size_effective": NUMBER,
        "num_gpu_blocks": NUMBER,
        "kv_cache_tokens": NUMBER,
        "max_concurrency": NUMBER,
        "max_num_seqs_effective": INTEGER,
        "max_num_batched_tokens_effective": INTEGER,
        "max_model_len_effective": INTEGER,
        "attention_backend": TEXT,
        "not_as_asked": TEXT,
        "available_kv_cache_gib": NUMBER,
        "model_weights_gib": NUMBER,
        "peak_activation_gib": NUMBER,
        "cuda_graph_gib": NUMBER,
        "memory_used_bytes_max": NUMBER,
        "memory_used_bytes_mean": NUMBER,
        "utilization_pct_mean": NUMBER,
        "power_w_mean": NUMBER,
        "energy_j": NUMBER,
        "energy_j_per_output_token": NUMBER,
        "trace_gap_s_max": NUMBER,
        "throttle_reasons": TEXT,
        "kv_tokens_live_mean": NUMBER,
        "kv_slots_reserved_mean": NUMBER,
        "kv_bytes_used_mean": NUMBER,
        "kv_bytes_reserved_mean": NUMBER,
        "kv_bytes_reserved_peak": NUMBER,
        "torch_memory_bytes_max": NUMBER,
        "process_memory_growth_bytes_max": NUMBER,
        "cpu_steal_pct": NUMBER,
        "cpu_others_pct": NUMBER,
        "start_s": NUMBER,
        "warmup_s": NUMBER,
        "measure_s": NUMBER,
        "started_at": TEXT,
        "host": TEXT,
        "device_name": TEXT,
        "device_uuid": TEXT,
        "engine_version": TEXT,
        "git_commit": TEXT,
        "protocol": TEXT,
        "lock_sha256": TEXT,
        "source": TEXT,
    },
    knobs=True,
)

"""Requests that arrive as in a published trace: a CSV of arrival times, prompt lengths and output lengths."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.workloads.random_prompts import generators
from workflow_scripts.workloads.request import Request, Vocabulary, WorkloadError, checked_file
from workflow_scripts.workloads.workload_kinds import MOST_TOKENS, TraceWorkload

# The columns of arrivals, prompt tokens and output tokens.
KNOWN_FORMATS = {
    "Azure LLM inference trace": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "BurstGPT": ("Timestamp", "Request tokens", "Response tokens"),
    "plain": ("arrival_s", "prompt_tokens", "output_tokens"),
}


def trace(spec: TraceWorkload, vocabulary: Vocabulary) -> Iterator[Request]:
    """Requests of a trace in order of arrival, the first at 0 s; their prompts are random tokens. Rows without prompt
    or output tokens are left out, because such requests failed. Raises WorkloadError if the file cannot be used."""
    rows = read_trace(checked_file(spec))
    usable = rows[(rows["prompt_tokens"] > 0) & (rows["output_tokens"] > 0)]
    arrival_s = (usable["arrival_s"] - usable["arrival_s"].min()) * spec.time_scale
    return (
        Request(vocabulary.random_ids(rng, int(prompt_tokens)), int(output_tokens), arrival_s=round(float(at_s), 6))
        for at_s, prompt_tokens, output_tokens, rng in zip(
            arrival_s, usable["prompt_tokens"], usable["output_tokens"], generators(spec.seed), strict=False
        )
    )


@lru_cache(maxsize=1)  # called for each model and number of requests, on a file of millions of rows
def read_trace(path: Path) -> pd.DataFrame:
    """Rows of a trace, sorted by `arrival_s` (seconds), with `prompt_tokens` and `output_tokens`. Raises
    WorkloadError if it is no CSV file of a known format, or a value is not a time or number."""
    try:
        table = pd.read_csv(path)
    except (ValueError, UnicodeDecodeError) as e:
        raise WorkloadError(f"{path}: not readable as CSV: {' '.join(str(e).split())}") from None
    for columns in KNOWN_FORMATS.values():
        if {*columns} <= {*table.columns}:
            numbers = [_numbers(table, column, path, are_times=column == columns[0]) for column in columns]
            rows = pd.concat(numbers, axis="columns", keys=KNOWN_FORMATS["plain"])
            return rows.sort_values("arrival_s", kind="stable", ignore_index=True)
    wanted = "; ".join(f"{name}: {', '.join(columns)}" for name, columns in KNOWN_FORMATS.items())
    raise WorkloadError(f"{path}: its columns are {', '.join(map(str, table.columns))}; a trace has {wanted}")


def _numbers(table: pd.DataFrame, column: str, path: Path, are_times: bool) -> pd.Series:
    try:
        values = (_seconds(table[column]) if are_times else pd.to_numeric(table[column])).astype(float)
    except (ValueError, TypeError) as e:
        raise WorkloadError(f"{path}: column {column!r}: {' '.join(str(e).split())}") from None
    if values.isna().any():
        raise WorkloadError(f"{path}: column {column!r}: {values.isna().sum()} rows have no value")
    if not are_times and (wrong := values[~(values % 1 == 0) | (values > MOST_TOKENS)]).size:
        raise WorkloadError(
            f"{path}: column {column!r}: {wrong.iloc[0]:g} is not a number of tokens; allowed: 0 to {MOST_TOKENS}"
        )
    if not np.isfinite(values).all():
        raise WorkloadError(f"{path}: column {column!r}: {values[~np.isfinite(values)].iloc[0]} is not a time")
    return values


def _seconds(arrival: pd.Series) -> pd.Series:
    """Times in seconds: numbers unchanged; dates and times counted from the first."""
    if pd.api.types.is_numeric_dtype(arrival):
        return arrival.astype(float)
    times = pd.to_datetime(arrival, format="ISO8601", utc=True)
    return (times - times.min()).dt.total_seconds()

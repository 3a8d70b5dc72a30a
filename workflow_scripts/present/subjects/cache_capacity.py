"""The capacity of KV caches, as predicted and as the engines had it, and how much of it they used."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.engines.registry import every_knob
from workflow_scripts.present.blocks import Block, Finding, Findings, shown
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.sentences import some
from workflow_scripts.present.subject import CELL, TablePart

# A smaller error of a KV cache prediction may come from other data in the device's memory.
WITHIN_PCT = 1.0
# What prediction and engine disagree on, with columns of the table; bytes are also in GiB.
_DISAGREES: Mapping[str, str] = {
    "ran": "It ran, although it was predicted to be infeasible: {predicted_infeasible}.",
    "refused": "The engine refused what was predicted to run.",
    "block_size": "The engine used blocks of {observed_block_size:g} tokens, not of {predicted_block_size:g}.",
    "kv_cache_tokens": "Predicted: {predicted_kv_cache_tokens:,.0f} tokens, observed: {observed_kv_cache_tokens:,.0f}.",
    "num_blocks": "Predicted: {predicted_num_blocks:,.0f} blocks, observed: {observed_num_blocks:,.0f}.",
    "dtype": "The prediction is for {predicted_dtype}, the model ran in {dtype}.",
    "version": "The prediction is for vLLM {predicted_for_version}, this is {engine_version}.",
    "device_memory": "The blocks at several utilizations imply a device of {implied_memory_gib:.2f} GiB, not of "
    "{predicted_device_memory_gib:.2f} GiB.",
    "overhead": "The blocks at several utilizations imply {implied_overhead_gib:.2f} GiB of weights and overhead, not "
    "{predicted_overhead_gib:.2f} GiB.",
    "log": "The log contradicts itself: {observed_kv_cache_gib:.2f} GiB hold {recomputed_kv_cache_tokens:,.0f} tokens, "
    "but it says {observed_kv_cache_tokens:,.0f}.",
}


def prediction_errors(report: Report) -> Iterator[Block]:
    """The errors of the KV cache predictions, compared with what engines measured."""
    names = ["observed_kv_cache_tokens", "observed_max_concurrency"]
    rows = report.tables.need("capacity", "cell_id", "source", "kv_cache_tokens_error_pct", *names)
    measured = rows[(rows["source"] == "measured") & rows["observed_kv_cache_tokens"].notna()]
    error_pct = measured["kv_cache_tokens_error_pct"].dropna().abs()
    if error_pct.empty:
        raise MissingError("no cell has KV-cache tokens that were both predicted and measured")
    within = int((error_pct <= WITHIN_PCT).sum())
    # The number of full-length requests is not known for every cell, so the tokens shown with it are of the same cells.
    whole = measured.dropna(subset=names)
    held = [_span(whole[name]) for name in names]
    sentence = (
        f"The predicted KV cache is within {WITHIN_PCT:g} % of the measured tokens in {within} of {len(error_pct)} "
        f"cells; the largest error is {error_pct.max():.3g} %."
    )
    if held[0]:
        sentence += f" Measured KV caches hold {held[0]} tokens, or {held[1]} requests of full length."
    if given := int(measured.loc[error_pct.index, "cell_id"].isin(_size_given(report.tables)).sum()):
        sentence += (
            f" In {given} of these cells the study sets the size of the cache, so the prediction is only arithmetic."
        )
    if unpredicted := len(measured) - len(error_pct):
        sentence += f" {unpredicted} more measured cells have no prediction."
    kind = "good" if within == len(error_pct) else "neutral"
    yield Findings([Finding(f"at most {error_pct.max():.2g} % off", sentence, kind)])


def _span(values: pd.Series) -> str:
    """The range from the minimum to the maximum, one number if they are equal; empty if there are no values."""
    return " to ".join(dict.fromkeys([shown(values.min()), shown(values.max())])) if len(values) else ""


def _size_given(tables: Tables) -> set[str]:
    """Cells for which the study sets the size of the KV cache."""
    amounts = [f"knob_{name}" for name, knob in every_knob().items() if knob.reserves == "amount"]
    knobs = [name for name in amounts if name in tables.cells]
    return set(tables.cells.loc[tables.cells[knobs].notna().any(axis=1), "cell_id"])


def why_predictions_missed(report: Report) -> Iterator[Block]:
    """Why predictions of the KV cache were wrong, for cells where they were."""
    rows = report.tables.need("capacity", "cell_id", "source", "disagrees")
    # Cells that differ only in knobs without effect on the cache have the same sentences.
    first: dict[str, dict[str, Any]] = {}
    for row in records(rows[rows["disagrees"].notna()]):
        gib = {name.replace("_bytes", "_gib"): row[name] / 2**30 for name in row if name.endswith("_bytes")}
        words = " ".join(_DISAGREES[code] for code in row["disagrees"].split(",")).format(**row, **gib)
        first.setdefault(words, row)
    findings = [
        Finding(
            "published" if row["source"] == "published" else "missed",
            f"{report.names.get(row['cell_id'], row['cell_id'])}: {words}",
        )
        for words, row in first.items()
    ]
    if findings:
        yield some(findings, "capacity")


CAPACITY = TablePart(
    "capacity",
    {
        "gpu": "Device",
        "model": "Model",
        "engine": "Engine",
        "knobs": "Settings",
        "source": "Source",
        "observed_num_blocks": "Blocks",
        "predicted_num_blocks": "Blocks, predicted",
        "observed_kv_cache_tokens": "Tokens",
        "predicted_kv_cache_tokens": "Tokens, predicted",
        "kv_cache_tokens_error_pct": "Error of predicted tokens (%)",
        "observed_max_concurrency": "Requests of full length",
        "predicted_max_concurrency": "Requests of full length, predicted",
        "observed_kv_cache_bytes": "KV cache (GiB)",
    },
    "Capacity of the KV cache, as the engine had it and as predicted",
)


def reserved_and_used(cells: pd.DataFrame) -> pd.DataFrame:
    """Bytes that engines reserved for keys and values, and those that they used: medians over the repeats of a cell."""
    known = cells[cells["repeat"].notna() & cells["kv_bytes_reserved_peak"].notna()]
    if known.empty:
        raise MissingError("no cell recorded how many bytes its KV cache reserved")
    names = {
        "kv_bytes_reserved_peak": "reserved_bytes",
        "kv_bytes_reserved_mean": "reserved_mean_bytes",
        "kv_bytes_used_mean": "used_bytes",
        "torch_memory_bytes_max": "torch_bytes",
        "process_memory_growth_bytes_max": "process_bytes",
    }
    rows = known.groupby(list(CELL), sort=False)[list(names)].median().rename(columns=names).reset_index()
    return rows.assign(used_pct=100 * rows["used_bytes"] / rows["reserved_mean_bytes"])


RESERVED = TablePart(
    "cells",
    {
        **CELL,
        "reserved_bytes": "KV reserved, peak (GiB)",
        "reserved_mean_bytes": "KV reserved, mean (GiB)",
        "used_bytes": "KV used, mean (GiB)",
        "used_pct": "Used share of reserved, of means (%)",
        "torch_bytes": "Peak of torch, with weights (GiB)",
        "process_bytes": "Growth of the process (GiB)",
    },
    "KV memory reserved and used, medians over repeats",
    reserved_and_used,
)

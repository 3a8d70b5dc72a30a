"""The tables `cells`, `starts` and `repeats`: what a study asks for, how each start ended, what each repeat measured.

Most readers want them as one frame: one row per repeat with the columns of its start and cell, then one row for each
start without a repeat and for each cell without a start.
"""

from pathlib import Path

import pandas as pd

from workflow_scripts.tables.parsed_facts import REPEAT, START
from workflow_scripts.tables.typed_tables import (
    FLAG,
    INTEGER,
    KNOBS,
    NUMBER,
    OBJECT,
    TEXT,
    declared,
    read_table,
    table_schema,
)

MEASURED = "measured"

_CELL_ID = TEXT("cell_id", "`gpu/engine[@environment]/model/workload/knobs`, the cell's folder below `cells/`")
_HOW_ENDED = {
    **TEXT(
        "outcome",
        "`ok`, `infeasible`, `timeout`, `engine_error`, `invalid`, imported also `unknown`; of a cell also `missing`",
    ),
    **TEXT("reason", "why not `ok`, if possible the engine's message"),
    **FLAG("comparable", "false if measured with another definition: shown, not compared"),
    **TEXT("source", "`measured` or `imported` ([importing.md](importing.md))"),
}

CELLS = table_schema(
    "cells",
    "One row per cell of the study. Its outcome is that of the first start that may be compared, else of the first that"
    " ended `ok`, else of the first.",
    _CELL_ID,
    TEXT("study", "name of the study"),
    TEXT("sweeps", "sweeps with this cell, comma-separated"),
    TEXT("gpu engine model workload", "names in the catalogues and the study"),
    TEXT("environment", "another version of the engine, then called `engine@environment`; else empty"),
    TEXT("knobs", "short form of the settings"),
    INTEGER("max_concurrency_allowed", "sequences that may run at once"),
    _HOW_ENDED,
    INTEGER("start", "the start that the outcome is of; null if there is none"),
    OBJECT("definition", "what is measured: model, workload, settings; a JSON object. Null for imported cells"),
    NUMBER("equivalence_margin_pct", "of the study"),
    TEXT("failed_starts", "how other starts ended if this one is `ok`; null if none failed"),
    key=["cell_id"],
    knobs=True,
)
STARTS = table_schema(
    "starts",
    "One row per start of a cell's engine.",
    _CELL_ID,
    INTEGER("start", "start of the engine, from 1"),
    _HOW_ENDED,
    INTEGER("round position", "round of the start, and its place in it, from 1"),
    NUMBER("block_size_effective max_concurrency", "tokens per block, full-length requests that fit"),
    declared("num_gpu_blocks kv_cache_tokens"),
    INTEGER("max_num_seqs_effective max_num_batched_tokens_effective max_model_len_effective", "effective values"),
    declared("max_cudagraph_capture_size"),
    TEXT("cudagraph_mode", "effective"),
    TEXT("attention_backend", "named by the engine"),
    TEXT("not_as_asked", "settings that the engine silently replaced"),
    OBJECT("effective", "all effective settings, a JSON object"),
    NUMBER("available_kv_cache_gib model_weights_gib peak_activation_gib cuda_graph_gib", "printed by the engine"),
    NUMBER("cpu_steal_pct", "CPU time of the hypervisor, of all cores"),
    declared("cpu_others_pct"),
    NUMBER("start_s warmup_s measure_s", "time of the cell's phases; null: in another cell of its session"),
    FLAG("graphs_from_cache", "start: compiled graphs all loaded from vLLM's cache"),
    FLAG(
        "steady",
        "the first repeat took at most 5 % longer than the mean of the later ones; of a single repeat: the last two "
        "passes of the warm-up agree within 5 %",
    ),
    TEXT("boot_id", "Linux's id of the boot"),
    TEXT("session", "id common to the starts that one process of an engine served; null: it served this one alone"),
    TEXT("planned_starts", "the study's `starts` at that time"),
    TEXT("host device_name device_uuid engine_version git_commit protocol lock_sha256", "provenance"),
    TEXT("processor", "CPU name, vendor, family, model, instruction sets"),
    TEXT("dtype", "type in which the model was computed"),
    key=START,
)
REPEATS = table_schema(
    "repeats",
    "One row per timed pass over the workload, of starts that ran.",
    _CELL_ID,
    INTEGER("start", "as in `starts`"),
    INTEGER("repeat", "timed pass, from 0"),
    TEXT("started_at", "start of the repeat, UTC"),
    declared("num_requests prompt_tokens output_tokens wall_s"),
    declared("output_tokens_per_s total_tokens_per_s requests_per_s steady_output_tokens_per_s"),
    NUMBER("steady_s", "duration of that time"),
    declared("drain_share ttft_s_p50 ttft_s_p90 ttft_s_p99 queue_s_p50 prefill_s_p50"),
    declared("tpot_s_p50 tpot_s_p99 e2e_s_p50 e2e_s_p99"),
    declared("running_peak"),
    NUMBER("running_mean", "running sequences"),
    declared("running_while_others_wait waiting_peak kv_cache_usage_peak"),
    NUMBER("kv_cache_usage_mean", "share of KV blocks in use"),
    declared("preemptions recomputed_tokens"),
    NUMBER("draft_tokens accepted_draft_tokens", "tokens drafted and accepted"),
    declared("draft_acceptance_rate"),
    NUMBER("tokens_per_draft_mean", "accepted tokens plus one, per sequence and step with a draft"),
    NUMBER("prefix_cache_queries", "tokens looked up and found"),
    declared("prefix_cache_hits prefix_cache_hit_rate"),
    NUMBER("host_cache_hits", "tokens found in the host's memory instead (`kv_offloading_size`)"),
    NUMBER("prefix_cache_saved_pct", "hits over all prompt and output tokens"),
    INTEGER("requests_with_prefix_hits", "requests with a hit"),
    NUMBER("estimated_read_bytes estimated_write_bytes estimated_flops", "the engine's own estimate, per device"),
    declared("memory_used_bytes_max"),
    NUMBER("utilization_pct_mean", "of the device (CPU: of all its cores)"),
    declared("power_w_mean energy_j energy_j_per_output_token"),
    declared("sm_clock_mhz_median sm_clock_mhz_min"),
    TEXT("throttle_reasons", "of all GPUs of the cell, comma-separated"),
    declared("power_cap_share"),
    NUMBER("kv_tokens_live_mean", "tokens of live requests in the cache, mean over time ([how](fragmentation.md))"),
    NUMBER("kv_slots_reserved_mean", "token slots reserved for them, mean over time"),
    declared("kv_bytes_used_mean kv_bytes_reserved_mean kv_bytes_reserved_peak"),
    declared("torch_memory_bytes_max process_memory_growth_bytes_max"),
    key=REPEAT,
)
# Columns of the one frame.
FRAME_COLUMNS = {
    name: column for schema in (CELLS, STARTS, REPEATS) for name, column in schema.columns.items() if name != KNOBS
}
del FRAME_COLUMNS["failed_starts"]


def split(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The three tables of the one frame."""
    knobs = [name for name in map(str, rows) if name.startswith("knob_")]
    starts = rows[rows["start"].notna()].drop_duplicates(START)
    frames = {"cells": _cells(rows), "starts": starts, "repeats": rows[rows["repeat"].notna()]}
    columns = {schema.name: [name for name in schema.columns if name != KNOBS] for schema in (CELLS, STARTS, REPEATS)}
    columns["cells"] += knobs
    return {name: frame.reindex(columns=columns[name]) for name, frame in frames.items()}


def _cells(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.reset_index(drop=True)
    ok = rows["outcome"].eq("ok").fillna(False)
    rank = 2 - ok.astype(int) - (ok & rows["comparable"].eq(True).fillna(False)).astype(int)
    cells = rows.loc[rank.sort_values(kind="stable").index].drop_duplicates("cell_id").sort_index()
    are_ok = cells.loc[cells["outcome"].eq("ok").fillna(False), "cell_id"]
    failed = rows[~ok & rows["cell_id"].isin(are_ok)].drop_duplicates(START)
    endings = [
        f"start {start:g} ended as {outcome.replace('_', ' ')}" + (f": {reason}" if pd.notna(reason) else "")
        for start, outcome, reason in failed[["start", "outcome", "reason"]].itertuples(index=False)
    ]
    of_cell = pd.Series(endings, index=failed["cell_id"], dtype=object).groupby(level=0, sort=False).agg("; ".join)
    return cells.assign(failed_starts=cells["cell_id"].map(of_cell).astype("string"))


def joined(cells: pd.DataFrame, starts: pd.DataFrame, repeats: pd.DataFrame) -> pd.DataFrame:
    """The one frame of the three tables."""
    asked = cells.drop(columns=["start", "failed_starts", *_HOW_ENDED])
    rows = asked.merge(starts, on="cell_id", how="left").merge(repeats, on=START, how="left")
    for name, value in {"outcome": "missing", "comparable": False, "source": MEASURED}.items():
        rows[name] = rows[name].where(rows[name].notna(), value)
    return rows[[*FRAME_COLUMNS, *(name for name in rows if name not in FRAME_COLUMNS)]]


def read_measurements(folder: Path) -> pd.DataFrame:
    """The one frame of the three tables in a folder.

    Raises:
        TableError: a table is missing or does not fit its schema.
    """
    return joined(*(read_table(folder / f"{schema.name}.parquet") for schema in (CELLS, STARTS, REPEATS)))

"""Write the cells table: one row per cell, start and repeat, with everything that was measured.

    kvsweep table-cells --study config/studies/demo.yaml --parsed results/demo/parsed \\
        --out results/demo/tables/cells.parquet

Cells of the study that were not run are rows with the outcome `missing`. docs/tables.md documents every column.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from workflow_scripts.common.columns import COLUMNS
from workflow_scripts.common.command import PARSED, STUDY, command, option, out
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.statistics.summary import knob_columns, numbers
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.derived import derived, kv_memory, not_as_asked, predicted_hit_rate, without_drafts
from workflow_scripts.tables.imported_cells import with_imported
from workflow_scripts.tables.parsed_facts import REPEAT, START, read_parsed
from workflow_scripts.tables.request_lives import Texts, request_lives, shared_texts, tokens_held
from workflow_scripts.tables.timeline import (
    request_facts,
    running_over_time,
    running_reported,
    steady_rate,
    step_facts,
    trace_facts,
)
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, KNOBS, NUMBER, TEXT, declared, table_schema, write_table

MEASURED, SIMULATED = "measured", "simulated"

SCHEMA = table_schema(
    "cells",
    "One row per cell, start and repeat; one without a repeat for a start that did not end `ok` or a cell that was not"
    " run.",
    TEXT("cell_id", "`gpu/engine[@environment]/model/workload/knobs`, the cell's folder below `cells/`"),
    TEXT("study", "name of the study"),
    TEXT("sweeps", "sweeps with this cell, comma-separated"),
    TEXT("gpu engine model workload", "names in the catalogues and the study"),
    TEXT("environment", "another version of the engine, then called `engine@environment`; else empty"),
    TEXT("knobs", "short form of the settings"),
    INTEGER("max_concurrency_allowed", "sequences that may run at once"),
    TEXT("outcome", "`ok`, `infeasible`, `timeout`, `engine_error`, `invalid`, `missing`"),
    TEXT("reason", "why not `ok`, if possible the engine's message"),
    FLAG("comparable", "false if measured with another definition: shown, not compared"),
    INTEGER("start", "start of the engine, from 1"),
    INTEGER("round position", "round of the start, and its place in it, from 1"),
    INTEGER("repeat", "timed pass, from 0"),
    declared("num_requests prompt_tokens output_tokens wall_s"),
    declared("output_tokens_per_s total_tokens_per_s requests_per_s steady_output_tokens_per_s"),
    NUMBER("steady_s", "duration of that time"),
    declared("drain_share ttft_s_p50 ttft_s_p90 ttft_s_p99 queue_s_p50 prefill_s_p50"),
    declared("tpot_s_p50 tpot_s_p99 e2e_s_p50 e2e_s_p99"),
    NUMBER(
        "queue_s_mean prefill_s_mean decode_s_mean",
        "mean times until scheduled, then to the first token, then to the last",
    ),
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
    NUMBER(
        "prefix_cache_hit_rate_predicted",
        "predicted share of prompt tokens in whole blocks that begin an earlier prompt too",
    ),
    NUMBER("prefix_cache_saved_pct", "hits over all prompt and output tokens"),
    INTEGER("requests_with_prefix_hits", "requests with a hit"),
    NUMBER("estimated_read_bytes estimated_write_bytes estimated_flops", "the engine's own estimate, per device"),
    NUMBER("block_size_effective max_concurrency", "tokens per block, full-length requests that fit"),
    declared("num_gpu_blocks kv_cache_tokens"),
    INTEGER("max_num_seqs_effective max_num_batched_tokens_effective max_model_len_effective", "effective values"),
    declared("max_cudagraph_capture_size"),
    TEXT("cudagraph_mode", "effective"),
    TEXT("attention_backend", "named by the engine"),
    TEXT("not_as_asked", "settings that the engine silently replaced"),
    TEXT("effective", "all effective settings, a JSON object"),
    NUMBER("available_kv_cache_gib model_weights_gib peak_activation_gib cuda_graph_gib", "printed by the engine"),
    declared("memory_used_bytes_max"),
    NUMBER("memory_used_bytes_mean", COLUMNS["memory_used_bytes_max"].meaning),
    NUMBER("utilization_pct_mean", "of the device (CPU: of all its cores)"),
    declared("power_w_mean energy_j energy_j_per_output_token"),
    NUMBER("trace_gap_s_max", "longest time between two samples"),
    declared("sm_clock_mhz_median sm_clock_mhz_min"),
    TEXT("throttle_reasons", "of all GPUs of the cell, comma-separated"),
    declared("power_cap_share"),
    NUMBER("kv_tokens_live_mean", "tokens of live requests in the cache, mean over time ([how](fragmentation.md))"),
    NUMBER("kv_slots_reserved_mean", "token slots reserved for them, mean over time"),
    declared("kv_bytes_used_mean"),
    NUMBER(
        "kv_bytes_reserved_mean kv_bytes_reserved_peak",
        "bytes reserved for keys and values; a pool of blocks counts whole",
    ),
    NUMBER("torch_memory_bytes_max", "HuggingFace on a GPU: `torch.cuda.max_memory_allocated`"),
    NUMBER(
        "process_memory_growth_bytes_max",
        "CPU: highest resident memory of the engine's processes, minus that before the start",
    ),
    NUMBER("cpu_steal_pct", "CPU time of the hypervisor, of all cores"),
    declared("cpu_others_pct"),
    NUMBER("start_s warmup_s measure_s", "time of the cell's phases"),
    FLAG("graphs_from_cache", "start: compiled graphs all loaded from vLLM's cache"),
    NUMBER("compile_s", "start: compiling or loading graphs, by the log"),
    INTEGER("warmup_requests warmup_passes", "requests per pass, and passes"),
    FLAG("warmup_steady", "the last two passes agree within 5 %"),
    NUMBER(
        "experts_touched_share",
        "share of a layer's experts that a decode step of a full batch used, mean over steps and layers; "
        "`hf-static` only",
    ),
    INTEGER("experts_touched_tokens", "tokens of each of these steps"),
    TEXT("started_at", "start of the repeat, UTC"),
    NUMBER("idle_before_s", "time since the same user's previous start on this device ended"),
    TEXT("boot_id", "Linux's id of the boot"),
    TEXT("planned_starts", "the study's `starts` at that time"),
    TEXT("host device_name device_uuid engine_version git_commit protocol lock_sha256", "provenance"),
    TEXT("processor", "CPU name, vendor, family, model, instruction sets"),
    TEXT("dtype", "type in which the model was computed"),
    TEXT("source", "`measured`, `imported` ([importing.md](importing.md)) or `simulated`"),
    knobs=True,
)


def grid_rows(study: Study, cells: Sequence[Cell]) -> pd.DataFrame:
    """What the study asks for: one row per cell, indexed by `cell_id`."""
    models = resolved_models(study)
    rows = [
        {
            "cell_id": cell.id,
            "study": study.name,
            "sweeps": ",".join(cell.sweeps),
            "gpu": cell.gpu,
            "engine": cell.engine_at,
            "environment": cell.environment,
            "model": cell.model,
            "workload": cell.workload,
            "knobs": cell.knobs.slug(),
            **{f"knob_{name}": value for name, value in cell.knobs.set_values().items()},
            "max_concurrency_allowed": cell.knobs.max_concurrency,
            "definition_asked": definition_sha256(cell_definition(study, cell, models)),
        }
        for cell in cells
    ]
    return pd.DataFrame(rows).convert_dtypes().set_index("cell_id")


def cells_table(study: Study, cells: Sequence[Cell], parsed: Path, imported: Path | None = None) -> pd.DataFrame:
    """The table for all cells of a study; `parsed` holds a folder for each GPU, `imported` runs measured elsewhere."""
    grid, texts = grid_rows(study, cells), shared_texts(study)
    measured = [
        _of_gpu(parsed, gpu, grid, texts)
        for gpu in dict.fromkeys(cell.gpu for cell in cells)
        if (parsed / gpu / "starts.parquet").exists()
    ]
    names = [*REPEAT, "outcome", "definition_sha256", "simulated"]
    rows = pd.concat(measured) if measured else pd.DataFrame(columns=names)
    table = grid.reset_index().merge(rows, on="cell_id", how="left")
    table["outcome"] = table["outcome"].fillna("missing")
    table["comparable"] = table["definition_sha256"].eq(table["definition_asked"]).fillna(False).astype(bool)
    table["source"] = table["simulated"].eq(True).fillna(False).map({True: SIMULATED, False: MEASURED})
    if measured:
        table = kv_memory(without_drafts(table))
        table["prefix_cache_hit_rate_predicted"] = predicted_hit_rate(table, texts)
    # The others serve only to compute these.
    table = table.reindex(columns=[*(SCHEMA.columns.keys() - {KNOBS}), *knob_columns(table)])
    return table if imported is None else with_imported(table, read_jsonl(imported), study.name)


def _of_gpu(parsed: Path, gpu: str, grid: pd.DataFrame, texts: Texts) -> pd.DataFrame:
    start = read_parsed(parsed, gpu, "starts").set_index(START)
    start = start[start.index.isin(grid.index, level="cell_id")]
    # With a part of its evidence, a repeat would have too few tokens in its whole time.
    start["reason"] = start["reason"].fillna(start["damaged"])
    start["outcome"] = start["outcome"].mask(start["outcome"].eq("ok") & start["damaged"].notna(), "invalid")
    asked = grid.loc[start.index.get_level_values("cell_id")].set_index(start.index)
    start["not_as_asked"] = not_as_asked(asked, start["effective"]).where(start["outcome"] == "ok")
    # A start that did not end ok has no measured values: those of an earlier repeat are evidence, not a result.
    ok = start.index[start["outcome"].eq("ok").fillna(False)]
    repeat = _of_starts(read_parsed(parsed, gpu, "repeats"), ok).set_index(REPEAT)
    requests = _of_starts(read_parsed(parsed, gpu, "requests"), ok)
    steps = _of_starts(read_parsed(parsed, gpu, "steps"), ok)
    # Without blocks, tokens of a prefix are shared one by one.
    blocks = asked[["workload"]].join(start["block_size_effective"])
    lives = request_lives(requests.join(blocks, on=START), texts, steps)
    parts: list[pd.DataFrame | pd.Series] = [
        request_facts(requests),
        running_over_time(requests),
        tokens_held(lives, numbers(lives["block_size_effective"].fillna(1))),
        # Requests that arrive at a rate may never fill the engine.
        steady_rate(requests[requests["sent_s"].isna()], steps, grid["max_concurrency_allowed"]),
        step_facts(steps, requests.groupby(REPEAT)["scheduled_s"].min()),
        trace_facts(_of_starts(read_parsed(parsed, gpu, "trace"), ok), start["device_cores"]),
    ]
    repeat = repeat.join(parts)
    # An engine behind a server reports its queues from time to time, but not when a request leaves the queue.
    reported = running_reported(steps).reindex(repeat.index)
    for name in ("running_peak", "running_mean"):
        repeat[name] = repeat[name].fillna(reported[name])
    return derived(start.reset_index().merge(repeat.reset_index(), on=START, how="left"))


def _of_starts(table: pd.DataFrame, starts: pd.Index) -> pd.DataFrame:
    return table[pd.MultiIndex.from_frame(table[START]).isin(starts)]


@command(
    "table-cells",
    STUDY,
    PARSED,
    option("--imported", type=Path, help="imported.jsonl of `kvsweep read-imported`"),
    out("cells.parquet; cells.csv is written beside it"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    write_table(cells_table(study, expand(study), args.parsed, args.imported), args.out)

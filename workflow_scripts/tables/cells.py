"""Everything that was measured of the cells of a study, from the parsed tables."""

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from workflow_scripts.common.files import read_jsonl
from workflow_scripts.engines.knobs import flat
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import COORDINATES, Cell
from workflow_scripts.study.study import Study
from workflow_scripts.tables.derived import derived, kv_memory, not_as_asked
from workflow_scripts.tables.imported_cells import with_imported
from workflow_scripts.tables.measurements import FRAME_COLUMNS, MEASURED
from workflow_scripts.tables.parsed_facts import REPEAT, START, of_repeats, read_parsed
from workflow_scripts.tables.request_lives import Texts, request_lives, shared_texts, tokens_held
from workflow_scripts.tables.summary import knob_columns, numbers
from workflow_scripts.tables.timeline import (
    request_facts,
    running_over_time,
    running_reported,
    steady_rate,
    step_facts,
    trace_facts,
    with_sequences,
)


def grid_rows(study: Study, cells: Sequence[Cell]) -> pd.DataFrame:
    """What the study asks for: one row per cell, indexed by `cell_id`; those of one device, engine, model and workload
    together, in the order of their settings' values, those that the study does not set first."""
    models = resolved_models(study)
    measured = {cell.id: cell_definition(study, cell, models) for cell in cells}
    rows = [
        {
            "cell_id": cell.id,
            "study": study.name,
            "equivalence_margin_pct": study.equivalence_margin_pct,
            "sweeps": ",".join(cell.sweeps),
            "gpu": cell.gpu,
            "engine": cell.engine_at,
            "environment": cell.environment,
            "model": cell.model,
            "workload": cell.workload,
            "knobs": cell.knobs.slug(),
            **{f"knob_{name}": value for name, value in flat(cell.knobs.set_values()).items()},
            "max_concurrency_allowed": cell.knobs.max_concurrency,
            "definition": json.dumps(measured[cell.id].as_json()),
            "definition_asked": definition_sha256(measured[cell.id]),
        }
        for cell in cells
    ]
    grid = pd.DataFrame(rows).convert_dtypes().set_index("cell_id")
    in_order = ["place", *knob_columns(grid)]
    grid = grid.assign(place=grid.groupby(COORDINATES, sort=False).ngroup())
    return grid.sort_values(in_order, na_position="first").drop(columns="place")


def measured_rows(study: Study, cells: Sequence[Cell], parsed: Path, imported: Path | None = None) -> pd.DataFrame:
    """The frame of `tables.measurements` for all cells of a study; cells that were not run have the outcome `missing`.

    `parsed` holds a folder for each GPU, `imported` runs measured elsewhere.
    """
    grid, texts = grid_rows(study, cells), shared_texts(study)
    gpus = [gpu for gpu in dict.fromkeys(cell.gpu for cell in cells) if (parsed / gpu / "starts.parquet").exists()]
    of_gpu = partial(_of_gpu, parsed, grid=grid, texts=texts)
    with ProcessPoolExecutor(2, get_context("fork")) as processes:
        measured = list(processes.map(of_gpu, gpus) if len(gpus) > 1 else map(of_gpu, gpus))
    names = [*REPEAT, "outcome", "definition_sha256"]
    rows = pd.concat(measured) if measured else pd.DataFrame(columns=names)
    table = grid.reset_index().merge(rows, on="cell_id", how="left")
    table["outcome"] = table["outcome"].fillna("missing")
    table["comparable"] = table["definition_sha256"].eq(table["definition_asked"]).fillna(False).astype(bool)
    table["source"] = MEASURED
    if measured:
        table = kv_memory(table)
    # The others serve only to compute these.
    table = table.reindex(columns=[*FRAME_COLUMNS, *knob_columns(table)])
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
    repeat = read_parsed(parsed, gpu, "repeats")
    repeat = repeat[pd.MultiIndex.from_frame(repeat[START]).isin(ok)].reset_index(drop=True)
    requests, steps, trace = (
        of_repeats(read_parsed(parsed, gpu, name), repeat) for name in ("requests", "steps", "trace")
    )
    drafts = grid.index[grid.reindex(columns=["knob_num_speculative_tokens"]).gt(0).any(axis="columns")]
    steps = with_sequences(steps, drafts)
    of_start = repeat[START].join(asked.join(start[["block_size_effective", "device_cores"]]), on=START)
    lives = request_lives(requests.join(of_start[["workload", "block_size_effective"]], on="number"), texts, steps)
    parts: list[pd.DataFrame | pd.Series] = [
        request_facts(requests),
        running_over_time(requests),
        # Without blocks, tokens of a prefix are shared one by one.
        tokens_held(lives, numbers(lives["block_size_effective"].fillna(1))),
        # Requests that arrive at a rate may never fill the engine.
        steady_rate(requests[requests["sent_s"].isna()], steps, of_start["max_concurrency_allowed"]),
        step_facts(steps, requests.groupby("number")["scheduled_s"].min()),
        trace_facts(trace, of_start["device_cores"]),
    ]
    repeat = repeat.join(parts)
    # An engine behind a server reports its queues from time to time, but not when a request leaves the queue.
    reported = running_reported(steps).reindex(repeat.index)
    for name in ("running_peak", "running_mean"):
        repeat[name] = repeat[name].fillna(reported[name])
    # Of a repeat shorter than the time between two readings, none may have seen a request.
    missed = repeat["running_peak"].eq(0)
    names = ["running_peak", "running_mean", "waiting_peak", "kv_cache_usage_peak", "kv_cache_usage_mean"]
    repeat[names] = repeat[names].mask(missed)
    return derived(start.reset_index().merge(repeat, on=START, how="left"))

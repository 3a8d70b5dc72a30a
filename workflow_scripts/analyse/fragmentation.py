"""Compute how much reserved KV memory holds no token, in the engine's layout and in others.

    kvsweep table-waste --study config/studies/demo.yaml \\
        --cells results/demo/tables/cells.parquet --parsed results/demo/parsed --out results/demo/tables/waste.parquet

One row per repeat and layout. docs/fragmentation.md says how the numbers are made.
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.analyse.cells import MEASURED
from workflow_scripts.analyse.facts import REPEAT, read_parsed
from workflow_scripts.analyse.repeats import numbers
from workflow_scripts.analyse.request_lives import TIMES, Texts, by_repeat, lengths, paged, request_lives, shared_texts
from workflow_scripts.analyse.start_spread import FloatArray
from workflow_scripts.analyse.table_command import Output, table_command
from workflow_scripts.analyse.tables import INTEGER, NUMBER, TEXT, columns, table_schema
from workflow_scripts.common.command import PARSED
from workflow_scripts.physics import formulas
from workflow_scripts.study.study_file import Study

PREDICTED = "predicted"
WHATIF_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)

SCHEMA = table_schema(
    "waste",
    "Share of the memory reserved for keys and values that held no token. One row per repeat and layout; each what-if "
    "block size has its own row. [fragmentation.md](fragmentation.md) says how the numbers are made.",
    columns("cell_id", TEXT, "the repeat, as in `cells`"),
    columns("start repeat", INTEGER, "the start and the repeat, as in `cells`"),
    columns(
        "layout",
        TEXT,
        "`paged`, `block_size_whatif`, `contiguous_max_model_len`, `contiguous_request_length`, `padded_batch`, "
        "`hf_dynamic_cache` or `hf_static_cache`",
    ),
    columns("block_size", INTEGER, "tokens per block; null for layouts without blocks"),
    columns("sequences_live_mean", NUMBER, "live sequences, mean over time"),
    columns(
        "tokens_held_mean slots_held_mean",
        NUMBER,
        "tokens held and slots reserved, mean over time (`padded_batch`: over steps)",
    ),
    columns("waste_pct", NUMBER, "share of the slots that held no token, in per cent"),
    columns("wasted_slots_per_sequence", NUMBER, "slots without a token, per live sequence"),
    columns("expected_wasted_slots_per_sequence", NUMBER, "`(block_size - 1) / 2`"),
    columns("engine_slots_held_mean", NUMBER, "slots in use according to the engine's own gauge, in rows of `paged`"),
    columns(
        "computed_from",
        TEXT,
        "`timeline`: the measured times of the requests; `lengths`: only their lengths; `steps`: what the engine "
        "reported at each step",
    ),
    columns("source", TEXT, "`measured` for the layout that the engine had, `predicted` for the others"),
)

OF_REQUEST = (*REPEAT, "request_id", "prompt_tokens", "output_tokens", "cached_prompt_tokens", *TIMES)


def waste_table(cells: pd.DataFrame, parsed: Path, texts: Texts) -> pd.DataFrame:
    """The table for the cells that ended ok.

    Args:
        cells: rows of the cells table.
        parsed: folder with a folder of parsed tables for each GPU.
        texts: workloads that say which prompts share text, by name.
    """
    ok = cells[(cells["outcome"] == "ok") & cells["repeat"].notna()]
    parts = [caches_as_measured(ok)]
    for gpu, rows in ok.groupby("gpu"):
        if (parsed / str(gpu) / "requests.parquet").exists():
            requests = read_parsed(parsed, str(gpu), "requests", OF_REQUEST)
            parts += layouts(timeline(rows, requests, texts))
    table = pd.concat([part for part in parts if len(part)] or parts)
    return table.reindex(columns=list(SCHEMA.columns)).sort_values([*REPEAT, "layout", "block_size"], kind="stable")


def timeline(cells: pd.DataFrame, requests: pd.DataFrame, texts: Texts) -> pd.DataFrame:
    """The lives of the requests (`request_lives`), with the columns of `cells` that layouts need."""
    of_repeat = cells.assign(
        batch_size=cells["max_num_seqs_effective"].fillna(cells["max_concurrency_allowed"]),
        engine_slots_held_mean=cells["kv_cache_usage_mean"] * cells["kv_cache_tokens"],
    )[[*REPEAT, "workload", "block_size_effective", "max_model_len_effective", "batch_size", "engine_slots_held_mean"]]
    return request_lives(requests.merge(of_repeat, on=REPEAT), texts)


# --- layouts: tokens held and slots reserved, integrated over time, by repeat -----------------------------------------


def contiguous(t: pd.DataFrame, slots: FloatArray) -> pd.DataFrame:
    """A fixed number of slots for each request, reserved for its whole life; nothing is shared."""
    return by_repeat(t, formulas.token_seconds(*lengths(t)), slots * numbers(t["live_s"]))


def padded_batches(t: pd.DataFrame) -> pd.DataFrame:
    """Batches in the order of the workload, padded to their longest prompt and run to their longest output.

    It is not known how long such a step would take, so time is counted in steps; the prefill is one step.
    """
    batches = t.assign(batch=t.groupby("row").cumcount() // t["batch_size"], rows=1).groupby(["row", "batch"])
    longest = batches[["prompt_tokens", "output_tokens"]].max()
    slots = numbers(batches["rows"].sum()) * _held_over_steps(longest)
    held = by_repeat(t, _held_over_steps(t), np.zeros(len(t)))
    return held.assign(
        slot_s=pd.Series(slots, index=longest.index).groupby("row").sum(),
        live_s=t["output_tokens"].groupby(t["row"]).sum(),
        span_s=longest["output_tokens"].groupby("row").sum(),
    )


def _held_over_steps(t: pd.DataFrame) -> FloatArray:
    prompt, output = numbers(t["prompt_tokens"]), numbers(t["output_tokens"])
    return formulas.token_seconds(prompt, output, np.ones_like(prompt), output - 1)


# --- rows of the table -------------------------------------------------------------------------------------------


def layouts(t: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Rows of the table: the result of the requests' lives in each layout."""
    by_row = t.groupby("row")
    rows = by_row[[*REPEAT, "block_size_effective", "engine_slots_held_mean"]].first()
    rows["live_s"] = by_row["live_s"].sum()
    rows["span_s"] = by_row["last_token_s"].max() - by_row["scheduled_s"].min()
    block_size = t["block_size_effective"]
    yield _means("paged", rows, paged(t, numbers(block_size)), rows["block_size_effective"], source=MEASURED)
    rows = rows.drop(columns="engine_slots_held_mean")
    for size in WHATIF_BLOCK_SIZES:
        whatif = paged(t, np.full(len(t), float(size)))
        yield _means("block_size_whatif", rows, whatif, pd.Series(size, index=rows.index))
    yield _means("contiguous_max_model_len", rows, contiguous(t, numbers(t["max_model_len_effective"])))
    own_length = numbers(t["prompt_tokens"] + t["output_tokens"])
    yield _means("contiguous_request_length", rows, contiguous(t, own_length))
    yield _means("padded_batch", rows.drop(columns=["live_s", "span_s"]), padded_batches(t), computed_from="lengths")


def _means(
    layout: str,
    rows: pd.DataFrame,
    held: pd.DataFrame,
    block_size: pd.Series | None = None,
    computed_from: str = "timeline",
    source: str = PREDICTED,
) -> pd.DataFrame:
    t = rows.join(held)
    table = t.assign(
        layout=layout,
        sequences_live_mean=t["live_s"] / t["span_s"],
        tokens_held_mean=t["token_s"] / t["span_s"],
        slots_held_mean=t["slot_s"] / t["span_s"],
        waste_pct=100 * formulas.internal_fragmentation(numbers(t["token_s"]), numbers(t["slot_s"]), 1),
        wasted_slots_per_sequence=(t["slot_s"] - t["token_s"]) / t["live_s"],
        computed_from=computed_from,
        source=source,
    )
    if block_size is not None:
        table["block_size"] = block_size.astype(float)
        table["expected_wasted_slots_per_sequence"] = block_size.map(formulas.expected_slots_wasted_per_sequence)
    return table.dropna(subset="waste_pct")


def caches_as_measured(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows of caches whose size the engine reported at every step: HuggingFace's, padded like their batch."""
    told = cells[cells["kv_slots_reserved_mean"].notna()]
    tokens, slots = told["kv_tokens_live_mean"], told["kv_slots_reserved_mean"]
    return told[REPEAT].assign(
        layout="hf_" + told["knob_cache_implementation"].fillna("dynamic") + "_cache" if len(told) else "",
        tokens_held_mean=tokens,
        slots_held_mean=slots,
        waste_pct=100 * formulas.internal_fragmentation(numbers(tokens), numbers(slots), 1),
        computed_from="steps",
        source=MEASURED,
    )


@table_command("waste", PARSED)
def main(args: Namespace, study: Study, cells: pd.DataFrame) -> list[Output]:
    """Write the table of the KV memory that each repeat wasted."""
    own = cells[cells["study"].eq(study.name) & cells["source"].eq(MEASURED)]
    return [(args.out, "waste", waste_table(own, args.parsed, shared_texts(study)))]

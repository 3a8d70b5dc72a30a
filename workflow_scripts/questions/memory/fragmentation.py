"""Compute how much reserved KV memory holds no token, in the engine's layout and in others.

One row per repeat and layout. docs/fragmentation.md says how the numbers are made.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.engines.vllm.kv_groups import kept_tokens, layers_with_memory
from workflow_scripts.statistics.errors import FloatArray
from workflow_scripts.tables.measurements import MEASURED
from workflow_scripts.tables.parsed_facts import REPEAT, known_facts, of_repeats, read_parsed
from workflow_scripts.tables.request_lives import TIMES, Texts, by_repeat, paged, request_lives, shared_texts
from workflow_scripts.tables.summary import as_applied, dtypes, numbers, usable_blocks
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, declared, table_schema

_POOL, _PREDICTED = "paged", "predicted"
WHATIF_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)

SCHEMA = table_schema(
    "fragmentation",
    "Share of the reserved KV memory that held no token. One row per repeat and layout, and per "
    "what-if block size ([how](fragmentation.md)). Models with windows or states in some layers have no rows.",
    TEXT("cell_id", "as in `cells`"),
    INTEGER("start repeat", "as in `repeats`"),
    TEXT("layout", "`paged`, `block_size_whatif`, `contiguous_max_model_len`, ..."),
    INTEGER("block_size", "null for layouts without blocks"),
    NUMBER("tokens_held_mean slots_held_mean", "tokens held and slots reserved, mean over time"),
    declared("waste_pct"),
    NUMBER("wasted_slots_per_sequence", "slots without a token, per live sequence"),
    NUMBER("expected_wasted_slots_per_sequence", "`(block_size - 1) / 2`, if sequences are long against a block"),
    NUMBER("engine_slots_held_mean", "slots in use by the engine's own gauge; for `paged`"),
    TEXT("source", "`measured` for the engine's own layout, else `predicted`"),
)

OF_REQUEST = (*REPEAT, "request_id", "prompt_tokens", "output_tokens", "cached_prompt_tokens", *TIMES)

OF_REPEAT = (
    *("workload", "engine", "model", "dtype", "kv_cache_dtype", "block_size_effective", "max_model_len_effective"),
    "engine_slots_held_mean",
)


def waste_table(cells: pd.DataFrame, parsed: Path, texts: Texts) -> pd.DataFrame:
    """The table for the cells that ended ok; `parsed` holds a folder for each GPU."""
    ok = cells[(cells["outcome"] == "ok") & cells["repeat"].notna()]
    parts = [caches_as_measured(ok)]
    for gpu, rows in ok.groupby("gpu"):
        if (parsed / str(gpu) / "requests.parquet").exists():
            requests = read_parsed(parsed, str(gpu), "requests", OF_REQUEST)
            steps = read_parsed(parsed, str(gpu), "steps", [*REPEAT, "time_s", "generation_tokens"])
            parts += layouts(timeline(rows, requests, texts, steps))
    table = pd.concat([part for part in parts if len(part)] or parts)
    table = table.reindex(columns=list(SCHEMA.columns)).sort_values([*REPEAT, "layout", "block_size"], kind="stable")
    return table.sort_values("cell_id", kind="stable", key=pd.Index(cells["cell_id"].unique()).get_indexer)


def timeline(
    cells: pd.DataFrame, requests: pd.DataFrame, texts: Texts, steps: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The lives of the requests (`request_lives`), with the columns of `cells` that layouts need."""
    # The gauge is of the blocks that requests may take.
    blocks = usable_blocks(cells)
    tokens = cells["kv_cache_tokens"] * (blocks / cells["num_gpu_blocks"].astype(float)).fillna(1)
    of_repeat = cells.assign(
        engine_slots_held_mean=cells["kv_cache_usage_mean"] * tokens,
        dtype=dtypes(cells),
        kv_cache_dtype=as_applied(cells, "kv_cache_dtype"),
    ).reset_index(drop=True)
    requests = of_repeats(requests, of_repeat).join(of_repeat[list(OF_REPEAT)], on="number")
    return request_lives(requests, texts, None if steps is None else of_repeats(steps, of_repeat))


# --- layouts: tokens held and slots reserved, integrated over time, by repeat -----------------------------------------


def contiguous(t: pd.DataFrame, slots: FloatArray) -> pd.DataFrame:
    """A fixed number of slots for each request, reserved for its whole life; nothing is shared."""
    return by_repeat(t, numbers(t["token_s"]), slots * numbers(t["live_s"]))


# --- rows of the table -----------------------------------------------------------------------------------------------


def layouts(t: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Rows of the table for the requests of `timeline`, in each layout. A model that does not keep all tokens in all
    layers has none."""
    for (model, dtype), part in t.groupby(["model", "dtype"], sort=False):
        facts = known_facts(str(model), str(dtype))
        if facts is None or all(kept_tokens(mixer) is None for mixer, _ in layers_with_memory(facts.stack)):
            yield from _of_tokens(part)


def _of_tokens(t: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Rows of a model that keeps all tokens in all layers."""
    repeats = t.groupby("number")
    rows = repeats[[*REPEAT, "block_size_effective", "engine_slots_held_mean"]].first()
    # The lives of the requests together, and the time from the first to the last.
    rows["live_s"] = repeats["live_s"].sum()
    rows["span_s"] = repeats["last_token_s"].max() - repeats["scheduled_s"].min()
    yield _means(_POOL, rows, paged(t, numbers(t["block_size_effective"])), rows["block_size_effective"])
    for size in WHATIF_BLOCK_SIZES:
        whatif = paged(t, np.full(len(t), float(size)))
        yield _means("block_size_whatif", rows, whatif, pd.Series(size, index=rows.index))
    yield _means("contiguous_max_model_len", rows, contiguous(t, numbers(t["max_model_len_effective"])))
    own_length = numbers(t["prompt_tokens"] + t["output_tokens"])
    yield _means("contiguous_request_length", rows, contiguous(t, own_length))


def _means(layout: str, rows: pd.DataFrame, held: pd.DataFrame, block_size: pd.Series | None = None) -> pd.DataFrame:
    t = rows.join(held)
    # The engine's own gauge is that of the pool.
    table = t.assign(
        layout=layout,
        engine_slots_held_mean=t["engine_slots_held_mean"] if layout == _POOL else np.nan,
        tokens_held_mean=t["token_s"] / t["span_s"],
        slots_held_mean=t["slot_s"] / t["span_s"],
        waste_pct=100 * (1 - numbers(t["token_s"]) / numbers(t["slot_s"])),
        wasted_slots_per_sequence=(t["slot_s"] - t["token_s"]) / t["live_s"],
        source=MEASURED if layout == _POOL else _PREDICTED,
    )
    if block_size is not None:
        table["block_size"] = block_size.astype(float)
        table["expected_wasted_slots_per_sequence"] = (table["block_size"] - 1) / 2
    return table.dropna(subset="waste_pct")


def caches_as_measured(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows of caches whose size the engine reported at every step: HuggingFace's, padded like their batch."""
    reported = cells[cells["kv_slots_reserved_mean"].notna()]
    tokens, slots = reported["kv_tokens_live_mean"], reported["kv_slots_reserved_mean"]
    return reported[REPEAT].assign(
        layout="hf_" + as_applied(reported, "cache_implementation").astype(str) + "_cache",
        tokens_held_mean=tokens,
        slots_held_mean=slots,
        waste_pct=100 * (1 - numbers(tokens) / numbers(slots)),
        source=MEASURED,
    )


@makes(SCHEMA, beside=True)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return waste_table(inputs.own, inputs.parsed, shared_texts(inputs.study))

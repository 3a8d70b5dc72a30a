"""Cells for which the study sets the memory of the KV cache: measured and predicted values by size and layout."""

from collections.abc import Mapping, Sequence

import pandas as pd

from workflow_scripts.present.report_tables import MissingError, Tables, of_all_layers
from workflow_scripts.present.series import NAMES, PLACES
from workflow_scripts.present.subject import CELL

POOL = "num_gpu_blocks_override"
USERS = "running_while_others_wait"
# Column of the cells table -> its name in figure and table.
QUANTITIES: Mapping[str, str] = {
    "running_peak": "Requests at once, peak",
    "output_tokens_per_s": "Output tokens per s",
    "ttft_s_p50": "TTFT, median (s)",
    "preemptions": "Preemptions",
    "recomputed_tokens": "Tokens computed again",
    "prefix_cache_hit_rate": "Share of prompt tokens found in the prefix cache",
}
EVICTED = "evicted_blocks"
# Of these the table of predictions has columns.
_SCHEDULED = ("running_peak", EVICTED)
# Rows are compared if these are equal: they have the same requests and the same memory for them.
MEMORY = [*PLACES, "pool_tokens"]


def under_pressure(tables: Tables) -> pd.DataFrame:
    """One row per measured cell for which the study sets the number of blocks: medians over its repeats, and the
    predicted values as `*_predicted`.

    `pool_tokens` is the number of tokens in all blocks that requests can get; `layout` is the block size in words.
    """
    cells = tables.measured
    rows = cells[cells[f"knob_{POOL}"].notna()] if f"knob_{POOL}" in cells else cells.head(0)
    if rows.empty:
        raise MissingError("the study sets the number of KV blocks of no measured cell")
    sizes = ["num_gpu_blocks", "block_size_effective", "max_model_len_effective"]
    rows = _medians(rows, sizes)
    size, longest = rows["block_size_effective"], rows["max_model_len_effective"]
    blocks = "blocks of " + size.map("{:g}".format) + " tokens"
    contiguous = "contiguous: " + longest.map("{:g}".format) + " tokens per request"
    rows = rows.assign(
        pool_tokens=(rows["num_gpu_blocks"] - 1) * size,
        contiguous=size >= longest,
        layout=contiguous.where(size >= longest, blocks),
    ).sort_values([*NAMES, "block_size_effective", "pool_tokens"], kind="stable")
    return _with_predictions(rows, tables)


def _medians(rows: pd.DataFrame, further: Sequence[str], by: Sequence[str] = ()) -> pd.DataFrame:
    wanted = [*further, "num_requests", USERS, *QUANTITIES]
    return rows.groupby(["cell_id", *CELL, *by], sort=False)[wanted].median().reset_index()


def _with_predictions(rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    predictions = tables.get("predictions")
    if predictions is None:
        return rows
    predicted = predictions.pivot(index="cell_id", columns="quantity", values="predicted")
    predicted[[*_SCHEDULED]] = predictions.groupby("cell_id")[[f"{name}_predicted" for name in _SCHEDULED]].first()
    names = {*QUANTITIES, USERS, *_SCHEDULED}
    return rows.join(predicted.reindex(columns=list(names)).add_suffix("_predicted"), on="cell_id")


def same_memory(tables: Tables) -> pd.DataFrame:
    """One row per way to keep the KV cache of the same requests in the same memory, medians over repeats.

    `users` is the number of requests that run at once while others wait, or the peak if none waits (also for static
    batches); `times` is its ratio to that of contiguous reservations. `used_pct` is the share of the held slots that
    tokens fill. Memory that is enough for all contiguous reservations is left out.
    """
    rows = pd.concat([under_pressure(tables), _of_transformers(tables).assign(contiguous=False)])
    for of in ("", "_predicted"):
        if f"{USERS}{of}" in rows:
            rows[f"users{of}"] = rows[f"{USERS}{of}"].fillna(rows[f"running_peak{of}"])
    short = rows[rows["contiguous"] & rows[USERS].notna()]
    both = rows.merge(short.groupby(MEMORY, as_index=False)["users"].max(), on=MEMORY, suffixes=("", "_contiguous"))
    both = both.assign(times=both["users"] / both["users_contiguous"], used_pct=float("nan"))
    waste = tables.get("waste")
    if waste is not None:
        own = of_all_layers(waste[waste["source"] == "measured"])
        both["used_pct"] = 100 - both["cell_id"].map(own.groupby("cell_id")["waste_pct"].median())
    return both.sort_values([*MEMORY, "users"], ascending=[True] * 4 + [False], kind="stable")


def _of_transformers(tables: Tables) -> pd.DataFrame:
    """Cells of transformers' engines with a cache of known size, in the columns of `under_pressure`."""
    cells = tables.measured
    names = [f"knob_{name}" for name in ("num_blocks", "page_size", "room_tokens", "cache_implementation")]
    cells = cells.assign(**{name: None for name in names if name not in cells})
    pages, size, room = (cells[name].astype(float) for name in names[:3])
    cache = cells["knob_cache_implementation"].fillna("dynamic").astype(str) + " cache"
    in_pages = "pages of " + size.map("{:g}".format) + " tokens"
    rows = cells.assign(
        pool_tokens=room.fillna(pages * size), layout="HuggingFace's " + cache.where(room.notna(), in_pages)
    )
    return _with_predictions(_medians(rows[rows["pool_tokens"].notna()], ["pool_tokens"], ["layout"]), tables)

"""Timelines of cells for the page: requests, steps of the scheduler and samples of the device, one block per cell.

A page cannot hold the timelines of a large study. It holds up to `MOST_CELLS` of them, of up to `MOST_BYTES` together:
first that of the fastest cell of each device, engine, model and workload, then of the second fastest, and so on. For a
long repeat it holds evenly chosen rows, and says how many there were. If a cell was started several times, its timeline
is that of the first start.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.present.page_data import columns_of, packed
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.series import NAMES

MOST_BYTES = 700_000
MOST_CELLS = 128
# Cells in the first batch that is read, and the growth of the batches: each reading searches a whole file.
BATCH, GROWTH = 32, 4
# Rows per repeat.
MOST_ROWS: Mapping[str, int] = {"requests": 500, "steps": 1500, "trace": 400}
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "requests": (
        *("repeat", "prompt_tokens", "output_tokens", "queued_s", "scheduled_s", "first_token_s", "last_token_s"),
        *("preemptions", "cached_prompt_tokens", "error"),
    ),
    "steps": (
        *("repeat", "time_s", "running", "waiting", "kv_cache_usage", "prompt_tokens", "generation_tokens"),
        *("preempted", "kv_tokens_live", "kv_slots_reserved"),
    ),
    "trace": (
        *("repeat", "time_s", "memory_used_bytes", "process_memory_bytes"),
        *("utilization_pct", "power_w", "sm_clock_mhz"),
    ),
}


def timelines(tables: Tables, most_bytes: int = MOST_BYTES) -> dict[str, str]:
    """Packed timelines by cell, in the order of interest, up to `most_bytes` together."""
    chosen: dict[str, str] = {}
    size = 0
    for cell_id, timeline in _timelines(tables):
        text = packed(timeline)
        size += len(text)
        if size > most_bytes:
            break
        chosen[cell_id] = text
    return chosen


def _timelines(tables: Tables) -> Iterator[tuple[str, dict[str, Any]]]:
    order, size = _cells_by_interest(tables)[:MOST_CELLS], BATCH
    while order:
        ids, order = order[:size], order[size:]
        size *= GROWTH
        facts = {name: _facts(tables, name, ids) for name in COLUMNS}
        counts = {name: rows["cell_id"].value_counts() for name, rows in facts.items() if not rows.empty}
        parts = {name: dict(iter(_chosen(name, facts[name]).groupby("cell_id", sort=False))) for name in counts}
        for cell_id in ids:
            if any(cell_id in of_cells for of_cells in parts.values()):
                timeline = {
                    name: {
                        "columns": columns_of(of_cells.get(cell_id, facts[name].head(0)), COLUMNS[name], digits=9),
                        "rows": int(counts[name].get(cell_id, 0)),
                    }
                    for name, of_cells in parts.items()
                }
                yield cell_id, timeline


def _cells_by_interest(tables: Tables) -> list[str]:
    cells = tables.cells
    ran = cells[cells["repeat"].notna()]
    if ran.empty:
        return []
    rates = ran.groupby("cell_id", sort=False)["output_tokens_per_s"].median()
    first = ran.drop_duplicates("cell_id").set_index("cell_id")
    rank = rates.groupby([first[name] for name in NAMES], sort=False).rank(ascending=False, method="first")
    return list(rank.sort_values(kind="stable").index)


def _facts(tables: Tables, name: str, ids: list[str]) -> pd.DataFrame:
    """Rows of the first start of each cell that gave results."""
    try:
        return tables.facts_of_first_start(name, ids)
    except MissingError:
        return pd.DataFrame()


def _chosen(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells, at most `MOST_ROWS` per repeat."""
    most = MOST_ROWS[name]
    of_repeat = rows.groupby(["cell_id", "repeat"])["repeat"]
    place, count = of_repeat.cumcount(), of_repeat.transform("size")
    # Row r is kept if it is the first in one of `most` equal parts.
    part = (place * most // count).where(count > most, place)
    kept = rows[~rows[["cell_id", "repeat"]].assign(part=part).duplicated()]
    # Times keep a tenth of a millisecond, in a repeat of any length.
    times = {column: kept[column].round(4) for column in COLUMNS[name] if column.endswith("_s") and column in kept}
    return kept.assign(**times)

"""Timelines of cells for the page: requests, steps of the scheduler and samples of the device, one block per cell.

A page cannot hold the timelines of a large study. So it holds those of some cells, up to `MOST_BYTES`: of each device,
engine, model and workload first the fastest cell, then the second fastest, and so on. Of a long repeat it holds evenly
chosen rows, and says how many there were. If a cell was started several times, its timeline is of the first start.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.present.page_data import columns_of, packed
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.series import NAMES

MOST_BYTES = 700_000
# Cells that are read at once, and rows per repeat.
BATCH = 8
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
    "trace": ("repeat", "time_s", "memory_used_bytes", "process_memory_bytes", "utilization_pct", "power_w"),
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
    order = _cells_by_interest(tables)
    for start in range(0, len(order), BATCH):
        ids = order[start : start + BATCH]
        facts = {name: _facts(tables, name, ids) for name in COLUMNS}
        for cell_id in ids:
            of_cell = {name: rows[rows["cell_id"] == cell_id] for name, rows in facts.items() if not rows.empty}
            if any(len(rows) for rows in of_cell.values()):
                yield cell_id, {name: _block(name, rows) for name, rows in of_cell.items()}


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


def _block(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """The rows of a cell, at most `MOST_ROWS` per repeat, and of how many they are chosen."""
    most = MOST_ROWS[name]
    place, count = rows.groupby("repeat").cumcount(), rows.groupby("repeat")["repeat"].transform("size")
    # Row r is kept if it is the first in one of `most` equal parts.
    part = (place * most // count).where(count > most, place)
    kept = rows[~pd.DataFrame({"repeat": rows["repeat"], "part": part}).duplicated()]
    # Times keep a tenth of a millisecond, however long the repeat.
    times = {column: kept[column].round(4) for column in COLUMNS[name] if column.endswith("_s") and column in kept}
    return {"columns": columns_of(kept.assign(**times), COLUMNS[name], digits=9), "rows": len(rows)}

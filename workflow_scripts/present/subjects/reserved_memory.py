"""Bytes that engines reserved for keys and values, beside those that they used."""

import pandas as pd

from workflow_scripts.present.report_tables import MissingError
from workflow_scripts.present.subject import CELL, TablePart

_VALUES = {
    "reserved_bytes": "kv_bytes_reserved_peak",
    "reserved_mean_bytes": "kv_bytes_reserved_mean",
    "used_bytes": "kv_bytes_used_mean",
    "torch_bytes": "torch_memory_bytes_max",
    "process_bytes": "process_memory_growth_bytes_max",
}
_PLACES = list(CELL)
_PANEL = ["gpu", "model", "workload"]


def medians(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians over the repeats of each cell."""
    rows = _known(cells).groupby(_PLACES, sort=False)[list(_VALUES)].median().reset_index()
    return rows.assign(used_pct=100 * rows["used_bytes"] / rows["reserved_mean_bytes"])


def _known(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows of the cells table with known reservations, with short names for the columns of bytes."""
    known = cells[cells["repeat"].notna() & cells["kv_bytes_reserved_peak"].notna()]
    if known.empty:
        raise MissingError("no cell recorded how many bytes its KV cache reserved")
    return known.rename(columns={column: name for name, column in _VALUES.items()})


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
    medians,
)

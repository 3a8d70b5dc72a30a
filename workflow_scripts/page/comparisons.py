"""Comparisons of cells as the page shows them: a row per pair, with one ratio, one interval and one verdict."""

import numpy as np
import pandas as pd

from workflow_scripts.statistics.comparisons import CHANGES, FLAT, LIKELY
from workflow_scripts.tables.results import RATE, STEADY, MissingError, Tables, require

_ORDER = {CHANGES: 0, LIKELY: 1, FLAT: 2}


def comparisons(tables: Tables, kind: str, name: str = "") -> pd.DataFrame:
    """Comparisons of a kind by the rate that decides: those shown to differ first, then by device, whose number in
    the study is `place`, and size; `x` is the number of sequences allowed at once. Of a knob, every value is compared
    with the first.

    Raises:
        MissingError: there are none.
    """
    rows = tables.need("comparisons")
    rows = rows[rows["kind"].eq(kind) & rows["ratio"].gt(0) & rows["from_first"].ne(False)]
    rows = rows[rows["verdict"].notna() & rows["metric"].isin([RATE, STEADY])]
    if name:
        rows = rows[rows["name"] == name]
    require(rows, f"no two measured cells differ in {name or kind} alone")
    place = rows["gpu"].map({gpu: place for place, gpu in enumerate(tables.devices)})
    sequences = tables.cells.set_index("cell_id")["max_concurrency_allowed"]
    rows = rows.assign(
        rank=rows["verdict"].map(_ORDER).fillna(len(_ORDER)),
        place=place,
        size=np.abs(np.log(rows["ratio"].astype(float))),
        x=rows["b"].map(sequences),
    )
    rows = rows.sort_values(["rank", "place", "size"], ascending=[True, True, False], kind="stable")
    return rows.reset_index(drop=True)


def every_knob_compared(tables: Tables) -> list[str]:
    """The settings with a comparison, in the order of their largest effects."""
    try:
        return list(dict.fromkeys(comparisons(tables, "knob")["name"]))
    except MissingError:
        return []

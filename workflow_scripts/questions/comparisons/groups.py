"""What all comparisons of one setting show together: its values furthest apart, and the fastest ones."""

import numpy as np
import pandas as pd

from workflow_scripts.statistics.comparisons import CHANGES, FLAT, NOT_DECIDED
from workflow_scripts.tables.summary import RATE, STEADY


def overall(comparisons: pd.DataFrame, name: str) -> pd.DataFrame:
    """One row per group of cells that differ in the setting `name` alone, from the table of comparisons by their rate:
    the pair that is furthest apart, the faster in `b`.

    The `verdict` is `flat` if every pair is, and `changes` if any is; then the pair is the one of these that is
    furthest apart. `fastest` are the values that no other is shown to exceed, and `decided` whether they are one value,
    or several of which all pairs are `flat`.
    """
    rows = comparisons[comparisons["name"].eq(name) & comparisons["metric"].isin([RATE, STEADY])]
    rows = rows[rows["verdict"].notna() & rows["group"].notna()].reset_index(drop=True)
    rows = rows.assign(beyond=rows["verdict"] == CHANGES, size=np.abs(np.log(rows["ratio"].astype(float))))
    slower = set(rows["a"].where(rows["ratio"] > 1, rows["b"])[rows["beyond"]])
    sides = [rows[["group", side, f"value_{side}"]].set_axis(["group", "cell", "value"], axis=1) for side in "ab"]
    cells = pd.concat(sides).sort_index(kind="stable").drop_duplicates(["group", "cell"])
    fastest = cells[~cells["cell"].isin(slower)].groupby("group")["value"].agg(", ".join)
    is_open = rows["verdict"].ne(FLAT) & ~rows["a"].isin(slower) & ~rows["b"].isin(slower)
    flat, opened = rows["verdict"].eq(FLAT).groupby(rows["group"]).all(), is_open.groupby(rows["group"]).any()
    ends = rows.sort_values(["group", "beyond", "size"], kind="stable").groupby("group").tail(1)
    ends = pd.concat([ends[ends["ratio"] >= 1], turned(ends[ends["ratio"] < 1])]).sort_values("group")
    groups = ends["group"]
    return ends.assign(
        verdict=np.select(
            [of.to_numpy(bool) for of in (groups.map(flat), ends["beyond"])], [FLAT, CHANGES], NOT_DECIDED
        ),
        fastest=groups.map(fastest).fillna(""),
        decided=~groups.map(opened).astype(bool),
    )


def turned(rows: pd.DataFrame) -> pd.DataFrame:
    """The comparisons with their sides turned round: every ratio is of `a` over `b`."""
    swapped = {of: f"{of[:-1]}{'b' if of[-1] == 'a' else 'a'}" for of in map(str, rows) if of[-2:] in ("_a", "_b")}
    found = rows.rename(columns=swapped | {"a": "b", "b": "a"})
    inverse = {"ratio": "ratio", "low": "high", "high": "low", "again_low": "again_high", "again_high": "again_low"}
    return found.assign(**{name: 1 / rows[of] for name, of in inverse.items()})

"""The value of each measure of each cell over its repeats and starts, with its 95 % interval.

All that states a measure of a whole cell reads it from this table. Whether two cells differ is in other tables:
intervals of two cells may overlap although the cells differ.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from workflow_scripts.common.columns import COLUMNS, Column
from workflow_scripts.statistics.comparisons import LEAST_STARTS, SCOPE_MEANING, Interval, mean_interval, own_interval
from workflow_scripts.tables.measurements import FRAME_COLUMNS, MEASURED
from workflow_scripts.tables.parsed_facts import REPEAT
from workflow_scripts.tables.summary import (
    IDENTITY,
    RATE_OF_ARRIVALS,
    THROUGHPUT,
    Summaries,
    comparable_rows,
    is_served,
    summarise,
)
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, table_schema

OF_ONE_LOAD = f"range of the repeats, widened to Student's 95 % interval of its starts from {LEAST_STARTS} on"
THIS_LOAD = "repeats of this load"
# What requests and settings alone may decide, and no clock: if all repeats have one value, it is exact.
EXACT = ("waste_pct", "kv_bytes_used_mean", "running_while_others_wait")

SCHEMA = table_schema(
    "intervals",
    "One row per measure of each cell that ended `ok` and fits the study's definition, with the value that pages and "
    "figures show.",
    TEXT("cell_id", "as in `cells`"),
    TEXT("measure", "a column of `cells`"),
    NUMBER("value", "geometric mean over the starts, or as below another value of the repeats"),
    NUMBER(
        "low high",
        f"95 % interval of a mean, of a server's median latency the {OF_ONE_LOAD}; null for a throughput that is the "
        f"rate of arrivals, for tails, and for {', '.join(EXACT)} that are the same in all of several repeats",
    ),
    NUMBER("starts_apart_pct", "of a mean: how far the highest start (of several cards: card) is above the lowest"),
    INTEGER("repeats", "valid repeats of all starts"),
    TEXT("scope", f"{SCOPE_MEANING}, or `{THIS_LOAD}`"),
    notes=" ".join(
        f"{words}: {', '.join(f'`{one}`' for one in FRAME_COLUMNS if one in COLUMNS and COLUMNS[one].summary == how)}."
        for how, words in {
            "median": "Median of the repeats",
            "first": "First",
            "max": "Highest",
            "min": "Lowest",
        }.items()
    ),
)


def cell_intervals(summed: Summaries) -> pd.DataFrame:
    """The intervals table."""
    cells = summed.cells
    known = [measure for measure in COLUMNS.values() if measure.name in cells]
    means = [measure for measure in known if measure.summary in ("interval", "mean")]
    parts = [_of_mean(summed, measure) for measure in means if cells[measure.name].notna().any()]
    others = {measure.name: measure.summary for measure in known if measure not in means}
    groups = comparable_rows(cells).groupby("cell_id", sort=False)[list(others)]
    values, repeats = groups.agg(others), groups.count()
    parts += [
        pd.DataFrame({"value": values[name], "repeats": repeats[name], "measure": name}).dropna().reset_index()
        for name in others
    ]
    return pd.concat(parts).reindex(columns=list(SCHEMA.columns))


def with_waste(intervals: pd.DataFrame, cells: pd.DataFrame, fragmentation: pd.DataFrame) -> pd.DataFrame:
    """The intervals table with the waste in the engines' own layouts."""
    measured = fragmentation[fragmentation["source"].eq(MEASURED)].drop_duplicates(REPEAT)
    if measured.empty:
        return intervals
    summed = Summaries(cells.merge(measured[[*REPEAT, "waste_pct"]], on=REPEAT, how="left"))
    return pd.concat([intervals, _of_mean(summed, COLUMNS["waste_pct"])]).reindex(columns=list(SCHEMA.columns))


def _of_mean(summed: Summaries, column: Column) -> pd.DataFrame:
    measure, cells = column.name, summed.cells
    summary, samples = summed(measure)
    (value, low, high), scope = mean_interval(samples)
    highest, lowest = (ends.reduce(samples.log, axis=-1, initial=np.nan) for ends in (np.fmax, np.fmin))
    apart = 100 * np.expm1(highest - lowest)
    intervals = pd.DataFrame({"value": value, "starts_apart_pct": apart, "low": low, "high": high, "scope": scope})
    if column.summary == "mean":
        intervals = intervals[["value", "starts_apart_pct"]]
    rows = summary[["cell_id", "engine", "sample", "repeats"]].join(intervals, on="sample")
    if measure in THROUGHPUT and RATE_OF_ARRIVALS in cells:
        at_a_rate, _ = summarise(comparable_rows(cells[cells[RATE_OF_ARRIVALS].notna()]), IDENTITY, measure)
        at_a_rate = at_a_rate[at_a_rate["repeats"] > 0]
        rows = pd.concat([rows, at_a_rate.assign(value=np.exp(at_a_rate["log_mean"]))])
    if measure.endswith("_s_p50") and "low" in rows and (served := is_served(rows)).any():
        # Near saturation latencies vary many times as much as elsewhere, so other cells do not tell how much.
        own = interval_of_load(comparable_rows(cells), IDENTITY, measure)
        ends = {"low": own.low, "high": own.high}
        rows = rows.assign(**{end: rows[end].mask(served, values[rows["sample"]]) for end, values in ends.items()})
        rows["scope"] = rows["scope"].mask(served, THIS_LOAD)
    if measure not in EXACT:
        return rows.assign(measure=measure)
    of_cells = comparable_rows(cells).groupby("cell_id", sort=False)[measure].agg(["min", "max", "count"])
    exact = of_cells[of_cells["min"].eq(of_cells["max"]) & of_cells["count"].gt(1)]
    known = rows["cell_id"].isin(exact.index)
    rows = rows.assign(**{end: rows[end].mask(known) for end in ("low", "high")})
    zero = exact[exact["max"].eq(0)].rename(columns={"max": "value", "count": "repeats"})  # without a logarithm
    return pd.concat([rows, zero.reset_index()[["cell_id", "value", "repeats"]]]).assign(measure=measure)


def interval_of_load(rows: pd.DataFrame, by: Sequence[str], metric: str) -> Interval:
    """The geometric mean of each cell over its starts, with the range of its repeats, widened to the interval of its
    starts alone if there is one. NaN if all repeats have one value."""
    value, low, high = own_interval(summarise(rows, by, metric)[1].log)
    least, most = rows.groupby(list(by), dropna=False, sort=False)[metric].agg(["min", "max"]).to_numpy(dtype=float).T
    least, most = np.where(least < most, [least, most], np.nan)
    return Interval(value, np.fmin(low, least), np.fmax(high, most))


@makes(SCHEMA)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return with_waste(cell_intervals(inputs.summed), inputs.cells, inputs.table("fragmentation"))

"""The value of each measure of each cell over its repeats and starts, with its 95 % interval.

    kvsweep table-intervals --study config/studies/demo.yaml \\
        --cells results/demo/tables/cells.parquet --out results/demo/tables/intervals.parquet

All that states a measure of a whole cell reads it from this table. Whether two cells differ is in other tables:
intervals of two cells may overlap although the cells differ.
"""

from argparse import Namespace
from collections.abc import Sequence

import numpy as np
import pandas as pd

from workflow_scripts.common.metrics import LATENCIES, METRICS, Metric
from workflow_scripts.statistics.comparisons import SCOPE_MEANING, mean_interval
from workflow_scripts.statistics.summary import (
    IDENTITY,
    RATE_OF_ARRIVALS,
    THROUGHPUT,
    cell_summary,
    comparable_rows,
    summarise,
)
from workflow_scripts.study.study import Study
from workflow_scripts.tables.table_command import table_command
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, table_schema

SCHEMA = table_schema(
    "intervals",
    "One row per measure of each cell that ended `ok` and fits the study's definition, with the value that pages and "
    "figures show.",
    TEXT("cell_id", "as in `cells`"),
    TEXT("measure", "a column of `cells`"),
    NUMBER("value", "geometric mean over the starts (rates, latencies, energy), else median of the repeats"),
    NUMBER("low high", "95 % interval of a mean; null for a throughput that is the rate of arrivals, and for tails"),
    INTEGER("repeats", "valid repeats of all starts"),
    TEXT("scope", SCOPE_MEANING),
)
# Measures of a cell that are not among the metrics of the page.
_FURTHER = (
    *("running_while_others_wait", "recomputed_tokens", "prefix_cache_hits", "num_gpu_blocks"),
    *("kv_bytes_used_mean", "max_cudagraph_capture_size"),
)


def cell_intervals(cells: pd.DataFrame, measures: Sequence[str] | None = None) -> pd.DataFrame:
    """The intervals table, from the cells table; by default of all measures."""
    means = {
        metric.column: metric
        for metric in METRICS
        if (metric.has_interval or metric in LATENCIES) and metric.column in cells
    }
    if measures:
        return pd.concat(_of_mean(cells, means[name]) for name in measures).reindex(columns=list(SCHEMA.columns))
    parts = [_of_mean(cells, metric) for metric in means.values()]
    others = [name for name in (*(metric.column for metric in METRICS), *_FURTHER) if name in cells]
    others = [name for name in others if name not in means and pd.api.types.is_numeric_dtype(cells[name])]
    groups = comparable_rows(cells).groupby("cell_id", sort=False)[others]
    medians, repeats = groups.median(), groups.count()
    parts += [
        pd.DataFrame({"value": medians[name], "repeats": repeats[name], "measure": name}).dropna().reset_index()
        for name in others
    ]
    return pd.concat(parts).reindex(columns=list(SCHEMA.columns))


def _of_mean(cells: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    measure = metric.column
    summary, samples = cell_summary(cells, measure)
    (value, low, high), scope = mean_interval(samples)
    intervals = pd.DataFrame({"value": value, "low": low, "high": high, "scope": scope})
    if not metric.has_interval:
        intervals = intervals[["value"]]
    rows = summary[["cell_id", "sample", "repeats"]].join(intervals, on="sample")
    if measure in THROUGHPUT and RATE_OF_ARRIVALS in cells:
        at_a_rate, _ = summarise(comparable_rows(cells[cells[RATE_OF_ARRIVALS].notna()]), IDENTITY, measure)
        at_a_rate = at_a_rate[at_a_rate["repeats"] > 0]
        rows = pd.concat([rows, at_a_rate.assign(value=np.exp(at_a_rate["log_mean"]))])
    return rows.assign(measure=measure)


@table_command("intervals")
def main(args: Namespace, study: Study, cells: pd.DataFrame) -> pd.DataFrame:
    return cell_intervals(cells)

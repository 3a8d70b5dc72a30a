"""The mean of each measure of each cell with its 95 % interval, cell by cell.

    kvsweep table-intervals --study config/studies/demo.yaml \\
        --cells results/demo/tables/cells.parquet --out results/demo/tables/intervals.parquet

Whether two cells differ is in other tables: intervals of two cells may overlap although the cells differ.
"""

from argparse import Namespace
from collections.abc import Sequence

import pandas as pd

from workflow_scripts.analyse.intervals.repeats import cell_summary
from workflow_scripts.analyse.intervals.statistics import SCOPE_MEANING, mean_interval
from workflow_scripts.analyse.table_command import table_command
from workflow_scripts.analyse.tables import INTEGER, NUMBER, TEXT, table_schema
from workflow_scripts.common.metrics import METRICS
from workflow_scripts.study.study import Study

SCHEMA = table_schema(
    "intervals",
    "One row per measure of each cell that ended `ok` and fits the study's definition. Throughput is "
    "left out if requests arrive at a rate.",
    TEXT("cell_id", "as in `cells`"),
    TEXT("measure", "a column of `cells`"),
    NUMBER("value", "geometric mean over the starts"),
    NUMBER("low high", "its 95 % interval"),
    INTEGER("repeats", "valid repeats of all starts"),
    TEXT("scope", SCOPE_MEANING),
)


def cell_intervals(cells: pd.DataFrame, measures: Sequence[str] | None = None) -> pd.DataFrame:
    """The intervals table, from the cells table; by default of all measures that have intervals."""
    parts = [pd.DataFrame(columns=list(SCHEMA.columns))]
    for measure in measures or [metric.column for metric in METRICS if metric.has_interval]:
        summary, samples = cell_summary(cells, measure)
        (value, low, high), scope = mean_interval(samples)
        intervals = pd.DataFrame({"value": value, "low": low, "high": high, "scope": scope})
        parts.append(summary[["cell_id", "sample", "repeats"]].join(intervals, on="sample").assign(measure=measure))
    return pd.concat([part for part in parts if len(part)] or parts)[list(SCHEMA.columns)]


@table_command("intervals")
def main(args: Namespace, study: Study, cells: pd.DataFrame) -> pd.DataFrame:
    return cell_intervals(cells)

"""The mean of each measure of each cell with its 95 % interval, cell by cell.

    kvsweep table-intervals --study config/studies/demo.yaml \\
        --cells results/demo/tables/cells.parquet --out results/demo/tables/intervals.parquet

Whether two cells differ is in other tables: intervals of two cells may overlap although the cells differ.
"""

from argparse import Namespace
from collections.abc import Sequence

import pandas as pd

from workflow_scripts.analyse.repeats import cell_summary
from workflow_scripts.analyse.statistics import SCOPE_MEANING, mean_interval
from workflow_scripts.analyse.table_command import Output, table_command
from workflow_scripts.analyse.tables import INTEGER, NUMBER, TEXT, table_schema
from workflow_scripts.study.study_file import Study

MEASURES = (
    *("output_tokens_per_s", "steady_output_tokens_per_s", "total_tokens_per_s", "requests_per_s"),
    *("ttft_s_p50", "tpot_s_p50", "e2e_s_p50", "energy_j_per_output_token"),
)

SCHEMA = table_schema(
    "intervals",
    "One row per cell and measure, of cells that ended `ok` and were measured as the study asks. A cell whose requests "
    "arrive at a rate has no row for throughput.",
    TEXT("cell_id", "as in `cells`"),
    TEXT("measure", "a column of `cells`"),
    NUMBER("value", "geometric mean over the starts"),
    NUMBER("low high", "its 95 % interval"),
    INTEGER("repeats", "repeats that count, of all starts"),
    TEXT("scope", SCOPE_MEANING),
)


def cell_intervals(cells: pd.DataFrame, measures: Sequence[str] = MEASURES) -> pd.DataFrame:
    """The intervals table, from the cells table."""
    parts = [pd.DataFrame(columns=list(SCHEMA.columns))]
    for measure in measures:
        summary, samples = cell_summary(cells, measure)
        (value, low, high), scope = mean_interval(samples)
        found = pd.DataFrame({"value": value, "low": low, "high": high, "scope": scope})
        parts.append(summary[["cell_id", "sample", "repeats"]].join(found, on="sample").assign(measure=measure))
    return pd.concat([part for part in parts if len(part)] or parts)[list(SCHEMA.columns)]


@table_command("intervals")
def main(args: Namespace, study: Study, cells: pd.DataFrame) -> list[Output]:
    """Write the intervals table of a study."""
    return [(args.out, "intervals", cell_intervals(cells))]

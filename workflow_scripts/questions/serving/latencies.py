"""Compare knobs by the latencies of servers under load.

If requests arrive at a rate, the throughput is that rate, so a knob only changes how long requests take. Compared cells
differ in exactly one knob, which may be the rate. docs/tables.md documents every column.
"""

import numpy as np
import pandas as pd

from workflow_scripts.questions.knobs import table as effects
from workflow_scripts.questions.knobs.pairs import looks_at
from workflow_scripts.questions.serving import table as servers
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import NUMBER, TEXT, table_schema

# The compared columns of the cells table.
LATENCIES = ("ttft_s_p50", "tpot_s_p50", "e2e_s_p50")

SCHEMA = table_schema(
    "latencies",
    "Like `knobs`, for the latencies of servers: one row per latency. Request rate and users count "
    "as knobs. With a ratio above 1, requests take longer with `value`.",
    {
        **{name: column for name, column in effects.SCHEMA.columns.items() if name not in effects.OF_RATES},
        **TEXT("metric", "a latency, the median of a repeat: " + ", ".join(f"`{name}`" for name in LATENCIES)),
        **NUMBER("rate baseline_rate", "latency of `value` and `baseline`, geometric mean over the starts"),
        **NUMBER("ratio ratio_low ratio_high", "latency of `value` over that of `baseline`"),
    },
    TEXT("saturated", "which cells had more load than the server sustains: `value`, `baseline` or `both`"),
)


def latency_effects(
    cells: pd.DataFrame, serving: pd.DataFrame, margin_pct: float, looks: Looks = ONE_LOOK
) -> pd.DataFrame:
    served = cells[servers.is_served(cells)]
    saturated = set(serving.loc[serving["saturated"].fillna(False).astype(bool), "cell_id"])
    parts = [effects.knob_effects(served, margin_pct, looks, name).assign(metric=name) for name in LATENCIES]
    table = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    value, baseline = (table[name].isin(saturated) for name in ("cell_id", "baseline_cell_id"))
    which = np.select([value & baseline, value, baseline], ["both", "value", "baseline"], "")
    table["saturated"] = pd.Series(which, index=table.index, dtype="string").replace("", pd.NA)
    return table.reindex(columns=list(SCHEMA.columns))


@makes(SCHEMA, needed=servers.has_servers)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    study, cells = inputs.study, inputs.cells
    serving = inputs.table(str(servers.SUMMARY_SCHEMA.name))
    return latency_effects(cells, serving, study.equivalence_margin_pct, looks_at(study.starts, cells))

"""Compare servers of one model under the same load: the rate of vLLM over that of each other server.

docs/tables.md documents every column.
"""

import numpy as np
import pandas as pd

from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.questions.serving.table import is_served
from workflow_scripts.statistics.comparisons import SCOPE_MEANING, compare, directions
from workflow_scripts.statistics.summary import ENVIRONMENT, PLACE, RATE, cell_ids, cell_summary
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, table_schema

# What cells must have in common: the amount of work, so that rates of tokens can be compared.
_WORK = ("num_requests", "prompt_tokens", "output_tokens")
_VLLM_SERVE = f"{VLLM.name}-serve"
SCHEMA = table_schema(
    "server_ratios",
    "Improvement ratio of servers: output tokens/s of `vllm-serve` over those of another server with as many users, "
    "equal work and the same lock. Where requests arrive at a rate, throughput follows from it, and there is no row.",
    TEXT("study source gpu model workload", "as in `cells`"),
    INTEGER("users", "the load"),
    TEXT("a b", "`cell_id` of vLLM's server and of the other"),
    TEXT("server", "the other: its entry in `config/endpoints.yaml`, or its engine"),
    NUMBER("rate_a rate_b", "output tokens/s, geometric means over the starts"),
    NUMBER("ratio ratio_low ratio_high", "of `a` over `b`, with its 95 % interval"),
    TEXT("scope", SCOPE_MEANING),
    TEXT("verdict", "`faster` or `slower` with an error of at most 5 % for all rows, else `not decided`"),
)


def server_ratios(cells: pd.DataFrame) -> pd.DataFrame:
    """The table, from the cells of servers."""
    observed = dict.fromkeys(_WORK, "first")
    given = cells.reindex(columns=list(dict.fromkeys([*cells, "knob_users", "knob_endpoint"])))
    summary, samples = cell_summary(given, RATE, observed)
    rows = summary[summary["knob_users"].notna()].assign(rate=lambda of: np.exp(of["log_mean"].astype(float)))
    rows = rows.assign(cell=cell_ids(rows), server=rows["knob_endpoint"].fillna(rows["engine"]))
    alike = [*PLACE, *ENVIRONMENT, "knob_users", *_WORK]
    sides = [*alike, "cell", "server", "rate", "sample"]
    is_vllm = rows["engine"] == _VLLM_SERVE
    pairs = rows.loc[is_vllm, sides].merge(rows.loc[~is_vllm, sides], on=alike, suffixes=("_a", "_b"))
    if pairs.empty:
        return pd.DataFrame(columns=list(SCHEMA.columns))
    found = compare(samples, *(pairs[f"sample_{side}"].to_numpy(dtype=int) for side in "ab"))
    table = pairs.assign(verdict=directions(found), **found.columns())
    names = {"cell_a": "a", "cell_b": "b", "server_b": "server", "knob_users": "users"}
    names |= {"low": "ratio_low", "high": "ratio_high"}
    return table.rename(columns=names).sort_values("users", kind="stable").reindex(columns=list(SCHEMA.columns))


@makes(SCHEMA, needed=lambda inputs: bool(is_served(inputs.cells).any()))
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return server_ratios(inputs.cells[is_served(inputs.cells)])

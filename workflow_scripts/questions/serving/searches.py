"""The highest load within the study's limits, as each start that searched it found it.

docs/traffic.md says how the load is searched, docs/tables.md documents every column.
"""

from pathlib import Path

import pandas as pd

from workflow_scripts.questions.serving.table import bounds_text
from workflow_scripts.study.study import Study
from workflow_scripts.tables.parsed_facts import START, read_parsed
from workflow_scripts.tables.summary import comparable_rows, numbers
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, NUMBER, TEXT, table_schema

FOUND = ["highest_load", "highest_load_low", "highest_load_high"]
# With fewer requests in a pass, neither 1 % of late ones nor a queue shows.
_LEAST_REQUESTS = 100

SCHEMA = table_schema(
    "searches",
    "The highest load within the study's limits ([how](traffic.md#the-highest-load)): one row per start of a cell that "
    "searches it.",
    TEXT("study source cell_id gpu engine model workload knobs", "as in `cells`"),
    INTEGER("start", "start of the engine, from 1"),
    TEXT("find", "`highest_rate`, in requests per second"),
    TEXT("slo", "the study's bounds"),
    NUMBER(FOUND, "the load and its 95 % interval; only one end if it lies beyond the loads of the search"),
    INTEGER("search_passes", "passes of the search"),
    INTEGER("search_requests", "requests that they sent"),
    FLAG(
        "too_short",
        f"passes had fewer than {_LEAST_REQUESTS} requests, so the rate may be higher than what the server sustains",
    ),
)


def search_table(study: Study, cells: pd.DataFrame, parsed: Path) -> pd.DataFrame:
    searches = comparable_rows(cells).dropna(subset="knob_find").rename(columns={"knob_find": "find"})
    columns = [*START, *FOUND, "search_passes", "search_requests"]
    found = [
        of_gpu.merge(read_parsed(parsed, str(gpu), "starts", columns), on=START)
        for gpu, of_gpu in searches.groupby("gpu")
    ]
    table = pd.concat(found) if found else searches.reindex(columns=[*searches.columns, *columns])
    requests = numbers(table["search_requests"]) / numbers(table["search_passes"])
    table["too_short"] = requests < _LEAST_REQUESTS
    table["slo"] = bounds_text(study.slo.bounds()) if study.slo else None
    return table[list(SCHEMA.columns)]


@makes(SCHEMA, needed=lambda inputs: any(getattr(cell.knobs, "find", None) for cell in inputs.grid), beside=True)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return search_table(inputs.study, inputs.own, inputs.parsed)

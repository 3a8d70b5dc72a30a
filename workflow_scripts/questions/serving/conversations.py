"""What users of conversations see: latency of whole conversations, and time to the first token and hits by turn.

docs/traffic.md says how conversations are served, docs/tables.md documents every column.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from workflow_scripts.study.study import Study
from workflow_scripts.tables.parsed_facts import REPEAT, read_parsed
from workflow_scripts.tables.summary import comparable_rows, records
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, declared, table_schema
from workflow_scripts.workloads.workload_kinds import MultiTurnWorkload

OF_CELL = ["study", "source", "cell_id", "gpu", "engine", "model", "workload", "knobs"]

SCHEMA = table_schema(
    "conversations",
    "Conversations with real answers ([how](traffic.md#conversations)): one row per cell and turn, and "
    "one of whole conversations, over the requests of all repeats. The end-to-end latency of a conversation is from "
    "its first request to its last answer.",
    TEXT(" ".join(OF_CELL), "as in `cells`"),
    INTEGER("turn", "from 1; null for whole conversations"),
    INTEGER("count", "requests, or whole conversations"),
    NUMBER("prompt_tokens_mean", "per request"),
    declared("ttft_s_p50 ttft_s_p90 e2e_s_p50 e2e_s_p90"),
    declared("prefix_cache_hit_rate", "share of their prompt tokens that the server says to have found"),
)


def conversation_table(study: Study, cells: pd.DataFrame, parsed: Path) -> pd.DataFrame:
    real = {
        name: spec
        for name, spec in study.workloads.items()
        if isinstance(spec, MultiTurnWorkload) and spec.answers == "real"
    }
    own = comparable_rows(cells)
    own = own[own["workload"].isin(real)]
    rows: list[dict[str, Any]] = []
    for gpu, of_gpu in own.groupby("gpu"):
        requests = read_parsed(parsed, str(gpu), "requests")
        for _, of_cell in of_gpu.groupby("cell_id", sort=False):
            cell = records(of_cell[OF_CELL])[0]
            served = requests.merge(of_cell[REPEAT], on=REPEAT)
            placed = _placed(served, real[cell["workload"]])
            rows += [{**cell, **row} for row in _of_cell(placed)]
    return pd.DataFrame(rows, columns=list(SCHEMA.columns))


def _placed(requests: pd.DataFrame, spec: MultiTurnWorkload) -> pd.DataFrame:
    """The requests with their conversation and turn, and with their latencies."""
    places = [spec.place(int(request_id)) for request_id in requests["request_id"]]
    return requests.assign(
        session=[session for session, _ in places],
        turn=[turn + 1 for _, turn in places],
        ttft_s=requests["first_token_s"] - requests["queued_s"],
        e2e_s=requests["last_token_s"] - requests["queued_s"],
    )


def _of_cell(requests: pd.DataFrame) -> Iterator[dict[str, Any]]:
    sessions = requests.groupby([*REPEAT, "session"])
    whole = pd.DataFrame(
        {
            "ttft_s": sessions["ttft_s"].first(),
            "e2e_s": sessions["last_token_s"].max() - sessions["queued_s"].min(),
        }
    )
    yield {"turn": None, **_summary(requests, whole)}
    for turn, part in requests.groupby("turn"):
        yield {"turn": turn, **_summary(part, part)}


def _summary(requests: pd.DataFrame, timed: pd.DataFrame) -> dict[str, Any]:
    quantiles = {
        f"{name}_p{percent}": timed[name].astype(float).quantile(percent / 100)
        for name in ("ttft_s", "e2e_s")
        for percent in (50, 90)
    }
    found = requests["cached_prompt_tokens"].sum(min_count=1) / requests["prompt_tokens"].sum()
    return {
        "count": len(timed),
        "prompt_tokens_mean": float(requests["prompt_tokens"].mean()),
        **quantiles,
        "prefix_cache_hit_rate": found,
    }


def _has_conversations(inputs: TableInputs) -> bool:
    return any(getattr(workload, "answers", None) == "real" for workload in inputs.study.workloads.values())


@makes(SCHEMA, needed=_has_conversations, beside=True)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    study, cells = inputs.study, inputs.cells
    own = cells[cells["study"].eq(study.name) & cells["source"].eq("measured")]
    return conversation_table(study, own[own["repeat"].notna()], inputs.parsed)

"""What users of conversations see: latency of whole conversations, and time to the first token and hits by turn.

docs/traffic.md says how conversations are served, docs/tables.md documents every column.
"""

from pathlib import Path

import pandas as pd

from workflow_scripts.study.study import Study
from workflow_scripts.tables.parsed_facts import REPEAT, read_parsed
from workflow_scripts.tables.summary import comparable_rows, stacked
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
    real = _with_real_answers(study)
    own = comparable_rows(cells)
    parts = [pd.DataFrame(columns=list(SCHEMA.columns))]
    for gpu, of_gpu in own[own["workload"].isin(real)].groupby("gpu"):
        requests = read_parsed(parsed, str(gpu), "requests").merge(of_gpu[[*OF_CELL, "start", "repeat"]], on=REPEAT)
        each = zip(requests["workload"], requests["request_id"], strict=True)
        places = [real[workload].place(int(request_id)) for workload, request_id in each]
        turns = requests.assign(
            session=[session for session, _ in places],
            turn=[turn + 1 for _, turn in places],
            ttft_s=requests["first_token_s"] - requests["queued_s"],
            e2e_s=requests["last_token_s"] - requests["queued_s"],
        )
        sessions = turns.groupby([*OF_CELL, "start", "repeat", "session"])
        lasted_s = sessions["last_token_s"].max() - sessions["queued_s"].min()
        whole = pd.DataFrame({"ttft_s": sessions["ttft_s"].first(), "e2e_s": lasted_s})
        both = pd.concat([_summary(turns, whole, OF_CELL), _summary(turns, turns, [*OF_CELL, "turn"])])
        in_order = pd.Index(of_gpu["cell_id"].unique()).get_indexer
        parts.append(both.sort_values("cell_id", key=in_order, kind="stable"))
    return stacked(parts)


def _with_real_answers(study: Study) -> dict[str, MultiTurnWorkload]:
    workloads = {name: spec for name, spec in study.workloads.items() if isinstance(spec, MultiTurnWorkload)}
    return {name: spec for name, spec in workloads.items() if spec.answers == "real"}


def _summary(requests: pd.DataFrame, timed: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """One row per combination of `by`, with what requests looked up, and the latencies of what is `timed`."""
    of_requests, of_timed = requests.groupby(by), timed.groupby(by)
    found = of_requests["cached_prompt_tokens"].sum(min_count=1) / of_requests["prompt_tokens"].sum()
    columns = {"count": of_timed.size(), "prompt_tokens_mean": of_requests["prompt_tokens"].mean()}
    for name in ("ttft_s", "e2e_s"):
        columns |= {f"{name}_p{percent}": of_timed[name].quantile(percent / 100) for percent in (50, 90)}
    return pd.DataFrame(columns | {"prefix_cache_hit_rate": found}).reset_index()


@makes(SCHEMA, needed=lambda inputs: bool(_with_real_answers(inputs.study)), beside=True)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return conversation_table(inputs.study, inputs.own, inputs.parsed)

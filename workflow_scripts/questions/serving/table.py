"""Summarise servers under load: latency, goodput, and what limited the load.

docs/serving.md says how the numbers are made, docs/tables.md documents every column of both tables.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.columns import LATENCIES, PER_REQUEST, column
from workflow_scripts.engines.engine import CLIENT_CPU_S
from workflow_scripts.statistics.comparisons import SCOPE_MEANING, mean_interval
from workflow_scripts.statistics.errors import FloatArray
from workflow_scripts.study.study import is_late
from workflow_scripts.tables.cell_intervals import OF_ONE_LOAD, interval_of_load
from workflow_scripts.tables.parsed_facts import REPEAT, START, read_parsed
from workflow_scripts.tables.summary import comparable_rows, is_served, numbers, records, summarise
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, NUMBER, TEXT, declared, table_schema
from workflow_scripts.workloads.arrivals import Load

# A queue counts as growing beyond chance if it grows by this share of the arrivals and by this many requests.
GROWTH_SHARE, GROWTH_REQUESTS = 0.1, 2.0
# The client is late if 1 % of the requests are sent with more delay than this, and than a tenth of the median TTFT.
LATE_S, LATE_SHARE = 0.01, 0.1
# A client in Python that uses this much of a core may be too busy to send requests in time.
BUSY_CORES = 0.9
# With fewer requests, no trend of their latencies is shown.
TREND_REQUESTS = 10

SCHEMA = table_schema(
    "serving",
    "Servers under load: one row per repeat of a cell of `vllm-serve` or `openai` that ended `ok` "
    "([how](serving.md)). Latencies count from the scheduled arrival.",
    TEXT("study source cell_id gpu engine", "as in `cells`"),
    TEXT("endpoint", "server in `config/endpoints.yaml`; null for `vllm-serve`"),
    TEXT("model workload knobs", "as in `cells`"),
    INTEGER("start", "start of the engine, from 1"),
    INTEGER("repeat", "timed pass, from 0"),
    TEXT("load", "`open loop`, `closed loop`, `replay` (the workload's arrivals) or `all at once`"),
    NUMBER("request_rate_per_s burstiness", "the requested load"),
    INTEGER("users", "the requested load"),
    declared("num_requests"),
    NUMBER("arrivals_per_s", "null in a closed loop"),
    declared("requests_per_s output_tokens_per_s total_tokens_per_s", "answered, over the whole repeat"),
    declared(" ".join(latency.name for latency in LATENCIES)),
    TEXT("slo", "the study's bounds"),
    declared("slo_attainment goodput_requests_per_s"),
    declared("running_peak", "running sequences, reported about once per second"),
    INTEGER("in_flight_peak", "requests that the client had in flight"),
    declared("waiting_peak preemptions kv_cache_usage_peak", "reported by the server"),
    declared("memory_used_bytes_max", "highest memory in use (CPU: of client and server)"),
    NUMBER("memory_utilization", "its share of the device's"),
    NUMBER("client_lag_s_p99", "from scheduled to sent"),
    NUMBER("client_cpu_cores", "CPU time of the client over wall time"),
    FLAG("client_shares_cores", "client and server shared CPU cores"),
    NUMBER("queue_growth_per_s", "growth of the requests in the system, in the second half of the arrivals"),
    FLAG("saturated", "more load than the server sustains; null if not decided"),
    TEXT("limited_by", "`client`, `users`, `server`, `load` or `unknown`"),
)

# Columns with a geometric mean over the starts and its interval.
_RATES = ("requests_per_s", "output_tokens_per_s")
MEDIANS = tuple(f"{column.name}_p50" for column in PER_REQUEST)
_TAILS = ("ttft_s_p99", "e2e_s_p99")
GOODPUT = "goodput_requests_per_s"
# With fewer requests in a repeat, its 99th percentile is hardly more than its longest latency.
TAIL_REQUESTS = 100
_OVER_REPEATS = {"slo": "first", "preemptions": "median"}
_OVER_REPEATS |= dict.fromkeys(("slo_attainment", GOODPUT), "mean")
_OVER_REPEATS |= dict.fromkeys(("running_peak", "in_flight_peak", "kv_cache_usage_peak", "memory_utilization"), "max")
_OF_CELL = (
    *("study", "source", "cell_id", "gpu", "engine", "endpoint", "model", "workload", "knobs"),
    *("load", "request_rate_per_s", "burstiness", "users"),
)


def _ends(*names: str) -> list[str]:
    return [f"{name}{end}" for name in names for end in ("", "_low", "_high")]


SUMMARY_SCHEMA = table_schema(
    "serving_summary",
    "Like `serving`, with one row per cell that comparisons may use.",
    {name: SCHEMA.columns[name] for name in _OF_CELL},
    INTEGER("repeats", "valid repeats of all starts"),
    NUMBER(
        _ends(*_RATES),
        "geometric mean over the starts with its 95 % interval",
    ),
    TEXT("scope", SCOPE_MEANING),
    NUMBER(
        _ends(*MEDIANS),
        f"median of a repeat, geometric mean over the starts, with the {OF_ONE_LOAD}",
    ),
    NUMBER(
        _TAILS,
        f"99th percentile of a repeat, geometric mean over the starts; null with fewer than {TAIL_REQUESTS} requests",
    ),
    TEXT("slo", "as in `serving`"),
    declared("slo_attainment", "mean over the repeats"),
    declared(GOODPUT, "mean over the repeats"),
    declared("running_peak", "highest of all repeats"),
    INTEGER("in_flight_peak", "highest of all repeats"),
    declared("preemptions", "median of the repeats"),
    declared("kv_cache_usage_peak", "highest of all repeats"),
    NUMBER("memory_utilization", "highest of all repeats"),
    FLAG("saturated", "whether any repeat is; null if none is, but one is too short to decide"),
    TEXT("limited_by", "of all repeats, comma-separated"),
)


def serving_tables(cells: pd.DataFrame, parsed: Path, slo: Mapping[str, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `serving` and `serving_summary` for a study's own cells; `slo` bounds latencies for the goodput."""
    rows = cells[is_served(cells) & cells["outcome"].eq("ok") & cells["repeat"].notna()]
    knobs = {f"knob_{name}": name for name in ("endpoint", *Load.model_fields)}
    rows = rows.reindex(columns=[*cells.columns, *(set(knobs) - set(cells.columns))]).rename(columns=knobs)
    parts = [_of_gpu(of_gpu, parsed, str(gpu), slo) for gpu, of_gpu in rows.groupby("gpu")]
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    # The last three distinguish starts.
    table = table.reindex(columns=[*SCHEMA.columns, "round", "session", "device_uuid"])
    summary = _summary(table, comparable_rows(cells)["cell_id"])
    return table[list(SCHEMA.columns)], summary


def _of_gpu(rows: pd.DataFrame, parsed: Path, gpu: str, slo: Mapping[str, float]) -> pd.DataFrame:
    rows = rows.set_index(REPEAT)
    passes = read_parsed(parsed, gpu, "requests").groupby(REPEAT)
    results = [
        summarise_pass(passes.get_group(at), row, slo) for at, row in zip(rows.index, records(rows), strict=True)
    ]
    measured = pd.DataFrame(results, index=rows.index)
    table = rows.drop(columns=measured.columns, errors="ignore").join(measured)
    of_repeat = read_parsed(parsed, gpu, "repeats", [*REPEAT, CLIENT_CPU_S]).set_index(REPEAT)
    of_start = read_parsed(parsed, gpu, "starts", [*START, "device_memory_total_bytes", "client_shares_cores"])
    table = table.join(of_repeat).join(of_start.set_index(START))
    table = table.assign(
        client_cpu_cores=table[CLIENT_CPU_S] / table["wall_s"].astype(float),
        memory_utilization=table["memory_used_bytes_max"] / table["device_memory_total_bytes"].astype(float),
        slo=bounds_text(slo) or None,
        goodput_requests_per_s=table["slo_attainment"] * table["requests_per_s"],
    )
    return _limits(table.reset_index())


def bounds_text(slo: Mapping[str, float]) -> str:
    return ", ".join(f"{column(name).label} <= {column(name).text(bound)}" for name, bound in slo.items())


def summarise_pass(requests: pd.DataFrame, asked: Mapping[str, Any], slo: Mapping[str, float]) -> dict[str, Any]:
    """Results from the requests of one repeat: latencies, goodput and load.

    `asked` has `request_rate_per_s` and `users`, null if the study does not set them.
    """
    r = requests.sort_values("queued_s", kind="stable")
    queued, sent, first, last, answer = (
        r[name].to_numpy(dtype=float)
        for name in ("queued_s", "sent_s", "first_token_s", "last_token_s", "first_answer_s")
    )
    outputs = r["output_tokens"].to_numpy(dtype=float)
    # An answer that came in one piece shows no time between tokens.
    in_pieces = (outputs > 1) & (last > first)
    latency = {
        "ttft_s": first - queued,
        "ttfa_s": answer - queued,
        "tpot_s": np.divide(last - first, outputs - 1, out=np.full(len(r), np.nan), where=in_pieces),
        "itl_s": np.concatenate([np.asarray(gaps, dtype=float) for gaps in r["itl_s"].dropna()] or [np.empty(0)]),
        "e2e_s": last - queued,
    }
    results: dict[str, Any] = {
        f"{name}_p{percent}": pd.Series(values).quantile(percent / 100)
        for name, values in latency.items()
        for percent in (50, 90, 99)
    }
    kind = load_kind(asked, queued, sent)
    span_s = queued[-1] - queued[0]
    half = queued[len(r) // 2 :]
    growth_per_s = np.nan if kind in (CLOSED, AT_ONCE) else queue_growth_per_s(queued, last)
    grown = growth_per_s * (half[-1] - half[0])
    times, change = np.concatenate([sent, last]), np.repeat([1, -1], len(r))
    return results | {
        "load": kind,
        "arrivals_per_s": (len(r) - 1) / span_s if span_s > 0 and kind != CLOSED else np.nan,
        "slo_attainment": np.mean(~is_late(slo, latency)) if slo else np.nan,
        # An end comes before a start at the same moment.
        "in_flight_peak": int(np.cumsum(change[np.lexsort((change, times))]).max()),
        "client_lag_s_p99": pd.Series(sent - queued).quantile(0.99),
        "queue_growth_per_s": growth_per_s,
        "queue_grows": bool(grown > GROWTH_SHARE * (len(half) - 1)) and bool(grown >= GROWTH_REQUESTS),
        "e2e_grows": e2e_grows(queued, last - queued, outputs),
    }


_OPEN, CLOSED, REPLAY, AT_ONCE = "open loop", "closed loop", "replay", "all at once"


def load_kind(asked: Mapping[str, Any], queued: np.ndarray[Any, Any], sent: np.ndarray[Any, Any]) -> str:
    """How requests arrived: at a rate, when users were free, as in the workload, or all at once.

    In a closed loop the client records the moment of sending as the arrival, so the two are the same number.
    """
    if not pd.isna(asked["request_rate_per_s"]):
        return _OPEN
    if not pd.isna(asked["users"]) and np.array_equal(sent, queued):
        return CLOSED
    return REPLAY if queued[-1] > queued[0] else AT_ONCE


def queue_growth_per_s(queued: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> float:
    """Growth of the number of requests in the system, in requests/s, from a line through the second half of them.

    In the first half it always grows, from none to what the load needs. `queued` is in order.

    A server that answers each request within 0.1 s, and one that needs 1 s per request while one arrives every 0.5 s:

    >>> arrivals = np.arange(0, 20, 0.5)
    >>> abs(round(queue_growth_per_s(arrivals, arrivals + 0.1), 3))
    0.0
    >>> round(queue_growth_per_s(arrivals, np.arange(1, 41, dtype=float)), 1)
    1.0
    """
    half = queued[len(queued) // 2 :]
    if len(half) < 3 or half[-1] <= half[0]:
        return float("nan")
    in_system = np.searchsorted(queued, half, side="right") - np.searchsorted(np.sort(last), half, side="right")
    return float(np.polyfit(half - half[0], in_system, 1)[0])


def e2e_grows(queued: np.ndarray[Any, Any], e2e_s: np.ndarray[Any, Any], outputs: np.ndarray[Any, Any]) -> bool:
    """Whether later requests take longer than earlier ones with the same number of output tokens.

    They do if a queue grows. They do not if the number in flight rises only because the first requests have not ended
    yet. A line through the latency over arrival and output tokens must rise by more than `GROWTH_SHARE`, in s/s, and
    the whole 95 % interval of its slope must lie above zero.

    >>> arrivals, lengths = np.arange(0, 10, 0.5), np.tile([10.0, 30.0], 10)
    >>> e2e_grows(arrivals, lengths + np.sin(arrivals), lengths), e2e_grows(arrivals, lengths + arrivals, lengths)
    (False, True)
    """
    if len(queued) < TREND_REQUESTS or queued[-1] <= queued[0]:
        return False
    import statsmodels.api as sm  # takes longer than a page

    # If all requests have the same number of output tokens, that column is the constant.
    line = sm.add_constant(np.column_stack([queued - queued[0], outputs]), prepend=False)
    fit = sm.OLS(e2e_s, line).fit()
    return bool(fit.params[0] > GROWTH_SHARE and fit.conf_int()[0][0] > 0)


def _limits(table: pd.DataFrame) -> pd.DataFrame:
    """Add whether the load was more than the server sustains, and what limited it."""
    # A burst at the end leaves a queue too, but the server clears it quickly.
    behind = table["requests_per_s"].astype(float) < (1 - GROWTH_SHARE) * table["arrivals_per_s"].astype(float)
    suspect, slower = behind & table["queue_grows"], table["e2e_grows"]
    decided = table["queue_growth_per_s"].notna() & (slower | ~suspect)
    saturated = suspect.where(decided).astype("boolean")
    late = table["client_lag_s_p99"].astype(float) > np.fmax(LATE_S, LATE_SHARE * table["ttft_s_p50"].astype(float))
    capped = late & (table["in_flight_peak"] >= table["users"].astype("Float64")).fillna(False).astype(bool)
    busy = table["client_cpu_cores"].astype(float) > BUSY_CORES
    waits_for_server = saturated.fillna(False).astype(bool) | table["load"].isin([CLOSED, AT_ONCE])
    limited_by = np.select(
        [capped, late | busy, waits_for_server, ~decided], ["users", "client", "server", "unknown"], "load"
    )
    return table.assign(saturated=saturated, limited_by=limited_by)


def _summary(table: pd.DataFrame, cell_ids: pd.Series) -> pd.DataFrame:
    table = table[table["cell_id"].isin(cell_ids)]
    by = list(_OF_CELL)
    groups = table.groupby(by, dropna=False, sort=False)
    summary = groups.size().rename("repeats").reset_index()
    rates = {metric: mean_interval(summarise(table, by, metric)[1]) for metric in _RATES}
    found: dict[str, Sequence[FloatArray]] = {metric: interval for metric, (interval, _) in rates.items()}
    found |= {metric: interval_of_load(table, by, metric) for metric in MEDIANS}
    long = groups["num_requests"].min().ge(TAIL_REQUESTS).to_numpy(dtype=bool)
    columns = {name: values for metric, ends in found.items() for name, values in zip(_ends(metric), ends, strict=True)}
    tails = {
        metric: np.where(long, np.exp(numbers(pd.DataFrame(summarise(table, by, metric)[1].log).T.mean())), np.nan)
        for metric in _TAILS
    }
    summary = summary.assign(**columns, **tails, scope=rates[_RATES[0]][1])
    for name, how in _OVER_REPEATS.items():
        summary[name] = groups[name].agg(how).array
    # If one repeat is undecided, "not saturated" in the others is not enough for the cell.
    saturated, some_are_open = groups["saturated"].max(), groups["saturated"].count() < groups.size()
    summary["saturated"] = saturated.mask(saturated.eq(False) & some_are_open).array
    summary["limited_by"] = groups["limited_by"].agg(lambda texts: ",".join(sorted(set(texts)))).array
    return summary


@makes(SCHEMA, SUMMARY_SCHEMA, beside=True)
def make_tables(inputs: TableInputs) -> tuple[pd.DataFrame, pd.DataFrame]:
    slo = inputs.study.slo
    return serving_tables(inputs.own, inputs.parsed, slo.bounds() if slo else {})

"""The results that benchmarks write as JSON, JSON Lines or YAML: one table of names and units per format.

Read are `vllm bench serve`, `throughput` and `latency` and lists of such results of `vllm bench sweep` (vLLM 0.10 to
0.32), `sglang.bench_serving` (0.5), GuideLLM (0.2 to 0.8), AIPerf (schemas 1.0 to 1.5), InferenceX (aggregated results,
and those with latencies in seconds), inference-perf (0.5) and the reports of llm-d-benchmark (0.1 and 0.2). The median
and P99 of a request's mean time between tokens are `tpot`: GuideLLM and AIPerf call it inter-token latency.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import parse_json
from workflow_scripts.common.records import Record
from workflow_scripts.logs.engine_log_signs import Status
from workflow_scripts.logs.engine_log_text import MESSAGE_KEYS

# Most results of one file.
MOST_RESULTS = 1000
_MOST_UNREAD = 20  # keys of latencies
# What tells the points of a sweep apart, under the names of the formats.
_SETTINGS = (
    *("max_concurrency", "request_rate", "burstiness", "num_prompts", "random_input_len", "random_output_len"),
    *("max_num_seqs", "max_num_batched_tokens", "model_id", "hw", "conc", "tp", "pp", "ep", "isl", "osl"),
    *("precision", "framework", "model", "dp_attention", "type_", "kind", "rate", "streams"),
)
# Characters of a report in YAML, and what one of those that are read has.
MOST_YAML = 2**20
_YAML = re.compile(r"(?m)\s*(?:#|---|\w+:)(?s:.*?)^(?:metrics|results|successes):\s*$")
# JSON has no such numbers, but Python writes them, for example for an unlimited rate.
_NO_NUMBER = re.compile(r"(?<=[:\[,\s])-?(?:Infinity|NaN)(?=\s*[,}\]])")


class BenchmarkRates(Record):
    """What a benchmark gives: rates per second, latencies in ms, None where it gives none."""

    requests_per_s: float | None = None
    total_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    ttft_ms_median: float | None = None
    ttft_ms_p99: float | None = None
    tpot_ms_median: float | None = None
    tpot_ms_p99: float | None = None
    itl_ms_median: float | None = None
    itl_ms_p99: float | None = None
    e2e_ms_median: float | None = None
    e2e_ms_p99: float | None = None


class BenchmarkResult(BenchmarkRates):
    """One result; a number that it does not give, or that is 0 because nothing was measured, is None. `setting` has
    what tells the results of a sweep apart. `error`: why `status` is not ok, or None with numbers that do not count.
    `unread`: keys of latencies and of rates per GPU that gave no number."""

    tool: str
    setting: dict[str, str | int | float | bool | None] = {}
    status: Status | None = "ok"
    error: str | None = None
    unread: list[str] = []


def read_results(text: str) -> list[BenchmarkResult] | None:
    """The results of a file in its order; none if it is JSON of another kind, None if it is a log.

    >>> [result.requests_per_s for result in read_results('{"request_throughput": 5.5, "completed": 8}')]
    [5.5]
    """
    if len(text) <= MOST_YAML and _YAML.match(text):
        try:
            return _results_of(yaml.load(text, Loader=yaml.CSafeLoader))
        except (yaml.YAMLError, RecursionError, ValueError):
            return None
    if text.lstrip()[:1] not in ("{", "["):
        return None
    text = _NO_NUMBER.sub("null", text)
    try:
        content = parse_json(text.encode(errors="replace"), "")
    except InputError:
        # One object per line, or several lines per object.
        objects = re.split(r"(?<=\})[^\S\n]*+\n\s*+(?=\{)", text.strip(), maxsplit=MOST_RESULTS)
        try:
            content = [parse_json(part.encode(errors="replace"), "") for part in objects[:MOST_RESULTS]]
        except InputError:
            return None
        # A collector's or a logger's lines are a log.
        if any(isinstance(record, dict) and record.keys() & set(MESSAGE_KEYS) for record in content):
            return None
        if any("\n" in part for part in objects) and not any(map(_results_of, content)):
            return None
    records = content if isinstance(content, list) else [content]
    return [result for record in records[:MOST_RESULTS] for result in _results_of(record)][:MOST_RESULTS]


# Of each format: its tool; paths of numbers that no format below has; requests that were completed, that failed, and
# that were asked; rates of requests, of all tokens and of output tokens; and how it names the median and P99 of TTFT,
# TPOT, ITL and of a whole request. A path has its keys separated by slashes, and perhaps the unit of a time behind `@`,
# `@=key` for the key beside it that holds the unit, or `@*key*key` for factors. Of several paths the first with a
# number counts. genai-perf writes the format of AIPerf, and InferenceX's client that of vLLM with times in seconds. Its
# own rates are per GPU, of all ranks of an engine (`pp` and `pcp_size` since July 2026), and its `qps` is a mean over
# windows. A result of `vllm bench latency` does not say how many requests it had.
_TABLE = """
sglang.bench_serving | completed request_throughput mean_e2e_latency_ms | completed failed num_prompts
  | request_throughput total_token_throughput,total_throughput output_throughput
  | median p99 {1}_{0}_ms ttft tpot itl e2e_latency
vllm bench serve | completed request_throughput | completed failed num_prompts
  | request_throughput total_token_throughput,total_throughput output_throughput
  | median p99 {1}_{0}_ms ttft tpot itl e2el; median p99 {1}_{0}@s ttft tpot itl e2el
  ; median p99 {1}_{0}_s@s ttft tpot itl e2el
vllm bench throughput | elapsed_time num_requests requests_per_second | num_requests - -
  | requests_per_second tokens_per_second -
vllm bench latency | avg_latency percentiles/50 | - - - | - - - | 50 99 {0}/{1}@s - - - percentiles
AIPerf | request_throughput/avg request_latency/avg | request_count/avg error_request_count/avg -
  | request_throughput/avg total_token_throughput/avg output_token_throughput/avg
  | p50 p99 {0}/{1}@=unit time_to_first_token inter_token_latency - request_latency
inference-perf | successes/count successes/throughput/requests_per_sec | successes/count failures/count -
  | successes/throughput/requests_per_sec successes/throughput/total_tokens_per_sec
    successes/throughput/output_tokens_per_sec
  | median p99 successes/latency/{0}/{1}@s time_to_first_token time_per_output_token inter_token_latency request_latency
llm-d-benchmark | metrics/requests/total | - metrics/requests/failures metrics/requests/total
  | RATES/request_rate/mean,RATES/requests_per_sec RATES/total_token_rate/mean,RATES/total_tokens_per_sec
    RATES/output_token_rate/mean,RATES/output_tokens_per_sec
  | p50 p99 metrics/latency/{0}/{1}@=units time_to_first_token time_per_output_token inter_token_latency request_latency
InferenceX | tput_per_gpu | - - -
  | - total_tput_tps,tput_per_gpu@*tp*pp*pcp_size output_tput_tps,output_tput_per_gpu@*tp*pp*pcp_size
  | median p99 {1}_{0}@s ttft tpot itl e2el; p50 p99 {1}_{0}@s ttft tpot itl e2el
AgentX of InferenceX | request_metrics/throughput/total/tokens_per_second
  | num_requests_successful request_accounting/records_error_dropped -
  | - request_metrics/throughput/total/tokens_per_second request_metrics/throughput/output/tokens_per_second
  | p50 p99 request_metrics/latency/{0}/{1}@s ttft tpot itl e2el
GuideLLM | metrics/request_totals/successful | metrics/request_totals/successful metrics/request_totals/errored -
  | metrics/requests_per_second/successful/mean metrics/tokens_per_second/successful/mean
    metrics/output_tokens_per_second/successful/mean
  | median percentiles/p99 metrics/{0}/successful/{1} time_to_first_token_ms inter_token_latency_ms
  ; median percentiles/p99 metrics/{0}/successful/{1}@s - - - request_latency
""".replace("RATES", "metrics/throughput")
_Format = tuple[str, list[str], list[str], dict[str, list[str]]]
_RATES = ("requests_per_s", "total_tokens_per_s", "output_tokens_per_s")
# Keys of latencies and of rates per GPU, by the facts that they may be.
_LATENCY = {"ttft": r"ttft|first_token", "tpot|itl": r"tpot|per_output|itl|inter_token|(?<!first_)token_lat"}
_LATENCY |= {"total_tokens_per_s": "_per_gpu$", "e2e": r"e2e|^latency|(?:request|avg|mean|median|p\d\d)_latency"}
_MS = {"ms": 1.0, "ms/token": 1.0, "s": 1000.0, "s/token": 1000.0, "sec": 1000.0, "us": 1e-3, "ns": 1e-6}


def _format(tool: str, needs: str, counts: str, rates: str, latencies: str = "") -> _Format:
    facts = {fact: several.split(",") for fact, several in zip(_RATES, rates.split(), strict=True)}
    for p50, p99, form, *names in map(str.split, filter(None, latencies.split(";"))):
        for kind, name in zip(("ttft", "tpot", "itl", "e2e"), names, strict=False):
            for statistic, at in (("median", p50), ("p99", p99)):
                facts.setdefault(f"{kind}_ms_{statistic}", []).append(form.format(name, at))
    return tool.strip(), needs.split(), counts.split(), facts


_FORMATS = [_format(*row.split("|")) for row in re.split(r"\n(?=\S)", _TABLE.strip())]


def _results_of(record: Any) -> list[BenchmarkResult]:
    if not isinstance(record, dict):
        return []
    if isinstance(benchmarks := record.get("benchmarks"), list):
        return [result for each in benchmarks[:MOST_RESULTS] if (result := _result(_of_guidellm(each)))]
    if isinstance(aggregate := _at(record, "results/request_performance/aggregate"), dict):  # llm-d-benchmark 0.2
        record = {"metrics": aggregate}
    return [result] if (result := _result(record)) else []


def _of_guidellm(benchmark: Any) -> dict[str, Any]:
    """A benchmark of GuideLLM with its totals where they are since 0.4, and the settings of its strategy."""
    metrics = _at(benchmark, "metrics")
    if not isinstance(metrics, dict):
        return {}
    totals = metrics.get("request_totals") or _at(benchmark, "request_totals")
    strategy = _at(benchmark, "config/strategy") or _at(benchmark, "args/strategy")
    return {"metrics": metrics | {"request_totals": totals}, **(strategy if isinstance(strategy, dict) else {})}


def _result(record: Mapping[str, Any]) -> BenchmarkResult | None:
    """A result by the first format whose numbers it has. A result of AIPerf without any request has only its errors."""
    errors = record.get("error_summary")
    failed_of_aiperf = sum(_count(error, "count") or 0 for error in errors) if isinstance(errors, list) else 0
    form = next((form for form in _FORMATS if all(_plain(record, path) is not None for path in form[1])), None)
    if form is None:
        why = f"no request was completed, {failed_of_aiperf} failed"
        return BenchmarkResult(tool="AIPerf", status="error", error=why) if failed_of_aiperf else None
    tool, _, counts, facts = form
    numbers = {fact: next(filter(None, (_number(record, p) for p in paths)), None) for fact, paths in facts.items()}
    if numbers.get("total_tokens_per_s") is None and numbers.get("output_tokens_per_s"):
        read = _number(record, "input_throughput")
        numbers["total_tokens_per_s"] = read and read + (numbers["output_tokens_per_s"] or 0)
    setting = {name: record[name] for name in _SETTINGS if isinstance(record.get(name), str | int | float | bool)}
    completed, failed, asked = (_count(record, path) for path in counts)
    failed = failed_of_aiperf if failed is None and failed_of_aiperf else failed
    if failed is None:
        errors = record.get("errors")  # one text per request, empty if it did not fail
        failed = sum(map(bool, errors)) if isinstance(errors, list) else max((asked or 0) - (completed or 0), 0)
        failed = failed if completed is not None else 0
    if completed is None and asked is not None:
        completed = asked - failed
    status: Status | None = "ok"
    error: str | None = None
    if completed == 0:
        status, error = "error", f"no request was completed, {failed} failed" if failed else "no request was completed"
        numbers = {}
    elif failed:
        status, error = "error", f"{failed} of {failed + (completed or 0)} requests failed"
    elif record.get("was_cancelled") is True:
        status, error = None, "the benchmark was cancelled"
    unread = _unread(record, numbers) if numbers else []
    return BenchmarkResult(tool=tool, setting=setting, status=status, error=error, unread=unread, **numbers)


def _unread(record: Mapping[str, Any], numbers: Mapping[str, float | None]) -> list[str]:
    """The keys of latencies and of rates per GPU of which nothing was read."""
    read = [fact for fact, value in numbers.items() if value]
    missing = [keys for facts, keys in _LATENCY.items() if not any(re.match(facts, fact) for fact in read)]
    said = filter(lambda key: _plain(record, key), record)
    return [key for key in said if any(re.search(keys, key, re.IGNORECASE) for keys in missing)][:_MOST_UNREAD]


def _at(content: Any, path: str) -> Any:
    for key in path.split("/"):
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _plain(record: Any, path: str) -> float | None:
    value = _at(record, path)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(record: Mapping[str, Any], path: str) -> float | None:
    """The positive number at a path, in ms if it has a unit, or times another number (`@*key`)."""
    path, _, unit = path.partition("@")
    if (value := _plain(record, path)) is None or not value > 0:
        return None
    if unit.startswith("*"):
        # Of several engines, or of GPUs for prompts and others for outputs, each rate is per some of them.
        several = any(record.get(key) in (True, "true") for key in ("disagg", "is_multinode"))
        tp, *others = (_plain(record, key) for key in unit[1:].split("*"))
        return value * math.prod(filter(None, (tp, *others))) if tp and not several else None
    if unit.startswith("="):
        unit = str(_at(record, f"{path.rpartition('/')[0]}/{unit[1:]}"))
    factor = _MS.get(unit) if unit else 1.0
    return factor and value * factor


def _count(record: Any, path: str) -> int | None:
    value = _plain(record, path)
    return None if value is None or not 0 <= value < 2**53 else int(value)

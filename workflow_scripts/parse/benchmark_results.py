"""The results that benchmarks write as JSON or JSON Lines, each read by the structure of its format.

Read are `vllm bench serve`, `throughput` and `latency` and lists of such results of `vllm bench sweep` (vLLM 0.10 to
0.32), `sglang.bench_serving` (0.5), GuideLLM (0.2 to 0.8), AIPerf (schemas 1.0 to 1.5) and aggregated results of
InferenceX. The median and P99 of a request's mean time between tokens are `tpot`: GuideLLM and AIPerf call it
inter-token latency.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import parse_json
from workflow_scripts.common.records import Record
from workflow_scripts.logs.engine_log_signs import Status
from workflow_scripts.logs.engine_log_text import MESSAGE_KEYS

# Most results of one file.
MOST_RESULTS = 1000
# What tells the points of a sweep apart, under the names of the formats.
_SETTINGS = (
    *("max_concurrency", "request_rate", "burstiness", "num_prompts", "random_input_len", "random_output_len"),
    *("max_num_seqs", "max_num_batched_tokens", "model_id", "hw", "conc", "tp", "ep", "isl", "osl", "precision"),
    *("framework", "model", "dp_attention"),
)
# JSON has no such numbers, but Python writes them, for example for an unlimited rate.
_NO_NUMBER = re.compile(r"(?<=[:\[,\s])-?(?:Infinity|NaN)(?=\s*[,}\]])")


class BenchmarkResult(Record):
    """One result; a number that it does not give, or that is 0 because nothing was measured, is None.

    Latencies are in ms, rates per second. `setting` has what tells the results of a sweep apart. `error`: why `status`
    is not ok, or None with numbers that do not count.
    """

    tool: str
    setting: dict[str, str | int | float | bool | None] = {}
    status: Status | None = "ok"
    error: str | None = None
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


def read_results(text: str) -> list[BenchmarkResult] | None:
    """The results of a file in its order; none if it is JSON of another kind, None if it is a log.

    >>> [result.requests_per_s for result in read_results('{"request_throughput": 5.5, "completed": 8}')]
    [5.5]
    """
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


def have_one_setting(results: list[BenchmarkResult]) -> bool:
    """Whether several results are repeats of one another, and not points of a sweep."""
    return all(result.setting == results[0].setting for result in results)


def _results_of(record: Any) -> list[BenchmarkResult]:
    if not isinstance(record, dict):
        return []
    if isinstance(record.get("benchmarks"), list):
        return list(_guidellm(record["benchmarks"]))
    of_one = (_serving, _throughput, _latency, _aiperf, _inferencex)
    return [result for read in of_one if (result := read(record))][:1]


def _serving(record: Mapping[str, Any]) -> BenchmarkResult | None:
    if _count(record, "completed") is None or not _is_number(record.get("request_throughput")):
        return None
    of_sglang = "mean_e2e_latency_ms" in record
    total = _positive(record, "total_token_throughput") or _positive(record, "total_throughput")
    output = _positive(record, "output_throughput")
    if total is None and output is not None and (read := _positive(record, "input_throughput")):
        total = read + output
    return _result(
        "sglang.bench_serving" if of_sglang else "vllm bench serve",
        record,
        _count(record, "completed"),
        _count(record, "failed"),
        _count(record, "num_prompts"),
        requests_per_s=_positive(record, "request_throughput"),
        total_tokens_per_s=total,
        output_tokens_per_s=output,
        **{f"{name}_ms_median": _positive(record, f"median_{name}_ms") for name in ("ttft", "tpot", "itl")},
        **{f"{name}_ms_p99": _positive(record, f"p99_{name}_ms") for name in ("ttft", "tpot", "itl")},
        e2e_ms_median=_positive(record, "median_e2e_latency_ms" if of_sglang else "median_e2el_ms"),
        e2e_ms_p99=_positive(record, "p99_e2e_latency_ms" if of_sglang else "p99_e2el_ms"),
    )


def _throughput(record: Mapping[str, Any]) -> BenchmarkResult | None:
    if not all(_is_number(record.get(name)) for name in ("elapsed_time", "num_requests", "requests_per_second")):
        return None
    return _result(
        "vllm bench throughput",
        record,
        _count(record, "num_requests"),
        requests_per_s=_positive(record, "requests_per_second"),
        total_tokens_per_s=_positive(record, "tokens_per_second"),
    )


def _latency(record: Mapping[str, Any]) -> BenchmarkResult | None:
    """Of one batch; how many requests it had is not in the file, so there is no rate."""
    if not isinstance(record.get("latencies"), list) or not _is_number(record.get("avg_latency")):
        return None
    median, p99 = (_positive(record, "percentiles", percent) for percent in ("50", "99"))
    return _result(
        "vllm bench latency",
        record,
        len(record["latencies"]),
        e2e_ms_median=median and median * 1000,
        e2e_ms_p99=p99 and p99 * 1000,
    )


def _guidellm(benchmarks: list[Any]) -> Iterator[BenchmarkResult]:
    for benchmark in benchmarks:
        metrics = _at(benchmark, "metrics")
        totals = _at(metrics, "request_totals") or _at(benchmark, "request_totals")  # before 0.4
        if not isinstance(totals, dict) or not isinstance(metrics, dict):
            continue

        def of(name: str, *statistic: str, factor: float = 1, metrics: Any = metrics) -> float | None:
            value = _positive(metrics, name, "successful", *statistic)
            return value and value * factor

        strategy = _at(benchmark, "config", "strategy") or _at(benchmark, "args", "strategy")
        names = ("type_", "kind", "rate", "streams", "max_concurrency")
        yield _result(
            "GuideLLM",
            {name: value for name in names if _is_plain(value := _at(strategy, name))},
            _count(totals, "successful"),
            _count(totals, "errored"),
            None,
            names,
            requests_per_s=of("requests_per_second", "mean"),
            output_tokens_per_s=of("output_tokens_per_second", "mean"),
            total_tokens_per_s=of("tokens_per_second", "mean"),
            ttft_ms_median=of("time_to_first_token_ms", "median"),
            ttft_ms_p99=of("time_to_first_token_ms", "percentiles", "p99"),
            tpot_ms_median=of("inter_token_latency_ms", "median"),
            tpot_ms_p99=of("inter_token_latency_ms", "percentiles", "p99"),
            e2e_ms_median=of("request_latency", "median", factor=1000),
            e2e_ms_p99=of("request_latency", "percentiles", "p99", factor=1000),
        )


_MS = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "us": 1e-3, "ns": 1e-6}


def _aiperf(record: Mapping[str, Any]) -> BenchmarkResult | None:
    errors = record.get("error_summary")
    failed = sum(_count(error, "count") or 0 for error in errors) if isinstance(errors, list) else 0
    if not failed and not all(
        _is_number(_at(record, name, "avg")) for name in ("request_throughput", "request_latency")
    ):
        return None

    def ms(name: str, statistic: str) -> float | None:
        value, factor = _positive(record, name, statistic), _MS.get(str(_at(record, name, "unit")))
        return value and factor and value * factor

    result = _result(
        "AIPerf",
        record,
        _count(record, "request_count", "avg") or (0 if failed else None),
        _count(record, "error_request_count", "avg") or failed,
        requests_per_s=_positive(record, "request_throughput", "avg"),
        output_tokens_per_s=_positive(record, "output_token_throughput", "avg"),
        total_tokens_per_s=_positive(record, "total_token_throughput", "avg"),
        ttft_ms_median=ms("time_to_first_token", "p50"),
        ttft_ms_p99=ms("time_to_first_token", "p99"),
        tpot_ms_median=ms("inter_token_latency", "p50"),
        tpot_ms_p99=ms("inter_token_latency", "p99"),
        e2e_ms_median=ms("request_latency", "p50"),
        e2e_ms_p99=ms("request_latency", "p99"),
    )
    if record.get("was_cancelled") is True and result.status == "ok":
        return result.model_copy(update={"status": None, "error": "AIPerf says that the benchmark was cancelled"})
    return result


def _inferencex(record: Mapping[str, Any]) -> BenchmarkResult | None:
    if not isinstance(record.get("hw"), str) or not _is_number(record.get("tput_per_gpu")):
        return None
    # Rates are per GPU of a tensor-parallel engine; where prompts have GPUs of their own, each has another number.
    gpus = None if record.get("disagg") in (True, "true") else _positive(record, "tp")
    rates = {"total_tokens_per_s": "tput_per_gpu", "output_tokens_per_s": "output_tput_per_gpu"}
    return _result(
        "InferenceX",
        record,
        None,
        **{fact: gpus and (rate := _positive(record, name)) and rate * gpus for fact, name in rates.items()},
        **{
            f"{name}_ms_{statistic}": (seconds := _positive(record, f"{statistic}_{column}")) and seconds * 1000
            for name, column in {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}.items()
            for statistic in ("median", "p99")
        },
    )


def _result(
    tool: str,
    record: Mapping[str, Any],
    completed: int | None,
    failed: int | None = None,
    asked: int | None = None,
    settings: tuple[str, ...] = _SETTINGS,
    /,
    **numbers: float | None,
) -> BenchmarkResult:
    setting = {name: record[name] for name in settings if name in record and _is_plain(record[name])}
    if failed is None:
        errors = record.get("errors")  # one text per request, empty if it did not fail
        failed = sum(map(bool, errors)) if isinstance(errors, list) else max((asked or 0) - (completed or 0), 0)
    if completed == 0:
        error = f"no request was completed, {failed} failed" if failed else "no request was completed"
        return BenchmarkResult(tool=tool, setting=setting, status="error", error=error)
    if failed:
        error = f"{failed} of {failed + (completed or 0)} requests failed"
        return BenchmarkResult(tool=tool, setting=setting, status="error", error=error, **numbers)
    return BenchmarkResult(tool=tool, setting=setting, **numbers)


def _at(content: Any, *path: str) -> Any:
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _positive(content: Any, *path: str) -> float | None:
    value = _at(content, *path)
    return float(value) if _is_number(value) and value > 0 else None


def _count(content: Any, *path: str) -> int | None:
    value = _at(content, *path)
    return int(value) if _is_number(value) and 0 <= value < 2**53 else None

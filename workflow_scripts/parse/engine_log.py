"""Print the facts of an engine's log as JSON; it reads logs of vLLM 0.2 to 0.32.

    kvsweep log vllm.log

prints one JSON object. The log may come from any platform, and may contain the results of vLLM's own benchmarks. FILE
may also be the result file of a benchmark in JSON or YAML: of `vllm bench`, `sglang.bench_serving`, GuideLLM, AIPerf,
InferenceX, inference-perf or llm-d-benchmark. A value is null if the log does not give it. Of a log with several starts
of an engine the facts are those of the last one, and of several printed results those of the last; `results` has all.
`read_from` has line numbers, and `derived` has what only follows from printed numbers. Colours, prefixes of log
collectors and a terminal's hard line breaks do no harm.
"""

import itertools
import json
import math
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from workflow_scripts.common.command import command, option
from workflow_scripts.engines.vllm.log_facts import FactValue, ReadingsByRow, find_readings
from workflow_scripts.logs.engine_log_outcome import LogVerdict, are_mixed, judge, split_starts
from workflow_scripts.logs.engine_log_signs import Status
from workflow_scripts.logs.engine_log_text import Line, read_lines, read_log_text
from workflow_scripts.parse.benchmark_results import BenchmarkRates, BenchmarkResult, read_results

_HEADLINE = re.compile(r"= [\w ]{0,30}\bBenchmark Result =")


class EngineLogFacts(BenchmarkRates):
    """What a log says; a value that it does not give is None.

    Sizes are in GiB, even if vLLM wrote GB for the same number. If ranks differ, a fact is that of the rank that sets
    the limit: the smallest KV cache, the largest use of memory. Tokens in the caches of several data-parallel engines
    are added. `total_tokens_per_s` counts prompt and output tokens.

    `read_from` gives the line, from 1, where each fact was printed. A number that was not printed has no line: if an
    engine prints blocks but no tokens, `kv_cache_tokens` is num_gpu_blocks x block_size. Inferred values are not among
    the facts but in `derived`: `block_size` = kv_cache_tokens / num_gpu_blocks and `num_gpu_blocks` = kv_cache_tokens /
    block_size. These hold for a model with one kind of attention and without context parallelism, and are left out if
    the printed concurrency contradicts this. The numbers of several results in a file are not among the facts.
    """

    status: Status | None = None
    error: str | None = None
    starts: int = 1
    engine_version: str | None = None
    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    block_size: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_concurrency_tokens_per_request: int | None = None
    available_kv_cache_gib: float | None = None
    model_weights_gib: float | None = None
    peak_activation_gib: float | None = None
    cuda_graph_gib: float | None = None
    max_cudagraph_capture_size: int | None = None
    cudagraph_mode: str | None = None
    graphs_from_cache: bool | None = None
    compile_s: float | None = None
    attention_backend: str | None = None
    prefix_cache_hit_rate_pct: float | None = None
    preemptions: int | None = None
    failed_requests: int | None = None
    results: list[BenchmarkResult] | None = None
    derived: dict[str, int] = {}
    read_from: dict[str, int] = {}


def parse_engine_log(text: str) -> EngineLogFacts:
    """Read the facts from a log or a result file. Any text is accepted; without facts, `error` says that this is none.

    >>> facts = parse_engine_log("INFO 12-19 15:34:12 llm_engine.py:219] # GPU blocks: 3418, # CPU blocks: 327")
    >>> facts.num_gpu_blocks, facts.num_cpu_blocks, facts.status, facts.read_from["num_gpu_blocks"]
    (3418, 327, None, 1)
    """
    if results := read_results(text):
        return of_results(results)
    lines = read_lines(text)
    # JSON of another kind, such as a list of requests, may have keys of a result.
    starts = [
        (start, [found for found in find_readings(start) if results is None or not found[0].of_a_result])
        for start in split_starts(lines)
    ]
    found = [facts for start in reversed(starts) if (facts := _facts_of(*start))]
    if not found:
        return EngineLogFacts(error=_why_nothing_is_read(text))
    if are_mixed(starts[-1][0]):
        why = "the lines of several starts are mixed, and nothing tells them apart: log each pod, or use --prefix"
        return EngineLogFacts(error=why, starts=len(starts))
    facts = found[0]
    # An engine that has only begun says no more than its version: why the one before failed is known.
    if not facts.read_from.keys() - {"engine_version"} and found[1:] and found[1].status not in (None, "ok"):
        facts = found[1]
    load: dict[str, str | int] = {}
    printed: list[BenchmarkResult] = []
    for number, (start, by_row) in enumerate(starts, 1):
        load |= {"start": number} if len(starts) > 1 else {}
        printed += _printed(start, by_row, load)
    return facts.model_copy(update={"starts": len(starts), "results": printed if len(printed) > 1 else None})


def _facts_of(lines: Sequence[Line], by_row: ReadingsByRow) -> EngineLogFacts | None:
    """The facts of one start; None if its lines say nothing."""
    values, read_from = _bind(by_row, _begins_of_results(by_row, lines)[-1])
    facts = EngineLogFacts.model_validate(values)
    verdict = _with_memory(judge(lines), facts, read_from, lines)
    if verdict.line is not None:
        read_from["error" if verdict.error else "status"] = verdict.line
    if not values and verdict == LogVerdict():
        return None
    text = "\n".join(line.text for line in lines)
    further: dict[str, object] = {"derived": _derived(facts, text), "read_from": read_from}
    ended = {"status": verdict.status, "error": verdict.error}
    if verdict.status == "ok" and facts.failed_requests:
        ended = {"status": "error", "error": f"{facts.failed_requests} requests of the benchmark failed"}
    # A version that prints blocks on the device and on the CPU has one kind of block.
    if not facts.kv_cache_tokens and facts.num_cpu_blocks is not None and facts.num_gpu_blocks and facts.block_size:
        further["kv_cache_tokens"] = facts.num_gpu_blocks * facts.block_size
    return facts.model_copy(update=further | ended)


# Another tool -> what shows it; what of it is read instead, if anything.
_NOT_READ = {
    "genai-perf: profile_export_genai_perf.json is read": r"(?i)genai[-_]perf|[\u2503|]\s+Statistic +[\u2503|]",
    "Prometheus text: only vLLM's cache and preemptions are read": r"(?m)^# (?:TYPE|HELP) \w|^(?:vllm|sglang):\w",
    "trtllm-bench": r"TensorRT[- ]LLM Version|trtllm-bench|Total Output Throughput \(tokens/sec\)",
    **{"MLPerf": r"MLPerf Results Summary|SUT name +:", "optimum-benchmark": r"optimum[-_]benchmark"},
}


def _why_nothing_is_read(text: str) -> str:
    if not text.strip():
        return "the log is empty"
    if tool := next((words for words, sign in _NOT_READ.items() if re.search(sign, text)), None):
        return (
            tool if ":" in tool else f"a report of {tool} is not read: state its numbers as `rates` of the mapping file"
        )
    return "nothing of an inference engine was recognised in this log"


def of_results(results: Sequence[BenchmarkResult]) -> EngineLogFacts:
    """The facts of a result file: those of its only result, or none but `results`."""
    worst = next((result for result in results if result.status != "ok"), results[0])
    known = worst.model_dump(exclude={"tool", "setting", "unread"}) if len(results) == 1 else {}
    how = {"status": worst.status, "error": worst.error, "results": list(results)}
    return EngineLogFacts.model_validate({**known, **how})


def _bind(by_row: ReadingsByRow, begin: int, end: float = math.inf) -> tuple[dict[str, FactValue], dict[str, int]]:
    """For each fact the value that counts, from the first row that has one, and the line where it was printed; numbers
    of a benchmark are those between two lines."""
    values: dict[str, FactValue] = {}
    read_from: dict[str, int] = {}
    for row, readings in by_row:
        kept = [reading for reading in readings if not row.of_a_result or begin <= reading.line < end]
        if kept and row.key not in values:
            reading = row.pick(kept, row.key)
            # A benchmark prints 0.0 for what it has not measured.
            values |= {fact: value for fact, value in reading.values.items() if value or not row.of_a_result}
            read_from |= dict.fromkeys(row.facts, reading.line)
    return values, read_from


def _begins_of_results(by_row: ReadingsByRow, lines: Sequence[Line]) -> list[int]:
    """The line where each printed result begins; the last one may be cut off. A result prints its rate of requests
    before its other numbers, or sorts them. It may have a headline."""
    benchmarks = [(row.key, reading.line) for row, readings in by_row if row.of_a_result for reading in readings]
    of_rates = [readings for row, readings in by_row if row.key == "requests_per_s"]
    rates = sorted({reading.line for reading in max(of_rates, key=len, default=[])})
    if not rates:
        return [0]
    rate_is_first = min(line for _, line in benchmarks) == rates[0]
    begins = [0, *(rates[1:] if rate_is_first else (rate + 1 for rate in rates[:-1]))]
    headlines = [line.number for line in lines if _HEADLINE.search(line.text)]
    return [max([begin, *(h for h in headlines if h < rate)]) for begin, rate in zip(begins, rates, strict=True)]


# What tells printed results apart.
_LOAD = re.compile(r"(Traffic request rate|Burstiness factor|Maximum request concurrency): +([\w.]{1,40})")


def _printed(lines: Sequence[Line], by_row: ReadingsByRow, load: dict[str, str | int]) -> Iterator[BenchmarkResult]:
    """The results of benchmarks that a start printed, in their order, each with the `load` that was printed last."""
    of_results = [found for found in by_row if found[0].of_a_result]
    loads = [(line.number, match) for line in lines if (match := _LOAD.search(line.text))] if of_results else []
    begins = _begins_of_results(by_row, lines) if of_results else []
    for begin, end in itertools.pairwise([*begins, math.inf]):
        values, read_from = _bind(of_results, int(begin), end)
        load |= {match[1]: match[2] for number, match in loads if number < read_from.get("requests_per_s", end)}
        failed = values.pop("failed_requests", None)
        how = {"status": "error", "error": f"{failed} requests of the benchmark failed"} if failed else {}
        yield BenchmarkResult.model_validate({"tool": "a printed result", "setting": dict(load), **values, **how})


def _with_memory(
    verdict: LogVerdict, facts: EngineLogFacts, read_from: dict[str, int], lines: Sequence[Line]
) -> LogVerdict:
    """Set the status to too little memory if an engine that did not start had none left for its KV cache. An engine
    that processed prompts had started; on a CPU it has no blocks on a GPU."""
    if verdict.status not in (None, "error") or any("Processed prompts:" in line.text for line in lines):
        return verdict
    for fact in ("available_kv_cache_gib", "num_gpu_blocks"):
        if (value := getattr(facts, fact)) is not None and value <= 0:
            words = next(line.body.strip() for line in reversed(lines) if line.number <= read_from[fact])
            return LogVerdict("kv_too_small", verdict.error or words, verdict.line or read_from[fact])
    return verdict


def _derived(facts: EngineLogFacts, text: str) -> dict[str, int]:
    """What follows exactly from printed numbers, if the model has one kind of attention.

    >>> [_derived(EngineLogFacts(kv_cache_tokens=160, **of), "") for of in ({"num_gpu_blocks": 5}, {"block_size": 16})]
    [{'block_size': 32}, {'num_gpu_blocks': 10}]
    """
    tokens, blocks, block_size = facts.kv_cache_tokens, facts.num_gpu_blocks, facts.block_size
    concurrency, length = facts.max_concurrency, facts.max_concurrency_tokens_per_request
    if not tokens or (concurrency and length and abs(tokens / length - concurrency) >= 0.02):
        return {}
    # V0 printed the tokens of only one stage of its pipeline, but the blocks of all.
    if re.search(r"(?:decode_context|pipeline|data)_parallel_size['\"]?\s*[=:]\s*(?:[2-9]|1\d)", text):
        return {}
    # In the versions that print tokens, block sizes are multiples of 16.
    if blocks and blocks > 0 and block_size is None and tokens % (16 * blocks) == 0:
        return {"block_size": tokens // blocks}
    if block_size and blocks is None and tokens % block_size == 0:
        return {"num_gpu_blocks": tokens // block_size}
    return {}


def read_engine_log(path: Path) -> EngineLogFacts:
    """Read the facts from a file. Raises OSError or InputError if it cannot be read."""
    return parse_engine_log(read_log_text(path))


def words_on(facts: EngineLogFacts) -> Iterator[str]:
    """What a reader of the facts should know about them."""
    if facts.error and facts.status is None:
        yield facts.error
    if facts.starts > 1:
        yield f"{facts.starts} starts of an engine: the facts are those of the last one"
    results = facts.results or []
    if len(results) > 1:
        which = "the last one" if facts.read_from else "none"
        yield f"{len(results)} results: the facts are those of {which}; `result` of a mapping file names another"
    for unread in (result.unread for result in results if result.unread):
        why = " (rates per GPU need `tp`, and no GPUs for prompts alone)" if "per_gpu" in str(unread) else ""
        yield f"not read: {', '.join(unread)}{why}"


@command(
    "log",
    option("file", type=Path, metavar="FILE", help="the engine's log, as text; it may contain a benchmark's output"),
)
def main(args: Namespace) -> None:
    facts = read_engine_log(args.file)
    for word in words_on(facts):
        print(f"{args.file}: {word}", file=sys.stderr)
    print(json.dumps(facts.model_dump(mode="json"), indent=2))

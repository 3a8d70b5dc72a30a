"""Print the facts of an engine's log as JSON; it reads logs of vLLM 0.2 to 0.32.

    kvsweep log vllm.log

prints one JSON object. The log may come from any platform, and may contain the results of vLLM's own benchmarks. FILE
may also be the result file of a benchmark in JSON: of `vllm bench`, `sglang.bench_serving`, GuideLLM, AIPerf or
InferenceX. A value is null if the log does not give it. `read_from` has line numbers, `ranks` has what each rank
printed, and `derived` has what only follows from printed numbers. Colours, prefixes of log collectors and a terminal's
hard line breaks do no harm.
"""

import json
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from workflow_scripts.common.command import command, option
from workflow_scripts.common.records import Record
from workflow_scripts.engines.vllm.log_facts import FactRow, FactValue, Reading, ReadingsByRow, find_readings
from workflow_scripts.logs.engine_log_outcome import LogVerdict, judge
from workflow_scripts.logs.engine_log_signs import Status
from workflow_scripts.logs.engine_log_text import Line, read_lines, read_log_text
from workflow_scripts.parse.benchmark_results import BenchmarkResult, read_results

_HEADLINE = re.compile(r"= [\w ]{0,30}\bBenchmark Result =")


class RankReading(Record):
    """What one rank printed; `rank` is its label in the log, None if the log has none."""

    rank: str | None
    value: int | float
    line: int


class EngineLogFacts(Record):
    """What a log says; a value that it does not give is None.

    Sizes are in GiB, even if vLLM wrote GB for the same number. If ranks differ, a fact is that of the rank that sets
    the limit: the smallest KV cache, the largest use of memory; `ranks` holds them all. Tokens in the caches of several
    data-parallel engines are added. Latencies are in ms, rates
    per second; `total_tokens_per_s` counts prompt and output tokens.

    `read_from` gives the line, from 1, where each fact was printed. A number that was not printed has no line: if an
    engine prints blocks but no tokens, `kv_cache_tokens` is num_gpu_blocks x block_size. Inferred values are not among
    the facts but in `derived`: `block_size` = kv_cache_tokens / num_gpu_blocks and `num_gpu_blocks` = kv_cache_tokens /
    block_size. These hold for a model with one kind of attention and without context parallelism, and are left out if
    the printed concurrency contradicts this.

    A benchmark's result file in JSON has no lines; `results` has all of its results. The numbers of several are not
    among the facts.
    """

    status: Status | None = None
    error: str | None = None
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
    results: list[BenchmarkResult] | None = None
    ranks: dict[str, list[RankReading]] = {}
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
    by_row = [found for found in find_readings(lines) if results is None or not found[0].of_a_result]
    values, read_from = _bind(by_row, lines)
    facts = EngineLogFacts.model_validate(values)
    verdict = _with_memory(judge(lines), facts, read_from, lines)
    if verdict.line is not None:
        read_from["error" if verdict.error else "status"] = verdict.line
    if not values and verdict == LogVerdict():
        empty = "the log is empty" if not text.strip() else "nothing of an inference engine was recognised in this log"
        return EngineLogFacts(error=empty)
    further: dict[str, object] = {"ranks": _ranks(by_row), "derived": _derived(facts, text), "read_from": read_from}
    ended = {"status": verdict.status, "error": verdict.error}
    if verdict.status == "ok" and facts.failed_requests:
        ended = {"status": "error", "error": f"{facts.failed_requests} requests of the benchmark failed"}
    # A version that prints blocks on the device and on the CPU has one kind of block.
    if not facts.kv_cache_tokens and facts.num_cpu_blocks is not None and facts.num_gpu_blocks and facts.block_size:
        further["kv_cache_tokens"] = facts.num_gpu_blocks * facts.block_size
    return facts.model_copy(update=further | ended)


def of_results(results: Sequence[BenchmarkResult]) -> EngineLogFacts:
    """The facts of a result file: those of its only result, or none but `results`."""
    worst = next((result for result in results if result.status != "ok"), results[0])
    known = worst.model_dump(exclude={"tool", "setting"}) if len(results) == 1 else {}
    how = {"status": worst.status, "error": worst.error, "results": list(results)}
    return EngineLogFacts.model_validate({**known, **how})


def _bind(by_row: ReadingsByRow, lines: Sequence[Line]) -> tuple[dict[str, FactValue], dict[str, int]]:
    """For each fact the value that counts, from the first row that has one, and the line where it was printed."""
    values: dict[str, FactValue] = {}
    read_from: dict[str, int] = {}
    for row, readings in _of_the_last_result(by_row, lines):
        if row.key not in values:
            reading = row.pick(readings, row.key)
            # A benchmark prints 0.0 for what it has not measured.
            values |= {fact: value for fact, value in reading.values.items() if value or not row.of_a_result}
            read_from |= dict.fromkeys(row.facts, reading.line)
    return values, read_from


def _of_the_last_result(by_row: ReadingsByRow, lines: Sequence[Line]) -> Iterator[tuple[FactRow, list[Reading]]]:
    """Leave out what benchmarks before the last one printed: the last result may be cut off, but is not mixed. A result
    prints its rate of requests before its other numbers, or sorts them. It may have a headline."""
    benchmarks = [(row.key, reading.line) for row, readings in by_row if row.of_a_result for reading in readings]
    rates = sorted({line for key, line in benchmarks if key == "requests_per_s"})
    start = 0
    if len(rates) > 1:
        start = rates[-1] if min(line for _, line in benchmarks) == rates[0] else rates[-2] + 1
    if rates:
        start = max(
            [start, *(line.number for line in lines if line.number < rates[-1] and _HEADLINE.search(line.text))]
        )
    for row, readings in by_row:
        if kept := [reading for reading in readings if not row.of_a_result or reading.line >= start]:
            yield row, kept


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

    >>> _derived(EngineLogFacts(kv_cache_tokens=93872, num_gpu_blocks=5867), "")
    {'block_size': 16}
    >>> _derived(EngineLogFacts(kv_cache_tokens=93872, block_size=16), "")
    {'num_gpu_blocks': 5867}
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


def _ranks(by_row: ReadingsByRow) -> dict[str, list[RankReading]]:
    """All readings of the facts that each rank prints, if there is more than one rank."""
    ranks: dict[str, list[RankReading]] = {}
    for row, readings in by_row:
        for fact in row.facts if row.per_rank and len(readings) > 1 else ():
            each = ({"rank": r.rank, "value": r.values[fact], "line": r.line} for r in readings)
            ranks.setdefault(fact, [RankReading.model_validate(reading) for reading in each])
    return ranks


def read_engine_log(path: Path) -> EngineLogFacts:
    """Read the facts from a file. Raises OSError or InputError if it cannot be read."""
    return parse_engine_log(read_log_text(path))


@command(
    "log",
    option("file", type=Path, metavar="FILE", help="the engine's log, as text; it may contain a benchmark's output"),
)
def main(args: Namespace) -> None:
    print(json.dumps(read_engine_log(args.file).model_dump(mode="json"), indent=2))

"""Result files of benchmarks, from their JSON to rows of the cells table."""

import itertools
import json
import math
import re
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import yaml

from workflow_scripts.common.faults import InputError
from workflow_scripts.parse.benchmark_results import MOST_RESULTS, read_results
from workflow_scripts.parse.engine_log import parse_engine_log, words_on
from workflow_scripts.parse.imported_runs import read_runs
from workflow_scripts.tables.imported_cells import imported_cells

RESULTS = yaml.safe_load(Path("tests/fixtures/benchmark_results.yaml").read_text(encoding="utf-8"))
EACH_FORMAT = tuple(RESULTS.values())
SERVE, SGLANG, AIPERF, INFERENCEX = (
    RESULTS[tool] for tool in ("vllm bench serve", "sglang.bench_serving", "AIPerf", "InferenceX")
)


def guidellm(rate=2.0, errored=0):
    """A benchmark of GuideLLM with another strategy, and with failed requests."""
    one = deepcopy(RESULTS["GuideLLM"]["benchmarks"][0])
    one["config"]["strategy"]["rate"] = rate
    one["metrics"]["request_totals"]["errored"] = errored
    return one


def before_0_4(rate):
    new = guidellm(rate)
    return {"args": new["config"], "request_totals": new["metrics"].pop("request_totals"), "metrics": new["metrics"]}


ALL = {"requests_per_s": 2, "output_tokens_per_s": 64, "total_tokens_per_s": 96, "e2e_ms_median": 80}
ALL |= {"ttft_ms_median": 12, "ttft_ms_p99": 15, "tpot_ms_median": None}


# What a format does not have.
ABSENT = {
    "AIPerf": ["total_tokens_per_s"],
    **dict.fromkeys(("InferenceX", "AgentX of InferenceX"), ("requests_per_s",)),
    "vllm bench throughput": ["output_tokens_per_s", *(name for name in ALL if "_ms_" in name)],
    "vllm bench latency": [name for name in ALL if name != "e2e_ms_median"],
}


@pytest.mark.parametrize("name", RESULTS)
def test_each_format_is_read_by_its_structure(name):
    content, absent = RESULTS[name], ABSENT.get(name, ())
    tool = "vllm bench serve" if name == "InferenceX in seconds" else re.sub(r" 0\.\d$", "", name)
    facts = parse_engine_log(json.dumps(content))
    assert ([result.tool for result in facts.results], facts.status, facts.error) == ([tool], "ok", None)
    texts = [f"# captured\n{yaml.safe_dump(content)}"] if tool in ("inference-perf", "llm-d-benchmark") else []
    for read in (facts, *map(parse_engine_log, texts)):
        assert {name: getattr(read, name) for name in ALL} == pytest.approx(ALL | dict.fromkeys(absent))
    # Neither in a list of something else nor below another key is it a result.
    for other in ({"of": content}, [[content]], {"requests": [content, content]}):
        assert parse_engine_log(json.dumps(other, indent=2)).requests_per_s is None


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (SERVE | {"completed": 0, "failed": 4, "request_throughput": 0.0}, "no request was completed, 4 failed"),
        (SERVE | {"failed": 1}, "1 of 5 requests failed"),
        ({"benchmarks": [guidellm(errored=2)]}, "2 of 6 requests failed"),
        (AIPERF | {"error_request_count": {"avg": 3.0}}, "3 of 7 requests failed"),
        ({"error_summary": [{"count": 2}, {"count": 3}]}, "no request was completed, 5 failed"),
        (SGLANG | {"errors": ["", "timeout", ""]}, "1 of 5 requests failed"),
        (
            "Successful requests: 4\nFailed requests: 2\nRequest throughput (req/s): 5\n",
            "2 requests of the benchmark failed",
        ),
        (INFERENCEX | {"num_prompts": 8}, None),
    ],
)
def test_failed_requests_make_an_outcome(content, error, tmp_path):
    (row,) = cells_of(tmp_path, content if isinstance(content, str) else json.dumps(content))
    assert (row["outcome"], row["reason"]) == (("engine_error", error) if error else ("ok", None))


def cells_of(folder, text, **keys):
    (folder / "results.json").write_text(text)
    run = {"gpu": "h100-sxm", "engine": "vllm", "model": "llama-3.1-8b-instruct", "results": "results.json", **keys}
    path = folder / "runs.yaml"
    path.write_text(yaml.safe_dump({"schema_version": 1, "runs": [run, run]}))
    rows = imported_cells(read_runs(path), "try").to_dict("records")
    assert [row["start"] for row in rows] == [1] * (len(rows) // 2) + [2] * (len(rows) // 2)
    return rows[: len(rows) // 2]


def in_lines(rows, indent=None):
    return "\n".join(json.dumps(row, indent=indent) for row in rows) + "\n"


@pytest.mark.parametrize("layout", [json.dumps, in_lines, partial(in_lines, indent=2)])
@pytest.mark.parametrize("of", [SERVE, SGLANG])
def test_several_results_of_a_file_are_repeats_of_a_start(of, layout, tmp_path):
    rows = cells_of(tmp_path, layout([of, of | {"request_throughput": 3.0, "output_throughput": 70.0}]))
    assert [(row["repeat"], row["requests_per_s"], row["output_tokens_per_s"]) for row in rows] == [
        (0, 2, 64),
        (1, 3, 70),
    ]
    facts = parse_engine_log(layout([of, of]))
    assert (facts.status, facts.requests_per_s, len(facts.results)) == ("ok", None, 2)


@pytest.mark.parametrize(
    "content",
    [
        [SERVE, SGLANG],  # two engines in one file
        [SERVE, SERVE | {"max_concurrency": 8}],
        {"benchmarks": [guidellm(1.0), guidellm(2.0)]},
        {"benchmarks": [before_0_4(1.0), before_0_4(2.0)]},
    ],
)
def test_of_a_sweep_one_result_is_named(content, tmp_path):
    text = json.dumps(content)
    (row,) = cells_of(tmp_path, text)
    assert (row["outcome"], "2 results with different settings" in row["reason"]) == ("unknown", True)
    assert row["requests_per_s"] is None
    (row,) = cells_of(tmp_path, text, result=2)
    assert (row["outcome"], row["requests_per_s"]) == ("ok", 2)
    with pytest.raises(InputError, match=r"runs.0.result: .*results.json has 2 results, not 3"):
        cells_of(tmp_path, text, result=3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps(AIPERF | {"was_cancelled": True}), "cancelled"),
        (json.dumps({"model_type": "llama"}), "nothing of an inference engine"),
        (json.dumps([{"tokens_per_second": 5.0}]), "nothing of an inference engine"),
        ("", "the log is empty"),
        ("\u2503  Statistic \u2503  avg \u2503\nRequest throughput (per sec): 0.26\n", "genai-perf"),
        ("NVIDIA GenAI-Perf | LLM Metrics\nRequest throughput (per sec): 4.4\n", "genai-perf"),
        ("TensorRT LLM Version: 1.1\nRequest Throughput (req/sec): 253.55\n", "trtllm-bench"),
        ("MLPerf Results Summary\nSamples per second: 5\n", "MLPerf"),
        ("SUT name : LLAMA2\nCompleted tokens per second: 3000\n", "MLPerf"),
        ('{"optimum_benchmark_version": "0.6", "report": {}}', "optimum-benchmark"),
        ("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 5\n", "Prometheus"),
        ('sglang:token_usage{model_name="x"} 0.3\n', "Prometheus"),
    ],
)
def test_what_is_not_recognised_is_unknown_with_the_reason(text, reason, tmp_path):
    (row,) = cells_of(tmp_path, text)
    assert (row["outcome"], reason in row["reason"]) == ("unknown", True)


PRINTED = """Traffic request rate: inf
Maximum request concurrency: {at_once}
============ Serving Benchmark Result ============
Successful requests:                     4
Request throughput (req/s):              {rate}
Output token throughput (tok/s):         {output}
Total Token throughput (tok/s):          {total}
Median TTFT (ms):                        12.5
==================================================
"""


@pytest.mark.parametrize("at_once", [(8, 8), (8, 16)])
def test_each_result_of_a_text_can_be_named(at_once, tmp_path):
    numbers = ({"rate": 2.0, "output": 64.0, "total": 96.0}, {"rate": 3.0, "output": 70.0, "total": 100.0})
    text = "".join(PRINTED.format(at_once=n, **of) for n, of in zip(at_once, numbers, strict=True))
    facts = parse_engine_log(text)
    assert (facts.requests_per_s, [result.requests_per_s for result in facts.results]) == (3, [2, 3])
    assert any("2 results" in word for word in words_on(facts))
    for number, of in enumerate(numbers, 1):
        (row,) = cells_of(tmp_path, text, result=number)
        assert (row["requests_per_s"], row["output_tokens_per_s"]) == (of["rate"], of["output"])
        assert row["prompt_tokens_mean" if "prompt_tokens_mean" in row else "outcome"] is not None
    rows = cells_of(tmp_path, text)
    assert [row["outcome"] for row in rows] == (["ok", "ok"] if at_once[0] == at_once[1] else ["unknown"])


def test_latencies_that_are_not_read_are_named():
    odd = {name: value for name, value in SERVE.items() if "_ms" not in name} | {"ttft_seconds_p50": 0.012}
    (word,) = words_on(parse_engine_log(json.dumps(odd)))
    assert "ttft_seconds_p50" in word
    # Of one kind, beside others that are read.
    odd = {name: value for name, value in SERVE.items() if "ttft" not in name} | {"first_token_p50": 0.012}
    assert [result.unread for result in parse_engine_log(json.dumps(odd)).results] == [["first_token_p50"]]
    assert not list(words_on(parse_engine_log(json.dumps(SERVE))))


@pytest.mark.parametrize("ranks", [*itertools.product((1, 4), (None, 1, 2), (None, 2))])
def test_rates_per_gpu_are_those_of_all_ranks_of_one_engine(ranks):
    sizes = {key: size for key, size in zip(("tp", "pp", "pcp_size"), ranks, strict=True) if size}
    per_gpu = {
        f"{kind}tput_per_gpu": rate / math.prod(sizes.values()) for kind, rate in (("", 96.0), ("output_", 64.0))
    }
    facts = parse_engine_log(json.dumps(INFERENCEX | per_gpu | sizes))
    assert (facts.total_tokens_per_s, facts.output_tokens_per_s) == pytest.approx((96, 64))
    assert not list(words_on(facts))
    whole = {"is_multinode": True, "total_tput_tps": 96.0, "output_tput_tps": 64.0}  # AgentX before it had parts
    assert parse_engine_log(json.dumps(INFERENCEX | per_gpu | whole)).output_tokens_per_s == 64
    # Prompts on GPUs of their own, several engines, and ranks that are not stated.
    for several in ({"disagg": True}, {"disagg": "true"}, {"is_multinode": True}, {"tp": None}):
        facts = parse_engine_log(json.dumps(INFERENCEX | per_gpu | sizes | several))
        assert (facts.status, facts.total_tokens_per_s, facts.output_tokens_per_s) == ("ok", None, None)
        assert (facts.results[0].unread, len(list(words_on(facts)))) == (["tput_per_gpu", "output_tput_per_gpu"], 1)


def test_results_have_a_limit_and_loggers_lines_are_a_log():
    assert len(read_results(json.dumps([SERVE] * (MOST_RESULTS + 1)))) == MOST_RESULTS
    line = json.dumps({"log": "Throughput: 15.20 requests/s, 6232.10 total tokens/s, 2888.00 output tokens/s\n"})
    assert parse_engine_log(f"{line}\n{line}\n").output_tokens_per_s == 2888

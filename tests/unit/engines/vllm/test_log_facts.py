# ruff: noqa: E501  (log lines are as long as the engine prints them)
"""What each version prints, one line at a time. The lines are in the engine's format, the numbers are made up."""

from pathlib import Path

import pytest
import yaml

from tests.recipes import blocks, recipe
from workflow_scripts.engines.vllm import log_facts as engine_log_facts
from workflow_scripts.parse.engine_log import parse_engine_log

PRINTED = yaml.safe_load(Path("tests/fixtures/logs/what_versions_print.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PRINTED)
def test_reads_what_a_version_prints(name):
    expected = dict(PRINTED[name])
    line = expected.pop("line")
    facts = parse_engine_log(f"INFO 01-01 00:00:00 [a.py:1] before\n{line}\nINFO 01-01 00:00:00 [a.py:1] after\n")
    assert {name: getattr(facts, name) for name in expected} == pytest.approx(expected)
    for name, value in expected.items():
        if value is not None:
            assert facts.read_from[name] == 2


FIRST = "Successful requests: 5\nRequest throughput (req/s): 2.5\nMedian TTFT (ms): 30.5\nMedian ITL (ms): 7.5\n"
SECOND = "Successful requests: 5\nRequest throughput (req/s): 3.5\nMedian TTFT (ms): 20.5\n"
HEADLINE = "============ Serving Benchmark Result ============\n"
OF_THE_SECOND = {"requests_per_s": 3.5, "ttft_ms_median": 20.5, "itl_ms_median": None}
PREEMPTED = (
    "INFO 09-03 06:08:58 [loggers.py:1] Engine 000: Running: 1 reqs, Preemptions: {}, Prefix cache hit rate: {}%\n"
)
CUMULATIVE = (
    "WARNING 05-09 00:49:33 scheduler.py:1057] Sequence group 0 is preempted. total_num_cumulative_preemption={}\n"
)
BACKEND = "INFO 07-25 13:42:16 [cuda.py:476] Using {0} attention backend out of potential backends: ['{0}'].\n"
LOGS = {
    "a throughput that was cut off comes from one line": (
        "Throughput: 1.20 requests/s, 450.1 total tokens/s, 120.4 output tokens/s\nThroughput: 1.23 requests/s, 456.7 total tokens/s, 123.4 output to",
        {"requests_per_s": 1.23, "total_tokens_per_s": 456.7, "output_tokens_per_s": 123.4}),
    "results of two benchmarks are not mixed": (f"{FIRST}\nwith graphs:\n{SECOND}-----Tim", OF_THE_SECOND),
    "a second result without numbers": (f"{FIRST}\nagain:\nSuccessful requests: 5\n", {"itl_ms_median": 7.5}),
    "numbers before a headline belong to another": (f"Median ITL (ms): 4.62\n=====\n\non the other machine:\n{HEADLINE}{SECOND}-----In", OF_THE_SECOND),
    "a headline without numbers": (f"Median ITL (ms): 4.62\n{HEADLINE}Successful req", {"itl_ms_median": 4.62}),
    "rates in a table": (
        "| Output token throughput (tok/s) | 1078.18 |\n| Total token throughput (tok/s)  | 1787.42 |\n| Request throughput (req/s)      |    2.86 |\n",
        {"output_tokens_per_s": 1078.18, "total_tokens_per_s": 1787.42, "requests_per_s": 2.86, "status": "ok"}),
    "tokens of the cache in the metrics": (
        'vllm:cache_config_info{_block_size_resolved="True",block_size="8",kv_cache_max_concurrency="2.5",kv_cache_size_tokens="81920",num_gpu_blocks="1100"} 1.0\n',
        {"num_gpu_blocks": 1100, "block_size": 8, "kv_cache_tokens": 81920, "max_concurrency": 2.5}),
    "a TPU": (
        "INFO 08-16 20:23:52 [tpu_platform.py:417] Using cache_config.block_size: 64 instead of overriding with _align_hybrid_block_size()\n"
        "INFO 08-16 20:23:52 [tpu_worker.py:557] Memory statistics | total_hbm_limit_gb=31.24GiB | total_hbm_limit_cap_gb=28.74GiB | total_hbm_used_gb=4.5GiB | total_hbm_avail_gb=20.25GiB\n"
        "INFO 08-16 20:24:55 [kv_cache_manager.py:958] Hybrid KV cache layout: num_kv_cache_groups=1, num_kv_cache_tensors=26, kv_cache_config.num_blocks=640, duplicate_shared_layers=False\n"
        "INFO 08-16 20:24:55 [kv_cache_manager.py:986] Init kv-cache | num_total_layers=2 | num_blocks=[640, 640] | regular_attn_layers=2\n",
        {"num_gpu_blocks": 640, "block_size": 64, "available_kv_cache_gib": 20.25, "model_weights_gib": 4.5}),
    "blocks of a TPU's layers": (
        "INFO 08-16 20:24:55 [kv_cache_manager.py:986] Init kv-cache | num_total_layers=2 | num_blocks=[640, 640] | regular_attn_layers=2\n",
        {"num_gpu_blocks": 640}),
    "a rate of zero": ("| Request throughput (req/s) |    0.0 |\n", {"status": None}),
    "usage statistics": (
        '{"gpu_type": "v6e", "vllm_version": "0.6.6.dev2+gb", "dtype": "half", "block_size": 16}\n',
        {"engine_version": "0.6.6.dev2+gb", "block_size": 16}),
    "another model's configuration": ('{"model_type": "swin", "block_size": 16}\n', {"block_size": None}),
    "results whose numbers are sorted": (
        "".join(f'{{\n"median_ttft_ms": {x},\n"request_throughput": {x + 1}\n}}\n' for x in (10.5, 20.5)),
        {"ttft_ms_median": 20.5, "requests_per_s": 21.5}),
    "dots below a line do not continue it": ("GPU KV cache size: 1,793,232 tokens\n...\n", {"kv_cache_tokens": 1_793_232}),
    "what the engine set before what was asked for": (
        "INFO 03-30 07:05:39 [utils.py:1] non-default args: {'block_size': 16}\nINFO 03-30 07:05:40 [config.py:228] Setting attention block size to 528 tokens\n",
        {"block_size": 528, "read_from": {"block_size": 2}}),
    "the last hit rate and the sum of preemptions": (
        PREEMPTED.format(3, 10.0) + PREEMPTED.format(4, 49.0), {"preemptions": 7, "prefix_cache_hit_rate_pct": 49.0}),
    "preemptions that count from the start": (CUMULATIVE.format(1) + CUMULATIVE.format(51), {"preemptions": 51}),
    "the first backend is the model's": (BACKEND.format("FLASHINFER") + BACKEND.format("FLASH_ATTN"), {"attention_backend": "FLASHINFER"}),
    "several records on one line": (
        "INFO 08-22 15:27:08 llm_engine.py:70] Initializing an LLM engine with config: model='m' "
        "INFO 08-22 15:27:25 llm_engine.py:196] # GPU blocks: 865, # CPU blocks: 327 INFO: Started server process [9264]",
        {"num_gpu_blocks": 865, "num_cpu_blocks": 327}),
    "words wrapped by hand": (
        "INFO [worker.py:241] model weights take 14.99GiB; non_torch_memory takes 0.12GiB;\n        PyTorch activation peak "
        "memory takes 1.19GiB; the rest of the memory\n        reserved for KV Cache is 54.93GiB.\n",
        {"peak_activation_gib": 1.19, "available_kv_cache_gib": 54.93}),
}  # fmt: skip


@pytest.mark.parametrize(("log", "expected"), LOGS.values(), ids=LOGS.keys())
def test_several_lines(log, expected):
    facts = parse_engine_log(log)
    assert {name: getattr(facts, name) for name in expected} == expected


@pytest.mark.parametrize("process", ["EngineCore_DP", "EngineCore_"])
def test_tokens_of_data_parallel_engines_are_added(process):
    core = f"({process}{{}} pid=1{{}}) INFO 09-03 00:40:55 [kv_cache_utils.py:849] "
    line = f"{core}GPU KV cache size: {{:,}} tokens\n{core}Maximum concurrency for 10,000 tokens per request: {{}}x\n"
    sizes = ((0, 160_000), (0, 150_000), (1, 140_000))
    facts = parse_engine_log("".join(line.format(n, n, tokens, n, n, tokens / 10_000) for n, tokens in sizes))
    assert facts.kv_cache_tokens == 290_000
    assert (facts.max_concurrency, facts.max_concurrency_tokens_per_request) == (29, 10_000)
    # Their metrics, which may be printed more than once.
    info = 'vllm:cache_config_info{{block_size="16",engine="{}",kv_cache_size_tokens="{}",num_gpu_blocks="{}"}} 1.0\n'
    facts = parse_engine_log("".join(info.format(n, tokens, tokens // 16) for n, tokens in (*sizes[1:], *sizes[1:])))
    assert (facts.kv_cache_tokens, facts.num_gpu_blocks, facts.block_size) == (290_000, 290_000 // 16, 16)


def test_rank_with_the_smallest_kv_cache_binds():
    facts = parse_engine_log(
        "(VllmWorker TP0 pid=11) INFO 09-03 00:40:53 [gpu_worker.py:276] Available KV cache memory: 12.50 GiB\n"
        "(VllmWorker TP1 pid=12) INFO 09-03 00:40:55 [gpu_worker.py:276] Available KV cache memory: 12.02 GiB\n"
        "(VllmWorker TP0 pid=11) INFO 09-03 00:40:55 [gpu_model_runner.py:1] Model loading took 7.0 GiB and 9.1 seconds\n"
        "(VllmWorker TP1 pid=12) INFO 09-03 00:40:55 [gpu_model_runner.py:1] Model loading took 7.5 GiB and 9.1 seconds\n"
        "(EngineCore_0 pid=9) INFO 09-03 00:40:55 [kv_cache_utils.py:849] GPU KV cache size: 468,160 tokens\n"
        "(EngineCore_0 pid=9) INFO 09-03 00:40:55 [kv_cache_utils.py:853] Maximum concurrency for 16,384 tokens per request: 28.57x\n"
        "(EngineCore_0 pid=9) INFO 09-03 00:40:55 [kv_cache_utils.py:849] GPU KV cache size: 450,192 tokens\n"
        "(EngineCore_0 pid=9) INFO 09-03 00:40:55 [kv_cache_utils.py:853] Maximum concurrency for 16,384 tokens per request: 27.48x\n"
    )
    assert (facts.available_kv_cache_gib, facts.model_weights_gib) == (12.02, 7.5)
    assert (facts.kv_cache_tokens, facts.max_concurrency) == (450192, 27.48)
    assert facts.read_from["available_kv_cache_gib"] == 2


RECIPE = recipe("A log pattern")


def test_a_row_reads_a_line(monkeypatch):
    (line,), (row,) = blocks(RECIPE, "text"), blocks(RECIPE, "python")
    assert parse_engine_log(line).num_gpu_blocks is None
    added = eval(row, vars(engine_log_facts))  # code of this repository
    monkeypatch.setattr(engine_log_facts, "ROWS", (*engine_log_facts.ROWS, added))
    facts = parse_engine_log(line)
    assert (facts.num_gpu_blocks, facts.block_size, facts.read_from["num_gpu_blocks"]) == (5867, 16, 1)

# ruff: noqa: E501  (log lines are as long as the engine prints them)
"""What each version prints, one line at a time. The lines are in the engine's format, the numbers are made up."""

import re

import pytest

from tests.recipes import blocks, recipe
from workflow_scripts.engines.vllm import log_facts as engine_log_facts
from workflow_scripts.parse.engine_log import parse_engine_log

STAMP = "INFO 05-30 16:23:28"

PRINTED = {
    # --- version
    "server without logo": (f"{STAMP} [api_utils.py:347] vLLM server version 0.26.0, serving model m", {"engine_version": "0.26.0"}),
    "list of packages": ("vllm                              0.5.4", {"engine_version": "0.5.4"}),
    "pinned package": ("[pip3] vllm==0.8.5.post1", {"engine_version": "0.8.5.post1"}),
    "other package": ("vllm-flash-attn                   2.6.1", {"engine_version": None}),
    # --- blocks
    "0.7": (f"{STAMP} executor_base.py:110] # cuda blocks: 7191, # CPU blocks: 4681", {"num_gpu_blocks": 7191}),
    "number under the rest of a progress bar": ("INFO 11-30 05:02:06 llm_engine.py:219] # GPU blocks: 7, # CPU blocks: 20484MB/s]", {"num_gpu_blocks": 7, "num_cpu_blocks": None}),
    "CPU before 0.7": (f"{STAMP} cpu_executor.py:212] # CPU blocks: 7281", {"num_cpu_blocks": 7281, "num_gpu_blocks": None}),
    "a platform whose device is called CPU": (f"{STAMP} executor_base.py:108] # CPU blocks: 35064, # CPU blocks: 2730", {"num_gpu_blocks": 35064, "num_cpu_blocks": 2730}),
    "thousands separators": (f"{STAMP} a.py:1] # GPU blocks: 33,660, # CPU blocks: 2,048", {"num_gpu_blocks": 33660}),
    "metrics": ('vllm:cache_config_info{block_size="32",cache_dtype="auto",mamba_block_size="None",num_cpu_blocks="None",num_gpu_blocks="8192",num_gpu_blocks_override="None"} 1.0', {"num_gpu_blocks": 8192, "block_size": 32, "num_cpu_blocks": None}),
    "name cut off": ("blocks: 2104, # CPU blocks: 1024", {"num_gpu_blocks": 2104, "num_cpu_blocks": 1024}),
    "V1, # cut off": ("GPU blocks: 33660", {"num_gpu_blocks": 33660, "num_cpu_blocks": None}),
    "blocks of something else": (f"{STAMP} [a.py:1] GPU blocks: 100 total, 20 free", {"num_gpu_blocks": None}),
    "an override for a trial run": (f"{STAMP} [kv_cache_utils.py:1087] Overriding num_gpu_blocks=8192 with num_gpu_blocks_override=512", {"num_gpu_blocks": None}),
    "blocks on disk": (f"{STAMP} [worker.py:214] SimpleCPUOffloadWorker [CPU]: 2 tensors, 99 CPU blocks (1.00 GB)", {"num_cpu_blocks": None, "available_kv_cache_gib": None}),
    # --- block size
    "default args of V1": ("Namespace(model='m', block_size=None, seed=0)", {"block_size": None}),
    "echoed command": ("+ vllm serve m --block-size 64 --max-num-seqs 8", {"block_size": 64}),
    "other block sizes": ("Namespace(quantization_config={'weight_block_size': [128, 128]}, mamba_block_size=8)", {"block_size": None}),
    "set by the platform": (f"{STAMP} [cuda.py:114] Forcing kv cache block size to 64 for FlashMLA backend.", {"block_size": 64, "attention_backend": None}),
    "in a platform's refusal": ("RuntimeError: --block-size=64 requires ipex", {"block_size": None}),
    "in a backend's refusal": ("ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=128, block_size=8, use_mla=False). Reasons: {FLASH_ATTN: [block_size not supported]}.", {"block_size": None}),
    # --- KV cache
    "with a host pool": (f"{STAMP} [kv_cache_utils.py:2327] GPU + host KV cache size: 1,048,576 tokens, Maximum concurrency for 131,072 tokens per request: 8.00x", {"kv_cache_tokens": 1048576, "max_concurrency": 8.0, "max_concurrency_tokens_per_request": 131072}),
    "the shape of what a connector sends": (f"{STAMP} [mooncake_engine.py:102] num_blocks: 566, block_shape: torch.Size([128, 8, 128])", {"num_gpu_blocks": None}),
    "cut in the first word": ("mum concurrency for 32768 tokens per request: 2.69x", {"max_concurrency": 2.69, "max_concurrency_tokens_per_request": 32768}),
    "negative memory": (f"{STAMP} [gpu_worker.py:276] Available KV cache memory: -0.53 GiB", {"available_kv_cache_gib": -0.53}),
    "memory in MiB": (f"{STAMP} [gpu_worker.py:276] Available KV cache memory: 512.0 MiB", {"available_kv_cache_gib": 0.5}),
    "0.6.3 profile": (f"{STAMP} worker.py:232] Memory profiling results: total_gpu_memory=44.53GiB initial_memory_usage=15.31GiB peak_torch_memory=16.40GiB memory_usage_post_profile=15.36Gib non_torch_memory=0.15GiB kv_cache_size=23.53GiB gpu_memory_utilization=0.90", {"available_kv_cache_gib": 23.53, "peak_activation_gib": None}),
    "asked for in bytes": (f"{STAMP} [gpu_worker.py:655] Initial free memory 78.5 GiB, reserved 20.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling. If OOM'ed, check the difference.", {"available_kv_cache_gib": 20.0}),
    "a framework's own settings": ("2024-03-11 02:55:27,501 core 249 INFO     Loading m with following model config: {'block_size': 16, 'swap_space': 4}", {"block_size": 16}),
    "auto-fit": (f"{STAMP} [kv_cache_utils.py:2468] Auto-fit max_model_len: reduced from 131072 to 40960 to fit in available KV cache memory (5.0 GiB)", {"available_kv_cache_gib": 5.0, "status": None}),
    "memory of a host": ("ValueError: Available memory on node 0 (3.1/7.7 GiB) on kv cache allocation is less than requested", {"available_kv_cache_gib": None}),
    "Gaudi V1": (f"{STAMP} hpu_worker.py:240] Free device memory: 79.16 GiB, 39.58 GiB usable (gpu_memory_utilization=0.5), 15.83 GiB reserved for HPUGraphs (VLLM_GRAPH_RESERVED_MEM=0.4), 8.0 MiB reserved for KV cache dummy block 23.5 GiB reserved for usable KV cache", {"available_kv_cache_gib": 23.5}),
    # --- memory
    "peak with the weights in it": (f"{STAMP} worker.py:1] Memory profiling results: peak_torch_memory=17.06GiB, non_torch_memory=0.35GiB", {"peak_activation_gib": None, "model_weights_gib": None}),
    "Gaudi weights, first on the device": (f"{STAMP} hpu_model_runner.py:712] Pre-loading model weights on hpu:0 took 79.41 GiB of device memory (79.41 GiB/94.62 GiB used) and 4.706 GiB of host memory (98.92 GiB/1007 GiB used)", {"model_weights_gib": 79.41}),
    "Gaudi cache": (f"{STAMP} hpu_worker.py:238] Initializing cache engine took 23.73 GiB of device memory (54.34 GiB/94.62 GiB used)", {"available_kv_cache_gib": 23.73}),
    "seconds are no size": (f"{STAMP} [default_loader.py:262] Loading weights took 3.03 seconds", {"model_weights_gib": None}),
    "0.9 profile": (f"{STAMP} [gpu_worker.py:227] Memory profiling takes 11.20 seconds. Total non KV cache memory: 20.19GiB; torch peak memory increase: 1.42GiB; non-torch forward increase memory: 0.51GiB; weights memory: 18.26GiB.", {"model_weights_gib": 18.26, "peak_activation_gib": 1.42}),
    "0.32 usage": (f"{STAMP} [gpu_worker.py:1014] Actual usage is 15.4 GiB for consumed memory (weights + non-torch), 1.1 GiB for peak activation, and 0.0 GiB for CUDAGraph memory. Current kv cache memory in use is 50.0 GiB.", {"model_weights_gib": None, "peak_activation_gib": 1.1, "cuda_graph_gib": 0.0, "available_kv_cache_gib": 50.0}),
    "Ascend usage": (f"{STAMP} [worker.py:561] Actual usage: 3.87 GiB for weights, 0.04 GiB for peak activation, 0.02 GiB for non-torch memory, 0.25 GiB for NPU graph memory. Current KV cache memory: 14.46 GiB.", {"model_weights_gib": 3.87, "cuda_graph_gib": 0.25, "available_kv_cache_gib": 14.46}),
    "graphs without a size": (f"{STAMP} model_runner.py:1530] Graph capturing finished in 13 secs.", {"cuda_graph_gib": None}),
    "estimate of graphs": (f"{STAMP} [gpu_model_runner.py:6475] Estimated CUDA graph memory: 0.64 GiB total", {"cuda_graph_gib": None}),
    "encoder graphs": (f"{STAMP} [mm.py:95] Encoder graph capturing finished in 2 secs, took 0.10 GiB (8 graphs)", {"cuda_graph_gib": None}),
    # --- attention
    "V0 sdpa": (f"{STAMP} selector.py:131] Using Torch SDPA backend.", {"attention_backend": "Torch SDPA"}),
    "V0 cannot": (f"{STAMP} selector.py:51] Cannot use FlashAttention-2 backend because the flash_attn package is not found.", {"attention_backend": None}),
    "V1 flash": (f"{STAMP} [cuda.py:328] Using Flash Attention backend on V1 engine.", {"attention_backend": "Flash Attention"}),
    "V1 Blackwell": (f"{STAMP} [cuda.py:253] Using FlashInfer backend with HND KV cache layout on V1 engine by default for Blackwell (SM 10.0) GPUs.", {"attention_backend": "FlashInfer"}),
    "escape codes by number": ("#033[1;36m(VllmWorkerProcess pid=237)#033[0;0m INFO 02-14 08:23:25 model_runner.py:1563] Graph capturing finished in 5 secs, took 0.47 GiB", {"cuda_graph_gib": 0.47}),
    "V1 compiled": (f"{STAMP} [backends.py:172] Compiling a graph for dynamic shape takes 24.21 s", {"graphs_from_cache": False, "compile_s": None}),
    "V1 compilation": (f"{STAMP} [monitor.py:34] torch.compile takes 32.18 s in total", {"compile_s": 32.18}),
    "V1 loaded": (f"{STAMP} [backends.py:155] Directly load the compiled graph(s) for dynamic shape from the cache, took 4.9 s", {"graphs_from_cache": True, "compile_s": None}),
    "0.32 on a CPU, which cannot load": (f"{STAMP} [decorators.py:743] [backbone] saved AOT compiled function to /vllm/torch_compile_cache/model", {"graphs_from_cache": False}),
    "V1 enum": (f"{STAMP} [cuda.py:412] Using AttentionBackendEnum.FLASH_ATTN backend.", {"attention_backend": "FLASH_ATTN"}),
    "ROCm selected": (f"{STAMP} [rocm.py:750] Using ROCM_ATTN backend (selected via --attention-backend).", {"attention_backend": "ROCM_ATTN"}),
    "forced": (f"{STAMP} [config.py:101] Forcing TRITON_ATTN backend to prevent mixed-backend numerical divergence.", {"attention_backend": "TRITON_ATTN"}),
    "instead of what the block size excludes": (f"{STAMP} [cuda.py:324] --block-size 8 precluded higher-priority backend(s) FLASH_ATTN, TRITON_ATTN. Using FLEX_ATTENTION instead, which may result in reduced performance.", {"attention_backend": "FLEX_ATTENTION", "block_size": 8}),
    "MLA": (f"{STAMP} [cuda.py:200] Using Cutlass MLA backend on V1 engine.", {"attention_backend": "Cutlass MLA"}),
    "MoE is not attention": (f"{STAMP} [x.py:1] Using FlashInfer MoE backend.", {"attention_backend": None}),
    "prefill": (f"{STAMP} [x.py:1] Using FLASH_ATTN MLA prefill backend.", {"attention_backend": None}),
    "vision": (f"{STAMP} [x.py:1] Using Flash Attention backend for ViT model.", {"attention_backend": None}),
    "sampling": (f"{STAMP} [x.py:1] Using FlashInfer for top-p & top-k sampling.", {"attention_backend": None}),
    "modeling": (f"{STAMP} [x.py:1] Using Transformers modeling backend.", {"attention_backend": None}),
    # --- serving
    "prefix cache of V1": (f"{STAMP} [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 679.1 tokens/s, Running: 56 reqs, Waiting: 42 reqs, Preemptions: 7, GPU KV cache usage: 99.4%, Prefix cache hit rate: 49.1%, External prefix cache hit rate: 12.5%, MM cache hit rate: 77.0%", {"prefix_cache_hit_rate_pct": 49.1, "preemptions": 7, "status": "ok"}),
    "prefix cache of V0": (f"{STAMP} metrics.py:471] Prefix cache hit rate: GPU: 12.34%, CPU: 0.50%", {"prefix_cache_hit_rate_pct": 12.34}),
    "preemptions in metrics": ('vllm:num_preemptions_total{engine="0",model_name="m"} 12.0', {"preemptions": 12}),
    # --- benchmarks
    "arguments whose beginning was cut off": ("False, block_size=32, enable_prefix_caching=False, disable_sliding_window=False, use_v2_block_manager=False", {"block_size": 32}),
    "throughput before 0.6.5": ("Throughput: 0.49 requests/s, 125.48 tokens/s", {"requests_per_s": 0.49, "total_tokens_per_s": 125.48, "output_tokens_per_s": None}),
    "serving before 0.3.3": ("Throughput: 3.26 requests/s", {"requests_per_s": 3.26, "total_tokens_per_s": None}),
    "serving, 0.3.3": ("Output token throughput: 218.64 tokens/s", {"output_tokens_per_s": 218.64}),
    "latency, 0.3.3": ("Median TTFT: 48.5 ms", {"ttft_ms_median": 48.5}),
    "peak rate": ("Peak output token throughput (tok/s):            900.00", {"output_tokens_per_s": None}),
    "goodput": ("Request goodput (req/s):                 1.25", {"requests_per_s": None}),
    "lower case token": ("Total token throughput (tok/s):          524.06", {"total_tokens_per_s": 524.06}),
    "throughput's file": ('{"elapsed_time": 17.6, "num_requests": 24, "total_num_tokens": 2304, "requests_per_second": 1.36, "tokens_per_second": 130.6}', {"requests_per_s": 1.36, "total_tokens_per_s": 130.6, "output_tokens_per_s": None, "status": "ok"}),
    "serving's file": ('{"completed": 900, "request_throughput": 43.02, "output_throughput": 11481.0, "total_token_throughput": 54462.5, "mean_ttft_ms": 902.2, "median_ttft_ms": 877.0, "p99_ttft_ms": 1353.1, "median_tpot_ms": 43.7, "median_itl_ms": 36.9, "p99_itl_ms": 66.3}', {"requests_per_s": 43.02, "output_tokens_per_s": 11481.0, "total_tokens_per_s": 54462.5, "ttft_ms_median": 877.0, "ttft_ms_p99": 1353.1, "tpot_ms_median": 43.7, "itl_ms_median": 36.9, "itl_ms_p99": 66.3}),
}  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), PRINTED.values(), ids=PRINTED.keys())
def test_reads_what_a_version_prints(line, expected):
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
    words = re.search(r"`_WORTH_A_LOOK`, so add `([^`]+)` there", RECIPE)
    assert words
    looked_at = re.compile(f"{engine_log_facts._WORTH_A_LOOK.pattern}|{words[1]}")
    monkeypatch.setattr(engine_log_facts, "_WORTH_A_LOOK", looked_at)
    facts = parse_engine_log(line)
    assert (facts.num_gpu_blocks, facts.block_size, facts.read_from["num_gpu_blocks"]) == (5867, 16, 1)

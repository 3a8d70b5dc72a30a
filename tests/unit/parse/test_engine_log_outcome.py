# ruff: noqa: E501  (log lines are as long as the engine prints them)
"""What became of the engine. The logs are in the engine's format, shortened; names and numbers are made up."""

import pytest

from workflow_scripts.parse.engine_log import parse_engine_log

START = "INFO 05-30 16:23:00 [core.py:74] Initializing a V1 LLM engine (v0.11.0) with config: model='m'\n"
READY = "INFO 05-30 16:24:18 [core.py:214] init engine (profile, create kv cache, warmup model) took 9.10 seconds\n"
BUSY = (
    "INFO 05-30 16:25:18 [loggers.py:123] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: "
    "90.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.4%\n"
)
RESULT = "Throughput: 1.50 requests/s, 450.00 total tokens/s, 150.00 output tokens/s\n"
DEAD = (
    "(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480] AsyncLLM output_handler failed.\n"
    "(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480] Traceback (most recent call last):\n"
    '(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480]   File "/x/async_llm.py", line 439, in output_handler\n'
    "(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480]     outputs = await engine_core.get_output_async()\n"
    "(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause.\n"
)
NO_CORE = (
    "(APIServer pid=1) Traceback (most recent call last):\n"
    '(APIServer pid=1)   File "/x/v1/engine/utils.py", line 1272, in wait_for_engine_startup\n'
    "(APIServer pid=1)     raise RuntimeError(\n"
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
)


def raised(exception: str, prefix: str = "(EngineCore pid=25) ERROR 05-30 16:23:50 [core.py:700] ") -> str:
    lines = ["Traceback (most recent call last):", '  File "/x/core.py", line 1, in run', "    self.run()", exception]
    return "".join(f"{prefix}{line}\n" for line in lines)


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 23.56 GiB "
    "of which 12.88 MiB is free. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)

CAUSES = {
    "no memory for blocks": (
        "kv_too_small",
        "ValueError: No available memory for the cache blocks. Try increasing it.",
    ),
    "V0, sequence too long for the cache": (
        "kv_too_small",
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in "
        "KV cache (37696). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.",
    ),
    "V1, sequence too long for the cache": (
        "kv_too_small",
        "ValueError: To serve at least one request with the models's max seq len (32768), (4.0 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (2.11 GiB). Based on the available memory, the estimated "
        "maximum model length is 17280.",
    ),
    "auto-fit": ("kv_too_small", "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available"),
    "CPU memory": (
        "kv_too_small",
        "ValueError: Available memory on node 0 (3.1/7.7 GiB) on kv cache allocation is less than requested memory for "
        "kv (4.0 GiB). Decrease --kv-cache-memory-bytes.",
    ),
    "CUDA": ("oom", OOM),
    "old torch": ("oom", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"),
    "HIP": ("oom", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 768.00 MiB."),
    "XPU": ("oom", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 768.00 MiB."),
    "NPU": ("oom", "RuntimeError: NPU out of memory. Tried to allocate 768.00 MiB (NPU 0)"),
    "CUDA error": ("oom", "RuntimeError: CUDA error: out of memory"),
    "sampler": (
        "oom",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
    ),
    "error code": ("oom", "RuntimeError: cudaErrorMemoryAllocation"),
    "TPU": ("oom", "RuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 3.5G. That was not possible."),
    "host, from numpy": (
        "oom",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.00 GiB for an array",
    ),
    "host": ("oom", "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough memory"),
    "GPU is in use": (
        "oom",
        "ValueError: Free memory on device cuda:0 (5.1/79.2 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.3 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    "no common size": (
        "unsupported_block_size",
        "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).",
    ),
    "kernel": ("unsupported_block_size", "RuntimeError: Unsupported block size: 128"),
    "multiple": ("unsupported_block_size", "ValueError: Block size must be a multiple of 16."),
    "no backend for the size": (
        "unsupported_block_size",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=128, block_size=8). "
        "Reasons: {FLASH_ATTN: [block_size not supported], TURBOQUANT: [kv_cache_dtype not supported, block_size not "
        "supported]}.",
    ),
    "the chosen backend": (
        "unsupported_block_size",
        "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: "
        "['block_size not supported']",
    ),
    "the chosen backend for the head": (
        "error",
        "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: "
        "['head_size not supported', 'block_size not supported']",
    ),
    "no backend for the head": (
        "error",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=72, block_size=8). "
        "Reasons: {FLASH_ATTN: [head_size not supported], FLASHINFER: [head_size not supported, block_size not "
        "supported]}.",
    ),
    "shared memory of a kernel": ("error", "triton.runtime.errors.OutOfResources: out of resource: shared memory"),
    "illegal access": ("error", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    "no message": ("error", "AssertionError"),
    "model": ("error", "OSError: some/model is not a local folder and is not a valid model identifier"),
}


@pytest.mark.parametrize(("status", "exception"), CAUSES.values(), ids=CAUSES.keys())
def test_cause_is_found_far_above_the_generic_failure(status, exception):
    log = START + raised(exception) + raised(exception, "(EngineCore pid=25) ") + NO_CORE

    facts = parse_engine_log(log)

    assert (facts.status, facts.error) == (status, exception)
    assert facts.read_from["error"] == (9 if status == "error" else 5)


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "(RayWorkerWrapper pid=7, ip=10.0.0.1) ", "vllm-1  | "])
def test_cause_without_a_logger(prefix):
    facts = parse_engine_log(START + raised(OOM, prefix))

    assert (facts.status, facts.error) == ("oom", OOM)


def test_error_that_v0_logs_before_its_traceback():
    words = (
        "The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache"
    )
    facts = parse_engine_log(f"ERROR 03-25 21:32:48 engine.py:387] {words} (37696).\n")

    assert (facts.status, facts.error) == ("kv_too_small", f"{words} (37696).")


def test_generic_failure_is_better_than_nothing():
    facts = parse_engine_log(START + NO_CORE)

    assert facts.status == "error"
    assert facts.error is not None
    assert "Engine core initialization failed" in facts.error


def test_engine_without_kv_memory_that_did_not_come_up():
    memory = "INFO 09-06 03:10:08 [gpu_worker.py:276] Available KV cache memory: -0.53 GiB\n"
    failed = "ERROR 09-06 03:10:08 [core.py:700] EngineCore failed to start.\n"

    assert parse_engine_log(memory + failed).status == "kv_too_small"
    assert parse_engine_log(memory + failed).error == "EngineCore failed to start."
    assert parse_engine_log(memory).error == "Available KV cache memory: -0.53 GiB"
    blocks = parse_engine_log("INFO 05-30 16:23:28 a.py:1] # GPU blocks: 0, # CPU blocks: 1024")
    assert (blocks.status, blocks.error) == ("kv_too_small", "# GPU blocks: 0, # CPU blocks: 1024")
    assert parse_engine_log(memory + READY).status == "ok"


def test_pydantic_reasons_are_part_of_the_error():
    facts = parse_engine_log(
        "(APIServer pid=1) Traceback (most recent call last):\n"
        '(APIServer pid=1)   File "/x/arg_utils.py", line 1614, in create_model_config\n'
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\n"
        "(APIServer pid=1) block_size\n"
        "(APIServer pid=1)   Input should be 1, 8, 16, 32, 64 or 128 [type=literal_error, input_value=7, input_type=int]\n"
        "(APIServer pid=1)     For further information visit https://errors.pydantic.dev/2.13/v/literal_error\n"
    )

    assert facts.status == "unsupported_block_size"
    assert facts.error == (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig block_size Input should be 1, "
        "8, 16, 32, 64 or 128"
    )


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("vllm: error: unrecognized arguments: --no-such-flag 3", "error"),
        (
            "vllm serve: error: argument --block-size: invalid choice: 7 (choose from 8, 16, 32)",
            "unsupported_block_size",
        ),
        ("api_server.py: error: argument --dtype: invalid choice: 'int9'", "error"),
        ("/usr/bin/python3: No module named vllm", "error"),
        ("bash: line 1: vllm: command not found", "error"),
    ],
)
def test_command_line_is_refused(line, status):
    facts = parse_engine_log(f"usage: vllm [-h] [-v]\n{line}\n")

    assert (facts.status, facts.error) == (status, line)


@pytest.mark.parametrize(
    "line",
    [
        "Killed",
        "./serve.sh: line 3: 4242 Killed                  python -m vllm.entrypoints.openai.api_server",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.batch. Some of the step tasks have been OOM Killed.",
        "srun: error: node1: task 0: Out Of Memory",
        "[ 99.1] Out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:99kB",
        "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': 'killed by signal 9'}",
        "(EngineCore pid=9) ERROR 05-30 16:26:00 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), "
        "shutting down executor.",
    ],
)
def test_host_kills_the_engine(line):
    assert parse_engine_log(START + line + "\n").status == "oom"


def test_rays_list_of_guesses_is_no_cause():
    facts = parse_engine_log(
        START
        + "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task. There are some potential "
        "root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.\n" + NO_CORE
    )

    assert facts.status == "error"


def test_time_limit_is_no_lack_of_memory():
    facts = parse_engine_log(
        START
        + "slurmstepd: error: *** JOB 77 ON node1 CANCELLED AT 2024-05-30T16:26:00 DUE TO TIME LIMIT ***\n"
        + "srun: error: node1: task 0: Killed\n"
    )

    assert facts.status == "error"
    assert facts.error is not None
    assert "TIME LIMIT" in facts.error


@pytest.mark.parametrize(
    "line",
    [
        "INFO 05-30 16:23:35 model_runner.py:1434] Capturing cudagraphs for decoding. If out-of-memory error occurs during "
        "cudagraph capture, consider decreasing `gpu_memory_utilization`.",
        "INFO 05-30 16:23:35 model_runner.py:1387] CUDA graphs can take additional 1~3 GiB memory per GPU. If you are "
        "running out of memory, consider decreasing it.",
        "WARNING 05-30 20:39:31 [_custom_ops.py:21] Failed to import from vllm._C with ImportError('libcuda.so.1: cannot "
        "open shared object file: No such file or directory')",
        "WARNING 05-30 20:39:31 [x.py:1] torch.OutOfMemoryError: CUDA out of memory, trying a smaller size",
        "ERROR 09-10 23:26:29 [config.py:130] Error retrieving safetensors: 'm' is not a safetensors repo., retrying 1 of 2",
        "INFO 05-30 16:23:35 [gpu_worker.py:1014] Free memory on device (78.5/79.25 GiB) on startup. Desired GPU memory "
        "utilization is (0.9, 71.33 GiB).",
        "WARNING 05-30 16:23:35 [cuda.py:480] --block-size 8 precluded higher-priority backend(s) FLASH_ATTN. Using "
        "FLEX_ATTENTION instead, which may result in reduced performance.",
        "[rank0]:[W1023 03:36:18.515738333 ProcessGroupNCCL.cpp:1326] Warning: WARNING: process group has NOT been destroyed",
        "DEBUG 05-30 16:23:35 [cuda.py:460] Some attention backends are not valid for cuda with block_size=8. Reasons: {A: "
        "[block_size not supported]}.",
    ],
)
def test_scary_words_that_are_no_failure(line):
    assert parse_engine_log(START + line + "\n").status is None
    assert parse_engine_log(START + line + "\n" + READY).status == "ok"
    assert parse_engine_log(START + READY + line + "\n").status == "ok"


@pytest.mark.parametrize(
    "sign",
    [
        READY,
        BUSY,
        RESULT,
        "INFO:     Application startup complete.\n",
        "INFO 05-30 16:24:18 model_runner.py:1562] Graph capturing finished in 43 secs, took 0.17 GiB\n",
        "Processed prompts: 100%|████| 8/8 [00:04<00:00,  1.74it/s, est. speed input: 224.85 toks/s]\n",
        'INFO:     127.0.0.1:45354 - "POST /v1/completions HTTP/1.1" 200 OK\n',
        "Successful requests:                     32        \n",
    ],
)
def test_signs_of_life(sign):
    assert parse_engine_log(sign).status == "ok"
    assert parse_engine_log(sign).error is None


def test_blocks_alone_are_no_sign_of_life():
    assert parse_engine_log("INFO 11-18 11:23:28 a.py:57] # GPU blocks: 46921, # CPU blocks: 4161\n").status is None


def test_benchmark_whose_requests_all_failed():
    assert parse_engine_log(BUSY + "Successful requests:                     0         \n").status == "error"
    assert parse_engine_log('{"completed": 0, "failed": 8, "request_throughput": 0.0}').status == "error"


def test_errors_of_an_attempt_before_do_not_count():
    assert parse_engine_log(START + raised(OOM) + NO_CORE + START + READY).status == "ok"


def test_failure_of_the_last_attempt_counts():
    assert parse_engine_log(START + READY + RESULT + START + raised(OOM)).status == "oom"
    assert parse_engine_log(START + raised(OOM) + NO_CORE + START).status == "oom"


def test_error_of_a_request_is_not_the_engines():
    log_error = raised(
        "ValueError: This model's maximum context length is 2048 tokens.", "ERROR 05-30 16:26:00 [s.py:200] "
    )
    uvicorn = (
        "ERROR:    Exception in ASGI application\n"
        "Traceback (most recent call last):\n"
        '  File "/x/starlette/responses.py", line 257, in __call__\n'
        "asyncio.exceptions.CancelledError: Cancelled by cancel scope 73c9c6fba430\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "/x/uvicorn/httptools_impl.py", line 401, in run_asgi\n'
        "exceptiongroup.ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
    )

    assert parse_engine_log(START + READY + log_error).status == "ok"
    assert parse_engine_log(START + READY + uvicorn).status == "ok"


def test_engine_that_dies_while_serving():
    facts = parse_engine_log(START + READY + BUSY + raised(OOM) + BUSY + DEAD + BUSY)

    assert (facts.status, facts.error) == ("oom", OOM)
    assert parse_engine_log(START + READY + BUSY + DEAD).status == "error"


def test_offline_script_that_crashes_while_generating():
    facts = parse_engine_log(START + READY + raised("RuntimeError: something broke", ""))

    assert (facts.status, facts.error) == ("error", "RuntimeError: something broke")


def test_noise_after_the_result_does_not_count():
    assert parse_engine_log(START + READY + RESULT + DEAD + "Killed\n").status == "ok"
    assert parse_engine_log(START + READY + RESULT + DEAD + START).status is None


def test_an_exception_that_was_lived_with_is_not_the_cause():
    facts = parse_engine_log(
        START
        + raised("subprocess.CalledProcessError: Command 'x' returned 1", "ERROR 05-30 16:23:01 [registry.py:354] ")
        + raised("ValueError: Model architectures ['New'] failed to be inspected.", "")
    )

    assert facts.error == "ValueError: Model architectures ['New'] failed to be inspected."


@pytest.mark.parametrize(
    "stop", ["INFO:     Shutting down\n", "INFO 05-30 16:26:00 [l.py:1] Shutting down FastAPI HTTP server.\n"]
)
def test_workers_that_die_when_the_server_is_stopped(stop):
    died = "ERROR 05-30 16:26:01 [core_client.py:562] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n"

    assert parse_engine_log(START + READY + stop + died).status == "ok"
    assert parse_engine_log(START + READY + died + stop).status == "error"
    assert parse_engine_log(START + READY + raised(OOM) + DEAD + stop).status == "oom"


def test_somebody_stopped_the_server():
    stopped = 'Traceback (most recent call last):\n  File "/x/api_server.py", line 1, in main\nKeyboardInterrupt\n'

    assert parse_engine_log(START + READY + stopped).status == "ok"


def test_the_end_of_the_first_chain_is_the_cause():
    facts = parse_engine_log(
        START
        + raised("KeyError: 'qwen9'", "")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised("ValueError: The checkpoint you are trying to load has model type `qwen9`", "")
        + raised("AttributeError: 'LLM' object has no attribute 'llm_engine'", "")
    )

    assert facts.error == "ValueError: The checkpoint you are trying to load has model type `qwen9`"


def test_exception_in_a_destructor_is_not_the_cause():
    facts = parse_engine_log(
        START
        + "Exception ignored in: <function LLM.__del__ at 0x7f>\n"
        + raised("AttributeError: 'LLM' object has no attribute 'llm_engine'", "")
    )

    assert facts.status is None


def test_ranks_that_print_at_once_are_told_apart():
    one, other = "(Worker_TP0 pid=1) ", "(Worker_TP1 pid=2) "
    facts = parse_engine_log(
        START
        + f"{one}Traceback (most recent call last):\n{other}Traceback (most recent call last):\n"
        + f'{one}  File "/x/a.py", line 1, in f\n{other}  File "/x/a.py", line 1, in f\n'
        + f"{one}{OOM}\n{other}{OOM}\n"
        + NO_CORE
    )

    assert (facts.status, facts.error, facts.read_from["error"]) == ("oom", OOM, 6)

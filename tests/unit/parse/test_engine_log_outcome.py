# ruff: noqa: E501  (log lines are as long as the engine prints them)
"""How the engine ended. The logs are in the engine's format, shortened; names and numbers are made up."""

import textwrap

import pytest

from workflow_scripts.parse.engine_log import parse_engine_log

START = "INFO 05-30 16:23:00 [core.py:74] Initializing a V1 LLM engine (v0.11.0) with config: model='m'\n"
READY = "INFO 05-30 16:24:18 [core.py:214] init engine (profile, create kv cache, warmup model) took 9.10 seconds\n"
BUSY = "INFO 05-30 16:25:18 [loggers.py:123] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 90.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.4%\n"
RESULT = "Throughput: 1.50 requests/s, 450.00 total tokens/s, 150.00 output tokens/s\n"
DEAD = (
    "(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480] AsyncLLM output_handler failed.\n"
    "(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480] Traceback (most recent call last):\n"
    '(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480]   File "/x/async_llm.py", line 439, in output_handler\n'
    "(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480]     outputs = await engine_core.get_output_async()\n"
    "(APIServer pid=1) ERROR 05-30 16:26:00 [async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
)
NO_CORE = (
    "(APIServer pid=1) Traceback (most recent call last):\n"
    '(APIServer pid=1)   File "/x/v1/engine/utils.py", line 1272, in wait_for_engine_startup\n'
    "(APIServer pid=1)     raise RuntimeError(\n"
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
)


def ended(log: str) -> tuple[str | None, str | None]:
    """The status and the error of a log."""
    facts = parse_engine_log(log)
    return facts.status, facts.error


def raised(exception: str, prefix: str = "(EngineCore pid=25) ERROR 05-30 16:23:50 [core.py:700] ") -> str:
    lines = ["Traceback (most recent call last):", '  File "/x/core.py", line 1, in run', "    self.run()", exception]
    return "".join(f"{prefix}{line}\n" for line in lines)


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 23.56 GiB of which 12.88 MiB is free. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."

CAUSES = {
    "V1, sequence too long for the cache": ("kv_too_small", "ValueError: To serve at least one request with the models's max seq len (32768), (4.0 GiB KV cache is needed, which is larger than the available KV cache memory (2.11 GiB). Based on the available memory, the estimated maximum model length is 17280."),
    "auto-fit": ("kv_too_small", "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available"),
    "Metal": ("kv_too_small", "ValueError: Paged attention: not enough Metal memory for KV cache. metal_limit=14.30GB, fraction=0.5, kv_budget=-0.38GB. Mitigations: use a smaller model."),
    "TPU memory": ("kv_too_small", "ValueError: total_hbm_used_gb=30.1GiB exceeds total_hbm_limit_cap_gb=28.74GiB by 1.36GiB. Please consider increasing --gpu-memory-utilization."),
    "CPU memory": ("kv_too_small", "ValueError: Available memory on node 0 (3.1/7.7 GiB) on kv cache allocation is less than requested memory for kv (4.0 GiB). Decrease --kv-cache-memory-bytes."),
    "sampler": ("oom", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."),
    "torch, plainly": ("oom", "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory."),
    "Gaudi": ("oom", "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::9 (896)MB"),
    "Ascend, by its runtime": ("oom", "RuntimeError: EL0004: Failed to allocate memory."),
    "states of Mamba": ("kv_too_small", "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (120). Each decode sequence requires one."),
    "error code": ("oom", "RuntimeError: cudaErrorMemoryAllocation"),
    "TPU": ("oom", "RuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 3.5G. That was not possible."),
    "host, from numpy": ("oom", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.00 GiB for an array"),
    "host": ("oom", "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough memory"),
    "GPU is in use": ("oom", "ValueError: Free memory on device cuda:0 (5.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.9, 71.3 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."),
    "kernel": ("unsupported_block_size", "RuntimeError: Unsupported block size: 128"),
    "multiple": ("unsupported_block_size", "ValueError: Block size must be a multiple of 16."),
    "a number": ("unsupported_block_size", "RuntimeError: paged attention: block_size (8) not supported"),
    "MLA of ROCm": ("unsupported_block_size", "AssertionError: AITER MLA requires only block size 1."),
    "CPU without IPEX": ("unsupported_block_size", "RuntimeError: --block-size=64 requires intel_extension_for_pytorch"),
    "FlexAttention": ("unsupported_block_size", "ValueError: FlexAttention currently requires the cache block size (48) to be equal to the kv_block_size (16)."),
    "nothing in common": ("unsupported_block_size", "ValueError: The attention backends share no supported KV cache block size (A: [64]; B: [MultipleOf(24)])."),
    "quantization in blocks": ("error", "ValueError: The quantization block size of weight must have 2 dimensions, weight block size [64] is not supported"),
    "FP4 in blocks": ("error", "ValueError: nvfp4 only supports block_size = 16."),
    "type of a parameter": ("error", "ValueError: infer_schema(func): Parameter block_size has unsupported type list[int]."),
    "size that has to be set": ("error", "AssertionError: When prefix caching is enabled, block_size must be set."),
    "collectives of ROCm": ("oom", "RuntimeError: [FATAL ERROR]: HIP failure: 'out of memory' (in ncclCommInitRank)"),
    "no backend for the size": ("unsupported_block_size", "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=128, block_size=8). Reasons: {FLASH_ATTN: [block_size not supported], TURBOQUANT: [kv_cache_dtype not supported, block_size not supported]}."),
    "the chosen backend": ("unsupported_block_size", "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: ['block_size not supported']"),
    "the chosen backend for the head": ("error", "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: ['head_size not supported', 'block_size not supported']"),
    "no backend for the head": ("error", "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=72, block_size=8). Reasons: {FLASH_ATTN: [head_size not supported], FLASHINFER: [head_size not supported, block_size not supported]}."),
    "shared memory of a kernel": ("error", "triton.runtime.errors.OutOfResources: out of resource: shared memory"),
    "illegal access": ("error", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    "no message": ("error", "AssertionError"),
    "lack of memory": ("oom", "RuntimeError: SYS_EBUS: Lack of device memory. (code: -16)"),
    "ran out of memory": ("oom", "RuntimeError: [driver] ran Out of Memory while loading"),
    "advice about memory": ("error", "ValueError: Too many graphs. This may run out of memory."),
    "model": ("error", "OSError: some/model is not a local folder and is not a valid model identifier"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "exception"), CAUSES.values(), ids=CAUSES.keys())
def test_cause_is_found_far_above_the_generic_failure(status, exception):
    log = START + raised(exception) + raised(exception, "(EngineCore pid=25) ") + NO_CORE
    facts = parse_engine_log(log)
    assert (facts.status, facts.error) == (status, exception)
    assert facts.read_from["error"] == (9 if status == "error" else 5)


NAMELESS = {
    "V0": ("kv_too_small", "The model's max seq len (9216) is larger than the maximum number of tokens that can be stored in KV cache (8064). Try increasing `gpu_memory_utilization`."),
    "V1": ("kv_too_small", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
    "device": ("oom", "CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of 23.50 GiB."),
    "block size": ("unsupported_block_size", "No common block size for 24 (CPU_ATTN: [MultipleOf(32)])."),
    "Pydantic": ("error", "Value error, Eagle3 is only supported for ['llama']. [type=value_error, input_value=1]"),
    "TPU": ("oom", "Exception in device=TPU:6: RESOURCE_EXHAUSTED: Attempting to reserve 10.51G."),
    "dtype": ("error", "Bfloat16 is only supported on GPUs with compute capability of at least 8.0."),
}  # fmt: skip


@pytest.mark.parametrize(("status", "message"), NAMELESS.values(), ids=NAMELESS.keys())
@pytest.mark.parametrize("rest", ["", "[core.py:700] ", "R 05-30 16:23:50 [core.py:700] ", "engine.py:387] "])
def test_message_whose_exception_was_cut_off(status, message, rest):
    assert ended(f"{rest}{message}\n") == (status, message)


LEFT_OF_A_PREFIX = (
    *("[core.py:700] ", "05-30 16:23:50 [core.py:700] ", "ERROR 2026-05-30 16:23:50.123 [core.py:700] ", "  **", "  "),
    *("  | [2026-05-30T16:23:50Z] ERROR 05-30 16:23:50 [core.py:700] ", "2026-05-30 16:23:50 | ERROR | stderr | "),
    *("**(VllmWorker TP0 pid=174579)** ERROR 05-30 16:23:50 \\[multiproc\\_executor.py:559\\] ", "vLLM STDERR: "),
    *("[1,0]<stderr>:", "[WARN ] PyProcess - W-206-model-stdout: ", "INFO  PyProcess W-162-model-stdout: "),
    *("2026-05-30T16:23:50,595 [INFO ] W-9000-model_1.0-stdout MODEL_LOG - ", "> - 2026-05-30T16:23:50.700+00:00 "),
    *("2026-05-30 16:23:50.257 [Error] (Process) (EngineCore pid=2651) ", "vllm_vllm.1.x7@node1    | ", "\u258e "),
    *("6\u6708 10 16:45:05 node1 bash[107468]: ", "[16:23:50] ", "`(EngineCore_DP0 pid=25) ", "(EngineCore_DP0) "),
    *("core.py:700] ", "2026-05-30 16:23:50.123 | (EngineCore_DP0 pid=25) ", "[rank0]: ", "vllm-1  | "),
    "(RayWorkerWrapper pid=7, ip=10.0.0.1) ",
)


@pytest.mark.parametrize("prefix", LEFT_OF_A_PREFIX)
def test_traceback_behind_what_is_left_of_a_prefix(prefix):
    facts = parse_engine_log(raised("KeyError: 'layers.7'", prefix))
    assert (facts.status, facts.error, facts.read_from["error"]) == ("error", "KeyError: 'layers.7'", 4)


FRAMES = ["Traceback (most recent call last):", '  File "/x/kv.py", line 7, in check', "    verify("]
STATEMENT = ['    raise ValueError("No available memory for the cache blocks. "', "                     'Add some.')"]


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("prefix", ["", "(EngineCore pid=25) ERROR 05-30 16:23:50 [core.py:700] "])
def test_traceback_without_its_exception_tells_what_it_was_about_to_raise(first, prefix):
    lines = [*FRAMES, '  File "/x/kv.py", line 9, in verify', *STATEMENT]
    facts = parse_engine_log("".join(f"{prefix}{line}\n" for line in lines[first:]))
    outcome = (facts.status, facts.error, facts.read_from["error"])
    assert outcome == ("kv_too_small", "ValueError: No available memory for the cache blocks. Add some.", 5 - first)


@pytest.mark.parametrize("joint", [", ", ": "])
def test_cause_in_the_line_that_announces_the_traceback(joint):
    words = "The model's max seq len (9216) is larger than the maximum number of tokens that can be stored in KV cache (8064)."
    head = f"ERROR 05-30 16:23:50 [w.py:233] Exception in worker W while processing method initialize_cache: {words}"
    status, error = ended(f"{START}{head}{joint}Traceback (most recent call last):\n")
    assert (status, str(error)[-len(words) :]) == ("kv_too_small", words)


def test_log_that_is_cut_off_within_a_prefix_of_an_error():
    lines = [*FRAMES, '  File "/x/kv.py", line 9, in verify', *STATEMENT]
    log = "".join(f"ERROR 05-30 16:23:50 [core.py:700] {line}\n" for line in lines)
    for end in ("", " 05-30", " 05-30 16:23", " 05-30 16:23:50 [cor", " 05-30 16:23:50 [core.py:7"):
        assert ended(f"{log}ERROR{end}") == ended(log)
    error = [f"ERROR 05-30 16:23:50 serving_chat.py:170] {line}" for line in FRAMES]
    assert parse_engine_log(START + READY + "\n".join([*error, "ER"])).status == "ok"
    assert parse_engine_log(START + "\n".join([*error, "ER"])).status == "error"


NOTEBOOK = """---------------------------------------------------------------------------
{name}                                Traceback (most recent call last)
Cell In[3], line 1
----> 1 llm = LLM(model="m")

File /usr/lib/python3/site-packages/vllm/llm.py:109, in LLM.__init__(self)
    107 engine_args = EngineArgs(
--> 109 self.llm_engine = LLMEngine.from_engine_args(

"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/x/anyio.py", line 85, in __aexit__
  |     raise
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/x/uvicorn.py", line 1, in run
    | ValueError: boom
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/x/uvicorn.py", line 2, in run
    | KeyError: 'boom'
    +------------------------------------
"""
QUOTED = "future: <Task finished name='Task-2' coro=<Engine.run() done> exception={}>\n"
RAYS_GUESSES = "potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.\n"
QUOTED_OOM = "OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 MiB')"
KEY_IN_A_MESSAGE = "ERROR 05-30 16:23:50 [run.py:8] no engine: KeyError('qwen9')\n"
RETRYING = "ERROR 05-30 16:23:50 [run.py:8] TimeoutError('no answer'), retrying 1 of 2\n"
NO_KERNELS = "WARNING 05-30 16:23:50 [run.py:8] no kernels: ImportError('libcuda.so.1')\n"
NO_MEMORY = "INFO 09-06 03:10:08 [gpu_worker.py:276] Available KV cache memory: -0.53 GiB\n"
NO_BLOCKS = "INFO 05-30 16:23:28 a.py:1] # GPU blocks: 0, # CPU blocks: 1024\n"
ON_A_PROCESSOR = "Processed prompts:   0%|      | 0/1000 [00:00<?, ?it/s]" + raised("KeyError: 'q'", "")
STOPPED = 'Traceback (most recent call last):\n  File "/x/api_server.py", line 1, in main\nKeyboardInterrupt\n'
OF_A_REQUEST = 'ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n  File "/x/routes.py", line 7, in call\n'
IN_THE_LOOP = '  File "/x/async_llm_engine.py", line 351, in run_engine_loop\nRuntimeError: Task was killed due to the node running low on memory.\n'
CANCELLED = (
    "asyncio.exceptions.CancelledError: Cancelled by cancel scope 73c9c6fba430\n\n"
    "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
    '  File "/x/uvicorn/httptools_impl.py", line 401, in run_asgi\n'
    "exceptiongroup.ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
)
TOO_LONG = raised("ValueError: This model's maximum context length is 2048 tokens.", "ERROR 05-30 16:26:00 [s.py:200] ")
SHUTDOWNS = "INFO:     Shutting down\n", "INFO 05-30 16:26:00 [l.py:1] Shutting down FastAPI HTTP server.\n"
DIED = "ERROR 05-30 16:26:01 [core_client.py:562] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n"
IN_A_WORKER = "Exception in worker W while processing method initialize_cache."
AT_CORE = "ERROR 05-30 16:23:50 [core.py:700] "
# Tracebacks of a logger that are cut off at their ends count if nothing lives.
CUTS = ["".join(f"{AT_CORE}{line}\n" for line in FRAMES[first:]) for first in range(3)]
COMPILER = "error: a.py:21:0: frame exceeds limit in 'f'", "/x/a.cu:3:7: fatal error: no a.h"
CUT_OFF = "(EngineCore pid=2) ERROR 05-30 16:23:50 [core.py:1108] "  # within the first words of an engine's error
# A line on its own is what a start printed last.
ENDED = {
    "ok": [
        READY,
        BUSY,
        RESULT,
        "INFO:     Application startup complete.",
        "INFO 05-30 16:24:18 model_runner.py:1562] Graph capturing finished in 43 secs, took 0.17 GiB",
        "Processed prompts: 100%|████| 8/8 [00:04<00:00,  1.74it/s, est. speed input: 224.85 toks/s]",
        'INFO:     127.0.0.1:45354 - "POST /v1/completions HTTP/1.1" 200 OK',
        "Successful requests:                     32        ",
        "INFO 05-30 16:24:18 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 3.33",
        # Of several attempts the last one counts.
        raised(OOM) + NO_CORE + START + READY,
        # Noise after the result, or when somebody stopped the server, is none; nor is an error of a request.
        READY + RESULT + DEAD + "Killed",
        READY + STOPPED,
        *(READY + stop + DIED for stop in SHUTDOWNS),
        READY + TOO_LONG,
        READY + OF_A_REQUEST + CANCELLED,
        *(f"{line}\n{READY}" for line in COMPILER),
        *(READY + cut for cut in [*CUTS, "\n".join(FRAMES)]),
        READY + CUT_OFF + "Engin",
        READY + CUT_OFF + "  Fil",
        READY + "ERROR:    Exception in ASGI application\n" + GROUP,
        *(line + READY for line in (QUOTED.format("KeyError('q')"), KEY_IN_A_MESSAGE, RETRYING, NO_KERNELS, NO_MEMORY)),
    ],
    None: [
        "INFO 11-18 11:23:28 a.py:57] # GPU blocks: 46921, # CPU blocks: 4161",  # no sign of life
        READY + RESULT + DEAD + START,
        f"Exception ignored in: <function LLM.__del__ at 0x7f>\n{raised('AttributeError: no engine', '')}",
        *(f"INFO 05-30 16:23:50 [w.py:233] {end}" for end in (IN_A_WORKER, "Error executing metho", "Error execut")),
        CUT_OFF.replace("core.py", "serving.py") + "Engin",
        RETRYING,
        NO_KERNELS,
        *(cut.replace("ERROR", "WARNING") for cut in CUTS),
    ],
    "unsupported_block_size": ["usage: vllm [-h]\nvllm serve: error: argument --block-size: invalid choice: 7 (choose from 8, 16, 32)"],
    "oom": [
        READY + RESULT + START + raised(OOM),
        NOTEBOOK.format(name="OutOfMemoryError"),
        QUOTED.format(QUOTED_OOM) + READY,
        raised(OOM) + NO_CORE + START,
        READY + raised(OOM) + DEAD + SHUTDOWNS[0],
        READY + OF_A_REQUEST + IN_THE_LOOP,
        raised("ray.exceptions.OutOfMe", ""),
        *(words + OOM for words in ("Error: ", "An error occurred: ", "engine failed to start (m): ", "**Error**: `")),
        "./serve.sh: line 3: 4242 Killed                  python -m vllm.entrypoints.openai.api_server",
        "      Exit Code:    137",
        "zsh: killed     vllm serve m",
        "[1]  + 4242 killed     vllm serve m",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.batch. Some of the step tasks have been OOM Killed.",
        "srun: error: node1: task 0: Out Of Memory",
        "[ 99.1] Out of memory: Killed process 4242 (VLLM::EngineCor) total-vm:99kB",
        "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': 'killed by signal 9'}",
        "(EngineCore pid=9) ERROR 05-30 16:26:00 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
        "Memory on the node where the task was running was 12.49GB / 13.15GB (0.950003), which exceeds the memory usage threshold of 0.95. Ray killed this worker because it was the most recently scheduled task.",
    ],
    "error": [
        f"ray.exceptions.ActorDiedError: There are some {RAYS_GUESSES}{NO_CORE}",
        f"(raylet) A worker died or was killed by an unexpected system error. There are some {RAYS_GUESSES}",
        NO_CORE,
        "slurmstepd: error: *** JOB 77 CANCELLED DUE TO TIME LIMIT ***\nsrun: error: task 0: Killed",
        NOTEBOOK.format(name="KeyError"),
        NOTEBOOK.split("\n\n", 1)[1],  # its beginning and its end were cut off
        BUSY + "Successful requests:                     0         ",
        '{"completed": 0, "failed": 8, "request_throughput": 0.0}',
        READY + raised("RuntimeError: something broke", ""),  # of an offline script
        READY + BUSY + DEAD,
        NO_BLOCKS + ON_A_PROCESSOR,
        READY + BUSY + "CRITICAL 05-30 16:26:00 launcher.py:101] MQLLMEngine is already dead, terminating server process",
        *(READY + DIED + stop for stop in SHUTDOWNS),
        *(f"ERROR 05-30 16:23:50 [w.py:233] {end}" for end in (IN_A_WORKER, "Error executing metho", "Error execut")),
        *(CUT_OFF + end for end in ("Engin", "Ru", "  Fil")),
        *COMPILER,
        *CUTS,
        "vllm: error: unrecognized arguments: --no-such-flag 3",
        "api_server.py: error: argument --dtype: invalid choice: 'int9'",
        "/usr/bin/python3: No module named vllm",
        "bash: line 1: vllm: command not found",
        "ERROR 05-30 16:23:50 async_llm_engine.py:157] Engine iteration timed out. This should never happen!",
        "[rank0]:[E1023 03:36:18.5 ProcessGroupNCCL.cpp:1515] [PG 0 Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
        "[E ProcessGroupNCCL.cpp:915] [Rank 0] NCCL watchdog thread terminated with exception: CUDA error: operation not permitted when stream is capturing",
        "ERROR tests/e2e/test_serving.py::test_text[server0] - RuntimeError: Server failed to start within 600 seconds",
        "ERROR:    Application startup failed. Exiting.",
        "thread 'main' panicked at 'Unable to warm up', router/src/main.rs:216:18",
        "vllm-1 exited with code 1",
        "zsh: segmentation fault (core dumped)  vllm serve m",
        "Failed: Cuda error /x/csrc/custom_all_reduce.cuh:368 'resource already mapped'",
        "2026-05-30 16:23:50.488 1 kserve ERROR [__main__.py:<module>():254] Failed to start model server: no GPU",
        "2026-05-30 16:23:50,974 xinference.core.worker 37 ERROR    Failed to load model q-1-0",
        "ERROR 05-30 16:23:50 [dump_input.py:69] Dumping input data for V1 LLM engine (v0.11.0) with config: model='m'",
        "LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl.sync.bfly.i32",
        "*** SIGSEGV received at time=1748622230 on cpu 3 ***",
        "double free or corruption (!prev)",
        "srun: error: node1: task 0: Exited with exit code 1",
        "vllm-0   0/1   CrashLoopBackOff   7 (2m ago)   20m",
        "ERROR 05-30 16:23:50 multiproc_worker_utils.py:124] Worker VllmWorkerProcess pid 9 died, exit code: -15",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("status", "log"), [(status, log) for status, logs in ENDED.items() for log in logs])
def test_how_a_log_ended(status, log):
    assert parse_engine_log(START + log).status == status


@pytest.mark.parametrize(
    "line",
    [
        "WARNING 05-30 20:39:31 [_custom_ops.py:21] Failed to import from vllm._C with ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')",
        "WARNING 05-30 20:39:31 [x.py:1] torch.OutOfMemoryError: CUDA out of memory, trying a smaller size",
        "ERROR 09-10 23:26:29 [config.py:130] Error retrieving safetensors: 'm' is not a safetensors repo., retrying 1 of 2",
        "INFO 05-30 16:23:35 [gpu_worker.py:1014] Free memory on device (78.5/79.25 GiB) on startup. Desired GPU memory utilization is (0.9, 71.33 GiB).",
        "WARNING 05-30 16:23:35 [cuda.py:480] --block-size 8 precluded higher-priority backend(s) FLASH_ATTN. Using FLEX_ATTENTION instead, which may result in reduced performance.",
        "Capturing cudagraphs for decoding. If out-of-memory error occurs during cudagraph capture, consider decreasing `gpu_memory_utilization`.",
        "CUDA graphs can take additional 1~3 GiB memory per GPU. If you are running out of memory, consider decreasing it.",
        "[cuda.py:460] Some attention backends are not valid for cuda with block_size=8. Reasons: {A: [block_size not supported]}.",
        "[rank0]:[W1023 03:36:18.515738333 ProcessGroupNCCL.cpp:1326] Warning: WARNING: process group has NOT been destroyed",
        "Error while loading a plugin: ModuleNotFoundError: No module named 'x'",
        '+        logger.info(f"Avg prompt throughput: {rate:.1f} tokens/s, "',
        "Failed to import from vllm._C with No module named 'vllm._C'",
        "No module named 'vllm.commit_id'",
        "vllm-1 exited with code 0",
    ],
)
def test_scary_words_that_are_no_failure(line):
    assert parse_engine_log(START + line + "\n").status is None
    assert parse_engine_log(START + line + "\n" + READY).status == "ok"
    assert parse_engine_log(START + READY + line + "\n").status == "ok"


LIVED = [
    "INFO 05-30 16:24:18 [launcher.py:28] Available routes are:\n",
    "INFO 05-30 16:24:18 [launcher.py:36] Route: /health, Methods: GET\n",
    "INFO 05-30 16:24:18 [api_server.py:1796] Supported_tasks: ['generate']\n",
    "INFO 05-30 16:24:18 [async_llm.py:164] Added request chatcmpl-18.\n",
    "INFO 05-30 16:24:18 [logger.py:39] Received request chatcmpl-18: prompt: 'q', params: SamplingParams(n=1\n",
    "INFO 05-30 16:24:18 [scheduler.py:495] Preempted request cmpl-18 has been resumed!\n",
    "[2026-05-30 16:24:18,321] LMCache INFO: Reqid: chatcmpl-18, Total tokens 36, LMCache hit tokens: 36\n",
    "DP rank 0, Prompt: 'Hello, my name is', Generated text: ' Joel'\n",
    "Processed prompts:   0%|          | 0/100 [00:00<?, ?it/s]\n",
    "Traffic request rate: inf\n",
    "INFO 05-30 16:24:18 [executor_base.py:210] It took 1.250000 seconds to fall asleep.\n",
    'INFO:     127.0.0.1:45354 - "GET /generate HTTP/1.1" 404 Not Found\n',
]


@pytest.mark.parametrize("sign", LIVED)
def test_weak_signs_of_life_do_not_cancel_a_failure(sign):
    failed = raised("KeyError: 'qwen9'", "")
    assert parse_engine_log(START + sign).status == "ok"
    assert parse_engine_log(START + sign + failed).status == "error"
    assert parse_engine_log(START + failed + sign).status == "error"


@pytest.mark.parametrize(
    "prefix",
    ["2026-05-30 16:23:50,123 - ", "vllm.worker - ", "[", "2026-05-30 16:23:50.123 | ", "2026-05-30 16:23:50 ["],
)
def test_levels_of_other_loggers(prefix):
    end = {"[": "] ", "|": "    | engine:run:12 - "}.get(prefix.strip()[-1], " - ")
    assert parse_engine_log(f"{prefix}ERROR{end}CUDA out of memory. Tried to allocate 2.00 GiB\n").status == "oom"
    assert parse_engine_log(f"{prefix}INFO{end}KeyError: 'x'\n").status is None


def test_ranks_that_print_at_once_are_told_apart():
    rank_0, rank_1 = "(Worker_TP0 pid=1) ", "(Worker_TP1 pid=2) "
    facts = parse_engine_log(
        START
        + f"{rank_0}Traceback (most recent call last):\n{rank_1}Traceback (most recent call last):\n"
        + f'{rank_0}  File "/x/a.py", line 1, in f\n{rank_1}  File "/x/a.py", line 1, in f\n'
        + f"{rank_0}{OOM}\n{rank_1}{OOM}\n"
        + NO_CORE
    )
    assert (facts.status, facts.error, facts.read_from["error"]) == ("oom", OOM, 6)


WRAPPED = (
    "The model's max seq len (9216) is larger than the maximum number of\ntokens that can be stored in KV cache (8064)."
)
CALLED = (
    "Traceback (most recent call last):\n"
    + '  File "/x/fire.py", line 475, in _Fire\n    call(\n  File "/x/fire.py", line\n'
)
NEW_MODEL = "ValueError: The checkpoint you are trying to load has model type `qwen9`"
EXPLAINED = {
    "dead, but printing": (START + READY + BUSY + raised(OOM) + BUSY + DEAD + BUSY, "oom", OOM),
    "a compiler's": (START + COMPILER[0] + "\n", "error", COMPILER[0]),
    "a refused option": ("usage: vllm [-h]\nvllm: error: unrecognized arguments: -x 3", "error", "vllm: error: unrecognized arguments: -x 3"),
    "in a notebook": (NOTEBOOK.format(name="OutOfMemoryError") + OOM, "oom", OOM),
    "in a notebook, unknown": (NOTEBOOK.format(name="KeyError") + "KeyError: 'q'", "error", "KeyError: 'q'"),
    "in a group": (START + GROUP.replace("ValueError: boom", OOM), "oom", OOM),
    "quoted": (START + QUOTED.format(QUOTED_OOM), "oom", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB"),
    "with a quotation mark": (START + QUOTED.format('ValueError("it\'s not known")'), "error", "ValueError: it's not known"),
    "in a message": (START + KEY_IN_A_MESSAGE, "error", "KeyError: qwen9"),
    "no memory left": (NO_MEMORY + "ERROR 09-06 03:10:08 [core.py:700] EngineCore failed to start.\n", "kv_too_small", "EngineCore failed to start."),
    "the memory itself": (NO_MEMORY, "kv_too_small", "Available KV cache memory: -0.53 GiB"),
    "no block": (NO_BLOCKS, "kv_too_small", "# GPU blocks: 0, # CPU blocks: 1024"),
    "framed by Rich": (
        "╭───── Traceback (most recent call last) ──────╮\n│ /x/cli.py:12 in main                         │\n"
        "│ ❱ 12 │   raise ValueError('no')              │\n╰──────────────────────────────────────────────╯\nValueError: no\n",
        "error", "ValueError: no"),
    "wrapped by hand": (f"ValueError: {WRAPPED}\n", "kv_too_small", f"ValueError: {WRAPPED}".replace("\n", " ")),
    "with Pydantic's reasons": (
        "(APIServer pid=1) Traceback (most recent call last):\n"
        '(APIServer pid=1)   File "/x/arg_utils.py", line 1614, in create_model_config\n'
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\n"
        "(APIServer pid=1) block_size\n"
        "(APIServer pid=1)   Input should be 1, 8, 16, 32, 64 or 128 [type=literal_error, input_value=7, input_type=int]\n"
        "(APIServer pid=1)     For further information visit https://errors.pydantic.dev/2.13/v/literal_error\n",
        "unsupported_block_size",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig block_size Input should be 1, 8, 16, 32, 64 or 128"),
    "not what the process survived": (
        START + raised("subprocess.CalledProcessError: Command 'x' returned 1", "ERROR 05-30 16:23:01 [registry.py:354] ")
        + raised("ValueError: Model architectures ['New'] failed to be inspected.", ""),
        "error", "ValueError: Model architectures ['New'] failed to be inspected."),
    "cut off": ("\n".join(FRAMES) + "\n", "error", None),
    "cut off before its words": ("\n".join(FRAMES[:2]) + '\n    raise ValueError(f"No common block size for {size}. ")', "unsupported_block_size", None),
    "told before": (f"{AT_CORE}EngineCore failed to start.\n{CUTS[0]}", "error", "EngineCore failed to start."),
    "no exception": (f"{CALLED}141, in Fire\n", "error", None),
    "the end of the first chain": (
        START + raised("KeyError: 'qwen9'", "") + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised(NEW_MODEL, "") + raised("AttributeError: 'LLM' object has no attribute 'llm_engine'", ""),
        "error", NEW_MODEL),
}  # fmt: skip


FITS_NOT = "ValueError: To serve at least one request with the models's max seq len (8192), (4.0 GiB KV cache is needed, which is larger than the available KV cache memory (2.11 GiB). Based on the available memory, the estimated maximum model length is 4320."


METAL = "ValueError: Paged attention: not enough Metal memory for KV cache. metal_limit=14.30GB, fraction=0.5, model=7.5GB, overhead=0.1GB, kv_budget=-0.38GB. Mitigations: use a smaller model."
CHOSEN = "ValueError: Block size must be a multiple of 16 for the attention backend that was selected, and block_size 24 is not supported by FLASH_ATTN on this device at all."


@pytest.mark.parametrize(
    ("message", "width"),
    [(METAL, 72), (METAL, 80), (METAL, 120), (CHOSEN, 120), (OOM, 100), (FITS_NOT, 107), (FITS_NOT, 200)],
)
def test_a_message_over_hard_line_breaks_is_read_to_its_end(message, width):
    cut = "\n".join(message[i : i + width] for i in range(0, len(message), width))
    bars = ("\u258e ", "| ", "  | ", "\u2502 ", "> ", ">> ", "> | ", "    > ")
    behind = (textwrap.indent("\n".join(textwrap.wrap(message, width)), bar) for bar in bars)
    for text in (cut, *behind):
        for after in ("", f"\n{BUSY[:70]}\n", "\nsrun: error: a: task 0: Exited\n", "\n\nmore of it\n"):
            assert ended(text + after)[1] == message


@pytest.mark.parametrize(("log", "status", "error"), EXPLAINED.values(), ids=EXPLAINED.keys())
def test_the_cause_of_a_failure(log, status, error):
    assert ended(log) == (status, error)

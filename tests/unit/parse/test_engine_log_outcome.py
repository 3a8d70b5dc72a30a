# ruff: noqa: E501  (log lines are as long as the engine prints them)
"""How the engine ended. The logs are in the engine's format, shortened; names and numbers are made up."""

import textwrap
from pathlib import Path

import pytest
import yaml

from workflow_scripts.parse.engine_log import parse_engine_log

LINES = yaml.safe_load(Path("tests/fixtures/logs/how_logs_end.yaml").read_text(encoding="utf-8"))

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

CAUSES = {name: next(iter(cause.items())) for name, cause in LINES["causes"].items()}


@pytest.mark.parametrize(("status", "exception"), CAUSES.values(), ids=CAUSES.keys())
def test_cause_is_found_far_above_the_generic_failure(status, exception):
    log = START + raised(exception) + raised(exception, "(EngineCore pid=25) ") + NO_CORE
    facts = parse_engine_log(log)
    assert (facts.status, facts.error) == (status, exception)
    assert facts.read_from["error"] == (9 if status == "error" else 5)


NAMELESS = {name: next(iter(of.items())) for name, of in LINES["messages_without_an_exception"].items()}


@pytest.mark.parametrize(("status", "message"), NAMELESS.values(), ids=NAMELESS.keys())
@pytest.mark.parametrize("rest", ["", "[core.py:700] ", "R 05-30 16:23:50 [core.py:700] ", "engine.py:387] "])
def test_message_whose_exception_was_cut_off(status, message, rest):
    assert ended(f"{rest}{message}\n") == (status, message)


LEFT_OF_A_PREFIX = LINES["what_is_left_of_prefixes"]


@pytest.mark.parametrize("prefix", LEFT_OF_A_PREFIX)
def test_traceback_behind_what_is_left_of_a_prefix(prefix):
    facts = parse_engine_log(raised("KeyError: 'layers.7'", prefix))
    assert (facts.status, facts.error, facts.read_from["error"]) == ("error", "KeyError: 'layers.7'", 4)


FRAMES = ["Traceback (most recent call last):", '  File "/x/kv.py", line 7, in check', "    verify("]


@pytest.mark.parametrize("joint", [", ", ": "])
def test_cause_in_the_line_that_announces_the_traceback(joint):
    words = "The model's max seq len (9216) is larger than the maximum number of tokens that can be stored in KV cache (8064)."
    head = f"ERROR 05-30 16:23:50 [w.py:233] Exception in worker W while processing method initialize_cache: {words}"
    status, error = ended(f"{START}{head}{joint}Traceback (most recent call last):\n")
    assert (status, str(error)[-len(words) :]) == ("kv_too_small", words)


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
# Beside the lines of the file, each of which is what a start printed last.
ENDED = {
    "ok": [
        READY,
        BUSY,
        RESULT,
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
        READY + RESULT + DEAD + START,
        f"Exception ignored in: <function LLM.__del__ at 0x7f>\n{raised('AttributeError: no engine', '')}",
        *(f"INFO 05-30 16:23:50 [w.py:233] {end}" for end in (IN_A_WORKER, "Error executing metho", "Error execut")),
        CUT_OFF.replace("core.py", "serving.py") + "Engin",
        RETRYING,
        NO_KERNELS,
        *(cut.replace("ERROR", "WARNING") for cut in CUTS),
    ],
    "oom": [
        READY + RESULT + START + raised(OOM),
        QUOTED.format(QUOTED_OOM) + READY,
        raised(OOM) + NO_CORE + START,
        READY + raised(OOM) + DEAD + SHUTDOWNS[0],
        READY + OF_A_REQUEST + IN_THE_LOOP,
        raised("ray.exceptions.OutOfMe", ""),
        *(words + OOM for words in ("Error: ", "An error occurred: ", "engine failed to start (m): ", "**Error**: `")),
    ],
    "error": [
        f"ray.exceptions.ActorDiedError: There are some {RAYS_GUESSES}{NO_CORE}",
        f"(raylet) A worker died or was killed by an unexpected system error. There are some {RAYS_GUESSES}",
        NO_CORE,
        BUSY + "Successful requests:                     0         ",
        READY + raised("RuntimeError: something broke", ""),  # of an offline script
        READY + BUSY + DEAD,
        NO_BLOCKS + ON_A_PROCESSOR,
        READY + BUSY + "CRITICAL 05-30 16:26:00 launcher.py:101] MQLLMEngine is already dead, terminating server process",
        *(READY + DIED + stop for stop in SHUTDOWNS),
        *(f"ERROR 05-30 16:23:50 [w.py:233] {end}" for end in (IN_A_WORKER, "Error executing metho", "Error execut")),
        *(CUT_OFF + end for end in ("Engin", "Ru", "  Fil")),
        *COMPILER,
        *CUTS,
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "log"), [(status, log) for of in (ENDED, LINES["ended"]) for status, logs in of.items() for log in logs]
)
def test_how_a_log_ended(status, log):
    assert parse_engine_log(START + log).status == status


@pytest.mark.parametrize("line", LINES["no_failures"])
def test_scary_words_that_are_no_failure(line):
    assert parse_engine_log(START + line + "\n").status is None
    assert parse_engine_log(START + line + "\n" + READY).status == "ok"
    assert parse_engine_log(START + READY + line + "\n").status == "ok"


LIVED = LINES["signs_of_life"]


@pytest.mark.parametrize("sign", LIVED)
def test_weak_signs_of_life_do_not_cancel_a_failure(sign):
    failed = raised("KeyError: 'qwen9'", "")
    assert parse_engine_log(START + sign).status == "ok"
    assert parse_engine_log(START + sign + failed).status == "error"
    assert parse_engine_log(START + failed + sign).status == "error"


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

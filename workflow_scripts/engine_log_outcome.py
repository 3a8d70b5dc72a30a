"""Whether the engine of a log came up, and if not, why: in its own words.

A log full of tracebacks may be of a run that went well, and a failed one may end in three of them that all say "see
above". So signs of life and signs of failure are collected in the order of the log; life after a failure wins, and of
the failures that are left the first that names a cause is the cause.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from workflow_scripts.engine_log_text import Line, what_may_follow

Status = Literal["ok", "kv_too_small", "oom", "unsupported_block_size", "error"]


@dataclass(frozen=True)
class Verdict:
    """What a log says of its engine. All None: it gives no evidence either way."""

    status: Status | None = None
    error: str | None = None
    line: int | None = None


# --- signs of life ---

_STARTS = re.compile(r"Initializing an? (?:V1 )?LLM engine|vLLM (?:API )?server version")
_LIVES = re.compile(
    r"init engine \(profile|Graph capturing finished in|cache_config_info with initialization"
    r"|Avg (?:prompt|generation) throughput|Application startup complete|Uvicorn running on|Started server process"
    r"|Starting vLLM (?:API )?server|Processed prompts: +100%|Core engine process \d+ ready"
    r"|\"POST /v1/\S+ HTTP/[\d.]+\" 200"
)
_RESULT = re.compile(r"Successful requests: +[1-9]|Throughput: [\d.]+ requests/s|\"(?:completed|num_requests)\": [1-9]")

# Somebody stopped a server: what it prints from then on, of dying workers for example, is no failure of the engine.
_STOPS = re.compile(
    r"^Shutting down(?: FastAPI HTTP server\.?)?$|Received (?:SIGINT|SIGTERM|KeyboardInterrupt)|^KeyboardInterrupt$"
)

# --- signs of failure ---

# Causes that have a status of their own, in the words of vLLM, torch and the operating system.
_CAUSES: tuple[tuple[Status, re.Pattern[str]], ...] = (
    (
        "kv_too_small",
        re.compile(
            r"No available memory for the cache blocks"
            r"|larger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV cache)"
            r"|less than requested memory for kv|Cannot auto-fit max_model_len"
        ),
    ),
    (
        "oom",
        re.compile(
            r"(?:CUDA|HIP|XPU|NPU|HPU|device|cuda(?:Malloc\w*)?) (?:error: )?out of memory|\bOutOfMemoryError\b"
            r"|\w*error: out of memory|[cC]uda failure.{0,10}out of memory"
            r"|(?:cuda|hip)Error(?:MemoryAllocation|OutOfMemory)"
            r"|OUT_OF_(?:DEVICE|HOST)_MEMORY|RESOURCE_EXHAUSTED|DefaultCPUAllocator: .*memory|std::bad_alloc"
            r"|Cannot allocate memory|(?:^|[._])(?:_Array)?MemoryError\b"
            r"|less than (?:desired (?:GPU|CPU) memory utilization|the engine's budget)",
        ),
    ),
    (
        "unsupported_block_size",
        re.compile(
            r"(?i)(?:unsupported|invalid|no common|no valid) (?:kv[ _]cache )?block[ _-]?size"
            r"|--block-size: invalid choice"
            r"|\bblock[ _-]?size\b.{0,60}?(?:(?:is|are) not supported|unsupported|must be|should be|input should)"
            r"|requires --block-size|reduce --block-size|supports? (?:only )?.{0,30}?block[ _-]?size"
            r"|: \['?block_size not supported'?\]"  # in quotes where the study itself chose the backend
        ),
    ),
)
# The host stopped a process. That is memory as a rule, but a scheduler's time limit looks the same.
_KILLED = re.compile(
    r"^(?:\S+: line \d+: +)?(?:\d+ )?Killed\b|task \d+: (?:Killed|Out Of Memory)|oom[-_]kill(?!\w* 0\b)|OOMKilled"
    r"|Out of memory: Kill|exit(?: ?code|ed with code)?[:= (]+(?:-9|137)\b|(?:signal|by signal) 9\b"
    r"|killed due to memory pressure"
)
_TIME_LIMIT = re.compile(r"DUE TO TIME LIMIT|CANCELLED AT")
# Failures that leave no exception, each with words that stand for themselves.
_OTHER_FAILURE = re.compile(
    r"^(?!srun|slurmstepd)[\w.-]+(?: [\w-]+)*: error: .+|Segmentation fault|Segfault encountered|Fatal Python error"
    r"|\(core dumped\)|terminate called after throwing|^what\(\): |Bus error|Memory access fault by GPU"
    r"|error while attempting to bind|(?:Successful requests: +|\"completed\": )0\b"
    r"|No module named '?vllm|vllm: (?:command )?not found"
)
# The engine is gone, but this line does not know why.
_GENERIC = re.compile(
    r"Engine core initialization failed|EngineCore (?:failed|encountered|hit)|Engine process failed|EngineDeadError"
    r"|Engine loop (?:has died|is not running)|Background loop (?:has errored|is not running|is stopped)"
    r"|background task failed|WorkerProc (?:initialization failed|failed|hit)|fatal signal from worker"
    r"|died unexpectedly|died with exit code|Worker failed with error|output_handler failed|Error executing method"
    r"|Call to \w+ method failed|(?:stack ?trace|root cause).{0,20}above|[Ss]ee (?:root cause|stack ?trace)"
    r"|RayTaskError|Actor\w*Error\b|ChildFailedError|CancelledError|BrokenPipeError|ConnectionResetError|ZMQError"
)
# Somebody ended it; no failure of the engine.
_INTENDED = re.compile(r"^(?:KeyboardInterrupt|SystemExit|GeneratorExit|asyncio\.exceptions\.CancelledError)\b")

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")
# Python reports an exception that it lives with: one request's, or one while cleaning up.
_SURVIVED = re.compile(r"Exception in ASGI application|Exception ignored in")
_EXCEPTION = re.compile(
    r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|OutOfResources|Timeout|BrokenProcessPool)\b(?:\(\w+\))?(?::|$)"
)
_RAY_GUESSES = re.compile(r"potential root causes")


@dataclass(frozen=True)
class _Failure:
    """A line that says that something failed. `certain`: its words name a known cause, and the engine is gone."""

    index: int  # of the line
    message: str
    status: Status
    certain: bool = False
    generic: bool = False
    chained: bool = False  # it followed from the failure before it
    harmless: bool = False  # to an engine that was serving: a request's error

    @property
    def ends_engine(self) -> bool:
        return self.certain or self.generic


def judge(lines: Sequence[Line]) -> Verdict:
    """Tell what became of the engine.

    Life after a failure takes it back, but for a failure that no engine lives through: then only a new start can. What
    happens after a benchmark has printed its result does not count, unless a new engine was started. An error that
    one request got while the engine went on serving is no failure of the engine.
    """
    failures = {failure.index: failure for failure in _failures(lines)}
    pending: list[_Failure] = []
    alive: Line | None = None
    result: Line | None = None
    gone = False
    for index, line in enumerate(lines):
        if index in failures:
            pending.append(failures[index])
            gone = gone or pending[-1].ends_engine
        elif _says(_RESULT, lines, index):
            result, pending = line, []
        elif _says(_LIVES, lines, index) and not gone:
            alive, pending = line, []
        elif alive and not pending and _STOPS.search(line.body.strip()):
            result = line
        elif _says(_STARTS, lines, index):
            pending = [] if result else pending
            result, alive, gone = None, None, False
    served = result or (alive if all(failure.harmless for failure in pending) else None)
    if served:
        return Verdict("ok", line=served.number)
    if not pending:
        return Verdict()
    cause = _cause(pending)
    return Verdict(cause.status, cause.message, lines[cause.index].number)


def _says(sign: re.Pattern[str], lines: Sequence[Line], index: int) -> bool:
    text = lines[index].text
    found = sign.search("".join([text, *what_may_follow(lines, index)]))
    return found is not None and found.start() < len(text)


def _cause(failures: Sequence[_Failure]) -> _Failure:
    """The first failure whose words name a known cause, else the end of the first chain of exceptions, else any.

    An exception that ended its process goes before one that a logger printed: that one may have been lived with.
    """
    specific = [failure for failure in failures if not failure.generic]
    certain = [failure for failure in specific if failure.certain] or [f for f in failures if f.certain]
    if certain:
        return certain[0]
    if not specific:
        return failures[0]
    uncaught = [failure for failure in specific if not failure.harmless] or specific
    cause = uncaught[0]
    for failure in uncaught[1:]:
        if not failure.chained:
            break
        cause = failure
    return cause


@dataclass
class _Stream:
    """What one process is about to print."""

    raising: bool = False  # a traceback
    chained: bool = False  # one that follows from the one before
    announced: bool = False  # one that it lives with
    survives: bool = False  # the one that it is printing


def _failures(lines: Sequence[Line]) -> Iterator[_Failure]:
    streams: dict[str | None, _Stream] = defaultdict(_Stream)
    for index, line in enumerate(lines):
        body, stream = line.body, streams[line.rank]
        if line.level in ("DEBUG", "INFO", "WARNING") or not body.strip():
            continue
        if _SURVIVED.search(body):
            stream.announced = True
        elif _CHAIN.search(body):
            stream.chained = True
        elif _TRACEBACK.search(body):
            stream.raising = True
            stream.survives = stream.announced or (stream.chained and stream.survives)
            stream.announced = False
        elif stream.raising and body[0].isspace():
            continue
        else:
            raised, chained = stream.raising, stream.chained
            stream.raising = stream.chained = False
            if not (raised and stream.survives) and (failure := _failure(lines, index, raised, chained)):
                yield failure


def _failure(lines: Sequence[Line], index: int, raised: bool, chained: bool) -> _Failure | None:
    """Read one line as a failure; `raised`: it ends a traceback."""
    line = lines[index]
    body = line.body.strip()
    if _INTENDED.match(body) or _RAY_GUESSES.search(body):
        return None
    raised = raised or bool(_EXCEPTION.match(body))
    reported = raised or line.level in ("ERROR", "CRITICAL")
    other = bool(_OTHER_FAILURE.search(body))
    message = _message(lines, index) if raised else body
    generic = bool(_GENERIC.search(message))
    if reported or other:
        for status, words in _CAUSES:
            if words.search(message):
                return _Failure(index, message, status, certain=True, generic=generic, chained=chained)
    if other or _TIME_LIMIT.search(body):
        return _Failure(index, message, "error", certain=True)
    if _KILLED.search(body):
        return _Failure(index, message, "oom")
    if reported and generic:
        return _Failure(index, message, "error", generic=True, chained=chained)
    if raised:
        # A traceback that a logger printed may be one request's; one that no logger printed ended its process.
        return _Failure(index, message, "error", chained=chained, harmless=line.level is not None)
    return None


def _message(lines: Sequence[Line], index: int) -> str:
    """The text of an exception, with the lines below it on which Pydantic puts its reasons."""
    message = lines[index].body.strip()
    if not re.search(r"\d validation errors? for", message):
        return message
    for line in lines[index + 1 : index + 9]:
        if "For further information visit" in line.body or line.rank != lines[index].rank:
            break
        message += " " + re.sub(r" \[type=.*", "", line.body.strip())
    return message

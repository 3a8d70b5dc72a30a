"""Whether the engine of a log came up, and if not, why, in the engine's own words.

A log full of tracebacks may come from a successful run, and a failed run may end in three tracebacks that all say "see
above". So signs of life and signs of failure are collected in the order of the log. Life after a failure cancels it; of
the remaining failures, the first one that names a cause is the cause.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from workflow_scripts.logs.engine_log_text import Line, what_may_follow

Status = Literal["ok", "kv_too_small", "oom", "unsupported_block_size", "error"]


@dataclass(frozen=True)
class Verdict:
    """What a log says about its engine. All None: it gives no evidence either way."""

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

# Somebody stopped a server: what it prints afterwards, such as dying workers, is no failure of the engine.
_STOPS = re.compile(
    r"^Shutting down(?: FastAPI HTTP server\.?)?$|Received (?:SIGINT|SIGTERM|KeyboardInterrupt)|^KeyboardInterrupt$"
)

# --- signs of failure ---

# Causes with a status of their own, in the words of vLLM, torch and the operating system.
_CAUSES: tuple[tuple[Status, re.Pattern[str]], ...] = (
    (
        "kv_too_small",
        re.compile(
            r"No available memory for the cache blocks|To serve at least one request with the models?'s max seq len"
            r"|larger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV cache)"
            r"|less than requested memory for kv|Cannot auto-fit max_model_len"
        ),
    ),
    (
        "oom",
        re.compile(
            r"(?:CUDA|HIP|XPU|NPU|HPU|device|cuda(?:Malloc\w*)?) (?:error: )?out of memory|\bOutOfMemoryError\b"
            r"|\w*error: out of memory|(?:[cC]uda|HIP) failure.{0,10}out of memory"
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
            r"|(?:\b|kv_)block[ _-]?size\b.{0,60}?(?:(?:is|are) not supported|unsupported|must be(?! set)|should be"
            r"|input should)"
            r"|requires? (?:only |the cache )?(?:--)?block[ _-]size|--block-size=\d+ requires|reduce --block-size"
            r"|supports? (?:only )?.{0,30}?block[ _-]?size|\bdivide .{0,20}?block[ _-]size"
            r"|share no supported .{0,20}?block[ _-]size"
            r"|: \['?block_size not supported'?\]"  # in quotes if the study itself chose the backend
        ),
    ),
)
# Blocks of something other than the KV cache, and a type that has nothing to do with a size.
_OTHER_BLOCKS = re.compile(
    r"(?i)(?:weight|quantization|scale|mamba|prefetch|thread|hash|[kn]-dimension|heterogeneous|fp4 only supports)"
    r"[ _-]block[ _-]?sizes?|block_size has unsupported type"
)
# The operating system killed a process. Usually memory ran out, but a scheduler's time limit looks the same.
_KILLED = re.compile(
    r"^(?:\S+: line \d+: +)?(?:\d+ )?Killed\b|task \d+: (?:Killed|Out Of Memory)|oom[-_]kill(?!\w* 0\b)|OOMKilled"
    r"|Out of memory: Kill|exit(?: ?code|ed with code)?[:= (]+(?:-9|137)\b|(?:signal|by signal) 9\b"
    r"|killed due to memory pressure"
)
_TIME_LIMIT = re.compile(r"DUE TO TIME LIMIT|CANCELLED AT")
# Failures without an exception; the line itself says what failed.
_OTHER_FAILURE = re.compile(
    r"^(?!srun|slurmstepd)[\w.-]+(?: [\w-]+)*: error: .+|Segmentation fault|Segfault encountered|Fatal Python error"
    r"|\[FATAL ERROR\]"
    r"|\(core dumped\)|terminate called after throwing|^what\(\): |Bus error|Memory access fault by GPU"
    r"|error while attempting to bind|(?:Successful requests: +|\"completed\": )0\b"
    r"|No module named '?vllm|vllm: (?:command )?not found"
)
# The engine is gone, but this line does not say why.
_GENERIC = re.compile(
    r"Engine core initialization failed|EngineCore (?:failed|encountered|hit)|Engine process failed|EngineDeadError"
    r"|Engine loop (?:has died|is not running)|Background loop (?:has errored|is not running|is stopped)"
    r"|background task failed|WorkerProc (?:initialization failed|failed|hit)|fatal signal from worker"
    r"|died unexpectedly|died with exit code|Worker failed with error|output_handler failed"
    r"|Error execut(?:ing method|\w*(?: \w*)?$)"  # perhaps cut off within a word
    r"|Exception in worker \w+ while processing|Call to \w+ method failed"
    r"|(?:stack ?trace|root cause).{0,20}above|[Ss]ee (?:root cause|stack ?trace)"
    r"|RayTaskError|Actor\w*Error\b|ChildFailedError|CancelledError|BrokenPipeError|ConnectionResetError|ZMQError"
)
# Somebody ended it; this is no failure of the engine.
_INTENDED = re.compile(r"^(?:KeyboardInterrupt|SystemExit|GeneratorExit|asyncio\.exceptions\.CancelledError)\b")

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")
# Python reports an exception that the process survives: of one request, or during cleaning up.
_SURVIVED = re.compile(r"Exception in ASGI application|Exception ignored in")
_EXCEPTION = re.compile(
    r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|OutOfResources|Timeout|BrokenProcessPool)\b(?:\(\w+\))?(?::|$)"
)
# Exceptions recognised by their message alone: the name in front of it may have been cut off.
_NAMELESS = re.compile(
    r"(?:CUDA|HIP|XPU|NPU|HPU) out of memory\. Tried to allocate|No available memory for the cache blocks"
    r"|The model's max seq len \(\d+\) is larger|To serve at least one request with the models?'s max seq len"
    r"|Cannot auto-fit max_model_len|Free memory on device .{1,60} is less than desired"
    r"|No common block size for \d|None of the kernel sizes .{1,40} can divide|Paged KV cache block size must"
    r"|No valid attention backend found for|Selected backend \S+ is not valid for this configuration"
    r"|The attention backends share no supported|(?:Unsupported block size: |Block size must be a multiple of )\d"
    r"|Bfloat16 is only supported on GPUs|User-specified max_model_len \(\d+\) is greater"
    r"|Engine core initialization failed"
)
# An exception that is part of another message: `future: <Task ... exception=ValueError('...')>`.
_REPR = re.compile(r"\b(?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception))\((?P<quote>['\"])(?P<words>.*?)(?P=quote)[,)]")
_FRAME = re.compile(r"\s+File \".+\", line \d+")
# What a traceback shows of the statement that raised: the name and the texts, over several lines.
_RAISE = re.compile(r"\s*raise (?P<name>(?:\w+\.)*[A-Z]\w*)\(")
_TEXT = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'")
_RAY_GUESSES = re.compile(r"potential root causes")


@dataclass(frozen=True)
class _Failure:
    """A line that reports a failure. `certain`: its words name a known cause, and the engine is gone."""

    index: int  # of the line
    message: str | None
    status: Status
    certain: bool = False
    generic: bool = False
    chained: bool = False  # it followed from the previous failure
    harmless: bool = False  # to an engine that was serving: an error of one request

    @property
    def ends_engine(self) -> bool:
        return self.certain or self.generic


def judge(lines: Sequence[Line]) -> Verdict:
    """Decide what became of the engine.

    Life after a failure cancels it, except a failure that no engine survives: only a new start cancels that. What
    happens after a benchmark has printed its result does not count, unless a new engine was started. An error of one
    request while the engine went on serving is no failure of the engine.
    """
    # Of two at one line, the first names more than the traceback that begins there.
    failures = {failure.index: failure for failure in reversed([*_failures(lines)])}
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

    An exception that ended its process is preferred to one that a logger printed: the process may have survived that.
    """
    specific = [failure for failure in failures if not failure.generic and failure.message]
    certain = [failure for failure in specific if failure.certain] or [f for f in failures if f.certain]
    if certain:
        return certain[0]
    if not specific:
        return next((failure for failure in failures if failure.message), failures[0])
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
    start: int = 0  # its first line
    indent: int = 0  # of that line
    statement: tuple[int, str] | None = None  # the last `raise` that it showed, with its line
    chained: bool = False  # it follows from the traceback before
    announced: bool = False  # an exception that the process survives
    survives: bool = False  # the one that it is printing


def _failures(lines: Sequence[Line]) -> Iterator[_Failure]:
    streams: dict[str | None, _Stream] = defaultdict(_Stream)
    for index, line in enumerate(lines):
        body, stream = line.body, streams[line.rank]
        if line.level in ("DEBUG", "INFO", "WARNING") or not body.strip():
            continue
        indent = len(body) - len(body.lstrip())
        if _SURVIVED.search(body):
            stream.announced = True
        elif _CHAIN.search(body):
            stream.chained = True
        elif _TRACEBACK.search(body):
            stream.raising, stream.start, stream.indent, stream.statement = True, index, indent, None
            stream.survives = stream.announced or (stream.chained and stream.survives)
            stream.announced = False
            words = body.partition("Traceback")[0].rstrip(" :,")
            if status := _status_of(words):
                yield _Failure(index, words, status, certain=True)
            elif _GENERIC.search(body):
                yield _Failure(index, words, "error", generic=True)
        elif _goes_on(line, indent, stream):
            if not stream.raising:
                stream.raising, stream.start, stream.indent = True, index, 0
            stream.statement = _statement(index, body, stream.statement)
        else:
            raised, chained = stream.raising, stream.chained
            stream.raising = stream.chained = False
            if not (raised and stream.survives) and (failure := _failure(lines, index, raised, chained)):
                yield failure
    for stream in streams.values():
        if stream.raising and not stream.survives:
            if stream.statement:
                yield _cut_off(lines, *stream.statement)
            else:
                yield _Failure(stream.start, None, "error", harmless=True)


def _goes_on(line: Line, indent: int, stream: _Stream) -> bool:
    """Whether a line is inside a traceback, even if the traceback's beginning was cut off."""
    if stream.raising:
        return indent > stream.indent
    return bool(_FRAME.match(line.body)) or (line.level == "ERROR" and indent > 1)


def _statement(index: int, body: str, before: tuple[int, str] | None) -> tuple[int, str] | None:
    if _RAISE.match(body):
        return index, body.strip()
    if _FRAME.match(body) or before is None:
        return None
    return before[0], before[1] + body.strip()


def _cut_off(lines: Sequence[Line], index: int, statement: str) -> _Failure:
    """The failure of a traceback whose last line, the exception, was cut off: what it was about to raise.

    A text with placeholders is not what the engine printed, so it gives only the status.
    """
    found = _RAISE.match(statement)
    text = "".join(double or single for double, single in _TEXT.findall(statement))
    name = found["name"] if found else ""
    message = None if "{" in text or not text else f"{name}: {text}"
    status = _status_of(text)
    harmless = status is None and lines[index].level is not None
    return _Failure(index, message, status or "error", certain=status is not None, harmless=harmless)


def _status_of(message: str) -> Status | None:
    message = _OTHER_BLOCKS.sub("", message)
    return next((status for status, words in _CAUSES if words.search(message)), None)


def _failure(lines: Sequence[Line], index: int, raised: bool, chained: bool) -> _Failure | None:
    """Read one line as a failure; `raised`: it ends a traceback."""
    line = lines[index]
    body = line.body.strip()
    if _INTENDED.match(body) or _RAY_GUESSES.search(body):
        return None
    logged = line.level in ("ERROR", "CRITICAL")
    raised = raised or bool(_EXCEPTION.match(body)) or (not logged and bool(_NAMELESS.match(body)))
    quoted = _REPR.search(body) if logged or "exception=" in body else None
    other = bool(_OTHER_FAILURE.search(body))
    message = _message(lines, index) if raised else f"{quoted['name']}: {quoted['words']}" if quoted else body
    generic = bool(_GENERIC.search(message))
    reported = raised or logged or quoted is not None
    if (reported or other) and (status := _status_of(message)):
        return _Failure(index, message, status, certain=True, generic=generic, chained=chained)
    if other or _TIME_LIMIT.search(body):
        return _Failure(index, message, "error", certain=True)
    if _KILLED.search(body):
        return _Failure(index, message, "oom")
    if reported and generic:
        return _Failure(index, message, "error", generic=True, chained=chained)
    if raised:
        # A traceback that a logger printed may be from one request; any other one ended its process.
        return _Failure(index, message, "error", chained=chained, harmless=line.level is not None)
    if quoted and not re.search(r"\bretry", body):
        return _Failure(index, message, "error", harmless=True)
    return None


def _message(lines: Sequence[Line], index: int) -> str:
    """The text of an exception, with the lines below that give its cause: Pydantic's reasons, a sentence's rest."""
    message = lines[index].body.strip()
    if not re.search(r"\d validation errors? for", message):
        return message if _status_of(message) else _whole(message, what_may_follow(lines, index))
    for line in lines[index + 1 : index + 9]:
        if "For further information visit" in line.body or line.rank != lines[index].rank:
            break
        message += " " + re.sub(r" \[type=.*", "", line.body.strip())
    return message


def _whole(message: str, rest: Sequence[str]) -> str:
    """The whole of a message that a terminal cut or wrapped between words, if only the whole names a cause."""
    for more, joint in itertools.product((rest[:1], rest), ("", " ")):
        whole = joint.join([message, *more])
        if _status_of(whole) and not any(map(_status_of, more)):
            return whole
    return message

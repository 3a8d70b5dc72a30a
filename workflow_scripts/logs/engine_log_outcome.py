"""Whether the engine of a log came up, and if it did not, the reason in the engine's own words.

A log full of tracebacks may come from a successful run, and a failed run may end in three tracebacks that all say "see
above". So signs of life and signs of failure are collected in the order of the log. A sign of life after a failure
cancels the failure; of the remaining failures, the first one that names a cause is the cause.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workflow_scripts.logs import engine_log_signs as signs
from workflow_scripts.logs.engine_log_signs import Status
from workflow_scripts.logs.engine_log_text import POD, QUOTE, Line, what_may_follow

_MOST_PIECES = 8  # lines that may go on with a message
_USUAL_WIDTHS = (72, 80, 100, 120, 132, 160, 200)
# A line below a message that does not go on with it: an empty one, a rule, another program's message, or a record.
_ANOTHER = re.compile(r'\s*(?:$|[+|-]{2})|[\w.]+: |\s*["[\]{}]')
_WORDS = {word for sign in vars(signs).values() for word in re.findall(r"[A-Za-z_]{3,}", getattr(sign, "pattern", ""))}


@dataclass(frozen=True)
class LogVerdict:
    """What a log says about its engine; without evidence, all fields are None."""

    status: Status | None = None
    error: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class _Failure:
    """A line that reports a failure. `certain`: its words name a known cause, and the engine is gone."""

    index: int  # of the line
    message: str | None
    status: Status
    certain: bool = False
    generic: bool = False
    chained: bool = False  # it followed from the previous failure
    harmless: bool = False  # an error of one request, which does not end an engine that is serving


def judge(lines: Sequence[Line]) -> LogVerdict:
    """Decide how the engine ended. A sign of life after a failure cancels it. A failure that no engine survives is
    cancelled only by a new start. What happens after a benchmark has printed its result does not count, unless a new
    engine was started. An error of one request is not a failure of an engine that goes on serving."""
    # Of two failures on one line, the first says more than the traceback that begins there.
    failures = {failure.index: failure for failure in reversed([*_failures(lines)])}
    pending: list[_Failure] = []
    alive: Line | None = None
    result: Line | None = None
    gone = False
    for index, line in enumerate(lines):
        if index in failures:
            pending.append(failures[index])
            gone = gone or pending[-1].certain or pending[-1].generic
        elif _says(signs.RESULT, lines, index):
            result, pending = line, []
        elif _says(signs.LIVES, lines, index) and not gone:
            alive, pending = line, []
        elif not pending and not alive and _says(signs.LIVED, lines, index):
            alive = line
        elif alive and not pending and signs.STOPS.search(line.body.strip()):
            result = line
        elif _says(signs.START_SIGNS, lines, index):
            pending = [] if result else pending
            result, alive, gone = None, None, False
    served = result or (alive if all(failure.harmless for failure in pending) else None)
    if served:
        return LogVerdict("ok", line=served.number)
    if not pending:
        return LogVerdict()
    cause = _cause(pending)
    return LogVerdict(cause.status, cause.message, lines[cause.index].number)


def split_starts(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """The lines of each start of an engine, those of each pod apart. A start begins where a process says again that it
    starts, or says so after an engine has lived or died: ranks and data-parallel engines say it once each."""
    return [start for of_pod in _by_pod(lines) for start in _starts_of(of_pod)]


def _by_pod(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """The lines of each pod or service that a collector named, if several have an engine of one name; others last."""
    pods: dict[str, list[Line]] = defaultdict(list)
    pod = ""
    for line in lines:
        pod = match[0] if (match := POD.match(line.text)) else pod
        pods[pod].append(line)
    begins = re.compile(f"{signs.START_SIGNS.pattern}|{signs.HAS_CACHE.pattern}")
    said = [{_process(line) for line in pod if begins.search(line.text)} for pod in pods.values() if len(pods) > 1]
    if sum(map(len, said)) == len(set().union(*said)):
        return [lines]
    *engines, last = (pod for pod, processes in zip(pods.values(), said, strict=True) if processes)
    return [*engines, last + [line for pod, own in zip(pods.values(), said, strict=True) if not own for line in pod]]


def _process(line: Line) -> str:
    return re.sub(r"\s{0,20}pid=\d+.*", "", line.rank or "")


def _starts_of(lines: Sequence[Line]) -> list[Sequence[Line]]:
    begins, lived = [0], False
    said: set[tuple[str, str]] = set()
    for index, line in enumerate(lines):
        if match := signs.START_SIGNS.search(line.text):
            process = (_process(line), match[0])
            if process in said or lived:
                begins, said, lived = [*begins, index], set(), False
            said.add(process)
        elif said and not lived:
            died = signs.GENERIC.search(line.text) or (line.level is None and signs.TRACEBACK.search(line.text))
            lived = bool(died or signs.LIVES.search(line.text) or signs.HAS_CACHE.search(line.text))
    return [lines[begin:end] for begin, end in itertools.pairwise([*begins, len(lines)])]


def are_mixed(start: Sequence[Line]) -> bool:
    """Whether a start has lines of several engines that nothing tells apart: a process comes up in one time only."""
    up = [(at[0], line.text[: at.start()]) for line in start if (at := signs.COMES_UP.search(line.text))]
    said = {(took, process) for took, own in up if (process := tuple(re.findall(r"\(([^()]{1,99}?),? pid=\d", own)))}
    return len(said) > len({process for _, process in said})


def _says(sign: re.Pattern[str], lines: Sequence[Line], index: int) -> bool:
    if not (text := lines[index].text):  # as most of a file without an end may be
        return False
    match = sign.search("".join([text, *what_may_follow(lines, index)]))
    return match is not None and match.start() < len(text)


def _cause(failures: Sequence[_Failure]) -> _Failure:
    """The first failure whose words name a known cause; otherwise the end of the first chain of exceptions, or any. An
    exception that ended its process is preferred to one that a logger printed, which the process may have survived."""
    specific = [failure for failure in failures if not failure.generic and failure.message]
    certain = [failure for failure in specific if failure.certain] or [f for f in failures if f.certain]
    if certain:
        return certain[0]
    if not specific:
        return next((failure for failure in failures if failure.message), failures[0])
    uncaught = [failure for failure in specific if not failure.harmless] or specific
    return [uncaught[0], *itertools.takewhile(lambda failure: failure.chained, uncaught[1:])][-1]


@dataclass
class _Stream:
    """What one process is about to print."""

    raising: bool = False  # a traceback
    start: int = 0  # its first line
    indent: int = 0  # of that line
    chained: bool = False  # it follows from the traceback before
    announced: bool = False  # the next exception is one that the process survives
    survives: bool = False  # the process survives the one that it is printing


def _failures(lines: Sequence[Line]) -> Iterator[_Failure]:
    streams: dict[str | None, _Stream] = defaultdict(_Stream)
    for index, line in enumerate(lines):
        body, stream = line.body, streams[line.rank]
        if line.level in ("DEBUG", "INFO", "WARNING") or not body.strip() or signs.BOXED.match(body):
            continue
        if index == len(lines) - 1 and index and lines[index - 1].text.startswith(line.text):
            continue  # The log is cut off within a prefix.
        indent = len(body) - len(body.lstrip())
        if signs.SURVIVED.search(body):
            stream.announced = True
        elif signs.NEXT_OF_A_GROUP.match(body):
            stream.announced = stream.survives
        elif signs.CHAIN.search(body):
            stream.chained = True
        elif signs.TRACEBACK.search(body):
            stream.raising, stream.start, stream.indent = True, index, indent
            stream.survives = stream.announced or (stream.chained and stream.survives)
            stream.announced = False
            words = body.partition("Traceback")[0].rstrip(" :,")
            if status := signs.status_of(words):
                yield _Failure(index, words, status, certain=True)
            elif signs.GENERIC.search(body):
                yield _Failure(index, words, "error", generic=True)
        # Inside a traceback, even if its beginning was cut off.
        elif signs.FRAME.match(body) or (
            indent > stream.indent if stream.raising else line.level == "ERROR" and indent > 1
        ):
            if not stream.raising:
                stream.raising, stream.start, stream.indent = True, index, 0
            stream.survives = stream.survives and not signs.ENGINES_LOOP.search(body)
        else:
            raised, chained = stream.raising, stream.chained
            stream.raising = stream.chained = False
            if not (raised and stream.survives) and (failure := _failure(lines, index, raised, chained)):
                yield failure
    if lines and signs.ENGINES_ERROR.search(lines[-1].text) and not any(stream.raising for stream in streams.values()):
        yield _Failure(len(lines) - 1, None, "error", harmless=True)
    for stream in streams.values():
        if stream.raising and not stream.survives:
            yield _Failure(stream.start, None, "error", harmless=True)


def _failure(lines: Sequence[Line], index: int, raised: bool, chained: bool) -> _Failure | None:
    """Read one line as a failure; `raised`: the line ends a traceback."""
    line = lines[index]
    body = line.body.strip()
    if signs.INTENDED.match(body):
        return None
    if signs.RAY_GUESSES.search(body):
        return _Failure(index, body, "error", generic=True, chained=chained)
    logged = line.level in ("ERROR", "CRITICAL")
    raised = raised or bool(signs.EXCEPTION.match(body)) or (not logged and bool(signs.NAMELESS.match(body)))
    quoted = signs.REPR.search(body) if logged or "exception=" in body else None
    other = bool(signs.OTHER_FAILURE.search(body))
    message = _message(lines, index) if raised else f"{quoted['name']}: {quoted['words']}" if quoted else body
    generic = bool(signs.GENERIC.search(message))
    reported = raised or logged or quoted is not None or bool(signs.ANNOUNCED.match(body))
    if (reported or other) and (status := signs.status_of(message)):
        return _Failure(index, message, status, certain=True, generic=generic, chained=chained)
    if other or signs.TIME_LIMIT.search(body):
        return _Failure(index, message, "error", certain=True)
    if signs.KILLED.search(body):
        return _Failure(index, message, "oom")
    if signs.COMPILER.match(body):
        return _Failure(index, message, "error", harmless=True)
    if reported and generic:
        return _Failure(index, message, "error", generic=True, chained=chained)
    if raised:
        # A traceback that a logger printed may be from one request; any other one ended its process.
        words = message if signs.NAMED_ERROR.match(body) or signs.NAMELESS.match(body) else None
        return _Failure(index, words, "error", chained=chained, harmless=line.level is not None)
    if quoted and not re.search(r"\bretry", body):
        return _Failure(index, message, "error", harmless=True)
    return None


def _message(lines: Sequence[Line], index: int) -> str:
    """The text of an exception, with the lines below that give its cause (Pydantic's reasons, a sentence's end)."""
    message = lines[index].body.strip()
    if not re.search(r"\d validation errors? for", message):
        return _to_its_end(lines, index)
    for line in lines[index + 1 : index + 9]:
        if "For further information visit" in line.body or line.rank != lines[index].rank:
            break
        message += " " + re.sub(r" \[type=.*", "", line.body.strip())
    return message


def _to_its_end(lines: Sequence[Line], index: int) -> str:
    """A message that names a cause, with the lines below that go on with it, each cut at a width or between words."""
    line = lines[index]
    whole, before = line.body.rstrip("\n"), line
    for after in lines[index + 1 : index + 1 + _MOST_PIECES]:
        is_cut = len(before.text) in _USUAL_WIDTHS and not re.match(QUOTE, before.text)
        if after.starts or after.rank not in (None, line.rank) or (_ANOTHER.match(after.body) and not is_cut):
            break
        word = re.findall(r"\w{0,99}$", whole[-99:])[0] + re.findall(r"^\w*", after.body)[0]
        whole += after.body if is_cut or word in _WORDS or whole.endswith(" ") else " " + after.body.lstrip()
        before = after
    return whole.strip() if signs.status_of(whole) else line.body.strip()

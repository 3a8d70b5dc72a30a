"""The text of an engine's log as lines to read: decoded, without colours, with hard-wrapped lines joined again.

Logs pass through terminals, Docker, Kubernetes, Ray, journald, and copy and paste. This module undoes what those did
to the text; it does not interpret the lines.
"""

import codecs
import contextlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import MOST_LINES, read_bytes

# Colour and cursor codes; also with the escape character printed as `^[` or `#033`, or lost on the way.
_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|(?:\^\[|#033|\\x1b|\\033)?\[\d{1,3}(?:;\d{1,3})*m|\x00"
)
# Markdown escapes brackets and underscores outside code.
_ESCAPED = re.compile(r"\\([\[\]_])")
_PROGRESS_BAR = re.compile(r"\b\d{1,3}%\|[^|]{0,400}\|\s{0,9}\d{1,9}/\d{1,9} \[[^\]]{0,200}\]")

# A log that was cut off may end within an engine's own prefix.
_CUT_STAMP = re.compile(r"[\d\-]{1,10}(?: [\d:.,]*)?(?: \[?[\w./]*(?::\d*)?)?")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LEVEL = rf"(?P<level>{'|'.join(_LEVELS)})"
# vLLM's own lines: `INFO 09-10 23:26:51 [core.py:74] text`, before 0.8 `INFO 10-23 03:37:24 config.py:887] text`.
_ENGINE_RECORD = re.compile(
    rf"\b{_LEVEL}\s{{1,20}}(?:\d{{4}}-)?\d\d-\d\d \d\d:\d\d(?::\d\d)?(?:[.,]\d{{1,9}})?\s{{0,20}}"
    r"(?:\[[^\]]{0,300}\]|[\w./]{1,200}:\d{1,9}\])(?: |$)(?P<body>.*)",
    re.DOTALL,
)
# Uvicorn's `INFO:  text`; `name - INFO - text` and `[INFO] text` of logging; `| INFO  | a:b:7 - text` of loguru;
# `name 7 INFO  text` or `7 name INFO [a.py:b():7] text` of model servers.
_OTHER_RECORD = re.compile(
    r"(?:(?:[\w.]+ )?- |\| |\[|\d+ [a-z][\w.]* (?=[A-Z]+ +\[)|[a-z][\w.]* \d+ (?=[A-Z]+ +))?"
    rf"{_LEVEL}\b\s*\]?\s*(?:\| [\w.]+:\S+:\d+ - |[:\-])?\s*(?P<body>.*)",
    re.DOTALL,
)

_PROCESS = (
    r"(?:\*\*)?\((?P<process>(?=[^()]{0,150}\bpid=\d)[^()]{1,300}|(?:APIServer|EngineCore|Worker)\w{0,100})\)"
    r"(?:\*\*)?\s?"
)
_RANK = r"\[rank(?P<rank>\d+)\]:\s?"
_DATE = r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s?"
_JOURNAL = r"(?:[^\W\d_]{3,5}\.?\s+|\d{1,2}月 +)\d{1,2} \d\d:\d\d:\d\d \S+ [^\s:]+:\s"
_POD = r"\[pod/\S+\]\s"
POD = re.compile(rf"{_POD}|(?![A-Z]{{4,8}}\s)[\w.-]{{1,80}}\s{{1,80}}\| ")  # of Kubernetes and Compose
# Before each line of a quotation, whether it begins a record or not; a frame has bars on both sides.
QUOTE = r"\s{0,8}(?:>{1,3}|[▎▏▌]|\|(?! [A-Z]{4,8}\b)|[│┃║](?!.*[│┃║]\s*$))(?: (?:- )?|$)"
_BAR = re.compile(r"[ \t]{0,8}[>|▎▏▌│┃║]{1,3}")
# From Compose, srun --label, a README, a comment or Markdown; an engine's own words may begin like this too.
_LOOSE_PREFIXES = (
    r"[\w./@-]+\s+\| ",
    r"\d+: ",
    r"# ",
    QUOTE,
    r"`+(?=\S)",
    r"\s*\*\*(?=[^\s*])",
    r"vLLM STD(?:OUT|ERR): ",
)
# FastChat names the stream and calls all of stderr an error; others put a bar before or after their date.
_FRAMES = r"\| (?:INFO|ERROR) \| std(?:out|err) \| ?|\s*\| (?=\[?\d{4}-\d\d|\()"
# mpirun names rank and stream, model servers level and thread; Python draws a line beside a group of exceptions.
_FRAMES += r"|\[\d+,\d+\]<std(?:out|err)>:\s?|\[[A-Z]+ *\] (?:\S+ - )?\S+-std(?:out|err)(?::| MODEL_LOG -) "
_FRAMES += r"|[A-Z]+\s+PyProcess \S+-std(?:out|err): "
_FRAMES += r"|\[[A-Z][a-z]+\] \(\w+\) |\s+(?:\||\+(?= Exception Group)) "
# What remains of an engine's own prefix if the level was cut off, perhaps with the date.
_REST_OF_A_RECORD = (
    r"(?:(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)[A-Z]{0,7} ?\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? )?"
    r"\[?[\w./]+\.py:\d+\]\s?"
)
_PREFIX = re.compile(
    rf"{_PROCESS}|{_RANK}|{_DATE}|{_JOURNAL}|{_POD}|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?\s|(?:stdout|stderr) [FP] |"
    rf"{_FRAMES}|{_REST_OF_A_RECORD}|" + "|".join(_LOOSE_PREFIXES)
)
_RECORD_START = (
    rf"\s*$|{_PROCESS}|{_RANK}|{_DATE}|{_JOURNAL}|{_POD}|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\[[WEIF]\d{{3,4}} "
    r"|Traceback |={5}|-{5}|.{0,150}?\d{1,3}%\|"
)
# A line of these forms is complete even if the line before it fills the terminal.
_NOT_A_WRAP = re.compile(r"\s{2}|(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b|usage: |Namespace\(|\{")

# A line that is longer than this, sixteen times the longest that an engine prints, loses its middle: a benchmark's
# result in one line of JSON has its numbers at both ends. What is longer is no line that a terminal cut either.
MOST_LINE = 2**16
# Collectors, launchers and editors add a few.
_MOST_PREFIXES = 20
_NARROWEST_TERMINAL = 72
# The terminal counted escape codes that have been removed, so a wrapped line may look shorter than the terminal.
_WRAP_SLACK = 24
# A collector's prefix is on at least this share of the lines: on every record, but not on the rest of wrapped lines.
_SHARE_OF_A_PREFIX = 0.2


@dataclass(frozen=True)
class Line:
    """One line as the engine printed it. `text` is the whole line; `pieces` holds, for each physical line that was
    joined, the offset in `text` and the line number (from 1). `starts` means that it cannot continue the line
    before. `rank` is the process that printed it, innermost label first (`VllmWorker TP0 pid=1430`), None without a
    label; `level` is that of the record, and `body` the message without prefixes, level, time and source."""

    text: str
    pieces: tuple[tuple[int, int], ...]
    starts: bool
    rank: str | None
    level: str | None
    body: str

    @property
    def number(self) -> int:
        """The number of its first physical line, from 1."""
        return self.pieces[0][1]

    def number_at(self, offset: int) -> int:
        """The number of the physical line that contains the character at `offset`."""
        return max((piece for piece in self.pieces if piece[0] <= offset), default=self.pieces[0])[1]


def _parts(text: str) -> tuple[str | None, str | None, str]:
    """Rank, level and body of a line."""
    rest = _PROGRESS_BAR.sub("", text)
    rank = None
    for _ in range(_MOST_PREFIXES):
        if (prefix := _PREFIX.match(rest)) is None:
            break
        label = prefix["process"] or (f"rank{prefix['rank']}" if prefix["rank"] else None)
        rank, rest = label or rank, rest[prefix.end() :]
    record = _ENGINE_RECORD.search(rest) or _OTHER_RECORD.match(rest)
    if record and _CUT_STAMP.fullmatch(record["body"]):
        return rank, None, ""
    return (rank, record["level"], record["body"]) if record else (rank, None, rest)


def read_log_text(path: Path) -> str:
    """The text of a log, or of another file that programs print. Raises OSError, or InputError if it is too large."""
    raw = read_bytes(path)
    is_of_powershell = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = raw.decode("utf-16" if is_of_powershell else "utf-8-sig", errors="replace")
    if text.count("\n") + text.count("\r") > MOST_LINES:
        raise InputError(f"{path}: more than {MOST_LINES:,} lines")
    return text


def read_lines(text: str) -> list[Line]:
    r"""Split a log into its lines as the engine printed them.

    A line that a terminal cut is as long as the terminal is wide, and the next line begins no record; both are joined
    again without a character between. A file in which no width can be recognised stays as it is.

    >>> [line.text for line in read_lines("INFO 09-04 01:02:16 [a.py:1] one\r\n\x1b[32mtwo\x1b[0m")]
    ['INFO 09-04 01:02:16 [a.py:1] one', 'two']
    """
    physical = list(_physical_lines(_without_bar(text)))
    texts = [line for _, line in physical]
    record_start = _record_start(texts)
    joints = _joints(texts, record_start)
    lines: list[tuple[str, tuple[tuple[int, int], ...], bool]] = []
    for index, (number, line) in enumerate(physical):
        if index not in joints or len(lines[-1][0]) + len(line) > MOST_LINE:
            lines.append((line, ((0, number),), bool(record_start.match(line))))
        else:
            text, pieces, starts = lines[-1]
            head = text + joints[index]
            lines[-1] = (head + line, (*pieces, (len(head), number)), starts)
    return [Line(*line, *_parts(line[0])) for line in lines]


def _without_bar(text: str) -> str:
    """A text without the bare bar or quotation mark before each line; `QUOTE` knows those that a space follows."""
    bar, lines = _BAR.match(text), text.split("\n")
    if bar is None or not all(line.startswith(bar[0]) or not line.strip() for line in lines):
        return text
    lines = [line.removeprefix(bar[0]) for line in lines]
    return text if all(line[:1] in (" ", "\r", "") for line in lines) else "\n".join(lines)


def what_may_follow(lines: Sequence[Line], index: int) -> list[str]:
    """Lines that may continue a line whose length does not show that it was cut: between words, or in a short log."""
    return [line.text for line in itertools.takewhile(lambda line: not line.starts, lines[index + 1 : index + 3])]


def _record_start(lines: Sequence[str]) -> re.Pattern[str]:
    """What begins a record in this file: the usual beginnings, and what a collector put before each record."""
    least = 1 + _SHARE_OF_A_PREFIX * len(lines)
    prefixes = [p for p in _LOOSE_PREFIXES if p != QUOTE and sum(bool(re.match(p, line)) for line in lines) > least]
    return re.compile("|".join([_RECORD_START, *prefixes]))


def _joints(lines: Sequence[str], record_start: re.Pattern[str]) -> dict[int, str]:
    """What stood before each line that goes on with the one before it. A terminal leaves several lines of exactly its
    width, all with different ends, and no longer line, although an engine prints its configuration in one line of
    thousands of characters. Ranks that print the same text also leave lines of one length, but those have the same end.
    If escape codes were lost, the lines of each kind of prefix have their own length."""
    ends: dict[int, set[str]] = defaultdict(set)
    for line in lines:
        ends[0 if _PROGRESS_BAR.search(line) else len(line)].add(line[-20:])
    if (width := max(ends)) < _NARROWEST_TERMINAL:
        return {}
    after = (i for i, line in enumerate(lines) if i and not record_start.match(line) and not _NOT_A_WRAP.match(line))
    breaks = {i: len(lines[i - 1]) for i in after if len(lines[i - 1]) <= width}
    cut = {i for i, length in breaks.items() if width - _WRAP_SLACK <= length and len(ends[length]) > 1}
    if len(ends[width]) < 2:
        return {}
    stripped = {i for i, length in breaks.items() if length == width - 1}
    return dict.fromkeys(cut, "") | dict.fromkeys(stripped if 3 * len(stripped) < len(cut) else (), " ")


def _physical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text; text that a carriage return wrote over a progress bar becomes its own line."""
    for number, line in enumerate(re.split(r"\r?\n", text), start=1):
        # JSON may contain half a surrogate pair, which cannot be encoded.
        whole = _undocked(line).encode(errors="replace").decode()
        for piece in re.split(r"\r?\n|\r", whole.rstrip("\r\n")):
            bare = _ESCAPED.sub(r"\1", _ANSI.sub("", piece))
            yield number, bare if len(bare) <= MOST_LINE else bare[: MOST_LINE // 2] + bare[-MOST_LINE // 2 :]


# Keys of the message and of its severity, in the JSON of log drivers and loggers.
MESSAGE_KEYS, _SEVERITY = ("log", "message", "msg", "MESSAGE", "textPayload"), ("level", "levelname", "severity")


def _undocked(line: str) -> str:
    """Unpack a line of Docker's json-file log driver, of a logger that writes JSON, or of JSON that holds logs."""
    part = line.strip().rstrip(",")
    for form in {"{": "%s", "[": "%s", '"': "{%s} [%s]"}.get(part[:1], "").split():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(form % part)
            if form == "[%s]" and line.rstrip().endswith(","):
                return str(record[0])  # of a list of lines
            texts, is_whole = "\n".join(_messages(record)), form == "%s" and isinstance(record, dict)
            if texts and ((is_whole and record.keys() & set(MESSAGE_KEYS)) or _ENGINE_RECORD.search(texts)):
                return texts
    return line


def _messages(record: Any) -> Iterator[str]:
    """The messages in a record of JSON, and its texts of several lines."""
    if isinstance(record, dict):
        level = next((record[key].upper() for key in _SEVERITY if isinstance(record.get(key), str)), "")
        message = next((record[key] for key in MESSAGE_KEYS if isinstance(record.get(key), str)), None)
        if message is not None:
            yield f"{level}: {message}" if level in _LEVELS and not _ENGINE_RECORD.search(message) else message
            return
    if isinstance(record, dict | list):
        for value in record.values() if isinstance(record, dict) else record:
            yield from _messages(value)
    elif isinstance(record, str) and ("\n" in record or _ENGINE_RECORD.search(record)):
        yield record

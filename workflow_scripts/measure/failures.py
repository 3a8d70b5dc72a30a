"""Distinguish what an engine cannot do from what went wrong, by the engine's error messages."""

import re
from collections.abc import Sequence
from pathlib import Path

from workflow_scripts.device.host_load import SuspendedError
from workflow_scripts.engines.engine import CacheHeldError
from workflow_scripts.engines.serving.client import ServerTimeoutError
from workflow_scripts.logs.engine_log_outcome import LogVerdict, judge
from workflow_scripts.logs.engine_log_text import read_lines
from workflow_scripts.study.outcome import OutcomeKind

Failure = tuple[OutcomeKind, str]  # with its reason

# Causes that a second attempt does not remove: the configuration does not fit the engine or the device.
_INFEASIBLE_STATUS = ("kv_too_small", "oom", "unsupported_block_size")
# How Python libraries say that they refuse a value.
_REFUSED = (
    r"(?i)\bunsupported\b|(?:\bnot|n't|\bonly|\bcurrently) (?:yet )?support|\bsupports? only|\bonly supported",
    r"(?i)\bmust (?:be|have|not|equal|match|contain|divide|specify)|\bcan(?:not|'t| only)\b|\bshould (?:be|not|have)\b",
    r"(?i)\brequires?\b|\bneeds?\b|\bincompatible|\bnot (?:\w+ )?compatible|\bexceeds?\b|\bconflict|mutually exclusive",
    r"(?i)\bis (?:larger|greater|smaller|less|not divisible|not a multiple|out of range|not allowed|disabled|too)\b",
    r"(?i)\bdivisible\b|\bmultiples? of|mismatch|\bexpect(?:s|ed)\b|does not (?:match|have|divide|work|accept|allow)",
    r"(?i)\binvalid\b|\bunknown\b|\bunrecognized\b|\bno such\b|not (?:a )?valid|only (?:be|works|valid|available)",
)
# Exceptions with which an engine refuses its arguments, if it says so in these words or those of its description.
_REFUSALS = ("ValueError", "ValidationError")
# A package that is missing, a file that is not there, a port in use: of the installation or the host, whatever an
# engine makes of it.
_OF_INSTALLATION = re.compile(
    r"(?i)\bNo module named\b|\bpip install\b|\bis not installed\b|\bto be installed\b"
    r"|\brequires? .{0,40}\bAccelerate\b|\bNo such file or directory\b|\bdoes not appear to have a file\b"
    r"|\bAddress already in use\b|\bNo space left\b"
    r"|\bPermission denied\b"
)
# Errors that may appear only at first use. Torch: the engine was built without a kernel, or without one for this
# GPU. Transformers: its paged cache is too small for a whole request.
_CANNOT = (
    "'_OpNamespace' ",
    "no kernel image is available for execution on the device",
    "No requests can be scheduled and no requests can be offloaded",
    "could not create a primitive",  # oneDNN has no implementation
    "() expected at most 0 argument(s)",  # vLLM was built with only the name of an operator
)
# Every kernel has its own wording for a refusal. A message counts if it says both that something is not accepted and
# that this is a type, an instruction set or a shape. If tensors of the engine do not fit each other ("must have the
# same dtype", "expected Float but found Half"), that is the engine's own fault.
_KERNEL_ERRORS = ("RuntimeError", "NotImplementedError")
_OF_KERNELS = (
    r"\b(?:dtype|data ?type|(?:b?float|bf|fp|mxfp|nvfp)\d|half\b|u?int[48]|w\d+a\d+|avx|amx|vnni|isa\b"
    r"|compute capability|sm_?\d|head_?(?:dim|size)|multiples? of|divisible by"
    r"|on (?:the )?(?:CPU|this (?:device|GPU|platform))\b)"
)
_NOT_TAKEN = re.compile(r"(?i)\bunsupported\b|\bnot supported\b|(?:\bnot|n't) support\b|\bnot implemented for '")
_TAKEN = re.compile(
    rf"(?i)\b(?:expects?\b.{{0,200}} to be|must be|only supports?|supports? only|only supported)\b.{{0,300}}"
    rf"{_OF_KERNELS}"
    r"|\bExpected \w+ % \d+ == 0 to be true"
)
# vLLM's messages that its core or a rank has ended, without a reason.
_GONE = ("EngineCore encountered an issue", "died unexpectedly", "Executor failed")


# vLLM looks at a model's class in a process of its own. It takes the death of that process for a refusal of the model.
_NOT_INSPECTED, _KILLED = "failed to be inspected", " died with <Signals."


def start_failure(error: Exception, log: Path, refusals: Sequence[str] = ()) -> Failure | None:
    """Classify a failed start, and give the reason in the engine's own words; None as in `run_failure`. `refusals` are
    those of the engine's description."""
    if isinstance(error, ServerTimeoutError):
        return "timeout", str(error)
    text = log.read_bytes().decode(errors="replace") if log.exists() else ""
    if _NOT_INSPECTED in f"{error}{text}" and _KILLED in text:
        return None
    status, words = _cause(error, log)
    refused = status in _INFEASIBLE_STATUS or _is_refusal(words, refusals) or _cannot(words)
    return ("infeasible" if refused else "engine_error"), words


def run_failure(error: Exception, log: Path) -> Failure | None:
    """Classify a failure during a run; None if a process of the engine ended without giving a reason, or this one was
    suspended. That is a fault of the infrastructure, like the death of the measuring process itself: the job must be
    repeated."""
    if isinstance(error, SuspendedError):
        return None
    if isinstance(error, CacheHeldError):
        return "invalid", str(error)
    _, words = _cause(error, log)
    if any(sign in words for sign in _GONE):
        return None
    return ("infeasible" if _cannot(words) else "engine_error"), words


def request_failures(errors: Sequence[str | None], log: Path) -> Failure:
    """Classify a pass in which requests failed, and say why, from the log and each request's error (None: no error)."""
    failed = [error for error in errors if error]
    words = f"{len(failed)} of {len(errors)} requests failed; the first: {failed[0]}"
    verdict = _judged(log)
    if not verdict.error:
        return "engine_error", words
    return ("infeasible" if _cannot(verdict.error) else "engine_error"), f"{words}; the log says: {verdict.error}"


def _is_refusal(words: str, refusals: Sequence[str]) -> bool:
    """Whether the engine refuses its setting, its model or its device with these words."""
    if _OF_INSTALLATION.search(words):
        return False
    said = _name(words) in _REFUSALS and any(re.search(pattern, words) for pattern in (*_REFUSED, *refusals))
    return said or _name(words) == "NotImplementedError"


def _cannot(words: str) -> bool:
    """Whether an error says that the engine lacks something, or that a kernel refuses a type or a shape."""
    refused = _TAKEN.search(words) or (_NOT_TAKEN.search(words) and re.search(f"(?i){_OF_KERNELS}", words))
    return any(sign in words for sign in _CANNOT) or (_name(words) in _KERNEL_ERRORS and bool(refused))


def _name(words: str) -> str:
    return words.partition(":")[0].rpartition(".")[2]


def _cause(error: Exception, log: Path) -> tuple[str | None, str]:
    """Status and message of the cause. An engine in separate processes raises an error here that only says where to
    look, so the cause is read from its log; if the log has none, `error` itself counts."""
    verdict = _judged(log)
    return (verdict.status, verdict.error) if verdict.error else (None, f"{type(error).__name__}: {error}")


def _judged(log: Path) -> LogVerdict:
    return judge(read_lines(log.read_bytes().decode(errors="replace"))) if log.exists() else LogVerdict()

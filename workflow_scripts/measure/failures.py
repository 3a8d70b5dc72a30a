"""Tell what an engine cannot do from what went wrong, by its own words."""

import re
from collections.abc import Sequence
from pathlib import Path

from workflow_scripts.logs.engine_log_outcome import judge
from workflow_scripts.logs.engine_log_text import decode, read_lines
from workflow_scripts.measure.engine import CacheHeldError
from workflow_scripts.measure.server_http import ServerTimeoutError
from workflow_scripts.study.outcome import Verdict

# Causes that no second try removes: the configuration does not fit the engine or the device.
_INFEASIBLE_STATUS = ("kv_too_small", "oom", "unsupported_block_size")
# An engine says with these that it refuses its arguments.
_REFUSALS = ("ValueError", "NotImplementedError", "ValidationError")
# These are told as late as at first use. By torch: the engine was built without a kernel, or without one for this GPU.
# By transformers: its paged cache holds no whole request.
_CANNOT = (
    "'_OpNamespace' ",
    "no kernel image is available for execution on the device",
    "No requests can be scheduled and no requests can be offloaded",
    "could not create a primitive",  # oneDNN has no implementation
    "() expected at most 0 argument(s)",  # vLLM was built with the name of an operator alone
)
# A kernel refuses in the words of whoever wrote it. They count where they say both that it does not take something and
# that this is a type, an instruction set or a shape. That tensors of the engine do not fit each other ("must have the
# same dtype", "expected Float but found Half") is the engine's own fault.
_KERNEL_ERRORS = ("RuntimeError", "NotImplementedError")
_OF_KERNELS = (
    r"\b(?:dtype|data ?type|(?:b?float|bf|fp|mxfp|nvfp)\d|half\b|u?int[48]|w\d+a\d+|avx|amx|vnni|isa\b"
    r"|compute capability|sm_?\d|head_?(?:dim|size)|multiples? of|divisible by"
    r"|on (?:the )?(?:CPU|this (?:device|GPU|platform))\b)"
)
_NOT_TAKEN = re.compile(r"(?i)\bunsupported\b|\bnot supported\b|(?:\bnot|n't) support\b|\bnot implemented for '")
_TAKEN = re.compile(
    rf"(?i)\b(?:expects?\b.* to be|must be|only supports?|supports? only|only supported)\b.*{_OF_KERNELS}"
    r"|\bExpected \w+ % \d+ == 0 to be true"
)
# So vLLM says that its core or a rank is gone, where it knows no more.
_GONE = ("EngineCore encountered an issue", "died unexpectedly", "Executor failed")


def start_failure(error: Exception, log: Path) -> tuple[Verdict, str]:
    """What a failed start is, and why in the engine's own words."""
    if isinstance(error, ServerTimeoutError):
        return "timeout", str(error)
    status, words = _cause(error, log)
    refused = status in _INFEASIBLE_STATUS or _name(words) in _REFUSALS or _cannot(words)
    return ("infeasible" if refused else "engine_error"), words


def run_failure(error: Exception, log: Path) -> tuple[Verdict, str] | None:
    """What a failure in mid-run is; None where a process of the engine is gone and left no word why.

    That is a fault of the infrastructure, like the death of the measuring process itself: the job has to be repeated.
    """
    if isinstance(error, CacheHeldError):
        return "invalid", str(error)
    _, words = _cause(error, log)
    if any(sign in words for sign in _GONE):
        return None
    return ("infeasible" if _cannot(words) else "engine_error"), words


def request_failures(errors: Sequence[str | None], log: Path) -> tuple[Verdict, str]:
    """What a pass is in which requests failed, and why: their errors, None where there was none, and the log."""
    failed = [error for error in errors if error]
    words = f"{len(failed)} of {len(errors)} requests failed; the first: {failed[0]}"
    found = judge(read_lines(decode(log.read_bytes()))) if log.exists() else None
    if not found or not found.error:
        return "engine_error", words
    return ("infeasible" if _cannot(found.error) else "engine_error"), f"{words}; the log says: {found.error}"


def _cannot(words: str) -> bool:
    return any(sign in words for sign in _CANNOT) or (_name(words) in _KERNEL_ERRORS and _a_kernel_refuses(words))


def _a_kernel_refuses(words: str) -> bool:
    """Whether an error says that a kernel does not take a type, an instruction set or a shape.

    >>> _a_kernel_refuses("int8_scaled_mm_with_quant: expect A to be bfloat16 or half.")
    True
    >>> _a_kernel_refuses("mat1 and mat2 must have the same dtype, but got Float and Half")
    False
    """
    return bool(_TAKEN.search(words) or (_NOT_TAKEN.search(words) and re.search(f"(?i){_OF_KERNELS}", words)))


def _name(words: str) -> str:
    """The class of the exception that an error's words begin with."""
    return words.partition(":")[0].rpartition(".")[2]


def _cause(error: Exception, log: Path) -> tuple[str | None, str]:
    """Status and words of the cause.

    An engine in processes of its own raises an error here that only says where to look, so the cause is read from its
    log; `error` itself counts where the log has none.
    """
    found = judge(read_lines(decode(log.read_bytes()))) if log.exists() else None
    if found and found.error:
        return found.status, found.error
    return None, f"{type(error).__name__}: {error}"

"""Waiting for processes, and those of a session or of a cell."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psutil

Found = TypeVar("Found")


def wait_for(look: Callable[[], Found], limit_s: float = 60, what: str = "") -> Found:
    """Look until something is found, and return it. Raises AssertionError, which says `what`, after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain for {what}"
        time.sleep(0.05)
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def is_session_gone(session: int) -> bool:
    """Whether every process of a session has ended."""
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                return False
    return True


def measuring(place: object) -> psutil.Process | None:
    """The process that measures a cell below a folder: the one that a device trace there watches."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "sample-device" in words and str(place) in " ".join(words):
            return process.parent()
    return None

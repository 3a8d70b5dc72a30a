"""Try whether something runs in limited memory, in a forked process that may fail or crash in any way."""

import ctypes
import gc
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

_M_MMAP_THRESHOLD = -3  # of mallopt(3)
# Allocations from this size on get their own mappings, so that they count; those of large tensors are larger.
_MAPPED_BYTES = 2**17
_MAX_HOLES = 100_000


class _Mallinfo(ctypes.Structure):
    """What mallinfo(3) returns; `hblks` counts mappings."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_int) for name in _names.split()]


class NoRoomError(RuntimeError):
    """Even the smallest batch needs more memory than it may take."""


def runs_in(room_bytes: int, work: Callable[[], object]) -> bool:
    """Whether `work` finishes in a copy of this process that may allocate `room_bytes` more than this process has.
    Everything that the copy allocates counts: caches, copies of them, and activations. The reason why `work` does not
    finish does not matter: oneDNN crashes if it gets no memory."""

    def limited() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (_own_bytes("VmData") + room_bytes, most))
        work()

    return _ends_in_a_copy(limited)


def peak_bytes(work: Callable[[], object]) -> int:
    """The peak memory of `work` in a copy of this process, in bytes beyond those that this process has. Raises
    RuntimeError if `work` does not finish there."""
    reading, writing = os.pipe()

    def report_peak() -> None:
        before = _own_bytes("VmSize")
        work()
        os.write(writing, str(_own_bytes("VmPeak") - before).encode())

    ends = _ends_in_a_copy(report_peak)
    os.close(writing)
    with os.fdopen(reading) as answer:
        if not ends:
            raise RuntimeError("work that finishes in this process does not finish in a copy of it")
        return int(answer.read())


def _ends_in_a_copy(work: Callable[[], object]) -> bool:
    # Otherwise the copy could return memory that this process no longer uses, which would be extra room for `work`.
    gc.collect()
    _libc().malloc_trim(0)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        try:
            import torch

            torch.set_num_threads(1)  # the other threads of a pool are not in the copy
            _fill_holes()
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return status == 0


def _fill_holes() -> None:
    """Give large allocations their own mappings from now on, even if the heap has holes."""
    libc = _libc()
    libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    mappings = libc.mallinfo().hblks
    for _ in range(_MAX_HOLES):
        if not libc.malloc(_MAPPED_BYTES) or libc.mallinfo().hblks > mappings:
            return


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.mallinfo.restype = _Mallinfo
    return libc


def _own_bytes(what: str) -> int:
    """Memory of this process: `VmData` is private and writable, as RLIMIT_DATA counts it."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    match = re.search(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)
    assert match
    return int(match[1]) * 1024

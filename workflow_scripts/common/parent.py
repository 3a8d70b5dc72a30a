"""A process that ends with the one that started it."""

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable


def forked(call: Callable[[], int | None]) -> int:
    """The id of a child that makes a call and ends with its result, with 1 after an exception, or with this process. It
    ends without the interpreter's clean-up, which would run this process's own."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    status = 1
    try:
        die_with_parent(parent)
        status = call() or 0
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 1
        print(f"SystemExit: {e.code}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, and end it now if that has happened already."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

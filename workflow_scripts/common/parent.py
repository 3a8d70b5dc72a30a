"""A process that ends with the one that started it."""

import ctypes
import os
import signal


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, and end it now if that has happened already."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

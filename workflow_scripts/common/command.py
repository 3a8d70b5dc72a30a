"""How every command of the project ends."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def run_command(main: Callable[[], int]) -> NoReturn:
    """Call `main` and exit with what it returns, or as a process killed by SIGPIPE where its output has no reader.

    The signal itself stays ignored: of a socket, a broken connection is an error to be dealt with.
    """
    try:
        try:
            raise SystemExit(main())
        finally:
            sys.stdout.flush()  # here and not in the interpreter's clean-up, which would print what went wrong
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None

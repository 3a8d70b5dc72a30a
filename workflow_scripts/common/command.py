"""How every command of the project ends."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def run_command(main: Callable[[], int]) -> NoReturn:
    """Call `main` and exit with what it returns; if nobody reads the output any more, end as if killed by SIGPIPE.

    The signal itself stays ignored: on a socket, a broken connection is an error that must be handled.
    """
    try:
        try:
            raise SystemExit(main())
        finally:
            sys.stdout.flush()  # here, because the interpreter's clean-up would print the error
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None

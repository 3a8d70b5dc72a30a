"""What another user of this host does, in a process of its own."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
# As whom the process runs: another user, where this one may become one.
OTHER_UID = NOBODY if os.geteuid() == 0 else os.geteuid()


@contextmanager
def another_user(work: Callable[[], object]) -> Iterator[int]:
    """Run `work` in a forked process of another user, where this process may become one. The value is its process id;
    at the end it is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            if OTHER_UID == NOBODY:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            work()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def answer_of_another_user(work: Callable[[], object]) -> str:
    """The value of `work`, or the name of its exception, in such a process."""
    reading, writing = os.pipe()

    def tell() -> None:
        try:
            answer = str(work())
        except BaseException as e:
            answer = type(e).__name__
        os.write(writing, answer.encode())

    with another_user(tell):
        os.close(writing)
        with os.fdopen(reading) as stream:
            return stream.read()


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that every user can write, as /tmp is; those of pytest can be entered by one user only."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)

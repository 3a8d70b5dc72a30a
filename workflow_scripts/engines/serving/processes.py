"""A server in its own process group, which ends with all processes that it started."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import psutil

from workflow_scripts.common.parent import forked

TERM_GRACE_S = 10.0
KILL_GRACE_S = 10.0
POLL_S = 0.05
WATCH_S = 0.2


@contextlib.contextmanager
def in_thread(watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `watch` in a thread while the context lasts; at its end, the event is set."""
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(over,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


class ServerProcess:
    """The leader of a process group in this process's session, started by `forked`. It writes to this
    process's standard output and error, the engine's log, and is killed when this process dies. Processes that it
    started are in the session of the cell; the fork server kills this session whenever the cell ends."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    @classmethod
    def forked(cls, body: Callable[[], None]) -> "ServerProcess":
        """Run `body` in a child that shares what is imported here."""

        def lead() -> None:
            os.setpgid(0, 0)
            body()

        pid = forked(lead)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here and in the child, whichever comes first
        return cls(pid)

    def ended(self) -> str | None:
        """How the leader ended, in words; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                return None
            self._status = os.waitstatus_to_exitcode(status)
        if self._status < 0:
            return f"the server was killed by signal {-self._status} ({signal.Signals(-self._status).name})"
        return f"the server ended with status {self._status}"

    def guarded(self) -> contextlib.AbstractContextManager[None]:
        """While the body runs, kill the rest of the group as soon as its leader has ended. A child forked from the
        leader holds its listening socket, so that a client that connects would wait forever."""

        def watch(over: threading.Event) -> None:
            while not over.wait(WATCH_S):
                if self.ended() is not None:
                    self._signal(signal.SIGKILL)
                    return

        return in_thread(watch)

    def stop(self) -> None:
        """End the whole group: first with a request to end, then by force."""
        self._signal(signal.SIGTERM)
        _wait(lambda: self.ended() is not None, TERM_GRACE_S)
        self._signal(signal.SIGKILL)
        _wait(lambda: self.ended() is not None and not self._members(), KILL_GRACE_S)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _members(self) -> list[int]:
        members = []
        for process in psutil.process_iter(["status"]):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) == self.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                    members.append(process.pid)
        return members


class LastCommand:
    """A command that runs once: when `run` is called, or when this process ends, even if it was killed by force. It
    waits outside the session of the cell, so that it is not killed with the session."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        # The shell reads until the other end of its input is closed; only this process holds that end.
        words = ["/bin/sh", "-c", 'read -r _; exec "$@"', "sh", *argv]
        self._waiting = subprocess.Popen(words, stdin=subprocess.PIPE, env=dict(environment), start_new_session=True)

    def run(self, limit_s: float) -> None:
        """Run the command and wait for its end; kill it if it takes longer than `limit_s`."""
        try:
            self._waiting.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self._waiting.kill()
            self._waiting.wait()


def _wait(done: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not done() and time.monotonic() < deadline:
        time.sleep(POLL_S)

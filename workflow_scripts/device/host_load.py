"""Load by other programs on the host while a cell is measured, and whether it was suspended meanwhile."""

import contextlib
import os
import signal
import time

import psutil

from workflow_scripts.device.device_record import LoadByOthers

# Clocks that do and do not count sleep are read one after the other; on a loaded host something may run in between.
SLEPT_S = 1.0


class SuspendedError(RuntimeError):
    """This process did not run all the time that was timed, so the time says nothing; the message says why."""


class Suspended:
    """Whether this process or a child is stopped (SIGSTOP, Ctrl-Z, `scontrol suspend`) or the machine sleeps; a context
    manager in the main thread. What is stopped is told when it continues; children of children are not seen."""

    def __enter__(self) -> "Suspended":
        self._stopped = False
        _continued_children(keep=False)
        self._slept_s = _slept_s()
        self._before = signal.signal(signal.SIGCONT, self._continued)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGCONT, self._before)

    def _continued(self, *_: object) -> None:
        self._stopped = True

    @property
    def why(self) -> str | None:
        """What happened, in words; None if the process was not suspended."""
        if self._stopped:
            return "the process was stopped (SIGSTOP) and continued"
        if children := _continued_children():
            return f"process {children[0]}, which it started, was stopped (SIGSTOP) and continued"
        slept_s = _slept_s() - self._slept_s
        return f"the machine slept for {slept_s:.1f} s" if slept_s > SLEPT_S else None


def _continued_children(*, keep: bool = True) -> list[int]:
    """Children that were stopped and continued since they were last asked; `keep`: ask the same again."""
    how = os.WCONTINUED | os.WNOHANG | (os.WNOWAIT if keep else 0)
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_PID, child.pid, how):
                found.append(child.pid)
    return found


def _slept_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


class HostLoad:
    """Load by others while a cell is measured, in per cent of all cores; a context manager around the timed window.
    Raises SuspendedError at its end if the process was suspended in it."""

    def __init__(self) -> None:
        self.record: LoadByOthers = {}
        self._suspended = Suspended()

    def __enter__(self) -> "HostLoad":
        self._suspended.__enter__()
        self._before = os.getloadavg()[0]
        self._began = time.monotonic(), psutil.cpu_times(), _own_cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
        self._suspended.__exit__()
        if self._suspended.why:
            raise SuspendedError(f"{self._suspended.why} while it was timed")
        began_s, before, own_before_s = self._began
        after = psutil.cpu_times()
        available_s = (time.monotonic() - began_s) * (psutil.cpu_count() or 1)
        busy_s = sum(
            getattr(after, kind) - getattr(before, kind) for kind in ("user", "nice", "system", "irq", "softirq")
        )
        self.record = {
            "load_average_1m_before": self._before,
            "load_average_1m_after": os.getloadavg()[0],
            "cpu_steal_pct": 100 * (after.steal - before.steal) / available_s,
            "cpu_others_pct": max(0.0, 100 * (busy_s - (_own_cpu_s() - own_before_s)) / available_s),
        }


def _own_cpu_s() -> float:
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total

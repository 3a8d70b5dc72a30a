"""Load by other programs on the host while a cell is measured, and whether it was suspended meanwhile."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import psutil

from workflow_scripts.device.device_record import LoadByOthers

# Clocks that do and do not count sleep are read one after the other; on a loaded host something may run in between.
SLEPT_S = 1.0


class SuspendedError(RuntimeError):
    """This process did not run all the time that was timed, so the time says nothing; the message says why."""


@contextlib.contextmanager
def suspension() -> Iterator[Callable[[], str | None]]:
    """Notice in the main thread if this process is stopped, alone or with its job (SIGSTOP, Ctrl-Z, `scontrol
    suspend`), or the machine sleeps. The value is a function that says what happened since the beginning, in words;
    None if nothing did. What is stopped is told when it continues."""
    continued: list[int] = []
    slept_before_s = _slept_s()

    def why() -> str | None:
        if continued:
            return "the process was stopped (SIGSTOP) and continued"
        slept_s = _slept_s() - slept_before_s
        return f"the machine slept for {slept_s:.1f} s" if slept_s > SLEPT_S else None

    before = signal.signal(signal.SIGCONT, lambda number, _: continued.append(number))
    try:
        yield why
    finally:
        signal.signal(signal.SIGCONT, before)


def _slept_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


@contextlib.contextmanager
def load_by_others() -> Iterator[LoadByOthers]:
    """Load by others while a cell is measured, in per cent of all cores; the record is filled at the end. Raises
    SuspendedError if the process was suspended meanwhile, whatever else went wrong."""
    record: LoadByOthers = {}
    with suspension() as why:
        began_s, before, own_before_s = time.monotonic(), psutil.cpu_times(), _own_cpu_s()
        try:
            yield record
        finally:
            if reason := why():
                raise SuspendedError(f"{reason} while it was timed")
    after = psutil.cpu_times()
    available_s = (time.monotonic() - began_s) * (psutil.cpu_count() or 1)
    busy_s = sum(getattr(after, kind) - getattr(before, kind) for kind in ("user", "nice", "system", "irq", "softirq"))
    record["cpu_steal_pct"] = 100 * (after.steal - before.steal) / available_s
    record["cpu_others_pct"] = max(0.0, 100 * (busy_s - (_own_cpu_s() - own_before_s)) / available_s)


def _own_cpu_s() -> float:
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total

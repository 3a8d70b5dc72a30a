"""Load by other programs on the host while a cell is measured."""

import contextlib
import os
import time

import psutil

from workflow_scripts.device.device_record import LoadByOthers


class HostLoad:
    """Load by others while a cell is measured, in per cent of all cores; a context manager around the timed window."""

    def __init__(self) -> None:
        self.record: LoadByOthers = {}

    def __enter__(self) -> "HostLoad":
        self._before = os.getloadavg()[0]
        self._began = time.monotonic(), psutil.cpu_times(), _own_cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
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

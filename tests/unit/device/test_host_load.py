"""Whether a process was suspended while something was timed."""

import os
import signal
import subprocess
import time

import pytest

from workflow_scripts.device.host_load import SuspendedError, load_by_others


def test_a_process_that_was_stopped_is_not_timed():
    before, me = signal.getsignal(signal.SIGCONT), os.getpid()
    with pytest.raises(SuspendedError, match="stopped"), load_by_others():
        subprocess.run(["sh", "-c", f"(sleep 0.3; kill -CONT {me}) & kill -STOP {me}"], check=True)
    assert signal.getsignal(signal.SIGCONT) == before


def test_a_machine_that_slept_is_not_timed(monkeypatch):
    boot_time = time.clock_gettime
    with pytest.raises(SuspendedError, match=r"slept for 60\.\d s"), load_by_others():
        monkeypatch.setattr(time, "clock_gettime", lambda clock: boot_time(clock) + 60)


def test_a_process_that_ran_all_the_time_is_timed():
    with load_by_others() as load:
        time.sleep(0.2)
    assert load.keys() >= {"cpu_others_pct", "cpu_steal_pct"}

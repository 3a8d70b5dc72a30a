"""Locks of devices, between processes and users; tests/unit/test_pretended_gpu.py has those of GPUs."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.other_user import OTHER_UID, another_user, shared_folder
from tests.processes import wait_for
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.ownership import Peer
from workflow_scripts.device import device_lock as locks
from workflow_scripts.device.device_lock import LOCK_FOLDER, SCOPE, WAIT, device_lock

CPU, ALL_CORES = (load_gpus()[name] for name in ("cpu-1core", "cpu-all"))


@pytest.fixture
def shared(monkeypatch, tmp_path):  # pytest's folders are made before the one for temporary files is another
    with shared_folder() as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


def is_free() -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(locks._address("cpu"))
        except OSError:
            return False
    return True


def hold() -> None:
    with device_lock(CPU):
        time.sleep(600)


def test_all_cpu_devices_ranks_and_folders_for_temporary_files_share_one_lock(shared, monkeypatch, capsys):
    """Slurm may give each job such a folder of its own."""

    def measure() -> None:
        with device_lock(CPU):
            order.append("second")

    order = []
    with ThreadPoolExecutor() as pool:
        with device_lock(ALL_CORES, 2):
            (shared / "job").mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(shared / "job"))
            second = pool.submit(measure)
            wait_for(lambda: str(os.getpid()) in capsys.readouterr().out, what="the message")
            order.append("first")
        second.result(timeout=60)
    assert order == ["first", "second"]
    assert is_free()


def test_who_holds_the_device_is_said_on_the_terminal_and_in_the_log(tmp_path):
    log = tmp_path / "measure.log"
    wait = ["measure-device", "--gpu", "cpu-1core", "--out", str(tmp_path / "rates.json"), "--log", str(log)]
    with device_lock(CPU), subprocess.Popen([sys.executable, "-m", "workflow_scripts", *wait], stderr=-1) as waits:
        said = waits.stderr.readline()
        waits.kill()
    assert str(os.getpid()).encode() in said
    assert said in log.read_bytes()


def test_who_waits_is_told_which_process_of_which_user_holds_the_device(shared, capsys):
    with another_user(hold) as pid, ThreadPoolExecutor() as pool:
        wait_for(lambda: not is_free(), what="the holder")

        def measure() -> None:
            with device_lock(CPU):
                pass

        waiting = pool.submit(measure)
        said = wait_for(lambda: capsys.readouterr().out, what="the message")
        assert locks._in_words(Peer(pid, OTHER_UID)) in said
        assert not waiting.done()
        os.kill(pid, signal.SIGKILL)
        waiting.result(timeout=60)


def test_who_binds_the_name_and_does_not_listen_is_waited_for_too(shared, monkeypatch, capsys):
    monkeypatch.setattr(locks, "AGAIN_S", 0.01)
    with ThreadPoolExecutor() as pool:
        with socket.socket(socket.AF_UNIX) as holder:
            holder.bind(locks._address("cpu"))
            waiting = pool.submit(lambda: device_lock(CPU).__enter__())
            wait_for(lambda: "does not answer" in capsys.readouterr().out, what="the message")
            assert not waiting.done()
        waiting.result(timeout=60)


def test_a_holder_with_a_full_queue_is_named_and_waited_for_up_to_the_limit(shared, monkeypatch, capsys):
    monkeypatch.setattr(locks, "AGAIN_S", 0.01)
    monkeypatch.setenv(WAIT, "0.01")
    with socket.socket(socket.AF_UNIX) as holder, contextlib.ExitStack() as filled:
        holder.bind(locks._address("cpu"))
        holder.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                one = filled.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(locks._address("cpu"))
        with pytest.raises(TimeoutError, match="a process that does not answer holds cpu"), device_lock(CPU):
            pass
    assert SCOPE in capsys.readouterr().out


def test_a_lock_in_a_folder_or_of_a_gpu_of_this_job_alone_cannot_be_held_by_others(shared, monkeypatch, capsys):
    gpu = load_gpus()["h200"]
    monkeypatch.setenv(WAIT, "0.001")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0")
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(locks._address("gpu"))
        with device_lock(gpu), pytest.raises(TimeoutError, match=f"process {os.getpid()} "), device_lock(gpu):
            pass
        monkeypatch.delenv("SLURM_JOB_GPUS")
        with pytest.raises(TimeoutError), device_lock(gpu):
            pass
        (shared / "of_the_group").mkdir(mode=0o700)
        monkeypatch.setenv(LOCK_FOLDER, str(shared / "of_the_group"))
        with device_lock(gpu), device_lock(CPU):
            pass


def test_programs_that_the_holder_starts_do_not_hold_the_device(shared):
    with device_lock(CPU):
        helper = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        assert is_free()
    finally:
        helper.kill()
        helper.wait()


def test_jobs_of_another_scope_do_not_wait(shared, monkeypatch):
    with device_lock(CPU):
        monkeypatch.setenv(SCOPE, "of another host on this machine, with a very long name" * 9)
        with device_lock(CPU):
            pass

"""Locks of devices, also on a host without a GPU; tests/unit/test_pretended_gpu.py has the check of a GPU."""

import os
import tempfile
from pathlib import Path

import pynvml
import pytest
from filelock import FileLock, Timeout

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.device import device_check as device
from workflow_scripts.device.device_check import device_lock

H200 = load_gpus()["h200"]


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [
        (None, 2, ["gpu-0", "gpu-1"]),
        ("", 1, ["gpu-0"]),
        ("3,1,2", 2, ["gpu-1", "gpu-3"]),
        ("GPU-b,GPU-a", 2, ["gpu-GPU-a", "gpu-GPU-b"]),
    ],
)
def test_a_job_locks_each_gpu_that_it_uses_in_one_order(monkeypatch, tmp_path, visible, count, names):
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    order: list[str] = []
    held = device.held_lock
    monkeypatch.setattr(
        device, "held_lock", lambda lock, *said: order.append(Path(lock.lock_file).stem) or held(lock, *said)
    )
    with device_lock(H200, count):
        for name in names:
            with pytest.raises(Timeout):
                FileLock(tmp_path / "kvsweep-locks" / f"{name}.lock").acquire(timeout=0)
    assert order == names
    FileLock(tmp_path / "kvsweep-locks" / f"{names[0]}.lock").acquire(timeout=0)


def test_all_cpu_devices_and_ranks_share_one_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with device_lock(load_gpus()["cpu-1core"], 2):
        assert [path.name for path in (tmp_path / "kvsweep-locks").iterdir()] == ["cpu.lock"]


def test_any_user_may_note_that_the_device_was_left(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    before = os.umask(0o077)
    try:
        with device_lock(load_gpus()["cpu-1core"]) as idle_s:
            assert idle_s is None
    finally:
        os.umask(before)
    (left,) = (tmp_path / "kvsweep-locks").glob("*.left")
    assert left.stat().st_mode & 0o777 == 0o666
    with device_lock(load_gpus()["cpu-1core"]) as idle_s:
        assert idle_s is not None

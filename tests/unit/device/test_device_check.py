"""Locks of CPU devices; tests/unit/test_pretended_gpu.py has those of GPUs, and their check."""

import os
import tempfile

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.device.device_check import device_lock

CPU = load_gpus()["cpu-1core"]


def test_all_cpu_devices_and_ranks_share_one_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with device_lock(CPU, 2):
        assert [path.name for path in (tmp_path / "kvsweep-locks").iterdir()] == ["cpu.lock"]


def test_any_user_may_note_that_the_device_was_left(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    before = os.umask(0o077)
    try:
        with device_lock(CPU) as idle_s:
            assert idle_s is None
    finally:
        os.umask(before)
    (left,) = (tmp_path / "kvsweep-locks").glob("*.left")
    assert left.stat().st_mode & 0o777 == 0o666
    with device_lock(CPU) as idle_s:
        assert idle_s is not None

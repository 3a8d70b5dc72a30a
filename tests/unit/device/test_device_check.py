"""The check that this GPU is the one that a cell needs. NVML is replaced by a stand-in with one card."""

import os
import sys
import tempfile
from itertools import cycle
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pynvml
import pytest
import torch
from filelock import FileLock, Timeout

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.device import device_check as device
from workflow_scripts.device.device_check import WrongDeviceError, device_lock, found_device, throttle_reasons

H200 = load_gpus()["h200"]
IDLE, POWER_CAP, HOT, HOT_TOO = 0x1, 0x4, 0x40, 0x20


class Card:
    """What NVML shows of the card that a process may use."""

    def __init__(self):
        self.name = "NVIDIA H200"
        self.memory_bytes = H200.usable_memory_bytes or H200.memory_bytes
        self.mig_mode = 0
        self.processes = []
        self.throttled = [IDLE]
        self.seen_by_torch = 1
        self.asked_for = []


@pytest.fixture
def card(monkeypatch):
    card = Card()
    nvml = ModuleType("pynvml")
    nvml.NVMLError = pynvml.NVMLError
    nvml.NVML_TEMPERATURE_GPU = nvml.NVML_CLOCK_SM = 0
    vars(nvml).update({name: value for name, value in vars(pynvml).items() if name.startswith("nvmlClocksThrottle")})
    by = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "DeviceGetHandleByIndex": card.asked_for.append,
        "DeviceGetHandleByUUID": card.asked_for.append,
        "DeviceGetName": lambda _: card.name,
        "DeviceGetUUID": lambda _: "GPU-1",
        "SystemGetDriverVersion": lambda: "580",
        "DeviceGetMemoryInfo": lambda _: SimpleNamespace(total=card.memory_bytes, used=3),
        "DeviceGetEnforcedPowerLimit": lambda _: 700_000,
        "DeviceGetMigMode": lambda _: [card.mig_mode, 0],
        "DeviceGetComputeRunningProcesses": lambda _: card.processes,
        # The last state stays.
        "DeviceGetCurrentClocksThrottleReasons": lambda _: (
            card.throttled.pop(0) if len(card.throttled) > 1 else card.throttled[0]
        ),
        "DeviceGetTemperature": lambda *_: 41,
        "DeviceGetMaxClockInfo": lambda *_: 1980,
    }
    vars(nvml).update({f"nvml{name}": call for name, call in by.items()})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: card.seen_by_torch)
    monkeypatch.setattr(device, "COOLING_S", 0.0)
    monkeypatch.setattr(device, "LEAVING_S", 0.0)
    monkeypatch.setattr(device.time, "sleep", lambda _: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return card


def test_the_right_gpu_is_described(card):
    card.throttled = [IDLE | POWER_CAP]
    assert found_device(H200) == {
        "name": "NVIDIA H200",
        "uuid": "GPU-1",
        "memory_total_bytes": card.memory_bytes,
        "memory_used_before_bytes": 3,
        "driver_version": "580",
        "power_limit_w": 700,
        "mig_mode": 0,
        "other_processes": 0,
        "throttle_reasons_before": ["GpuIdle", "SwPowerCap"],
        "temperature_before_c": 41,
        "sm_clock_max_mhz": 1980,
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "NVIDIA H100 80GB HBM3"}, "h200 was requested, but the GPU here is 'NVIDIA H100 80GB HBM3'"),
        ({"memory_bytes": 80_000_000_000}, "bytes of memory, this one 80000000000"),
        ({"mig_mode": 1}, "the GPU here is in MIG mode, so it is only a part of a h200"),
        ({"processes": [7, 8]}, "2 other processes use the h200 here"),
        (
            {"throttled": [IDLE | HOT | HOT_TOO]},
            "slowed down before any work, by HwThermalSlowdown, SwThermalSlowdown, at",
        ),
        ({"seen_by_torch": 0}, f"torch {torch.__version__} sees only 0 of 1 h200 here as CUDA devices"),
    ],
)
def test_a_wrong_gpu_is_refused_with_the_reason(card, changed, message):
    vars(card).update(changed)
    with pytest.raises(WrongDeviceError) as error:
        found_device(H200)
    assert message in str(error.value)


def test_a_hot_gpu_may_cool_down_first(card, monkeypatch):
    card.throttled = [HOT, HOT, IDLE]
    monkeypatch.setattr(device, "COOLING_S", 60.0)
    assert found_device(H200)["throttle_reasons_before"] == ["GpuIdle"]


def test_what_a_gpu_does_not_support_is_null(card):
    def unsupported(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    sys.modules["pynvml"].nvmlDeviceGetMigMode = unsupported
    sys.modules["pynvml"].nvmlDeviceGetCurrentClocksThrottleReasons = unsupported
    found = found_device(H200)
    assert found["mig_mode"] is None
    assert found["throttle_reasons_before"] is None


def test_no_gpu_at_all_is_the_wrong_one(card):
    def no_driver():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    sys.modules["pynvml"].nvmlInit = no_driver
    with pytest.raises(WrongDeviceError, match="h200 was requested, but there is no NVIDIA GPU here"):
        found_device(H200)


@pytest.mark.parametrize(("visible", "asked_for"), [("", 0), ("3,1", 3), ("GPU-7,GPU-8", "GPU-7")])
def test_the_gpu_is_the_first_that_the_process_may_see(card, monkeypatch, visible, asked_for):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found_device(H200)
    assert card.asked_for == [asked_for]


def test_every_gpu_of_a_cell_is_checked(card, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    card.seen_by_torch = 2
    found_device(H200, 2)
    assert card.asked_for == [3, 1]
    names = cycle(["NVIDIA H200", "NVIDIA L40S"])
    sys.modules["pynvml"].nvmlDeviceGetName = lambda _: next(names)
    with pytest.raises(WrongDeviceError, match="the GPU here is 'NVIDIA L40S'"):
        found_device(H200, 2)
    with pytest.raises(WrongDeviceError, match="3 GPUs were requested, but this process sees fewer"):
        found_device(H200, 3)


def test_reasons_have_nvmls_names(card):
    card.throttled = [0x8 | 0x80]
    assert throttle_reasons(None) == ["HwPowerBrakeSlowdown", "HwSlowdown"]
    card.throttled = [0]
    assert throttle_reasons(None) == []


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

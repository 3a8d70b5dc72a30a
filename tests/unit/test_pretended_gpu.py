"""Code that uses NVML through its real bindings, with a library that simulates GPUs: the device check and the trace."""

import ctypes
import itertools
import re
import socket
import tempfile

import pynvml
import pytest
import torch

from tests.pretended_gpu import (
    CATALOGUE,
    GPU_IS_LOST,
    HW_SLOWDOWN,
    HW_THERMAL,
    IDLE,
    NOT_SUPPORTED,
    POWER_CAP,
    SW_THERMAL,
    Pretended,
    build,
)
from tests.processes import wait_for
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import read_jsonl
from workflow_scripts.device import device_check as device
from workflow_scripts.device import device_lock as locks
from workflow_scripts.device.device_check import WrongDeviceError, found_device
from workflow_scripts.measure.trace import gpu_sampler, sampled
from workflow_scripts.study.gpus_here import gpus_here

pytestmark = pytest.mark.needs_tool("gcc")
PRETENDED = load_gpus(CATALOGUE)["pretended-gpu"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(library, tmp_path, monkeypatch):
    """One GPU at rest, which this process and those that it starts find in place of the host's."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    monkeypatch.setenv("PRETENDED_GPUS", str(tmp_path / "gpus.txt"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setattr(device, "COOLING_S", 0.0)
    monkeypatch.setattr(device, "LEAVING_S", 0.0)
    # torch counts GPUs through NVML in a build for CUDA alone.
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    return Pretended(tmp_path / "gpus.txt")


# --- the check ---------------------------------------------------------------------------------------------------


def test_a_gpu_is_described_and_what_it_does_not_support_is_null(gpus):
    gpus.show(throttle_bits=IDLE | POWER_CAP)
    assert found_device(PRETENDED) == {
        "name": "Pretended GPU",
        "uuid": "GPU-pretended-0",
        "memory_total_bytes": 80_000_000_000,
        "driver_version": "pretended",
        "power_limit_w": 700,
        "mig_mode": 0,
        "other_processes": 0,
        "throttle_reasons_before": ["GpuIdle", "SwPowerCap"],
        "temperature_before_c": 41,
    }
    names = ("power_limit_w", "mig_mode", "processes", "throttle_bits", "temperature_c")
    gpus.show(**dict.fromkeys(names, NOT_SUPPORTED))
    assert sum(value is None for value in found_device(PRETENDED).values()) == len(names)
    # CUDA counts GPUs as NVML does.
    found_device(PRETENDED)
    assert device.os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("shown", "count", "message"),
    [
        ({"gpus": 0}, 1, "asked for 1 x pretended-gpu, which NVML does not find here"),
        ({"type": "of another type"}, 1, "the GPU here is 'Pretended GPU of another type'"),
        ({"memory_total_bytes": 40_000_000_000}, 1, "has 80000000000 bytes of memory, this one 40000000000"),
        ({"mig_mode": 1}, 1, "the GPU here is in MIG mode"),
        ({"processes": 3}, 1, "3 other processes use the pretended-gpu here"),
        ({"gpus": 2, "of": {1: {"processes": 1}}}, 2, "1 other processes use"),
        (
            {"throttle_bits": IDLE | HW_SLOWDOWN | HW_THERMAL | SW_THERMAL, "temperature_c": 92},
            *(1, "by HwSlowdown, HwThermalSlowdown, SwThermalSlowdown, at 92 degrees"),
        ),
        ({"of": {0: {"all": GPU_IS_LOST}}}, 1, "which NVML does not find here: GPU is lost"),
    ],
)
def test_a_wrong_gpu_is_refused_with_the_reason(gpus, shown, count, message):
    gpus.show(**shown)
    with pytest.raises(WrongDeviceError, match=re.escape(message)):
        found_device(PRETENDED, count)


@pytest.mark.parametrize(
    ("limit", "shown"), [("COOLING_S", {"throttle_bits": SW_THERMAL}), ("LEAVING_S", {"processes": 1})]
)
def test_a_gpu_may_cool_down_and_the_last_cells_processes_may_leave(gpus, monkeypatch, limit, shown):
    slept: list[float] = []

    def then_at_rest(seconds: float) -> None:
        slept.append(seconds)
        gpus.show()

    gpus.show(**shown)
    monkeypatch.setattr(device, limit, 60.0)
    monkeypatch.setattr(device.time, "sleep", then_at_rest)
    found = found_device(PRETENDED)
    assert (found["throttle_reasons_before"], found["other_processes"]) == (["GpuIdle"], 0)
    assert slept == [1]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("3,1,7", [3, 1]),  # what CUDA does not find ends its list
        ("GPU-c-3,GPU-a-1", [2, 0]),
        ("7", []),
        ("GPU-x", []),
        ("NoDevFiles", []),  # as Slurm sets it for a job without a GPU
    ],
)
def test_the_gpus_checked_are_those_that_torch_sees(gpus, monkeypatch, visible, seen):
    uuids = ["GPU-a-1", "GPU-b-2", "GPU-c-3", "GPU-d-4"]
    gpus.show(4, of={i: {"uuid": uuid} for i, uuid in enumerate(uuids)})
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert torch.cuda.device_count() == len(seen)
    assert gpus_here() == ["Pretended GPU"] * len(seen)
    pynvml.nvmlInit()
    assert [pynvml.nvmlDeviceGetUUID(device.nvml_handle(i)) for i in range(len(seen))] == [uuids[i] for i in seen]
    with pytest.raises(WrongDeviceError, match="which NVML does not find here"):
        found_device(PRETENDED, len(seen) + 1)
    if seen:
        assert found_device(PRETENDED, len(seen))["uuid"] == uuids[seen[0]]


def test_a_gpu_that_torch_does_not_see_is_told(gpus, monkeypatch):
    gpus.show(2)
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: False)
    with pytest.raises(WrongDeviceError, match=r"torch .* sees only 0 of 2 pretended-gpu"):
        found_device(PRETENDED, 2)


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [
        ("1", 1, ["gpu-GPU-pretended-1"]),
        ("GPU-pretended-1", 1, ["gpu-GPU-pretended-1"]),
        ("1,0", 2, ["gpu-GPU-pretended-0", "gpu-GPU-pretended-1"]),
        ("7", 1, ["gpu"]),  # which is refused when it is looked at
    ],
)
def test_a_job_locks_each_gpu_under_its_own_name_and_all_in_one_order(
    gpus, monkeypatch, tmp_path, visible, count, names
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus.show(2)
    order: list[str] = []
    address = locks._address
    monkeypatch.setattr(locks, "_address", lambda name: order.append(name) or address(name))

    def bind(name: str) -> None:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(address(name))

    with locks.device_lock(PRETENDED, count):
        for name in names:
            with pytest.raises(OSError, match="in use"):
                bind(name)
    assert order == names
    bind(names[0])


# --- the trace ---------------------------------------------------------------------------------------------------


def test_a_sample_has_what_nvml_shows_and_no_counter_that_is_not_there(gpus):
    gpus.show(memory_used_bytes=71e9, utilization_pct=93, power_w=412.5, throttle_bits=POWER_CAP)
    sample = gpu_sampler()()
    assert sample.pop("energy_j") > 0
    assert sample == {
        "memory_used_bytes": 71_000_000_000,
        "memory_total_bytes": 80_000_000_000,
        "utilization_pct": 93,
        "power_w": 412.5,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 41,
        "throttle_reasons": ["SwPowerCap"],
    }
    gpus.show(energy_counter_w=NOT_SUPPORTED)
    assert "energy_j" not in gpu_sampler()()
    assert "power_w" in gpu_sampler()()


def test_power_energy_and_throttling_are_of_all_gpus_of_a_cell(gpus):
    gpus.show(2, of={1: {"power_w": 250, "energy_counter_w": 0, "throttle_bits": HW_THERMAL, "temperature_c": 90}})
    sample, alone = gpu_sampler(2)(), gpu_sampler(1)()
    assert (sample["power_w"], alone["power_w"]) == (350, 100)
    assert sample["throttle_reasons"] == ["GpuIdle", "HwThermalSlowdown"]
    assert alone["throttle_reasons"] == ["GpuIdle"]
    assert sample["temperature_c"] == 41


def test_the_sampler_follows_two_gpus_until_one_is_lost(gpus, tmp_path):
    gpus.show(2, power_w=200, energy_counter_w=200)
    out = tmp_path / "device_trace.jsonl"
    with sampled("cuda", out, gpus=2):
        wait_for(lambda: len(list(read_jsonl(out))) > 4, what="samples")
        gpus.show(2, of={1: {"all": GPU_IS_LOST}}, power_w=200, energy_counter_w=200)
        wait_for(lambda: "energy_j" not in list(read_jsonl(out))[-1], what="a sample without the lost GPU")
    _, *samples = read_jsonl(out)
    of_both_gpus = [s for s in samples if "energy_j" in s]
    assert {s["power_w"] for s in of_both_gpus if "power_w" in s} == {400}
    energies = [s["energy_j"] for s in of_both_gpus]
    assert all(later >= earlier for earlier, later in itertools.pairwise(energies))
    assert energies[-1] > energies[0]
    # What the other GPU shows is still there.
    assert samples[-1].keys() >= {"memory_used_bytes", "temperature_c"}
    assert samples[-1].keys().isdisjoint({"power_w", "energy_j"})


def test_a_sampler_that_cannot_start_is_a_fault_and_no_missing_trace(gpus, tmp_path):
    gpus.show(1)
    trace = sampled("cuda", tmp_path / "device_trace.jsonl", gpus=2)
    with pytest.raises(RuntimeError, match="the device trace ended before its first sample"), trace:
        pytest.fail("the body ran without a trace")

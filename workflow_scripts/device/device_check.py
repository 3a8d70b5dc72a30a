"""Checks of the device that work runs on: is it the right one, is it in use, and which cores of a CPU belong to it?"""

import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import psutil

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.device.device_record import Device
from workflow_scripts.device.processor import processor_facts

MEMORY_TOLERANCE = 0.1  # cards of one name differ only by drivers and ECC
# Faults for which a GPU lowers its clocks. A power cap is no fault, and neither are the low clocks of an idle GPU.
FAULTS = ("HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "SwThermalSlowdown")
COOLING_S = 60.0  # a GPU that the last cell heated up has cooled down within this time
LEAVING_S = 10.0  # the driver lists a killed process until its memory is freed

ReadValue = TypeVar("ReadValue")


class WrongDeviceError(RuntimeError):
    """The device found is not the one that the cell is for."""


def found_device(gpu: Gpu, count: int = 1) -> Device:
    """Describe the device that this process got, and check that it is `gpu`. If a cell uses several GPUs, all of them
    are checked and the first is described. Raises WrongDeviceError if there are too few cores or GPUs, or a GPU is of
    another type, in MIG mode, used by others, slowed down by heat or its power supply, or not visible to torch."""
    if gpu.kind == "cpu":
        return _found_cpu(gpu)
    import pynvml

    # CUDA numbers GPUs by speed by default, NVML by bus: the GPUs that are checked must be those that are used.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        pynvml.nvmlInit()
        try:
            devices = [_described(nvml_handle(index)) for index in range(count)]
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, IndexError, ValueError) as e:
        raise WrongDeviceError(f"asked for {count} x {gpu.name}, which NVML does not find here: {e}") from None
    for device in devices:
        _check(gpu, device)
    import torch

    # torch counts through NVML: asking whether CUDA is available would start CUDA here, before the engine forks.
    if (seen := torch.cuda.device_count()) < count:
        raise WrongDeviceError(f"torch {torch.__version__} sees only {seen} of {count} {gpu.name} here as CUDA devices")
    return devices[0]


def _found_cpu(gpu: Gpu) -> Device:
    allowed = sorted(os.sched_getaffinity(0))
    wanted = gpu.cpu_cores or len(allowed)
    if len(allowed) < wanted:
        raise WrongDeviceError(f"{gpu.name} needs {wanted} cores, this process may use {len(allowed)}")
    # The first core handles most interrupts, so the last cores are taken.
    cores = allowed[-wanted:]
    return {"cores": cores, "memory_total_bytes": psutil.virtual_memory().total, **processor_facts(cores)}


def cpu_here(gpu: Gpu) -> Device:
    """The CPU device that this host would give, for predictions; empty if it has too few cores, or for a GPU."""
    try:
        return _found_cpu(gpu) if gpu.kind == "cpu" else {}
    except WrongDeviceError:
        return {}


def use_cores(cores: list[int]) -> None:
    """Pin this process and its libraries' thread pools to `cores`."""
    os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    import torch

    torch.set_num_threads(len(cores))


def _described(handle: Any) -> Device:
    import pynvml

    def processes() -> int:
        return len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))

    def slowed_by(reasons: list[str]) -> bool:
        return not set(reasons).isdisjoint(FAULTS)

    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "memory_total_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        "driver_version": pynvml.nvmlSystemGetDriverVersion(),
        "power_limit_w": _or_none(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        "mig_mode": _or_none(lambda: int(pynvml.nvmlDeviceGetMigMode(handle)[0])),
        "other_processes": _or_none(lambda: _settled(processes, bool, LEAVING_S)),
        "throttle_reasons_before": _or_none(lambda: _settled(lambda: throttle_reasons(handle), slowed_by, COOLING_S)),
        "temperature_before_c": _or_none(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
    }


def _check(gpu: Gpu, facts: Device) -> None:
    name = facts["name"]
    if not gpu.is_called(name):
        raise WrongDeviceError(f"{gpu.name} was requested, but the GPU here is {name!r}")
    expected = gpu.usable_memory_bytes or gpu.memory_bytes
    if expected is not None and abs(facts["memory_total_bytes"] / expected - 1) > MEMORY_TOLERANCE:
        raise WrongDeviceError(f"{gpu.name} has {expected:.0f} bytes of memory, this one {facts['memory_total_bytes']}")
    if facts["mig_mode"]:
        raise WrongDeviceError(f"the GPU here is in MIG mode, so it is only a part of a {gpu.name}")
    if facts["other_processes"]:
        raise WrongDeviceError(f"{facts['other_processes']} other processes use the {gpu.name} here")
    slowed_by = [reason for reason in facts["throttle_reasons_before"] or () if reason in FAULTS]
    if slowed_by:
        raise WrongDeviceError(
            f"the {gpu.name} here is slowed down before any work, by {', '.join(slowed_by)},"
            f" at {facts['temperature_before_c']} degrees Celsius"
        )


def _settled(read: Callable[[], ReadValue], is_bad: Callable[[ReadValue], bool], limit_s: float) -> ReadValue:
    """The first value of `read` that is no longer bad, or the last one when `limit_s` have passed."""
    deadline = time.monotonic() + limit_s
    while is_bad(value := read()) and time.monotonic() < deadline:
        time.sleep(1)
    return value


def throttle_reasons(handle: Any) -> list[str]:
    """Why the clocks of a GPU are below their maximum, in NVML's words, e.g. `GpuIdle` or `SwPowerCap`."""
    import pynvml

    return reasons_of(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


@cache
def reasons_of(mask: int) -> list[str]:
    import pynvml

    prefix = "nvmlClocksThrottleReason"
    named = {name.removeprefix(prefix): bit for name, bit in vars(pynvml).items() if name.startswith(prefix)}
    return sorted(name for name, bit in named.items() if name != "All" and mask & bit)


def nvml_handle(index: int = 0) -> Any:
    """NVML's handle of one of the GPUs that are visible to this process; NVML must be initialised. NVML counts all GPUs
    of the host, CUDA only those in CUDA_VISIBLE_DEVICES, which holds indices or whole UUIDs. Raises IndexError or
    ValueError if the variable does not name so many GPUs, and pynvml.NVMLError if NVML does not find the GPU."""
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = visible.split(",")[index] if visible else str(index)
    if device.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(device)
    return pynvml.nvmlDeviceGetHandleByIndex(int(device))


def _or_none(read: Callable[[], Any]) -> Any:
    import pynvml

    try:
        return read()
    except pynvml.NVMLError:
        return None

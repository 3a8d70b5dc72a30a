"""The device that work runs on: is it the right one, is it ours alone, and which cores of a CPU belong to it."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from workflow_scripts.catalog import Gpu

MEMORY_TOLERANCE = 0.1  # cards of one name differ by drivers and by ECC, not by more


class WrongDeviceError(RuntimeError):
    """The device found is not the one that the cell is for."""


def found_device(gpu: Gpu) -> dict[str, Any]:
    """Describe the device that this process got, and check that it is `gpu`.

    Raises:
        WrongDeviceError: too few cores, no GPU, a GPU of another type, in MIG mode, or in use by others.
    """
    return _found_cpu(gpu) if gpu.kind == "cpu" else _found_gpu(gpu)


def _found_cpu(gpu: Gpu) -> dict[str, Any]:
    allowed = sorted(os.sched_getaffinity(0))
    wanted = gpu.cpu_cores or len(allowed)
    if len(allowed) < wanted:
        raise WrongDeviceError(f"{gpu.name} needs {wanted} cores, this process may use {len(allowed)}")
    return {
        "name": _cpu_name(),
        # The first core serves most interrupts, so the last ones are taken.
        "cores": allowed[-wanted:],
        "memory_total_bytes": psutil.virtual_memory().total,
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def use_cores(cores: list[int]) -> None:
    """Pin this process and its libraries' thread pools to `cores`."""
    os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    import torch

    torch.set_num_threads(len(cores))


def _found_gpu(gpu: Gpu) -> dict[str, Any]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        raise WrongDeviceError(f"{gpu.name} was asked for, and there is no NVIDIA GPU here: {e}") from None
    try:
        handle = nvml_handle()
        name = pynvml.nvmlDeviceGetName(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        found = {
            "name": name,
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "memory_total_bytes": int(memory.total),
            "memory_used_before_bytes": int(memory.used),
            "driver_version": pynvml.nvmlSystemGetDriverVersion(),
            "power_limit_w": _or_none(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            "mig_mode": _or_none(lambda: int(pynvml.nvmlDeviceGetMigMode(handle)[0])),
            "other_processes": _or_none(lambda: len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))),
        }
    finally:
        pynvml.nvmlShutdown()
    if not any(re.fullmatch(pattern, name) for pattern in gpu.nvml_names or ()):
        raise WrongDeviceError(f"{gpu.name} was asked for, and the GPU here is {name!r}")
    expected = gpu.usable_memory_bytes or gpu.memory_bytes
    if expected is not None and abs(found["memory_total_bytes"] / expected - 1) > MEMORY_TOLERANCE:
        raise WrongDeviceError(f"{gpu.name} has {expected:.0f} bytes of memory, this one {found['memory_total_bytes']}")
    if found["mig_mode"]:
        raise WrongDeviceError(f"the GPU here is in MIG mode, so it is only a part of a {gpu.name}")
    if found["other_processes"]:
        raise WrongDeviceError(f"{found['other_processes']} other processes use the {gpu.name} here")
    return found


def nvml_handle() -> Any:
    """NVML's handle of the first GPU that this process may see; NVML must be initialised.

    NVML counts all GPUs of the host, CUDA only those in CUDA_VISIBLE_DEVICES, which holds indices or UUIDs.
    """
    import pynvml

    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    if first.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    return pynvml.nvmlDeviceGetHandleByIndex(int(first))


def _or_none(read: Any) -> Any:
    import pynvml

    try:
        return read()
    except pynvml.NVMLError:
        return None


@contextlib.contextmanager
def device_lock(gpu: Gpu) -> Iterator[None]:
    """Hold the device for one job, against any other on this host, of this snakemake or another.

    All CPU devices of a host share one lock, because they share its cores and its memory bandwidth.
    """
    place = Path(tempfile.gettempdir()) / "kvsweep-locks"
    place.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):
        place.chmod(0o1777)  # for every user of the host
    name = "cpu" if gpu.kind == "cpu" else "gpu-" + (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
    lock = FileLock(place / f"{name}.lock", mode=0o666)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting for the device: another job holds {lock.lock_file}", flush=True)
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        lock.release()

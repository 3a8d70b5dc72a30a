"""Sample a device while a process runs: memory, utilisation, power, energy, clocks, temperature.

    kvsweep sample-device --pid 4711 --kind cuda --out device_trace.jsonl

writes one JSON object per line until it gets SIGTERM or the watched process ends. The first line is a header.
Times are in seconds on the host's wall and monotonic clocks, so that samples and requests can be aligned.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from workflow_scripts.common.command import command, option, out

_INTERVAL_S = 0.1
# A scan for child processes reads all of /proc: 7 ms on the machine that is measured. Once a second is enough.
SAMPLES_PER_SCAN = 10

Sample = dict[str, Any]


@contextlib.contextmanager
def sampled(kind: str, out: Path, gpus: int = 1) -> Iterator[None]:
    """Sample while the body runs and shortly after its end, so that the last second is covered. Raises RuntimeError if
    the sampler ended before its first sample."""
    command = [sys.executable, "-m", "workflow_scripts", "sample-device", "--pid", str(os.getpid()), "--kind", kind]
    sampler = subprocess.Popen([*command, "--gpus", str(gpus), "--out", str(out)], stdout=subprocess.PIPE)
    try:
        # The sampler prints a line after its first sample.
        if sampler.stdout is not None and not sampler.stdout.readline():
            raise RuntimeError("the device trace ended before its first sample; the reason is above")
        yield
        time.sleep(2 * _INTERVAL_S)
    finally:
        sampler.terminate()
        sampler.wait()


def gpu_sampler(gpus: int = 1) -> Callable[[], Sample]:
    """Read GPUs through NVML: power, energy and throttling of all GPUs together, other values of the first GPU. A
    sample leaves out what a GPU does not support."""
    import pynvml

    # Takes longer to import than the rest of the sampler to start, which each cell waits for.
    from workflow_scripts.device.device_check import nvml_handle, throttle_reasons

    pynvml.nvmlInit()
    handles = [nvml_handle(index) for index in range(gpus)]
    handle = handles[0]
    reads: dict[str, Callable[[], Any]] = {
        "memory_used_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
        "memory_total_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        "utilization_pct": lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "power_w": lambda: sum(map(pynvml.nvmlDeviceGetPowerUsage, handles)) / 1000,
        "energy_j": lambda: sum(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, handles)) / 1000,
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: sorted({reason for gpu in handles for reason in throttle_reasons(gpu)}),
    }

    def sample() -> Sample:
        values = {}
        for name, read in reads.items():
            with contextlib.suppress(pynvml.NVMLError):
                values[name] = read()
        return values

    return sample


def process_sampler(pid: int) -> Callable[[], Sample]:
    """Read memory and CPU of a process and its children, on a machine without a GPU. Memory is the resident set size:
    it includes libraries shared with a fork's parent, and is cheap to read (a proportional set size walks all pages,
    which would cost a tenth of a core at 10 Hz)."""
    watched = psutil.Process(pid)
    family = [watched]
    samples = itertools.count()
    total = psutil.virtual_memory().total

    def sample() -> Sample:
        nonlocal family
        if next(samples) % SAMPLES_PER_SCAN == 0:
            by_id = {process.pid: process for process in family}  # each object keeps the CPU time of its last sample
            family = [by_id.get(p.pid, p) for p in [watched, *watched.children(recursive=True)] if p.pid != os.getpid()]
        memory, cpu = 0, 0.0
        for process in family:
            with contextlib.suppress(psutil.Error):
                memory += process.memory_info().rss
                cpu += process.cpu_percent()
        return {"process_memory_bytes": memory, "process_cpu_pct": cpu, "memory_total_bytes": total}

    return sample


def record(sample: Callable[[], Sample], pid: int, out: Path, interval_s: float = _INTERVAL_S) -> None:
    """Write samples until SIGTERM, or until the watched process is gone."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    with out.open("w", encoding="utf-8", buffering=1) as lines:
        lines.write(json.dumps({"schema": "device_trace/1", "interval_s": interval_s}) + "\n")
        due = began = time.monotonic()
        while not stopped and os.getppid() == pid:
            try:
                values = sample()
            except psutil.NoSuchProcess:
                return
            now = {"time_unix_s": round(time.time(), 4), "time_monotonic_s": round(time.monotonic(), 4)}
            lines.write(json.dumps({**now, **values}) + "\n")
            if due == began:
                print("sampling", flush=True)
            # After a late sample the next ones keep the interval, so that gaps stay visible.
            due = max(due + interval_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


@command(
    "sample-device",
    option("--pid", type=int, required=True, help="the process to watch; it must be this one's parent"),
    option("--kind", choices=["cuda", "cpu"], required=True, help="cuda: by NVML; cpu: the process itself"),
    option("--gpus", type=int, default=1, help="GPUs to sample (%(default)s)"),
    out("the file to write"),
)
def main(args: Namespace) -> None:
    record(gpu_sampler(args.gpus) if args.kind == "cuda" else process_sampler(args.pid), args.pid, args.out)

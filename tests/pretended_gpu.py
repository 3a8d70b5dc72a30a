"""Simulated GPUs behind the real NVML bindings: a small library in C, built when a test needs it.

`build` makes the library; `Pretended` says what its GPUs report. Their names, and the catalogue's entry for them, say
that they are not real, so nothing measured with them can be mistaken for a GPU's.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow_scripts.common.files import write_text

HERE = Path(__file__).resolve().parent / "fixtures" / "pretended_gpu"
CATALOGUE = HERE / "gpus.yaml"
LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED, GPU_IS_LOST = "error 3", "error 15"
IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL = 0x1, 0x4, 0x8, 0x20, 0x40

# What a GPU at rest shows, which none of its checks minds.
AT_REST = {
    "memory_total_bytes": 80_000_000_000,
    "memory_used_bytes": 600_000_000,
    "utilization_pct": 0,
    "power_w": 100,
    "power_limit_w": 700,
    "energy_counter_w": 100,
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 3201,
    "temperature_c": 41,
    "throttle_bits": IDLE,
    "mig_mode": 0,
}


def build(folder: Path) -> Path:
    """Compile the library into a folder, for `LD_LIBRARY_PATH`; return it."""
    library = folder / LIBRARY
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run(["gcc", *flags, str(HERE / "nvml.c"), "-o", str(library)], check=True)
    return library


class Pretended:
    """The GPUs that a file says are there; `show` changes what they show from the next call on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.show()

    def show(self, gpus: int = 1, of: Mapping[int, Mapping[str, Any]] | None = None, **of_all: Any) -> None:
        """So many GPUs at rest with other values `of_all`, and again others `of` some of them."""
        lines = [f"* gpus {gpus}"]
        lines += [f"{gpu} {name} {value}" for gpu, values in (of or {}).items() for name, value in values.items()]
        lines += [f"* {name} {value}" for name, value in (AT_REST | of_all).items()]
        write_text(self._path, "\n".join(lines) + "\n")

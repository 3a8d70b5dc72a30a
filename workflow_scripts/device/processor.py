"""What the processor of this host can do: instruction sets, native types, caches.

In config/models/ a model may have the dtype `native`: the smallest that its device computes without emulation.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from workflow_scripts.catalog.gpus_and_models import Dtype, Gpu, ModelDtype
from workflow_scripts.device.device_record import Cache, Device

CPUINFO = Path("/proc/cpuinfo")
CPUS = Path("/sys/devices/system/cpu")

# The instruction sets that determine how fast a model runs, in Linux's spelling.
INSTRUCTION_SETS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
)
_NEEDED: Mapping[Dtype, tuple[str, ...]] = {
    "bfloat16": ("avx512_bf16", "amx_bf16"),
    "float16": ("avx512_fp16", "amx_fp16"),
}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def processor_facts(cores: Sequence[int], cpuinfo: Path = CPUINFO, cpus: Path = CPUS) -> Device:
    """Facts about the processor of these cores; what the system does not report is not in the lists.

    `processor`: name, vendor, family, model and instruction sets in one line, the same for processors with the same
    abilities. `caches`: `level`, `size_bytes`, `cpus` that share one and `instances` that the cores use together. The
    paths are Linux's descriptions of all this.
    """
    first = cpuinfo.read_text(encoding="utf-8").strip().split("\n\n")[0]
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    flags = fields.get("flags", "").split()
    instruction_sets = [name for name in INSTRUCTION_SETS if name in flags]
    name = fields.get("model name") or os.uname().machine
    family = f"{fields.get('vendor_id', 'unknown vendor')} {fields.get('cpu family', '?')}-{fields.get('model', '?')}"
    return {
        "name": name,
        "processor": f"{name} ({family}): {' '.join(instruction_sets) or 'none of the instruction sets asked about'}",
        "instruction_sets": instruction_sets,
        "native_dtypes": ["float32", *(dtype for dtype, sets in _NEEDED.items() if set(sets) & set(instruction_sets))],
        "caches": _caches(cores, cpus),
    }


def _caches(cores: Sequence[int], cpus: Path) -> list[Cache]:
    """Data caches by level; each is counted once, whoever shares it."""
    sizes: dict[int, dict[str, int]] = {}
    for index in (index for core in cores for index in (cpus / f"cpu{core}" / "cache").glob("index*")):
        if _text(index / "type") != "Instruction":
            sizes.setdefault(int(_text(index / "level")), {})[_text(index / "shared_cpu_list")] = _bytes(index / "size")
    return [
        {
            "level": level,
            "size_bytes": max(caches.values()),
            "cpus": max(len(cpu_list(shared)) for shared in caches),
            "instances": len(caches),
        }
        for level, caches in sorted(sizes.items())
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _bytes(path: Path) -> int:
    size = _text(path)
    return int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)


def cpu_list(text: str) -> list[int]:
    """Cores of a list in Linux's notation.

    >>> cpu_list("0-2,8")
    [0, 1, 2, 8]
    """
    ends = [part.partition("-") for part in text.split(",") if part]
    return [core for first, _, last in ends for core in range(int(first), int(last or first) + 1)]


def last_level_cache_bytes(device: Device) -> int | None:
    """Bytes of all last-level caches that a CPU device uses; None if the system does not report them.

    >>> last_level_cache_bytes({"caches": [{"level": 3, "size_bytes": 32, "cpus": 16, "instances": 2}]})
    64
    """
    caches = device.get("caches") or []
    return caches[-1]["size_bytes"] * caches[-1]["instances"] if caches else None


def dtype_on(dtype: ModelDtype, gpu: Gpu, device: Device) -> Dtype:
    """The type in which a model is computed on a device: its own, or for `native` the smallest without emulation.

    Among types of equal size bfloat16 is preferred, because models are trained in it. A GPU's types come from its data
    sheet, a CPU's from its record; it is float32 if that names none.

    >>> from workflow_scripts.catalog.gpus_and_models import get_gpu
    >>> dtype_on("native", get_gpu("h200"), {}), dtype_on("float16", get_gpu("cpu-all"), {"native_dtypes": ["float32"]})
    ('bfloat16', 'float16')
    >>> native = (["float32", "float16", "bfloat16"], ["float32", "float16"], ["float32"])
    >>> [dtype_on("native", get_gpu("cpu-all"), {"native_dtypes": types}) for types in native]
    ['bfloat16', 'float16', 'float32']
    """
    if dtype != "native":
        return dtype
    half: tuple[tuple[Dtype, str], ...] = (("bfloat16", "bf16"), ("float16", "fp16"))
    if gpu.kind == "cpu":
        native = device.get("native_dtypes", ())
        return next((name for name, _ in half if name in native), "float32")
    return next((name for name, rate in half if rate in (gpu.dense_flop_per_s or {})), "float32")

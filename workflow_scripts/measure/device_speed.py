"""Measure the rates at which a device copies, reads and multiplies.

    kvsweep measure-device --gpu cpu-all --out results/demo/prepared/devices/cpu-all.json

A CPU is measured on exactly the cores that its cells use. Every device is measured under the lock that its cells take.
Reading is a matrix-vector product with a float32 matrix larger than the last-level cache, as decoding reads weights.

Exit code 1: the device here is another one, or in use.
"""

import contextlib
import math
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from workflow_scripts.catalog.gpus_and_models import FlopDtype, Gpu, get_gpu, load_models
from workflow_scripts.common.command import LOG, command, option, out
from workflow_scripts.device.device_check import WrongDeviceError, found_device, use_cores
from workflow_scripts.device.device_lock import device_lock
from workflow_scripts.device.device_record import Device, DeviceRates
from workflow_scripts.device.host_load import load_by_others
from workflow_scripts.device.processor import last_level_cache_bytes
from workflow_scripts.measure.provenance import now_in_utc
from workflow_scripts.physics.model_facts import ModelFactsError, facts_on
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

RUNS = 20
_ATTEMPTS = 4  # on a shared host the load by others comes in bursts of some seconds
RUN_MIN_S = 0.02  # shorter runs would mostly time the clock and the launch of kernels
_COLUMNS = 4096
ROW_BYTES = 4 * _COLUMNS
CACHES = 4  # a working set of this many last-level caches finds almost nothing in the cache
MATRIX_SIDE = {"cpu": 1024, "cuda": 8192}
WORKING_SET_MIN_BYTES = {"cpu": 2**28, "cuda": 2**30}
ARITHMETIC: tuple[FlopDtype, ...] = ("fp32", "tf32", "bf16", "fp16")
ON_CPU: Mapping[str, FlopDtype] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
READ_AGAIN = "read-"
SMALLEST_SET_BYTES = 2**22


@dataclass(frozen=True)
class Operation:
    """A call of `run` moves `amount` bytes or computes `amount` floating-point operations."""

    amount: float
    run: Callable[[], object]


def working_set_bytes(device: str, cache_bytes: int | None, memory_bytes: float) -> int:
    """Bytes of the matrix that is copied and read: larger than the caches, at most an eighth of the memory.

    >>> of = ("cpu", 2**25, 2**34), ("cpu", 3 * 2**27, 2**36), ("cuda", 50 * 2**20, 2**32)
    >>> [working_set_bytes(*each) // 2**20 for each in of]
    [256, 1536, 512]
    """
    wanted = max(WORKING_SET_MIN_BYTES[device], CACHES * (cache_bytes or 0))
    return int(min(wanted, memory_bytes / 8)) // ROW_BYTES * ROW_BYTES


def operations(
    device: str, set_bytes: int, side: int, arithmetic: Sequence[FlopDtype], reread: Sequence[int] = ()
) -> dict[str, Operation]:
    """What is timed, by name: `copy`, `read`, `read-BYTES` for smaller sets, and one matrix product per arithmetic.
    `set_bytes`: size of the matrix to copy and read, a multiple of `ROW_BYTES`. `side`: rows and columns of the
    matrices to multiply. `arithmetic`: names of the products; `tf32` is a product of float32 matrices that may be
    rounded to TF32. `reread`: bytes of the smaller sets to read repeatedly, so that they may stay in caches."""
    import torch

    source = torch.ones(set_bytes // ROW_BYTES, _COLUMNS, device=device)
    target = torch.zeros_like(source)
    vector = torch.ones(_COLUMNS, device=device)
    timed = {"copy": Operation(2 * set_bytes, lambda: target.copy_(source))}
    for name, size in {"read": set_bytes, **{f"{READ_AGAIN}{size}": size for size in reread}}.items():
        part = source[: size // ROW_BYTES]
        timed[name] = Operation(part.nbytes, partial(torch.mv, part, vector))
    dtypes = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

    def multiply(a: torch.Tensor, b: torch.Tensor, precision: str) -> None:
        torch.set_float32_matmul_precision(precision)
        torch.mm(a, b)

    for name in arithmetic:
        a, b = (torch.randn(side, side, device=device, dtype=dtypes[name]) for _ in range(2))
        product = partial(multiply, a, b, "high" if name == "tf32" else "highest")
        timed[name] = Operation(2 * side**3, product)
    return timed


def time_runs(
    timed: Mapping[str, Operation],
    synchronize: Callable[[], object],
    runs: int = RUNS,
    run_min_s: float = RUN_MIN_S,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """The mean time of a call in each of `runs` runs of each operation. They take turns, so that a disturbance does not
    hit all runs of one. The first call of each is not counted; the second shows how many calls a run of `run_min_s`
    needs."""

    def call_s(operation: Operation, calls: int) -> float:
        synchronize()
        began = clock()
        for _ in range(calls):
            operation.run()
        synchronize()
        return (clock() - began) / calls

    calls = {}
    for name, operation in timed.items():
        operation.run()
        calls[name] = max(1, math.ceil(run_min_s / call_s(operation, 1)))
    taken_s: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(runs):
        for name, operation in timed.items():
            taken_s[name].append(call_s(operation, calls[name]))
    return taken_s


def step_bytes(study: Study, gpu: Gpu, device: Device) -> list[int]:
    """Bytes of weights that a decode step reads, for each model of the study on the device, except unknown models."""
    models, sizes = load_models(), set()
    for name in resolved_models(study):
        with contextlib.suppress(ModelFactsError):
            sizes.add(facts_on(models[name], gpu, device).decode_weight_bytes)
    return sorted(sizes)


def sets_to_read(largest: int, of_models: Sequence[int]) -> list[int]:
    """Sizes in bytes of the sets that a CPU reads repeatedly: a series in which each doubles, and those of the models.

    >>> [size // 2**20 for size in sets_to_read(2**26, [20 * 2**20, 2**30])]
    [4, 8, 16, 20, 32]
    """
    doubled = [SMALLEST_SET_BYTES * 2**i for i in range((largest // SMALLEST_SET_BYTES).bit_length())]
    whole_rows = [size // ROW_BYTES * ROW_BYTES for size in (*doubled, *of_models)]
    return sorted({size for size in whole_rows if SMALLEST_SET_BYTES <= size < largest})


def measure_device(gpu: Gpu, study: Study | None = None) -> DeviceRates:
    """Measure the device that this process has; nothing else may use it meanwhile. A CPU also reads as many bytes as a
    decode step of each of the study's models. Raises WrongDeviceError if the device is not `gpu`."""
    facts, on_cpu = found_device(gpu), gpu.kind == "cpu"
    if on_cpu:
        use_cores(facts["cores"])
    import torch

    if on_cpu:
        cache_bytes = last_level_cache_bytes(facts)
        arithmetic = tuple(ON_CPU[dtype] for dtype in facts["native_dtypes"])
    else:
        cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        # A GPU emulates arithmetic for which it has no units, slowly.
        arithmetic = tuple(name for name in ARITHMETIC if name in (gpu.dense_flop_per_s or {}))
    device = "cpu" if on_cpu else "cuda"
    set_bytes = working_set_bytes(device, cache_bytes, facts["memory_total_bytes"])
    reread = sets_to_read(set_bytes, step_bytes(study, gpu, facts) if study else []) if on_cpu else []
    timed = operations(device, set_bytes, MATRIX_SIDE[device], arithmetic, reread)
    with load_by_others() as host_load:
        taken_s = time_runs(timed, torch.cuda.synchronize if not on_cpu else lambda: None)
    best_per_s = {name: operation.amount / min(taken_s[name]) for name, operation in timed.items()}
    return DeviceRates(
        gpu=gpu.name,
        copy_bytes_per_s=best_per_s["copy"],
        read_bytes_per_s=best_per_s["read"],
        read_bytes_per_s_by_size={size: best_per_s[f"{READ_AGAIN}{size}"] for size in reread},
        matmul_flop_per_s={name: best_per_s[name] for name in arithmetic},
        last_level_cache_bytes=cache_bytes,
        device=facts,
        threads=torch.get_num_threads() if on_cpu else None,
        host=os.uname().nodename,
        host_load=host_load,
        measured_at=now_in_utc(),
    )


def measure_undisturbed(gpu: Gpu, study: Study | None = None) -> DeviceRates:
    """Measure the device again while others use it, up to `_ATTEMPTS` times; that with the least load counts.
    Raises WrongDeviceError if the device is not `gpu`."""
    measurements = [measure_device(gpu, study)]
    while measurements[-1].disturbed and len(measurements) < _ATTEMPTS:
        measurements.append(measure_device(gpu, study))
    return min(measurements, key=lambda rates: rates.load_pct)


@command(
    "measure-device",
    option("--gpu", required=True, help="name in config/gpus.yaml"),
    option("--study", type=Path, help="a study, to read as many bytes as a step of each of its models"),
    out("the JSON file to write"),
    LOG,
)
def main(args: Namespace) -> int:
    gpu = get_gpu(args.gpu)
    study = load_study(args.study) if args.study else None
    try:
        with device_lock(gpu):
            rates = measure_undisturbed(gpu, study)
    except WrongDeviceError as e:
        print(f"kvsweep measure-device: {e}", file=sys.stderr)
        return 1
    rates.write(args.out)
    return 0

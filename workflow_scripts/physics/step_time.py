"""How long the steps of an engine take on a device and its host, from the work that they do.

A step has work of several kinds (`KINDS`), and a device needs some time for each unit of each kind (`StepCosts`). On a
GPU reading overlaps with computing in each kernel, and the slower one decides [Williams]; on a CPU the same
instructions load and multiply, and the times add up. The host of a GPU launches a step while the device still works on
the one before (`LaunchCosts`), and the device waits where that takes longer. docs/plan.md says more.

Between two events of a schedule all decode steps are alike, except that the KV grows by one token per sequence and
step. Such a run of steps is a segment, and sums over it are exact without visiting each step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from workflow_scripts.common.records import Record

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
AnyFloats = npt.NDArray[np.floating[Any]] | float

# Kinds of work, in the order of all arrays and of the fields of `StepCosts`.
READING = ("weight_bytes", "kv_bytes")
COMPUTING = ("matrix_flops", "attention_flops")
OVERHEAD = ("steps", "layers", "activation_bytes", "sequences", "prompts", "requests", "reductions", "reduced_bytes")
# Layers that the host launches one by one: as captured pieces around attention, or kernel by kernel.
LAUNCHED = ("piecewise_layers", "eager_layers")
KINDS = (*READING, *COMPUTING, *OVERHEAD, *LAUNCHED)
KIND = {kind: index for index, kind in enumerate(KINDS)}
_Cost = Field(default=0.0, ge=0)


class LaunchCosts(Record):
    """Seconds that a GPU's host needs to launch a step.

    `steps`, `sequences`, `prompts`: per step, sequence and prompt in it. `requests`: per request that is taken in
    before the launch. `piecewise_layers`, `eager_layers`: per layer that is launched in captured pieces, or kernel by
    kernel. `start`: from the first request until an idle engine begins to launch. `ahead`: whether a step is launched
    while the device works on the one before.
    """

    steps: float = _Cost
    sequences: float = _Cost
    prompts: float = _Cost
    requests: float = _Cost
    piecewise_layers: float = _Cost
    eager_layers: float = _Cost
    start: float = _Cost
    ahead: bool = True

    def host_s(self, rows: FloatArray) -> FloatArray:
        """Time to launch each step; `rows` has one column per kind of work."""
        times_s: FloatArray = rows @ np.array([self.__dict__.get(kind, 0.0) for kind in KINDS])
        return times_s


class StepCosts(Record):
    """Seconds that a device and an engine need for one unit of each kind of work.

    `weight_bytes`, `kv_bytes`: per byte of weights, and of KV of earlier tokens, that is read.
    `matrix_flops`, `attention_flops`: per operation of products with weights, and of attention.
    `steps`: per step, whatever it does. `layers`: per layer of the model and step, for launching its kernels.
    `activation_bytes`: per byte that norms, residuals and activations move; they overlap with nothing.
    `sequences`: per sequence in a step, for scheduling and sampling. `prompts`: per prompt, or part of one, in a step.
    `requests`: per request that an idle engine takes in before its first step, if nothing is launched.
    `reductions`, `reduced_bytes`: per all-reduce of tensor ranks, and per byte of the vectors that each rank puts in.
    `overlap`: whether reading and computing overlap, as on a GPU, or add up, as on a CPU.
    `launch`: what the host of a GPU needs to launch a step; None if it costs nothing beside the above.
    """

    weight_bytes: float = _Cost
    kv_bytes: float = _Cost
    matrix_flops: float = _Cost
    attention_flops: float = _Cost
    steps: float = _Cost
    layers: float = _Cost
    activation_bytes: float = _Cost
    sequences: float = _Cost
    prompts: float = _Cost
    requests: float = _Cost
    reductions: float = _Cost
    reduced_bytes: float = _Cost
    overlap: bool = True
    launch: LaunchCosts | None = None

    @property
    def seconds(self) -> FloatArray:
        return np.array([self.__dict__.get(kind, 0.0) for kind in KINDS])

    @classmethod
    def of_rates(
        cls, memory_bytes_per_s: float, flop_per_s: float, step_overhead_s: float, *, overlap: bool = True
    ) -> "StepCosts":
        """Costs of a device of which only its rates and the overhead of a step are known.

        >>> StepCosts.of_rates(1e12, 1e14, 1e-3).weight_bytes
        1e-12
        """
        rates = {**dict.fromkeys(READING, 1 / memory_bytes_per_s), **dict.fromkeys(COMPUTING, 1 / flop_per_s)}
        return cls(**rates, steps=step_overhead_s, overlap=overlap)


@dataclass(frozen=True)
class StepWork:
    """Segments of steps, one row each: the work of the first step by kind, and how much it grows from step to step.
    `arrival` is the work of a GPU's host before the first step: it takes all requests in and, if they reach an engine
    in its own process one by one, has launched a step for the first one. None if the first step has this work."""

    steps: FloatArray
    first: FloatArray
    growth: FloatArray
    arrival: FloatArray | None = None

    @classmethod
    def of(cls, steps: FloatArray, first: Mapping[str, AnyFloats], growth: Mapping[str, AnyFloats]) -> "StepWork":
        """Work from values by kind; kinds that are left out are 0, except `steps`, which is 1 per step."""
        rows = len(steps)
        tables = [np.zeros((rows, len(KINDS))) for _ in range(2)]
        tables[0][:, KIND["steps"]] = 1.0
        for table, values in zip(tables, (first, growth), strict=True):
            for kind, value in values.items():
                table[:, KIND[kind]] = value
        return cls(steps.astype(float), *tables)

    def part(self, segments: npt.NDArray[np.int64], steps: FloatArray) -> "StepWork":
        return StepWork(steps, self.first[segments], self.growth[segments])

    @property
    def last(self) -> FloatArray:
        return self.first + (self.steps - 1)[:, None] * self.growth


def single_steps(work: StepWork) -> FloatArray:
    """The work of each step, one row per step, by kind.

    >>> work = StepWork.of(np.array([3.0]), {"kv_bytes": 10.0}, {"kv_bytes": np.array([2.0])})
    >>> single_steps(work)[:, KIND["kv_bytes"]].tolist()
    [10.0, 12.0, 14.0]
    """
    counts = work.steps.astype(int)
    segment = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows: FloatArray = work.first[segment] + number[:, None] * work.growth[segment]
    return rows


def device_s(rows: FloatArray, costs: StepCosts) -> FloatArray:
    seconds = costs.seconds
    total: FloatArray = rows @ seconds
    for read, compute in _KERNELS if costs.overlap else ():
        total -= np.minimum(rows[..., read] * seconds[read], rows[..., compute] * seconds[compute])
    return total


# Columns of reading and of computing that belong to the same kernels: products with weights, and attention.
_KERNELS = (KIND["weight_bytes"], KIND["matrix_flops"]), (KIND["kv_bytes"], KIND["attention_flops"])


def segment_parts_s(work: StepWork, costs: StepCosts) -> FloatArray:
    """Time of the device for each segment, one column per kind; on a GPU operations count beyond the reading.

    Two steps that read 10 and 30 bytes and do 20 operations each, at 1 byte/s and 1 operation/s, with 5 s per step:

    >>> of_attention = {"kv_bytes": 10, "attention_flops": 20}
    >>> two = StepWork.of(np.array([2.0]), of_attention, {"kv_bytes": np.array([20.0])})
    >>> float(segment_parts_s(two, StepCosts.of_rates(1, 1, 5)).sum())
    60.0
    >>> float(segment_parts_s(two, StepCosts.of_rates(1, 1, 5, overlap=False)).sum())
    90.0
    """
    first, growth = work.first * costs.seconds, work.growth * costs.seconds
    parts = _progression(work.steps[:, None], first, growth)
    if costs.overlap:
        for read, compute in _KERNELS:
            # max(read, compute) = read + max(0, compute - read)
            beyond = first[:, compute] - first[:, read], growth[:, compute] - growth[:, read]
            parts[:, compute] = _positive_part(work.steps, *beyond)
    return parts


def segment_times_s(work: StepWork, costs: StepCosts) -> FloatArray:
    """Time of each segment, as if the host had launched its first step before."""
    total: FloatArray = segment_parts_s(work, costs).sum(axis=1)
    if costs.launch is None:
        return total
    # The device waits for the launches of steps after the first. Several steps only decode, and their KV grows.
    first_s = device_s(work.first, costs)
    growth = (device_s(work.last, costs) - first_s) / np.maximum(work.steps - 1, 1)
    return total + _positive_part(work.steps - 1, costs.launch.host_s(work.first) - first_s - growth, -growth)


def launch_waits_s(work: StepWork, costs: StepCosts) -> FloatArray:
    """How long the device waits before or in the first step of each segment until the host has launched it. The host
    begins to launch a step when the step before the last one is done and the last one is launched. A graph starts when
    it is launched; layers that are launched one by one are computed meanwhile."""
    if costs.launch is None:
        return np.zeros(len(work.steps))
    columns = (*_launches_s(work, costs), device_s(work.last, costs), work.steps > 1)
    waits, ahead_s = [], 0.0  # how long the device still works when the host begins to launch
    for host, device, hidden, last, several in zip(*(column.tolist() for column in columns), strict=True):
        if not costs.launch.ahead:
            ahead_s = 0.0
        wait = max(0.0, host - ahead_s - hidden)
        # From the end of the step back to when it was launched, or when the step before was done.
        ahead_s = last if several else device + wait - max(0.0, host - ahead_s)
        waits.append(wait)
    return np.array(waits)


def usual_waits_s(work: StepWork, costs: StepCosts) -> FloatArray:
    """The same without a history, as if the step before each segment had been like its first."""
    if costs.launch is None:
        return np.zeros(len(work.steps))
    host, device, hidden = _launches_s(work, costs)
    return np.maximum(0.0, host - device * costs.launch.ahead - hidden)


def _launches_s(work: StepWork, costs: StepCosts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Times of the host and the device for the first step of each segment, and what its work hides of its launch."""
    assert costs.launch
    device = device_s(work.first, costs)
    by_layer = work.first[:, [KIND[kind] for kind in LAUNCHED]].any(axis=1)
    return costs.launch.host_s(work.first), device, device * by_layer


def arrival_s(work: StepWork, costs: StepCosts) -> float:
    """Time from the first request until an engine with all requests begins to launch its first step."""
    if costs.launch is None:
        return 0.0
    return costs.launch.start + (0.0 if work.arrival is None else float(costs.launch.host_s(work.arrival)))


def _progression(count: FloatArray, first: FloatArray, growth: FloatArray) -> FloatArray:
    """Sum of `count` terms: first, first + growth, ..."""
    return count * (first + (count - 1) / 2 * growth)


def _positive_part(count: FloatArray, first: FloatArray, growth: FloatArray) -> FloatArray:
    """Sum of `count` terms first, first + growth, ..., with negative terms taken as zero."""
    level: FloatArray = count * np.maximum(first, 0)
    if (count <= 1).all():
        return level
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.where(growth == 0, 0.0, -first / growth)
    # Rising terms are positive from the first whole step after the crossing on, falling ones up to it.
    below = np.clip(np.floor(crossing) + 1, 0, count)
    above = np.clip(np.ceil(crossing), 0, count)
    rising = _progression(count - below, first + below * growth, growth)
    falling = _progression(above, first, growth)
    return np.where(growth > 0, rising, np.where(growth < 0, falling, level))

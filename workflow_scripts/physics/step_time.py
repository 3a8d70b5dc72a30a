"""How long the steps of an engine take on a device, from the work that they do.

A step has work of ten kinds (`KINDS`), and a device needs some time for each unit of each kind (`StepCosts`). On a GPU
reading overlaps with computing, and the slower one decides [Williams]; on a CPU the same instructions load and
multiply, and the times add up. All other times add up everywhere. No cost belongs to a single cell.

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
AnyFloats = npt.NDArray[np.floating[Any]] | float

# Kinds of work, in the order of all arrays and of the fields of `StepCosts`.
READING = ("weight_bytes", "kv_bytes")
COMPUTING = ("matrix_flops", "attention_flops")
OVERHEAD = ("steps", "layers", "activation_bytes", "sequences", "prompts", "requests")
KINDS = (*READING, *COMPUTING, *OVERHEAD)
_READING, _COMPUTING = slice(0, len(READING)), slice(len(READING), len(READING) + len(COMPUTING))
_OVERHEAD = slice(len(READING) + len(COMPUTING), len(KINDS))
_Cost = Field(default=0.0, ge=0)


class StepCosts(Record):
    """Seconds that a device and an engine need for one unit of each kind of work.

    `weight_bytes`, `kv_bytes`: per byte of weights, and of KV of earlier tokens, that is read.
    `matrix_flops`, `attention_flops`: per operation of products with weights, and of attention.
    `steps`: per step, whatever it does. `layers`: per layer of the model and step, for launching its kernels.
    `activation_bytes`: per byte that norms, residuals and activations move; they overlap with nothing.
    `sequences`: per sequence in a step, for scheduling and sampling. `prompts`: per prompt, or part of one, in a step.
    `requests`: per request that an idle engine takes in before its first step.
    `overlap`: whether reading and computing overlap, as on a GPU, or add up, as on a CPU.
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
    overlap: bool = True

    @property
    def seconds(self) -> FloatArray:
        """The costs in the order of `KINDS`."""
        return np.array([getattr(self, kind) for kind in KINDS])

    @classmethod
    def of_rates(
        cls, memory_bytes_per_s: float, flop_per_s: float, step_overhead_s: float, *, overlap: bool = True
    ) -> "StepCosts":
        """Costs of a device of which only its rates and the overhead of a step are known.

        >>> StepCosts.of_rates(1e12, 1e14, 1e-3).weight_bytes
        1e-12
        """
        read, compute = 1 / memory_bytes_per_s, 1 / flop_per_s
        return cls(
            weight_bytes=read,
            kv_bytes=read,
            matrix_flops=compute,
            attention_flops=compute,
            steps=step_overhead_s,
            overlap=overlap,
        )


@dataclass(frozen=True)
class StepWork:
    """Segments of steps, one row each: the work of the first step by kind, and how much it grows from step to step."""

    steps: FloatArray
    first: FloatArray
    growth: FloatArray

    @classmethod
    def of(cls, steps: FloatArray, first: Mapping[str, AnyFloats], growth: Mapping[str, AnyFloats]) -> "StepWork":
        """Work from values by kind; kinds that are left out are 0, except `steps`, which is 1 per step."""
        rows = len(steps)
        tables = [np.zeros((rows, len(KINDS))) for _ in range(2)]
        tables[0][:, KINDS.index("steps")] = 1.0
        for table, values in zip(tables, (first, growth), strict=True):
            for kind, value in values.items():
                table[:, KINDS.index(kind)] = value
        return cls(steps.astype(float), *tables)

    def part(self, segments: npt.NDArray[np.int64], steps: FloatArray) -> "StepWork":
        """Only the first `steps` steps of the segments at these positions."""
        return StepWork(steps, self.first[segments], self.growth[segments])

    def totals(self) -> FloatArray:
        """Work of all steps in total, by kind."""
        total: FloatArray = _progression(self.steps[:, None], self.first, self.growth).sum(axis=0)
        return total


def single_steps(work: StepWork) -> FloatArray:
    """The work of each step, one row per step, by kind.

    >>> one = StepWork.of(np.array([3.0]), {"kv_bytes": 10.0}, {"kv_bytes": np.array([2.0])})
    >>> single_steps(one)[:, KINDS.index("kv_bytes")].tolist()
    [10.0, 12.0, 14.0]
    """
    counts = work.steps.astype(int)
    segment = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows: FloatArray = work.first[segment] + number[:, None] * work.growth[segment]
    return rows


def split(rows: FloatArray, costs: StepCosts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Times for reading, computing and overhead, as if one came after the other; `rows` has one column per kind."""
    seconds = costs.seconds
    reading, computing, overhead = (rows[..., part] @ seconds[part] for part in (_READING, _COMPUTING, _OVERHEAD))
    return reading, computing, overhead


def segment_times_s(work: StepWork, costs: StepCosts) -> FloatArray:
    """Time of each segment.

    Two steps that read 10 and 30 bytes and do 20 operations each, at 1 byte/s and 1 operation/s, with 5 s per step:

    >>> two = StepWork.of(np.array([2.0]), {"kv_bytes": 10, "matrix_flops": 20}, {"kv_bytes": np.array([20.0])})
    >>> float(segment_times_s(two, StepCosts.of_rates(1, 1, 5))[0])
    60.0
    >>> float(segment_times_s(two, StepCosts.of_rates(1, 1, 5, overlap=False))[0])
    90.0
    """
    read, compute, overhead = split(work.first, costs)
    more_read, more_compute, more_overhead = split(work.growth, costs)
    added = read + overhead, more_read + more_overhead
    if costs.overlap:
        # max(read, compute) = read + max(0, compute - read)
        beyond = _positive_part(work.steps, compute - read, more_compute - more_read)
    else:
        beyond = _progression(work.steps, compute, more_compute)
    return _progression(work.steps, *added) + beyond


def _progression(count: FloatArray, first: FloatArray, growth: FloatArray) -> FloatArray:
    """Sum of `count` terms: first, first + growth, ..."""
    return count * (first + (count - 1) / 2 * growth)


def _positive_part(count: FloatArray, first: FloatArray, growth: FloatArray) -> FloatArray:
    """Sum of `count` terms first, first + growth, ..., with negative terms taken as zero.

    >>> counts, firsts, growths = (np.array(v, dtype=float) for v in ([3, 3, 3], [-1, 1, 2], [2, -1, 0]))
    >>> _positive_part(counts, firsts, growths).tolist()
    [4.0, 1.0, 6.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.where(growth == 0, 0.0, -first / growth)
    # Rising terms are positive from the first whole step after the crossing on, falling ones up to it.
    below = np.clip(np.floor(crossing) + 1, 0, count)
    above = np.clip(np.ceil(crossing), 0, count)
    rising = _progression(count - below, first + below * growth, growth)
    falling = _progression(above, first, growth)
    level = count * np.maximum(first, 0)
    return np.where(growth > 0, rising, np.where(growth < 0, falling, level))

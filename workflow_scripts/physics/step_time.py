"""How long the steps of an engine take on a device, from what they read and compute.

A step reads the weights and the KV of all live tokens, and computes its tokens. On a GPU reading and computing overlap,
and the slower one decides; on a CPU the same instructions load and multiply, and the times add up. Every step also has
a fixed overhead: launching, sampling, scheduling. So three constants of a device give the time of every step
[Williams], and none depends on a cell.

Between two events of a schedule all decode steps are alike, except that the KV grows by one token per sequence and
step. Such a run of steps is a segment, and sums over it are exact without visiting each step.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

FloatArray = npt.NDArray[np.float64]
Positive = Field(gt=0)


class StepConstants(BaseModel):
    """How fast a device and an engine do a step's work.

    `memory_bytes_per_s` and `flop_per_s` are rates that steps really reach, below those of the data sheet.
    `overlap`: whether reading and computing overlap, as on a GPU, or add up, as on a CPU.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_bytes_per_s: float = Positive
    flop_per_s: float = Positive
    step_overhead_s: float = Field(ge=0)
    overlap: bool = True


@dataclass(frozen=True)
class StepWork:
    """Segments of steps, one element each: their number of steps, and what the first step reads and computes.

    `read_bytes` and `flops` are those of a segment's first step on one device; each further step has `*_growth` more.
    """

    steps: FloatArray
    read_bytes: FloatArray
    read_bytes_growth: FloatArray
    flops: FloatArray
    flops_growth: FloatArray

    def part(self, segments: npt.NDArray[np.int64], steps: FloatArray) -> "StepWork":
        """Only the first `steps` steps of the segments at these positions."""
        return StepWork(
            steps,
            self.read_bytes[segments],
            self.read_bytes_growth[segments],
            self.flops[segments],
            self.flops_growth[segments],
        )

    def totals(self) -> tuple[float, float, float]:
        """Steps, bytes and operations of all segments in total."""
        read = _progression(self.steps, self.read_bytes, self.read_bytes_growth)
        flops = _progression(self.steps, self.flops, self.flops_growth)
        return float(self.steps.sum()), float(read.sum()), float(flops.sum())


def segment_times_s(work: StepWork, constants: StepConstants) -> FloatArray:
    """Time of each segment.

    Two steps that read 10 and 30 bytes and do 20 operations each, at 1 byte/s and 1 operation/s, with 5 s per step:

    >>> two = StepWork(*(np.array([v], dtype=float) for v in (2, 10, 20, 20, 0)))
    >>> per_s = {"memory_bytes_per_s": 1, "flop_per_s": 1, "step_overhead_s": 5}
    >>> float(segment_times_s(two, StepConstants(**per_s))[0])
    60.0
    >>> float(segment_times_s(two, StepConstants(**per_s, overlap=False))[0])
    90.0
    """
    read_s, read_growth_s = (
        work.read_bytes / constants.memory_bytes_per_s,
        (work.read_bytes_growth / constants.memory_bytes_per_s),
    )
    flop_s, flop_growth_s = work.flops / constants.flop_per_s, work.flops_growth / constants.flop_per_s
    reading = _progression(work.steps, read_s, read_growth_s)
    if constants.overlap:
        # max(read, flop) = read + max(0, flop - read)
        busy = reading + _positive_part(work.steps, flop_s - read_s, flop_growth_s - read_growth_s)
    else:
        busy = reading + _progression(work.steps, flop_s, flop_growth_s)
    return busy + work.steps * constants.step_overhead_s


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

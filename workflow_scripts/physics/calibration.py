"""What steps cost on a device that has no ladder: shares of its measured rates or, without these, of its data sheet.

The same costs guide the fit to a ladder where its steps alone cannot tell two kinds of work apart. docs/plan.md says
where the shares come from.
"""

from collections.abc import Mapping
from typing import Literal

from workflow_scripts.catalog.gpus_and_models import Dtype, Gpu
from workflow_scripts.common.records import Record
from workflow_scripts.device.device_rates import DeviceRates
from workflow_scripts.physics.step_time import StepCosts

# Shares of a device's rates that steps reach, and the overhead of a step, if there is no ladder.
DEFAULT_MEMORY_EFFICIENCY = 0.85
DEFAULT_FLOP_EFFICIENCY = {"cuda": 0.6, "rocm": 0.45, "cpu": 0.8}
DEFAULT_OVERHEAD_S = {"cuda": 1.0e-3, "rocm": 1.5e-3, "cpu": 2.0e-3}
# Without CUDA graphs each layer's kernels are launched one by one.
EAGER_OVERHEAD_S_PER_LAYER = 0.2e-3
UNCALIBRATED = "uncalibrated"

Source = Literal["calibrated", "project file", "measured rates", "data sheet"]


class Speed(Record):
    """Costs of steps for one model on one device, how they were found, and how large a prediction's error may be.

    `error_pct`, `ttft_error_pct`: the band of times and rates, and of TTFT; None if nothing was held out to show it.
    `covered`: the largest work of a step, by kind, that the costs were fitted to.
    """

    costs: StepCosts
    source: Source
    error_pct: float | None = None
    ttft_error_pct: float | None = None
    repeat_sd: float | None = None
    covered: Mapping[str, float] | None = None
    how: str


def default_speed(gpu: Gpu, dtype: Dtype, *, eager_layers: int = 0, rates: DeviceRates | None = None) -> Speed | None:
    """Costs from the rates of a device; None if nothing is known of them.

    Args:
        gpu: the device.
        dtype: type in which the model computes.
        eager_layers: layers of the model if it runs without CUDA graphs, else 0.
        rates: the device's measured rates.
    """
    bandwidth = rates.memory_bytes_per_s if rates else gpu.memory_bandwidth_bytes_per_s
    flop_per_s = peak_flop_per_s(gpu, dtype, rates)
    if not bandwidth or not flop_per_s:
        return None
    memory, flop = DEFAULT_MEMORY_EFFICIENCY, DEFAULT_FLOP_EFFICIENCY[gpu.kind]
    overhead_s = DEFAULT_OVERHEAD_S[gpu.kind] + EAGER_OVERHEAD_S_PER_LAYER * (eager_layers if gpu.kind != "cpu" else 0)
    of = "the measured rates" if rates else "the data sheet's rates"
    return Speed(
        costs=StepCosts.of_rates(memory * bandwidth, flop * flop_per_s, overhead_s, overlap=gpu.kind != "cpu"),
        source="measured rates" if rates else "data sheet",
        how=f"{UNCALIBRATED}: {memory:.0%} of bandwidth and {flop:.0%} of arithmetic of {of}, "
        f"{1e3 * overhead_s:g} ms per step",
    )


def peak_flop_per_s(gpu: Gpu, dtype: Dtype, rates: DeviceRates | None = None) -> float | None:
    """Highest rate of arithmetic in `dtype`: as measured, or else by the data sheet; None if neither is known."""
    known = gpu.model_copy(update={"dense_flop_per_s": rates.matmul_flop_per_s}) if rates else gpu
    return known.peak_flop_per_s(dtype)

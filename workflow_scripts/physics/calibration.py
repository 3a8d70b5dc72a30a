"""What steps cost on a device without calibration: shares of its measured rates or, without these, of its data sheet.

The same costs guide the fit to a calibration where its steps alone cannot tell two kinds of work apart. docs/plan.md
says where the shares come from.
"""

from collections.abc import Mapping
from typing import Literal

from workflow_scripts.catalog.gpus_and_models import Dtype, Gpu
from workflow_scripts.common.records import Record
from workflow_scripts.device.device_rates import DeviceRates
from workflow_scripts.physics.step_time import LaunchCosts, StepCosts

# Shares of a device's rates that steps reach, and the overhead of a step, without calibration. On a GPU the fits to two
# calibrations come within a few per cent of 1/1.1 of the measured rates.
DEFAULT_MEMORY_EFFICIENCY = 0.85
DEFAULT_FLOP_EFFICIENCY = {"cuda": 0.6, "rocm": 0.45, "cpu": 0.8}
OF_MEASURED_RATES = 1 / 1.1
DEFAULT_OVERHEAD_S = {"cuda": 1.0e-3, "rocm": 1.5e-3, "cpu": 2.0e-3}
# What the host of a GPU takes, as fitted to vLLM's calibrations on an H200 and an H100, and seen in HuggingFace's steps
# there: docs/plan.md.
DEFAULT_LAUNCH = LaunchCosts(
    steps=2.4e-3,
    sequences=2.5e-5,
    prompts=1.5e-5,
    requests=0.8e-4,
    piecewise_layers=0.25e-3,
    eager_layers=0.8e-3,
    start=2.0e-3,
)
NOT_AHEAD = LaunchCosts(steps=1.0e-3, sequences=0.4e-3, eager_layers=0.525e-3, ahead=False)
# HuggingFace's kernels move activations three times as often as fused ones: a norm alone casts, squares, averages and
# scales in separate kernels, most of them in 32 bits.
UNFUSED = 3.0
# Where a fit to a GPU's calibration begins, besides the costs that follow from rates.
ON_GPU = {"layers": 3.0e-5, "sequences": 1.2e-5}
UNCALIBRATED = "uncalibrated"

Source = Literal["calibrated", "project file", "measured rates", "data sheet"]


class Speed(Record):
    """Costs of steps for one model on one device, how they were found, and how large a prediction's error may be.

    `error_pct`, `ttft_error_pct`: the band of times and rates, and of TTFT; None if nothing was held out to show it.
    `error_s`, `ttft_error_s`: what comes on top, for a time of any length and independent of the share.
    `covered`: the largest work of a step that the costs were fitted to, by kinds whose cost only the steps show.
    """

    costs: StepCosts
    source: Source
    error_pct: float | None = None
    ttft_error_pct: float | None = None
    error_s: float = 0.0
    ttft_error_s: float = 0.0
    repeat_sd: float | None = None
    covered: Mapping[str, float] | None = None
    how: str


def default_speed(gpu: Gpu, dtype: Dtype, *, ahead: bool = True, rates: DeviceRates | None = None) -> Speed | None:
    """Costs from the rates of a device; None without any. `ahead`: whether a GPU launches steps while others run."""
    bandwidth = rates.memory_bytes_per_s if rates else gpu.memory_bandwidth_bytes_per_s
    flop_per_s = peak_flop_per_s(gpu, dtype, rates)
    if not bandwidth or not flop_per_s:
        return None
    memory, flop = DEFAULT_MEMORY_EFFICIENCY, DEFAULT_FLOP_EFFICIENCY[gpu.kind]
    if rates and gpu.kind != "cpu":
        memory = flop = OF_MEASURED_RATES
    overhead_s = DEFAULT_OVERHEAD_S[gpu.kind]
    of = "the measured rates" if rates else "the data sheet's rates"
    costs = StepCosts.of_rates(memory * bandwidth, flop * flop_per_s, overhead_s, overlap=gpu.kind != "cpu")
    shares = f"{memory:.0%} of bandwidth and {flop:.0%} of arithmetic of {of}"
    how = f"{UNCALIBRATED}: {shares}, {1e3 * overhead_s:g} ms per step"
    if gpu.kind != "cpu":
        launch, unfused_s = (DEFAULT_LAUNCH, 0.0) if ahead else (NOT_AHEAD, UNFUSED * costs.weight_bytes)
        costs = costs.model_copy(update={"launch": launch, "activation_bytes": unfused_s})
        how += ", launches as on the GPUs that were measured"
        how += "" if ahead else ", where repeats took 2 to 85 % longer"
    return Speed(costs=costs, source="measured rates" if rates else "data sheet", how=how)


def scaled(costs: StepCosts, known: DeviceRates, other: DeviceRates, dtype: Dtype, gpus: tuple[Gpu, Gpu]) -> StepCosts:
    """Costs fitted on a device with `known` rates for another: reading and computing follow the measured rates. What a
    step, a layer, a sequence and the host take stays as it is."""
    memory = known.memory_bytes_per_s / other.memory_bytes_per_s
    first, second = (peak_flop_per_s(gpu, dtype, rates) for gpu, rates in zip(gpus, (known, other), strict=True))
    flop = first / second if first and second else 1.0
    by = {"weight_bytes": memory, "kv_bytes": memory, "matrix_flops": flop, "attention_flops": flop}
    return costs.model_copy(update={kind: getattr(costs, kind) * factor for kind, factor in by.items()})


def peak_flop_per_s(gpu: Gpu, dtype: Dtype, rates: DeviceRates | None = None) -> float | None:
    """Highest rate of arithmetic in `dtype`: as measured, or else by the data sheet; None if neither is known."""
    known = gpu.model_copy(update={"dense_flop_per_s": rates.matmul_flop_per_s}) if rates else gpu
    return known.peak_flop_per_s(dtype)

"""Calibrations: how fast each device does a step's work, fitted to measured cells, or default values.

`config/calibration/{gpu}.yaml` holds a calibration that comes with the project; `analyse.fit_calibration` writes one
from the cells of a study. A device without one gets default efficiencies, applied to its measured rates or, if there
are none, to its data sheet. docs/plan.md says where the defaults come from.
"""

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workflow_scripts.catalog.gpus_and_models import CONFIG, Dtype, Gpu
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.device.device_rates import DeviceRates
from workflow_scripts.physics.step_time import StepConstants

CALIBRATIONS = CONFIG / "calibration"

# Shares of a device's rates that steps reach, and the overhead of a step, if nobody calibrated the device.
DEFAULT_MEMORY_EFFICIENCY = 0.85
DEFAULT_FLOP_EFFICIENCY = {"cuda": 0.6, "rocm": 0.45, "cpu": 0.8}
DEFAULT_OVERHEAD_S = {"cuda": 1.0e-3, "rocm": 1.5e-3, "cpu": 2.0e-3}
# Without CUDA graphs each layer's kernels are launched one by one.
EAGER_OVERHEAD_S_PER_LAYER = 0.2e-3
DEFAULT_ERROR_PCT = 40.0
# No prediction is called more exact than this, however well it matches a few cells.
LEAST_ERROR_PCT = 10.0

Source = Literal["calibrated", "measured rates", "default"]


class CalibrationError(InputError):
    """A calibration that cannot be read; the message names the file and what is wrong."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FitQuality(_Strict):
    """How well fitted constants predict cells; errors of tokens/s in per cent, without sign.

    `fitted` and `held_out` give the signed error of each cell.
    """

    fitted: dict[str, float]
    held_out: dict[str, float]
    median_error_pct: Annotated[float | None, Field(description="over the held-out cells")] = None
    p90_error_pct: float | None = None


class EngineCalibration(_Strict):
    """Constants of one engine on the device, with the model and the dtype that were measured.

    `constants_of`: the engine whose cells they were fitted to, if that is another one; then all cells are held out.
    `repeat_sd`: standard deviation of the logarithm of a cell's wall time over its repeats; the median over all cells.
    """

    model: str
    dtype: Dtype
    constants: StepConstants
    constants_of: str | None = None
    quality: FitQuality
    repeat_sd: float | None = None


class Calibration(_Strict):
    """The file: one device, with the constants of each engine that was fitted."""

    schema_version: Literal[1] = 1
    gpu: str
    device_name: Annotated[str | None, Field(description="as the device names itself")] = None
    source: Annotated[str, Field(description="which cells, measured where and when")]
    engines: dict[str, EngineCalibration]

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_text(path, yaml.safe_dump(self.model_dump(exclude_none=True), sort_keys=False, width=120))


def read_calibration(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        CalibrationError: it is missing, is no YAML, or contains something that is not allowed.
    """
    try:
        return Calibration.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as e:
        raise CalibrationError(f"{path}: {e.strerror}") from None
    except (yaml.YAMLError, ValidationError) as e:
        raise CalibrationError(f"{path}: no calibration: {' '.join(str(e).split())}") from None


class Speed(_Strict):
    """Constants for one model on one device, how they were found, and how large a prediction's error may be."""

    constants: StepConstants
    source: Source
    error_pct: float
    repeat_sd: float | None = None
    how: str


def speed_of(
    gpu: Gpu,
    engine: str,
    model: str,
    dtype: Dtype,
    *,
    eager_layers: int = 0,
    rates: DeviceRates | None = None,
    calibration: Calibration | None = None,
) -> Speed | None:
    """Constants of a device for a model of this dtype; None if nothing is known of its rates.

    If nothing better exists, constants fitted to another engine, model or dtype are used; their accuracy is untested.

    Args:
        gpu: the device.
        engine: name of the engine.
        model: name of the model.
        dtype: type in which the model computes.
        eager_layers: layers of the model if it runs without CUDA graphs, else 0.
        rates: the device's measured rates.
        calibration: constants fitted to cells on it.
    """
    fitted = calibration and (calibration.engines.get(engine) or next(iter(calibration.engines.values()), None))
    if calibration and fitted and (factor := _dtype_factor(gpu, dtype, fitted.dtype)):
        constants = fitted.constants.model_copy(update={"flop_per_s": fitted.constants.flop_per_s * factor})
        tested = engine in calibration.engines and (fitted.model, fitted.dtype) == (model, dtype)
        error_pct = fitted.quality.p90_error_pct if tested else None
        origin = calibration.engines.get(fitted.constants_of or engine, fitted)
        how = f"fitted to {len(origin.quality.fitted)} cells of {origin.model}: {calibration.source}"
        return Speed(
            constants=constants,
            source="calibrated",
            error_pct=max(error_pct or DEFAULT_ERROR_PCT, LEAST_ERROR_PCT),
            repeat_sd=fitted.repeat_sd,
            how=how if tested else f"{how}; not tested for {engine} and {model} in {dtype}",
        )
    return _default(gpu, dtype, eager_layers, rates)


def _dtype_factor(gpu: Gpu, dtype: Dtype, fitted: Dtype) -> float | None:
    """How much faster the device computes in `dtype` than in `fitted` by its data sheet."""
    if dtype == fitted:
        return 1.0
    wanted, known = gpu.peak_flop_per_s(dtype), gpu.peak_flop_per_s(fitted)
    return wanted / known if wanted and known else None


def _default(gpu: Gpu, dtype: Dtype, eager_layers: int, rates: DeviceRates | None) -> Speed | None:
    source: Source = "measured rates" if rates else "default"
    bandwidth = rates.memory_bytes_per_s if rates else gpu.memory_bandwidth_bytes_per_s
    known = gpu.model_copy(update={"dense_flop_per_s": rates.matmul_flop_per_s}) if rates else gpu
    flop_per_s = known.peak_flop_per_s(dtype)
    if not bandwidth or not flop_per_s:
        return None
    memory, flop = DEFAULT_MEMORY_EFFICIENCY, DEFAULT_FLOP_EFFICIENCY[gpu.kind]
    overhead_s = DEFAULT_OVERHEAD_S[gpu.kind] + EAGER_OVERHEAD_S_PER_LAYER * (eager_layers if gpu.kind != "cpu" else 0)
    of = "the rates measured" if rates else "the data sheet's rates"
    return Speed(
        constants=StepConstants(
            memory_bytes_per_s=memory * bandwidth,
            flop_per_s=flop * flop_per_s,
            step_overhead_s=overhead_s,
            overlap=gpu.kind != "cpu",
        ),
        source=source,
        error_pct=DEFAULT_ERROR_PCT,
        how=f"default: {memory:.0%} of bandwidth and {flop:.0%} of arithmetic of {of}, {1e3 * overhead_s:g} ms a step",
    )

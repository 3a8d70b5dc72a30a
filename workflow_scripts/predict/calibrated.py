"""The costs of steps that a prediction uses, in this order: its calibration, a project file, its rates.

A calibration of another model on the same device, engine and kernels comes after those of the model itself. A
prediction always names what it used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from workflow_scripts.catalog.gpus_and_models import CONFIG, CatalogError, Dtype, Gpu, get_model
from workflow_scripts.common.files import sha256_of
from workflow_scripts.device.device_rates import DeviceRates
from workflow_scripts.device.device_record import Device
from workflow_scripts.engines.registry import get_engine, load_engines
from workflow_scripts.physics.calibration import UNCALIBRATED, Source, Speed, default_speed, peak_flop_per_s
from workflow_scripts.physics.model_facts import ModelFactsError, read_model_facts
from workflow_scripts.physics.step_time import StepCosts
from workflow_scripts.predict.engine_steps import UnpredictableError
from workflow_scripts.predict.pipeline_fit import GUIDED, GUIDED_BY_DATA_SHEET, GUIDED_WITHIN
from workflow_scripts.predict.step_fit import LEAST_ERROR, FitError, StepFit, fit_calibration
from workflow_scripts.study.calibrations import CalibrationRecord, identity
from workflow_scripts.study.protocol import PROTOCOL_VERSION

# Records of calibrations that the project holds for particular devices: GPU/ENGINE/MODEL/VARIANT.json.
PROJECT_FILES = CONFIG / "calibration"
# What is known of predictions of another model.
OTHER_MODEL = "so predicted, opt-125m was 11 % off on an H200"


@dataclass(frozen=True)
class Wanted:
    """What costs are needed for; `device` is what is known of the device at hand, possibly nothing."""

    gpu: Gpu
    device: Device
    rates: DeviceRates | None
    engine: str
    model: str
    dtype: Dtype
    variant: str
    ahead: bool = True
    ranks: int = 1
    environment: str = ""


def speed_for(wanted: Wanted, calibrations: Path | None, project_files: Path = PROJECT_FILES) -> Speed | None:
    """The best known costs; None without any. Raises InputError if a record cannot be read."""
    default = default_speed(wanted.gpu, wanted.dtype, ahead=wanted.ahead, rates=wanted.rates)
    unused = ""
    for source, path in _candidates(wanted, calibrations, project_files):
        record = CalibrationRecord.read(path)
        why = _why_unusable(record, wanted)
        if record.dtype is not None and why is None:
            try:
                # Costs by the rates of the device that was calibrated or, without these, of the device at hand; without
                # any by the data sheet.
                rates = record.rates or wanted.rates
                known = default_speed(wanted.gpu, wanted.dtype, ahead=wanted.ahead, rates=rates)
                guide = known.costs if known else None, GUIDED_WITHIN if rates else GUIDED_BY_DATA_SHEET
                found = _fitted(path, path.stat().st_mtime_ns, wanted.gpu.kind == "cpu", *guide)
                speed = _speed(found, record, record.dtype, wanted, source)
                return speed.model_copy(update={"how": speed.how + unused})
            except (FitError, ModelFactsError, UnpredictableError) as e:
                why = f"is of no use: {e}"
        if record.model == wanted.model and not unused:
            unused = f"; its calibration {why}"
    return default and default.model_copy(update={"how": default.how + unused})


def _candidates(wanted: Wanted, calibrations: Path | None, project_files: Path) -> Iterator[tuple[Source, Path]]:
    """Records of the model itself, then those of other models. After those of the engine itself come, on a GPU, those
    of an engine with the same core: a server's client does not share the cores of its host."""
    folders: list[tuple[Source, Path]] = [("project file", project_files / wanted.gpu.name)]
    if calibrations is not None:
        folders.insert(0, ("calibrated", calibrations / wanted.gpu.name))
    name, knobs = f"{wanted.variant}.json", get_engine(wanted.engine).knobs
    same_core = [one.name for one in load_engines().values() if issubclass(knobs, one.knobs) and one.steps_by]
    others = [engine for engine in same_core if engine != wanted.engine and wanted.gpu.kind != "cpu"]
    # Steps of other versions cost about the same, so the default one's calibration is the next best.
    of_environments = [f"@{wanted.environment}", ""] if wanted.environment else [""]
    for engine in (f"{engine}{at}" for at in of_environments for engine in (wanted.engine, *others)):
        found = [(source, path) for source, at in folders for path in sorted((at / engine).glob(f"*/{name}"))]
        # The sort is stable: sources stay in their order.
        yield from sorted(found, key=lambda one: one[1].parent.name != wanted.model)


def _why_unusable(record: CalibrationRecord, wanted: Wanted) -> str | None:
    """What is wrong with a record; None if its steps are recorded as now, on this type of GPU or this processor."""
    if record.dtype is None or not record.starts:
        return f"has no steps: {_in_a_line(record.failure)}"
    if record.protocol != PROTOCOL_VERSION:
        return f"was measured with protocol {record.protocol}, which is now {PROTOCOL_VERSION}"
    if wanted.gpu.kind == "cpu" and identity(record.device) != identity(wanted.device):
        return "is of another processor or number of cores"
    try:
        config = get_model(record.model).config
    except CatalogError:
        return "is of a model that is no longer in the catalogue"
    return None if record.config_sha256 == sha256_of(config) else "is of another configuration of the model"


def _in_a_line(failure: str | None) -> str:
    """A failure without the log between its first and its last line.

    >>> _in_a_line("the engine broke:\\nmany\\nlines\\nno memory\\n")
    'the engine broke: no memory'
    """
    lines = (failure or "").strip().splitlines()
    return " ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


@cache
def _fitted(path: Path, changed_ns: int, on_cpu: bool, guide: StepCosts | None, within: float) -> StepFit:
    record = CalibrationRecord.read(path)
    dtype, quantization = cast(Dtype, record.dtype), record.knobs.get("quantization")
    facts = read_model_facts(get_model(record.model).config, dtype, quantization)
    return fit_calibration(record, facts, on_cpu, guide, within)


def _speed(found: StepFit, record: CalibrationRecord, dtype: Dtype, wanted: Wanted, source: Source) -> Speed:
    differs = {
        f"engine {record.engine}": record.engine != wanted.engine,
        "version": record.environment != wanted.environment,
        f"model {record.model}": record.model != wanted.model,
        f"type {dtype}": dtype != wanted.dtype,
        "number of ranks": wanted.ranks > 1,
    }
    other = [what for what, is_other in differs.items() if is_other]
    by_rates = wanted.gpu.kind != "cpu" and (record.rates or wanted.rates)
    used = "" if found.passes == found.measured_passes else f" of {found.passes} of {found.measured_passes} passes"
    how = (
        f"fitted to {found.steps} steps{used} of {record.model} in {dtype}, {record.engine_version}, "
        f"on {record.host}, {record.measured_at}"
    )
    if wanted.gpu.kind != "cpu" and identity(record.device) != identity(wanted.device):
        card = f"{record.device.get('name')} {record.device.get('uuid')}, driver {record.device.get('driver_version')}"
        how += f"; of this type's {card}"
    if record.failure:
        how += f", at {len(record.starts)} of 2 depths ({_in_a_line(record.failure)})"
    if other:
        how = f"{UNCALIBRATED} for this: {how}, which is another {' and '.join(other)}"
        if wanted.gpu.kind != "cpu" and record.model != wanted.model:
            how += f" ({OTHER_MODEL})"
    elif found.band.throughput is None:
        how = f"{UNCALIBRATED}: {how}, with {found.band.points} held-out points, too few for a band"
    # Costs for another type: times of operations are scaled by the device's rates; those of bytes stay.
    known, now = (peak_flop_per_s(wanted.gpu, one, wanted.rates) for one in (dtype, wanted.dtype))
    factor = known / now if known and now else 1.0
    scaled = {name: getattr(found.costs, name) * factor for name in ("matrix_flops", "attention_flops")}
    return Speed(
        costs=found.costs.model_copy(update=scaled),
        source=source,
        error_pct=None if other else _pct(found.band.throughput),
        ttft_error_pct=None if other else _pct(found.band.ttft),
        error_s=found.band.wall_s,
        ttft_error_s=found.band.ttft_s,
        repeat_sd=found.repeat_sd,
        covered={kind: most for kind, most in found.most.items() if not (by_rates and kind in GUIDED)},
        how=how,
    )


def _pct(factor: float | None) -> float | None:
    return None if factor is None else 100 * max(LEAST_ERROR, factor - 1)

"""The costs of steps that a prediction uses, in this order: its calibration, a project file, shares of its rates.

A calibration of another model on the same device, engine and kernels comes after those of the model itself. A
prediction always names what it used. The rates of a device, measured or else of its data sheet, also guide the fit to a
calibration where its steps alone cannot tell two kinds of work apart. docs/plan.md says where the shares come from.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Literal, cast

from workflow_scripts.catalog.environments import version_of
from workflow_scripts.catalog.gpus_and_models import CONFIG, CatalogError, Dtype, Gpu, get_model
from workflow_scripts.common.files import sha256_of
from workflow_scripts.common.records import Record
from workflow_scripts.device.device_record import Device, DeviceRates
from workflow_scripts.engines.description import UnpredictableError
from workflow_scripts.engines.registry import get_engine, load_engines
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts
from workflow_scripts.physics.step_time import COMPUTING, READING, LaunchCosts, StepCosts
from workflow_scripts.predict.pipeline_fit import GUIDED, GUIDED_BY_DATA_SHEET, GUIDED_WITHIN
from workflow_scripts.predict.public_costs import Beyond, GroupBand, is_synchronous, public_costs
from workflow_scripts.predict.schedule import ScheduleError
from workflow_scripts.predict.step_fit import LEAST_ERROR, FitError, StepFit, fit_calibration
from workflow_scripts.study.calibrations import CalibrationRecord, identity
from workflow_scripts.study.protocol import PROTOCOL_VERSION

# Records of calibrations that the project holds for particular devices: GPU/ENGINE/MODEL/VARIANT.json.
PROJECT_FILES = CONFIG / "calibration"
# Shares of a device's rates that steps reach, and the overhead of a step, without calibration. On a GPU the fits to two
# calibrations come within a few per cent of 1/1.1 of the measured rates.
DEFAULT_MEMORY_EFFICIENCY = 0.85
DEFAULT_FLOP_EFFICIENCY = {"cuda": 0.6, "cpu": 0.8}
OF_MEASURED_RATES = 1 / 1.1
DEFAULT_OVERHEAD_S = {"cuda": 1.0e-3, "cpu": 2.0e-3}
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
# FP8 by a 16-bit calibration: what a byte of weights and an operation take beside those of 16 bits, as an H100 was
# calibrated with both, and the error of 90 % of the FP8 passes (docs/plan.md). FP8 KV needs no factor.
IN_FP8 = re.compile(r"-?(?:quant|kv)fp8\w*")
OF_FP8_WEIGHTS = {"weight_bytes": 1.2, "matrix_flops": 0.66}
FROM_16_BIT_PCT = 30.0
UNCALIBRATED = "uncalibrated"

Source = Literal["calibrated", "project file", "measured rates", "data sheet"]


class Speed(Record):
    """Costs of steps for one model on one device, how they were found, and how large a prediction's error may be.

    `error_pct`, `ttft_error_pct`: the band of times and rates, and of TTFT; None if nothing was held out to show it.
    `error_s`, `ttft_error_s`: what comes on top, for a time of any length and independent of the share.
    `client_s`: from when a client sends a request until the engine's core has it, and back for the first token.
    `of_group`: the band of such predictions by public runs. `band_group`: whose band this is, if it is not its own.
    `tpot_error_pct`: of the time per output token, if it differs from that of rates.
    `around_s`: what a start and a stop of the engine took, if a calibration of this device and model tells it.
    `calibrated_at`: when the calibration was measured, in UTC;
    `calibrated_of`: of which engine and model.
    `covered`: the largest work of a step that the costs were fitted to, by kinds whose cost only the steps show.
    """

    costs: StepCosts
    source: Source
    error_pct: float | None = None
    ttft_error_pct: float | None = None
    error_s: float = 0.0
    ttft_error_s: float = 0.0
    client_s: float = 0.0
    tpot_error_pct: float | None = None
    of_group: GroupBand | None = None
    band_group: str | None = None
    around_s: tuple[float, float] | None = None
    covered: Mapping[str, float] | None = None
    calibrated_at: str | None = None
    calibrated_of: str | None = None
    how: str

    @property
    def in_words(self) -> str:
        """How the costs were found, and whose band it is."""
        band = self.of_group if self.band_group else None
        return self.how + (f"; the band is that of {band.runs} public runs: {band.group}" if band else "")

    def with_band_of(self, group: GroupBand | None) -> "Speed":
        """The same without a band of its own: with that of a group of public runs, if there are any like it."""
        kinds = ("error_pct", "ttft_error_pct", "tpot_error_pct")
        errors = {kind: group and getattr(group, kind) for kind in kinds}
        errors |= {"error_s": 0.0, "ttft_error_s": 0.0}
        return self.model_copy(update={**errors, "band_group": group and group.group})


@dataclass(frozen=True)
class AskedSpeed:
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
    facts: ModelFacts | None = None


def speed_for(wanted: AskedSpeed, calibrations: Path | None, project_files: Path = PROJECT_FILES) -> Speed | None:
    """The best known costs; None without any, and on AMD GPUs. Raises InputError if a record cannot be read."""
    if wanted.gpu.kind == "rocm":
        return None
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
                baseline = default_speed(wanted.gpu, wanted.dtype, ahead=wanted.ahead, rates=rates)
                guide = baseline.costs if baseline else None, GUIDED_WITHIN if rates else GUIDED_BY_DATA_SHEET
                fit = _fitted(path, path.stat().st_mtime_ns, wanted.gpu.kind == "cpu", *guide)
                speed = _speed(fit, record, record.dtype, wanted, source)
                return _with_public_costs(speed.model_copy(update={"how": speed.how + unused}), wanted, record)
            except (FitError, ModelFactsError, ScheduleError, UnpredictableError) as e:
                why = f"is of no use: {e}"
        if record.model == wanted.model and not unused:
            unused = f"; its calibration {why}"
    return default and _with_public_costs(default.model_copy(update={"how": default.how + unused}), wanted, None)


def _with_public_costs(speed: Speed, wanted: AskedSpeed, record: CalibrationRecord | None) -> Speed:
    """Costs with what the calibration does not have, or the data sheet: see `public_costs`."""
    engine, kind = get_engine(wanted.engine), wanted.gpu.kind
    if kind == "cpu" or VLLM.name not in engine.packages:
        why = "" if speed.error_pct is not None else "; no band: no public run of this kind is known to learn one from"
        return speed.model_copy(update={"how": speed.how + why})
    served = engine.serves and not (record and get_engine(record.engine).serves)
    of_version = record is not None and record.environment == wanted.environment
    beyond = Beyond(
        gpu=wanted.gpu,
        synchronous=not of_version and is_synchronous(version_of(wanted.environment)),
        ranks=wanted.ranks,
        served=served,
        facts=wanted.facts,
        calibrated=None if record is None else read_model_facts(get_model(record.model).config, weights=False),
        same_model=record is not None and record.model == wanted.model,
    )
    client_s = public_costs().server_s if served else 0.0
    update = {"costs": beyond.costs(speed.costs), "how": speed.how + beyond.how, "client_s": client_s}
    speed = speed.model_copy(update={**update, "of_group": beyond.band})
    return speed.with_band_of(speed.of_group) if speed.error_pct is None else speed


def _candidates(wanted: AskedSpeed, calibrations: Path | None, project_files: Path) -> Iterator[tuple[Source, Path]]:
    """Records of the model itself, then those of other models. After those of the engine itself come, on a GPU, those
    of an engine with the same core: a server's client does not share the cores of its host. Last come those in 16 bits
    for FP8."""
    folders: list[tuple[Source, Path]] = [("project file", project_files / wanted.gpu.name)]
    if calibrations is not None:
        folders.insert(0, ("calibrated", calibrations / wanted.gpu.name))
    knobs, in_16_bit = get_engine(wanted.engine).knobs, _in_16_bit(wanted.variant)
    variants = [wanted.variant, *([in_16_bit] if in_16_bit != wanted.variant and wanted.gpu.kind != "cpu" else [])]
    same_core = [entry.name for entry in load_engines().values() if issubclass(knobs, entry.knobs) and entry.predicted]
    others = [engine for engine in same_core if engine != wanted.engine and wanted.gpu.kind != "cpu"]
    # Steps of other versions cost about the same, so the default one's calibration is the next best.
    of_environments = [f"@{wanted.environment}", ""] if wanted.environment else [""]
    engines = [f"{engine}{at}" for at in of_environments for engine in (wanted.engine, *others)]
    for name, engine in product(variants, engines):
        candidates = [(source, path) for source, at in folders for path in sorted((at / engine).glob(f"*/{name}.json"))]
        # The sort is stable: sources stay in their order.
        yield from sorted(candidates, key=lambda candidate: candidate[1].parent.name != wanted.model)


def _in_16_bit(variant: str) -> str:
    """The variant without weights and KV cache in FP8.

    >>> _in_16_bit("quantfp8-kvfp8_e4m3-eager1"), _in_16_bit("kvfp8"), _in_16_bit("quantawq")
    ('eager1', 'default', 'quantawq')
    """
    return IN_FP8.sub("", variant).lstrip("-") or "default"


def _why_unusable(record: CalibrationRecord, wanted: AskedSpeed) -> str | None:
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
    """A failure without the log between its first and its last line."""
    lines = (failure or "").strip().splitlines()
    return " ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


@cache
def _fitted(path: Path, changed_ns: int, on_cpu: bool, guide: StepCosts | None, within: float) -> StepFit:
    record = CalibrationRecord.read(path)
    dtype, quantization = cast(Dtype, record.dtype), record.knobs.get("quantization")
    facts = read_model_facts(get_model(record.model).config, dtype, quantization)
    return fit_calibration(record, facts, on_cpu, guide, within)


def _speed(fit: StepFit, record: CalibrationRecord, dtype: Dtype, wanted: AskedSpeed, source: Source) -> Speed:
    differs = {
        f"engine {record.engine}": record.engine != wanted.engine,
        "version": record.environment != wanted.environment,
        f"model {record.model}": record.model != wanted.model,
        f"type {dtype}": dtype != wanted.dtype,
        "number of ranks": wanted.ranks > 1,
    }
    other = [what for what, is_other in differs.items() if is_other]
    from_16_bit, costs, error_pct = record.variant != wanted.variant, fit.costs, _pct(fit.band.throughput)
    if from_16_bit:
        factors = OF_FP8_WEIGHTS if "quantfp8" in wanted.variant else {}
        costs = costs.model_copy(update={kind: factor * getattr(costs, kind) for kind, factor in factors.items()})
        error_pct = FROM_16_BIT_PCT
    by_rates = wanted.gpu.kind != "cpu" and (record.rates or wanted.rates)
    used = f"{fit.steps} steps in {fit.passes} of {fit.measured_passes} passes of {record.model} in {dtype}"
    how = f"fitted to {used}, {record.engine_version}, on {record.host}, {record.measured_at}"
    if wanted.gpu.kind != "cpu" and identity(record.device) != identity(wanted.device):
        card = f"{record.device.get('name')} {record.device.get('uuid')}, driver {record.device.get('driver_version')}"
        how += f"; of this type's {card}"
    if record.failure:
        how += f", in {len(record.starts)} starts ({_in_a_line(record.failure)})"
    if other:
        how = f"{UNCALIBRATED} for this: {how}, which is another {' and '.join(other)}"
    elif from_16_bit:
        how += f"; 16-bit kernels, of which FP8 differs by up to {FROM_16_BIT_PCT:g} %"
    elif fit.band.throughput is None:
        how = f"{UNCALIBRATED}: {how}, with {fit.band.points} held-out points, too few for a band"
    # Costs for another type: times of operations are scaled by the device's rates; those of bytes stay.
    peak, wanted_peak = (peak_flop_per_s(wanted.gpu, precision, wanted.rates) for precision in (dtype, wanted.dtype))
    return Speed(
        costs=_at_rates(costs, 1.0, peak, wanted_peak),
        source=source,
        calibrated_at=record.measured_at,
        calibrated_of=f"{record.engine}, {record.model}",
        error_pct=None if other else error_pct,
        ttft_error_pct=None if other else error_pct if from_16_bit else _pct(fit.band.ttft),
        error_s=fit.band.wall_s,
        ttft_error_s=fit.band.ttft_s,
        around_s=_around_s(record) if source == "calibrated" and not other else None,
        covered={kind: most for kind, most in fit.most.items() if not (by_rates and kind in GUIDED)},
        how=how,
    )


def _around_s(record: CalibrationRecord) -> tuple[float, float] | None:
    """Seconds of a start and a stop with all layers, in the median; those that a cell's record has are not here."""
    whole = [start.phases_s for start in record.starts if start.layers == record.starts[0].layers]
    known = [(phases["start"], phases["stop"]) for phases in whole if {"start", "stop"} <= phases.keys()]
    return (median(start for start, _ in known), median(stop for _, stop in known)) if known else None


def _pct(factor: float | None) -> float | None:
    return None if factor is None else 100 * max(LEAST_ERROR, factor - 1)


def default_speed(gpu: Gpu, dtype: Dtype, *, ahead: bool = True, rates: DeviceRates | None = None) -> Speed | None:
    """Costs from the rates of a device; None without any. `ahead`: whether a GPU launches steps while others run."""
    bandwidth = rates.memory_bytes_per_s if rates else gpu.memory_bandwidth_bytes_per_s
    flop_per_s = peak_flop_per_s(gpu, dtype, rates)
    if not bandwidth or not flop_per_s:
        return None
    memory, flop = DEFAULT_MEMORY_EFFICIENCY, DEFAULT_FLOP_EFFICIENCY[gpu.kind]
    if rates and gpu.kind != "cpu":
        memory = flop = OF_MEASURED_RATES
    source: Source = "measured rates" if rates else "data sheet"
    overhead_s, overlap = DEFAULT_OVERHEAD_S[gpu.kind], gpu.kind != "cpu"
    costs = StepCosts.of_rates(memory * bandwidth, flop * flop_per_s, overhead_s, overlap=overlap)
    shares = f"{memory:.0%} of bandwidth and {flop:.0%} of arithmetic of the {source}"
    how = f"{UNCALIBRATED}: {shares}, {1e3 * overhead_s:g} ms per step"
    if gpu.kind != "cpu":
        launch, unfused_s = (DEFAULT_LAUNCH, 0.0) if ahead else (NOT_AHEAD, UNFUSED * costs.weight_bytes)
        costs = costs.model_copy(update={"launch": launch, "activation_bytes": unfused_s})
        how += ", launches as on the GPUs that were measured"
        how += "" if ahead else ", where repeats took 2 to 85 % longer"
    return Speed(costs=costs, source=source, how=how)


def scaled(costs: StepCosts, base: DeviceRates, other: DeviceRates, dtype: Dtype, gpus: tuple[Gpu, Gpu]) -> StepCosts:
    """Costs fitted on a device with `base` rates for another: reading and computing follow the measured rates. What a
    step, a layer, a sequence and the host take stays as it is."""
    rates = (peak_flop_per_s(gpu, dtype, rates) for gpu, rates in zip(gpus, (base, other), strict=True))
    return _at_rates(costs, base.memory_bytes_per_s / other.memory_bytes_per_s, *rates)


def _at_rates(costs: StepCosts, memory: float, known_flop_per_s: float | None, flop_per_s: float | None) -> StepCosts:
    """Costs with `memory` times the time of reading, and that of operations by their rates, if both are known."""
    flop = known_flop_per_s / flop_per_s if known_flop_per_s and flop_per_s else 1.0
    by = {**dict.fromkeys(READING, memory), **dict.fromkeys(COMPUTING, flop)}
    return costs.model_copy(update={kind: getattr(costs, kind) * factor for kind, factor in by.items()})


def peak_flop_per_s(gpu: Gpu, dtype: Dtype, rates: DeviceRates | None = None) -> float | None:
    """Highest rate of arithmetic in `dtype`: as measured, or else by the data sheet; None if neither is known."""
    device = gpu.model_copy(update={"dense_flop_per_s": rates.matmul_flop_per_s}) if rates else gpu
    return device.peak_flop_per_s(dtype)

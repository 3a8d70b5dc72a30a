"""Calibrate a device: serve short series of requests and time each step of the engine.

    kvsweep calibrate --study config/studies/demo.yaml --gpu cpu-all

writes `results/{study}/prepared/calibrations/{gpu}/{engine}/{model}/{variant}.json`. The engine runs as it does for a
cell: forked, under the device's lock, with the settings of one of the study's cells. One start has half of the model's
layers and random weights, because only another depth separates the fixed time of a step from the time to read the
weights; a GPU needs none if the model itself got through all points. On a CPU the model itself is started twice, and
the starts of all other calibrations come between, because a shared machine is not equally fast at all times. `--gpu
cpu-1core cpu-all` measures those of both in turns, so that more time lies between.
"""

import os
import random
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models
from workflow_scripts.cluster.site import note_wrong_node
from workflow_scripts.common.command import RESULTS, STUDY, command, option
from workflow_scripts.common.files import read_json, read_jsonl, write_json, write_jsonl
from workflow_scripts.device.device_check import WrongDeviceError
from workflow_scripts.device.device_lock import device_lock
from workflow_scripts.device.device_rates import DeviceRates
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.forkserver import ForkServerError
from workflow_scripts.measure.provenance import provenance_of
from workflow_scripts.measure.session import Job, NoEnvironmentError, Session
from workflow_scripts.physics.model_facts import ModelFactsError, facts_on, vocabulary_and_context
from workflow_scripts.study.calibrations import (
    CALIBRATION_S,
    ON_GPU,
    Calibration,
    CalibrationRecord,
    CalibrationStart,
    Pass,
    at_half_depth,
    calibrated_definition,
    calibration_of,
    calibrations_of,
    planned_starts,
    points_for,
    sustained_tokens,
)
from workflow_scripts.study.definition import Definition, model_key
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import ENGINE_LOG, StudyPaths
from workflow_scripts.study.protocol import PROTOCOL_VERSION
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.request import Request

ROUNDS = 5
DEPTHS = ("num_hidden_layers", "n_layer")
LOG_TAIL_LINES = 40
START_LIMIT_S = 600.0
# How many settings an engine may refuse before its calibration is given up.
MAY_REFUSE = 2


class CalibrationRunError(RuntimeError):
    """The engine could not be calibrated; the message says why."""


class RefusedError(CalibrationRunError):
    """The engine does not take the settings; it may take others."""


class Within(NamedTuple):
    """The session that serves a calibration before its cells: `folder` and `following` as in `Job`."""

    session: Session
    folder: Path
    following: Path


class CalibrationRun:
    """A calibration that is being measured: the input of its engine, and what was measured so far."""

    def __init__(self, study: Study, calibration: Calibration, paths: StudyPaths) -> None:
        """Raises a StudyError if the model was not prepared."""
        self._study, self._paths, self._out = study, paths, paths.calibration(calibration.name)
        self._engine_version = provenance_of(calibration.cell)["engine_version"]
        self._refused = 0
        rates = paths.device(calibration.cell.gpu)
        self._rates = DeviceRates.read(rates).model_copy(update={"samples": {}}) if rates.exists() else None
        self._use(calibration)

    def _use(self, calibration: Calibration) -> None:
        study, paths, cell = self._study, self._paths, calibration.cell
        self.calibration = calibration
        self._definition = definition = calibrated_definition(study, cell)
        self._model_dir = paths.model(cell.model, model_key(definition.model))
        if not (config := self._model_dir / "config.json").exists():
            raise StudyError(f"{config} is not there; `snakemake calibrate` prepares and measures")
        self.gpu = load_gpus()[cell.gpu]
        self._points = points_for(calibration.sequences, calibration.tokens, self.gpu.kind, self._sustained())
        self._record = CalibrationRecord(
            gpu=cell.gpu,
            engine=cell.engine,
            environment=cell.environment,
            engine_version=self._engine_version,
            model=cell.model,
            config_sha256=definition.model.config_sha256,
            variant=calibration.variant,
            knobs=self._definition.knobs.set_values(),
            protocol=PROTOCOL_VERSION,
            host=os.uname().nodename,
            measured_at="",
            rates=self._rates,
        )

    def _sustained(self) -> int:
        """Tokens of KV for sustained decoding; 0 if the engine has no cache of the GPU's size, or that is not known."""
        cell, memory_bytes = self.calibration.cell, self.gpu.usable_memory_bytes or self.gpu.memory_bytes
        used = getattr(cell.knobs, "gpu_memory_utilization", 0)
        if used == 0 or memory_bytes is None:
            return 0
        try:
            facts = facts_on(load_models()[cell.model], self.gpu, {}, cell.knobs.quantized_as)
        except ModelFactsError:
            return 0
        return sustained_tokens(facts, (used or 0.9) * memory_bytes)

    def measure_start(
        self, whole: bool, limit_s: float, backwards: bool = False, within: Within | None = None
    ) -> CalibrationRecord:
        """Start the engine once more, or use that of a session, pass over the points, and write the record, even if the
        engine breaks; one that broke before is not started again. No pass begins after `limit_s`. Raises as `calibrate`
        does."""
        scratch = self._out.with_suffix(".partial")
        shutil.rmtree(scratch, ignore_errors=True)
        fields: dict[str, Any] = {}
        try:
            if self._record.failure is None:
                fields = self._started(whole, limit_s, backwards, scratch, within)
        except CalibrationRunError as e:
            fields = {"failure": str(e)}
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        fields["measured_at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._record = CalibrationRecord.model_validate(dict(self._record) | fields)
        self._record.write(self._out, indent=None)
        return self._record

    @property
    def is_complete(self) -> bool:
        """Whether each point was passed twice by the model itself."""
        return bool(self._record.starts) and len(self._record.starts[0].passes) >= 2 * len(self._points)

    def _started(
        self, whole: bool, limit_s: float, backwards: bool, scratch: Path, within: Within | None
    ) -> dict[str, Any]:
        """The fields of the record after one more start; those of the device are from the first one."""
        model_dir, definition = self._model_dir, self._definition
        layers, half, of_half = shallower(read_json(model_dir / "config.json"))
        if not whole:
            shallow = scratch / "shallow"
            shutil.copytree(model_dir, shallow, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin*"))
            write_json(shallow / "config.json", of_half)
            random_weights = definition.model.model_copy(update={"load_format": "dummy"})
            model_dir, definition = shallow, definition.model_copy(update={"model": random_weights})
        passes = order(range(len(self._points)) if whole else at_half_depth(self._points, self.gpu.kind), backwards)
        evidence = scratch / "evidence"
        try:
            measured = self._forked(definition, model_dir, evidence, passes, limit_s, within)
        except RefusedError as e:
            if within or self._record.starts or not self.calibration.others or self._refused == MAY_REFUSE:
                raise
            print(f"{self.calibration.cell.id}: {e}; the settings of another cell are tried", flush=True)
            self._refused += 1
            self._use(calibration_of(self._study, self.calibration.others))
            shutil.rmtree(scratch)
            return self._started(whole, limit_s, backwards, scratch, within)
        served = self._passes(measured, evidence, passes)
        start = CalibrationStart(layers=layers if whole else half, effective=measured.effective, passes=served)
        device = {"device": measured.device, "host_load": measured.host_load, "dtype": measured.effective.get("dtype")}
        return {"starts": [*self._record.starts, start], **({} if self._record.starts else device)}

    def _forked(
        self,
        definition: Definition,
        model_dir: Path,
        evidence: Path,
        passes: Sequence[int],
        limit_s: float,
        within: Within | None,
    ) -> Measured:
        try:
            vocab, _ = vocabulary_and_context(read_json(model_dir / "config.json"))
        except ModelFactsError as e:
            raise CalibrationRunError(str(e)) from None
        evidence.mkdir(parents=True)
        draw = random.Random(0)
        requests: list[Request] = []
        indices = []
        for point in self._points:
            indices.append(list(range(len(requests), len(requests) + len(point))))
            requests += [Request([draw.randrange(vocab) for _ in range(prompt)], output) for prompt, output in point]
        workload = evidence / "requests_to_serve.jsonl"
        write_jsonl(workload, (r.as_line(str(i)) for i, r in enumerate(requests)))
        job = Job(
            definition=definition,
            model_dir=model_dir,
            workload=workload,
            evidence=evidence,
            session=within.folder if within else evidence,
            following=within and within.following,
            passes=[indices[point] for point in passes],
            passes_s=limit_s,
            start_limit_s=START_LIMIT_S,
        )
        try:
            with nullcontext(within.session) if within else Session() as session:
                _, measured = session.serve(job, START_LIMIT_S + 2 * limit_s)
        except NoEnvironmentError as e:
            raise CalibrationRunError(str(e)) from None
        if measured is None:
            log_text = (evidence / ENGINE_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
            raise CalibrationRunError("the engine broke:\n" + "\n".join(log_text[-LOG_TAIL_LINES:]))
        if measured.wrong_device:
            raise WrongDeviceError(measured.reason or "the wrong device")
        if measured.outcome != "ok":
            error = RefusedError if measured.outcome == "infeasible" else CalibrationRunError
            raise error(f"{measured.outcome}: {measured.reason}")
        return measured

    def _passes(self, measured: Measured, evidence: Path, passes: Sequence[int]) -> list[Pass]:
        serves = get_engine(self._definition.engine).serves
        steps, of_pass = (
            {repeat: list(records) for repeat, records in groupby(read_jsonl(evidence / name), itemgetter("repeat"))}
            for name in ("steps.jsonl", "requests.jsonl")
        )
        served = []
        for point, timed in zip(passes, measured.repeats, strict=False):
            requests, own = of_pass[timed.repeat], [] if serves else steps.get(timed.repeat, [])
            # The client of a server takes some time before the first and after the last request, which is not the
            # server's.
            start_s = min(request["sent_s"] for request in requests) if serves else timed.start_monotonic_s
            end_s = max(request["last_token_s"] for request in requests) if serves else timed.end_monotonic_s
            served.append(
                Pass(
                    point=point,
                    requests=self._points[point],
                    start_s=start_s,
                    end_s=end_s,
                    step_ends_s=[step["time_s"] for step in own],
                    ttft_s=[request["first_token_s"] - start_s for request in requests],
                    step_tokens=_known(own, "computed_tokens"),
                    step_graphs=_known(own, "graph"),
                    queued_s=_known(requests, "queued_s", start_s),
                    scheduled_s=_known(requests, "scheduled_s", start_s),
                )
            )
        return served


def calibrate(
    runs: Sequence[CalibrationRun],
    starts_of: Mapping[str, Sequence[tuple[bool, float]]],
    limit_s: float | None = None,
) -> None:
    """Measure calibrations in turns: one start of each, in random order, then the next. `limit_s`: seconds for all
    passes of a calibration, instead of the limit of the kind of device. Raises WrongDeviceError if a device is another
    one, and ForkServerError if the measuring process could not be started."""
    draw = random.Random(0)
    for number in range(max(map(len, starts_of.values()), default=0)):
        for run in draw.sample(runs, len(runs)):
            starts = starts_of[run.calibration.name]
            if number < len(starts):
                whole, share = starts[number]
                if run.gpu.kind != "cpu" and not whole and run.is_complete:
                    print(f"{run.calibration.name} got through all points and needs no second start", flush=True)
                    continue
                print(f"calibrating {run.calibration.name}, start {number + 1} of {len(starts)}", flush=True)
                with device_lock(run.gpu):
                    passes_s = share * (limit_s or CALIBRATION_S[run.gpu.kind])
                    record = run.measure_start(whole, passes_s, backwards=number > 1)
                print(f"{sum(len(start.passes) for start in record.starts)} passes", record.failure or "", flush=True)


def calibrate_within(run: CalibrationRun, within: Within) -> bool:
    """Measure a calibration in a session that begins with it; return whether the session goes on."""
    print(f"calibrating {run.calibration.name}", flush=True)
    ((whole, share),) = ON_GPU[:1]
    with suppress(WrongDeviceError):  # the session of the cells finds it again
        record = run.measure_start(whole, share * CALIBRATION_S[run.gpu.kind], within=within)
        print(f"{sum(len(start.passes) for start in record.starts)} passes", record.failure or "", flush=True)
    return within.session.goes_on


def shallower(config: Mapping[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """A model's number of layers, half of it, and the configuration with that half: its first layers.

    >>> shallower({"num_hidden_layers": 4, "vocab_size": 9, "layer_types": ["a", "b", "a", "b"]})
    (4, 2, {'num_hidden_layers': 2, 'vocab_size': 9, 'layer_types': ['a', 'b']})
    >>> shallower({"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 9}})
    (4, 2, {'text_config': {'num_hidden_layers': 2}, 'vision_config': {'num_hidden_layers': 9}})

    Raises CalibrationRunError if the configuration does not say how many layers there are.
    """
    if isinstance(config.get("text_config"), dict):
        whole, half, of_half = shallower(config["text_config"])
        return whole, half, {**config, "text_config": of_half}
    depth = next((name for name in DEPTHS if name in config), None)
    if depth is None:
        raise CalibrationRunError(f"config.json does not have one of {', '.join(DEPTHS)}")
    whole = config[depth]
    half = max(1, whole // 2)
    by_layer = {name: value[:half] for name, value in config.items() if isinstance(value, list) and len(value) == whole}
    return whole, half, {**config, **by_layer, depth: half}


def order(points: Sequence[int], backwards: bool = False) -> list[int]:
    """Which point each pass serves: all points in each round, in random order.

    In the first round each point is passed twice, because its first pass only warms up: every point that was passed
    when the time is over can be used. A second start goes `backwards`, and reaches what the first one had no time for.

    >>> order(range(3))[:6], order(range(3), backwards=True)[:6], len(order([0, 2, 7]))
    ([1, 1, 2, 2, 0, 0], [0, 0, 2, 2, 1, 1], 15)
    """
    draw = random.Random(0)
    rounds = [draw.sample(points, len(points))[:: -1 if backwards else 1] for _ in range(ROUNDS - 1)]
    return [point for point in rounds[0] for _ in range(2)] + [point for again in rounds[1:] for point in again]


def _known(records: Sequence[dict[str, Any]], name: str, start_s: float | None = None) -> list[Any] | None:
    """One value per record, in seconds from the start if there is one; None unless all records have it."""
    values: list[Any] = [record.get(name) for record in records]
    if not values or None in values:
        return None
    return values if start_s is None else [value - start_s for value in values]


@command(
    "calibrate",
    STUDY,
    option("--gpu", nargs="+", required=True, help="devices of the study"),
    RESULTS,
    option("--seconds", type=float, help="time for the passes of each calibration (default: by the device)"),
)
def main(args: Namespace) -> int:
    study = load_study(args.study)
    cells = expand(study)
    gpus = {cell.gpu for cell in cells}
    if unknown := [gpu for gpu in args.gpu if gpu not in gpus]:
        raise StudyError(f"study {study.name!r} has no device {unknown[0]!r}; it has {', '.join(sorted(gpus))}")
    paths = StudyPaths(args.results, study.name)
    calibrations = calibrations_of(study, [cell for cell in cells if cell.gpu in args.gpu])
    starts = planned_starts(calibrations.values())
    later = [n for n, wanted in calibrations.items() if len(starts[n]) == 1 and not paths.outcome(wanted.cell).exists()]
    for name in later:
        print(f"{name}: the first session of its cells calibrates it")
    try:
        runs = [CalibrationRun(study, wanted, paths) for name, wanted in calibrations.items() if name not in later]
        calibrate(runs, starts, args.seconds)
    except (WrongDeviceError, ForkServerError) as e:
        for gpu in args.gpu if isinstance(e, WrongDeviceError) else ():
            note_wrong_node(paths.wrong_nodes(gpu), str(e))
        print(f"kvsweep calibrate: {e}", file=sys.stderr)
        return 1
    return 0

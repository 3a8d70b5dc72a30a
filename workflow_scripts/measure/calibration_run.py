"""Calibrate a device: serve short series of requests and time each step of the engine.

    kvsweep calibrate --study config/studies/demo.yaml --gpu cpu-all

writes `results/{study}/prepared/calibrations/{gpu}/{engine}/{model}/{variant}.json`. The engine runs as it does for a
cell: forked, under the device's lock, with the settings of one of the study's cells. On a CPU it is started twice, and
the starts of all other calibrations come between, because a shared machine is not equally fast at all times. `--gpu
cpu-1core cpu-all` measures those of both in turns, so that more time lies between.
"""

import os
import random
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from itertools import accumulate, chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models
from workflow_scripts.cluster.site import note_wrong_node
from workflow_scripts.common.command import LOG, RESULTS, STUDY, command, option
from workflow_scripts.common.files import read_jsonl, sha256_of, write_json, write_jsonl
from workflow_scripts.device.device_check import WrongDeviceError
from workflow_scripts.device.device_lock import device_lock
from workflow_scripts.device.device_record import DeviceRates
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.forkserver import ForkServerError
from workflow_scripts.measure.provenance import now_in_utc, provenance_of
from workflow_scripts.measure.session import Job, NoEnvironmentError, Session, end_of_log
from workflow_scripts.physics.model_facts import (
    ModelFactsError,
    facts_on,
    model_facts,
    read_config,
    vocabulary_and_context,
)
from workflow_scripts.study.calibrations import (
    CALIBRATION_S,
    CALIBRATION_STARTS,
    Calibration,
    CalibrationRecord,
    CalibrationStart,
    Pass,
    calibrated_definition,
    calibrations_of,
    points_for,
    sustained_tokens,
)
from workflow_scripts.study.definition import model_key
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.protocol import PROTOCOL_VERSION
from workflow_scripts.study.study import Study, StudyError, check_known
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.request import Request

ROUNDS = 5
_START_LIMIT_S = 600.0


class CalibrationRunError(RuntimeError):
    """The engine could not be calibrated; the message says why."""


class CalibrationRun:
    """A calibration that is being measured: the input of its engine, and what was measured so far."""

    def __init__(self, study: Study, calibration: Calibration, paths: StudyPaths) -> None:
        """Raises a StudyError if the model was not prepared."""
        self._rates, self._out = paths.device(calibration.cell.gpu), paths.calibration(calibration.name)
        self._starts: list[CalibrationStart] = []
        self._device: dict[str, Any] = {}
        self._failure = ""
        self.calibration, self.gpu = calibration, load_gpus()[calibration.cell.gpu]
        self._definition = calibrated_definition(study, calibration.cell)
        self._model_dir = paths.model(calibration.cell.model, model_key(self._definition.model))
        if not (config := self._model_dir / "config.json").exists():
            raise StudyError(f"{config} is not there; `snakemake calibrate` prepares and measures")
        self._points = points_for(calibration.sequences, calibration.tokens, self.gpu.kind, self._sustained())

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

    def measure_start(self, number: int = 0, limit_s: float | None = None) -> None:
        """Start the engine for the start of this number, pass over the points, and write the record, even if the engine
        breaks; one that broke before is not started again. `limit_s`: for the passes of all starts. Raises as
        `calibrate` does."""
        if self._failure:
            return
        scratch = self._out.with_suffix(".partial")
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            self._serve(number, (limit_s or CALIBRATION_S[self.gpu.kind]) / CALIBRATION_STARTS[self.gpu.kind], scratch)
        except (CalibrationRunError, ModelFactsError, NoEnvironmentError) as e:
            self._failure = str(e)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        definition = self._definition
        CalibrationRecord(
            gpu=definition.gpu,
            engine=definition.engine,
            environment=definition.environment,
            engine_version=provenance_of(definition)["engine_version"],
            model=definition.model.name,
            config_sha256=definition.model.config_sha256,
            variant=self.calibration.variant,
            knobs=definition.knobs.set_values(),
            protocol=PROTOCOL_VERSION,
            host=os.uname().nodename,
            measured_at=now_in_utc(),
            starts=self._starts,
            failure=self._failure or None,
            rates=DeviceRates.read(self._rates) if self._rates.exists() else None,
            **self._device,
        ).write(self._out, indent=None)
        print(f"{sum(len(start.passes) for start in self._starts)} passes", self._failure, flush=True)

    def _serve(self, number: int, limit_s: float, scratch: Path) -> None:
        """Add a start. The device's fields are from the first one. Raises CalibrationRunError if the engine fails or
        cannot run with the settings, and what `measure_start` says."""
        print(f"calibrating {self.calibration.name}", flush=True)
        config = read_config(self._model_dir)
        layers = model_facts(config, weights=False).layers
        passes = order(range(len(self._points)), backwards=number > 0)
        draw, (vocabulary, _) = random.Random(0), vocabulary_and_context(config)
        prompts = (([draw.randrange(vocabulary) for _ in range(n)], output) for n, output in chain(*self._points))
        write_jsonl(scratch / "requests.jsonl", (Request(*r).as_line(str(i)) for i, r in enumerate(prompts)))
        ends = [*accumulate(map(len, self._points), initial=0)]
        job = Job(
            definition=self._definition,
            model_dir=self._model_dir,
            workload=scratch / "requests.jsonl",
            evidence=scratch / "evidence",
            passes=[[*range(ends[point], ends[point + 1])] for point in passes],
            passes_s=limit_s,
            start_limit_s=_START_LIMIT_S,
        )
        with closing(Session(job)) as session:
            _, measured = session.serve(job, _START_LIMIT_S + 2 * limit_s)
            if measured is None:
                raise CalibrationRunError(f"the engine broke:\n{end_of_log(job.evidence)}")
            if measured.wrong_device:
                raise WrongDeviceError(measured.reason or "the wrong device")
            if measured.outcome != "ok":
                raise CalibrationRunError(f"{measured.outcome}: {measured.reason}")
            served = self._passes(measured, job.evidence, passes)
        took, load = measured.effective, {"device": measured.device, "host_load": measured.host_load}
        self._device = self._device or {**load, "dtype": took.get("dtype")}
        self._starts.append(CalibrationStart(layers=layers, effective=took, phases_s=measured.phases_s, passes=served))

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
                )
            )
        return served


def calibrate(runs: Sequence[CalibrationRun], limit_s: float | None = None) -> None:
    """Measure calibrations in turns: one start of each, in random order, then the next. `limit_s`: seconds for all
    passes of a calibration, instead of the limit of the kind of device. Raises WrongDeviceError if a device is another
    one, and ForkServerError if the measuring process could not be started."""
    draw = random.Random(0)
    for number in range(max(CALIBRATION_STARTS.values())):
        for run in draw.sample(runs, len(runs)):
            if number < CALIBRATION_STARTS[run.gpu.kind]:
                with device_lock(run.gpu):
                    run.measure_start(number, limit_s)


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


def _known(records: Sequence[dict[str, Any]], name: str) -> list[Any] | None:
    """One value per record; None unless all records have it."""
    values: list[Any] = [record.get(name) for record in records]
    return None if not values or None in values else values


@command(
    "calibrate",
    STUDY,
    option("--gpu", nargs="+", required=True, help="devices of the study"),
    RESULTS,
    option("--seconds", type=float, help="time for the passes of each calibration (default: by the device)"),
    LOG,
    option("--out", type=Path, help="write the hash of each record to this JSON file"),
)
def main(args: Namespace) -> int:
    study = load_study(args.study)
    cells = expand(study)
    check_known(args.gpu, {cell.gpu for cell in cells}, f"study {study.name!r}, --gpu")
    paths = StudyPaths(args.results, study.name)
    calibrations = calibrations_of(study, [cell for cell in cells if cell.gpu in args.gpu])
    try:
        calibrate([CalibrationRun(study, wanted, paths) for wanted in calibrations.values()], args.seconds)
    except (WrongDeviceError, ForkServerError) as e:
        for gpu in args.gpu if isinstance(e, WrongDeviceError) else ():
            note_wrong_node(paths.wrong_nodes(gpu), str(e))
        print(f"kvsweep calibrate: {e}", file=sys.stderr)
        return 1
    if args.out:
        records = {name: paths.calibration(name) for name in calibrations}
        write_json(args.out, {name: sha256_of(path) for name, path in records.items() if path.exists()})
    return 0

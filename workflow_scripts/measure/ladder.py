"""Calibrate a device: serve short series of requests and time each step of the engine.

    kvsweep measure-ladders --study config/studies/demo.yaml --gpu cpu-all

writes `results/{study}/prepared/ladders/{gpu}/{engine}/{model}/{variant}.json`. The engine runs as it does for a cell:
forked, under the device's lock, with the settings of one of the study's cells. One start has half of the model's layers
and random weights, because only another depth separates the fixed time of a step from the time to read the weights. On
a CPU the model itself is started twice, and the starts of all other ladders come between, because a shared machine is
not equally fast at all times. `--gpu cpu-1core cpu-all` climbs those of both in turns, so that more time lies between.
"""

import os
import random
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models
from workflow_scripts.common.command import RESULTS, STUDY, command, option
from workflow_scripts.common.files import read_json, read_jsonl, write_json, write_jsonl
from workflow_scripts.device.device_check import WrongDeviceError, device_lock
from workflow_scripts.device.device_rates import read_device_rates
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.cell import note_wrong_node
from workflow_scripts.measure.forkserver import ForkServerError
from workflow_scripts.measure.forkserver import run as run_forked
from workflow_scripts.measure.job import MEASURED, Job
from workflow_scripts.measure.provenance import provenance
from workflow_scripts.physics.model_facts import ModelFactsError, facts_on, vocabulary_size
from workflow_scripts.study.definition import Definition, cell_definition, model_key, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.ladders import (
    CLIMB_S,
    Climb,
    Ladder,
    LadderRecord,
    Lengths,
    Pass,
    at_half_depth,
    ladder_of,
    ladders_of,
    rungs_for,
    sustained_tokens,
    without_load,
)
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import ENGINE_LOG, JOB, StudyPaths
from workflow_scripts.study.protocol import PROTOCOL_VERSION
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study
from workflow_scripts.workloads.request import Request

ROUNDS = 5
# The starts of an engine: whether the model has all its layers, and the share of the time for passes. On a GPU a start
# may take a minute, so each depth has one.
WHOLE, HALF = True, False
ON_CPU, ON_GPU = ((WHOLE, 0.4), (HALF, 0.2), (WHOLE, 0.4)), ((WHOLE, 0.75), (HALF, 0.25))
DEPTHS = ("num_hidden_layers", "n_layer")
LOG_TAIL_LINES = 40
START_LIMIT_S = 600.0
# How many settings an engine may refuse before its ladder is given up.
MAY_REFUSE = 2


class ClimbError(RuntimeError):
    """The engine did not climb the ladder; the message says why."""


class RefusedError(ClimbError):
    """The engine does not take the settings; it may take others."""


class Climbing:
    """A ladder that is being climbed: the input of its engine, and what was measured so far."""

    def __init__(self, study: Study, ladder: Ladder, paths: StudyPaths) -> None:
        """Raises a StudyError if the model was not prepared."""
        self._study, self._paths, self._out = study, paths, paths.ladder(ladder.name)
        self._engine_version = provenance(ladder.cell.engine)["engine_version"]
        self._first: Measured | None = None
        self._climbs: list[Climb] = []
        self._failure: str | None = None
        self._refused = 0
        rates = paths.device(ladder.cell.gpu)
        self._rates = read_device_rates(rates).model_copy(update={"samples": {}}) if rates.exists() else None
        self._use(ladder)

    def _use(self, ladder: Ladder) -> None:
        study, paths, cell = self._study, self._paths, ladder.cell
        self.ladder = ladder
        definition = cell_definition(study, cell, resolved_models(study))
        # A ladder is for all workloads, so its tokens are chosen greedily.
        workload = definition.workload.model_copy(update={"sampling": None, "keep_answers": False})
        self._definition = definition.model_copy(update={"knobs": without_load(cell.knobs), "workload": workload})
        self._model_dir = paths.model(cell.model, model_key(definition.model))
        if not (self._model_dir / "config.json").exists():
            missing = self._model_dir / "config.json"
            raise StudyError(f"{missing} is not there; `snakemake calibrate` prepares and measures")
        self.gpu = load_gpus()[cell.gpu]
        self._rungs = rungs_for(ladder.sequences, ladder.tokens, self.gpu.kind, self._sustained())

    def _sustained(self) -> int:
        """Tokens of KV for sustained decoding; 0 if the engine has no cache of the GPU's size, or that is not known."""
        cell, memory_bytes = self.ladder.cell, self.gpu.usable_memory_bytes or self.gpu.memory_bytes
        used = getattr(cell.knobs, "gpu_memory_utilization", 0)
        if used == 0 or memory_bytes is None:
            return 0
        try:
            facts = facts_on(load_models()[cell.model], self.gpu, {}, cell.knobs.quantized_as)
        except ModelFactsError:
            return 0
        return sustained_tokens(facts, (used or 0.9) * memory_bytes)

    def climb(self, whole: bool, limit_s: float, backwards: bool) -> LadderRecord:
        """Start the engine once more, pass over the rungs, and write the record, even if the engine breaks; one that
        broke before is not started again. No pass begins after `limit_s`. Raises as `climb_all` does."""
        scratch = self._out.with_suffix(".partial")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            if self._failure is None:
                self._climbs.append(self._climbed(whole, limit_s, backwards, scratch))
        except ClimbError as e:
            self._failure = str(e)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        record = self._record()
        record.write(self._out, indent=None)
        return record

    def _climbed(self, whole: bool, limit_s: float, backwards: bool, scratch: Path) -> Climb:
        model_dir, definition = self._model_dir, self._definition
        config = read_json(model_dir / "config.json")
        layers, half, of_half = shallower(config)
        if not whole:
            shallow = scratch / "shallow"
            shutil.copytree(model_dir, shallow, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin*"))
            write_json(shallow / "config.json", of_half)
            random_weights = definition.model.model_copy(update={"load_format": "dummy"})
            model_dir, definition = shallow, definition.model_copy(update={"model": random_weights})
        passes = order(range(len(self._rungs)) if whole else at_half_depth(self._rungs, self.gpu.kind), backwards)
        evidence = scratch / "evidence"
        try:
            vocab = vocabulary_size(config)
        except ModelFactsError as e:
            raise ClimbError(str(e)) from None
        try:
            measured = _forked(definition, model_dir, evidence, self._rungs, passes, vocab, limit_s)
        except RefusedError as e:
            if self._first or not self.ladder.others or self._refused == MAY_REFUSE:
                raise
            print(f"{self.ladder.cell.id}: {e}; the settings of another cell are tried", flush=True)
            self._refused += 1
            self._use(ladder_of(self._study, self.ladder.others))
            shutil.rmtree(scratch)
            return self._climbed(whole, limit_s, backwards, scratch)
        self._first = self._first or measured
        served = _passes(measured, evidence, self._rungs, passes, get_engine(definition.engine).serves)
        return Climb(layers=layers if whole else half, effective=measured.effective, passes=served)

    def _record(self) -> LadderRecord:
        cell, first = self.ladder.cell, self._first
        return LadderRecord(
            gpu=cell.gpu,
            device=first.device if first else {},
            engine=cell.engine,
            engine_version=self._engine_version,
            model=cell.model,
            config_sha256=self._definition.model.config_sha256,
            dtype=first.effective.get("dtype") if first else None,
            variant=self.ladder.variant,
            knobs=self._definition.knobs.set_values(),
            protocol=PROTOCOL_VERSION,
            host=os.uname().nodename,
            host_load=first.host_load if first else {},
            measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            climbs=self._climbs,
            failure=self._failure,
            rates=self._rates,
        )


def climb_all(ladders: Sequence[Climbing], limit_s: float | None = None) -> None:
    """Climb ladders in turns: one start of each, in random order, then the next. `limit_s`: seconds for all passes of a
    ladder, instead of the limit of the kind of device. Raises WrongDeviceError if a device is another one, and
    ForkServerError if the measuring process could not be started."""
    draw = random.Random(0)
    for number in range(max(len(ON_CPU), len(ON_GPU))):
        for one in draw.sample(ladders, len(ladders)):
            starts = ON_CPU if one.gpu.kind == "cpu" else ON_GPU
            if number < len(starts):
                whole, share = starts[number]
                print(f"calibrating {one.ladder.name}, start {number + 1} of {len(starts)}", flush=True)
                with device_lock(one.gpu):
                    record = one.climb(whole, share * (limit_s or CLIMB_S[one.gpu.kind]), backwards=number > 1)
                print(f"{sum(len(climb.passes) for climb in record.climbs)} passes", record.failure or "", flush=True)


def shallower(config: Mapping[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """A model's number of layers, half of it, and the configuration with that half: its first layers.

    >>> shallower({"num_hidden_layers": 4, "vocab_size": 9, "layer_types": ["a", "b", "a", "b"]})
    (4, 2, {'num_hidden_layers': 2, 'vocab_size': 9, 'layer_types': ['a', 'b']})
    >>> shallower({"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 9}})
    (4, 2, {'text_config': {'num_hidden_layers': 2}, 'vision_config': {'num_hidden_layers': 9}})

    Raises ClimbError if the configuration does not say how many layers there are.
    """
    if isinstance(config.get("text_config"), dict):
        whole, half, of_half = shallower(config["text_config"])
        return whole, half, {**config, "text_config": of_half}
    depth = next((name for name in DEPTHS if name in config), None)
    if depth is None:
        raise ClimbError(f"config.json does not have one of {', '.join(DEPTHS)}")
    whole = config[depth]
    half = max(1, whole // 2)
    by_layer = {name: value[:half] for name, value in config.items() if isinstance(value, list) and len(value) == whole}
    return whole, half, {**config, **by_layer, depth: half}


def _forked(
    definition: Definition,
    model_dir: Path,
    evidence: Path,
    rungs: Sequence[list[Lengths]],
    passes: Sequence[int],
    vocab: int,
    limit_s: float,
) -> Measured:
    evidence.mkdir(parents=True)
    draw = random.Random(0)
    requests: list[Request] = []
    places = []
    for rung in rungs:
        places.append(list(range(len(requests), len(requests) + len(rung))))
        requests += [Request([draw.randrange(vocab) for _ in range(prompt)], output) for prompt, output in rung]
    workload, job = evidence / "requests_to_serve.jsonl", evidence / JOB
    write_jsonl(workload, (r.as_line(str(i)) for i, r in enumerate(requests)))
    Job(
        definition=definition,
        model_dir=model_dir,
        workload=workload,
        evidence=evidence,
        passes=[places[rung] for rung in passes],
        passes_s=limit_s,
        start_limit_s=START_LIMIT_S,
    ).write(job)
    with (evidence / ENGINE_LOG).open("wb") as log:
        ended = run_forked(
            "workflow_scripts.measure.run",
            [str(job)],
            log,
            dict(os.environ),
            START_LIMIT_S + 2 * limit_s,
            get_engine(definition.engine).preload,
        )
    written = evidence / MEASURED
    if ended.exit_status != 0 or not written.exists():
        log_text = (evidence / ENGINE_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        raise ClimbError("the engine broke:\n" + "\n".join(log_text[-LOG_TAIL_LINES:]))
    measured = Measured.model_validate(read_json(written))
    if measured.wrong_device:
        raise WrongDeviceError(measured.reason or "the wrong device")
    if measured.outcome != "ok":
        error = RefusedError if measured.outcome == "infeasible" else ClimbError
        raise error(f"{measured.outcome}: {measured.reason}")
    return measured


def order(rungs: Sequence[int], backwards: bool = False) -> list[int]:
    """Which rung each pass serves: all rungs in each round, in random order.

    In the first round each rung is passed twice, because a rung's first pass only warms up: every rung that was passed
    when the time is over can be used. A second start goes `backwards`, and reaches what the first one had no time for.

    >>> order(range(3))[:6], order(range(3), backwards=True)[:6], len(order([0, 2, 7]))
    ([1, 1, 2, 2, 0, 0], [0, 0, 2, 2, 1, 1], 15)
    """
    draw = random.Random(0)
    rounds = [draw.sample(rungs, len(rungs))[:: -1 if backwards else 1] for _ in range(ROUNDS - 1)]
    return [rung for rung in rounds[0] for _ in range(2)] + [rung for again in rounds[1:] for rung in again]


def _passes(
    measured: Measured, evidence: Path, rungs: Sequence[list[Lengths]], passes: Sequence[int], serves: bool
) -> list[Pass]:
    steps: dict[int, list[dict[str, Any]]] = {}
    of_pass: dict[int, list[dict[str, Any]]] = {}
    for step in read_jsonl(evidence / "steps.jsonl") if not serves else ():
        steps.setdefault(step["repeat"], []).append(step)
    for request in read_jsonl(evidence / "requests.jsonl"):
        of_pass.setdefault(request["repeat"], []).append(request)
    served = []
    for rung, one in zip(passes, measured.repeats, strict=False):
        requests, own = of_pass[one.repeat], steps.get(one.repeat, [])
        # The client of a server takes some time before the first and after the last request, which is not the server's.
        start_s = min(request["sent_s"] for request in requests) if serves else one.start_monotonic_s
        end_s = max(request["last_token_s"] for request in requests) if serves else one.end_monotonic_s
        served.append(
            Pass(
                rung=rung,
                requests=rungs[rung],
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


def _known(records: Sequence[dict[str, Any]], name: str, start_s: float | None = None) -> list[Any] | None:
    """One value per record, in seconds from the start if there is one; None unless all records have it."""
    values = [record.get(name) for record in records]
    if not values or None in values:
        return None
    return values if start_s is None else (np.array(values) - start_s).tolist()


@command(
    "measure-ladders",
    STUDY,
    option("--gpu", nargs="+", required=True, help="devices of the study"),
    RESULTS,
    option("--seconds", type=float, help="time for the passes of each calibration series (default: by the device)"),
)
def main(args: Namespace) -> int:
    """Measure the calibration series of some devices."""
    study = load_study(args.study)
    cells = expand(study)
    known = {cell.gpu for cell in cells}
    if unknown := [gpu for gpu in args.gpu if gpu not in known]:
        raise StudyError(f"study {study.name!r} has no device {unknown[0]!r}; it has {', '.join(sorted(known))}")
    paths = StudyPaths(args.results, study.name)
    ladders = ladders_of(study, [cell for cell in cells if cell.gpu in args.gpu])
    try:
        climb_all([Climbing(study, one, paths) for one in ladders.values()], args.seconds)
    except (WrongDeviceError, ForkServerError) as e:
        if isinstance(e, WrongDeviceError):
            for gpu in args.gpu:
                note_wrong_node(paths.wrong_nodes(gpu), str(e))
        print(f"kvsweep measure-ladders: {e}", file=sys.stderr)
        return 1
    return 0

"""Climb a device's ladders: serve short series of requests and time each step of the engine.

    kvsweep measure-ladders --study config/studies/demo.yaml --gpu cpu-all

writes `results/{study}/prepared/ladders/{gpu}/{engine}/{model}/{variant}.json`. The engine runs as it does for a cell:
forked, under the device's lock, with the settings of one of the study's cells. It is started twice, the second time
with half of the model's layers and random weights, because only another depth tells the fixed time of a step from the
time to read the weights.
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

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.command import RESULTS, STUDY, command, option
from workflow_scripts.common.files import read_json, read_jsonl, write_json, write_jsonl
from workflow_scripts.device.device_check import WrongDeviceError, device_lock
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.engine import preload_of
from workflow_scripts.measure.forkserver import ForkServerError
from workflow_scripts.measure.forkserver import run as run_forked
from workflow_scripts.measure.job import Job
from workflow_scripts.measure.provenance import provenance
from workflow_scripts.study.definition import Definition, cell_definition, model_key, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.ladders import (
    CLIMB_S,
    Climb,
    Ladder,
    LadderRecord,
    Lengths,
    Pass,
    ladders_of,
    rungs_for,
    without_load,
)
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.paths import ENGINE_LOG, JOB, StudyPaths
from workflow_scripts.study.protocol import PROTOCOL_VERSION
from workflow_scripts.study.study_file import Study, StudyError, load_study
from workflow_scripts.workloads.request import Request

ROUNDS = 5
SHALLOW_SHARE = 0.25  # of the time, for the second depth
DEPTHS = ("num_hidden_layers", "n_layer")
LOG_TAIL_LINES = 40
START_LIMIT_S = 600.0


class ClimbError(RuntimeError):
    """The engine did not climb the ladder; the message says why."""


def climb(study: Study, ladder: Ladder, paths: StudyPaths, limit_s: float | None = None) -> LadderRecord:
    """Climb a ladder at two depths and write its record, even if the engine breaks.

    No pass begins after `limit_s` in total, or else the limit of the kind of device.

    Raises:
        StudyError: the model was not prepared.
        WrongDeviceError: the device is another one.
        ForkServerError: the measuring process could not be started.
    """
    cell, out = ladder.cell, paths.ladder(ladder.name)
    definition = cell_definition(study, cell, resolved_models(study))
    knobs = without_load(cell.knobs)
    definition = definition.model_copy(update={"knobs": knobs})
    model_dir = paths.model(cell.model, model_key(definition.model))
    if not (model_dir / "config.json").exists():
        raise StudyError(f"{model_dir / 'config.json'} is not there; `snakemake calibrate` prepares and measures")
    gpu = load_gpus()[cell.gpu]
    scratch = out.with_suffix(".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    config, steps = read_json(model_dir / "config.json"), rungs_for(ladder.sequences, ladder.tokens, gpu.kind)
    shallow = scratch / "shallow"
    shutil.copytree(model_dir, shallow, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin*"))
    random_weights = definition.model.model_copy(update={"load_format": "dummy"})
    dummy = definition.model_copy(update={"model": random_weights})
    whole_s = limit_s or CLIMB_S[gpu.kind]
    first: Measured | None = None
    failure = None
    climbs: list[Climb] = []
    with device_lock(gpu, cell.knobs.ranks):
        try:
            whole, half, of_half = shallower(config)
            write_json(shallow / "config.json", of_half)
            jobs = (
                (model_dir, whole, definition, (1 - SHALLOW_SHARE) * whole_s),
                (shallow, half, dummy, SHALLOW_SHARE * whole_s),
            )
            for number, (folder, layers, told, passes_s) in enumerate(jobs):
                evidence = scratch / str(number)
                measured = _forked(cell.engine, told, folder, evidence, steps, config["vocab_size"], passes_s)
                climbs.append(_climb(layers, measured, evidence, steps, get_engine(cell.engine).serves))
                first = first or measured
        except ClimbError as e:
            failure = str(e)
    record = LadderRecord(
        gpu=cell.gpu,
        device=first.device if first else {},
        engine=cell.engine,
        engine_version=provenance(cell.engine)["engine_version"],
        model=cell.model,
        config_sha256=definition.model.config_sha256,
        dtype=first.effective["dtype"] if first else None,
        variant=ladder.variant,
        knobs=knobs.set_values(),
        protocol=PROTOCOL_VERSION,
        host=os.uname().nodename,
        host_load=first.host_load if first else {},
        measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        climbs=climbs,
        failure=failure,
    )
    record.write(out)
    shutil.rmtree(scratch)
    return record


def shallower(config: Mapping[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """A model's number of layers, half of it, and the configuration with that half: its first layers.

    >>> shallower({"num_hidden_layers": 4, "vocab_size": 9, "layer_types": ["a", "b", "a", "b"]})
    (4, 2, {'num_hidden_layers': 2, 'vocab_size': 9, 'layer_types': ['a', 'b']})

    Raises:
        ClimbError: the configuration does not say how many layers or tokens there are.
    """
    depth = next((name for name in DEPTHS if name in config), None)
    if depth is None or "vocab_size" not in config:
        raise ClimbError(f"config.json does not have vocab_size and one of {', '.join(DEPTHS)}")
    whole = config[depth]
    half = max(1, whole // 2)
    by_layer = {name: value[:half] for name, value in config.items() if isinstance(value, list) and len(value) == whole}
    return whole, half, {**config, **by_layer, depth: half}


def _forked(
    engine: str,
    definition: Definition,
    model_dir: Path,
    evidence: Path,
    steps: Sequence[list[Lengths]],
    vocab: int,
    limit_s: float,
) -> Measured:
    evidence.mkdir(parents=True)
    draw = random.Random(0)
    requests: list[Request] = []
    places = []
    for rung in steps:
        places.append(list(range(len(requests), len(requests) + len(rung))))
        requests += [Request([draw.randrange(vocab) for _ in range(prompt)], output) for prompt, output in rung]
    write_jsonl(evidence / "requests_to_serve.jsonl", (r.as_line(str(i)) for i, r in enumerate(requests)))
    job = evidence / JOB
    Job(
        definition=definition,
        model_dir=model_dir,
        workload=evidence / "requests_to_serve.jsonl",
        evidence=evidence,
        passes=[places[rung] for rung in order(len(steps))],
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
            preload_of(engine),
        )
    written = evidence / "measured.json"
    if ended.exit_status != 0 or not written.exists():
        log_text = (evidence / ENGINE_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        raise ClimbError("the engine broke:\n" + "\n".join(log_text[-LOG_TAIL_LINES:]))
    measured = Measured.model_validate(read_json(written))
    if measured.wrong_device:
        raise WrongDeviceError(measured.reason or "the wrong device")
    if measured.outcome != "ok":
        raise ClimbError(f"{measured.outcome}: {measured.reason}")
    return measured


def order(count: int, seed: int = 0) -> list[int]:
    """Which rung each pass serves: all rungs in each round, in random order.

    In the first round each rung is passed twice, because a rung's first pass only warms up: whatever was passed when
    the time is over can be used.

    >>> order(3)[:6], len(order(3))
    ([1, 1, 2, 2, 0, 0], 15)
    """
    draw = random.Random(seed)
    rounds = [draw.sample(range(count), count) for _ in range(ROUNDS - 1)]
    return [rung for rung in rounds[0] for _ in range(2)] + [rung for again in rounds[1:] for rung in again]


def _climb(layers: int, measured: Measured, evidence: Path, steps: Sequence[list[Lengths]], serves: bool) -> Climb:
    ends: dict[int, list[float]] = {}
    of_pass: dict[int, list[dict[str, Any]]] = {}
    for step in read_jsonl(evidence / "steps.jsonl") if not serves else ():
        ends.setdefault(step["repeat"], []).append(step["time_s"])
    for request in read_jsonl(evidence / "requests.jsonl"):
        of_pass.setdefault(request["repeat"], []).append(request)
    passes = []
    for rung, one in zip(order(len(steps)), measured.repeats, strict=False):
        requests = of_pass[one.repeat]
        # The client of a server takes some time before the first and after the last request, which is not the server's.
        start_s = min(request["sent_s"] for request in requests) if serves else one.start_monotonic_s
        end_s = max(request["last_token_s"] for request in requests) if serves else one.end_monotonic_s
        ttft_s = [request["first_token_s"] - start_s for request in requests]
        times = {"start_s": start_s, "end_s": end_s, "step_ends_s": ends.get(one.repeat, []), "ttft_s": ttft_s}
        passes.append(Pass(rung=rung, requests=steps[rung], **times))
    return Climb(layers=layers, effective=measured.effective, passes=passes)


@command(
    "measure-ladders",
    STUDY,
    option("--gpu", required=True, help="one of the study's devices"),
    RESULTS,
    option("--seconds", type=float, help="time for the passes of each ladder (default: by the device)"),
)
def main(args: Namespace) -> int:
    """Climb all ladders of a device."""
    study = load_study(args.study)
    cells = expand(study)
    if args.gpu not in (known := {cell.gpu for cell in cells}):
        raise StudyError(f"study {study.name!r} has no device {args.gpu!r}; it has {', '.join(sorted(known))}")
    ladders = ladders_of(study, [cell for cell in cells if cell.gpu == args.gpu])
    try:
        for name, ladder in ladders.items():
            print(f"climbing {name}", flush=True)
            record = climb(study, ladder, StudyPaths(args.results, study.name), args.seconds)
            print(f"{sum(len(one.passes) for one in record.climbs)} passes", record.failure or "", flush=True)
    except (WrongDeviceError, ForkServerError) as e:
        print(f"kvsweep measure-ladders: {e}", file=sys.stderr)
        return 1
    return 0

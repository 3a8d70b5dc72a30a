"""The timed part of a cell: start one engine, warm it up, run the workload a few times, write what was observed.

It runs in a child of the fork server, which holds the device. `Job.run` starts it; evidence goes to the job's folder.
`measured.json` in that folder is written last and holds what `measure.cell` needs for `outcome.json`.
"""

import math
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.environments import NEEDED, install, python_of
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import read_json, read_jsonl, write_json, write_jsonl
from workflow_scripts.common.records import Record
from workflow_scripts.device.device_check import WrongDeviceError, found_device, lost_gpu, use_cores
from workflow_scripts.device.device_record import Device, LoadByOthers
from workflow_scripts.device.host_load import load_by_others
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.engines.adapters import make_engine
from workflow_scripts.engines.engine import SCRATCH, Effective, Engine, EngineSetup, ExpertsTouched, RequestRecord
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure.failures import Failure, request_failures, run_failure, start_failure
from workflow_scripts.measure.forkserver import NotImportedError
from workflow_scripts.measure.forkserver import run as run_forked
from workflow_scripts.measure.trace import sampled
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.outcome import Measured, OutcomeKind, Repeat, WarmUp
from workflow_scripts.study.paths import ENGINE_LOG, JOB, TRACE, WARMUP
from workflow_scripts.study.protocol import SEED
from workflow_scripts.workloads.request import Request
from workflow_scripts.workloads.warmup import chosen, is_steady, most_passes, pass_size

# Written last by that process, beside its input: what it observed.
MEASURED = "measured.json"


class NoEnvironmentError(RuntimeError):
    """An environment that cannot be installed or started, so that no cell of it is measured; the message says why."""


class Job(Record):
    """The cell's definition, and the paths of its inputs and its evidence. A calibration has `passes` instead of a
    warm-up and repeats: which requests of the workload each one serves. No pass begins later than `passes_s` after the
    first, if that is set."""

    definition: Definition
    model_dir: Path
    draft_model_dir: Path | None = None
    workload: Path
    evidence: Path
    start_limit_s: float = math.inf
    arrival_seed: int = SEED
    passes: list[list[int]] | None = None
    passes_s: float | None = None

    def run(self, limit_s: float) -> tuple[int | None, Measured | None]:
        """Run the record, as it was written into the evidence, in a forked process of the cell's environment, which is
        installed if this host lacks it; raises as `forkserver.run` does, and NoEnvironmentError if an environment other
        than the default one cannot be installed or started. Return the process's exit status, None if it was killed
        after `limit_s`, and what it observed, None if it broke."""
        with (self.evidence / ENGINE_LOG).open("wb") as log:
            words = (__name__, [str(self.evidence / JOB)], log, dict(os.environ), limit_s)
            name, preload = self.definition.environment, get_engine(self.definition.engine).preload
            kind = load_gpus()[self.definition.gpu].engine_kind
            if name and (fault := install(name, kind)):
                raise NoEnvironmentError(f"environment {name} could not be installed: {fault}")
            python = python_of(name, kind) if name else None
            try:
                status = run_forked(*words, (*preload, *NEEDED) if name else preload, python)
            except NotImportedError as e:
                if not name:
                    raise
                raise NoEnvironmentError(f"environment {name}: {e}") from None
        measured = self.evidence / MEASURED
        return status, Measured.model_validate(read_json(measured)) if status == 0 and measured.exists() else None


@dataclass
class _Measured:
    """What is known so far, by the names of `Measured`, and the lines of the files of evidence; always written at the
    end, even after a failure."""

    outcome: OutcomeKind = "ok"
    reason: str | None = None
    wrong_device: bool = False
    device: Device = field(default_factory=Device)
    effective: Effective = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)
    warmup: WarmUp | None = None
    repeats: list[Repeat] = field(default_factory=list)
    host_load: LoadByOthers = field(default_factory=LoadByOthers)
    requests: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = time.monotonic() - began

    def failed(self, error: Exception, classify: Callable[[Exception, Path], Failure | None], log: Path) -> None:
        """End with a failure of the engine; raise the error again if it is a fault of the infrastructure."""
        traceback.print_exc()
        sys.stderr.flush()
        failure = classify(error, log)
        if failure is None:
            raise error
        self.ended(*failure)

    def ended(self, outcome: OutcomeKind, reason: str) -> None:
        self.outcome, self.reason = outcome, reason

    def write(self, folder: Path) -> None:
        fields = dict(vars(self))
        for name in ("requests", "steps", "metrics"):
            write_jsonl(folder / f"{name}.jsonl", fields.pop(name))
        write_json(folder / MEASURED, Measured(**fields).model_dump(mode="json"))


def measure(job: Job) -> None:
    """Measure one cell; even if the engine fails, what was observed until then is written."""
    measured = _Measured()
    definition = job.definition
    gpu = load_gpus()[definition.gpu]
    try:
        elsewhere = definition.endpoint.base_url if definition.endpoint else None
        ranks = definition.knobs.ranks
        device: Device = {"server": elsewhere} if elsewhere else found_device(gpu, ranks)
        measured.device = device
        with nullcontext() if elsewhere else sampled(gpu.kind, job.evidence / TRACE, ranks):
            host_cores = sorted(os.sched_getaffinity(0))
            if gpu.kind == "cpu" and not elsewhere:
                use_cores(device["cores"])
            engine = make_engine(
                definition.engine,
                EngineSetup(
                    model_dir=job.model_dir,
                    load_format=definition.model.load_format,
                    dtype=dtype_on(definition.model.dtype, gpu, device),
                    seed=SEED,
                    arrival_seed=job.arrival_seed,
                    knobs=definition.knobs.set_values(),
                    device_kind=gpu.engine_kind,
                    cores=device.get("cores", []),
                    host_cores=host_cores,
                    evidence=job.evidence,
                    start_limit_s=job.start_limit_s,
                    endpoint=definition.endpoint,
                    draft_model_dir=job.draft_model_dir,
                    trust_remote_code=definition.model.trust_remote_code,
                    sampling=definition.workload.sampling,
                    keep_answers=definition.workload.keep_answers,
                ),
            )
            _run(engine, job, measured)
        # An engine's error about a GPU that has failed says nothing about the cell: another node may measure it.
        on_gpu = gpu.kind == "cuda" and not elsewhere
        if on_gpu and measured.outcome != "ok" and (lost := lost_gpu(ranks)):
            raise WrongDeviceError(f"the {gpu.name} was lost while the cell ran: {lost}")
    except WrongDeviceError as e:
        measured.ended("invalid", str(e))
        measured.wrong_device = True
    shutil.rmtree(job.evidence / SCRATCH, ignore_errors=True)
    measured.write(job.evidence)


def _run(engine: Engine, job: Job, measured: _Measured) -> None:
    requests = _read_requests(job.workload)
    warmup = [] if job.passes else _read_requests(job.workload.with_name(WARMUP))
    served = job.passes or [list(range(len(requests)))] * job.definition.repeats
    try:
        with measured.phase("start"):
            measured.effective = engine.start()
    except Exception as e:
        measured.failed(e, start_failure, job.evidence / ENGINE_LOG)
        return
    try:
        if job.passes is None:
            with measured.phase("warmup"):
                measured.warmup = _warm_up(engine, warmup, job.definition, measured.effective)
        engine.take_steps()
        with measured.phase("measure"), load_by_others() as host_load:
            end_s = math.inf if job.passes_s is None else time.monotonic() + job.passes_s
            for repeat, indices in enumerate(served):
                _one_pass(engine, [requests[i] for i in indices], repeat, measured, job)
                if measured.outcome != "ok" or time.monotonic() > end_s:
                    break
        measured.host_load = host_load
    except Exception as e:
        measured.failed(e, run_failure, job.evidence / ENGINE_LOG)
    try:
        with measured.phase("stop"):
            engine.stop()
    except Exception:
        # The measurement stays valid; the engine's remaining processes end with this process group.
        traceback.print_exc()


def _warm_up(engine: Engine, requests: Sequence[Request], definition: Definition, effective: Effective) -> WarmUp:
    """Serve requests that do not count until two consecutive passes take equally long, or the pass limit is reached."""
    joins = not hasattr(definition.knobs, "batch_size")
    # The engine's own limit is preferred to the study's setting.
    allowed = int(effective.get("max_num_seqs", definition.knobs.max_concurrency))
    concurrency = min(allowed, getattr(definition.knobs, "users", None) or allowed)
    count = pass_size(len(requests), concurrency, joins)
    some = [requests[i] for i in chosen([len(r.prompt_token_ids) for r in requests], count)]
    passes_s: list[float] = []
    experts: ExpertsTouched | None = None
    while not is_steady(passes_s) and len(passes_s) < most_passes(len(requests), count, definition.repeats):
        engine.reset()
        began_s = time.monotonic()
        touched = engine.warm_up(some)
        experts = experts or touched
        passes_s.append(time.monotonic() - began_s)
    print(f"warmed up by {len(passes_s)} passes of {count} requests", flush=True)
    return WarmUp(
        requests=count,
        tokens=sum(len(r.prompt_token_ids) + r.output_tokens for r in some),
        passes_s=passes_s,
        steady=is_steady(passes_s),
        experts=experts,
    )


def _one_pass(engine: Engine, requests: Sequence[Request], repeat: int, measured: _Measured, job: Job) -> None:
    engine.reset()
    before = engine.metrics()
    start_unix_s, start_s = time.time(), time.monotonic()
    records = engine.run(requests)
    end_s = time.monotonic()
    after = engine.metrics()
    timed = Repeat(repeat=repeat, start_unix_s=start_unix_s, start_monotonic_s=start_s, end_monotonic_s=end_s)
    answered, of = with_texts(records, job.model_dir), {"repeat": repeat}
    measured.repeats.append(timed)
    measured.requests += (of | asdict(record) for record in answered)
    measured.steps += ({**of, **step} for step in engine.take_steps())
    measured.metrics.append({**of, "before": before, "after": after})
    if any(record.error for record in records):
        measured.ended(*request_failures([record.error for record in records], job.evidence / ENGINE_LOG))
    elif wrong := _wrong_lengths(requests, records, measured.effective):
        measured.ended("invalid", wrong)


def with_texts(records: Sequence[RequestRecord], model_dir: Path) -> Sequence[RequestRecord]:
    """The records with the texts of kept tokens, for engines that report only tokens."""
    if all(record.token_ids is None or record.text is not None for record in records):
        return records
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    return [
        replace(r, text=tokenizer.decode(r.token_ids, skip_special_tokens=True))
        if r.token_ids and r.text is None
        else r
        for r in records
    ]


def _wrong_lengths(requests: Sequence[Request], records: Sequence[RequestRecord], effective: Effective) -> str | None:
    """Say which request got another number of tokens than it asked for, if any. If a server takes text, its own count
    is the length of a prompt; but a chat must have the tokens that the workload says. A server that stops at an end
    token may generate fewer tokens. Which of these apply is in `effective`, the settings that took effect."""
    for request, record in zip(requests, records, strict=True):
        asked = len(request.prompt_token_ids), request.output_tokens
        got = record.prompt_tokens, record.output_tokens
        prompt_fits = got[0] == asked[0] or (effective.get("prompts") == "text" and not request.messages)
        output_fits = got[1] == asked[1] or (effective.get("ignores_eos") is False and 0 < got[1] < asked[1])
        if not (prompt_fits and output_fits):
            return (
                f"request {request.request_id} asked for {asked[0]} prompt and {asked[1]} output tokens, "
                f"the engine counted {got[0]} and {got[1]}"
            )
    return None


def _read_requests(path: Path) -> list[Request]:
    return [Request(**line) for line in read_jsonl(path)]


def main(argv: Sequence[str]) -> int:
    (job,) = argv
    measure(Job.model_validate(read_json(Path(job))))
    return 0

"""The timed part of cells: start one engine; for each job warm it up, run the workload a few times, write what was
observed.

It runs in a child of the fork server, which `measure.session` starts. Evidence goes to the job's folder. There
`measured.json` is written last and holds what `measure.cell` needs for `outcome.json`.
"""

import math
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.files import write_jsonl
from workflow_scripts.device.device_check import WrongDeviceError, found_device, use_cores
from workflow_scripts.device.device_record import Device
from workflow_scripts.device.host_load import load_by_others
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.engines.engine import SCRATCH, Effective, Engine, EngineSetup, RequestRecord
from workflow_scripts.engines.registry import get_engine, make_engine
from workflow_scripts.measure.failures import Failure, request_failures, run_failure, start_failure
from workflow_scripts.measure.session import LOOK_S, MEASURED_FILE, Job
from workflow_scripts.measure.trace import sampled
from workflow_scripts.study.definition import without_load
from workflow_scripts.study.outcome import LoadSearch, Measured, OutcomeKind, Repeat, SearchPass, WarmUp
from workflow_scripts.study.paths import ENGINE_LOG, TRACE
from workflow_scripts.study.protocol import SEED
from workflow_scripts.study.study import WITHIN_SHARE, Slo, is_late
from workflow_scripts.workloads.highest_load import Search, queue_grows
from workflow_scripts.workloads.request import Request, read_requests
from workflow_scripts.workloads.warmup import chosen, is_steady, most_passes, pass_size

# The seeds of rounds follow each other; those of passes in a round are others.
SEEDS_APART = 1000
# A rate is searched up to this multiple of the warm-up's, which a short pass may keep with a queue that grows.
HIGHEST = 16.0


class _Measured(Measured):
    """What is known so far, and the lines of the files of evidence; always kept at the end, even after a failure."""

    model_config = ConfigDict(frozen=False)

    outcome: OutcomeKind = "ok"
    lines: dict[str, list[dict[str, Any]]] = Field({"requests": [], "steps": [], "metrics": []}, exclude=True)

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
        self.outcome, self.reason = failure

    def keep(self, folder: Path) -> None:
        for name, lines in self.lines.items():
            write_jsonl(folder / f"{name}.jsonl", lines)
        self.write(folder / MEASURED_FILE)


class _Session:
    """The engine of a session, which starts with the first job, and how it was warmed up. `log_bytes`: at the end of
    the start."""

    def __init__(self) -> None:
        self.host_cores = sorted(os.sched_getaffinity(0))
        self.engine: Engine | None = None
        self.device: Device = {}
        self.effective: Effective = {}
        self.log_bytes = 0
        self.warmup: WarmUp | None = None

    def setup(self, job: Job) -> EngineSetup:
        definition, gpu, device = job.definition, load_gpus()[job.definition.gpu], self.device
        return EngineSetup(
            model_dir=job.model_dir,
            load_format=definition.model.load_format,
            dtype=dtype_on(definition.model.dtype, gpu, device),
            seed=SEED,
            arrival_seed=job.arrival_seed,
            knobs=definition.knobs.set_values(),
            device_kind=gpu.kind,
            cores=device.get("cores", []),
            host_cores=self.host_cores,
            evidence=job.session,
            start_limit_s=job.start_limit_s,
            endpoint=definition.endpoint,
            draft_model_dir=job.draft_model_dir,
            trust_remote_code=definition.model.trust_remote_code,
            sampling=definition.workload.sampling,
            keep_answers=definition.workload.keep_answers,
        )

    def goes_on_after(self, job: Job) -> bool:
        """Measure a job; return whether the engine is up and waits for the next one."""
        measured, definition = _Measured(), job.definition
        gpu, ranks = load_gpus()[definition.gpu], definition.knobs.ranks
        elsewhere = definition.endpoint.base_url if definition.endpoint else None
        try:
            if self.engine is None:
                self.device = {"server": elsewhere} if elsewhere else found_device(gpu, ranks)
            measured.device = self.device
            with nullcontext() if elsewhere else sampled(gpu.kind, job.evidence / TRACE, ranks):
                if gpu.kind == "cpu" and not elsewhere and self.engine is None:
                    use_cores(self.device["cores"])
                measured.goes_on = self._serve(job, measured)
        except WrongDeviceError as e:
            measured.outcome, measured.reason, measured.wrong_device = "invalid", str(e), True
        if not measured.goes_on:
            shutil.rmtree(job.session / SCRATCH, ignore_errors=True)
        measured.keep(job.evidence)
        return measured.goes_on

    def _serve(self, job: Job, measured: _Measured) -> bool:
        """Serve a job's requests, with a start of the engine if it is not up; return whether it stays up."""
        requests, setup, log = read_requests(job.workload), self.setup(job), job.session / ENGINE_LOG
        served = job.passes or [list(range(len(requests)))] * job.definition.repeats
        if self.engine is None:
            try:
                with measured.phase("start"):
                    self.engine = make_engine(job.definition.engine, setup)
                    self.effective = self.engine.start()
            except Exception as e:
                refusals = get_engine(job.definition.engine).refusals
                measured.failed(e, partial(start_failure, refusals=refusals), log)
                return False
            self.log_bytes = since = _size(log)
        else:
            since = _size(log)
            print(f"next: {job.definition.workload_name}, {job.definition.knobs.set_values()}", flush=True)
            self.engine.use(setup)
        engine = self.engine
        measured.effective, measured.log_bytes = self.effective, (self.log_bytes, since)
        try:
            if job.passes is None:
                if self.warmup is None:
                    with measured.phase("warmup"):
                        self.warmup = _warm_up(engine, setup, job, self.effective)
                measured.warmup = self.warmup
            engine.take_steps()
            with measured.phase("measure"), load_by_others() as host_load:
                one_pass = partial(_one_pass, engine, job, measured)
                if (slo := job.definition.slo) and measured.warmup:
                    serve = partial(one_pass, requests)
                    served, measured.search = [], _search_load(engine, setup, slo, requests, measured.warmup, serve)
                end_s = math.inf if job.passes_s is None else time.monotonic() + job.passes_s
                for repeat, indices in enumerate(served):
                    if one_pass([requests[i] for i in indices], repeat) is None or time.monotonic() > end_s:
                        break
            measured.host_load = host_load
        except Exception as e:
            measured.failed(e, run_failure, log)
        if measured.outcome == "ok" and job.following and hasattr(engine, "use"):
            return True
        try:
            with measured.phase("stop"):
                engine.stop()
        except Exception:
            # The measurement stays valid; the engine's remaining processes end with this process group.
            traceback.print_exc()
        return False


def measure(job: Job) -> None:
    """Measure a job, and those that follow it until one fails; what was observed until then is written."""
    session = _Session()
    while session.goes_on_after(job):
        assert job.following is not None
        while not job.following.exists():  # this process is killed if none is written
            time.sleep(LOOK_S / 2)
        job = Job.read(job.following)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _warm_up(engine: Engine, setup: EngineSetup, job: Job, effective: Effective) -> WarmUp:
    """Serve requests that do not count until two consecutive passes take equally long, or the pass limit is reached."""
    requests = [request for path in job.warmup for request in read_requests(path)]
    requests = [replace(request, request_id=f"{i}") for i, request in enumerate(requests)]
    # How many the engine may serve at once; its own limit is preferred to the study's setting.
    allowed = int(effective.get("max_num_seqs", without_load(job.definition.knobs).max_concurrency))
    joins = not hasattr(job.definition.knobs, "batch_size")
    count = pass_size(len(requests), min(allowed, job.users or allowed), joins)
    some = [requests[i] for i in chosen([len(r.prompt_token_ids) for r in requests], count)]
    passes_s: list[float] = []
    if "users" in setup.knobs:
        of_session = {name: value for name, value in setup.knobs.items() if name != "users"}
        engine.use(replace(setup, knobs=of_session | ({"users": job.users} if job.users else {})))
    while not is_steady(passes_s) and len(passes_s) < most_passes(len(requests), count, job.definition.repeats):
        engine.reset()
        began_s = time.monotonic()
        engine.warm_up(some)
        passes_s.append(time.monotonic() - began_s)
    if "users" in setup.knobs:
        engine.use(setup)
    print(f"warmed up by {len(passes_s)} passes of {count} requests", flush=True)
    return WarmUp(
        requests=count,
        tokens=sum(r.total_tokens for r in some),
        passes_s=passes_s,
        steady=is_steady(passes_s),
    )


def _search_load(
    engine: Engine,
    setup: EngineSetup,
    slo: Slo,
    requests: Sequence[Request],
    warmup: WarmUp,
    serve: Callable[[int], Sequence[RequestRecord] | None],
) -> LoadSearch:
    """Search the highest rate that meets a study's limits by passes, each at a rate that follows from those before;
    `serve` gives None for one, by its number from 0, that failed, which ends the search. It begins at half of the rate
    of the warm-up, which showed all that the server serves at once. Each pass has its own arrivals, and sends no more
    requests once too many have missed the limits. A pass whose queue grows is too high a rate, even if it ends before
    its requests are late."""
    pass_s = min(warmup.passes_s)
    first, most = warmup.requests / pass_s / 2, warmup.requests / pass_s * HIGHEST
    least = min(first, 1 / pass_s)  # a request takes no longer than a pass, so hardly any has company
    search = Search(first, least, most)
    most_late = len(requests) - math.ceil(WITHIN_SHARE * len(requests))
    passes: list[SearchPass] = []
    while (value := search.next()) is not None:
        late: list[str] = []

        def too_late(record: RequestRecord, late: list[str] = late) -> bool:
            if not _is_within(record, slo):
                late.append(record.request_id)
            return len(late) > most_late

        others = {name: value for name, value in setup.knobs.items() if name != "find"}
        knobs = {**others, "request_rate_per_s": value}
        seed = setup.arrival_seed + SEEDS_APART * len(passes)
        engine.use(replace(setup, knobs=knobs, arrival_seed=seed, is_enough=too_late))
        if (records := serve(len(passes))) is None:
            break
        kept = len(late) <= most_late
        grows = kept and queue_grows(*_waits(records))
        met = kept and not grows
        passes.append(SearchPass(load=value, met=met, requests=len(records), late=len(late)))
        search.passes.append((value, met))
        found = "within the limits, but its queue grows" if grows else "within the limits" if met else "too high"
        print(f"{setup.knobs['find']}: {value:.4g} is {found}", flush=True)
    return LoadSearch(least=least, most=most, passes=passes)


def _waits(records: Sequence[RequestRecord]) -> tuple[list[float], list[float]]:
    """When requests arrived, and how long each waited for its first token."""
    answered = [
        (r.queued_s, r.first_token_s) for r in records if r.queued_s is not None and r.first_token_s is not None
    ]
    return [arrived_s for arrived_s, _ in answered], [first_s - arrived_s for arrived_s, first_s in answered]


def _is_within(record: RequestRecord, slo: Slo) -> bool:
    if record.queued_s is None or record.first_token_s is None or record.last_token_s is None:
        return False  # it failed
    tpot_s = (record.last_token_s - record.first_token_s) / max(1, record.output_tokens - 1)
    latencies = {"ttft_s": record.first_token_s - record.queued_s, "tpot_s": tpot_s}
    return not is_late(slo.bounds(), latencies | {"e2e_s": record.last_token_s - record.queued_s})


def _one_pass(
    engine: Engine, job: Job, measured: _Measured, requests: Sequence[Request], repeat: int
) -> Sequence[RequestRecord] | None:
    """The records of a pass; None if it failed."""
    engine.reset()
    before = engine.metrics()
    start_unix_s, start_s = time.time(), time.monotonic()
    records = engine.run(requests)
    end_s = time.monotonic()
    after = engine.metrics()
    if not job.definition.slo:  # else each pass has another load
        timed = Repeat(repeat=repeat, start_unix_s=start_unix_s, start_monotonic_s=start_s, end_monotonic_s=end_s)
        measured.repeats.append(timed)
    key, lines = {"repeat": repeat}, measured.lines
    lines["requests"] += (key | asdict(record) for record in records)
    lines["steps"] += ({**key, **step} for step in engine.take_steps())
    lines["metrics"].append({**key, "before": before, "after": after})
    errors = [record.error for record in records]
    if any(errors):
        measured.outcome, measured.reason = request_failures(errors, job.session / ENGINE_LOG)
    elif wrong := _wrong_lengths(requests, records, measured.effective):
        measured.outcome, measured.reason = "invalid", wrong
    return records if measured.outcome == "ok" else None


def _wrong_lengths(requests: Sequence[Request], records: Sequence[RequestRecord], effective: Effective) -> str | None:
    """Say which request got another number of tokens than it asked for, if any. If a server takes text, its own count
    is the length of a prompt; but a chat must have the tokens that the workload says. A server that stops at an end
    token may generate fewer tokens. Which of these apply is in `effective`, the settings that took effect. Requests
    that were not sent have no record."""
    asked_for = {request.request_id: request for request in requests}
    for record in records:
        request = asked_for[record.request_id]
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


def main(argv: Sequence[str]) -> int:
    (job,) = argv
    measure(Job.read(Path(job)))
    return 0

"""What is kept of a cell if its engine fails in a phase in which a real engine cannot be made to fail."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.made_studies import made_study
from workflow_scripts.common.files import read_json, read_jsonl, write_jsonl
from workflow_scripts.device.host_load import SuspendedError
from workflow_scripts.engines.engine import Engine, EngineSetup, RequestRecord
from workflow_scripts.measure import run
from workflow_scripts.measure.session import Job
from workflow_scripts.study.definition import Definition, cell_definition, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import Measured, WarmUp
from workflow_scripts.study.study import is_late
from workflow_scripts.workloads.request import Request


def defined(engine: str, knobs: dict[str, Any], **of_study: Any) -> Definition:
    """The definition of a cell of this engine on a CPU, as of a server that is not elsewhere."""
    study = made_study(
        {"gpu": "cpu-all", "engine": engine, "model": "tiny-llama-57m", "knobs": knobs},
        endpoints={"any": {"base_url": "http://127.0.0.1", "served_model": "m"}},
        **of_study,
    )
    definition = cell_definition(study, expand(study)[0], resolved_models(study))
    return definition.model_copy(update={"endpoint": None})


class Unstoppable(Engine):
    """Does what is asked and cannot stop."""

    def start(self) -> dict[str, Any]:
        return {"block_size": 32}

    def warm_up(self, requests: Sequence[Request]) -> None:
        pass

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        return [
            RequestRecord(r.request_id, len(r.prompt_token_ids), r.output_tokens, 0.0, 0.0, 1.0, 2.0) for r in requests
        ]

    def stop(self) -> None:
        raise RuntimeError("a worker does not answer")


class Suspending(Unstoppable):
    """Is stopped and continued with this process while it is timed, and then fails."""

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        os.kill(os.getpid(), signal.SIGCONT)
        raise ValueError("no answer in time")


def job_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Callable[[EngineSetup], Engine], gpu: str = "cpu-all"
) -> Job:
    """A cell of one request on an engine, whose evidence goes to `raw`."""
    for name in ("workload.jsonl", "warmup.jsonl"):
        write_jsonl(tmp_path / name, [{"request_id": "a", "prompt_token_ids": [1, 2], "output_tokens": 3}])
    monkeypatch.setattr(run, "make_engine", lambda _, setup: engine(setup))
    monkeypatch.setattr(run, "use_cores", lambda _: None)
    evidence = tmp_path / "raw"
    evidence.mkdir(exist_ok=True)
    definition = defined("vllm", {}, repeats=1).model_copy(update={"gpu": gpu})
    return Job(
        definition=definition,
        model_dir=tmp_path,
        workload=tmp_path / "workload.jsonl",
        warmup=[tmp_path / "warmup.jsonl"],
        evidence=evidence,
        session=evidence,
    )


def test_an_engine_that_fails_while_it_is_suspended_has_no_outcome(tmp_path, monkeypatch):
    job = job_of(tmp_path, monkeypatch, Suspending)
    with pytest.raises(SuspendedError):
        run.measure(job)
    assert not (job.evidence / "measured.json").exists()


def test_an_engine_that_fails_to_stop_loses_nothing_that_was_measured(tmp_path, monkeypatch, capsys):
    job = job_of(tmp_path, monkeypatch, Unstoppable)
    run.measure(job)
    record = read_json(job.evidence / "measured.json")
    assert record["outcome"] == "ok"
    assert len(record["repeats"]) == 1
    assert record["warmup"]["requests"] == 1
    assert "stop" in record["phases_s"]
    assert "RuntimeError: a worker does not answer" in capsys.readouterr().err


class Noting(Unstoppable):
    """Notes what it does, of which cell, and logs it."""

    def __init__(self, setup: EngineSetup, noted: list[str]) -> None:
        super().__init__(setup)
        self.noted = noted

    def note(self, what: str) -> None:
        self.noted.append(f"{what} {self._setup.knobs.get('users')}")
        with (self._setup.evidence / "engine.log").open("a") as log:
            log.write(f"{self.noted[-1]}\n")

    def start(self) -> dict[str, Any]:
        self.note("start")
        return {"max_num_seqs": 8}

    def warm_up(self, requests: Sequence[Request]) -> None:
        self.note(f"warm up by {','.join(str(r.prompt_token_ids[0]) for r in requests)} of")

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        self.note("serve")
        return super().run(requests)

    def stop(self) -> None:
        self.note("stop")


def test_one_start_serves_jobs_in_turn_after_one_warm_up_for_all_of_them(tmp_path, monkeypatch):
    noted: list[str] = []
    first = job_of(tmp_path, monkeypatch, lambda setup: Noting(setup, noted))
    monkeypatch.setattr(run, "is_steady", bool)
    jobs, warmup = [], [tmp_path / "chat.jsonl", tmp_path / "code.jsonl"]
    for of_workload, lengths in zip(warmup, ((9, 7, 5), (8, 6, 4)), strict=True):
        lines = [{"request_id": "warmup-0", "prompt_token_ids": [i] * i, "output_tokens": 3} for i in lengths]
        write_jsonl(of_workload, lines)
    for users in (2, 3, 1):
        definition = defined("openai", {"endpoint": "any", "users": users}, repeats=1)
        told = {"evidence": tmp_path / str(len(jobs)), "session": tmp_path / "2", "warmup": warmup, "users": 3}
        jobs.append(first.model_copy(update={"definition": definition, "start_limit_s": 9.0, **told}))
    files = [job.evidence / "job.json" for job in jobs]
    for job, file, following in zip(jobs, files, [*files[1:], None], strict=True):
        job.model_copy(update={"following": following}).write(file)
    run.measure(Job.read(files[0]))
    records = [read_json(job.evidence / "measured.json") for job in jobs]
    assert [record["outcome"] for record in records] == ["ok"] * 3
    # By requests of both workloads, spread over their lengths; as many at once as of any cell.
    assert noted == ["start 2", "warm up by 9,5,8,6 of 3", "serve 2", "serve 3", "serve 1", "stop 1"]
    assert [{*record["phases_s"]} for record in records] == [
        {"start", "warmup", "measure"},
        {"measure"},
        {"measure", "stop"},
    ]
    assert records[1]["warmup"] == records[0]["warmup"]
    log = (tmp_path / "2" / "engine.log").read_bytes()
    until, since = records[2]["log_bytes"]
    assert log[:until].decode().splitlines() == ["start 2"]
    assert log[since:].decode().splitlines() == noted[4:]


def test_a_job_that_fails_ends_the_session(tmp_path, monkeypatch):
    class Refusing(Unstoppable):
        def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
            return [RequestRecord(r.request_id, len(r.prompt_token_ids), 0, error="no") for r in requests]

    job = job_of(tmp_path, monkeypatch, Refusing)
    run.measure(job.model_copy(update={"following": tmp_path / "never written"}))
    record = read_json(job.evidence / "measured.json")
    assert record["outcome"] == "engine_error"
    assert "stop" in record["phases_s"]


class Timed(Engine):
    """Takes as long for each pass of its warm-up as it is told, and notes what it serves."""

    def __init__(self, passes_s: Sequence[float]) -> None:
        self.left_s = list(passes_s)
        self.now_s = 0.0
        self.served: list[list[str]] = []
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def warm_up(self, requests: Sequence[Request]) -> None:
        self.now_s += self.left_s.pop(0)
        self.served.append([request.request_id for request in requests])


def warmed_up(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    passes_s: Sequence[float],
    knobs: dict[str, Any],
    engine_name: str = "vllm",
    effective: Mapping[str, Any] | None = None,
) -> tuple[Timed, WarmUp]:
    engine = Timed(passes_s)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: engine.now_s))
    job = job_of(folder, monkeypatch, Unstoppable)
    write_jsonl(job.warmup[0], (Request([1] * (i + 1), 2).as_line("any") for i in range(32)))
    job = job.model_copy(update={"definition": defined(engine_name, knobs, repeats=3), "users": knobs.get("users")})
    return engine, run._warm_up(engine, run._Session().setup(job), job, effective or {})


def test_warm_up_goes_on_until_two_passes_take_equally_long_or_it_took_too_many(tmp_path, monkeypatch):
    engine, record = warmed_up(tmp_path, monkeypatch, [9.0, 4.3, 4.0, 4.1, 4.0], {"max_num_seqs": 8})
    assert record.passes_s == pytest.approx([9, 4.3, 4, 4.1])
    assert (record.requests, record.steady) == (9, True)  # eight run, and one waits
    assert record.tokens == sum(int(i) + 1 for i in engine.served[0]) + 9 * 2
    assert engine.resets == 4  # else the second pass would find the first one's prompts in a cache
    assert len({tuple(ids) for ids in engine.served}) == 1
    assert engine.served[0][-1] == "31"  # the longest prompt
    slower = [2.0**i for i in range(20)]
    assert len(warmed_up(tmp_path, monkeypatch, slower, {"max_num_seqs": 4})[1].passes_s) == 6
    # Of all requests no more passes than it takes to see that two agree.
    of_all = warmed_up(tmp_path, monkeypatch, slower, {"max_num_seqs": 32})[1]
    assert (of_all.requests, len(of_all.passes_s), of_all.steady) == (32, 3, False)


@pytest.mark.parametrize(
    ("engine", "knobs", "effective", "requests"),
    [
        ("vllm", {"max_num_seqs": 1}, {"max_num_seqs": 1}, 4),
        ("vllm", {}, {"max_num_seqs": 24}, 27),
        ("vllm", {}, {}, 32),
        ("vllm-serve", {"max_num_seqs": 24, "users": 6}, {"max_num_seqs": 24}, 7),
        ("openai", {"endpoint": "any", "users": 9}, {}, 11),
        ("hf-static", {"batch_size": 8}, {}, 8),
    ],
)
def test_more_requests_warm_up_than_run_at_once_where_they_can_join(
    tmp_path, monkeypatch, engine, knobs, effective, requests
):
    record = warmed_up(tmp_path, monkeypatch, [1.0, 1.0], knobs, engine, effective)[1]
    assert (record.requests, record.steady) == (requests, True)


# --- the search for the highest rate ----------------------------------------------------------------------------------

REQUESTS = 200


class Limited(Unstoppable):
    """Has a first token after 0.1 s up to `highest` times the first rate, and after 0.9 s beyond; notes its setups."""

    def __init__(self, setup: EngineSetup, highest: float, used: list[EngineSetup]) -> None:
        super().__init__(setup)
        self.highest, self.used = highest, used

    def use(self, setup: EngineSetup) -> None:
        super().use(setup)
        self.used.append(setup)

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        enough = self._setup.is_enough
        assert enough
        first, rate = (setup.knobs["request_rate_per_s"] for setup in (self.used[0], self._setup))
        first_s, records = 0.1 if rate <= self.highest * first else 0.9, list[RequestRecord]()
        for request, record in zip(requests, super().run(requests), strict=True):
            records.append(replace(record, request_id=request.request_id, queued_s=1.0, first_token_s=1.0 + first_s))
            if enough(records[-1]):
                break
        return records


def searching() -> Definition:
    return defined("openai", {"endpoint": "any", "find": "highest_rate", "burstiness": 0.5}, slo={"ttft_s": 0.5})


def searched(
    highest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Measured, list[EngineSetup], list[dict[str, Any]]]:
    used: list[EngineSetup] = []
    job = job_of(tmp_path, monkeypatch, lambda setup: Limited(setup, highest, used))
    asked = [{"request_id": str(i), "prompt_token_ids": [1, 2], "output_tokens": 3} for i in range(REQUESTS)]
    write_jsonl(job.workload, asked)
    run.measure(job.model_copy(update={"definition": searching(), "arrival_seed": 3}))
    return Measured.read(job.evidence / "measured.json"), used, list(read_jsonl(job.evidence / "requests.jsonl"))


def test_the_highest_rate_is_found_and_late_passes_end_early(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "is_steady", bool)
    measured, used, requests = searched(3, tmp_path, monkeypatch)
    assert (measured.outcome, measured.repeats) == ("ok", [])
    assert measured.search
    loads = [one.load for one in measured.search.passes]
    assert [setup.knobs["request_rate_per_s"] for setup in used] == loads
    assert not any("find" in setup.knobs for setup in used)
    assert {one.load <= 3 * loads[0] for one in measured.search.passes if one.met} == {True}
    # Of 200 requests two may be late; the third ends the pass.
    assert {(one.met, one.requests, one.late) for one in measured.search.passes} == {(True, REQUESTS, 0), (False, 3, 3)}
    assert len(requests) == sum(one.requests for one in measured.search.passes)
    # Each pass has arrivals of its own, none of which are those of the next rounds.
    seeds = {setup.arrival_seed for setup in used}
    assert len(seeds) == len(loads)
    assert not seeds & set(range(4, 100))


def test_a_rate_is_searched_from_half_of_what_the_warm_up_showed(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "is_steady", bool)
    measured, used, _ = searched(1e-9, tmp_path, monkeypatch)
    assert measured.warmup
    assert measured.search
    first = measured.search.passes[0].load
    pass_s = min(measured.warmup.passes_s)
    assert first == pytest.approx(measured.warmup.requests / pass_s / 2)
    assert measured.search.passes[-1].load == measured.search.least == min(first, 1 / pass_s)
    assert not any(one.met for one in measured.search.passes)
    assert {setup.knobs["burstiness"] for setup in used} == {0.5}


def test_a_failed_request_ends_the_search(tmp_path, monkeypatch):
    class Failing(Limited):
        def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
            return [replace(record, error="no") for record in super().run(requests)]

    job = job_of(tmp_path, monkeypatch, lambda setup: Failing(setup, 20, []))
    run.measure(job.model_copy(update={"definition": searching()}))
    assert read_json(job.evidence / "measured.json")["outcome"] == "engine_error"


def test_limits_hold_for_all_that_are_set():
    latencies = {"ttft_s": np.array([0.5, 1.1, 0.5]), "e2e_s": np.array([3.0, 2.0, 3.1])}
    assert is_late({"ttft_s": 1.0, "e2e_s": 3.0}, latencies).tolist() == [False, True, True]

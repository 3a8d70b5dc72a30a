"""The search for the highest load on a made-up server: which passes it serves, and what is kept of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.measure.test_run import Unstoppable, defined, job_of
from workflow_scripts.common.files import read_json, read_jsonl, write_jsonl
from workflow_scripts.engines.engine import EngineSetup, RequestRecord
from workflow_scripts.measure import run
from workflow_scripts.study.definition import Definition
from workflow_scripts.study.outcome import Measured
from workflow_scripts.study.study import is_late
from workflow_scripts.workloads.request import Request

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

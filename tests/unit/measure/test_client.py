"""When a request's latency begins: at its scheduled arrival, or at sending if it had to wait for a free user."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from workflow_scripts.measure import client
from workflow_scripts.measure.client import Target, send
from workflow_scripts.measure.engine import RequestRecord
from workflow_scripts.measure.server_http import Address
from workflow_scripts.workloads.request import Request
from workflow_scripts.workloads.sampling import Sampling

BEGAN_S = 100.0
FIRST_S, GAPS_S = 0.2, [0.05, 0.06]


def sent(
    monkeypatch: pytest.MonkeyPatch,
    arrivals_s: Sequence[float],
    sent_s: Sequence[float],
    users: int | None = None,
    failed: Sequence[int] = (),
) -> list[RequestRecord]:
    """Records of requests that left the client so many seconds after the load began, on a clock that is the host's."""
    outputs = [
        SimpleNamespace(
            start_time=BEGAN_S + at,
            success=i not in failed,
            error="HTTP 500",
            ttft=FIRST_S,
            itl=GAPS_S,
            prompt_len=4,
            output_tokens=3,
        )
        for i, at in enumerate(sent_s)
    ]

    async def answers(*_: object) -> tuple[list[SimpleNamespace], float]:
        return outputs, BEGAN_S

    monkeypatch.setattr(client, "_sent", answers)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: 0.0, perf_counter=lambda: 0.0))
    requests = [Request([1, 2, 3, 4], 3, request_id=f"r{i}") for i in range(len(arrivals_s))]
    prompts = [request.prompt_token_ids for request in requests]
    return send(Target(Address("http://host"), "m"), requests, prompts, arrivals_s, users)


def test_latency_counts_from_the_scheduled_arrival_or_from_sending_in_a_closed_loop(monkeypatch):
    """A client that is late in mid-run makes latency longer, and so does one that holds requests back."""
    for users in (None, 1):
        records = sent(monkeypatch, arrivals_s=[0.0, 0.5, 1.0], sent_s=[0.0, 0.9, 1.0], users=users)
        assert [r.queued_s for r in records] == pytest.approx([100.0, 100.5, 101.0])
        assert [r.sent_s for r in records] == pytest.approx([100.0, 100.9, 101.0])
        assert records[1].first_token_s == pytest.approx(101.1)
        assert records[1].last_token_s == pytest.approx(101.21)
        assert records[1].itl_s == GAPS_S
    # Users alone are a closed loop, in which a request arrives when it is sent.
    records = sent(monkeypatch, arrivals_s=[0.0, 0.0, 0.0], sent_s=[0.0, 0.3, 0.7], users=1)
    assert [r.queued_s for r in records] == [r.sent_s for r in records]
    at_once = sent(monkeypatch, arrivals_s=[0.0, 0.0, 0.0], sent_s=[0.0, 0.3, 0.7])
    assert {r.queued_s for r in at_once} == {100.0}
    # A failed request has its error and no times of tokens.
    good, bad = sent(monkeypatch, arrivals_s=[0.0, 0.5], sent_s=[0.0, 0.5], failed=[1])
    assert good.error is None
    assert bad.error == "HTTP 500"
    assert (bad.first_token_s, bad.last_token_s) == (None, None)


def test_each_request_is_sampled_with_its_own_seed():
    sampling = Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=7)
    target = Target(Address("http://host"), "m", extra_body={"ignore_eos": True}, sampling=sampling)
    settings = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "ignore_eos": True}
    assert [target.body(place) for place in (0, 2)] == [{**settings, "seed": 7}, {**settings, "seed": 9}]

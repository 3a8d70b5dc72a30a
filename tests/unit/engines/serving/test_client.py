"""Requests reach a small test server when they are due, and its answers, however they end, become records."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.http_server import Handler, serving
from workflow_scripts.engines.engine import RequestRecord
from workflow_scripts.engines.serving import client
from workflow_scripts.engines.serving.client import Address, Target, send, stream_completion
from workflow_scripts.workloads.make_requests import make_requests
from workflow_scripts.workloads.request import Request, Vocabulary
from workflow_scripts.workloads.sampling import Sampling
from workflow_scripts.workloads.workload_kinds import MultiTurnWorkload

COUNTS = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
SAMPLING = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}


def arrivals(
    monkeypatch: pytest.MonkeyPatch, arrivals_s: Sequence[float], sent_s: Sequence[float], users: int | None = None
) -> list[float | None]:
    """When requests count as arrived that left the client so many seconds after the load began, at 100 s."""

    async def answered(*asked: Any) -> RequestRecord:
        return RequestRecord("r", 4, 3, sent_s=100.0 + sent_s[asked[-1]])

    monkeypatch.setattr(client, "stream_completion", answered)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: 100.0))
    requests, target = [Request([1, 2], 3)] * len(arrivals_s), Target(Address("http://host"), "m")
    records = send(target, requests, [request.prompt for request in requests], arrivals_s, users)
    return [record.queued_s for record in records]


def test_latency_counts_from_the_scheduled_arrival_or_from_sending_in_a_closed_loop(monkeypatch):
    """A client that is late in mid-run makes latency longer, and so does one that holds requests back."""
    for users in (None, 1):
        assert arrivals(monkeypatch, [0.0, 0.25, 0.5], [0.0, 0.75, 0.5], users) == [100.0, 100.25, 100.5]
    # Users alone are a closed loop, in which a request arrives when it is sent.
    assert arrivals(monkeypatch, [0.0, 0.0, 0.0], [0.0, 0.25, 0.75], users=1) == [100.0, 100.25, 100.75]
    assert arrivals(monkeypatch, [0.0, 0.0, 0.0], [0.0, 0.25, 0.75]) == [100.0, 100.0, 100.0]


def piece(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text}], **more}


class Streaming(Handler):
    events: list[Any]
    status = 200
    seen: dict[str, Any]

    def post(self) -> None:
        self.seen |= {"body": json.loads(self.asked()), "headers": dict(self.headers)}
        self.answer(self.status)
        for event in self.events:
            text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
            self.wfile.write(text.encode())
            self.wfile.flush()


@pytest.fixture
def answer():
    """What the client makes of an answer, and what it had sent."""
    with serving(Streaming) as start:

        def ask(*events: Any, status: int = 200, prompt: Any = (1, 2, 3)) -> tuple[RequestRecord, Any]:
            seen: dict[str, Any] = {}
            target = Target(
                Address(start(events=events, status=status, seen=seen), "key"),
                "m",
                extra_body={"ignore_eos": True},
                sampling=Sampling(**SAMPLING, seed=7),
                keep_answers=True,
            )

            async def send() -> RequestRecord:
                async with aiohttp.ClientSession() as session:
                    return await stream_completion(session, target, Request([1, 2, 3], 3), list(prompt), index=2)

            return asyncio.run(send()), SimpleNamespace(**seen)

        yield ask


def delta(**content: Any) -> dict[str, Any]:
    return {"choices": [{"delta": content}]}


USAGE, DONE = {"choices": [], "usage": COUNTS}, "data: [DONE]\n\n"
ASSISTANT = {"role": "assistant"}
MESSAGES = [{"role": "user", "content": "Why?"}]
STREAMS = {
    # vLLM: a piece a token, which may be empty, then the counts alone.
    "vllm": [piece("a"), piece(""), piece("c"), USAGE, DONE],
    # transformers: the counts come with an empty piece that is no token.
    "transformers": [piece("a"), piece("b"), piece("c"), piece("", usage=COUNTS)],
    # Others: the counts come with the last piece.
    "others": [": ping\n\n", piece("a"), piece("b"), piece("c", usage=COUNTS), DONE],
}
CHATS = {
    # vLLM: the role alone, then as above.
    "vllm": [delta(**ASSISTANT, content=""), *(delta(content=text) for text in ("a", "", "c")), USAGE],
    # transformers: the role before anything is computed, and the counts with the end.
    "transformers": [delta(**ASSISTANT), *(delta(content=c) for c in "abc"), {**delta(), "usage": COUNTS}],
    # Others: the role in every piece, or an empty end without counts, which come later.
    "others": [*(delta(**ASSISTANT, content=c) for c in "ab"), {**delta(content="c"), "usage": COUNTS}],
    "empty end": [*(delta(content=c) for c in "abc"), delta(), USAGE],
}


@pytest.mark.parametrize(
    ("prompt", "events"),
    [*(({"prompt": [1, 2, 3]}, events) for events in STREAMS.values())]
    + [({"messages": MESSAGES}, events) for events in CHATS.values()],
    ids=[*STREAMS, *(f"chat, {name}" for name in CHATS)],
)
def test_pieces_are_timed_and_counts_are_the_servers(answer, prompt, events):
    record, seen = answer(*events, prompt=next(iter(prompt.values())))
    assert record.error is None
    assert record.text in ("ac", "abc")
    assert (record.prompt_tokens, record.output_tokens, len(record.itl_s)) == (7, 3, 2)
    assert all(gap >= 0 for gap in record.itl_s)
    assert record.sent_s <= record.first_token_s
    assert record.last_token_s == pytest.approx(record.first_token_s + sum(record.itl_s), abs=1e-6)
    assert seen.body == {
        "model": "m",
        **prompt,
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **SAMPLING,
        "seed": 9,  # each request has its own
    }
    assert seen.headers["Authorization"] == "Bearer key"


def test_requests_go_through_a_socket_also_if_more_come_than_its_queue_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("socketserver.ThreadingUnixStreamServer.request_queue_size", 1)
    with serving(Streaming) as start:
        url = start(tmp_path / "s", events=STREAMS["vllm"], seen={})
        target, count = Target(Address(url, socket_path=str(tmp_path / "s")), "m"), 50
        records = send(target, [Request([1, 2, 3], 3)] * count, [[1, 2, 3]] * count, [0.0] * count, None)
    assert {(record.error, record.output_tokens) for record in records} == {(None, 3)}


@pytest.mark.parametrize(("users", "apart_s"), [(2, 0.0), (None, 0.05)])
def test_no_more_is_sent_when_it_is_enough(users, apart_s):
    requests, ended = [Request([1, 2, 3], 3, request_id=str(i)) for i in range(40)], list[RequestRecord]()

    def is_enough(record: RequestRecord) -> bool:
        assert record.queued_s <= record.first_token_s
        ended.append(record)
        return len(ended) == 2

    with serving(Streaming) as start:
        target = Target(Address(start(events=STREAMS["vllm"], seen={})), "m")
        arrivals_s = [apart_s * i for i in range(40)]
        records = send(target, requests, [[1, 2, 3]] * 40, arrivals_s, users, is_enough=is_enough)
    assert [record.request_id for record in records] == [str(i) for i in range(len(records))]
    assert len(records) < 20
    assert all(record.error is None for record in records)


def test_text_and_tokens_are_told_and_tokens_without_text_at_the_end(answer):
    pieces = [{"choices": [{"text": text, "token_ids": ids}]} for text, ids in (("a", [5]), ("bc", [6, 7]))]
    record, _ = answer(*pieces, USAGE)
    assert (record.text, record.token_ids) == ("abc", [5, 6, 7])
    record, _ = answer(piece("", usage=COUNTS))
    assert (record.error, record.output_tokens, record.itl_s, record.text) == (None, 3, [], None)
    assert record.first_token_s > record.sent_s


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_apart_from_the_answer(answer, name):
    thoughts, content = [delta(**{name: text}) for text in ("so ", "it is")], [delta(content=c) for c in ("b", "c")]
    record, _ = answer(delta(**ASSISTANT, content=""), *thoughts, *content, USAGE, prompt=MESSAGES)
    assert (record.reasoning, record.text, len(record.itl_s)) == ("so it is", "bc", 3)
    assert record.first_answer_s == pytest.approx(record.first_token_s + sum(record.itl_s[:2]), abs=1e-6)
    unfinished, _ = answer(*thoughts, USAGE, prompt=MESSAGES)
    plain, _ = answer(*content, USAGE, prompt=MESSAGES)
    assert [(r.reasoning, r.text, r.first_answer_s) for r in (unfinished, plain)] == [
        ("so it is", None, None),
        (None, "bc", None),
    ]


@pytest.mark.parametrize(
    ("events", "status", "error"),
    [
        ([{"error": "no such field"}], 500, 'HTTP 500 Internal Server Error: data: {"error": "no such field"}'),
        ([piece("a"), {"error": {"message": "out of memory"}}], 200, '{"message": "out of memory"}'),
        ([piece("a"), piece("b")], 200, "the answer does not say how many tokens it has"),
        ([USAGE], 200, "the answer has no text"),
        (["data: {not json}\n\n"], 200, "JSONDecodeError: "),
    ],
)
def test_a_failure_is_said_in_a_line(answer, events, status, error):
    record, _ = answer(*events, status=status)
    assert record.error.startswith(error)
    assert "\n" not in record.error
    assert "key" not in record.error
    assert (record.first_token_s, record.last_token_s, record.itl_s) == (None, None, [])


class Numbering(Handler):
    """Answers each prompt with two tokens that no other answer has, and the last token of the prompt."""

    fails_at: int = -1
    seen: list[list[int]]

    def post(self) -> None:
        asked = json.loads(self.asked())
        assert asked["return_token_ids"]
        self.seen.append(asked["prompt"])
        number = len(self.seen)
        self.answer(500 if number == self.fails_at else 200)
        ids = [1000 + number, 2000 + number, asked["prompt"][-1]]
        counts = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": 3}
        details = {"prompt_tokens_details": {"cached_tokens": 16 * number}}
        for event in [*({**piece("x")["choices"][0], "token_ids": [i]} for i in ids), None]:
            body = {"choices": [event]} if event else {"choices": [], "usage": counts | details}
            self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())
            self.wfile.flush()


SPEC = MultiTurnWorkload(kind="multi_turn", num_prompts=8, turns=4, prompt_tokens=4, output_tokens=3, answers="real")


def conversations(fails_at: int = -1, users: int | None = 1) -> tuple[list[Request], list[RequestRecord], list[Any]]:
    vocabulary = Vocabulary(np.arange(10, 100), list, list)
    made = make_requests(SPEC, vocabulary, 8)
    requests = [replace(r, request_id=str(i), think_s=0.03 if r.answers else 0.0) for i, r in enumerate(made)]
    seen: list[list[int]] = []
    with serving(Numbering) as start:
        target = Target(Address(start(seen=seen, fails_at=fails_at)), "m")
        records = send(target, requests, [r.prompt for r in requests], [0.0] * len(requests), users)
    return requests, records, seen


@pytest.mark.parametrize("users", [1, 2, None])
def test_a_turn_holds_the_answers_that_the_server_gave_and_never_begins_before_they_have_ended(users):
    requests, records, seen = conversations(users=users)
    assert [r.error for r in records] == [None] * 8
    for request, record in zip(requests, records, strict=True):
        for earlier, _ in request.answers:
            assert record.sent_s >= records[earlier].last_token_s + request.think_s
            assert record.queued_s >= records[earlier].last_token_s
    answers = {tuple(prompt): [1001 + number, 2001 + number, prompt[-1]] for number, prompt in enumerate(seen)}
    of_request: list[list[int]] = []
    for index, request in enumerate(requests):
        prompt = list(request.prompt_token_ids)
        for earlier, start in request.answers:
            prompt[start : start + 3] = of_request[earlier]
        of_request.append(answers[tuple(prompt)])
        assert len(prompt) == SPEC.tokens_of_prompt(index)
    if users == 1:
        assert max(r.last_token_s for r in records[:4]) <= records[4].sent_s
    assert {r.cached_prompt_tokens for r in records} == {16 * number for number in range(1, 9)}
    assert all(r.token_ids is None and r.text is None for r in records)


def test_a_conversation_ends_with_the_answer_that_failed():
    _, records, _ = conversations(fails_at=1)
    assert str(records[0].error).startswith("HTTP 500")
    assert {r.error for r in records[1:3]} == {"the answer to request 0 failed, so no prompt can hold it"}
    assert [r.error for r in records[4:]] == [None] * 4

"""Streamed answers from a small test server, with the different ways in which servers end them."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from tests.http_server import Handler, serving
from workflow_scripts.measure.completions import stream_completion

COUNTS = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


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

        def ask(*events: Any, status: int = 200, prompt: Any = (1, 2, 3)) -> tuple[Any, dict[str, Any]]:
            seen: dict[str, Any] = {}
            asked = SimpleNamespace(
                model="m",
                prompt=list(prompt),
                output_len=3,
                api_url=f"{start(events=events, status=status, seen=seen)}/v1/completions",
                extra_body={"ignore_eos": True},
                extra_headers={"Authorization": "Bearer key"},
                request_id="r1",
            )

            async def send() -> Any:
                async with aiohttp.ClientSession() as session:
                    return await stream_completion(asked, session)

            return asyncio.run(send()), seen

        yield ask


@pytest.mark.parametrize(
    "events",
    [
        # vLLM: a piece a token, which may be empty, then the counts alone.
        [piece("a"), piece(""), piece("c"), {"choices": [], "usage": COUNTS}, "data: [DONE]\n\n"],
        # transformers: the counts come with an empty piece that is no token.
        [piece("a"), piece("b"), piece("c"), piece("", usage=COUNTS)],
        # Others: the counts come with the last piece.
        [": ping\n\n", piece("a"), piece("b"), piece("c", usage=COUNTS), "data: [DONE]\n\n"],
    ],
    ids=["vllm", "transformers", "others"],
)
def test_pieces_are_timed_and_counts_are_the_servers(answer, events):
    output, seen = answer(*events)
    assert output.success, output.error
    assert (output.prompt_len, output.output_tokens) == (7, 3)
    assert len(output.itl) == 2
    assert all(gap >= 0 for gap in output.itl)
    assert seen["body"] == {
        "model": "m",
        "prompt": [1, 2, 3],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert seen["headers"]["Authorization"] == "Bearer key"


def delta(**content: Any) -> dict[str, Any]:
    return {"choices": [{"delta": content}]}


@pytest.mark.parametrize(
    "events",
    [
        # vLLM: the role alone, then a piece a token, which may be empty, then the counts alone.
        [
            delta(role="assistant", content=""),
            delta(content="a"),
            delta(content=""),
            delta(content="c"),
            {"choices": [], "usage": COUNTS},
        ],
        # transformers: the role before anything is computed, and the counts with the end.
        [delta(role="assistant"), *(delta(content=c) for c in "abc"), {**delta(), "usage": COUNTS}],
        # Others: the role in every piece, or an empty end without counts, which come later.
        [*(delta(role="assistant", content=c) for c in "ab"), {**delta(content="c"), "usage": COUNTS}],
        [*(delta(content=c) for c in "abc"), delta(), {"choices": [], "usage": COUNTS}],
    ],
    ids=["vllm", "transformers", "others", "empty end"],
)
def test_the_answer_to_a_chat_begins_with_its_first_token(answer, events):
    messages = [{"role": "user", "content": "Why?"}]
    output, seen = answer(*events, prompt=messages)
    assert output.success, output.error
    assert (output.prompt_len, output.output_tokens, len(output.itl)) == (7, 3, 2)
    assert output.generated_text in ("ac", "abc")
    assert seen["body"]["messages"] == messages
    assert "prompt" not in seen["body"]


def test_text_and_tokens_are_told_and_tokens_without_text_at_the_end(answer):
    pieces = [{"choices": [{"text": text, "token_ids": ids}]} for text, ids in (("a", [5]), ("bc", [6, 7]))]
    output, _ = answer(*pieces, {"choices": [], "usage": COUNTS})
    assert (output.generated_text, output.token_ids) == ("abc", [5, 6, 7])
    output, _ = answer(piece("", usage=COUNTS))
    assert output.success, output.error
    assert output.output_tokens == 3
    assert output.ttft > 0
    assert output.itl == []


@pytest.mark.parametrize(
    ("events", "status", "error"),
    [
        ([{"error": "no such field"}], 500, 'HTTP 500 Internal Server Error: data: {"error": "no such field"}'),
        ([piece("a"), {"error": {"message": "out of memory"}}], 200, '{"message": "out of memory"}'),
        ([piece("a"), piece("b")], 200, "the answer does not say how many tokens it has"),
        ([{"choices": [], "usage": COUNTS}], 200, "the answer has no text"),
        (["data: {not json}\n\n"], 200, "JSONDecodeError: "),
    ],
)
def test_a_failure_is_said_in_a_line(answer, events, status, error):
    output, _ = answer(*events, status=status)
    assert not output.success
    assert output.error.startswith(error)
    assert "\n" not in output.error
    assert "key" not in output.error

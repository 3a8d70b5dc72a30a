"""One streamed answer to a prompt or a chat: when each piece reached the client, and what the server counted."""

import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from workflow_scripts.measure.server_http import ServerError

MAX_ERROR_CHARACTERS = 300


class Asked(NamedTuple):
    """A request: where it is sent, with which headers, and its fields; `extra_body` has further ones."""

    api_url: str
    model: str
    prompt: Any
    output_len: int
    extra_body: dict[str, Any]
    extra_headers: dict[str, str]
    request_id: str


@dataclass
class Answer:
    """An answer, or its `error`. `start_time` is of the performance counter; other times count from this moment of
    sending, in seconds. `itl` has the times between pieces. Counts are those of the server's usage report. `token_ids`
    are those of the answer, if the server reports them."""

    start_time: float
    success: bool = False
    error: str = ""
    prompt_len: int = 0
    output_tokens: int = 0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    generated_text: str = ""
    token_ids: list[int] | None = None


async def stream_completion(asked: Asked, session: Any) -> Answer:
    """Send one request through an `aiohttp.ClientSession` and read the answer."""
    payload = {
        "model": asked.model,
        ("messages" if is_chat(asked.prompt) else "prompt"): asked.prompt,
        "max_tokens": asked.output_len,
        "stream": True,
        "stream_options": {"include_usage": True},
        **asked.extra_body,
    }
    headers = {**asked.extra_headers, "x-request-id": asked.request_id}
    output = Answer(start_time=time.perf_counter())
    pieces_s: list[float] = []
    token_ids: list[int] = []
    ended_s: float | None = None
    try:
        async with session.post(url=asked.api_url, json=payload, headers=headers) as response:
            if response.status != 200:
                said = _words(await response.text())
                raise ServerError(f"HTTP {response.status} {response.reason}" + (f": {said}" if said else ""))
            async for line in response.content:
                event = _event(line)
                if event is None:
                    continue
                if _is_piece(event):
                    pieces_s.append(time.perf_counter())
                elif event.get("choices"):
                    ended_s = time.perf_counter()
                for choice in event.get("choices") or ():
                    output.generated_text += _text(choice)
                    token_ids += choice.get("token_ids") or ()
                if usage := event.get("usage"):
                    output.prompt_len, output.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        if not pieces_s:
            if ended_s is None:
                raise ServerError("the answer has no text")
            # Tokens without text, such as half a character: the client sees only the end of the answer.
            pieces_s.append(ended_s)
        if not output.output_tokens:
            raise ServerError("the answer does not say how many tokens it has")
        output.token_ids = token_ids or None
        output.success = True
        output.ttft = pieces_s[0] - output.start_time
        output.itl = [later - earlier for earlier, later in pairwise(pieces_s)]
    except Exception as e:
        output.error = str(e) if isinstance(e, ServerError) else f"{type(e).__name__}: {e}"
    return output


def is_chat(prompt: Any) -> bool:
    """Whether a prompt is the messages of a chat.

    >>> is_chat([{"role": "user", "content": "Hello"}]), is_chat([1, 2]), is_chat("Hello")
    (True, False, False)
    """
    return not isinstance(prompt, str) and isinstance(prompt[0], dict)


def _event(line: bytes) -> dict[str, Any] | None:
    """The content of a line in the stream of server-sent events; None if it has none.

    >>> _event(b'data: {"choices": []}'), _event(b'data: [DONE]'), _event(b': ping')
    ({'choices': []}, None, None)
    """
    text = line.decode("utf-8", errors="replace").strip()
    if not text.startswith("data:") or text.endswith("[DONE]"):
        return None
    event: dict[str, Any] = json.loads(text.removeprefix("data:"))
    if error := event.get("error"):
        raise ServerError(_words(error if isinstance(error, str) else json.dumps(error)))
    return event


def _is_piece(event: dict[str, Any]) -> bool:
    """Whether an event brings a token: its text may be empty, unless the event only ends the answer.

    >>> counts = {"completion_tokens": 3}
    >>> [_is_piece({"choices": [{"text": text}], "usage": counts}) for text in ("a", "")]
    [True, False]
    >>> _is_piece({"choices": [{"text": ""}]}), _is_piece({"choices": [], "usage": counts})
    (True, False)

    The answer to a chat begins with an event that names only its role, and may end with an empty one:

    >>> deltas = ({"role": "assistant", "content": ""}, {"content": "a"}, {"content": ""}, {})
    >>> [_is_piece({"choices": [{"delta": delta}]}) for delta in deltas]
    [False, True, True, False]
    """
    choices = event.get("choices") or []
    if not choices:
        return False
    delta = choices[0].get("delta")
    return bool(_text(choices[0]) or not (event.get("usage") or delta == {} or (delta or {}).get("role")))


def _text(choice: dict[str, Any]) -> str:
    """The text that an event brings; in a chat, this includes the reasoning of a reasoning model."""
    delta = choice.get("delta") or {}
    texts = (choice.get("text"), delta.get("reasoning_content"), delta.get("content"))
    return "".join(text for text in texts if text)


def _words(text: str) -> str:
    return " ".join(text.split())[:MAX_ERROR_CHARACTERS]

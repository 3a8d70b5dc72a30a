"""The client of a server: sends exactly the requests of the workload, each when it is due, and streams the answers.

Latency counts from the scheduled arrival, so time that a request spends waiting in the client counts too. Health,
metrics and small commands are asked for by plain requests. Nothing uses a proxy from the environment. A server of this
machine may listen on a UNIX socket.
"""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from workflow_scripts.catalog.endpoints import CHAT_PATH
from workflow_scripts.engines.engine import RequestRecord
from workflow_scripts.workloads.request import Prompt, Request
from workflow_scripts.workloads.sampling import Sampling, settings_of_request

# Seconds and bytes of one answer, so that a server that hangs, or never ends, is an error. A token takes up to 1 kB.
ANSWER_LIMIT_S, MOST_ANSWER_BYTES = 6 * 60 * 60.0, 2**30
MAX_ERROR_CHARACTERS = 300
# The same for health, metrics and small commands.
TIMEOUT_S, _MOST_BYTES = 10.0, 2**26
HEALTH_POLL_S = 0.1


class ServerError(RuntimeError):
    """The server ended, or did not answer as expected."""


class ServerTimeoutError(RuntimeError):
    """The server did not become healthy in time."""


class StatusError(OSError):
    """The server answered with an error, or with a redirect: none is followed, because the key would go with it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that waits while the queue of a UNIX socket is full, as the kernel does at a port."""

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        while sock.family == socket.AF_UNIX:
            try:
                return sock.connect(address)
            except BlockingIOError:
                await asyncio.sleep(0.001)
        await super().sock_connect(sock, address)


@dataclass(frozen=True)
class Address:
    """Where a server listens and the key that it requires. No text form of this object shows the key. With
    `socket_path` the server listens on a UNIX socket, and the host in `base_url` means nothing."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    socket_path: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def session(self, limit_s: float) -> Any:
        """An `aiohttp.ClientSession` for any number of requests at once."""
        import aiohttp  # not every environment that reads records has it

        connector = aiohttp.UnixConnector(self.socket_path, limit=0) if self.socket_path else None
        limit = aiohttp.ClientTimeout(total=limit_s)
        return aiohttp.ClientSession(connector=connector or aiohttp.TCPConnector(limit=0), timeout=limit)

    def call(self, path: str, method: str = "GET") -> str:
        """Send a request and return the text of the answer. Raises OSError if the server cannot be reached or answers
        with too much, StatusError if it answers with another status than success."""
        import aiohttp

        async def answered() -> bytes:
            content, asked = bytearray(), {"headers": self.headers, "allow_redirects": False}
            async with (
                self.session(TIMEOUT_S) as session,
                session.request(method, self.base_url + path, **asked) as answer,
            ):
                if not 200 <= answer.status < 300:
                    raise StatusError(answer.status)
                async for part in answer.content.iter_any():
                    content += part
                    if len(content) > _MOST_BYTES:
                        raise OSError(f"the answer is larger than {_MOST_BYTES:,} bytes")
            return bytes(content)

        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                return runner.run(answered()).decode("utf-8", errors="replace")
        except aiohttp.ClientError as e:  # an answer that is not HTTP, or that was cut off
            raise OSError(f"{type(e).__name__}: {e}") from e


def wait_until_healthy(address: Address, path: str, ended: Callable[[], str | None], limit_s: float) -> None:
    """Wait until the server answers at `path`. Raises ServerError if the server ended (`ended` says how),
    ServerTimeoutError if the server is not healthy after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        if (how := ended()) is not None:
            raise ServerError(f"{how} before it was healthy")
        try:
            address.call(path)
            return
        except OSError as e:
            last = str(e) or type(e).__name__
        if time.monotonic() > deadline:
            raise ServerTimeoutError(f"the server was not healthy after {limit_s:g} s; {path} last said: {last}")
        time.sleep(HEALTH_POLL_S)


@dataclass(frozen=True)
class Target:
    """A server as a client sees it. `extra_body`: further fields of each request, such as one that makes it generate
    past an end token. Without `sampling`, tokens are chosen greedily. With `keep_answers`, the records have the
    answers."""

    address: Address
    model: str
    completions_path: str = "/v1/completions"
    extra_body: dict[str, Any] = field(default_factory=dict)
    sampling: Sampling | None = None
    keep_answers: bool = False
    chat_path: str = CHAT_PATH


# Whether no more requests need to be sent, after one that has ended.
IsEnough = Callable[[RequestRecord], bool]


def send(
    target: Target,
    requests: Sequence[Request],
    prompts: Sequence[Prompt],
    arrivals_s: Sequence[float],
    users: int | None,
    is_enough: IsEnough | None = None,
) -> list[RequestRecord]:
    """Send all requests and return their records, in the order of `requests`; a failed request has an `error`. None
    is sent after `is_enough`, which gets each record. `arrivals_s`: when each request is due, in seconds after the
    first. `users`: maximum number of requests in flight at once, or of conversations: a request of one is due when the
    answers in its prompt have ended."""
    # With a number of users only, a request arrives when a user is free; its position in the file is no arrival time.
    closed_loop = users is not None and not any(arrivals_s)

    async def sent() -> list[RequestRecord]:
        free = asyncio.Semaphore(users or len(requests))
        due_at_s = [0.0] * len(requests)
        ended = False
        answered: dict[int, asyncio.Future[RequestRecord]] = {}
        async with target.address.session(ANSWER_LIMIT_S) as session:

            async def ask(index: int) -> RequestRecord:
                request, prompt = requests[index], prompts[index]
                if request.answers:
                    earlier = [(await answered[position], start) for position, start in request.answers]
                    due_at_s[index] = time.monotonic() + request.think_s
                    await asyncio.sleep(request.think_s)
                    try:
                        prompt = with_answers(prompt, earlier)
                    except ServerError as e:
                        return RequestRecord(request.request_id, 0, 0, sent_s=time.monotonic(), error=str(e))
                return await stream_completion(session, target, request, prompt, index)

            async def answer(index: int) -> RequestRecord:
                nonlocal ended
                record = await ask(index)
                record = replace(record, queued_s=record.sent_s if closed_loop else due_at_s[index])
                ended = ended or bool(is_enough and is_enough(record))
                return record

            async def converse(indices: Sequence[int]) -> None:
                async with free:
                    if not ended:
                        answered.update({index: asyncio.ensure_future(answer(index)) for index in indices})
                        await asyncio.gather(*(answered[index] for index in indices))

            began_s, conversations = time.monotonic(), []
            for indices in _conversations(requests):
                due_at_s[indices[0]] = began_s + arrivals_s[indices[0]]
                await asyncio.sleep(due_at_s[indices[0]] - time.monotonic())
                if ended:
                    break
                conversations.append(asyncio.create_task(converse(indices)))
            await asyncio.gather(*conversations)
            return [task.result() for _, task in sorted(answered.items())]

    with asyncio.Runner(loop_factory=_Loop) as runner:
        records = runner.run(sent())
    if not target.keep_answers:
        return [replace(record, token_ids=None, text=None, reasoning=None) for record in records]
    return records


def _conversations(requests: Sequence[Request]) -> list[list[int]]:
    """The positions of requests of one conversation; a request of none is alone."""
    found: dict[tuple[str, int], list[int]] = {}
    for index, request in enumerate(requests):
        key = ("alone", index) if request.session is None else ("session", request.session)
        found.setdefault(key, []).append(index)
    return list(found.values())


def with_answers(prompt: Prompt, earlier: Sequence[tuple[RequestRecord, int]]) -> list[int]:
    """The prompt with the tokens of earlier answers, each from its place on. Raises ServerError if one of them failed,
    or the server does not tell the tokens of its answers.

    >>> with_answers([1, 0, 0, 2], [(RequestRecord("0", 1, 2, token_ids=[8, 9]), 1)])
    [1, 8, 9, 2]
    """
    filled = [token for token in prompt if isinstance(token, int)]
    for record, start in earlier:
        if not record.token_ids:
            fault = "failed" if record.error else "has no tokens, which a server tells as `token_ids`"
            raise ServerError(f"the answer to request {record.request_id} {fault}, so no prompt can hold it")
        filled[start : start + len(record.token_ids)] = record.token_ids
    return filled


async def stream_completion(
    session: Any, target: Target, request: Request, prompt: Prompt, index: int
) -> RequestRecord:
    """Send the request at this position in the workload through an `aiohttp.ClientSession`, and read the answer. The
    times are those at which its pieces reached the client, the counts those of the server's usage report."""
    is_chat = not isinstance(prompt, str) and isinstance(prompt[0], dict)
    url = target.address.base_url + (target.chat_path if is_chat else target.completions_path)
    body = {
        "model": target.model,
        ("messages" if is_chat else "prompt"): prompt,
        "max_tokens": request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **settings_of_request(target.sampling, index),
        **({"return_token_ids": True} if request.session is not None else {}),
        **target.extra_body,
    }
    headers, read_bytes = {**target.address.headers, "x-request-id": request.request_id}, 0
    pieces_s: list[float] = []
    token_ids: list[int] = []
    text = reasoning = ""
    prompt_tokens = output_tokens = 0
    cached_tokens: int | None = None
    ended_s: float | None = None
    first_answer_s: float | None = None
    error: str | None = None
    sent_s = time.monotonic()
    try:
        async with session.post(url=url, json=body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                message = _words((await response.content.read(2**16)).decode(errors="replace"))
                raise ServerError(f"HTTP {response.status} {response.reason}" + (f": {message}" if message else ""))
            async for line in response.content:
                read_bytes += len(line)
                if read_bytes > MOST_ANSWER_BYTES:
                    raise ServerError(f"the answer is larger than {MOST_ANSWER_BYTES:,} bytes")
                event = _event(line)
                if event is None:
                    continue
                if _is_piece(event):
                    pieces_s.append(time.monotonic())
                elif event.get("choices"):
                    ended_s = time.monotonic()
                for choice in event.get("choices") or ():
                    thought, told = _texts(choice)
                    if told and reasoning and not text:
                        first_answer_s = pieces_s[-1]
                    reasoning, text = reasoning + thought, text + told
                    token_ids += choice.get("token_ids") or ()
                if usage := event.get("usage"):
                    prompt_tokens, output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
                    cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if not pieces_s:
            if ended_s is None:
                raise ServerError("the answer has no text")
            # Tokens without text, such as half a character: the client sees only the end of the answer.
            pieces_s.append(ended_s)
        if not output_tokens:
            raise ServerError("the answer does not say how many tokens it has")
    except Exception as e:
        error = str(e) if isinstance(e, ServerError) else f"{type(e).__name__}: {e}"
        pieces_s, token_ids = [], []
    return RequestRecord(
        request_id=request.request_id,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        first_token_s=pieces_s[0] if pieces_s else None,
        last_token_s=pieces_s[-1] if pieces_s else None,
        cached_prompt_tokens=cached_tokens,
        sent_s=sent_s,
        itl_s=[round(later - earlier, 7) for earlier, later in pairwise(pieces_s)],
        error=error,
        token_ids=token_ids or None,
        text=text or None,
        first_answer_s=first_answer_s if pieces_s else None,
        reasoning=reasoning or None,
    )


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

    >>> texts, counts = [{"text": ""}], {"completion_tokens": 3}
    >>> _is_piece({"choices": texts}), _is_piece({"choices": texts, "usage": counts}), _is_piece({"usage": counts})
    (True, False, False)

    The answer to a chat begins with an event that names only its role, and may end with an empty one:

    >>> deltas = ({"role": "assistant", "content": ""}, {"content": "a"}, {"content": ""}, {})
    >>> [_is_piece({"choices": [{"delta": delta}]}) for delta in deltas]
    [False, True, True, False]
    """
    if not (choices := event.get("choices")):
        return False
    delta = choices[0].get("delta")
    return any(_texts(choices[0])) or not (event.get("usage") or delta == {} or (delta or {}).get("role"))


def _texts(choice: dict[str, Any]) -> tuple[str, str]:
    """The reasoning and the answer that an event brings. vLLM calls reasoning `reasoning`, and before 0.12, as others
    do, `reasoning_content`.

    >>> _texts({"delta": {"reasoning": "so", "reasoning_content": "so"}}), _texts({"text": "a"})
    (('so', ''), ('', 'a'))
    """
    delta = choice.get("delta") or {}
    thought = delta.get("reasoning") or delta.get("reasoning_content")
    return thought or "", choice.get("text") or delta.get("content") or ""


def _words(text: str) -> str:
    return " ".join(text.split())[:MAX_ERROR_CHARACTERS]

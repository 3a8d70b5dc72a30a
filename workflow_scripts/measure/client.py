"""The client of a server: sends exactly the requests of the workload, each when it is due, and streams the answers.

Latency counts from the scheduled arrival, so time that a request spends waiting in the client counts too.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workflow_scripts.catalog.endpoints import CHAT_PATH
from workflow_scripts.measure.completions import Answer, Asked, is_chat, stream_completion
from workflow_scripts.measure.engine import RequestRecord
from workflow_scripts.measure.server_http import Address
from workflow_scripts.workloads.request import Prompt, Request
from workflow_scripts.workloads.sampling import Sampling, settings_of_request

# Seconds for one answer, so that a server that hangs ends as an error.
ANSWER_LIMIT_S = 6 * 60 * 60.0


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

    def body(self, place: int) -> dict[str, Any]:
        """The further fields of the request at this position in the workload.

        >>> Target(Address("http://host"), "m", extra_body={"ignore_eos": True}).body(3)
        {'temperature': 0.0, 'ignore_eos': True}
        """
        return {**settings_of_request(self.sampling, place), **self.extra_body}

    def asked(self, request: Request, prompt: Prompt, place: int) -> Asked:
        """What is sent for the request at this position in the workload."""
        path = self.chat_path if is_chat(prompt) else self.completions_path
        url, headers = self.address.base_url + path, self.address.headers
        return Asked(url, self.model, prompt, request.output_tokens, self.body(place), headers, request.request_id)


def send(
    target: Target,
    requests: Sequence[Request],
    prompts: Sequence[Prompt],
    arrivals_s: Sequence[float],
    users: int | None,
) -> list[RequestRecord]:
    """Send all requests and return their records, in the order of `requests`; a failed request has an `error`.
    `arrivals_s`: when each request is due, in seconds after the first. `users`: maximum number of requests in flight at
    once."""
    answers, began_s = asyncio.run(_sent(target, requests, prompts, arrivals_s, users))
    # With a number of users only, a request arrives when a user is free; its position in the file is no arrival time.
    closed_loop = users is not None and not any(arrivals_s)
    records = []
    for request, answer, due_s in zip(requests, answers, arrivals_s, strict=True):
        record = _record(request, answer, answer.start_time if closed_loop else began_s + due_s)
        if target.keep_answers:
            record = replace(record, token_ids=answer.token_ids, text=answer.generated_text or None)
        records.append(record)
    return records


async def _sent(
    target: Target,
    requests: Sequence[Request],
    prompts: Sequence[Prompt],
    arrivals_s: Sequence[float],
    users: int | None,
) -> tuple[list[Answer], float]:
    """The answer to each request, and the moment from which arrivals count, on the performance counter."""
    import aiohttp  # not every environment that reads records has it

    free = asyncio.Semaphore(users or len(requests))
    connector, limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=ANSWER_LIMIT_S)
    # Like everything else that talks to the server, the session uses no proxy from the environment.
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:

        async def answered(asked: Asked) -> Answer:
            async with free:
                return await stream_completion(asked, session)

        began_s, answers = time.perf_counter(), []
        for place, (request, prompt, due_s) in enumerate(zip(requests, prompts, arrivals_s, strict=True)):
            await asyncio.sleep(began_s + due_s - time.perf_counter())
            answers.append(asyncio.create_task(answered(target.asked(request, prompt, place))))
        return await asyncio.gather(*answers), began_s


def _record(request: Request, output: Answer, arrival_s: float) -> RequestRecord:
    # Answers have times of the performance counter, which differs from the monotonic clock by an offset (0 on Linux).
    offset_s = time.monotonic() - time.perf_counter()
    first_s = output.start_time + output.ttft + offset_s if output.success else None
    return RequestRecord(
        request_id=request.request_id,
        prompt_tokens=output.prompt_len,
        output_tokens=output.output_tokens,
        queued_s=arrival_s + offset_s,
        scheduled_s=None,
        first_token_s=first_s,
        last_token_s=None if first_s is None else first_s + sum(output.itl),
        sent_s=output.start_time + offset_s,
        itl_s=[round(gap, 7) for gap in output.itl],
        error=None if output.success else output.error,
    )

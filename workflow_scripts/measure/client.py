"""The client of a server: vLLM's own serving benchmark, called from Python with exactly the requests of the workload.

`vllm.benchmarks.serve.benchmark` sends the requests when they are due and streams the answers. Its own summary measures
latency from the moment when a request was sent. The records here also hold the scheduled arrival, so that time spent
waiting in the client counts as latency.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.endpoints import CHAT_PATH
from workflow_scripts.measure.completions import is_chat, stream_completion
from workflow_scripts.measure.engine import RequestRecord
from workflow_scripts.measure.server_http import Address
from workflow_scripts.workloads.request import Prompt, Request
from workflow_scripts.workloads.sampling import Sampling, settings_of_request

BACKEND = "kvsweep"


@dataclass(frozen=True)
class Target:
    """A server as a client sees it.

    `extra_body`: further fields of each request, such as one that makes it generate past an end token. Without
    `sampling`, tokens are chosen greedily. With `keep_answers`, the records have the answers.
    """

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


def send(
    target: Target,
    requests: Sequence[Request],
    prompts: Sequence[Prompt],
    arrivals_s: Sequence[float],
    users: int | None,
    log: Path,
) -> list[RequestRecord]:
    """Send all requests and return their records, in the order of `requests`; a failed request has an `error`.

    Args:
        prompts: what is sent for each request: token ids, text, or the messages of a chat.
        arrivals_s: when each request is due, in seconds after the first.
        users: maximum number of requests in flight at once; None: no limit.
        log: file to which the benchmark's output is appended.
    """
    # The benchmark's session would use a proxy from the environment; nothing else that talks to the server does.
    os.environ |= {"NO_PROXY": "*", "no_proxy": "*"}
    with log.open("a", encoding="utf-8", buffering=1) as out, contextlib.redirect_stdout(out):
        outputs, began_s = asyncio.run(_benchmark(target, requests, prompts, arrivals_s, users))
    # With a number of users only, a request arrives when a user is free; its position in the file is no arrival time.
    closed_loop = users is not None and not any(arrivals_s)
    records = []
    for request, due_s in zip(requests, arrivals_s, strict=True):
        output = outputs[request.request_id]
        record = _record(request, output, output.start_time if closed_loop else began_s + due_s)
        if target.keep_answers:
            record = replace(record, token_ids=getattr(output, "token_ids", None), text=output.generated_text or None)
        records.append(record)
    return records


async def _benchmark(
    target: Target,
    requests: Sequence[Request],
    prompts: Sequence[Prompt],
    arrivals_s: Sequence[float],
    users: int | None,
) -> tuple[dict[str, Any], float]:
    """The output of each request by its id, and the moment from which arrivals count."""
    from vllm.benchmarks import serve
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.lib.endpoint_request_func import ASYNC_REQUEST_FUNCS

    outputs: dict[str, Any] = {}
    places = {request.request_id: place for place, request in enumerate(requests)}

    async def send_one(request_func_input: Any, session: Any, pbar: Any = None) -> Any:
        if is_chat(request_func_input.prompt):
            request_func_input.api_url = target.address.base_url + target.chat_path
        request_func_input.extra_body = target.body(places[request_func_input.request_id])
        output = await stream_completion(request_func_input, session, pbar)
        outputs[request_func_input.request_id] = output
        return output

    ASYNC_REQUEST_FUNCS[BACKEND] = send_one
    samples = [
        SampleRequest(
            prompt=prompt,
            prompt_len=len(request.prompt_token_ids),
            expected_output_len=request.output_tokens,
            request_id=request.request_id,
            timestamp=due_s,
        )
        for request, prompt, due_s in zip(requests, prompts, arrivals_s, strict=True)
    ]
    await serve.benchmark(
        task_type=serve.TaskType.GENERATION,
        endpoint_type=BACKEND,
        api_url=target.address.base_url + target.completions_path,
        base_url=target.address.base_url,
        model_id=target.model,
        model_name=target.model,
        tokenizer=None,
        input_requests=samples,
        logprobs=None,
        request_rate=float("inf"),
        burstiness=1.0,
        disable_tqdm=True,
        num_warmups=0,
        profile=False,
        selected_percentile_metrics=["ttft", "tpot", "itl", "e2el"],
        selected_percentiles=[50.0, 90.0, 99.0],
        ignore_eos=False,  # `extra_body` holds it, if the server knows it
        goodput_config_dict={},
        max_concurrency=users,
        lora_modules=None,
        extra_headers=target.address.headers,
        extra_body=None,  # `send_one` adds the fields of each request
        ready_check_timeout_sec=0,
        self_timed=True,
    )
    # A request is never handed out before it is due, so the one with the least delay shows when the clock of arrivals
    # began.
    handed_out_s = [outputs[s.request_id].start_time - outputs[s.request_id].client_queue_time for s in samples]
    return outputs, min(at - due_s for at, due_s in zip(handed_out_s, arrivals_s, strict=True))


def _record(request: Request, output: Any, arrival_s: float) -> RequestRecord:
    # The benchmark uses the performance counter, which differs from the monotonic clock by an offset (0 on Linux).
    offset_s = time.monotonic() - time.perf_counter()
    first_s = output.start_time + output.ttft + offset_s if output.success else None
    return RequestRecord(
        request_id=request.request_id,
        prompt_tokens=output.prompt_len,
        output_tokens=output.output_tokens or 0,
        queued_s=arrival_s + offset_s,
        scheduled_s=None,
        first_token_s=first_s,
        last_token_s=None if first_s is None else first_s + sum(output.itl),
        sent_s=output.start_time + offset_s,
        itl_s=[round(gap, 7) for gap in output.itl],
        error=None if output.success else output.error,
    )

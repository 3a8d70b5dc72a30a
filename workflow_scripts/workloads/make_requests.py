"""The requests of a workload of any kind, and others of the same kind to warm an engine up with.

docs/workloads.md describes the kinds.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workflow_scripts.workloads.arrival_trace import trace
from workflow_scripts.workloads.prompts_file import prompts
from workflow_scripts.workloads.random_prompts import as_long_as, fixed, sharing, synthetic
from workflow_scripts.workloads.request import Request, RequestStream, WorkloadError
from workflow_scripts.workloads.sharegpt import sharegpt
from workflow_scripts.workloads.vocabulary import Vocabulary
from workflow_scripts.workloads.workload_kinds import SharedTextWorkload, Workload

Generator = Callable[[Any, Vocabulary, int], RequestStream]
# Each makes the stream of requests for (specification, vocabulary, seed); the first requests of a stream must not
# depend on how many are drawn.
GENERATORS: dict[str, Generator] = {
    "fixed": fixed,
    "synthetic": synthetic,
    "identical": sharing,
    "shared_prefix": sharing,
    "multi_turn": sharing,
    "long_context": sharing,
    "sharegpt": sharegpt,
    "trace": trace,
    "prompts": prompts,
}

# Added to a workload's seed. NumPy reads seeds as words of 32 bits and fills up with zeros to four of them, so that
# [seed + 2**32, x] and [seed, 1, x] are one seed; with a fifth word this seed meets none of a workload's own.
WARMUP_SEED = 1 << 96
# vLLM shares no KV block of fewer tokens between prompts.
SMALLEST_SHARED_BLOCK = 16
WARMUP_ATTEMPTS = 1000
# As many requests in a row that are too long say that none will come that is not.
MOST_LEFT_OUT = 10_000


def make_requests(spec: Workload, vocabulary: Vocabulary, count: int) -> tuple[list[Request], RequestStream]:
    """The first `count` requests of a workload, and the stream that they were drawn from.

    Raises:
        WorkloadError: the workload's source is not what it should be, or has fewer requests.
    """
    stream = _short_enough(GENERATORS[spec.kind](spec, vocabulary, spec.seed), spec.max_total_tokens)
    requests = list(itertools.islice(stream.requests, count))
    if len(requests) < count:
        raise WorkloadError(f"{count} requests are needed, {stream.details['source']} gives {len(requests)}")
    return requests, stream


def _short_enough(stream: RequestStream, max_total_tokens: int | None) -> RequestStream:
    """The stream without the requests that have more tokens, and in its details how many those were."""
    if max_total_tokens is None:
        return stream
    details = {**stream.details, "left_out_as_too_long": 0}

    def requests() -> Iterator[Request]:
        in_a_row = 0
        for request in stream.requests:
            if request.total_tokens <= max_total_tokens:
                in_a_row = 0
                yield request
            else:
                in_a_row += 1
                details["left_out_as_too_long"] += 1
            if in_a_row == MOST_LEFT_OUT:
                raise WorkloadError(f"max_total_tokens {max_total_tokens}: {in_a_row} requests in a row are longer")

    return RequestStream(stream.kind, requests(), details)


def make_warmup(spec: Workload, vocabulary: Vocabulary, requests: Sequence[Request]) -> list[Request]:
    """As many requests of the same lengths that leave nothing in a prefix cache for `requests` to hit.

    Where prompts share text, these share other text alike; else they are random tokens, for no text of a file is spare.

    Raises:
        WorkloadError: there are too few other prompts of these lengths.
    """
    taken = {_start(request) for request in requests}
    seed = spec.seed + WARMUP_SEED
    if isinstance(spec, SharedTextWorkload):
        others = sharing(spec, vocabulary, seed).requests
    else:
        others = as_long_as(requests, vocabulary, seed)
    candidates = itertools.islice(others, len(requests) + WARMUP_ATTEMPTS)
    warmup = list(itertools.islice((c for c in candidates if _start(c) not in taken), len(requests)))
    if len(warmup) < len(requests):
        raise WorkloadError(
            f"{len(requests)} warm-up requests are needed whose prompts are none of the workload's own; "
            f"there are {len(warmup)}: use fewer requests or longer prompts"
        )
    return warmup


def _start(request: Request) -> tuple[int, ...]:
    return tuple(request.prompt_token_ids[:SMALLEST_SHARED_BLOCK])

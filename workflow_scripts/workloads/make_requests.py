"""The requests of a workload of any kind, and similar ones to warm an engine up with."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from workflow_scripts.workloads.hashed_trace import hashed_trace
from workflow_scripts.workloads.random_prompts import as_long_as, fixed, sharing, synthetic
from workflow_scripts.workloads.request import Request, Vocabulary, WorkloadError
from workflow_scripts.workloads.texts import prompts, sharegpt
from workflow_scripts.workloads.workload_kinds import SharedTextWorkload, TraceWorkload, Workload

Generator = Callable[[Any, Vocabulary, int], Iterator[Request]]


def _trace(spec: TraceWorkload, vocabulary: Vocabulary, count: int) -> Iterator[Request]:
    if spec.is_hashed:
        return hashed_trace(spec, vocabulary)
    from workflow_scripts.workloads.arrival_trace import trace  # imports pandas, which takes half a second

    return trace(spec, vocabulary)


# Each makes requests from (specification, vocabulary, how many are needed); workloads with shared text have
# `sharing`.
# The first requests must not depend on how many are drawn; only `stratified` lengths do.
GENERATORS: dict[str, Generator] = {
    "fixed": fixed,
    "synthetic": synthetic,
    "sharegpt": sharegpt,
    "trace": _trace,
    "prompts": prompts,
}

# Added to a workload's seed. NumPy reads seeds as 32-bit words and pads them with zeros to four words, so that
# [seed + 2**32, x] and [seed, 1, x] are the same seed. With a fifth word this seed never equals one of the workload's.
WARMUP_SEED = 1 << 96
# vLLM shares no KV block of fewer tokens between prompts.
SMALLEST_SHARED_BLOCK = 16
WARMUP_ATTEMPTS = 1000
# After this many too long requests in a row, no shorter one is expected.
MOST_LEFT_OUT = 10_000


def make_requests(spec: Workload, vocabulary: Vocabulary, count: int) -> list[Request]:
    """The first `count` requests of a workload. Raises WorkloadError if it has fewer."""
    if isinstance(spec, SharedTextWorkload):
        whole = sharing(spec, vocabulary, spec.seed)
    else:
        whole = GENERATORS[spec.kind](spec, vocabulary, count)
    requests = list(itertools.islice(_short_enough(whole, spec.max_total_tokens or math.inf), count))
    if len(requests) < count:
        raise WorkloadError(f"{count} requests are needed, {getattr(spec, 'file', spec.kind)} gives {len(requests)}")
    return requests


def _short_enough(requests: Iterator[Request], most_tokens: float) -> Iterator[Request]:
    """The requests without those that have more tokens."""
    in_a_row = 0
    for request in requests:
        if request.total_tokens <= most_tokens:
            in_a_row = 0
            yield request
        elif (in_a_row := in_a_row + 1) == MOST_LEFT_OUT:
            raise WorkloadError(f"max_total_tokens {most_tokens}: {in_a_row} requests in a row are longer")


def make_warmup(spec: Workload, vocabulary: Vocabulary, requests: Sequence[Request]) -> list[Request]:
    """As many requests of the same lengths, which leave nothing in a prefix cache that `requests` could hit. If prompts
    share text, these share other text in the same way; otherwise they are random tokens, because a file has no text to
    spare. Raises WorkloadError if there are too few other prompts of these lengths."""
    taken = {_start(request) for request in requests}
    seed = spec.seed + WARMUP_SEED
    others: Iterator[Request]
    if isinstance(spec, SharedTextWorkload):
        made = sharing(spec, vocabulary, seed)
        # Turns of conversations do not wait for each other here.
        others = (replace(request, answers=(), think_s=0.0, session=None) for request in made)
    else:
        others = as_long_as(requests, vocabulary, seed)
    candidates = itertools.islice(others, len(requests) + WARMUP_ATTEMPTS)
    warmup = list(itertools.islice((c for c in candidates if _start(c) not in taken), len(requests)))
    if len(warmup) < len(requests):
        raise WorkloadError(
            f"{len(requests)} warm-up requests are needed with prompts that the workload does not have; "
            f"there are {len(warmup)}: use fewer requests or longer prompts"
        )
    return warmup


def _start(request: Request) -> tuple[int, ...]:
    return tuple(request.prompt_token_ids[:SMALLEST_SHARED_BLOCK])

"""Where prompt tokens go in the prefix cache: how many it finds, and why it does not find the others.

Each prompt token is counted once, in the first of these that holds; docs/hits.md explains them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.physics.step_time import IntArray
from workflow_scripts.predict.kv_pool import Lookup
from workflow_scripts.predict.schedule import RequestLengths, Schedule, ScheduleError, StepTime
from workflow_scripts.predict.scheduler import make_schedule

# The prompt tokens of a request are the sum of these.
OF_PROMPT = {
    "found": "found",
    "never_seen": "never seen before",
    "shorter_than_block": "seen, but shorter than a block",
    "last_token": "last token, always computed",
    "evicted": "seen, but evicted",
    "not_retained": "seen, but not kept by a window or state",
}
# What preempted requests look up again, prompt and answer so far, is the sum of these.
OF_PREEMPTED = {"found_again": "found again after a preemption", "computed_again": "computed again after a preemption"}
# The knee of a curve is the smallest cache that finds this share of what a cache without end finds.
KNEE_SHARE = 0.95
_SIZES = 9
# Of more prompts in total a plan does not say what becomes of their tokens.
MOST_BLOCKS = 1_000_000


@dataclass(frozen=True)
class PrefixHits:
    """Tokens by what became of them: for each of `OF_PROMPT` and `OF_PREEMPTED` an array with one element per request.
    `evictions`: for each request that missed evicted tokens the steps in which the first missing block was given back,
    evicted and asked for, and the tokens that were missed."""

    tokens: dict[str, IntArray]
    evictions: IntArray
    schedule: Schedule

    def total(self, name: str) -> int:
        return int(self.tokens[name].sum())


def prefix_hits(requests: RequestLengths, settings: SchedulerSettings, step_time: StepTime | None = None) -> PrefixHits:
    """What becomes of the prompt tokens of requests; arguments and errors as in `make_schedule`.

    Two prompts of 552 tokens that are equal, in a model whose states are kept every 528 tokens:

    >>> from workflow_scripts.engines.capacity import KvGroup, KvPool
    >>> pool = KvPool((KvGroup("all", (0,), None), KvGroup("state", (1,), 0)), 1, 528, 2, 0)
    >>> settings = SchedulerSettings(1, 8192, 528, 8192, num_blocks=99, pool=pool)
    >>> two = np.array([552, 552])
    >>> equal = RequestLengths(two, two, prefix_id=two, prefix_tokens=two)
    >>> {name: tokens.tolist() for name, tokens in prefix_hits(equal, settings).tokens.items() if tokens.any()}
    {'found': [0, 528], 'never_seen': [552, 0], 'shorter_than_block': [0, 23], 'last_token': [0, 1]}
    """
    lookups: list[Lookup] = []
    schedule = make_schedule(requests, settings, step_time, lookups=lookups)
    tokens = {name: np.zeros(len(requests), dtype=np.int64) for name in (*OF_PROMPT, *OF_PREEMPTED)}
    first: dict[int, Lookup] = {}
    for lookup in lookups:
        if first.setdefault(lookup.request, lookup) is not lookup:
            tokens["found_again"][lookup.request] += lookup.found
            tokens["computed_again"][lookup.request] += lookup.goal - lookup.found
    seen = seen_tokens(requests, list(first))
    unit = settings.tokens_per_block
    for one, lookup in first.items():
        prompt = int(requests.prompt_tokens[one])
        known = min(int(seen[one]), prompt - 1)
        parts = (
            lookup.found,
            prompt - int(seen[one]),
            known % unit,
            int(seen[one]) - known,
            lookup.kept - lookup.found,
            known - known % unit - lookup.kept,
        )
        for name, count in zip(OF_PROMPT, parts, strict=True):
            tokens[name][one] = count
    lost = [(*one.lost, one.step, one.kept - one.found) for one in first.values() if one.lost]
    return PrefixHits(tokens, np.array(lost, dtype=np.int64).reshape(-1, 4), schedule)


def is_explained(requests: RequestLengths, settings: SchedulerSettings) -> bool:
    """Whether a plan says what becomes of prompt tokens: of prompts that share some, of few enough blocks."""
    shares = requests.prefix_id is not None or requests.hashed is not None
    blocks = requests.prompt_tokens.sum() // (settings.pool or settings).block_size
    return settings.enable_prefix_caching and shares and blocks <= MOST_BLOCKS


def seen_tokens(requests: RequestLengths, order: Sequence[int]) -> IntArray:
    """For each request, how many tokens its prompt begins with that the prompt of one before it in `order` begins with.

    >>> from workflow_scripts.workloads.request import HashedBlocks
    >>> prompts = [HashedBlocks((7, 8), 16), HashedBlocks((7, 9), 16), HashedBlocks((7, 8), 16)]
    >>> seen_tokens(RequestLengths(np.array([30, 32, 32]), np.ones(3), hashed=prompts), range(3)).tolist()
    [0, 16, 30]
    """
    seen = np.zeros(len(requests), dtype=np.int64)
    numbers: dict[tuple[int, int], int] = {}  # of a text up to a block, by the text before it and the block's hash
    longest: dict[int, int] = {}  # tokens of a text that prompts had
    for one in order:
        for text, tokens in _texts(requests, one, numbers):
            seen[one] = max(seen[one], min(tokens, longest.get(text, 0)))
            longest[text] = max(tokens, longest.get(text, 0))
    return seen


def _texts(requests: RequestLengths, one: int, numbers: dict[tuple[int, int], int]) -> Iterator[tuple[int, int]]:
    """The texts that a prompt begins with, and its tokens up to the end of each."""
    if requests.hashed is not None:
        before, (ids, size) = 0, requests.hashed[one]
        for place, block in enumerate(ids, 1):
            before = numbers.setdefault((before, block), len(numbers) + 1)
            yield before, min(int(requests.prompt_tokens[one]), place * size)
    elif requests.prefix_id is not None and requests.prefix_tokens is not None:
        yield int(requests.prefix_id[one]), int(requests.prefix_tokens[one])


def curve(
    requests: RequestLengths, settings: SchedulerSettings, step_time: StepTime | None = None
) -> list[tuple[int, int]]:
    """Found tokens by the blocks of the cache, ascending, from the smallest that serves the requests to one in which
    nothing is evicted or waits; and with the number of `settings`. Errors as in `make_schedule`."""

    def found(blocks: int | None) -> Schedule:
        return make_schedule(requests, replace(settings, num_blocks=blocks), step_time)

    endless = found(None)
    most = endless.needs_blocks or 1
    least = int((requests.prompt_tokens + requests.output_tokens).max()) // settings.tokens_per_block + 1
    sizes = {int(size) for size in np.geomspace(min(least, most), most, _SIZES)}
    points = {most: int(endless.cached_tokens.sum())}
    for blocks in sizes | ({settings.num_blocks} if settings.num_blocks else set()):
        with suppress(ScheduleError):  # too few for the longest request
            points[blocks] = points[most] if blocks >= most else int(found(blocks).cached_tokens.sum())
    return sorted(points.items())


def knee(points: Sequence[tuple[int, int]]) -> int:
    """The blocks of the smallest cache that finds nearly all of what the largest finds.

    >>> knee([(10, 0), (20, 96), (40, 100)])
    20
    """
    most = max(found for _, found in points)
    return next(blocks for blocks, found in points if found >= KNEE_SHARE * most)

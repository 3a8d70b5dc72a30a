"""What an engine computes in each step: the requests as input, the settings that decide, and the schedule as result.

A schedule says which work each step does, not how long it takes. `predict.scheduler` makes schedules; docs/schedule.md
says which devices and numbers of KV blocks they serve.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.physics.step_time import FloatArray, IntArray
from workflow_scripts.workloads.request import HashedBlocks, Request

# More blocks than anything takes, if no number is given.
UNLIMITED = 1 << 48


class ScheduleError(ValueError):
    """Requests or settings that have no schedule; the message says why."""


@dataclass(frozen=True)
class RequestLengths:
    """What a scheduler sees of requests, one element each, in order of arrival.

    `prompt_tokens`, `output_tokens`: at least 1 each; exactly that many tokens are generated.
    `arrival_s`: seconds from the start, never decreasing; None if all are there from the start.
    `prefix_id`, `prefix_tokens`: the prompt begins with the first `prefix_tokens` tokens of the text `prefix_id`, so
    two prompts of one text share the smaller of their `prefix_tokens`; id -1 and 0 tokens if it shares nothing; None if
    no prompts do. Generated tokens are never shared.
    `hashed`: instead of texts, the hashed blocks that prompts begin with; None if no prompts have them.
    """

    prompt_tokens: IntArray
    output_tokens: IntArray
    arrival_s: FloatArray | None = None
    prefix_id: IntArray | None = None
    prefix_tokens: IntArray | None = None
    hashed: Sequence[HashedBlocks] | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def __getitem__(self, some: slice) -> "RequestLengths":
        """Some of the requests, such as every second one, which is what one of two engines gets if they take turns."""
        return replace(self, **{name: part[some] for name, part in vars(self).items() if part is not None})

    def shared_blocks(self, block_size: int) -> list[Sequence[int]]:
        """For each request, numbers that identify the contents of its prompt's leading whole blocks, as far as other
        prompts may have them too."""
        if self.hashed is not None:
            return self._hashed_blocks(self.hashed, block_size)
        if self.prefix_id is None or self.prefix_tokens is None:
            return [()] * len(self)
        blocks = self.prefix_tokens // block_size
        texts, text = np.unique(self.prefix_id, return_inverse=True)
        most = np.zeros(len(texts), dtype=np.int64)
        np.maximum.at(most, text, blocks)
        first = (np.cumsum(most) - most)[text]
        return [range(start, end) for start, end in zip(first.tolist(), (first + blocks).tolist(), strict=True)]

    def _hashed_blocks(self, hashed: Sequence[HashedBlocks], block_size: int) -> list[Sequence[int]]:
        chains: dict[tuple[int, int], int] = {}  # a chain of hashes, by the number of the chain before its last one
        numbers: dict[tuple[int, int], int] = {}
        blocks: list[list[int]] = []
        for (ids, tokens), prompt in zip(hashed, self.prompt_tokens.tolist(), strict=True):
            ends = [0]
            for one in ids:
                ends.append(chains.setdefault((ends[-1], one), len(chains) + 1))
            whole = min(prompt, len(ids) * tokens) // block_size
            keys = [(ends[-(-(block + 1) * block_size // tokens)], block) for block in range(whole)]
            blocks.append([numbers.setdefault(key, len(numbers)) for key in keys])
        # What only one prompt has is that request's own, as everything after it is.
        users = Counter(number for of_request in blocks for number in of_request)
        return [[number for number in of_request if users[number] > 1] for of_request in blocks]

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "RequestLengths":
        arrivals = np.array([request.arrival_s for request in requests], dtype=np.float64)
        tokens = np.array([request.prefix_tokens for request in requests], dtype=np.int64)
        ids = [-1 if request.prefix_id is None else request.prefix_id for request in requests]
        return cls(
            np.array([len(request.prompt_token_ids) for request in requests], dtype=np.int64),
            np.array([request.output_tokens for request in requests], dtype=np.int64),
            arrivals if arrivals.any() else None,
            np.array(ids, dtype=np.int64) if tokens.any() else None,
            tokens if tokens.any() else None,
            [request.hashed for request in requests] if any(request.hashed.ids for request in requests) else None,
        )


@dataclass(frozen=True)
class Segments:
    """Runs of equal steps, one element each, in order: all steps of a run do the same, except that the KV grows.

    Tokens are per step. Each decoding sequence computes one token, and attends to one more token in the next step of
    the run. A run of several steps only decodes.

    `steps`: number of steps.
    `decode_seqs`: sequences that compute one token; also the growth of `decode_kv_tokens` from one step to the next.
    `decode_kv_tokens`: tokens that they attend to in the run's first step, including the new ones.
    `prefill_seqs`: sequences that compute a prompt or a part of one (or compute again what a preemption took away).
    `prefill_tokens`: tokens of prompts that are computed, without those found in the prefix cache.
    `prefill_kv_tokens`: tokens held by the sequences of `prefill_seqs` after the step, including cached ones.
    `prefill_attended_tokens`: summed over `prefill_tokens`, how many tokens each attends to, itself included.
    `generation_tokens`: tokens generated: one for each decoding sequence and for each prompt that is completed.
    `running`: sequences in the engine's running queue; with `async_scheduling` some of them compute nothing.
    `waiting`: requests in the engine's waiting queue.
    `blocks_held`: KV blocks that sequences hold in the run's first step.
    `idle_s`: how long the engine waited for a request before the run's first step.
    """

    steps: IntArray
    decode_seqs: IntArray
    decode_kv_tokens: IntArray
    prefill_seqs: IntArray
    prefill_tokens: IntArray
    prefill_kv_tokens: IntArray
    prefill_attended_tokens: IntArray
    generation_tokens: IntArray
    running: IntArray
    waiting: IntArray
    blocks_held: IntArray
    idle_s: FloatArray

    def __len__(self) -> int:
        return len(self.steps)

    def within(self, limit: int | None, chunked: bool) -> "Within":
        """What tokens look at in layers that look back over at most `limit` tokens, or over chunks of `limit` tokens.
        Raises ScheduleError if the schedule is one of a model whose layers look at all tokens."""
        if limit is not None:
            raise ScheduleError("the schedule does not say what layers with a window or chunks look at")
        looked_back = self.decode_kv_tokens - self.decode_seqs + self.prefill_kv_tokens - self.prefill_tokens
        return Within(self.decode_kv_tokens, looked_back, self.prefill_attended_tokens)

    @property
    def first_step(self) -> IntArray:
        return np.cumsum(self.steps) - self.steps


@dataclass(frozen=True)
class Within:
    """Sums over the tokens of a step, one element per segment, of the tokens within reach of a layer.
    `decode_kv_tokens`: that decoding sequences attend to, their new ones included. `looked_back`: earlier ones, which
    are read. `prefill_attended_tokens`: as in `Segments`."""

    decode_kv_tokens: IntArray
    looked_back: IntArray
    prefill_attended_tokens: IntArray


@dataclass(frozen=True)
class LayeredSegments(Segments):
    """Segments of one step each of a model with windows or chunks, by `limit` and `chunked`."""

    near: Mapping[tuple[int, bool], Within]

    def within(self, limit: int | None, chunked: bool) -> Within:
        return super().within(limit, chunked) if limit is None else self.near[limit, chunked]


# Seconds of each step, for segments of one step each.
StepTime = Callable[[Segments], FloatArray]


@dataclass(frozen=True)
class StepRun:
    """A run of equal steps with its requests by index, for detailed checks. `running`: in the engine's order, after the
    step was planned. `scheduled_tokens`: of each request that computes something, in one step. `blocks_held`: in each
    step of the run."""

    steps: int
    running: list[int]
    waiting: list[int]
    scheduled_tokens: dict[int, int]
    preempted: list[int]
    blocks_held: list[int]


@dataclass(frozen=True)
class Schedule:
    """What runs when. Steps are numbered from 0; steps without any work are not counted.

    One element per request:
    `first_step`: the step that computes the first of its tokens.
    `first_token_step`, `last_token_step`: the steps that generate its first and its last token.
    `preemptions`: how often its blocks were taken away; all its tokens except cached ones are then computed again.
    `cached_tokens`: prompt tokens that it found in the prefix cache when it was first scheduled.
    `recomputed_tokens`: tokens that it computed because it had been preempted: all of its own so far that it did not
    find in the prefix cache when it was scheduled again.

    `evicted_blocks`: how often a block of a text that prompts share lost its content to another one; None for pools of
    several kinds of layers, whose blocks are not distinguished.
    `peak_blocks_held`: maximum number of KV blocks that sequences held in any step.
    `needs_blocks`: with at least this many blocks (including the one that the engine reserves) every decision is the
    same; None if it holds only for `settings.num_blocks`, because blocks were short.
    """

    settings: SchedulerSettings
    segments: Segments
    first_step: IntArray
    first_token_step: IntArray
    last_token_step: IntArray
    preemptions: IntArray
    cached_tokens: IntArray
    recomputed_tokens: IntArray
    evicted_blocks: int | None
    peak_blocks_held: int
    needs_blocks: int | None

    def holds_for(self, num_blocks: int) -> bool:
        """Whether an engine with this many blocks makes the same decisions."""
        return num_blocks == self.settings.num_blocks or (
            self.needs_blocks is not None and num_blocks >= self.needs_blocks
        )


Observe = Callable[[StepRun], None]


class ScheduleMaker:
    """What both schedulers know at the start, and note while they make a schedule; arguments as in `make_schedule`."""

    def __init__(
        self, requests: RequestLengths, settings: SchedulerSettings, step_time: StepTime | None, observe: Observe | None
    ) -> None:
        self.requests, count = requests, len(requests)
        self.settings, self.step_time, self.observe = settings, step_time, observe
        self.capacity = UNLIMITED if settings.num_blocks is None else settings.num_blocks - 1
        self.shares = settings.enable_prefix_caching and (requests.prefix_id is not None or requests.hashed is not None)
        self.arrivals: list[float] = [0.0] * count if requests.arrival_s is None else requests.arrival_s.tolist()
        self.now_s = self.free_s = 0.0  # when the step is planned, and when the device has finished the one before
        self.step = self.peak_blocks_held = 0
        self.first_step, self.first_token_step, self.last_token_step = ([-1] * count for _ in range(3))
        self.preemptions, self.cached_tokens, self.recomputed_tokens = ([0] * count for _ in range(3))
        self.columns = {name: array("q") for name in Segments.__dataclass_fields__ if name != "idle_s"}
        self.idle_s = array("d")
        self.begin()

    def begin(self) -> None:
        """Set up the state before the first step."""

    def note_admitted(self, request: int, tokens: int, cached: int) -> None:
        """Note that a request of so many tokens is scheduled, of which the prefix cache has the first `cached`."""
        if self.first_step[request] < 0:
            self.first_step[request] = self.step
            self.cached_tokens[request] = cached
        else:
            self.recomputed_tokens[request] += tokens - cached

    def made(self, segments: Segments, evicted_blocks: int | None, asked: int, filled: int, short: bool) -> Schedule:
        """The schedule of these segments. `asked`, `filled`: most blocks that a request was to have, and that had any
        content. `short`: whether with more blocks the engine might have decided otherwise."""
        # With fewer blocks, other blocks would have been evicted, possibly shared ones.
        needed = max(self.peak_blocks_held, asked, filled if self.shares else 0) + 1
        of_steps = ("first_step", "first_token_step", "last_token_step")
        names = (*of_steps, "preemptions", "cached_tokens", "recomputed_tokens")
        return Schedule(
            self.settings,
            segments,
            **{name: np.array(getattr(self, name), dtype=np.int64) for name in names},
            evicted_blocks=evicted_blocks,
            peak_blocks_held=self.peak_blocks_held,
            needs_blocks=None if short or any(self.preemptions) else needed,
        )

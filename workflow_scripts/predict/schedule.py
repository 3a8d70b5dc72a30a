"""What an engine runs when: the requests that go in, the settings that decide, and the schedule that comes out.

A schedule says which work each step does, not how long it takes. Where all requests are there from the start, nothing
in it depends on time, so one schedule serves every device: lay step times over its segments instead of making it
again. It also serves other numbers of KV blocks, as far as `Schedule.holds_for` says.

`predict.scheduler` makes schedules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workflow_scripts.workloads.request import Request

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class ScheduleError(ValueError):
    """Requests or settings for which there is no schedule; the message says why."""


@dataclass(frozen=True)
class RequestLengths:
    """What a scheduler sees of requests, one element each, in the order in which they arrive.

    `prompt_tokens`, `output_tokens`: at least 1 each; as many tokens are generated, whatever they are.
    `arrival_s`: seconds from the start, not falling; None if all are there from the start.
    `prefix_id`, `prefix_tokens`: the prompt begins with the first `prefix_tokens` tokens of the text `prefix_id`, so
    prompts of one text have the smaller of their `prefix_tokens` in common; id -1 and 0 tokens where it shares nothing;
    None if no prompts do. Tokens that are generated count as nobody else's.
    """

    prompt_tokens: IntArray
    output_tokens: IntArray
    arrival_s: FloatArray | None = None
    prefix_id: IntArray | None = None
    prefix_tokens: IntArray | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def __post_init__(self) -> None:
        given = [self.output_tokens, self.arrival_s, self.prefix_id, self.prefix_tokens]
        if any(array is not None and len(array) != len(self) for array in given):
            raise ScheduleError("all arrays of requests must have the same length")
        if len(self) and min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise ScheduleError("a request needs at least 1 prompt token and 1 output token")
        if self.arrival_s is not None and bool((np.diff(self.arrival_s, prepend=0.0) < 0).any()):
            raise ScheduleError("requests must be given in the order in which they arrive, from 0 s on")
        if (self.prefix_id is None) != (self.prefix_tokens is None):
            raise ScheduleError("prefix_id and prefix_tokens are given together or not at all")
        if self.prefix_tokens is not None and bool((self.prefix_tokens > self.prompt_tokens).any()):
            raise ScheduleError("a prompt cannot share more tokens than it has")

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "RequestLengths":
        """Those of a workload's requests."""
        arrivals = np.array([request.arrival_s for request in requests], dtype=np.float64)
        tokens = np.array([request.prefix_tokens for request in requests], dtype=np.int64)
        ids = [-1 if request.prefix_id is None else request.prefix_id for request in requests]
        return cls(
            np.array([len(request.prompt_token_ids) for request in requests], dtype=np.int64),
            np.array([request.output_tokens for request in requests], dtype=np.int64),
            arrivals if arrivals.any() else None,
            np.array(ids, dtype=np.int64) if tokens.any() else None,
            tokens if tokens.any() else None,
        )


@dataclass(frozen=True)
class SchedulerSettings:
    """What the engine's scheduler goes by, by vLLM's argument names.

    `num_blocks`: KV blocks of the device, of which the engine keeps one back; None for as many as it takes.
    `async_scheduling`: vLLM's default; a step is put together while the one before still runs, so a request that ends
    keeps its place and its blocks for one step more.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    max_model_len: int
    num_blocks: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True


@dataclass(frozen=True)
class Segments:
    """Runs of alike steps, one element each, in order: all steps of a run do the same, but for KV that grows.

    Tokens are those of one step. Each decoding sequence computes one token, and attends to one token more in the next
    step of the run. A run of several steps only decodes.

    `steps`: number of steps.
    `decode_seqs`: sequences that compute one token; also the growth of `decode_kv_tokens` from a step to the next.
    `decode_kv_tokens`: tokens that they attend to in the run's first step, the new ones included.
    `prefill_seqs`: sequences that compute a prompt or a part of one (or compute again what a preemption took away).
    `prefill_tokens`: tokens of prompts that are computed; those found in the prefix cache are not.
    `prefill_kv_tokens`: tokens held by the sequences of `prefill_seqs` after the step, from the prefix cache too.
    `prefill_attended_tokens`: summed over `prefill_tokens`, how many tokens each attends to, itself included.
    `sampled_tokens`: tokens generated: one for each decoding sequence and for each prompt that gets complete.
    `running_seqs`: sequences in the engine's running queue; more than compute something, with `async_scheduling`.
    `waiting_seqs`: requests in its waiting queue.
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
    sampled_tokens: IntArray
    running_seqs: IntArray
    waiting_seqs: IntArray
    blocks_held: IntArray
    idle_s: FloatArray

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def first_step(self) -> IntArray:
        """Number of each run's first step, from 0."""
        return np.cumsum(self.steps) - self.steps


# Seconds of each step, for segments of one step each.
StepTime = Callable[[Segments], FloatArray]


@dataclass(frozen=True)
class Schedule:
    """What runs when. Steps are numbered from 0; steps without any work are not counted.

    One element for each request:
    `first_step`: the step in which the first of its tokens are computed.
    `first_token_step`, `last_token_step`: the steps that generate its first and its last token.
    `preemptions`: how often its blocks were taken away; all its tokens but the cached ones are then computed again.
    `cached_tokens`: prompt tokens that it found in the prefix cache when it was first scheduled.

    `peak_blocks_held`: most KV blocks that sequences held in any step.
    `needs_blocks`: with this many blocks (the one that the engine keeps back included) or more, every decision is the
    same; None where it holds for `settings.num_blocks` alone, because blocks were short.
    """

    settings: SchedulerSettings
    segments: Segments
    first_step: IntArray
    first_token_step: IntArray
    last_token_step: IntArray
    preemptions: IntArray
    cached_tokens: IntArray
    peak_blocks_held: int
    needs_blocks: int | None

    def holds_for(self, num_blocks: int) -> bool:
        """Whether an engine with this many blocks decides the same."""
        return num_blocks == self.settings.num_blocks or (
            self.needs_blocks is not None and num_blocks >= self.needs_blocks
        )

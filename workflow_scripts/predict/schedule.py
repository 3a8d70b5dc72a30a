"""What an engine computes in each step: the requests as input, the settings that decide, and the schedule as result.

A schedule says which work each step does, not how long it takes. `predict.scheduler` makes schedules; docs/schedule.md
says which devices and numbers of KV blocks they serve.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise

import numpy as np

from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.physics.step_time import FloatArray, IntArray
from workflow_scripts.workloads.request import HashedBlocks, Request


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
    _runs: dict[int, list[list[range]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def __getitem__(self, some: slice) -> "RequestLengths":
        """Some of the requests, such as every second one, which is what one of two engines gets if they take turns."""
        parts = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        return replace(self, **{name: part[some] for name, part in parts.items() if part is not None})

    def shared_runs(self, block_size: int) -> list[list[range]]:
        """For each request, numbers that identify the contents of its prompt's leading whole blocks, as far as other
        prompts may have them too. Of a run of numbers each prompt has, and may find in a cache, all or nothing."""
        if block_size not in self._runs:
            runs: list[list[range]] = [[]] * len(self)
            if self.hashed is not None:
                runs = self._hashed_runs(self.hashed, block_size)
            elif self.prefix_id is not None and self.prefix_tokens is not None:
                runs = self._text_runs(self.prefix_id.tolist(), self.prefix_tokens // block_size, block_size)
            self._runs[block_size] = runs
        return self._runs[block_size]

    def _text_runs(self, texts: list[int], blocks: IntArray, block_size: int) -> list[list[range]]:
        ends: dict[int, set[int]] = {}
        usable = np.minimum(blocks, (self.prompt_tokens - 1) // block_size)
        for text, *some in zip(texts, blocks.tolist(), usable.tolist(), strict=True):
            ends.setdefault(text, {0}).update(some)
        stops = {text: sorted(some) for text, some in ends.items()}
        first = dict(zip(stops, accumulate((some[-1] for some in stops.values()), initial=0), strict=False))
        return [
            [range(first[text] + a, first[text] + b) for a, b in pairwise(stops[text]) if b <= last]
            for text, last in zip(texts, blocks.tolist(), strict=True)
        ]

    def _hashed_runs(self, hashed: Sequence[HashedBlocks], block_size: int) -> list[list[range]]:
        chains: dict[tuple[int, int], int] = {}  # a chain of hashes, by the number of the chain before its last one
        # Of the prompts with a chain: how many blocks they have, and how many of these they may find, ascending.
        ends: dict[int, tuple[list[int], list[int]]] = {}
        paths: list[list[tuple[int, int]]] = []
        for (ids, tokens), prompt in zip(hashed, self.prompt_tokens.tolist(), strict=True):
            whole, usable, chain = min(prompt, len(ids) * tokens) // block_size, (prompt - 1) // block_size, 0
            path: list[tuple[int, int]] = []
            for place, one in enumerate(ids[: -(-whole * block_size // tokens)], 1):
                chain = chains.setdefault((chain, one), len(chains) + 1)
                path.append((chain, min(whole, place * tokens // block_size)))
                for some, end in zip(ends.setdefault(chain, ([], [])), (whole, usable), strict=True):
                    some.append(end)
            paths.append(path)
        for pair in ends.values():
            for some in pair:
                some.sort()
        starts: dict[tuple[int, int], int] = {}
        numbers = 0
        runs: list[list[range]] = []
        for path in paths:
            before, block = [0, 0], 0
            parts: list[tuple[int, int]] = []
            for chain, last in path:
                # What only one prompt has is that request's own, as everything after it is.
                if len(ends[chain][0]) < 2:
                    break
                inner = {
                    end for some in ends[chain] for end in some[bisect_right(some, block) : bisect_left(some, last)]
                }
                for stop in sorted({last} | inner):
                    left = [len(some) - bisect_right(some, block) for some in ends[chain]]
                    if stop == block or left[0] < 2:
                        break
                    if left != before:
                        parts.append((chain, block))
                    before, block = left, stop
            edges = [*(start for _, start in parts), block]
            of_request: list[range] = []
            for key, (start, stop) in zip(parts, pairwise(edges), strict=True):
                if (first := starts.setdefault(key, numbers)) == numbers:
                    numbers += stop - start
                of_request.append(range(first, first + stop - start))
            runs.append(of_request)
        return runs

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
    `near`: of a model with windows, what tokens look at there, by the size of the window.
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
    near: Mapping[int, "Within"] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps)

    def within(self, limit: int | None) -> "Within":
        """What tokens look at in layers that look back over at most `limit` tokens. Raises ScheduleError if the
        schedule is one of a model without such layers."""
        if limit is not None:
            if limit not in self.near:
                raise ScheduleError("the schedule does not say what layers with a window look at")
            return self.near[limit]
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


# What a step does, in counts.
SUMS = tuple(name for name in Segments.__dataclass_fields__ if name not in ("steps", "idle_s", "near"))
# Seconds of each step, for segments of one step each.
StepTime = Callable[[Segments], FloatArray]


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
    `not_found`: prompt tokens that were not in the prefix cache by what became of them (`predict.prefix_hits`), summed
    over requests; empty if this was not asked for.
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
    not_found: Mapping[str, int] = field(default_factory=dict)

    def holds_for(self, num_blocks: int) -> bool:
        """Whether an engine with this many blocks makes the same decisions."""
        return num_blocks == self.settings.num_blocks or (
            self.needs_blocks is not None and num_blocks >= self.needs_blocks
        )

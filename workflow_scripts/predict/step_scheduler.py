"""The schedule of a model whose layers are of several kinds, made step by step.

The rules are those of `predict.scheduler`. But blocks are given back behind a window, states end chunks of prompts at
the ends of blocks, and what the prefix cache finds depends on every group of layers. So each step visits each running
request, as vLLM does: the cost grows with the tokens.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workflow_scripts.physics.formulas import attended_tokens
from workflow_scripts.physics.step_time import IntArray
from workflow_scripts.predict.layered_pool import LayeredPool, leaves_a_state
from workflow_scripts.predict.pool_blocks import LiveRequest
from workflow_scripts.predict.schedule import LayeredSegments, Schedule, ScheduleError, ScheduleMaker, StepRun, Within

# A request that lost its blocks this often while no other was running, and without a new token, never ends. What
# remains in the prefix cache may help it after a few times.
_HOPELESS = 100


@dataclass(frozen=True)
class _Batch:
    """The work of one step: computed tokens of each request, and whether it makes a token of the answer."""

    step: int
    work: list[tuple[LiveRequest, int, bool]]
    end_s: float


class StepScheduler(ScheduleMaker):
    """The engine's state between steps."""

    def begin(self) -> None:
        requests, settings = self.requests, self.settings
        assert settings.pool is not None
        self.block_size = settings.pool.block_size
        caching, most = settings.enable_prefix_caching, settings.max_model_len
        self.kv = LayeredPool(settings.pool, self.capacity, most, caching=caching)
        lengths = (requests.prompt_tokens.tolist(), requests.output_tokens.tolist())
        shared = requests.shared_blocks(self.block_size)
        self.coming = deque(
            LiveRequest(index, *values) for index, values in enumerate(zip(*lengths, shared, strict=True))
        )
        self.waiting: deque[LiveRequest] = deque()
        self.running: list[LiveRequest] = []
        self.someone_ended = False  # the engine reports this in a step, even if it has no work
        reaches = [(group.reach, group.chunked) for group in settings.pool.groups if group.reach]
        self.near = {reach: tuple(array("q") for _ in range(3)) for reach in dict.fromkeys(reaches)}

    def run(self) -> Schedule:
        depth = 2 if self.settings.async_scheduling else 1
        batches: deque[_Batch] = deque()
        while True:
            while self.coming and self.arrivals[self.coming[0].index] <= self.now_s:
                self.waiting.append(self.coming.popleft())
            if self.waiting or self.running or self.someone_ended:
                self.someone_ended = False
                batch = self._plan()
                if not batch.work and not batches and self.waiting and not self.running:
                    raise ScheduleError(_too_few(self.waiting[0], self.kv))  # nothing will change
                batches.appendleft(batch)
                if len(batches) < depth:
                    continue
            elif not batches:
                if not self.coming:
                    return self._schedule()
                self.now_s = self.arrivals[self.coming[0].index]
                continue
            batch = batches.pop()
            self.now_s = max(self.now_s, batch.end_s)
            for work in batch.work:
                self._computed(batch.step, *work)

    def _plan(self) -> _Batch:
        self.kv.blocks.new.clear()
        decoding = {request.index for request in self.running if not request.is_prefill}
        scheduled, preempted = self._schedule_running()
        if not preempted:
            scheduled = scheduled | self._admit(self.settings.max_num_batched_tokens - sum(scheduled.values()))
        self.peak_blocks_held = max(self.peak_blocks_held, self.kv.blocks.held)
        work = []
        for request, tokens in scheduled.items():
            request.computed += tokens
            request.in_flight += tokens
            request.is_prefill = request.computed < request.tokens + request.awaited
            if self.settings.async_scheduling and not request.is_prefill:
                request.awaited += 1
            work.append((request, tokens, not request.is_prefill))
        if not work:
            return _Batch(self.step, [], self.now_s)
        batch = _Batch(self.step, work, self._record(work, decoding, preempted))
        self.step = self.kv.blocks.step = self.step + 1
        return batch

    def _schedule_running(self) -> tuple[dict[LiveRequest, int], list[LiveRequest]]:
        """Give running requests their blocks; return the tokens of each in this step, and who lost its blocks."""
        scheduled: dict[LiveRequest, int] = {}
        preempted: list[LiveRequest] = []
        budget, turn = self.settings.max_num_batched_tokens, 0
        while turn < len(self.running) and budget:
            request = self.running[turn]
            turn += 1
            if request.awaited and request.computed + 2 - request.awaited >= request.last:
                continue  # its last token is being made
            tokens = min(request.tokens + request.awaited - request.computed, budget)
            tokens = self._aligned(request, request.computed, tokens)
            if not tokens:
                continue
            while not self.kv.allocate(request, tokens):
                victim = self.running.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    return scheduled, preempted
            scheduled[request] = tokens
            budget -= tokens
        return scheduled, preempted

    def _admit(self, budget: int) -> dict[LiveRequest, int]:
        """Admit waiting requests, first come, first served; return the tokens of each in this step."""
        admitted: dict[LiveRequest, int] = {}
        while budget and self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            hits, start = self.kv.find(request)
            tokens = request.tokens - start
            if tokens > budget and not self.settings.enable_chunked_prefill:
                break
            tokens = self._aligned(request, start, min(tokens, budget))
            if not tokens or not self.kv.allocate(request, tokens, hits, start):
                break
            self.running.append(self.waiting.popleft())
            request.runs = True
            self.note_admitted(request.index, request.tokens, start)
            request.computed = start
            admitted[request] = tokens
            budget -= tokens
        return admitted

    def _aligned(self, request: LiveRequest, start: int, tokens: int) -> int:
        """Tokens of a chunk, cut where a state is to be kept (`_mamba_block_aligned_split` in vLLM's scheduler)."""
        prefill_end = max(request.prompt, request.tokens - 1)
        if not self.kv.keeps_states or start >= prefill_end:
            return tokens
        size, end = self.block_size, start + tokens
        # Where a chunk leaves its state behind, it need not stop.
        leaves = self.kv.leaves_states and end >= prefill_end and leaves_a_state(start, prefill_end, size)
        if end < prefill_end and (end // size * size > start or size <= self.settings.max_num_batched_tokens):
            end = end // size * size
        stops = [0 if leaves else (request.tokens - 1) // size * size]
        if start % size and not leaves:
            stops.append((start // size + 1) * size)
        if start < request.junction < end:
            stops.append(start + (request.junction - start) // size * size)
        return max(0, min((stop for stop in stops if start < stop < end), default=end) - start)

    def _preempt(self, request: LiveRequest) -> None:
        self.kv.free(request, "preempted")
        if not self.running:
            request.lost = request.lost + 1 if request.lost_at == request.tokens else 0
            request.lost_at = request.tokens
            if request.lost > _HOPELESS:
                raise ScheduleError(_too_few(request, self.kv))
        request.runs = False
        request.computed = request.awaited = 0
        request.stale = request.in_flight
        self.preemptions[request.index] += 1
        self.waiting.appendleft(request)

    def _computed(self, step: int, request: LiveRequest, tokens: int, makes_token: bool) -> None:
        request.in_flight -= tokens
        is_stale = request.stale > 0
        request.stale -= tokens if is_stale else 0
        if not makes_token:
            return
        if request.tokens == request.prompt:
            self.first_token_step[request.index] = step
        request.tokens += 1
        if self.settings.async_scheduling:
            request.awaited -= 0 if is_stale else 1
            if request.runs:
                self.kv.keep(request, request.computed - request.awaited)
        if request.tokens == request.last:
            self.last_token_step[request.index] = step
            self.someone_ended = True
            (self.running if request.runs else self.waiting).remove(request)
            self.kv.free(request)

    def _record(
        self, work: list[tuple[LiveRequest, int, bool]], decoding: set[int], preempted: list[LiveRequest]
    ) -> float:
        """Note what a step does; return when it ends."""
        row = dict.fromkeys(self.columns, 0)
        row |= {"steps": 1, "running": len(self.running), "waiting": len(self.waiting)}
        row["blocks_held"] = self.kv.blocks.held
        for request, tokens, makes_token in work:
            end = request.computed
            if request.index in decoding:
                row["decode_seqs"] += 1
                row["decode_kv_tokens"] += end
            else:
                row["prefill_seqs"] += 1
                row["prefill_tokens"] += tokens
                row["prefill_kv_tokens"] += end
                row["prefill_attended_tokens"] += (2 * end - tokens + 1) * tokens // 2
            row["generation_tokens"] += makes_token
        self._note_near(work, decoding)
        for name, value in row.items():
            self.columns[name].append(value)
        if self.observe is not None:
            running, waiting, lost = ([r.index for r in group] for group in (self.running, self.waiting, preempted))
            scheduled = {request.index: tokens for request, tokens, _ in work}
            self.observe(StepRun(1, running, waiting, scheduled, lost, [self.kv.blocks.held]))
        if self.step_time is None:
            self.idle_s.append(0.0)
            return self.now_s
        start_s = max(self.free_s, self.now_s)
        self.idle_s.append(start_s - self.free_s)
        self.free_s = start_s + float(self.step_time(self._segments(last=1))[0])
        return self.free_s

    def _note_near(self, work: list[tuple[LiveRequest, int, bool]], decoding: set[int]) -> None:
        for (limit, chunked), columns in self.near.items():
            attended = read = pairs = 0
            for request, tokens, _ in work:
                end, start = request.computed, request.computed - tokens
                if request.index in decoding:
                    kept = start % limit + 1 if chunked else min(end, limit)
                    attended, read = attended + kept, read + kept - 1
                else:
                    read += start % limit if chunked else min(start, limit - 1)
                    pairs += int(attended_tokens(end, limit, chunked) - attended_tokens(start, limit, chunked))
            for column, value in zip(columns, (attended, read, pairs), strict=True):
                column.append(value)

    def _segments(self, last: int) -> LayeredSegments:
        def end(column: Sequence[int]) -> IntArray:
            return np.array(column[-last:], dtype=np.int64)

        return LayeredSegments(
            **{name: end(column) for name, column in self.columns.items()},
            idle_s=np.array(self.idle_s[-last:]),
            near={reach: Within(*map(end, columns)) for reach, columns in self.near.items()},
        )

    def _schedule(self) -> Schedule:
        segments, blocks = self._segments(last=self.step), self.kv.blocks
        short = self.kv.short or (self.shares and blocks.evicted)
        return self.made(segments, None, self.kv.most_asked, blocks.most_filled, short)


def _too_few(request: LiveRequest, kv: LayeredPool) -> str:
    return (
        f"a request of {request.last} tokens takes more blocks than the {kv.blocks.capacity} of {kv.block_size} tokens "
        "that the engine gives out"
    )

"""The schedule of an engine, made without the engine: what vLLM's scheduler and its KV-cache manager decide.

Between two events (a request is admitted, ends, arrives or loses its blocks) all steps are equal: each running request
computes one token. So the cost grows with the requests, not with their tokens: decoding sequences are a group,
and blocks are counted (`kv_blocks`). docs/schedule.md has the rules, which are those of vLLM 0.32
(vllm/v1/core/sched/scheduler.py, `schedule`), and says what is left out.
"""

import heapq
from collections import deque
from typing import NamedTuple

import numpy as np

from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.predict.kv_blocks import BlockPool, DecodeGroup
from workflow_scripts.predict.schedule import (
    Observe,
    RequestLengths,
    Schedule,
    ScheduleError,
    ScheduleMaker,
    Segments,
    StepRun,
    StepTime,
)
from workflow_scripts.predict.step_scheduler import StepScheduler


def make_schedule(
    requests: RequestLengths,
    settings: SchedulerSettings,
    step_time: StepTime | None = None,
    observe: Observe | None = None,
) -> Schedule:
    """What runs when, until all requests have ended. Raises ScheduleError as `check_requests` does. `requests` are in
    order of arrival. `step_time` is needed if they arrive over time, because what waits at a step depends on how long
    steps take. `observe` is called with each run of steps, in order."""
    check_requests(requests, settings, step_time)
    if settings.pool is not None and not settings.pool.keeps_all:
        return StepScheduler(requests, settings, step_time, observe).run()
    return _Scheduler(requests, settings, step_time, observe).run()


def check_requests(requests: RequestLengths, settings: SchedulerSettings, step_time: StepTime | None) -> None:
    """Raise ScheduleError if a request can never run with these settings, or there are arrivals but no step times."""
    if requests.arrival_s is not None and step_time is None:
        raise ScheduleError("requests that arrive over time need step_time: it decides what has arrived at a step")
    if not len(requests):
        return
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    if longest > settings.max_model_len:
        raise ScheduleError(f"a request of {longest} tokens does not fit max_model_len {settings.max_model_len}")
    tokens, most = settings.max_num_batched_tokens, settings.max_model_len
    if not settings.enable_chunked_prefill and tokens < most:
        least = f"must be at least max_model_len {most}"
        raise ScheduleError(f"without chunked prefill max_num_batched_tokens {tokens} {least}")
    # The last generated token is never computed.
    needed = -(-(longest - 1) // settings.block_size) + 1
    if settings.pool is None and settings.num_blocks is not None and settings.num_blocks < needed:
        raise ScheduleError(
            f"a request of {longest} tokens takes {needed} blocks of {settings.block_size} tokens, the engine's own "
            f"included; there are {settings.num_blocks}"
        )


class _Chunk(NamedTuple):
    """A prompt, or what a request computes again, from token `start` to before token `end`."""

    request: int
    start: int
    end: int


class _Scheduler(ScheduleMaker):
    """The engine's state before step `self.step`."""

    def begin(self) -> None:
        requests, settings, count = self.requests, self.settings, len(self.requests)
        self.block_size = settings.block_size
        self.prompt_tokens: list[int] = requests.prompt_tokens.tolist()
        self.output_tokens: list[int] = requests.output_tokens.tolist()
        self.pool = BlockPool(
            self.capacity,
            settings.block_size,
            settings.enable_prefix_caching,
            requests.shared_blocks(settings.block_size) if self.shares else [()] * count,
        )
        self.arrived = 0
        self.waiting: deque[int] = deque()
        # In the order of admission; a dict, because requests leave from anywhere.
        self.running: dict[int, None] = {}
        # The running request whose prompt is only partly computed. It is the last: it got what was left of the budget.
        self.partial: int | None = None
        self.partial_tokens = 0
        # They generated their last token in the previous step, and keep their places for one more step.
        self.ending: list[int] = []

        self.decoding = DecodeGroup(settings.block_size)
        self.birth = [0] * count  # in that group
        self.prefilled = [0] * count  # tokens after its latest prefill
        self.generated = [0] * count  # tokens before its latest prefill
        self.ends_at: dict[int, list[int]] = {}
        self.next_ends: list[int] = []  # heap of the keys of `ends_at`
        self.peak_blocks_asked = 0
        self.short_of_blocks = False

    def run(self) -> Schedule:
        while True:
            while self.arrived < len(self.arrivals) and self.arrivals[self.arrived] <= self.now_s:
                self.waiting.append(self.arrived)
                self.arrived += 1
            if not self.waiting and not self.running:
                if self.arrived == len(self.arrivals):
                    return self._schedule()
                self.now_s = self.arrivals[self.arrived]
                continue
            chunks, preempted = self._schedule_running()
            if not preempted:
                self._admit(chunks)
            if self.decoding.size or chunks:
                self._pass(chunks, preempted)
            else:
                # Nothing to compute until the ending requests have left.
                self._release()
                self.now_s = self.free_s

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _schedule_running(self) -> tuple[list[_Chunk], list[int]]:
        """Give every running request its tokens and blocks; return this step's chunk and who lost its blocks."""
        chunks, chunk_blocks = [], 0
        if (request := self.partial) is not None:
            start, budget = self.partial_tokens, self.settings.max_num_batched_tokens - self.decoding.size
            end = min(self.prompt_tokens[request] + self.generated[request], start + budget)
            chunks.append(_Chunk(request, start, end))
            chunk_blocks = self._blocks(end) - self._blocks(start)
        blocks = self.decoding.blocks(self.step, 1) + chunk_blocks
        if blocks > self.pool.free:  # the last running request, that of the chunk, loses its blocks first
            return [], self._schedule_one_by_one(chunk_blocks)
        self.pool.take(blocks)
        for chunk in chunks:
            self.pool.fill(chunk.request, chunk.end)
        return chunks, []

    def _schedule_one_by_one(self, chunk_blocks: int) -> list[int]:
        """Give every running request its blocks in turn, taking them from the last ones if needed; return those."""
        order = list(self.running)
        preempted = []
        turn = 0
        while turn < len(order):
            request = order[turn]
            if request == self.partial:
                blocks = chunk_blocks
            else:
                blocks = int((self.step - self.birth[request]) % self.block_size == 0 and request not in self.ending)
            while blocks > self.pool.free:
                victim = order.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim == request:
                    return preempted
            self.pool.take(blocks)
            turn += 1
        return preempted

    def _preempt(self, request: int) -> None:
        if request == self.partial:
            self.partial = None
            computed = content_end = self.partial_tokens
        else:
            computed = self.step - self.birth[request]
            # The token of the step that is still running is not known yet.
            content_end = max(self.prefilled[request], computed - 1) if self.settings.async_scheduling else computed
            if request not in self.ending:
                last = self.last_token_step[request]
                self.ends_at[last].remove(request)
                self.generated[request] = self.output_tokens[request] - (last - self.step + 1)
                self.decoding.leave(self.birth[request])
        del self.running[request]
        self.waiting.appendleft(request)
        self.preemptions[request] += 1
        self.pool.release(request, self._blocks(computed), content_end // self.block_size)

    def _admit(self, chunks: list[_Chunk]) -> None:
        """Admit waiting requests, first come, first served; what they compute is added to `chunks`."""
        budget = self.settings.max_num_batched_tokens - self.decoding.size
        budget -= sum(chunk.end - chunk.start for chunk in chunks)
        while budget and self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            tokens = self.prompt_tokens[request] + self.generated[request]
            shared, own = self.pool.lookup(request, (tokens - 1) // self.block_size)
            cached = len(shared) + own
            start = cached * self.block_size
            if tokens - start > budget and not self.settings.enable_chunked_prefill:
                return
            # Cached blocks without users also count as free.
            asked = self._blocks(tokens) - cached + own + sum(not block.users for block in shared)
            if asked > self.pool.free:
                self.short_of_blocks = True
                return
            self.peak_blocks_asked = max(self.peak_blocks_asked, self.pool.held + asked)

            end = min(tokens, start + budget)
            self.running[self.waiting.popleft()] = None
            self.pool.adopt(request, shared, own)
            self.pool.take(self._blocks(end) - cached)
            self.pool.fill(request, end)
            self.note_admitted(request, tokens, start)
            chunks.append(_Chunk(request, start, end))
            budget -= end - start

    def _pass(self, chunks: list[_Chunk], preempted: list[int]) -> None:
        complete = sum(c.end == self.prompt_tokens[c.request] + self.generated[c.request] for c in chunks)
        tokens, ends = sum(chunk.end - chunk.start for chunk in chunks), sum(chunk.end for chunk in chunks)
        pairs = sum(chunk.end * (chunk.end + 1) - chunk.start * (chunk.start + 1) for chunk in chunks) // 2
        # The same in all steps of a run, except that `decode_kv_tokens` grows.
        row = {
            "decode_seqs": self.decoding.size,
            "decode_kv_tokens": self.decoding.kv_tokens(self.step),
            "prefill_seqs": len(chunks),
            "prefill_tokens": tokens,
            "prefill_kv_tokens": ends,
            "prefill_attended_tokens": pairs,
            "generation_tokens": self.decoding.size + complete,
            "running": len(self.running),
            "waiting": len(self.waiting),
            "blocks_held": self.pool.held,
        }
        # Steps, including this one, in which all decoding requests go on and find blocks; this one has its blocks.
        steps = 1 if chunks or preempted or self.ending else self.next_ends[0] - self.step + 1
        if self.decoding.blocks(self.step + 1, steps - 1) > self.pool.free:
            steps = 1 + self.decoding.steps_with(self.pool.free, self.step + 1)
        idle_s = 0.0
        if self.arrived < len(self.arrivals):
            steps, idle_s = self._pass_time(row, steps)
        elif self.now_s > self.free_s:  # for the last request; from here on nothing depends on time
            idle_s, self.free_s = self.now_s - self.free_s, self.now_s
        if self.observe is not None:
            self.observe(self._look(row, steps, chunks, preempted))
        for name, value in row.items():
            self.columns[name].append(value)
        self.columns["steps"].append(steps)
        self.idle_s.append(idle_s)
        self.pool.take(self.decoding.blocks(self.step + 1, steps - 1))
        self.peak_blocks_held = max(self.peak_blocks_held, self.pool.held)

        self.step += steps
        for chunk in chunks:
            self._computed(chunk)
        self._release()
        if self.next_ends and self.next_ends[0] < self.step:
            self.ending = self.ends_at.pop(heapq.heappop(self.next_ends))  # in the order of admission
            for request in self.ending:
                self.decoding.leave(self.birth[request])
        if not self.settings.async_scheduling:
            self._release()

    def _pass_time(self, row: dict[str, int], steps: int) -> tuple[int, float]:
        """Advance the clock; return the steps before the next request arrives, and how long the device was idle."""
        assert self.step_time is not None
        start_s = max(self.free_s, self.now_s)
        idle_s = start_s - self.free_s
        columns = {name: np.full(steps, value, dtype=np.int64) for name, value in row.items()}
        columns["decode_kv_tokens"] += row["decode_seqs"] * np.arange(steps)
        one_by_one = Segments(steps=np.ones(steps, dtype=np.int64), **columns, idle_s=np.zeros(steps))
        ends_s = start_s + np.cumsum(self.step_time(one_by_one))
        # A step is planned when the previous one starts; without `async_scheduling`, when that ends.
        put_together_s = np.concatenate(([start_s], ends_s[:-1])) if self.settings.async_scheduling else ends_s
        steps = 1 + int(np.searchsorted(put_together_s[: steps - 1], self.arrivals[self.arrived]))
        self.now_s, self.free_s = float(put_together_s[steps - 1]), float(ends_s[steps - 1])
        return steps, idle_s

    def _look(self, row: dict[str, int], steps: int, chunks: list[_Chunk], preempted: list[int]) -> StepRun:
        in_chunks = {chunk.request: chunk.end - chunk.start for chunk in chunks}
        decoding = [r for r in self.running if r not in in_chunks and r not in self.ending]
        return StepRun(
            steps,
            list(self.running),
            list(self.waiting),
            dict.fromkeys(decoding, 1) | in_chunks,
            preempted,
            [row["blocks_held"] + self.decoding.blocks(self.step + 1, further) for further in range(steps)],
        )

    def _computed(self, chunk: _Chunk) -> None:
        """A chunk was computed in the step that just passed; if its request is complete, it decodes from now on."""
        request = chunk.request
        tokens = self.prompt_tokens[request] + self.generated[request]
        if chunk.end < tokens:
            self.partial, self.partial_tokens = request, chunk.end
            return
        if request == self.partial:
            self.partial = None
        if not self.generated[request]:
            self.first_token_step[request] = self.step - 1
        last = self.step - 2 + self.output_tokens[request] - self.generated[request]
        self.last_token_step[request] = last
        if last not in self.ends_at:
            self.ends_at[last] = []
            heapq.heappush(self.next_ends, last)
        self.ends_at[last].append(request)
        self.prefilled[request] = tokens
        self.birth[request] = self.step - tokens
        self.decoding.join(self.birth[request])

    def _release(self) -> None:
        for request in self.ending:
            if request in self.running:
                del self.running[request]
                computed = self.prompt_tokens[request] + self.output_tokens[request] - 1
                self.pool.release(request, self._blocks(computed), computed // self.block_size)
            else:  # preempted in the step in which it would have left
                self.waiting.remove(request)
        self.ending = []

    def _schedule(self) -> Schedule:
        columns = {name: np.frombuffer(column, np.int64) for name, column in self.columns.items()}
        segments, evicted = Segments(**columns, idle_s=np.frombuffer(self.idle_s)), self.pool.evicted_shared
        short = self.short_of_blocks or evicted > 0
        return self.made(segments, evicted, self.peak_blocks_asked, self.pool.most_filled, short)

"""The schedule of an engine, made without the engine: what vLLM's scheduler and its KV-cache manager decide.

Between two events (a request is admitted, ends, arrives or loses its blocks) all steps are equal: each running request
computes one token. Where all layers keep all tokens, decoding requests are a group that passes all these steps at once,
so the cost grows with the requests, not with their tokens. Layers of several kinds need a visit of each running request
in each step. docs/schedule.md has the rules, which are those of vLLM 0.32
(vllm/v1/core/sched/scheduler.py, `schedule`), and says what is left out.
"""

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from workflow_scripts.engines.capacity import KvGroup, KvPool
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.physics.formulas import attended_tokens
from workflow_scripts.physics.step_time import IntArray
from workflow_scripts.predict.kv_pool import BlockPool, LiveRequest, Lookup, leaves_a_state
from workflow_scripts.predict.schedule import SUMS, RequestLengths, Schedule, ScheduleError, Segments, StepTime, Within

# More blocks than anything takes, if no number is given.
UNLIMITED = 1 << 48
# A request that lost its blocks this often while no other was running, and without a new token, never ends. What
# remains in the prefix cache may help it after a few times.
_HOPELESS = 100
_NAMES = ("steps", *SUMS)


def make_schedule(
    requests: RequestLengths,
    settings: SchedulerSettings,
    step_time: StepTime | None = None,
    lookups: list[Lookup] | None = None,
    kind: "Callable[..., Scheduler] | None" = None,
) -> Schedule:
    """What runs when, until all requests have ended. `requests` are in order of arrival. `step_time` is needed if they
    arrive over time, because what waits at a step depends on how long steps take. `lookups` collects what each admitted
    request finds in the prefix cache. `kind`: another class of scheduler. With drafts each sequence gets the mean of
    tokens in each step. Raises ScheduleError if a request can never run with these settings, there are arrivals
    but no step times, or drafts and too few blocks for all."""
    _check(requests, settings, step_time)
    if settings.tokens_per_step == 1:
        return (kind or Scheduler)(requests, settings, step_time, lookups).run()
    needed = _blocks_of_all(requests, settings)
    further = np.ceil((requests.output_tokens - 1) / settings.tokens_per_step).astype(np.int64)
    fewer, plain = replace(requests, output_tokens=1 + further), replace(settings, tokens_per_step=1.0)
    schedule = make_schedule(fewer, plain, step_time, lookups, kind)
    return replace(schedule, settings=settings, needs_blocks=needed)


def _blocks_of_all(requests: RequestLengths, settings: SchedulerSettings) -> int:
    """Blocks that hold the longest requests that may run at once. Raises ScheduleError if there are fewer."""
    tokens = np.sort(requests.prompt_tokens + requests.output_tokens)[-settings.max_num_seqs :]
    needed = int((-(-tokens // settings.block_size) + 1).sum()) + 1
    if settings.num_blocks is not None and settings.num_blocks < needed:
        which = f"{len(tokens)} requests at once may take {needed} KV blocks, and there are {settings.num_blocks}"
        raise ScheduleError(f"speculative decoding where sequences wait for KV blocks is not modelled: {which}")
    return needed


def _check(requests: RequestLengths, settings: SchedulerSettings, step_time: StepTime | None) -> None:
    if requests.arrival_s is not None and step_time is None:
        raise ScheduleError("requests that arrive over time need step_time: it decides what has arrived at a step")
    if not len(requests):
        return
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    if longest > settings.max_model_len:
        raise ScheduleError(f"a request of {longest} tokens does not fit max_model_len {settings.max_model_len}")
    # The last generated token is never computed.
    needed = -(-(longest - 1) // settings.block_size) + 1
    if settings.pool is None and settings.num_blocks is not None and settings.num_blocks < needed:
        raise ScheduleError(
            f"a request of {longest} tokens takes {needed} blocks of {settings.block_size} tokens, the engine's own "
            f"included; there are {settings.num_blocks}"
        )


class DecodeGroup:
    """What a group of decoding requests does in any step, without visiting each of them.

    A request is represented by its birth: the step before which it would have computed nothing, had it always been
    decoding. Before step t it has computed t - birth tokens, and it takes a block in step t if that is a multiple of
    the block size. So the group only needs the sum of births and, for each remainder, their number.

    >>> group = DecodeGroup(block_size=4)
    >>> for computed, last in ((4, 8), (6, 11)):
    ...     request = LiveRequest(0, 1, last, (), (), 1, computed)
    ...     _ = group.join(request, step=0)
    >>> group.kv_tokens(step=0), [group.blocks(step, 1) for step in range(6)]
    (12, [1, 0, 1, 0, 1, 0])
    >>> group.next_ends[0], len(group.ended(step=3)), group.size
    (2, 1, 1)
    """

    def __init__(self, block_size: int) -> None:
        self.size = 0
        self.next_ends: list[int] = []  # heap of the keys of `_ends_at`
        self._block_size = block_size
        self._sum_of_births = 0
        self._by_remainder = [0] * block_size
        self._ends_at: dict[int, list[LiveRequest]] = {}

    def join(self, request: LiveRequest, step: int) -> int:
        """Add a request that decodes from this step on; return the step that makes its last token."""
        birth = request.birth = step - request.computed
        self.size += 1
        self._sum_of_births += birth
        self._by_remainder[birth % self._block_size] += 1
        last = birth + request.last - 2
        if (ending := self._ends_at.get(last)) is None:
            self._ends_at[last] = [request]
            heapq.heappush(self.next_ends, last)
        else:
            ending.append(request)
        return last

    def leave(self, request: LiveRequest) -> None:
        assert request.birth is not None
        self.size -= 1
        self._sum_of_births -= request.birth
        self._by_remainder[request.birth % self._block_size] -= 1

    def interrupt(self, request: LiveRequest) -> None:
        """Remove a request before its end."""
        assert request.birth is not None
        self.leave(request)
        self._ends_at[request.birth + request.last - 2].remove(request)
        request.birth = None

    def ended(self, step: int) -> list[LiveRequest]:
        """Remove the requests that made their last token before this step; there is at most one such earlier step."""
        if not self.next_ends or self.next_ends[0] >= step:
            return []
        ended = self._ends_at.pop(heapq.heappop(self.next_ends))  # in the order of admission
        for request in ended:
            self.leave(request)
            request.computed = request.last - 1
            request.birth = None
        return ended

    def kv_tokens(self, step: int) -> int:
        return self.size * (step + 1) - self._sum_of_births

    def blocks(self, step: int, steps: int) -> int:
        """Blocks that the group takes in `steps` steps, beginning with `step`."""
        cycles, rest = divmod(steps, self._block_size)
        if not rest:
            return cycles * self.size
        first = step % self._block_size
        beyond = max(0, first + rest - self._block_size)
        return cycles * self.size + sum(self._by_remainder[first : first + rest]) + sum(self._by_remainder[:beyond])

    def steps_with(self, blocks: int, step: int) -> int:
        """Number of steps, beginning with `step`, for which this many blocks suffice; the group must not be empty."""
        # Each request takes one block every `block_size` steps.
        cycles, left = divmod(blocks, self.size)
        steps = cycles * self._block_size
        while (taken := self._by_remainder[(step + steps) % self._block_size]) <= left:
            left -= taken
            steps += 1
        return steps


class Scheduler:
    """The engine's state before step `self.step`; arguments as in `make_schedule`. `counts`: whether blocks are counted
    where all layers keep all tokens, instead of listed."""

    counts = True

    def __init__(
        self,
        requests: RequestLengths,
        settings: SchedulerSettings,
        step_time: StepTime | None,
        lookups: list[Lookup] | None,
    ) -> None:
        self.requests, count = requests, len(requests)
        self.settings, self.step_time = settings, step_time
        pool = settings.pool or KvPool((KvGroup("attention", (0,), None),), 1, settings.block_size, 1, 0)
        self.grouped = self.counts and [group.reach for group in pool.groups] == [None]
        capacity = UNLIMITED if settings.num_blocks is None else settings.num_blocks - 1
        caching = settings.enable_prefix_caching
        self.blocks = BlockPool(pool, capacity, settings.max_model_len, caching=caching, counted=self.grouped)
        self.blocks.lookups = lookups
        self.shares = caching and (requests.prefix_id is not None or requests.hashed is not None)
        runs: Sequence[Sequence[range]] = requests.shared_runs(pool.block_size) if self.shares else [()] * count
        prompts, outputs = requests.prompt_tokens.tolist(), requests.output_tokens.tolist()
        self.coming: deque[LiveRequest] = deque()
        for index, (prompt, output, of_prompt) in enumerate(zip(prompts, outputs, runs, strict=True)):
            shared = () if self.grouped else [number for run in of_prompt for number in run]
            self.coming.append(LiveRequest(index, prompt, prompt + output, of_prompt, shared, goal=prompt))
        self.arrivals: list[float] = [0.0] * count if requests.arrival_s is None else requests.arrival_s.tolist()
        self.waiting: deque[LiveRequest] = deque()
        # In the order of admission; a dict, because requests leave from anywhere.
        self.running: dict[LiveRequest, None] = {}
        self.decoding = DecodeGroup(pool.block_size)
        # Beside the group there is at most one request in chunks. It is the last: it got what was left of the budget.
        self.partial: list[LiveRequest] = []
        # They generated their last token in the previous step, and keep their places for one more step.
        self.ending: list[LiveRequest] = []
        # Requests of the step that still runs, without the group, if one is planned while another one runs.
        self.in_flight: dict[LiveRequest, int] = {}

        self.now_s = self.free_s = 0.0  # when the step is planned, and when the device has finished the one before
        self.step = self.peak_blocks_held = 0
        self.first_step, self.first_token_step, self.last_token_step = ([-1] * count for _ in range(3))
        self.preemptions, self.cached_tokens, self.recomputed_tokens = ([0] * count for _ in range(3))
        self.columns, self.idle_s = array("q"), array("d")
        self.near: dict[int, array[int]] = {group.reach: array("q") for group in pool.groups if group.reach}

    def run(self) -> Schedule:
        while True:
            while self.coming and self.arrivals[self.coming[0].index] <= self.now_s:
                self.waiting.append(self.coming.popleft())
            if not self.waiting and not self.running:
                if not self.coming:
                    return self._schedule()
                self.now_s = self.arrivals[self.coming[0].index]
                continue
            self.blocks.new.clear()
            scheduled, preempted = self._schedule_running()
            if not preempted:
                self._admit(scheduled)
            if self.decoding.size or scheduled:
                self._pass(scheduled, preempted)
            elif self.ending or self.in_flight:
                # Nothing to compute until the ending requests have left.
                self._release()
                self.in_flight, self.now_s = {}, self.free_s
            elif not self.running:
                raise ScheduleError(self._too_few(self.waiting[0]))  # nothing will change

    def _schedule_running(self) -> tuple[dict[LiveRequest, int], list[LiveRequest]]:
        """Give every running request its tokens and blocks, taking blocks from the last ones if needed; return the
        tokens of those that are not in the group, and who lost its blocks."""
        budget, taken = self.settings.max_num_batched_tokens, self.decoding.blocks(self.step, 1)
        if self.grouped and taken <= self.blocks.free:
            self.blocks.take(taken)
            if not self.partial:
                return {}, []
            budget -= self.decoding.size
            order = self.partial.copy()
        else:
            order = list(self.running)
        scheduled: dict[LiveRequest, int] = {}
        preempted: list[LiveRequest] = []
        turn = 0
        while turn < len(order) and budget:
            request = order[turn]
            turn += 1
            if request in self.ending:
                continue
            if in_group := request.birth is not None:
                request.computed = self.step - request.birth
                if request.computed % self.blocks.block_size:  # it goes on in its last block
                    budget -= 1
                    continue
            tokens = min(max(1, request.goal - request.computed), budget)
            tokens = self._aligned(request, request.computed, tokens)
            if not tokens:
                continue
            end, in_flight = request.computed + tokens, self.in_flight.get(request, 0)
            # The token of the step that is still running is not known yet.
            known = end - (request.computed >= request.goal and in_flight > 0)
            while not self.blocks.allocate(request, end, known, in_flight):
                victim = order.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    return scheduled, preempted
            if not in_group:
                scheduled[request] = tokens
            budget -= tokens
        return scheduled, preempted

    def _preempt(self, request: LiveRequest) -> None:
        in_flight = self.settings.async_scheduling if self.grouped else request in self.in_flight
        if request.birth is not None:
            request.computed = self.step - request.birth
            self.decoding.interrupt(request)
        known = request.computed
        if known > request.goal:
            known -= in_flight
        if request.computed >= request.goal:
            request.goal = request.computed + 1
        self.partial = [other for other in self.partial if other is not request]
        del self.running[request]
        self.waiting.appendleft(request)
        self.preemptions[request.index] += 1
        self.blocks.give_back(request, known, preempted=True)
        request.computed = 0
        if not self.running:
            request.lost = request.lost + 1 if request.lost_at == request.goal else 0
            request.lost_at = request.goal
            if request.lost > _HOPELESS:
                raise ScheduleError(self._too_few(request))

    def _admit(self, scheduled: dict[LiveRequest, int]) -> None:
        """Admit waiting requests, first come, first served; what they compute is added to `scheduled`."""
        budget = self.settings.max_num_batched_tokens - self.decoding.size - sum(scheduled.values())
        while budget and self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            hits, start = self.blocks.find(request)
            tokens = self._aligned(request, start, min(request.goal - start, budget))
            if not tokens or not self.blocks.admit(request, start + tokens, hits, start):
                return
            self.running[self.waiting.popleft()] = None
            if self.first_step[request.index] < 0:
                self.first_step[request.index] = self.step
                self.cached_tokens[request.index] = start
            else:
                self.recomputed_tokens[request.index] += request.goal - start
            scheduled[request] = tokens
            budget -= tokens

    def _aligned(self, request: LiveRequest, start: int, tokens: int) -> int:
        """Tokens of a chunk, cut where a state is to be kept (`_mamba_block_aligned_split` in vLLM's scheduler)."""
        prefill_end = max(request.prompt, request.goal - 1)
        if not self.blocks.states or start >= prefill_end:
            return tokens
        size, end = self.blocks.block_size, start + tokens
        # Where a chunk leaves its state behind, it need not stop.
        leaves = self.blocks.states[0].checkpoints and end >= prefill_end and leaves_a_state(start, prefill_end, size)
        if end < prefill_end and (end // size * size > start or size <= self.settings.max_num_batched_tokens):
            end = end // size * size
        stops = [0 if leaves else (request.goal - 1) // size * size]
        if start % size and not leaves:
            stops.append((start // size + 1) * size)
        if start < request.junction < end:
            stops.append(start + (request.junction - start) // size * size)
        return max(0, min((stop for stop in stops if start < stop < end), default=end) - start)

    def _pass(self, scheduled: dict[LiveRequest, int], preempted: list[LiveRequest]) -> None:
        step, decoding = self.step, self.decoding
        decode_seqs, decode_kv, made = decoding.size, decoding.kv_tokens(step), decoding.size
        prefill_seqs = prefill_tokens = prefill_kv = pairs = 0
        for request, tokens in scheduled.items():
            start, end = request.computed, request.computed + tokens
            made += end >= request.goal
            if start >= request.goal:
                decode_seqs += 1
                decode_kv += end
            else:
                prefill_seqs += 1
                prefill_tokens += tokens
                prefill_kv += end
                pairs += (start + end + 1) * tokens // 2
        # The same in all steps of a run, except that `decode_kv_tokens` grows; in the order of `WORK`.
        work = decode_seqs, decode_kv, prefill_seqs, prefill_tokens, prefill_kv, pairs, made
        row = (*work, len(self.running), len(self.waiting), self.blocks.held)
        if self.near:
            self._note_near(scheduled)
        steps = 1
        if not (scheduled or preempted or self.ending):
            # All decoding requests go on and find blocks; those of this step they have.
            steps = decoding.next_ends[0] - step + 1
            if decoding.blocks(step + 1, steps - 1) > self.blocks.free:
                steps = 1 + decoding.steps_with(self.blocks.free, step + 1)
        idle_s = 0.0
        if self.coming:
            steps, idle_s = self._pass_time(row, steps)
        elif self.now_s > self.free_s:  # for the last request; from here on nothing depends on time
            idle_s, self.free_s = self.now_s - self.free_s, self.now_s
        self.columns.extend((steps, *row))
        self.idle_s.append(idle_s)
        if steps > 1:
            self.blocks.take(decoding.blocks(step + 1, steps - 1))
        self.peak_blocks_held = max(self.peak_blocks_held, self.blocks.held)

        self.step = self.blocks.step = step + steps
        for request in () if self.grouped else self.in_flight:
            if request in self.running and request not in scheduled and request.computed >= request.goal:
                self.blocks.remember(request, request.computed)  # its last token is known now
        self.in_flight = scheduled if self.settings.async_scheduling else {}
        ending = self._computed(scheduled)
        self._release()
        self.ending = ending or decoding.ended(self.step)
        if not self.settings.async_scheduling:
            self._release()

    def _pass_time(self, row: tuple[int, ...], steps: int) -> tuple[int, float]:
        """Advance the clock; return the steps before the next request arrives, and how long the device was idle."""
        assert self.step_time is not None
        start_s = max(self.free_s, self.now_s)
        idle_s = start_s - self.free_s
        rows = np.full((steps, len(_NAMES)), (1, *row), dtype=np.int64)
        rows[:, _NAMES.index("decode_kv_tokens")] += row[0] * np.arange(steps)
        ends_s = start_s + np.cumsum(self.step_time(self._segments(rows, np.zeros(steps), steps)))
        # A step is planned when the previous one starts; without `async_scheduling`, when that ends.
        put_together_s = np.concatenate(([start_s], ends_s[:-1])) if self.settings.async_scheduling else ends_s
        steps = 1 + int(np.searchsorted(put_together_s[: steps - 1], self.arrivals[self.coming[0].index]))
        self.now_s, self.free_s = float(put_together_s[steps - 1]), float(ends_s[steps - 1])
        return steps, idle_s

    def _computed(self, scheduled: dict[LiveRequest, int]) -> list[LiveRequest]:
        """These tokens were computed in the step that just passed; return the requests that have all of theirs, but
        for those in the group."""
        ending = []
        self.partial = []
        for request, tokens in scheduled.items():
            request.computed += tokens
            if request.computed < request.goal:
                self.partial.append(request)
                continue
            index = request.index
            if self.first_token_step[index] < 0:
                self.first_token_step[index] = self.step - 1
            if self.grouped:
                self.last_token_step[index] = self.decoding.join(request, self.step)
            elif request.computed == request.last - 1:
                self.last_token_step[index] = self.step - 1
                ending.append(request)
        return ending

    def _release(self) -> None:
        for request in self.ending:
            if request in self.running:
                del self.running[request]
                if not self.grouped:
                    self.blocks.remember(request, request.computed)
                self.blocks.give_back(request, request.computed, preempted=False)
            else:  # preempted in the step in which it would have left
                self.waiting.remove(request)
        self.ending = []

    def _note_near(self, scheduled: dict[LiveRequest, int]) -> None:
        """Note what the tokens of a step look at in layers with a window; in the order of `Within`."""
        for limit, column in self.near.items():
            attended = read = pairs = 0
            for request, tokens in scheduled.items():
                start, end = request.computed, request.computed + tokens
                if start >= request.goal:
                    kept = min(end, limit)
                    attended, read = attended + kept, read + kept - 1
                else:
                    read += min(start, limit - 1)
                    pairs += int(attended_tokens(end, limit) - attended_tokens(start, limit))
            column.extend((attended, read, pairs))

    def _segments(self, rows: IntArray, idle_s: "np.ndarray", last: int) -> Segments:
        near = {
            reach: Within(*np.array(column[-3 * last :], dtype=np.int64).reshape(-1, 3).T)
            for reach, column in self.near.items()
        }
        return Segments(**dict(zip(_NAMES, rows.T, strict=True)), idle_s=idle_s, near=near)

    def _schedule(self) -> Schedule:
        rows = np.frombuffer(self.columns, np.int64).reshape(-1, len(_NAMES))
        segments, blocks = self._segments(rows, np.frombuffer(self.idle_s), len(rows)), self.blocks
        # With more blocks the engine might have decided otherwise; with fewer other blocks would have been evicted.
        lost = blocks.evicted_shared if self.grouped else blocks.evicted
        short = blocks.short or any(self.preemptions) or (self.shares and lost)
        needed = max(self.peak_blocks_held, blocks.most_asked, blocks.most_filled if self.shares else 0) + 1
        of_steps = ("first_step", "first_token_step", "last_token_step")
        names = (*of_steps, "preemptions", "cached_tokens", "recomputed_tokens")
        return Schedule(
            self.settings,
            segments,
            **{name: np.array(getattr(self, name), dtype=np.int64) for name in names},
            evicted_blocks=blocks.evicted_shared if self.grouped else None,
            peak_blocks_held=self.peak_blocks_held,
            needs_blocks=None if short else needed,
            not_found={},
        )

    def _too_few(self, request: LiveRequest) -> str:
        gives = f"{self.blocks.capacity} of {self.blocks.block_size} tokens"
        return f"a request of {request.last} tokens takes more blocks than the {gives} that the engine gives out"

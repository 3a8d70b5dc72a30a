"""Our schedules against vLLM's own Scheduler and KVCacheManager, step by step.

vLLM's classes are called as its engine core calls them (vllm/v1/engine/core.py, `step` and `step_with_batch_queue`),
with a clock instead of a device.
"""

import copy
import itertools
import os
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workflow_scripts.engines.capacity import KvGroup, KvPool
from workflow_scripts.engines.engine import CacheHeldError, forget_prefixes
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.predict.kv_pool import LiveRequest
from workflow_scripts.predict.prefix_hits import OF_PREEMPTED, OF_PROMPT, prefix_hits
from workflow_scripts.predict.schedule import SUMS, FloatArray, RequestLengths, Segments, StepTime
from workflow_scripts.predict.scheduler import Scheduler
from workflow_scripts.workloads.request import HashedBlocks

pytest.importorskip("vllm", reason="vLLM is not installed")

MODEL = Path(__file__).resolve().parents[3] / "config" / "models" / "tiny-llama-57m"
CASES = 400
CASES_OF_LAYERS = 200
CASES_OF_HITS = 400
# Of each kind of case at least so many.
ENOUGH = 30
FEW = 5
MOST_OF_LAYERS = 10


Case = tuple[RequestLengths, SchedulerSettings, StepTime | None]
OF_STEP = (*SUMS, "idle_s")


@dataclass(frozen=True)
class Step:
    """What one step did. Requests are named by their index; `work` is what `Segments` says of a step."""

    running: list[int]
    waiting: list[int]
    scheduled_tokens: dict[int, int]
    preempted: list[int]
    blocks_held: int
    work: dict[str, float]


@pytest.fixture(scope="module")
def engine_config():
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=str(MODEL), load_format="dummy", skip_tokenizer_init=True).create_engine_config()


ALL_TOKENS = KvGroup("all tokens", (0,), None)


def spec(group: KvGroup, settings: SchedulerSettings) -> Any:
    """What layers of a group keep, as vLLM's layers say it."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    common = {"block_size": settings.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if group.reach is None:
        return FullAttentionSpec(**common)
    if group.reach:
        return SlidingWindowSpec(**common, sliding_window=group.reach)
    state = {"shapes": ((1,),), "dtypes": (torch.float32,)}
    if not settings.enable_prefix_caching:
        return MambaSpec(**state, block_size=settings.max_model_len)
    assert settings.pool is not None
    if settings.pool.state_blocks > 2:
        state |= {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1}
    return MambaSpec(**state, block_size=settings.block_size, mamba_cache_mode="align")


class Engine:
    """vLLM's scheduler with a clock in place of a device."""

    def __init__(
        self, config: Any, requests: RequestLengths, settings: SchedulerSettings, step_time: StepTime | None
    ) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        limits = config.scheduler_config
        limits.max_num_seqs = settings.max_num_seqs
        limits.max_num_batched_tokens = limits.max_num_scheduled_tokens = settings.max_num_batched_tokens
        limits.enable_chunked_prefill = True
        limits.async_scheduling = settings.async_scheduling
        config.model_config.max_model_len = settings.max_model_len
        config.cache_config.block_size = settings.block_size
        config.cache_config.enable_prefix_caching = settings.enable_prefix_caching
        config.cache_config.num_gpu_blocks = settings.num_blocks
        groups = (ALL_TOKENS,) if settings.pool is None else settings.pool.groups
        keeps_states = settings.enable_prefix_caching and any(group.reach == 0 for group in groups)
        config.cache_config.mamba_cache_mode = "align" if keeps_states else "none"

        assert settings.num_blocks is not None
        blocks = KVCacheConfig(
            settings.num_blocks,
            [],
            [KVCacheGroupSpec([f"layer.{number}"], spec(group, settings)) for number, group in enumerate(groups)],
            prefix_cache_retention_interval=config.cache_config.prefix_cache_retention_interval,
        )
        block_size, hashed = resolve_kv_cache_block_sizes(blocks, config)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(hashed, sha256)
        kind = AsyncScheduler if settings.async_scheduling else Scheduler
        structured = StructuredOutputManager(config)
        self.scheduler = kind(config, blocks, structured, block_size=block_size, hash_block_size=hashed)
        self.batches = 2 if settings.async_scheduling else 1
        self.requests = requests
        self.step_time = step_time
        self.new_token = itertools.count(1_000_000)  # no two are the same
        self.live: dict[str, Any] = {}
        self.cached_tokens: dict[int, int] = {}
        self.recomputed_tokens: Counter[int] = Counter()

    def run(self) -> Iterator[Step]:
        """All steps that compute something."""
        coming = deque(range(len(self.requests)))
        batches: deque[tuple[Any, dict[str, bool], float]] = deque()
        now_s = free_s = 0.0
        while True:
            while coming and self.arrival_s(coming[0]) <= now_s:
                self.add(coming.popleft())
            if self.scheduler.has_requests():
                decoding = {request.request_id for request in self.scheduler.running if not request.is_prefill_chunk}
                preemptions = {name: request.num_preemptions for name, request in self.live.items()}
                output = self.scheduler.schedule()
                end_s = now_s
                if output.num_scheduled_tokens:
                    step = self.look(output, decoding, preemptions)
                    if self.step_time is not None:
                        step.work["idle_s"] = max(0.0, now_s - free_s)
                        free_s = end_s = max(free_s, now_s) + float(self.step_time(_segment(step.work))[0])
                    yield step
                samples = {name: not self.live[name].is_prefill_chunk for name in output.num_scheduled_tokens}
                batches.appendleft((output, samples, end_s))
                if len(batches) < self.batches:
                    continue
            elif not batches:
                if not coming:
                    return
                now_s = self.arrival_s(coming[0])
                continue
            output, samples, end_s = batches.pop()
            now_s = max(now_s, end_s)
            self.update(output, samples)

    def arrival_s(self, index: int) -> float:
        return 0.0 if self.requests.arrival_s is None else float(self.requests.arrival_s[index])

    def add(self, index: int) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        prompt_tokens = int(self.requests.prompt_tokens[index])
        shared: list[int] = []
        if self.requests.hashed is not None:
            ids, tokens = self.requests.hashed[index]
            shared = [one * 10_000 + position for one in ids for position in range(tokens)][:prompt_tokens]
        elif self.requests.prefix_id is not None and self.requests.prefix_tokens is not None:
            first = int(self.requests.prefix_id[index]) * 10_000
            shared = list(range(first, first + int(self.requests.prefix_tokens[index])))
        prompt = shared + [next(self.new_token) for _ in range(prompt_tokens - len(shared))]
        sampling = SamplingParams(max_tokens=int(self.requests.output_tokens[index]), ignore_eos=True)
        request = Request(str(index), prompt, sampling, None, block_hasher=self.hasher)
        self.live[request.request_id] = request
        self.scheduler.add_request(request)

    def update(self, output: Any, samples: dict[str, bool]) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        tokens = [[next(self.new_token)] if sampled else [] for sampled in samples.values()]
        index = {name: position for position, name in enumerate(samples)}
        result = ModelRunnerOutput(req_ids=list(samples), req_id_to_index=index, sampled_token_ids=tokens)
        self.scheduler.update_from_output(output, result)

    def look(self, output: Any, decoding: set[str], preemptions: dict[str, int]) -> Step:
        """What the step does, counted from vLLM's own records after the step was put together."""
        pool = self.scheduler.kv_cache_manager.block_pool
        work: dict[str, float] = dict.fromkeys(OF_STEP, 0)
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.live[name]
            end = request.num_computed_tokens
            if name in decoding:
                assert tokens == 1
                work["decode_seqs"] += 1
                work["decode_kv_tokens"] += end
            else:
                work["prefill_seqs"] += 1
                work["prefill_tokens"] += tokens
                work["prefill_kv_tokens"] += end
                work["prefill_attended_tokens"] += sum(range(end - tokens + 1, end + 1))
            if name in output.scheduled_cached_reqs.resumed_req_ids:
                self.recomputed_tokens[int(name)] += request.num_tokens - (end - tokens)
            work["generation_tokens"] += not request.is_prefill_chunk
            self.cached_tokens.setdefault(int(name), end - tokens)
        running = [int(request.request_id) for request in self.scheduler.running]
        waiting = [int(request.request_id) for request in self.scheduler.waiting]
        held = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        work |= {"running": len(running), "waiting": len(waiting), "blocks_held": held}
        scheduled = {int(name): tokens for name, tokens in output.num_scheduled_tokens.items()}
        preempted = [int(name) for name, before in preemptions.items() if self.live[name].num_preemptions > before]
        return Step(running, waiting, scheduled, preempted, held, work)


class Watched(Scheduler):
    """Our scheduler, which notes its steps one by one."""

    def __init__(self, *case: Any) -> None:
        super().__init__(*case, lookups=None)
        self.steps: list[Step] = []

    def _pass(self, scheduled: dict[LiveRequest, int], preempted: list[LiveRequest]) -> None:
        running, waiting = ([request.index for request in some] for some in (self.running, self.waiting))
        tokens = {request.index: 1 for request in self.running if request.birth is not None}
        tokens |= {request.index: count for request, count in scheduled.items()}
        first, held, decoding = self.step, self.blocks.held, copy.copy(self.decoding)
        decoding._by_remainder = decoding._by_remainder.copy()
        super()._pass(scheduled, preempted)
        work: dict[str, float] = dict(zip(("steps", *SUMS), self.columns[-1 - len(SUMS) :], strict=True))
        assert work.pop("steps") == self.step - first
        for further in range(self.step - first):
            changed = {"decode_kv_tokens": work["decode_kv_tokens"] + further * work["decode_seqs"]}
            changed["blocks_held"] = held + decoding.blocks(first + 1, further)
            changed["idle_s"] = 0 if further else self.idle_s[-1]
            lost = sorted(request.index for request in preempted)
            self.steps.append(Step(running, waiting, tokens, lost, int(changed["blocks_held"]), work | changed))


def _segment(work: dict[str, float]) -> Segments:
    return Segments(steps=np.array([1]), **{name: np.array([value]) for name, value in work.items()})


def step_time(segments: Segments) -> FloatArray:
    """Seconds that depend on all that a step does; multiples of a power of two, so that sums are exact."""
    tokens = 4 * segments.decode_seqs + segments.prefill_tokens + segments.decode_kv_tokens // 16
    return (16 + tokens) / 1024


def draw(seed: int, most: int = 40) -> Case:
    """A random workload with random settings."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 4, 8, 16, 32])
    count = rng.randint(1, most)
    longest_prompt, longest_output = rng.choice([(8, 40), (120, 60), (300, 10), (60, 120)])
    prompts = [rng.randint(1, longest_prompt) for _ in range(count)]
    outputs = [rng.choice([1, rng.randint(1, longest_output)]) for _ in range(count)]
    if rng.random() < 0.2:  # many that go in step
        prompts, outputs = [prompts[0]] * count, [outputs[0]] * count
    prefix_id = prefix_tokens = None
    if rng.random() < 0.5:
        texts = rng.choice([1, 1, 2, 5])
        ids = [rng.choice([-1, rng.randrange(texts)]) for _ in range(count)]
        whole = rng.random() < 0.3
        length = [rng.randint(1, longest_prompt) for _ in range(texts)]
        prefix_tokens = [
            0 if text < 0 else prompt if whole else min(prompt, length[text], rng.choice([10_000, rng.randint(1, 200)]))
            for text, prompt in zip(ids, prompts, strict=True)
        ]
        prefix_id = ids
    longest = max(map(sum, zip(prompts, outputs, strict=True)))
    max_model_len = longest + rng.choice([0, 100])
    budget = rng.choice([rng.randint(1, 20), rng.randint(20, 200), 8192])
    least = -(-(longest - 1) // block_size) + 1
    tight = rng.random() < 0.7
    blocks = least + rng.randint(0, least) if tight else count * (least + 1) + rng.choice([0, 1000])
    arrival_s = None
    if rng.random() < 0.4:
        times = [rng.choice([0, 0, rng.randint(0, 40), rng.randint(0, 4000)]) / 256 for _ in range(count)]
        arrival_s = np.cumsum(np.array(times))
    settings = SchedulerSettings(
        max_num_seqs=rng.choice([1, 2, 8, 8, 64]),
        max_num_batched_tokens=budget,
        block_size=block_size,
        max_model_len=max_model_len,
        num_blocks=blocks,
        enable_prefix_caching=prefix_id is not None or rng.random() < 0.5,
        async_scheduling=rng.random() < 0.7,
    )
    requests = RequestLengths(
        np.array(prompts),
        np.array(outputs),
        arrival_s,
        None if prefix_id is None else np.array(prefix_id),
        None if prefix_tokens is None else np.array(prefix_tokens),
    )
    if prefix_id is not None and seed % 2:
        requests = replace(requests, prefix_id=None, prefix_tokens=None, hashed=[_hashed(rng, p) for p in prompts])
    return requests, settings, None if arrival_s is None else step_time


def _hashed(rng: random.Random, prompt: int) -> HashedBlocks:
    """Blocks for a prompt, or for its beginning; two hashes make many prompts that part at some block."""
    size = 6
    return HashedBlocks(tuple(rng.randrange(2) for _ in range(rng.randint(0, -(-prompt // size)))), size)


# Layers of each kind, by what they look back over: None for all tokens, 0 for a state. Two windows or states are groups
# of their own, as in models with many more of them than layers that keep all tokens.
LAYERS: dict[str, list[list[int | None]]] = {
    "window": [[5], [40]],
    "windows beside all": [[None, 5], [40, None], [16, 16, None], [None, 100, 100, 100]],
    "states": [[None, 0], [0, 0, 0, None]],
    "kept states": [[None, 0], [0, 0, 0, None]],
    "windows and states": [[24, 0], [None, 24, 0, 0], [6, 40, None]],
}


def draw_layers(kind: str, seed: int) -> Case:
    """A random workload with random settings, for a model with layers of a kind."""
    requests, settings, timing = draw(seed, MOST_OF_LAYERS)
    rng = random.Random(f"{kind} {seed}")
    reaches = rng.choice(LAYERS[kind])
    has_states = 0 in reaches
    caching = {"states": False, "kept states": True}.get(kind, settings.enable_prefix_caching)
    block_size = max(settings.block_size, 4) if has_states else settings.block_size
    tokens = settings.max_num_batched_tokens
    if has_states:
        tokens = max(tokens, rng.choice([1, block_size, 3 * block_size]))
    pool = KvPool(
        groups=tuple(KvGroup(kind, (number,), reach) for number, reach in enumerate(reaches)),
        page_bytes=1,
        block_size=block_size,
        state_blocks=rng.choice([2, 3]) if caching else 1,
        in_flight_tokens=tokens * (2 if settings.async_scheduling else 1),
    )
    settings = replace(
        settings,
        block_size=block_size,
        max_num_batched_tokens=tokens,
        enable_prefix_caching=caching,
        pool=pool,
    )
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    most = [pool.blocks_of_group(group, settings.max_model_len) for group in pool.groups]
    least = 1 + sum(
        blocks if reach == 0 else min(blocks, -(-longest // block_size))
        for reach, blocks in zip(reaches, most, strict=True)
    )
    tight = rng.random() < 0.8
    blocks = least + rng.randint(0, least // 2) if tight else len(requests) * least
    return requests, replace(settings, num_blocks=blocks), timing


def test_defaults_are_those_that_are_reproduced(engine_config):
    limits = engine_config.scheduler_config
    assert not limits.async_scheduling  # on a CPU
    assert limits.enable_chunked_prefill
    assert engine_config.cache_config.enable_prefix_caching == SchedulerSettings.enable_prefix_caching
    assert limits.scheduler_reserve_full_isl
    assert (limits.policy, limits.watermark, limits.long_prefill_token_threshold) == ("fcfs", 0.0, 0)
    assert limits.max_num_active_seqs is None


def compare(engine_config: Any, cases: Iterable[Case]) -> Counter[str]:
    """Compare every step of these cases; return how many there were of each kind."""
    seen: Counter[str] = Counter()
    for seed, (requests, settings, timing) in enumerate(cases):
        engine = Engine(engine_config, requests, settings, timing)
        theirs = list(engine.run())
        watched = Watched(requests, settings, timing)
        schedule, ours = watched.run(), watched.steps
        for number, (expected, got) in enumerate(zip(theirs, ours, strict=False)):
            assert got == expected, f"seed {seed}, step {number} of {len(theirs)}: {settings}"
        assert len(ours) == len(theirs), f"seed {seed}"
        assert schedule.cached_tokens.tolist() == [engine.cached_tokens[index] for index in range(len(requests))]
        preemptions = [engine.live[str(index)].num_preemptions for index in range(len(requests))]
        assert schedule.preemptions.tolist() == preemptions
        recomputed = [engine.recomputed_tokens[index] for index in range(len(requests))]
        assert schedule.recomputed_tokens.tolist() == recomputed
        seen += Counter(
            cases=1,
            steps=len(ours),
            segments=len(schedule.segments),
            with_preemptions=any(preemptions),
            with_cache_hits=bool(schedule.cached_tokens.any()),
            with_cache_hits_and_preemptions=bool(schedule.cached_tokens.any() and any(preemptions)),
            with_arrivals=requests.arrival_s is not None,
            synchronous=not settings.async_scheduling,
            short_of_blocks=schedule.needs_blocks is None,
        )
    return seen


def test_every_step_is_vllms(engine_config):
    seen = compare(engine_config, map(draw, range(CASES)))
    assert min(seen.values()) >= ENOUGH, seen


@pytest.mark.parametrize("kind", LAYERS)
def test_every_step_of_other_layers_is_vllms(engine_config, kind):
    seen = compare(engine_config, (draw_layers(kind, seed) for seed in range(CASES_OF_LAYERS)))
    if kind == "states":  # their caches find nothing
        assert not seen["with_cache_hits"]
    else:
        assert seen["with_cache_hits_and_preemptions"], seen
        assert seen["with_cache_hits"] >= FEW, seen
    wanted = ("with_preemptions", "with_arrivals", "synchronous", "short_of_blocks")
    assert min(seen[name] for name in wanted) >= FEW, seen


class Explained:
    """What vLLM's prefix cache finds of each prompt that is admitted, and would find if no block had ever lost its
    content; and how many of its tokens an admitted prompt had, compared token by token."""

    def __init__(self, engine: Engine) -> None:
        from vllm.v1.core.block_pool import BlockHashToBlockMap

        self.manager, self.engine = engine.scheduler.kv_cache_manager, engine
        self.find, self.pool = self.manager.get_computed_blocks, self.manager.block_pool
        self.manager.get_computed_blocks = self.look
        cached, self.ever = self.pool.cached_block_hash_to_block, BlockHashToBlockMap()
        insert = cached.insert

        def into_both(key: Any, block: Any) -> None:
            insert(key, block)
            self.ever.insert(key, block)

        cached.insert = into_both
        self.block_size = engine.scheduler.block_size
        self.waiting: dict[str, tuple[int, int, int, int]] = {}
        self.prompts: dict[str, np.ndarray] = {}
        self.tokens = {name: [0] * len(engine.requests) for name in (*OF_PROMPT, *OF_PREEMPTED)}

    def look(self, request: Any) -> Any:
        self.note_admitted()
        answer = self.find(request)
        cached, self.pool.cached_block_hash_to_block = self.pool.cached_block_hash_to_block, self.ever
        kept = self.find(request)[1]
        self.pool.cached_block_hash_to_block = cached
        prompt, seen = np.array(request.prompt_token_ids), 0
        for other in self.prompts.values():
            both = min(len(prompt), len(other))
            seen = max(seen, int(np.cumprod(prompt[:both] == other[:both]).sum()))
        self.waiting[request.request_id] = answer[1], kept, seen, request.num_tokens
        return answer

    def note_admitted(self) -> None:
        for request in self.engine.scheduler.running:
            if request.request_id not in self.waiting:
                continue
            found, kept, seen, goal = self.waiting.pop(request.request_id)
            if request.request_id in self.prompts:
                counts = {"found_again": found, "computed_again": goal - found}
            else:
                self.prompts[request.request_id] = np.array(request.prompt_token_ids)
                last = int(seen == request.num_prompt_tokens)
                usable = (seen - last) // self.block_size * self.block_size
                counts = {
                    "found": found,
                    "never_seen": request.num_prompt_tokens - seen,
                    "shorter_than_block": seen - last - usable,
                    "last_token": last,
                    "evicted": kept - found,
                    "not_retained": usable - kept,
                }
            for name, count in counts.items():
                self.tokens[name][int(request.request_id)] += count


def test_what_becomes_of_each_prompt_is_vllms(engine_config):
    kinds = ("dense", *(kind for kind in LAYERS if kind != "states"))
    seen: Counter[str] = Counter()
    for seed in itertools.count():
        kind = kinds[seed % len(kinds)]
        requests, settings, timing = draw(seed, MOST_OF_LAYERS) if kind == "dense" else draw_layers(kind, seed)
        if not settings.enable_prefix_caching:
            continue
        if seen["cases"] == CASES_OF_HITS:
            break
        engine = Engine(engine_config, requests, settings, timing)
        theirs = Explained(engine)
        for _ in engine.run():
            theirs.note_admitted()
        ours = prefix_hits(requests, settings, timing)
        for name, counts in theirs.tokens.items():
            assert ours.tokens[name].tolist() == counts, f"{kind}, seed {seed}, {name}: {settings}"
            seen[name] += any(counts)
        assert sum(ours.tokens[name] for name in OF_PROMPT).tolist() == requests.prompt_tokens.tolist()
        assert sum(missed for *_, missed in ours.evictions) == ours.total("evicted")
        seen += Counter(("cases", kind, f"{settings.block_size} tokens"))
    assert min(seen[name] for name in (*OF_PROMPT, *OF_PREEMPTED, "4 tokens", "16 tokens", "32 tokens")) >= FEW, seen


@pytest.mark.parametrize(("unit", "prompt", "found"), [(528, 552, 528), (528, 979, 528), (784, 240, 0)])
def test_a_prompt_that_comes_again_is_found_in_whole_units(engine_config, unit, prompt, found):
    state = KvGroup("state", (1,), 0)
    settings = SchedulerSettings(1, 8192, unit, 8192, 99, pool=KvPool((ALL_TOKENS, state), 1, unit, 2, 8192))
    two, text = np.full(2, prompt), np.zeros(2, dtype=np.int64)
    requests = RequestLengths(two, np.array([4, 4]), None, text, two)
    theirs = Explained(Engine(engine_config, requests, settings, None))
    for _ in theirs.engine.run():
        theirs.note_admitted()
    assert theirs.tokens["found"] == prefix_hits(requests, settings).tokens["found"].tolist() == [0, found]
    assert theirs.tokens["shorter_than_block"] == [0, prompt - found - 1]


def test_prefixes_are_not_forgotten_while_a_request_holds_blocks_and_this_is_told(engine_config):
    requests = RequestLengths(np.array([48]), np.array([4]))
    engine = Engine(engine_config, requests, SchedulerSettings(1, 64, 16, 64, num_blocks=8), None)
    steps = engine.run()
    next(steps)
    with pytest.raises(CacheHeldError, match=r"within 0.2 s, because some of its blocks"):
        forget_prefixes(engine.scheduler.reset_prefix_cache, limit_s=0.2)
    for _ in steps:
        pass
    forget_prefixes(engine.scheduler.reset_prefix_cache)

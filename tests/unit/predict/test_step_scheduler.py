"""Schedules of layers of several kinds, worked out by hand. An integration test compares them with vLLM's."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflow_scripts.engines.capacity import KvPool
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.physics.layer_groups import KvGroup
from workflow_scripts.predict.schedule import RequestLengths, ScheduleError
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.step_scheduler import StepScheduler

ALL, STATE = None, 0


def pool(*reaches: int | None, state_blocks: int = 1, in_flight_tokens: int = 64) -> KvPool:
    groups = tuple(KvGroup("layers", (number,), 1, reach) for number, reach in enumerate(reaches))
    return KvPool(groups, 1, 4, state_blocks, in_flight_tokens)


def settings_of(*reaches: int | None, caching: bool = False, state_blocks: int = 1) -> SchedulerSettings:
    of_layers = pool(*reaches, state_blocks=state_blocks)
    return SchedulerSettings(8, 64, 4, 64, enable_prefix_caching=caching, async_scheduling=False, pool=of_layers)


def one(prompt: int, output: int) -> RequestLengths:
    return RequestLengths(np.array([prompt]), np.array([output]))


def test_what_tokens_look_at_within_a_window_and_a_chunk_and_the_blocks_that_it_takes():
    chunks = KvGroup("chunks", (1,), 1, 4, chunked=True)
    both = KvPool((KvGroup("window", (0,), 1, 3), chunks), 1, 4, 1, 64)
    segments = make_schedule(one(6, 3), replace(settings_of(ALL), pool=both)).segments
    # A prompt of 6 tokens, and the 7th and 8th: windows hold 3 of them, chunks the 5th to the 8th.
    window, chunk = segments.within(3, False), segments.within(4, True)
    assert window.prefill_attended_tokens.tolist() == [1 + 2 + 3 + 3 + 3 + 3, 0, 0]
    assert (window.decode_kv_tokens.tolist(), window.looked_back.tolist()) == ([0, 3, 3], [0, 2, 2])
    assert chunk.prefill_attended_tokens.tolist() == [1 + 2 + 3 + 4 + 1 + 2, 0, 0]
    assert (chunk.decode_kv_tokens.tolist(), chunk.looked_back.tolist()) == ([0, 3, 4], [0, 2, 3])
    assert segments.within(None, False).decode_kv_tokens.tolist() == [0, 7, 8]
    with pytest.raises(ScheduleError, match="layers with a window"):
        make_schedule(one(6, 3), replace(settings_of(), pool=None)).segments.within(3, False)
    # 15 computed tokens: 4 blocks that keep all, 1 for the state.
    least = replace(settings_of(ALL, STATE), num_blocks=6)
    assert make_schedule(one(10, 6), least).peak_blocks_held == 5
    with pytest.raises(ScheduleError, match=r"16 tokens .* the 4 of 4 tokens"):
        make_schedule(one(10, 6), replace(least, num_blocks=5))


@st.composite
def sharing_requests(draw: st.DrawFn) -> RequestLengths:
    row = st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 30))
    prompts, outputs, shared = np.array(draw(st.lists(row, min_size=1, max_size=8))).T
    shared = np.minimum(prompts, shared)
    return RequestLengths(prompts, outputs, prefix_id=np.where(shared > 0, 0, -1), prefix_tokens=shared)


@settings(max_examples=25)
@given(sharing_requests(), st.integers(1, 64), st.integers(0, 12), st.booleans(), st.booleans())
def test_a_pool_of_layers_that_keep_all_has_the_schedule_of_any_dense_model(requests, tokens, spare, is_async, caching):
    dense = SchedulerSettings(4, tokens, 4, 64, 12 + spare, caching, async_scheduling=is_async)
    expected = make_schedule(requests, dense)
    found = StepScheduler(requests, replace(dense, pool=pool(ALL)), None, None).run()
    for name, values in vars(expected.segments).items():
        if name not in ("steps", "decode_kv_tokens", "blocks_held", "idle_s"):  # a run has those of its first step
            assert np.repeat(values, expected.segments.steps).tolist() == getattr(found.segments, name).tolist(), name
    same = {name: getattr(expected, name) for name in ("settings", "segments", "evicted_blocks", "needs_blocks")}
    np.testing.assert_equal(asdict(replace(found, **same)), asdict(expected))


@settings(max_examples=20)
@given(sharing_requests(), st.sampled_from([(4,), (ALL, 4), (ALL, STATE), (9, STATE, ALL)]), st.booleans())
def test_with_the_blocks_that_a_schedule_needs_it_stays_the_same(requests, reaches, caching):
    free = make_schedule(requests, settings_of(*reaches, caching=caching, state_blocks=2 if caching else 1))
    assert free.needs_blocks is not None
    again = make_schedule(requests, replace(free.settings, num_blocks=free.needs_blocks))
    np.testing.assert_equal(asdict(replace(again, settings=free.settings)), asdict(free))
    assert free.segments.generation_tokens.sum() == requests.output_tokens.sum()

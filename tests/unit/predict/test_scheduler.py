"""Schedules worked out by hand, and properties of every schedule. An integration test compares them with vLLM's."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from workflow_scripts.engines.capacity import KvGroup, KvPool
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.predict.block_trace import Traced
from workflow_scripts.predict.schedule import RequestLengths, ScheduleError
from workflow_scripts.predict.scheduler import make_schedule

SETTINGS = SchedulerSettings(
    max_num_seqs=8, max_num_batched_tokens=64, block_size=4, max_model_len=64, async_scheduling=False
)


def lengths(*prompt_and_output: tuple[int, int], **arrays: list[Any]) -> RequestLengths:
    prompts, outputs = zip(*prompt_and_output, strict=True)
    more = {name: np.array(values) for name, values in arrays.items()}
    return RequestLengths(np.array(prompts), np.array(outputs), **more)


def test_segments_do_not_grow_with_the_tokens_and_no_requests_have_none():
    settings = replace(SETTINGS, max_model_len=10**9)
    assert make_schedule(lengths((1, 10**8), (1, 10**7)), settings).segments.steps.tolist() == [1, 10**7 - 1, 9 * 10**7]
    empty = RequestLengths(np.array([], dtype=np.int64), np.array([], dtype=np.int64))
    schedule = make_schedule(empty, SETTINGS)
    assert len(schedule.segments) == 0
    assert schedule.needs_blocks == 1


def test_a_shared_text_is_lost_when_its_blocks_are_needed():
    one = replace(SETTINGS, max_num_seqs=1, num_blocks=5)
    requests = lengths((10, 1), (14, 1), (10, 1), prefix_id=[0, -1, 0], prefix_tokens=[8, 0, 8])
    lost = make_schedule(requests, one)
    assert lost.cached_tokens.tolist() == [0, 0, 0]
    assert (lost.needs_blocks, lost.evicted_blocks) == (None, 2)
    # With one block more, the second block of the text is evicted and the first one, freed later, is not.
    assert make_schedule(requests, replace(one, num_blocks=6)).cached_tokens.tolist() == [0, 0, 4]
    kept = make_schedule(requests, replace(one, num_blocks=7))
    assert kept.cached_tokens.tolist() == [0, 0, 8]
    assert kept.evicted_blocks == 0
    assert kept.needs_blocks == 7
    # The last block of a prompt of whole blocks is computed again; both copies of it are evicted for the third request.
    twice = lengths((8, 1), (8, 1), (9, 1), prefix_id=[0, 0, -1], prefix_tokens=[8, 8, 0])
    assert make_schedule(twice, one).evicted_blocks == 2


@pytest.mark.parametrize(
    ("requests", "changes", "message"),
    [
        (lengths((4, 61)), {}, "65 tokens does not fit max_model_len 64"),
        (lengths((4, 14)), {"num_blocks": 5}, "takes 6 blocks of 4 tokens"),
        (lengths((4, 1), arrival_s=[1.0]), {}, "step_time"),
    ],
)
def test_what_can_never_run_is_an_error(requests, changes, message):
    with pytest.raises(ScheduleError, match=message):
        make_schedule(requests, replace(SETTINGS, **changes))


@st.composite
def cases(draw: st.DrawFn) -> tuple[RequestLengths, SchedulerSettings]:
    pairs = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12))
    requests = lengths(*pairs)
    block_size = draw(st.sampled_from([1, 4, 16]))
    least = -(-max(prompt + output - 1 for prompt, output in pairs) // block_size) + 1
    seqs, tokens = draw(st.integers(1, 12)), draw(st.sampled_from([1, 3, 17, 200]))
    blocks = draw(st.one_of(st.none(), st.integers(least, 2 * least)))
    caching, is_async = draw(st.booleans()), draw(st.booleans())
    settings = SchedulerSettings(seqs, tokens, block_size, 80, blocks, caching, async_scheduling=is_async)
    return requests, settings


@given(cases(), st.integers(0, 3))
def test_enough_blocks_decide_the_same_and_one_less_does_not(case, more):
    requests, settings = case
    schedule = make_schedule(requests, replace(settings, num_blocks=None))
    assert schedule.needs_blocks is not None
    enough = make_schedule(requests, replace(settings, num_blocks=schedule.needs_blocks + more))
    np.testing.assert_equal(asdict(replace(enough, settings=schedule.settings)), asdict(schedule))
    assert schedule.holds_for(schedule.needs_blocks)
    try:
        tight = make_schedule(requests, replace(settings, num_blocks=schedule.needs_blocks - 1))
    except ScheduleError:
        return
    assert tight.needs_blocks is None


ALL, STATE = None, 0


def pool(*reaches: int | None, state_blocks: int = 1, in_flight_tokens: int = 64) -> KvPool:
    groups = tuple(KvGroup("layers", (number,), reach) for number, reach in enumerate(reaches))
    return KvPool(groups, 1, 4, state_blocks, in_flight_tokens)


def settings_of(*reaches: int | None, caching: bool = False, state_blocks: int = 1) -> SchedulerSettings:
    of_layers = pool(*reaches, state_blocks=state_blocks)
    return SchedulerSettings(8, 64, 4, 64, enable_prefix_caching=caching, async_scheduling=False, pool=of_layers)


def test_what_tokens_look_at_within_a_window_and_the_blocks_that_it_takes():
    both = KvPool((KvGroup("window", (0,), 3), KvGroup("longer", (1,), 4)), 1, 4, 1, 64)
    segments = make_schedule(lengths((6, 3)), replace(settings_of(ALL), pool=both)).segments
    # A prompt of 6 tokens, and the 7th and 8th: windows hold 3 or 4 of them.
    window, longer = segments.within(3), segments.within(4)
    assert window.prefill_attended_tokens.tolist() == [1 + 2 + 3 + 3 + 3 + 3, 0, 0]
    assert (window.decode_kv_tokens.tolist(), window.looked_back.tolist()) == ([0, 3, 3], [0, 2, 2])
    assert longer.prefill_attended_tokens.tolist() == [1 + 2 + 3 + 4 + 4 + 4, 0, 0]
    assert (longer.decode_kv_tokens.tolist(), longer.looked_back.tolist()) == ([0, 4, 4], [0, 3, 3])
    assert segments.within(None).decode_kv_tokens.tolist() == [0, 7, 8]
    with pytest.raises(ScheduleError, match="layers with a window"):
        make_schedule(lengths((6, 3)), replace(settings_of(), pool=None)).segments.within(3)
    # 15 computed tokens: 4 blocks that keep all, 1 for the state.
    least = replace(settings_of(ALL, STATE), num_blocks=6)
    assert make_schedule(lengths((10, 6)), least).peak_blocks_held == 5
    with pytest.raises(ScheduleError, match=r"16 tokens .* the 4 of 4 tokens"):
        make_schedule(lengths((10, 6)), replace(least, num_blocks=5))


@st.composite
def sharing_requests(draw: st.DrawFn) -> RequestLengths:
    row = st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 30))
    prompts, outputs, shared = np.array(draw(st.lists(row, min_size=1, max_size=8))).T
    shared = np.minimum(prompts, shared)
    return RequestLengths(prompts, outputs, prefix_id=np.where(shared > 0, 0, -1), prefix_tokens=shared)


@limits(max_examples=25)
@given(sharing_requests(), st.integers(1, 64), st.integers(0, 12), st.booleans(), st.booleans())
def test_counted_blocks_and_single_blocks_give_the_same_schedule(requests, tokens, spare, is_async, caching):
    dense = SchedulerSettings(4, tokens, 4, 64, 12 + spare, caching, async_scheduling=is_async)
    expected = make_schedule(requests, dense)
    found = make_schedule(requests, dense, kind=partial(Traced, []))
    for name, values in vars(expected.segments).items():
        # A run has these of its first step.
        if name not in ("steps", "decode_kv_tokens", "blocks_held", "idle_s", "near"):
            assert np.repeat(values, expected.segments.steps).tolist() == getattr(found.segments, name).tolist(), name
    same = {name: getattr(expected, name) for name in ("segments", "evicted_blocks", "needs_blocks")}
    np.testing.assert_equal(asdict(replace(found, **same)), asdict(expected))

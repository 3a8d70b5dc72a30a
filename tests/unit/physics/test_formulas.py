import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.physics import formulas as f
from workflow_scripts.physics.step_time import (
    KINDS,
    LaunchCosts,
    StepCosts,
    StepWork,
    arrival_s,
    device_s,
    launch_waits_s,
    segment_times_s,
    single_steps,
    usual_waits_s,
)

seconds = {"prefill_s": st.floats(0, 10), "step_s": st.floats(1e-3, 1)}


@given(prompt=st.integers(1, 300), output=st.integers(1, 100), block_size=st.sampled_from([1, 8, 16, 128]), **seconds)
def test_token_and_block_seconds_are_sums_over_the_steps_of_a_request(prompt, output, prefill_s, step_s, block_size):
    held = [prompt + i for i in range(1, output)]
    times = (float(prompt), float(output), prefill_s, step_s * (output - 1))
    assert f.token_seconds(*times) == pytest.approx(prompt * prefill_s + sum(held) * step_s)
    blocks = math.ceil(prompt / block_size) * prefill_s + sum(math.ceil(n / block_size) for n in held) * step_s
    assert f.block_seconds(*times, block_size) == pytest.approx(blocks)


def work(*segments):
    """Segments of (steps, bytes of KV, their growth, operations of attention, their growth)."""
    steps, read, read_growth, flops, flops_growth = np.array(segments, dtype=float).T
    first = {"kv_bytes": read, "attention_flops": flops}
    return StepWork.of(steps, first, {"kv_bytes": read_growth, "attention_flops": flops_growth})


def test_times_and_totals_of_steps_by_hand():
    # 100 bytes at 10 bytes/s are 10 s, 30 operations at 10 a second 3 s, and 1 s comes on top of each of 2 steps.
    two_steps = work((2, 100, 0, 30, 0))
    gpu = StepCosts.of_rates(10, 10, 1)
    assert segment_times_s(two_steps, gpu).tolist() == [22]
    assert segment_times_s(two_steps, gpu.model_copy(update={"overlap": False})).tolist() == [28]
    # 1, 3, 5, 7 bytes against 4 operations a step: 4 + 4 + 5 + 7.
    assert segment_times_s(work((4, 1, 2, 4, 0)), StepCosts.of_rates(1, 1, 0)).tolist() == [20]
    # Overhead adds to whatever decides.
    found = StepWork.of(np.array([3.0]), {"kv_bytes": 5, "sequences": 4, "layers": 2, "requests": 1}, {})
    costs = StepCosts(kv_bytes=1, sequences=0.5, layers=0.25, requests=7)
    assert segment_times_s(found, costs).tolist() == [3 * (5 + 2 + 0.5 + 7)]
    both = work((2, 10, 4, 6, 2), (3, 1, 0, 5, 0))
    totals = dict(zip(KINDS, single_steps(both).sum(axis=0), strict=True))
    assert (totals["steps"], totals["kv_bytes"], totals["attention_flops"]) == (5, 24 + 3, 14 + 15)
    part = both.part(np.array([1, 0]), np.array([2.0, 1.0]))
    assert (part.steps.tolist(), part.first[:, KINDS.index("kv_bytes")].tolist()) == ([2, 1], [1, 10])


NUMBERS = st.floats(0, 1e3)


@given(
    st.lists(st.tuples(st.integers(1, 60), NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5), st.booleans()
)
def test_a_segment_takes_as_long_as_its_steps_one_by_one(segments, overlap):
    costs = StepCosts.of_rates(3, 7, 0.5, overlap=overlap)
    found = [device_s(single_steps(work(segment)), costs).sum() for segment in segments]
    assert segment_times_s(work(*segments), costs) == pytest.approx(found, rel=1e-9)


# A device takes 5 s for each step; its host 2 s to launch one, and 10 s more for each layer that is launched by itself.
HOSTED = StepCosts(steps=5, launch=LaunchCosts(steps=2, piecewise_layers=10, start=1))


def steps_of(*launches):
    """Segments of (steps, layers that are launched one by one)."""
    steps, layers = np.array(launches, dtype=float).T
    return StepWork.of(steps, {"piecewise_layers": layers, "prompts": layers > 0}, {})


def test_the_device_waits_for_what_a_launch_takes_longer_than_the_work_before_and_of_the_step():
    work = steps_of((1, 2), (3, 0), (1, 2), (1, 2), (2, 0))
    waits = launch_waits_s(work, HOSTED)
    # At first nothing hides the launch but the step's own work: 22 - 5. The graph after it starts when it is launched.
    # Prompts are launched while a decode step runs: 22 - 5 - 5; those after them when these are launched.
    assert waits.tolist() == [17, 2, 12, 17, 2]
    assert segment_times_s(work, HOSTED).tolist() == [5, 15, 5, 5, 10]
    assert arrival_s(work, HOSTED) == 1
    # Without a history, the step before counts as one like it.
    assert usual_waits_s(work, HOSTED).tolist() == [12, 0, 12, 12, 0]
    # An engine that waits for each step launches nothing ahead.
    alone = HOSTED.model_copy(update={"launch": HOSTED.launch.model_copy(update={"ahead": False})})
    assert launch_waits_s(work, alone).tolist() == [17, 2, 17, 17, 2]
    # Where launching is slower than the work, the host sets the pace.
    slow = HOSTED.model_copy(update={"launch": LaunchCosts(steps=8)})
    work = steps_of((4, 0))
    assert (segment_times_s(work, slow) + launch_waits_s(work, slow)).tolist() == [4 * 8 + 5]

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.physics.step_time import KINDS, StepCosts, StepWork, segment_times_s, single_steps, split


def work(*segments):
    """Segments of (steps, bytes of KV, their growth, operations of attention, their growth)."""
    steps, read, read_growth, flops, flops_growth = np.array(segments, dtype=float).T
    first = {"kv_bytes": read, "attention_flops": flops}
    return StepWork.of(steps, first, {"kv_bytes": read_growth, "attention_flops": flops_growth})


def one_by_one(rows, costs):
    read, compute, overhead = split(rows, costs)
    return ((np.maximum(read, compute) if costs.overlap else read + compute) + overhead).sum()


def test_reading_hides_computing_on_a_gpu_and_adds_to_it_on_a_cpu():
    # 100 bytes at 10 bytes/s are 10 s, 30 operations at 10 a second 3 s, and 1 s comes on top of each of 2 steps.
    two_steps = work((2, 100, 0, 30, 0))
    gpu = StepCosts.of_rates(10, 10, 1)
    assert segment_times_s(two_steps, gpu).tolist() == [22]
    assert segment_times_s(two_steps, gpu.model_copy(update={"overlap": False})).tolist() == [28]


def test_the_kv_read_outgrows_computing_within_a_segment():
    # 1, 3, 5, 7 bytes against 4 operations a step: 4 + 4 + 5 + 7.
    assert segment_times_s(work((4, 1, 2, 4, 0)), StepCosts.of_rates(1, 1, 0)).tolist() == [20]


def test_overhead_adds_to_whatever_decides():
    found = StepWork.of(np.array([3.0]), {"kv_bytes": 5, "sequences": 4, "layers": 2, "requests": 1}, {})
    costs = StepCosts(kv_bytes=1, sequences=0.5, layers=0.25, requests=7)
    assert segment_times_s(found, costs).tolist() == [3 * (5 + 2 + 0.5 + 7)]


NUMBERS = st.floats(0, 1e3)


@given(
    st.lists(st.tuples(st.integers(1, 60), NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5), st.booleans()
)
def test_a_segment_takes_as_long_as_its_steps_one_by_one(segments, overlap):
    costs = StepCosts.of_rates(3, 7, 0.5, overlap=overlap)
    found = [one_by_one(single_steps(work(segment)), costs) for segment in segments]
    assert segment_times_s(work(*segments), costs) == pytest.approx(found, rel=1e-9)


def test_totals_and_parts():
    both = work((2, 10, 4, 6, 2), (3, 1, 0, 5, 0))
    totals = dict(zip(KINDS, both.totals(), strict=True))
    assert (totals["steps"], totals["kv_bytes"], totals["attention_flops"]) == (5, 24 + 3, 14 + 15)
    part = both.part(np.array([1, 0]), np.array([2.0, 1.0]))
    assert (part.steps.tolist(), part.first[:, KINDS.index("kv_bytes")].tolist()) == ([2, 1], [1, 10])


def test_costs_are_never_below_zero():
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        StepCosts(weight_bytes=-1)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.physics.step_time import StepConstants, StepWork, segment_times_s


def work(*segments):
    return StepWork(*np.array(segments, dtype=float).T)


def one_by_one(steps, read, read_growth, flops, flops_growth, constants):
    combine = max if constants.overlap else lambda *parts: sum(parts)
    return sum(
        combine(
            (read + i * read_growth) / constants.memory_bytes_per_s,
            (flops + i * flops_growth) / constants.flop_per_s,
        )
        + constants.step_overhead_s
        for i in range(steps)
    )


def test_reading_hides_computing_on_a_gpu_and_adds_to_it_on_a_cpu():
    # 100 bytes at 10 bytes/s are 10 s, 30 operations at 10 a second 3 s, and 1 s comes on top of each of 2 steps.
    two_steps = work((2, 100, 0, 30, 0))
    gpu = StepConstants(memory_bytes_per_s=10, flop_per_s=10, step_overhead_s=1)
    assert segment_times_s(two_steps, gpu).tolist() == [22]
    assert segment_times_s(two_steps, gpu.model_copy(update={"overlap": False})).tolist() == [28]


def test_the_kv_read_outgrows_computing_within_a_segment():
    # 1, 3, 5, 7 bytes against 4 operations a step: 4 + 4 + 5 + 7.
    constants = StepConstants(memory_bytes_per_s=1, flop_per_s=1, step_overhead_s=0)
    assert segment_times_s(work((4, 1, 2, 4, 0)), constants).tolist() == [20]


NUMBERS = st.floats(0, 1e3)


@given(
    st.lists(st.tuples(st.integers(1, 60), NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5),
    st.booleans(),
)
def test_a_segment_takes_as_long_as_its_steps_one_by_one(segments, overlap):
    constants = StepConstants(memory_bytes_per_s=3, flop_per_s=7, step_overhead_s=0.5, overlap=overlap)
    expected = [one_by_one(*segment, constants) for segment in segments]
    assert segment_times_s(work(*segments), constants) == pytest.approx(expected, rel=1e-9)


def test_totals_and_parts():
    both = work((2, 10, 4, 6, 2), (3, 1, 0, 5, 0))
    assert both.totals() == (5, 24 + 3, 14 + 15)
    part = both.part(np.array([1, 0]), np.array([2.0, 1.0]))
    assert (part.steps.tolist(), part.read_bytes.tolist()) == ([2, 1], [1, 10])


def test_rates_must_be_above_zero():
    with pytest.raises(ValueError, match="greater than 0"):
        StepConstants(memory_bytes_per_s=0, flop_per_s=1, step_overhead_s=0)

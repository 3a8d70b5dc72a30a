"""Arrival times: the requested mean rate, the requested shape, and the same times in every run."""

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from workflow_scripts.engines.openai.knobs import OpenAiKnobs
from workflow_scripts.engines.vllm.knobs import VllmServeKnobs
from workflow_scripts.workloads.arrivals import Load


def gaps(arrivals: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(arrivals)]


@given(rate=st.floats(0.01, 1000), shape=st.floats(0.05, 50), count=st.integers(1, 200), seed=st.integers(0, 5))
def test_arrivals_never_go_back_and_keep_the_mean_rate(rate, shape, count, seed):
    arrivals = Load(request_rate_per_s=rate, burstiness=shape).arrivals_s([0.0] * count, seed)
    assert len(arrivals) == count
    assert arrivals[0] == 0.0
    assert all(gap >= 0 for gap in gaps(arrivals))
    assert arrivals[-1] == pytest.approx((count - 1) / rate, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_the_shape_sets_how_much_gaps_vary(shape):
    """A gamma distribution of shape k has a coefficient of variation of 1 / sqrt(k)."""
    found = gaps(Load(request_rate_per_s=10.0, burstiness=shape).arrivals_s([0.0] * 20_000, seed=1))
    assert statistics.pstdev(found) / statistics.mean(found) == pytest.approx(shape**-0.5, rel=0.05)


def test_without_a_shape_arrivals_are_poisson_with_the_same_gaps_at_every_rate():
    slow, fast = (Load(request_rate_per_s=rate).arrivals_s([0.0] * 30, 7) for rate in (1.0, 8.0))
    assert slow == Load(request_rate_per_s=1.0, burstiness=1.0).arrivals_s([0.0] * 30, 7)
    assert slow != Load(request_rate_per_s=1.0).arrivals_s([0.0] * 30, 8)
    assert fast == pytest.approx([at / 8 for at in slow], abs=1e-7)


def test_a_ramp_gets_from_one_rate_to_the_other():
    """Constant gaps but for the rate: the first is one of rate 2, the last one of rate 10."""
    found = gaps(Load(request_rate_per_s=2.0, ramp_to_per_s=10.0, burstiness=1e8).arrivals_s([0.0] * 101, 0))
    assert found[0] == pytest.approx(1 / 2, rel=1e-2)
    assert found[-1] == pytest.approx(1 / 10, rel=1e-2)
    assert all(later < earlier for earlier, later in pairwise(found[::10]))


@pytest.mark.parametrize("knobs", [{"burstiness": 2.0}, {"ramp_to_per_s": 2.0}])
def test_what_shapes_a_rate_needs_one(knobs):
    with pytest.raises(ValidationError, match="needs request_rate_per_s"):
        Load(**knobs)


def test_the_load_is_in_the_cells_name_and_limits_its_concurrency():
    knobs = VllmServeKnobs(block_size=32, request_rate_per_s=4, burstiness=0.5, users=8)
    assert knobs.slug() == "bs32-rate4-burst0.5-users8"
    assert knobs.engine_arguments() == {"block_size": 32}
    assert OpenAiKnobs(endpoint="tgi", users=5).slug() == "at-tgi-users5"
    assert VllmServeKnobs(max_num_seqs=16, users=4).max_concurrency == 4
    assert VllmServeKnobs(max_num_seqs=16, users=40).max_concurrency == 16
    assert VllmServeKnobs(max_num_seqs=16, request_rate_per_s=4).max_concurrency == 16

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.physics import formulas as f

size = st.floats(1e6, 1e12)
rate = st.floats(1e9, 1e13)
tokens = st.integers(1, 100_000)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 4, 5, 13])
def test_pairs_within_reach_are_counted_one_by_one(tokens, chunked):
    far = [min(i % 4 + 1 if chunked else i + 1, 4) for i in range(tokens)]
    assert f.attended_tokens(float(tokens), 4, chunked) == sum(far)
    assert f.attended_tokens(np.array([float(tokens)]), 4, chunked).tolist() == [sum(far)]


@given(prompt=tokens, output=st.integers(1, 60), weights=size, per_token=st.floats(0, 1e6), bandwidth=rate)
def test_a_request_alone_takes_the_sum_of_its_steps(prompt, output, weights, per_token, bandwidth):
    steps = [weights] + [weights + (prompt + i) * per_token for i in range(output - 1)]
    time = f.request_time_min_s(1, prompt, output, weights, per_token, 0, bandwidth)
    assert time == pytest.approx(sum(steps) / bandwidth)


@given(tokens=st.integers(0, 500), block_size=st.sampled_from([1, 2, 8, 16, 100]))
def test_blocks_summed_is_the_sum(tokens, block_size):
    assert f.blocks_summed(float(tokens), block_size) == sum(math.ceil(n / block_size) for n in range(1, tokens + 1))


seconds = {"prefill_s": st.floats(0, 10), "step_s": st.floats(1e-3, 1)}


@given(prompt=st.integers(1, 300), output=st.integers(1, 100), block_size=st.sampled_from([1, 8, 16, 128]), **seconds)
def test_token_and_block_seconds_are_sums_over_the_steps_of_a_request(prompt, output, prefill_s, step_s, block_size):
    held = [prompt + i for i in range(1, output)]
    times = (float(prompt), float(output), prefill_s, step_s * (output - 1))
    assert f.token_seconds(*times) == pytest.approx(prompt * prefill_s + sum(held) * step_s)
    blocks = math.ceil(prompt / block_size) * prefill_s + sum(math.ceil(n / block_size) for n in held) * step_s
    assert f.block_seconds(*times, block_size) == pytest.approx(blocks)

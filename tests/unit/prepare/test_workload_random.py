"""Properties of workloads of random tokens, whatever the specification."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workflow_scripts.prepare.random_prompts import draw_length
from workflow_scripts.prepare.request import WorkloadError
from workflow_scripts.prepare.tokenizer import Vocabulary
from workflow_scripts.prepare.workload import WARMUP_REQUESTS, make_requests, make_warmup
from workflow_scripts.workloads import FixedWorkload, LengthDistribution, SharedPrefixWorkload, SyntheticWorkload


def no_text(text: str) -> list[int]:
    raise AssertionError("random prompts are ids; nothing is encoded")


# A vocabulary with gaps, as special tokens make them.
TEXT_IDS = np.array([i for i in range(3000) if i % 7])
VOCABULARY = Vocabulary(TEXT_IDS, no_text)

seeds = st.integers(0, 2**40)
tokens = st.integers(4, 40)


@st.composite
def distributions(draw):
    low = draw(st.integers(4, 30))
    return LengthDistribution(
        median=draw(st.floats(0.5, 500)),
        sigma=draw(st.floats(0, 3)),
        minimum=low,
        maximum=low + draw(st.integers(0, 60)),
    )


fixed = st.builds(
    FixedWorkload, kind=st.just("fixed"), num_prompts=st.just(1), seed=seeds, prompt_tokens=tokens, output_tokens=tokens
)
synthetic = st.builds(
    SyntheticWorkload,
    kind=st.just("synthetic"),
    num_prompts=st.just(1),
    seed=seeds,
    prompt_tokens=distributions(),
    output_tokens=distributions(),
)
shared_prefix = st.builds(
    SharedPrefixWorkload,
    kind=st.just("shared_prefix"),
    num_prompts=st.just(1),
    seed=seeds,
    prefix_tokens=tokens,
    prompt_tokens=tokens,
    output_tokens=tokens,
    share=st.floats(0, 1),
)
any_workload = st.one_of(fixed, synthetic, shared_prefix)
counts = st.integers(1, 24)


@given(any_workload, counts)
def test_prompts_are_made_of_the_ids_that_stand_for_text(spec, count):
    requests, _ = make_requests(spec, VOCABULARY, count)
    allowed = set(TEXT_IDS.tolist())
    assert len(requests) == count
    assert all(allowed.issuperset(request.prompt_token_ids) for request in requests)


@given(any_workload, counts)
def test_requests_and_warmup_are_json(spec, count):
    requests, stream = make_requests(spec, VOCABULARY, count)
    for i, request in enumerate([*requests, *make_warmup(spec, VOCABULARY, requests)]):
        line = request.as_line(str(i))
        assert json.loads(json.dumps(line)) == line
        assert ("prefix_tokens" in line) == (request.prefix_tokens > 0)
    assert stream.kind == spec.kind


@given(any_workload, counts, counts)
def test_the_first_requests_do_not_depend_on_how_many_follow(spec, few, more):
    short, _ = make_requests(spec, VOCABULARY, few)
    long, _ = make_requests(spec, VOCABULARY, few + more)
    assert long[:few] == short


@given(any_workload, counts)
def test_warmup_shares_no_block_with_the_workload(spec, count):
    requests, _ = make_requests(spec, VOCABULARY, count)
    warmup = make_warmup(spec, VOCABULARY, requests)
    assert len(warmup) == WARMUP_REQUESTS
    starts = {tuple(request.prompt_token_ids[:16]) for request in requests}
    assert starts.isdisjoint(tuple(request.prompt_token_ids[:16]) for request in warmup)


def test_a_warmup_that_cannot_differ_is_refused():
    spec = FixedWorkload(kind="fixed", num_prompts=1, prompt_tokens=1, output_tokens=1)
    vocabulary = Vocabulary(np.array([5, 6]), no_text)
    requests, _ = make_requests(spec, vocabulary, 50)
    with pytest.raises(WorkloadError, match="8 warm-up requests are needed"):
        make_warmup(spec, vocabulary, requests)


@given(fixed, counts)
def test_fixed_lengths(spec, count):
    requests, _ = make_requests(spec, VOCABULARY, count)
    assert {len(request.prompt_token_ids) for request in requests} == {spec.prompt_tokens}
    assert {request.output_tokens for request in requests} == {spec.output_tokens}


@given(synthetic, counts)
def test_drawn_lengths_keep_their_bounds(spec, count):
    requests, _ = make_requests(spec, VOCABULARY, count)
    for request in requests:
        assert spec.prompt_tokens.minimum <= len(request.prompt_token_ids) <= spec.prompt_tokens.maximum
        assert spec.output_tokens.minimum <= request.output_tokens <= spec.output_tokens.maximum


@given(shared_prefix, counts)
def test_a_share_of_the_requests_begins_with_the_prefix(spec, count):
    requests, _ = make_requests(spec, VOCABULARY, count)
    sharing = [request for request in requests if request.prefix_tokens]
    assert len(sharing) == math.ceil(count * spec.share)
    assert len({tuple(request.prompt_token_ids[: spec.prefix_tokens]) for request in sharing}) <= 1
    own = {tuple(request.prompt_token_ids[spec.prefix_tokens :]) for request in requests}
    assert len(own) == count
    assert {request.prefix_tokens for request in sharing} <= {spec.prefix_tokens}
    assert {len(request.prompt_token_ids) for request in requests} == {spec.prefix_tokens + spec.prompt_tokens}
    starts = [tuple(request.prompt_token_ids[:4]) for request in requests if not request.prefix_tokens]
    assert len(set(starts)) == len(starts)


@given(shared_prefix.filter(lambda spec: spec.share > 0.1))
def test_warmup_has_a_prefix_of_its_own(spec):
    requests, _ = make_requests(spec, VOCABULARY, 8)
    warmup = make_warmup(spec, VOCABULARY, requests)
    prefixes = [
        {tuple(r.prompt_token_ids[: spec.prefix_tokens]) for r in some if r.prefix_tokens}
        for some in (requests, warmup)
    ]
    assert len(prefixes[0]) == len(prefixes[1]) == 1
    assert prefixes[0] != prefixes[1]


@given(any_workload)
def test_another_seed_gives_other_prompts(spec):
    other = spec.model_copy(update={"seed": spec.seed + 1})
    assert make_requests(spec, VOCABULARY, 3)[0] != make_requests(other, VOCABULARY, 3)[0]


@settings(max_examples=3)
@given(any_workload)
def test_another_process_draws_the_same(spec):
    code = (
        "import json, sys\n"
        "import numpy as np\n"
        "from pydantic import TypeAdapter\n"
        "from workflow_scripts.prepare.tokenizer import Vocabulary\n"
        "from workflow_scripts.prepare.workload import make_requests\n"
        "from workflow_scripts.workloads import Workload\n"
        "spec = TypeAdapter(Workload).validate_json(sys.stdin.read())\n"
        "text_ids = np.array([i for i in range(3000) if i % 7])\n"
        "requests, _ = make_requests(spec, Vocabulary(text_ids, list), 5)\n"
        "print(json.dumps([r.as_line('') for r in requests]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=spec.model_dump_json(),
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [r.as_line("") for r in make_requests(spec, VOCABULARY, 5)[0]]


def test_lengths_follow_the_truncated_lognormal():
    distribution = LengthDistribution(median=60, sigma=1.2, minimum=4, maximum=256)
    rng = np.random.default_rng(1)
    # Half a token either way turns counts back into the continuous lengths that were rounded.
    drawn = np.array([draw_length(distribution, rng) for _ in range(4000)]) + rng.uniform(-0.5, 0.5, 4000)
    low, high = (np.log(bound / 60) / 1.2 for bound in (3.5, 256.5))
    assert stats.kstest(np.log(drawn / 60) / 1.2, stats.truncnorm(low, high).cdf).pvalue > 0.01


@pytest.mark.parametrize(("median", "expected"), [(1e-3, 16), (1e9, 64)])
def test_bounds_far_off_the_median_give_the_nearer_one(median, expected):
    distribution = LengthDistribution(median=median, sigma=0.1, minimum=16, maximum=64)
    assert draw_length(distribution, np.random.default_rng(0)) == expected

"""Properties of workloads of random tokens, for any specification."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from workflow_scripts.workloads.make_requests import make_requests, make_warmup
from workflow_scripts.workloads.random_prompts import draw_length, strata
from workflow_scripts.workloads.request import Request, Vocabulary, WorkloadError
from workflow_scripts.workloads.workload_kinds import (
    FixedWorkload,
    IdenticalWorkload,
    LengthDistribution,
    MultiTurnWorkload,
    SharedPrefixWorkload,
    SyntheticWorkload,
    Workload,
)


def no_text(_: object) -> list[int]:
    raise AssertionError("random prompts are ids; nothing is encoded")


# A vocabulary with gaps, as special tokens make them.
TEXT_IDS = np.array([i for i in range(3000) if i % 7])
VOCABULARY = Vocabulary(TEXT_IDS, no_text, no_text)

seeds = st.integers(0, 2**40)
tokens = st.integers(4, 40)


@st.composite
def distributions(draw):
    low = draw(st.integers(4, 30))
    bounds = {"minimum": low, "maximum": low + draw(st.integers(0, 60))}
    return LengthDistribution(median=draw(st.floats(0.5, 500)), sigma=draw(st.floats(0, 3)), **bounds)


def specs(kind, **fields):
    """Specifications of a kind of workload, of any seed."""
    known = {"kind": st.just(kind.model_fields["kind"].annotation.__args__[0]), "num_prompts": st.just(1)}
    return st.builds(kind, **known, **{"seed": seeds, "prompt_tokens": tokens, "output_tokens": tokens} | fields)


fixed = specs(FixedWorkload)
synthetic, drawn = (
    specs(SyntheticWorkload, prompt_tokens=distributions(), output_tokens=distributions(), lengths=st.just(lengths))
    for lengths in ("stratified", "drawn")
)
shared_prefix = specs(SharedPrefixWorkload, prefix_tokens=tokens, share=st.floats(0, 1), users=st.integers(1, 5))
identical = specs(IdenticalWorkload)
multi_turn = specs(MultiTurnWorkload, turns=st.integers(2, 5), users=st.integers(1, 4))
sharing = st.one_of(shared_prefix, identical, multi_turn)
any_workload = st.one_of(fixed, synthetic, drawn, sharing)
counts = st.integers(1, 24)


@given(st.one_of(fixed, drawn, sharing), counts, counts)
def test_the_first_requests_do_not_depend_on_how_many_follow(spec, few, more):
    short = make_requests(spec, VOCABULARY, few)
    long = make_requests(spec, VOCABULARY, few + more)
    assert long[:few] == short


@given(any_workload, counts)
def test_warmup_has_the_lengths_of_the_workload_and_shares_no_block_with_it(spec, count):
    requests = make_requests(spec, VOCABULARY, count)
    warmup = make_warmup(spec, VOCABULARY, requests)
    assert (len(requests), len(warmup)) == (count, count)
    lengths, of_warmup = (
        [(len(request.prompt_token_ids), request.output_tokens, request.prefix_tokens) for request in some]
        for some in (requests, warmup)
    )
    if min(lengths)[0] >= 4:  # shorter prompts may be the workload's own by chance, and are left out
        assert of_warmup == lengths
    of_requests, others = ({tuple(request.prompt_token_ids[:16]) for request in some} for some in (requests, warmup))
    assert of_requests.isdisjoint(others)
    for request in [*requests, *warmup]:
        line = request.as_line("0")
        assert json.loads(json.dumps(line)) == line
        assert ("prefix_tokens" in line) == ("prefix_id" in line) == (request.prefix_tokens > 0)
        assert {*TEXT_IDS.tolist()}.issuperset(request.prompt_token_ids)


def test_a_warmup_that_cannot_differ_and_a_limit_that_no_request_keeps_are_refused():
    spec = FixedWorkload(kind="fixed", num_prompts=1, prompt_tokens=1, output_tokens=1)
    vocabulary = Vocabulary(np.array([5, 6]), no_text, no_text)
    requests = make_requests(spec, vocabulary, 50)
    with pytest.raises(WorkloadError, match="50 warm-up requests are needed"):
        make_warmup(spec, vocabulary, requests)
    drawn = LengthDistribution(median=500, sigma=0.01, minimum=1, maximum=1000)
    lengths = {"prompt_tokens": drawn, "output_tokens": drawn}
    spec = SyntheticWorkload(kind="synthetic", num_prompts=1, max_total_tokens=20, **lengths)
    with pytest.raises(WorkloadError, match="max_total_tokens 20: 10000"):
        make_requests(spec, VOCABULARY, 1)


def in_common(a: Request, b: Request) -> int:
    """Tokens with which both prompts begin."""
    pairs = zip(a.prompt_token_ids, b.prompt_token_ids, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@given(sharing, counts)
def test_prompts_of_one_text_share_what_they_say_and_others_nothing(spec, count):
    requests = make_requests(spec, VOCABULARY, count)
    for a, b in itertools.combinations(requests, 2):
        said = min(a.prefix_tokens, b.prefix_tokens) if a.prefix_id is not None and a.prefix_id == b.prefix_id else 0
        # By chance two random tokens or more may be equal too.
        assert said <= in_common(a, b) <= said + 3


def test_one_users_prompts_are_those_of_a_study_without_users():
    """What was prepared before there were users is what would be prepared now."""
    lengths = {"prefix_tokens": 6, "prompt_tokens": 4, "output_tokens": 1}
    spec = SharedPrefixWorkload(kind="shared_prefix", num_prompts=1, seed=3, **lengths)
    (request,) = make_requests(spec, VOCABULARY, 1)
    prefix = VOCABULARY.random_ids(np.random.default_rng([3, 1]), 6)
    assert request.prompt_token_ids == prefix + VOCABULARY.random_ids(np.random.default_rng([3, 0, 0]), 10)[6:]
    assert not {"users", "max_total_tokens"} & spec.model_dump(mode="json").keys()


@given(sharing, counts)
def test_lengths_are_those_of_the_specification(spec, count):
    requests = make_requests(spec, VOCABULARY, count)
    assert [len(request.prompt_token_ids) for request in requests] == [spec.tokens_of_prompt(i) for i in range(count)]
    assert {(request.output_tokens, request.arrival_s) for request in requests} == {(spec.output_tokens, 0.0)}


@given(drawn, counts)
def test_what_is_too_long_is_left_out(spec, count):
    drawn = make_requests(spec, VOCABULARY, count)
    most = sorted(request.total_tokens for request in drawn)[count // 2]
    expected = [request for request in drawn if request.total_tokens <= most]
    capped = spec.model_copy(update={"max_total_tokens": most})
    requests = make_requests(capped, VOCABULARY, len(expected))
    assert requests == expected


@pytest.mark.parametrize(
    ("fields", "longest"),
    [
        ({"kind": "fixed"}, 24),
        ({"kind": "identical"}, 24),
        ({"kind": "shared_prefix", "prefix_tokens": 9}, 33),
        ({"kind": "multi_turn", "turns": 3}, 72),
    ],
)
def test_a_limit_below_the_lengths_that_the_study_says_is_refused(fields, longest):
    content = {"num_prompts": 1, "prompt_tokens": 16, "output_tokens": 8, **fields}
    adapter = TypeAdapter(Workload)
    assert adapter.validate_python({**content, "max_total_tokens": longest})
    words = f"max_total_tokens {longest - 1} is too small: requests have {longest} tokens"
    with pytest.raises(ValidationError, match=words):
        adapter.validate_python({**content, "max_total_tokens": longest - 1})


@given(any_workload)
def test_another_seed_gives_other_prompts(spec):
    other = spec.model_copy(update={"seed": spec.seed + 1})
    assert make_requests(spec, VOCABULARY, 3) != make_requests(other, VOCABULARY, 3)


def test_lengths_follow_the_truncated_lognormal():
    distribution = LengthDistribution(median=60, sigma=1.2, minimum=4, maximum=256)
    rng = np.random.default_rng(1)
    # Half a token either way turns counts back into the continuous lengths that were rounded.
    drawn = np.array([draw_length(distribution, rng) for _ in range(4000)]) + rng.uniform(-0.5, 0.5, 4000)
    low, high = (np.log(bound / 60) / 1.2 for bound in (3.5, 256.5))
    assert stats.kstest(np.log(drawn / 60) / 1.2, stats.truncnorm(low, high).cdf).pvalue > 0.01


@given(distributions(), counts)
def test_strata_lie_within_the_bounds_and_have_the_mean_of_the_distribution(distribution, count):
    middle = (distribution.minimum + distribution.maximum) / 2
    distribution = distribution.model_copy(update={"median": middle})
    lengths = strata(distribution, count)
    assert (len(lengths), lengths.min() >= distribution.minimum, lengths.max() <= distribution.maximum) == (
        *(count, True, True),
    )
    assert abs(lengths.sum() - strata(distribution, 1000).mean() * count) <= 1 + count / 1000


def test_every_number_of_requests_has_the_same_mix():
    chat = {"prompt_tokens": {"median": 152, "sigma": 1.4, "minimum": 4, "maximum": 1024}}
    chat |= {"output_tokens": {"median": 135, "sigma": 1.2, "minimum": 4, "maximum": 1024}}
    spec = SyntheticWorkload.model_validate({"kind": "synthetic", "num_prompts": 12, "prompts_per_seq": 2, **chat})
    means = []
    for sequences in (1, 4, 16, 64, 256):
        requests = make_requests(spec, VOCABULARY, spec.prompts_for(sequences))
        lengths = np.array([(len(request.prompt_token_ids), request.output_tokens) for request in requests])
        means.append(lengths.mean(axis=0))
        assert len(np.unique(lengths[:, 0])) > 0.4 * len(requests)
    assert np.ptp(means, axis=0) / np.mean(means, axis=0) == pytest.approx(0, abs=0.02)


def test_a_prompt_of_a_conversation_holds_the_answers_where_they_were_said():
    spec = MultiTurnWorkload(
        kind="multi_turn", num_prompts=1, turns=3, answers="real", think_s=2, prompt_tokens=5, output_tokens=3
    )
    requests = make_requests(spec, VOCABULARY, 6)
    assert [r.session for r in requests] == [0] * 3 + [1] * 3
    assert [list(r.answers) for r in requests] == [[], [(0, 5)], [(0, 5), (1, 13)], [], [(3, 5)], [(3, 5), (4, 13)]]
    for index, request in enumerate(requests):
        assert len(request.prompt_token_ids) == spec.tokens_of_prompt(index)
        assert (request.think_s > 0) == bool(request.answers)
        assert Request(**request.as_line("0")).as_line("0") == request.as_line("0")
    assert spec.total_tokens_needed() == spec.tokens_of_prompt(2) + 3
    assert all(not r.answers and r.session is None for r in make_warmup(spec, VOCABULARY, requests))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"answers": "real", "users": 2}, "the knob `users` says"),
        ({"think_s": 1}, "needs answers: real"),
        ({"turns": 1001}, "less than or equal to 1000"),
    ],
)
def test_conversations_that_cannot_be_made_are_refused(fields, words):
    lengths = {"turns": 2, "prompt_tokens": 1, "output_tokens": 1}
    with pytest.raises(ValidationError, match=words):
        MultiTurnWorkload(**{"kind": "multi_turn", "num_prompts": 1} | lengths | fields)

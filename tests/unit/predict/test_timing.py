import numpy as np
import pytest

from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.engines.steps import EngineSteps, Graphs, SchedulerSettings
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.physics.step_time import KINDS, LaunchCosts, StepCosts, segment_times_s, single_steps
from workflow_scripts.predict import timing
from workflow_scripts.predict.schedule import RequestLengths
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.static_batches import static_schedule
from workflow_scripts.predict.timing import time_schedule

TINY = get_model("tiny-llama-57m")
FACTS = read_model_facts(TINY.config, TINY.fixed_dtype)
A_SECOND_A_STEP = StepCosts(steps=1)


def by_kind(work):
    return dict(zip(KINDS, single_steps(work).sum(axis=0), strict=True))


def totals(work):
    """Steps, bytes read and operations in total."""
    of = by_kind(work)
    return of["steps"], of["weight_bytes"] + of["kv_bytes"], of["matrix_flops"] + of["attention_flops"]


def lengths(prompts, outputs, arrivals=None):
    arrival_s = None if arrivals is None else np.array(arrivals, dtype=float)
    return RequestLengths(np.array(prompts), np.array(outputs), arrival_s)


def settings(max_num_seqs, most=512):
    return SchedulerSettings(max_num_seqs, most, 16, 2 * most, async_scheduling=False)


def step_work(segments, facts, ranks=1, taken_in=0, **forms):
    """Work of steps that an engine forms with the settings `forms`."""
    return timing.step_work(segments, facts, EngineSteps(settings(1), 1024, **forms), ranks, taken_in)


def timed(requests, max_num_seqs, costs=None, step_time=None, **work):
    found = make_schedule(requests, settings(max_num_seqs), step_time)
    return time_schedule(found, step_work(found.segments, FACTS, **work), costs or A_SECOND_A_STEP, requests)


def test_the_work_of_steps_by_hand():
    # A prompt of 3 tokens and 3 answers: a prefill step, then steps that look at 4 and 5 tokens, of which 3 and 4 are
    # read from the cache.
    work = step_work(make_schedule(lengths([3], [3]), settings(1)).segments, FACTS)
    steps, read_bytes, flops = totals(work)
    assert steps == 3
    assert read_bytes == 3 * FACTS.decode_weight_bytes + (3 + 4) * FACTS.bytes_per_token()
    assert flops == FACTS.request_flops(3, 3)
    # A smaller type of the cache is read faster.
    segments = make_schedule(lengths([300], [8]), settings(1)).segments
    full, eight_bits = totals(step_work(segments, FACTS)), totals(step_work(segments, FACTS, kv_cache_dtype="fp8"))
    weights = full[0] * FACTS.decode_weight_bytes
    assert (full[1] - weights) / (eight_bits[1] - weights) == 4
    found = by_kind(step_work(make_schedule(lengths([3, 5], [3, 2]), settings(2)).segments, FACTS))
    # Both prompts in one step, both decoding in the next, one in the last.
    assert (found["prompts"], found["sequences"], found["layers"]) == (2, 2 + 2 + 1, 3 * FACTS.layers)


def test_under_one_mask_all_tokens_attend_to_all_sequences():
    # Two prompts of 30 and 40 tokens at once, then both decode: 72 tokens of KV with their new ones.
    two, six = (make_schedule(lengths([30, 40], [each, each]), settings(2)).segments for each in (2, 6))
    work = by_kind(step_work(two, FACTS, one_mask=True))
    (reach,) = FACTS.reaches
    assert work["attention_flops"] == (70 * 70 + 2 * 72) * reach.decode_pair_flops
    # Three query heads share a KV head here: put together (2), expanded (1 + 3) and read (3).
    assert work["kv_bytes"] == (70 + 72) * FACTS.bytes_per_token() * 9
    one_by_one = sum(2 * (72 + 2 * step) for step in range(5))
    attended = by_kind(step_work(six, FACTS, one_mask=True))["attention_flops"]
    assert attended == (70 * 70 + one_by_one) * reach.decode_pair_flops


def kv_of_a_step(model, dtype, ranks, tokens):
    """Bytes of KV that one of several ranks reads in a decode step of one sequence that has so many earlier tokens."""
    facts = read_model_facts(get_model(model).config, dtype)
    segments = make_schedule(lengths([tokens], [2]), settings(1, tokens)).segments
    return step_work(segments, facts, ranks=ranks).first[1, KINDS.index("kv_bytes")]


def test_ranks_share_matrices_and_the_kv_heads_that_they_can():
    segments = make_schedule(lengths([30, 40], [8, 9]), settings(2)).segments
    facts = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
    whole, half = totals(step_work(segments, facts)), totals(step_work(segments, facts, ranks=2))
    assert half == (whole[0], whole[1] / 2, whole[2] / 2)
    # DeepSeek-V3 keeps a latent vector of 512 + 64 elements in each of 61 layers: 70,272 bytes per token on every rank.
    assert [kv_of_a_step("deepseek-v3", "bfloat16", ranks, 256_000) for ranks in (1, 8)] == [256_000 * 70_272] * 2
    # Llama-3.1-8B has 8 KV heads: eight ranks keep one each, and sixteen too.
    per_rank = [kv_of_a_step("llama-3.1-8b-instruct", "bfloat16", ranks, 1000) for ranks in (1, 8, 16)]
    assert per_rank == [131_072_000, 16_384_000, 16_384_000]


def test_first_and_last_tokens_count_from_the_arrival():
    # One at a time, a second a step: the first request's tokens come after 1 to 3 s, the second's after 4 and 5 s.
    found = timed(lengths([3, 5], [3, 2]), 1)
    assert found.wall_s == pytest.approx(5)
    assert found.ttft_s == pytest.approx([1, 4])
    assert found.tpot_s == pytest.approx([1, 1])
    assert np.isnan(timed(lengths([3], [1]), 1).tpot_s).all()

    def step_time(segments):
        return segment_times_s(step_work(segments, FACTS), A_SECOND_A_STEP)

    found = timed(lengths([3, 3], [2, 2], arrivals=[0, 10]), 1, step_time=step_time)
    assert found.ttft_s == pytest.approx([1, 1])
    assert found.wall_s == pytest.approx(12)
    # Requests that an idle engine takes in delay the first step alone.
    found = timed(lengths([3, 5], [3, 2]), 2, StepCosts(steps=1, requests=0.25), taken_in=2)
    assert found.ttft_s == pytest.approx([1.5, 1.5])
    assert found.wall_s == pytest.approx(3.5)


def test_a_gpu_does_not_hide_arrivals_and_latency_counts_from_them():
    costs = StepCosts(steps=2, launch=LaunchCosts(steps=3, requests=0.25, start=0.5))
    found = timed(lengths([3, 5], [3, 2]), 2, costs, taken_in=2, graphs=Graphs(512))
    # It begins at 0.5, a launch and both arrivals take 3.5, and the work hides 2 of the next launch.
    assert found.arrival_s == pytest.approx(4)
    assert found.first_token_s == pytest.approx([7, 7])
    assert found.ttft_s == pytest.approx([6.5, 3])


def test_static_batches_are_padded_and_wait_for_their_longest():
    requests = lengths([3, 5, 4], [2, 4, 1])
    found = static_schedule(requests, 2)
    assert found.segments.steps.tolist() == [1, 3, 1]
    assert found.segments.prefill_tokens.tolist() == [10, 0, 4]
    assert found.segments.decode_kv_tokens.tolist() == [0, 12, 0]
    assert found.segments.waiting.tolist() == [1, 1, 0]
    assert found.first_token_step.tolist() == [0, 0, 4]
    assert found.last_token_step.tolist() == [1, 3, 4]
    times = time_schedule(found, step_work(found.segments, FACTS), A_SECOND_A_STEP, requests)
    assert times.ttft_s == pytest.approx([1, 1, 5])
    assert times.tpot_s[:2] == pytest.approx([1, 1])

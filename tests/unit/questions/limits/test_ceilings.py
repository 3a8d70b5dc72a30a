import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.made_models import shape
from tests.unit.made_rates import made_rates
from tests.unit.questions.parsed_tables import requests
from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.physics.model_facts import model_facts, read_model_facts
from workflow_scripts.physics.rate_ceiling import attention_cost
from workflow_scripts.questions.limits.ceilings import (
    KnownRates,
    least_steps,
    phase_flops,
    phase_times,
    rates_of,
)
from workflow_scripts.tables.work import request_sums

TINY = read_model_facts(get_model("tiny-llama-57m").config, "float32")
# One layer of 4 x 4 matrices and a vocabulary of 8: numbers small enough to add up by hand.
TOY = model_facts(shape("llama", layers=1, hidden=4, inner=4, heads=1, vocab=8, positions=1000), "float32")
CPU = get_gpu("cpu-all")


def rates(bandwidth=None, fp32=None, cache_bytes=0, source="measured", kind="cuda"):
    flops = None if fp32 is None else {"fp32": fp32}
    update = {"memory_bandwidth_bytes_per_s": bandwidth, "dense_flop_per_s": flops, "kind": kind}
    gpu = CPU.model_copy(update=update)
    return KnownRates(source, gpu, cache_bytes)


QWEN3_30B = read_model_facts(get_model("qwen3-30b-a3b").config)
SMALL = shape(hidden=64, inner=64, heads=2, kv_heads=1, head_dim=32, vocab=100, positions=1000)
WINDOWED = SMALL | shape("gemma3_text", layers=6, sliding_window=16)
HYBRID = SMALL | shape("qwen3_next", layers=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
HYBRID |= {"shared_expert_intermediate_size": 32, "linear_num_key_heads": 1, "linear_num_value_heads": 2}
HYBRID |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}


def work(rows, facts=TINY, tp=1, pp=1, dp=1, block_size=None, drafted=0, accepted=None, **columns):
    """One repeat of (prompt, output, cached) requests, ready for `phase_times`; a column that is not named is null."""
    limited = [reach for reach in facts.reaches if reach.limit is not None]
    blocks_of = pd.Series({"c": block_size}, dtype="Float64")
    sums = request_sums(requests("c", *rows), blocks_of, limited).reset_index()
    known = {"allowed": 256, "effective": None, "blocks": None} | columns
    names = {"allowed": "max_concurrency_allowed", "effective": "max_num_seqs_effective", "blocks": "num_gpu_blocks"}
    for name, value in known.items():
        sums[names[name]] = pd.array([value], dtype="Float64" if name == "blocks" else "Int64")
    sums["tensor_parallel_size"], sums["pipeline_parallel_size"], sums["data_parallel_size"] = tp, pp, dp
    sums["num_speculative_tokens"] = drafted
    sums["accepted_draft_tokens"] = pd.array([accepted], dtype="Float64")
    return sums.join(least_steps(sums))


def times(rows, facts=TINY, device=None, kv_cache_dtype="auto", **options):
    device = device or rates(1e9, 1e9)
    return phase_times(work(rows, facts=facts, **options), facts, device, kv_cache_dtype).iloc[0].to_dict()


# --- rates -------------------------------------------------------------------------------------------------------


def record(**changes):
    known = {"copy_bytes_per_s": 30e9, "last_level_cache_bytes": 32 * 2**20}
    known |= {"host_load": {"cpu_others_pct": 1.0, "cpu_steal_pct": 0.0}}
    return made_rates(25e9, 100e9, **known | changes)


def test_a_cpu_has_only_measured_rates(tmp_path):
    assert rates_of(CPU, tmp_path) == []
    # Reading may be faster than copying.
    for read, cache, bandwidth in ((25e9, 32 * 2**20, 30e9), (40e9, None, 40e9)):
        record(read_bytes_per_s=read, last_level_cache_bytes=cache).write(tmp_path / "cpu-all.json")
        (found,) = rates_of(CPU, tmp_path)
        assert (found.source, found.cache_bytes) == ("measured", cache or 0)
        assert (found.memory_bandwidth_bytes_per_s, found.flop_per_s(TINY)) == (bandwidth, 100e9)


def test_a_set_is_read_no_faster_than_the_next_smaller_one_and_all_larger_ones():
    by_size = {100: 90e9, 200: 80e9, 400: 85e9, 800: 26e9}
    found = record(read_bytes_per_s_by_size=by_size)
    asked = (99, 100, 250, 400, 799, 10**6)
    assert [found.rereading_bytes_per_s(size) for size in asked] == [None, 90e9, 85e9, 85e9, 85e9, 30e9]
    assert record().rereading_bytes_per_s(10**6) is None  # a record from before this was measured


def test_a_gpu_has_its_data_sheet_and_its_measured_rates(tmp_path):
    h200 = get_gpu("h200")
    (datasheet,) = rates_of(h200, tmp_path)
    assert datasheet == KnownRates("datasheet", h200, 0)
    record(gpu="h200", matmul_flop_per_s={"bf16": 700e12}).write(tmp_path / "h200.json")
    datasheet, measured = rates_of(h200, tmp_path)
    assert (datasheet.source, measured.source) == ("datasheet", "measured")
    # The data sheet says nothing of the cache; the record does, for both.
    assert datasheet.cache_bytes == measured.cache_bytes == 32 * 2**20
    assert datasheet.memory_bandwidth_bytes_per_s == 4.8e12
    llama = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
    assert datasheet.flop_per_s(llama) == 989.5e12
    assert measured.flop_per_s(llama) == 700e12
    # Quantized weights, or attention to a quantized cache, may run at the highest rate of the data sheet.
    awq = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16", "awq")
    assert datasheet.flop_per_s(awq) == 1979e12
    assert math.isnan(measured.flop_per_s(awq))
    costs = [[attention_cost(gpu, llama, kv) for kv in ("auto", "bfloat16", "fp8")] for gpu in (h200, CPU, None)]
    assert costs == [[1, 1, 0.5], [1, 1, 0], [1, 1, 0]]
    assert attention_cost(h200, awq, "fp8") == 1


# --- steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "options", "limit"),
    [
        ([(5, 4, 0)] * 3, {"allowed": 2}, (2, 6, "max_num_seqs")),
        # What took effect counts before what was asked.
        ([(5, 4, 0)] * 2, {"effective": 1}, (1, 8, "max_num_seqs")),
        ([(5, 4, 0)] * 2, {"allowed": 1, "effective": 2}, (2, 4, "requests")),
        ([(5, 4, 0)] * 2, {}, (2, 4, "requests")),
        ([(5, 10, 0), (5, 2, 0), (5, 1, 0)], {"allowed": 3}, (3, 10, "longest_request")),
        # Each request holds 2 blocks of 8 in each of its 4 steps; 5 blocks hold at most 2.5 of them.
        ([(9, 4, 0)] * 4, {"block_size": 8, "blocks": 5}, (4, math.ceil(4 * 4 * 2 / 5), "kv_blocks")),
        ([(9, 4, 0)] * 4, {"block_size": 8, "blocks": 7}, (4, 5, "kv_blocks")),
        ([(9, 4, 0)] * 4, {"block_size": 8, "blocks": 8}, (4, 4, "requests")),
    ],
)
def test_what_limits_the_sequences_and_the_steps(rows, options, limit):
    other = work([(10, 5, 0)])
    both = least_steps(pd.concat([other, work(rows, **options)]).set_index(pd.Index([7, 3])))  # steps stay with repeats
    found = work(rows, **options).iloc[0]
    assert both["steps_min"].to_dict() == {7: 5, 3: found["steps_min"]}
    assert (found["sequences_max"], found["steps_min"], found["steps_bound_by"]) == limit
    assert found["output_tokens_per_step_max"] == found["output_tokens"] / found["steps_min"]


# --- times -------------------------------------------------------------------------------------------------------


def test_times_of_one_request_alone():
    # 4 x (4 + 4 + 4 + 4) attention and 3 x 4 x 4 MLP parameters in the layer of the toy; 32 in the output matrix.
    prefill, decode = phase_flops(work([(3, 2, 1)]), TOY)
    assert prefill[0] == 2 * 112 * 2 + 2 * 32 + 4 * 4 * (2 + 3)
    assert decode[0] == 2 * 112 + 2 * 32 + 4 * 4 * 4
    assert TOY.request_flops(3, 2) == phase_flops(work([(3, 2, 0)]), TOY)[0][0] + decode[0]
    # Each of its 3 steps reads the weights; steps 2 and 3 also the KV of 10 and 11 tokens.
    found = times([(10, 3, 0)], device=rates(1e9, 1e9))
    prefill = TINY.request_flops(10, 1)
    expected = {"prefill_memory_s": TINY.decode_weight_bytes, "prefill_arithmetic_s": prefill}
    expected |= {"decode_memory_s": 2 * TINY.decode_weight_bytes + 21 * TINY.bytes_per_token()}
    expected |= {"decode_arithmetic_s": TINY.request_flops(10, 3) - prefill}
    assert {name: 1e9 * found[name] for name in expected} == pytest.approx(expected)
    # Alone it cannot read for one phase while it computes for the other.
    assert found["wall_s_min"] == pytest.approx(found["prefill_arithmetic_s"] + found["decode_memory_s"])
    assert not found["weights_fit_cache"]


def test_experts_that_no_token_needs_are_not_read():
    # The example of docs/limits.md.
    h200 = rates_of(get_gpu("h200"), get_model("opt-125m").config)[0]
    assert QWEN3_30B.parameters == 30_532_122_624
    found = times([(1000, 200, 0)] * 64, facts=QWEN3_30B, device=h200, allowed=16)
    memory_s = (800 * 6.0837e9 + 64 * sum(range(1000, 1199)) * 98304) / 4.8e12
    assert found["wall_s_min"] == pytest.approx(memory_s, rel=1e-4) == pytest.approx(1.3006, abs=1e-4)
    # 16 tokens touch 64.4 % of the experts of a layer if all are equally likely; 256 touch nearly all.
    assert QWEN3_30B.step_weight_bytes(1.0) == pytest.approx(QWEN3_30B.decode_weight_bytes)
    touched = QWEN3_30B.step_weight_bytes(np.array([16.0, 256.0])) / 1e9
    assert touched == pytest.approx([39.80, 60.44], abs=0.01)


def test_a_window_and_a_state_limit_what_is_read_and_computed():
    facts = model_facts(WINDOWED)
    (near, far) = facts.reaches
    prefill, decode = phase_flops(work([(20, 3, 0)], facts=facts), facts)
    layers, head, pairs = facts.layer_matmul_parameters, 100 * 64, 4 * 2 * 32
    within = sum(min(i, 16) for i in range(1, 21))
    assert prefill[0] == 2 * layers * 20 + 2 * head + pairs * (5 * within + 210)
    assert decode[0] == 2 * (layers + head) * 2 + pairs * (5 * (16 + 16) + 21 + 22)
    device = rates(1e9, 1e15)
    kv_s = 2 * 32 * 4 * (5 * (15 + 15) + 20 + 21) / 1e9
    found = times([(20, 3, 0)], facts=facts, device=device)
    assert found["decode_memory_s"] == pytest.approx(2 * facts.decode_weight_bytes / 1e9 + kv_s)
    assert (near.suffix, far.suffix) == ("_window_16", "")

    facts = model_facts(HYBRID)
    found = times([(20, 3, 0)], facts=facts, device=device)
    moved = 2 * 2 * facts.state_bytes() + 2 * 32 * 4 * (20 + 21)
    assert found["decode_memory_s"] == pytest.approx((2 * facts.decode_weight_bytes + moved) / 1e9)


def test_cached_prefixes_are_not_computed_and_their_kv_is_read_once_a_step():
    alone = times([(100, 2, 0), (100, 2, 0)])
    shared = times([(100, 2, 0), (100, 2, 64)])
    kv = TINY.bytes_per_token()
    # One step of two sequences: 2 x 100 tokens, or 64 once and 2 x 36.
    assert (alone["decode_memory_s"] - shared["decode_memory_s"]) * 1e9 == pytest.approx(64 * kv)
    saved = TINY.request_flops(64, 1) - TINY.request_flops(0, 1)
    assert (alone["prefill_arithmetic_s"] - shared["prefill_arithmetic_s"]) * 1e9 == pytest.approx(saved)
    assert shared["decode_arithmetic_s"] == alone["decode_arithmetic_s"]
    # Half as large a type of the cache is read twice as fast.
    full, half = (times([(100, 3, 0)], kv_cache_dtype=t)["decode_memory_s"] * 1e9 for t in ("auto", "float16"))
    assert full - half == pytest.approx((full - 2 * TINY.decode_weight_bytes) / 2)


def in_cache(cache_bytes, by_size):
    device = rates(1e9, 1e12, cache_bytes=cache_bytes, kind="cpu")
    return replace(
        device, measured=record(read_bytes_per_s=1e9, copy_bytes_per_s=1e9, read_bytes_per_s_by_size=by_size)
    )


def test_weights_in_the_cache_are_read_at_its_rate_and_what_it_keeps_is_not_read_again():
    size = TINY.decode_weight_bytes
    found = times([(10, 3, 0)], device=in_cache(size, {2**20: 9e9, size - 1: 4e9, 4 * size: 1e9}))
    assert found["weights_fit_cache"]
    kv_bytes = (10 + 11) * TINY.bytes_per_token()
    assert found["prefill_memory_s"] == pytest.approx(size / 4e9)
    assert found["decode_memory_s"] == pytest.approx((2 * size + kv_bytes) / 4e9)
    # Where its rate was not measured, nothing is said of what it keeps.
    for device in (in_cache(size, {4 * size: 1e9}), rates(1e9, 1e9, cache_bytes=size)):
        unmeasured = times([(10, 3, 0)], device=device)
        assert unmeasured["weights_fit_cache"]
        assert unmeasured["prefill_memory_s"] == unmeasured["decode_memory_s"] == 0
        assert unmeasured["wall_s_min"] == pytest.approx(TINY.request_flops(10, 3) / device.flop_per_s(TINY))
    # A byte over the cache does not make the weights free: the rest comes no faster than from the cache.
    measured = ((in_cache(cache, {2**20: 4e9}), bound_s) for cache, bound_s in ((size - 1, 1 / 4), (size // 2, 1 / 2)))
    for device, bound_s in (*measured, (rates(1e9, 1e9, size // 2), 1 / 2)):
        partly = times([(10, 3, 0)], device=device)
        assert not partly["weights_fit_cache"]
        assert partly["prefill_memory_s"] == pytest.approx(size * bound_s / 1e9, rel=1e-6)


def test_ranks_add_up_but_stages_read_their_weights_in_turn():
    one = times([(10, 3, 0)] * 4)
    tensor = times([(10, 3, 0)] * 4, tp=2)
    for name in ("prefill_memory_s", "decode_memory_s", "prefill_arithmetic_s", "decode_arithmetic_s", "wall_s_min"):
        assert tensor[name] == pytest.approx(one[name] / 2)
    pipeline = times([(10, 3, 0)] * 4, pp=2)
    assert pipeline["prefill_memory_s"] == pytest.approx(one["prefill_memory_s"])
    kv_s = 4 * 21 * TINY.bytes_per_token() / 1e9
    assert pipeline["decode_memory_s"] == pytest.approx(one["decode_memory_s"] - kv_s / 2)
    assert pipeline["decode_arithmetic_s"] == pytest.approx(one["decode_arithmetic_s"] / 2)
    partly = times([(10, 3, 0)] * 4, tp=2, device=rates(1e9, 1e9, cache_bytes=10**6))
    assert tensor["prefill_memory_s"] - partly["prefill_memory_s"] == pytest.approx(2 * 1e6 / 2e9)
    cached = times([(10, 3, 0)], tp=2, pp=2, device=rates(1e9, 1e9, cache_bytes=TINY.decode_weight_bytes // 4))
    assert cached["weights_fit_cache"]


def test_engines_side_by_side_have_as_many_sequences_each_and_read_weights_of_their_own():
    rows, device = [(10, 3, 0)] * 8, rates(1e9, 1e9)
    one, two = (times(rows, device=device, dp=dp, effective=2) for dp in (1, 2))
    for name in ("prefill_memory_s", "decode_memory_s", "prefill_arithmetic_s", "decode_arithmetic_s"):
        assert two[name] == pytest.approx(one[name] / 2), name
    # They share experts, so that the weights are at least read once for both.
    experts = model_facts(HYBRID)
    shared = [times(rows, experts, device=device, dp=dp, effective=4 // dp)["prefill_memory_s"] for dp in (1, 2)]
    assert shared[1] == pytest.approx(shared[0] / 2)
    # Ranks on a CPU share it and shorten nothing.
    cpu = rates(1e9, 1e9, kind="cpu", cache_bytes=2**20)
    assert times(rows, device=cpu, dp=2, effective=1) == times(rows, device=cpu, effective=2)
    assert times(rows, device=cpu, tp=2, pp=2) == times(rows, device=cpu)


def test_a_rate_that_is_not_known_limits_nothing():
    memory = times([(10, 3, 0)], device=rates(1e9, None))
    assert np.isnan(memory["prefill_arithmetic_s"])
    assert memory["wall_s_min"] == pytest.approx(memory["prefill_memory_s"] + memory["decode_memory_s"])
    arithmetic = times([(10, 3, 0)] * 2, device=rates(None, 1e9))
    assert np.isnan(arithmetic["decode_memory_s"])
    assert arithmetic["wall_s_min"] == pytest.approx(2 * TINY.request_flops(10, 3) / 1e9)


# --- no schedule is faster ---------------------------------------------------------------------------------------


def best_schedule_s(rows, allowed, bytes_per_s, flop_per_s, cache_bytes=0, prefix_cached=False, accepts=None):
    """Time of an ideal engine that fills every step, each as long as the slower of reading and computing.

    With `prefix_cached` all sequences of a step read their common prefix once. `accepts` says how many drafted tokens
    a sequence accepts in a step, of one that has so many tokens left.
    """
    waiting = [SimpleNamespace(prompt=p, left=o, cached=c, held=0) for p, o, c in rows]
    prefix = max((c for _, _, c in rows), default=0) if prefix_cached else 0
    running, total_s = [], 0.0
    while waiting or running:
        started = [waiting.pop(0) for _ in range(min(allowed - len(running), len(waiting)))]
        flops = sum(
            TINY.request_flops(r.prompt, 1) - TINY.request_flops(r.cached, 1) + TINY.request_flops(0, 1)
            for r in started
        )
        gained = [1 + (accepts(r.left) if accepts else 0) for r in running]
        flops += sum(
            TINY.request_flops(r.held + i, 2) - TINY.request_flops(r.held + i, 1)
            for r, tokens in zip(running, gained, strict=True)
            for i in range(tokens)
        )
        common = [min(prefix, r.prompt) for r in running]
        kv_tokens = sum(r.held for r in running) - sum(common) + max(common, default=0)
        read = max(0, TINY.decode_weight_bytes + kv_tokens * TINY.bytes_per_token() - cache_bytes)
        total_s += max(read / bytes_per_s, flops / flop_per_s)
        for r in started:
            r.held = r.prompt - 1
        running += started
        for r, tokens in zip(running, gained + [1] * len(started), strict=True):
            r.left, r.held = r.left - tokens, r.held + tokens
        running = [r for r in running if r.left]
    return total_s


@settings(max_examples=100)
@given(
    rows=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 12)), min_size=1, max_size=7),
    allowed=st.integers(1, 4),
    intensity=st.floats(0.1, 1000),
    cache_bytes=st.sampled_from([0, 10**8, 10**9]),
    prefix=st.integers(0, 200),
    drafted=st.integers(0, 5),
    told=st.booleans(),
    data=st.data(),
)
def test_no_schedule_beats_the_shortest_time(rows, allowed, intensity, cache_bytes, prefix, drafted, told, data):
    cached = [(p, o, min(prefix, p - 1) if i else 0) for i, (p, o) in enumerate(rows)]
    steps = sum(o for _, o in rows)
    lucky = iter(data.draw(st.lists(st.integers(0, drafted), min_size=steps, max_size=steps)))
    accepted = []

    def accepts(left):
        accepted.append(min(next(lucky), left - 1))
        return accepted[-1]

    flop_per_s = intensity * 1e9
    reached = best_schedule_s(cached, allowed, 1e9, flop_per_s, cache_bytes, prefix > 0, accepts)
    drafts = {"drafted": drafted, "accepted": sum(accepted) if told else None}
    least = times(cached, device=rates(1e9, flop_per_s, cache_bytes), allowed=allowed, **drafts)["wall_s_min"]
    assert least <= reached * (1 + 1e-9)


@pytest.mark.parametrize(
    ("rows", "drafts", "steps"),
    [
        # Of 9 output tokens 6 were drafted and accepted, so the sequence has 3 steps.
        ([(1, 9, 0)], {"accepted": 6}, 3),
        # How many were accepted is not known: at most three of every four after the first, which the prefill gives.
        ([(1, 9, 0)], {}, 3),
        ([(1, 8, 0), (1, 2, 0)], {}, 4),
        # No engine may claim more than was drafted, and without drafts nothing is accepted.
        ([(1, 9, 0)], {"accepted": 8}, 3),
        ([(1, 9, 0)], {"drafted": 0, "accepted": 6}, 9),
    ],
)
def test_accepted_tokens_save_steps(rows, drafts, steps):
    found = work(rows, allowed=1, **({"drafted": 3} | drafts)).iloc[0]
    assert (found["sequence_steps_min"], found["steps_min"]) == (steps, steps)
    assert found["output_tokens_per_step_max"] == sum(output for _, output, _ in rows) / steps

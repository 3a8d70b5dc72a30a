"""Checks of claims: what each comparison decides, under which conditions, and from which tables."""

import math

import pytest

from tests.unit.analyse.claim_evidence import LLAMA, PUBLISHED, claim, evidence, findings, judged, republished
from tests.unit.analyse.synthetic_cells import around, cell
from workflow_scripts.analyse.claims import claim_checks
from workflow_scripts.analyse.claims.evidence import COMPUTED, CONTRADICTED, MEASURED, NOT_TESTABLE, SUPPORTED, verdict
from workflow_scripts.analyse.intervals.statistics import CHANGES, FLAT, NOT_DECIDED
from workflow_scripts.catalog.published import Check, Claim, PublishedError

ROW = {"knob": "max_num_seqs", "engine": "vllm", "comparison": "overall", "cell_id": "fast", "baseline_cell_id": "slow"}
ROW |= {"value": "256", "baseline": "1", "verdict": CHANGES, "values": "1, 256"}
SEQS_TABLE = "paged_attention_lab_max_num_seqs.csv"
SLOW = [{"gpu": "H200", "max_num_seqs": n, "throughput_tok_s": 100, "approximate": False} for n in (1, 256)]
# Lengths of ShareGPT, of 200 requests
SHAREGPT = {"num_requests": 200, "prompt_tokens": 200 * 216, "output_tokens": 200 * 188}


def found_by(of, *checks, **quantity):
    """What these checks find on one quantity, `rate`."""
    content = {"id": "one", "source": "lab", "label": "published", "text": "It is so."}
    quantities = [{"name": "rate", "unit": "ratio"} | (quantity or {"min": 2, "max": 3})]
    checks = [{"quantity": "rate", "rows": {"table": "effects"}, "value": "ratio"} | check for check in checks]
    made = Claim.model_validate(content | {"quantities": quantities, "checks": checks})
    found = list(claim_checks.findings(made, of))
    return found, verdict(found, claim_checks.parts(made))


def effects(low, high=None, **columns):
    high = low if high is None else high
    return evidence(effects=[ROW | {"ratio": (low + high) / 2, "ratio_low": low, "ratio_high": high} | columns])


ENDS = {"low": "ratio_low", "high": "ratio_high"}


# --- a range ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (2.0, 3.0, SUPPORTED),
        (1.9, 2.5, NOT_TESTABLE),
        (2.5, 3.1, NOT_TESTABLE),
        (1.0, 4.0, NOT_TESTABLE),
        (3.1, 3.2, CONTRADICTED),
        (1.0, 1.9, CONTRADICTED),
        (math.nan, math.nan, NOT_TESTABLE),
    ],
)
def test_the_whole_interval_must_lie_inside_or_outside_the_range(low, high, verdict):
    assert found_by(effects(low, high), ENDS)[1] == verdict


@pytest.mark.parametrize(
    ("quantity", "check", "number", "verdict"),
    [
        ({"value": 10}, {}, 10, SUPPORTED),
        ({"value": 10}, {}, 10.1, CONTRADICTED),
        ({"value": 10}, {"tolerance_pct": 10}, 10.9, SUPPORTED),
        ({"value": 10}, {"tolerance_pct": 10}, 8.9, CONTRADICTED),
        ({"value": 10}, {"tolerance": 2}, 12, SUPPORTED),
        ({"max": 10}, {}, -99, SUPPORTED),
        ({"min": 10}, {}, 9.9, CONTRADICTED),
        ({"value": 10}, {"stated": {"max": 1}}, 0.5, SUPPORTED),  # of a quotient with the quantity, say
        ({"value": 10}, {"decides": ["contradicted"]}, 10, NOT_TESTABLE),
        ({"value": 10}, {"decides": ["supported"]}, 11, NOT_TESTABLE),
        ({"value": 10}, {"value": "ratio * @rate"}, 1, SUPPORTED),
    ],
)
def test_what_is_stated_has_ends_and_a_tolerance(quantity, check, number, verdict):
    assert found_by(effects(number), check, **quantity)[1] == verdict


@pytest.mark.parametrize(
    ("check", "columns", "bears"),
    [
        ({}, {}, True),
        ({}, {"gpu": "cpu-all"}, False),
        ({"gpus": ["L4"]}, {}, False),
        ({"gpus": ["A100 PCIe"]}, {"gpu": "a100-pcie-40gb"}, True),
        ({"models": [LLAMA]}, {"model": "opt-125m"}, False),
        ({"under": "workload == 'chat'"}, {}, True),
        ({"under": "workload == 'other'"}, {}, False),
        ({"under": "took_effect == True"}, {}, False),  # null
        ({"unstated": True}, {}, False),
    ],
)
def test_a_measurement_decides_only_under_the_stated_conditions(check, columns, bears):
    (found,), said = found_by(effects(9, **columns), check)
    assert (found.bears, found.says) == (bears, CONTRADICTED if bears else None)
    assert said == (CONTRADICTED if bears else NOT_TESTABLE)
    assert found.ids == ("fast", "slow")


def test_rows_of_another_source_keep_its_label():
    assert found_by(effects(9, source="measured elsewhere"), {})[0][0].label == "measured elsewhere"
    assert found_by(effects(9), {})[0][0].label == MEASURED


def test_a_claim_of_two_numbers_needs_support_for_both():
    two = {"rows": {"table": "effects", "where": "knob == 'none'"}, "at": {"utilization": 1}}
    of = effects(2.5)
    content = PUBLISHED.claim("h200-over-l40s").model_dump() | {
        "quantities": [
            {"name": "rate", "unit": "s", "min": 2},
            {"name": "rate", "unit": "s", "min": 2, "at": two["at"]},
        ],
        "checks": [{"quantity": "rate", "rows": {"table": "effects"}, "value": "ratio"}],
    }
    one = Claim.model_validate(content)
    assert verdict(claim_checks.findings(one, of), claim_checks.parts(one)) == SUPPORTED
    both = Claim.model_validate(content | {"checks": [*content["checks"], content["checks"][0] | two]})
    assert verdict(claim_checks.findings(both, of), claim_checks.parts(both)) == NOT_TESTABLE


def test_rows_are_filtered_joined_averaged_and_chosen():
    of = evidence(
        cells=[
            cell({"max_num_seqs": n}, around(rate), wall_s=float(n), requests_per_s=None)
            for n, rate in ((1, 100.0), (4, 400.0), (16, 500.0))
        ]
    )
    cells = {"table": "cells", "where": "knob_max_num_seqs > 1", "intervals": ["output_tokens_per_s"]}
    one = cells | {"where": "knob_max_num_seqs == 1", "same": ["gpu", "model", "workload"]}
    rate = "output_tokens_per_s / output_tokens_per_s_b"

    def numbers(**check):
        check = Check.model_validate({"rows": cells, "beside": [one], "value": rate} | check)
        rows = claim_checks.rows_of(claim("h200-over-l40s"), check, of)
        return rows["found"].round(3).tolist(), rows["found_low"].round(2).tolist()

    low = "output_tokens_per_s_low / output_tokens_per_s_b"
    assert numbers(low=low) == ([4, 5], [3.99, 4.99])
    assert numbers(where="wall_s > 4 * wall_s_b")[0] == [5]
    assert numbers(by=["gpu"])[0] == [4.5]
    assert numbers(highest=["output_tokens_per_s"], per=["gpu"])[0] == [5]
    assert numbers(beside=[{"table": "models"}], models=["opt-125m"], value="wall_s * layers")[0] == [48, 192]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ({"value": "speed"}, "claims.yaml: one: effects: name 'speed' is not defined"),
        ({"rows": {"table": "speeds"}}, "one: speeds: 'speeds'"),
        ({"text": "{speed}"}, "one: effects: 'speed'"),
        ({"value": "ratio +"}, "one: effects: "),
        ({"quantity": "speed"}, "one: no quantity 'speed'; there are: rate"),
        ({"rows": {"table": "published"}}, "one: needs a table"),
    ],
)
def test_a_check_that_names_what_does_not_exist_is_refused(check, message):
    with pytest.raises(PublishedError, match=message):
        found_by(effects(1), check)


def test_without_rows_there_is_no_evidence():
    assert found_by(evidence(), ENDS | {"under": "ratio > 1"}) == ([], NOT_TESTABLE)


# --- flatness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said", "verdict"),
    [
        ("1, 4, 256", FLAT, SUPPORTED),
        ("1, 64", FLAT, NOT_TESTABLE),  # not the whole range
        ("4, 256", FLAT, NOT_TESTABLE),
        ("1, 64", CHANGES, CONTRADICTED),
        ("1, 256", NOT_DECIDED, NOT_TESTABLE),
        ("1, 512", CHANGES, NOT_TESTABLE),  # what changed may be beyond the range
        ("1, 256, 512", FLAT, NOT_TESTABLE),
    ],
)
def test_flatness_is_decided_within_the_range(values, said, verdict):
    of = effects(math.nan, values=values, verdict=said)
    assert (
        found_by(of, {"compare": "flat", "quantity": "max_num_seqs"}, name="max_num_seqs", min=1, max=256)[1] == verdict
    )


def blocks(low, high, verdict=NOT_DECIDED, baseline="16", comparison="pair"):
    row = {"knob": "block_size", "values": "16, 32, 64", "value": "32", "baseline": baseline, "verdict": verdict}
    return effects(low, high, comparison=comparison, **row)


@pytest.mark.parametrize(
    ("of", "verdict"),
    [
        (blocks(0.95, 1.07), SUPPORTED),  # of 8, 16 and 32 no GPU takes 8
        (blocks(0.95, 1.12), NOT_TESTABLE),
        (blocks(0.99, 1.01, baseline="64"), NOT_TESTABLE),  # beyond the claim
        (blocks(math.nan, math.nan), NOT_TESTABLE),
        (blocks(1.03, 1.05, CHANGES), CONTRADICTED),
        (blocks(0.8, 1.3, comparison="overall"), NOT_TESTABLE),
    ],
)
def test_pairs_of_the_claimed_values_decide_where_others_were_measured_too(of, verdict):
    assert (
        found_by(of, {"compare": "flat", "quantity": "block_size"}, name="block_size", values=[8, 16, 32])[1] == verdict
    )


# --- tables that are made of what is known ---------------------------------------------------------------------------


def test_the_ceiling_of_one_sequence_contradicts_flatness_on_every_gpu(tmp_path):
    seqs = "throughput-flat-over-max-num-seqs"
    found = findings(seqs, evidence())
    assert [(f.label, f.says) for f in found] == [(COMPUTED, CONTRADICTED)] * 4
    assert {f.scope for f in found} >= {f"H200, {LLAMA}, 200 + 200 tokens per request"}
    h200 = next(f.text for f in found if "of H200" in f.text)
    assert all(number in h200 for number in ("11,939", "18.7 times", "19 sequences", "36.4 times"))
    slow = evidence(republished(tmp_path, {SEQS_TABLE: [SLOW[0] | {"gpu": "H300"}, *SLOW]}))
    (possible,) = findings(seqs, slow)  # the H300 has no ceiling
    assert (possible.says, "0.157 times" in possible.text) == (None, True)


def test_the_published_rate_that_is_furthest_above_the_measured_one_is_told():
    cells = [
        cell({"max_num_seqs": n}, (1.0,), gpu=gpu, total_tokens_per_s=rate, **SHAREGPT)
        for n, rate, gpu in ((1, 760.0, "h200"), (256, 20_000.0, "h200"), (1, 9.0, "l4"), (7, 9.0, "h200"))
    ]
    (furthest,) = findings("throughput-flat-over-max-num-seqs", evidence(cells=cells))[4:]
    assert "760 tokens/s" in furthest.text
    assert "11,939, which is 15.7 times" in furthest.text


@pytest.mark.parametrize("field", ["itl_p50", "max_batch_size"])
def test_a_step_or_a_rate_beyond_the_hardware_contradicts(tmp_path, field):
    rows = {"throughput": (2400, 1800, 400), "itl_p50": (8, 10, 25), "max_batch_size": (256, 128, 16)}
    rows[field] = (1, *rows[field][1:])
    table = [{"metric": m, "vllm": a, "tgi": b, "hf": c} for m, (a, b, c) in rows.items()]
    of = evidence(republished(tmp_path, {"engines_a100_80gb_llama31_8b.csv": table}))
    assert judged("engines-on-one-a100", evidence()) == NOT_TESTABLE
    assert [f.text.partition(":")[0] for f in findings("engines-on-one-a100", of) if f.says] == ["vllm"]


# --- the published claims --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim_id", "numbers", "verdict"),
    [
        # 2 x 80 layers x 8 KV heads x 128 x 2 bytes x 4,096 tokens are 1,342,177,280 bytes
        ("kv-of-llama-3-70b", {}, CONTRADICTED),
        ("kv-of-llama-3-70b", {"kv_cache": 1.34}, SUPPORTED),
        ("kv-of-llama-3-70b", {"kv_cache": 1.21}, CONTRADICTED),
        ("kv-of-a-batch-of-llama-3-70b", {"kv_cache": 43}, SUPPORTED),
        ("llama-70b-on-a100s", {"gpus": 4}, CONTRADICTED),
        ("contiguous-allocation-example", {"waste": 62.54}, SUPPORTED),
        ("contiguous-allocation-example", {"waste": 62.6}, CONTRADICTED),
        ("contiguous-allocation-example", {"tokens_used": [1024, 512]}, CONTRADICTED),
        ("empty-slots-per-sequence", {"empty_slots_per_sequence": (None, 14)}, CONTRADICTED),
        ("empty-slots-per-sequence", {"block_size": 32}, CONTRADICTED),
        ("hf-generate-on-a100", {"tokens_per_s": 200}, NOT_TESTABLE),
        ("hf-generate-on-a100", {"batch_size": 2}, NOT_TESTABLE),
        ("block-size-by-length", {"block_size_short": 16}, NOT_TESTABLE),
        # 50 of 512 slots leave 90.2 %
        ("waste-of-512-slots", {"waste": 84}, CONTRADICTED),
        # Blocks of 16: prompts of 6 tokens have no full one, those of 1,601 have 100.
        ("prefix-hit-rate-of-identical-prompts", {"prefix_hit_rate": 0}, SUPPORTED),
        ("prefix-hit-rate-of-identical-prompts", {"prompt_tokens": 1601, "prefix_hit_rate": 87.4}, SUPPORTED),
        ("capacity-of-32k-for-4k-chats", {"p99_tokens": 8192}, CONTRADICTED),
    ],
)
def test_arithmetic_decides(claim_id, numbers, verdict):
    assert judged(claim_id, evidence(), **numbers) == verdict


@pytest.mark.parametrize(
    ("peak", "columns", "verdict"),
    [
        (200, {}, CONTRADICTED),
        (101, {}, CONTRADICTED),
        (100, {}, SUPPORTED),
        (200, {"gpu": "l4"}, NOT_TESTABLE),
        (200, {"prompt_tokens": 200 * 64}, NOT_TESTABLE),  # other lengths than ShareGPT's
    ],
)
def test_one_peak_above_100_contradicts_never_more_than_100(peak, columns, verdict):
    counts = SHAREGPT | {"running_peak": float(peak), "running_mean": 60.0} | columns
    assert (
        judged("prompts-limit-concurrency", evidence(cells=[cell({"max_num_seqs": 256}, (1.0,), **counts)])) == verdict
    )


def pools(users, gpu="h200", length=512, output=50, peak=36.0, prompt=77):
    """Cells with blocks of 16 and with whole reservations, in 4,096 tokens; `users` of each while others wait."""
    return evidence(
        cells=[
            cell(
                {"block_size": size, "num_gpu_blocks_override": 4096 // size + 1, "max_num_seqs": 256},
                (1.0, 1.0, 1.0),
                gpu=gpu,
                block_size_effective=size,
                num_gpu_blocks=4096 // size + 1,
                max_model_len_effective=length,
                running_while_others_wait=around(mean, 0.01, turn),
                running_peak=peak,
                prompt_tokens=64 * prompt,
                output_tokens=64 * output,
            )
            for turn, (size, mean) in enumerate(((16, users), (length, 8.0)))
        ]
    )


@pytest.mark.parametrize(
    ("of", "verdict"),
    [
        (pools(36.0), SUPPORTED),
        (pools(40.0), NOT_TESTABLE),  # the interval of 5 times reaches beyond the range
        (pools(48.0), CONTRADICTED),
        (pools(36.0, peak=256.0), NOT_TESTABLE),  # as many ran as max-num-seqs allows
        (pools(36.0, length=1024), NOT_TESTABLE),
        (pools(36.0, output=51), NOT_TESTABLE),
        (pools(36.0, prompt=24), NOT_TESTABLE),  # a request holds a tenth of 512 slots, not a fifth
        (pools(36.0, gpu="cpu-all"), NOT_TESTABLE),
    ],
)
def test_concurrency_is_gained_where_kv_blocks_end_the_growth(of, verdict):
    assert judged("concurrency-gained-by-paging", of) == verdict
    assert len(findings("concurrency-gained-by-paging", of)) == 1


def improvement(ratio, **columns):
    row = {"comparable": True, "hf_kind": "batch 1", "hf_engine": "hf-static", "hf_knobs": "static-batch1"}
    row |= {"vllm_knobs": "bs16-seqs1", "vllm_max_num_seqs": 1, "vllm_output_tokens_per_s": 100.0}
    row |= {"hf_output_tokens_per_s": 10.0, "improvement_ratio": ratio}
    return row | {"improvement_ratio_low": ratio * 0.99, "improvement_ratio_high": ratio * 1.01} | columns


@pytest.mark.parametrize(
    ("claim_id", "row", "verdict"),
    [
        ("thirty-to-a-hundred-times-faster", improvement(40), SUPPORTED),
        ("thirty-to-a-hundred-times-faster", improvement(29), CONTRADICTED),
        ("thirty-to-a-hundred-times-faster", improvement(30), NOT_TESTABLE),
        # The source compares with a loop of single requests.
        ("thirty-to-a-hundred-times-faster", improvement(6, hf_kind="static batch"), NOT_TESTABLE),
        ("vllm-over-hf-on-a100", improvement(17.9), CONTRADICTED),  # over a rate that is impossible
        ("engines-on-one-a100", improvement(6.5, gpu="a100-sxm-80gb", hf_kind="static batch"), SUPPORTED),
        ("engines-on-one-a100", improvement(0.9, gpu="a100-sxm-80gb", hf_kind="static batch"), CONTRADICTED),
        ("engines-on-one-a100", improvement(6.5, gpu="a100-pcie-40gb", hf_kind="static batch"), NOT_TESTABLE),
    ],
)
def test_the_fastest_cells_of_both_engines_are_compared(claim_id, row, verdict):
    slower = row | {"vllm_output_tokens_per_s": 50.0, "improvement_ratio_low": 1.0, "improvement_ratio_high": 1.1}
    assert judged(claim_id, evidence(engines=[slower, row])) == verdict


@pytest.mark.parametrize(
    ("model", "output", "ratio", "verdict"),
    [
        ("smollm-135m", 50, 1.5, SUPPORTED),
        ("smollm-135m", 50, 0.5, CONTRADICTED),
        ("smollm-135m", 64, 1.5, NOT_TESTABLE),
        (LLAMA, 50, 1.5, NOT_TESTABLE),
    ],
)
def test_a_single_request_is_one_of_the_small_model_with_50_tokens(model, output, ratio, verdict):
    cells = [cell({"block_size": 16, "max_num_seqs": 1}, (1.0,), model=model, output_tokens=64 * output)]
    of = evidence(cells=cells, engines=[improvement(ratio, model=model)])
    assert judged("faster-for-a-single-request", of) == verdict
    assert len(findings("faster-for-a-single-request", of)) == 1


@pytest.mark.parametrize(
    ("rate", "slower", "verdict"), [(8.0, 2.0, SUPPORTED), (3.0, 6.0, CONTRADICTED), (8.0, 8.0, NOT_TESTABLE)]
)
def test_users_are_those_of_a_server(rate, slower, verdict):
    cells = [
        cell(
            {"users": n},
            around(r, 0.01, turn),
            engine="vllm-serve",
            model="smollm-135m",
            e2e_s_p50=around(t, 0.01, turn),
            max_model_len_effective=512,
        )
        for turn, (n, r, t) in enumerate(((1, 100.0, 1.0), (20, 100 * rate, slower)))
    ]
    assert judged("concurrent-users-of-a-small-model", evidence(cells=cells)) == verdict


@pytest.mark.parametrize(
    ("pool", "found", "verdict"),
    [
        (200_000, 0.8, SUPPORTED),
        (200_000, 0.7, CONTRADICTED),  # blocks that would be used again were evicted, although there was room for all
        (50_000, 0.7, NOT_TESTABLE),
    ],
)
def test_evicting_what_is_used_again_contradicts_the_lowest_utility(pool, found, verdict):
    """64 requests of 8,000 prompt tokens, of which 80 % are repeated: 102,400 tokens to keep."""
    rates = {"prefix_cache_hit_rate": found, "prefix_cache_hit_rate_predicted": 0.8, "prompt_tokens": 64 * 8000}
    cells = [cell({"block_size": 16}, (1.0,), num_gpu_blocks=pool // 16, block_size_effective=16, **rates)]
    row = {"cell_id": cells[0][0]["cell_id"], "quantity": "prefix_cache_hit_rate", "evicted_blocks_predicted": 5.0}
    of = evidence(cells=cells, predictions=[row | {"gpu": "h200", "predicted": 0.7, "source": "predicted"}])
    assert judged("eviction-by-lowest-utility", of) == verdict


def waste(layouts, length=512, output=50, prompt=77, gpu="h200", engine="vllm", **knobs):
    rows = cell(
        knobs or {"block_size": 16},
        (1.0,),
        gpu=gpu,
        engine=engine,
        max_model_len_effective=length,
        prompt_tokens=64 * prompt,
        output_tokens=64 * output,
    )
    base = {"cell_id": rows[0]["cell_id"], "start": 1, "repeat": 0, "source": "predicted"}
    return evidence(cells=[rows], waste=[base | {"layout": layout} | columns for layout, columns in layouts.items()])


def both(contiguous, paged):
    sizes = {"block_size": 16, "waste_pct": float(paged)}
    return {"contiguous_max_model_len": {"waste_pct": float(contiguous)}, "block_size_whatif": sizes}


@pytest.mark.parametrize(
    ("claim_id", "of", "verdict"),
    [
        ("contiguous-allocation-waste", waste(both(70, 5)), NOT_TESTABLE),  # as the prompts are chosen
        ("memory-used-by-paging", waste(both(80, 9.9)), SUPPORTED),
        ("memory-used-by-paging", waste(both(80, 10.1)), CONTRADICTED),
        ("memory-used-by-paging", waste(both(80, 10.1), length=4096), NOT_TESTABLE),
        ("memory-used-by-paging", waste(both(80, 10.1), output=60), NOT_TESTABLE),
        ("memory-used-by-paging", waste(both(80, 10.1), prompt=24), NOT_TESTABLE),
        ("memory-used-by-paging", waste({"contiguous_max_model_len": {"waste_pct": 80.0}}), NOT_TESTABLE),
        (
            "empty-slots-per-sequence",
            waste({"block_size_whatif": {"block_size": 16, "wasted_slots_per_sequence": 15.1}}),
            CONTRADICTED,
        ),
    ],
)
def test_waste_is_judged_with_requests_that_hold_a_fifth_of_512_slots(claim_id, of, verdict):
    assert judged(claim_id, of) == verdict


@pytest.mark.parametrize(("held", "verdict"), [(318.7, CONTRADICTED), (351.2, SUPPORTED)])
def test_generate_reserves_if_its_cache_is_as_large_as_the_reservation(held, verdict):
    slots = {"hf_dynamic_cache": {"slots_held_mean": held}, "contiguous_request_length": {"slots_held_mean": 351.2}}
    assert judged("hf-reserves-max-new-tokens", waste(slots, engine="hf-static", batch_size=1)) == verdict
    padded = waste(slots, engine="hf-static", batch_size=2)  # shorter rows are padded
    assert judged("hf-reserves-max-new-tokens", padded) == NOT_TESTABLE


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ({"source": "published", "implied_overhead_bytes": 0.97, "implied_memory_bytes": 11.6}, SUPPORTED),
        ({"source": "published", "implied_overhead_bytes": 1.2, "implied_memory_bytes": 11.6}, CONTRADICTED),
        ({"observed_num_blocks": 9.05 * 1024}, SUPPORTED),
        ({"observed_num_blocks": 9.1 * 1024}, CONTRADICTED),
        ({"observed_num_blocks": 9.1 * 1024, "gpu": "h200"}, NOT_TESTABLE),
    ],
)
def test_blocks_lie_on_a_line_with_about_the_predicted_overhead(columns, verdict):
    row = {"cell_id": "a", "gpu": "l4", "model": "opt-125m", "gpu_memory_utilization": 0.5, "source": "measured"}
    row |= {"implied_memory_bytes": 20, "implied_overhead_bytes": 1, "predicted_overhead_bytes": 0.88} | columns
    for name in ("implied_memory_bytes", "implied_overhead_bytes", "predicted_overhead_bytes"):
        row[name] = row[name] * 2.0**30
    assert judged("blocks-linear-in-utilization", evidence(capacity=[row | {"bytes_per_block": 2**20}])) == verdict


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ({"source": "published", "kv_cache_tokens_error_pct": 110.0}, CONTRADICTED),
        ({"source": "published", "kv_cache_tokens_error_pct": 4.9}, SUPPORTED),
        ({"observed_kv_cache_tokens": 147600.0}, SUPPORTED),
        ({"observed_kv_cache_tokens": 295104.0}, CONTRADICTED),
        ({"observed_kv_cache_tokens": 295104.0, "gpu_memory_utilization": 0.9}, NOT_TESTABLE),
    ],
)
def test_a_capacity_is_held_against_the_prediction_and_what_an_l4_has(columns, verdict):
    row = {"cell_id": "a", "gpu": "l4", "model": "opt-125m", "gpu_memory_utilization": 0.5, "source": "measured"}
    assert judged("capacity-of-an-l4", evidence(capacity=[row | columns])) == verdict


def lengths(concurrency, blocks, gpu="l4"):
    return evidence(
        cells=[
            cell(
                {"max_model_len": n},
                (1.0,),
                gpu=gpu,
                model="opt-125m",
                max_model_len_effective=n,
                max_concurrency=c,
                num_gpu_blocks=b,
                block_size_effective=16,
                max_num_seqs_effective=256,
            )
            for n, c, b in ((2048, 68.65, 8788), (1024, concurrency, blocks), (512, None, 1))
        ]
    )


@pytest.mark.parametrize(
    ("of", "verdict"),
    [
        (lengths(137.3, 8788), SUPPORTED),
        (lengths(100.0, 8788), CONTRADICTED),
        (lengths(137.3, 9000), CONTRADICTED),
        (lengths(137.3, 8788, gpu="h200"), NOT_TESTABLE),
    ],
)
def test_half_the_length_doubles_the_printed_concurrency_in_as_many_blocks(of, verdict):
    assert judged("max-model-len-is-a-capacity-knob", of) == verdict


@pytest.mark.parametrize(("held", "verdict"), [(44.0, CONTRADICTED), (30.0, SUPPORTED)])
def test_a_short_length_must_cut_what_a_running_request_holds(held, verdict):
    cells = [
        cell(
            {"users": 5, "max_model_len": n},
            (1.0,),
            engine="vllm-serve",
            model="smollm-135m",
            max_model_len_effective=n,
            running_mean=4.0,
            kv_cache_tokens=float(8192),
            kv_cache_usage_mean=4 * slots / 8192,
        )
        for n, slots in ((64, held), (512, 44.0))
    ]
    assert judged("short-max-model-len", evidence(cells=cells)) == verdict


def test_requests_that_wait_behind_16_slots_contradict_that_slots_never_limit():
    counts = SHAREGPT | {"running_peak": 16.0, "waiting_peak": 184.0}
    of = evidence(cells=[cell({"max_num_seqs": 16}, (1.0,), **counts)])
    assert judged("slots-are-never-the-bottleneck", of) == CONTRADICTED


@pytest.mark.parametrize(
    ("ratio", "slower", "verdict"),
    [(1.2, 2.0, SUPPORTED), (0.8, 2.0, CONTRADICTED), (1.2, 0.5, CONTRADICTED), (1.0, 2.0, NOT_TESTABLE)],
)
def test_stages_must_be_faster_in_all_and_slower_for_a_token(ratio, slower, verdict):
    cells, rows = [], []
    for turn, (knob, of_knob, tpot) in enumerate((("tensor", 1.5, 0.01), ("pipeline", 1.5 * ratio, 0.01 * slower))):
        name = f"{knob}_parallel_size"
        cells.append(cell({name: 2}, around(1.0), tpot_s_p50=around(tpot, 0.001, turn)))
        rows.append(
            ROW
            | {"knob": name, "comparison": "pair", "value": "2", "baseline": "1", "held": ""}
            | {"ratio": of_knob, "ratio_low": of_knob * 0.99, "ratio_high": of_knob * 1.01}
        )
    assert judged("tensor-for-latency-pipeline-for-throughput", evidence(cells=cells, effects=rows)) == verdict


@pytest.mark.parametrize("claim_id", ["speedup-of-a-shared-system-prompt", "kv-share-of-memory"])
def test_a_share_of_a_workload_that_no_source_describes_is_only_seen_here(claim_id):
    row = {"knob": "enable_prefix_caching", "comparison": "pair", "took_effect": True}
    share = {"cell_id": "a", "gpu": "h200", "gpu_memory_utilization": 0.9, "observed_kv_cache_bytes": 2.0}
    of = effects(3.5, **row)
    of.tables["capacity"] = evidence(capacity=[share | {"predicted_device_memory_bytes": 10.0}]).tables["capacity"]
    assert judged(claim_id, of) == NOT_TESTABLE
    assert [f.says for f in findings(claim_id, of) if not f.bears] == [None]

"""The checks of claims: what arithmetic, ceilings and measurements decide, and under which conditions."""

import math

import pytest

from tests.unit.questions.claims.claim_evidence import LLAMA, claim, evidence, judged, republished, tables
from tests.unit.questions.synthetic_cells import around, cell
from workflow_scripts.questions.claims.evidence import COMPUTED, CONTRADICTED, NOT_TESTABLE, SUPPORTED, verdict
from workflow_scripts.questions.claims.on_rates import flat
from workflow_scripts.questions.claims.study_tables import StudyTables
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, NOT_DECIDED
from workflow_scripts.tables.summary import PLACE, RATE

SEQS_TABLE = "paged_attention_lab_max_num_seqs.csv"
SLOW = [{"gpu": "H200", "max_num_seqs": n, "throughput_tok_s": 100, "approximate": False} for n in (1, 256)]
EMPTY_SLOTS = {"block_size": 16, "wasted_slots_per_sequence": 15.1}


def effect(low=math.nan, high=math.nan, *, values, **columns):
    """The comparison of the first of these values with the last one."""
    known = {"kind": "knob", "engine": "vllm", "metric": RATE, "verdict": NOT_DECIDED, "group": 0, "from_first": True}
    known |= {"ratio": 1.0 if math.isnan(low) else (low + high) / 2, "low": low, "high": high, "values": values}
    return known | {"value_a": values.split(", ")[0], "value_b": values.split(", ")[-1]} | columns


ONE = cell({"block_size": 16})
SEQS, BLOCKS = {"name": "max_num_seqs"}, {"name": "block_size"}
PAIR = BLOCKS | {"value_b": "32", "values": "16, 32, 64"}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (effect(values="1, 4, 256", verdict=FLAT, **SEQS), SUPPORTED),
        (effect(values="1, 64", verdict=FLAT, **SEQS), NOT_TESTABLE),  # not the whole range
        (effect(values="4, 256", verdict=FLAT, **SEQS), NOT_TESTABLE),
        (effect(values="1, 64", verdict=CHANGES, **SEQS), CONTRADICTED),
        (effect(values="1, 256", **SEQS), NOT_DECIDED),
        (effect(values="1, 512", verdict=CHANGES, **SEQS), NOT_TESTABLE),  # what changed may be beyond the range
        (effect(values="1, 256, 512", verdict=FLAT, **SEQS), NOT_TESTABLE),
        (effect(values="1, 256", verdict=CHANGES, **SEQS, engine="hf-static"), NOT_TESTABLE),
        # Pairs of the claimed values decide where others were measured too. Of 8, 16 and 32 no GPU takes 8.
        (effect(0.95, 1.07, **PAIR), SUPPORTED),
        (effect(0.95, 1.12, **PAIR), NOT_DECIDED),
        (effect(0.99, 1.01, **PAIR | {"value_a": "64"}), NOT_TESTABLE),  # beyond the claim
        (effect(**PAIR), NOT_DECIDED),
        (effect(1.03, 1.05, **PAIR, verdict=CHANGES), CONTRADICTED),
        (effect(0.8, 1.3, values="16, 32, 64", **BLOCKS), NOT_TESTABLE),
    ],
)
def test_flatness_is_decided_within_the_claimed_range_or_by_pairs_of_the_claimed_values(found, said):
    of = tables(cells=[ONE], comparisons=[{"a": "first", "b": ONE[0]["cell_id"]} | found])
    of_knob = {"max_num_seqs": "throughput-flat-over-max-num-seqs", "block_size": "throughput-flat-over-block-size"}
    assert verdict(each for each in flat(claim(of_knob[found["name"]]), of) if each) == said


def test_a_rate_whose_lengths_are_open_is_told_with_the_mix_that_it_needs(tmp_path):
    seqs = "throughput-flat-over-max-num-seqs"
    found = evidence(seqs, tables())
    assert [(each.label, each.says) for each in found] == [(COMPUTED, None)] * 4
    h200 = next(each.text for each in found if "of H200" in each.text)
    # One sequence gives 4.8e12 / 15.01e9 = 319.8 output tokens/s, 2.68 % of 11,939.
    assert all(number in h200 for number in ("11,939", "max-num-seqs 1: conditional", "at least 97.3 % of the tokens"))
    slow = tables(republished(tmp_path, {SEQS_TABLE: [SLOW[0] | {"gpu": "H300"}, *SLOW]}))
    (possible,) = evidence(seqs, slow)  # the H300 has no ceiling
    assert (possible.says, "possible," in possible.text) == (None, True)


def test_a_block_size_that_no_version_takes_is_named_first():
    first, *_ = evidence("throughput-flat-over-block-size", tables())
    assert (first.says, "0.11 to 0.32 refuse 8:" in first.text) == (None, True)


def test_a_step_beyond_the_hardware_contradicts(tmp_path):
    rows = {"throughput": (2400, 1800, 400), "itl_p50": (1, 10, 25), "max_batch_size": (256, 128, 16)}
    table = [{"metric": m, "vllm": a, "tgi": b, "hf": c} for m, (a, b, c) in rows.items()]
    of = tables(republished(tmp_path, {"engines_a100_80gb_llama31_8b.csv": table}))
    assert judged("engines-on-one-a100", tables()) == NOT_TESTABLE
    assert [each.text.partition(":")[0] for each in evidence("engines-on-one-a100", of) if each.says] == ["vllm"]


@pytest.mark.parametrize(
    ("claim_id", "numbers", "verdict"),
    [
        ("empty-slots-per-sequence", {"empty_slots_per_sequence": {"max": 14}}, CONTRADICTED),
        ("empty-slots-per-sequence", {"block_size": 32}, CONTRADICTED),
        # One sequence of an A100 PCIe has 1.935e12 / 15.01e9 = 129 output tokens/s.
        ("hf-generate-on-a100", {"tokens_per_s": 128}, NOT_TESTABLE),
        ("hf-generate-on-a100", {"tokens_per_s": 130}, CONTRADICTED),
        ("hf-generate-on-a100", {"batch_size": 3}, NOT_TESTABLE),
        ("block-size-by-length", {"block_size_short": 16}, NOT_TESTABLE),
    ],
)
def test_arithmetic_decides(claim_id, numbers, verdict):
    assert judged(claim_id, tables(), **numbers) == verdict


def of_cells(*cells, **common):
    """Tables of cells of (knobs, columns), each of three starts."""
    made = [cell(knobs, [1.0] * 3, **(columns | common)) for knobs, columns in cells]
    return tables(cells=made)


def pools(users, length=512, output=50, peak=36.0, prompt=77):
    """Cells with blocks of 16 and with whole reservations, in 4,096 tokens; `users` of each while others wait."""
    cells = []
    for turn, (size, mean) in enumerate(((16, users), (length, 8.0))):
        blocks = {"block_size_effective": size, "num_gpu_blocks": 4096 // size + 1}
        knobs = {"block_size": size, "num_gpu_blocks_override": blocks["num_gpu_blocks"], "max_num_seqs": 256}
        cells.append((knobs, blocks | {"running_while_others_wait": around(mean, 0.01, turn)}))
    tokens = {"prompt_tokens": 64 * prompt, "output_tokens": 64 * output}
    return of_cells(*cells, max_model_len_effective=length, running_peak=peak, **tokens)


def improvement(ratio, vllm, hf, **columns):
    row = {"kind": "engine", "engine": "vllm", "metric": RATE, "verdict": CHANGES, "mean_a": 10.0, "mean_b": 100.0}
    ends = {"a": hf[0]["cell_id"], "b": vllm[0]["cell_id"], "low": ratio * 0.99, "high": ratio * 1.01}
    return row | {name: vllm[0][name] for name in PLACE} | {"ratio": ratio} | ends | columns


def fastest(ratio, batch=1, low=None, **place):
    """Two comparisons of engines, of which that of the faster cells counts."""
    vllm, slower = (cell({"max_num_seqs": seqs}, **place) for seqs in (256, 128))
    hf = cell({"batch_size": batch}, engine="hf-static", **place)
    rows = [improvement(ratio, vllm, hf, **({"low": low} if low else {}))]
    rows.append(improvement(ratio, slower, hf, mean_b=50.0, low=1.0, high=1.1))
    return tables(cells=[vllm, slower, hf], comparisons=rows)


def single(model, output, ratio):
    """A single request with so many output tokens, and how much faster vLLM answered it."""
    place = {"model": model, "output_tokens": 64 * output}
    alone, hf = cell({"max_num_seqs": 1}, **place), cell({"batch_size": 1}, engine="hf-static", **place)
    return tables(cells=[alone, hf], comparisons=[improvement(ratio, alone, hf)])


def served(rate, slower):
    """A server with 20 users that is so many times as fast and as slow to answer as with one."""
    cells = [
        ({"users": n}, {"output_tokens_per_s": around(100 * r, 0.01, turn), "e2e_s_p50": around(t, 0.01, turn)})
        for turn, (n, r, t) in enumerate(((1, 1, 1), (20, rate, slower)))
    ]
    return of_cells(*cells, engine="vllm-serve", model="smollm-135m", max_model_len_effective=512)


def waste(layouts, length=512, output=50, prompt=77, engine="vllm", **knobs):
    tokens = {"prompt_tokens": 64 * prompt, "output_tokens": 64 * output, "max_model_len_effective": length}
    of = of_cells((knobs or {"block_size": 16}, tokens), engine=engine)
    base = {"cell_id": of.cells[0].cell_id, "start": 1, "repeat": 0, "source": "predicted"}
    rows = tables(fragmentation=[base | {"layout": layout} | columns for layout, columns in layouts.items()])
    return StudyTables({**of.frames, "fragmentation": rows.frames["fragmentation"]}, of.published)


def both(contiguous, paged):
    sizes = {"block_size": 16, "waste_pct": float(paged)}
    return {"contiguous_max_model_len": {"waste_pct": float(contiguous)}, "block_size_whatif": sizes}


def reserved(held, batch=1):
    """The slots that `generate` held; its reservations have 351.2."""
    slots = {"hf_dynamic_cache": {"slots_held_mean": held}, "contiguous_request_length": {"slots_held_mean": 351.2}}
    return waste(slots, engine="hf-static", batch_size=batch)


def lengths(concurrency, blocks):
    cells = [
        ({"max_model_len": n}, {"max_model_len_effective": n, "max_concurrency": c, "num_gpu_blocks": b})
        for n, c, b in ((2048, 68.65, 8788), (1024, concurrency, blocks), (512, None, 1))
    ]
    return of_cells(*cells, gpu="l4", model="opt-125m", block_size_effective=16, max_num_seqs_effective=256)


@pytest.mark.parametrize(
    ("claim_id", "of", "verdict"),
    [
        ("concurrency-gained-by-paging", lambda: pools(36.0), SUPPORTED),
        ("concurrency-gained-by-paging", lambda: pools(48.0), CONTRADICTED),
        ("concurrency-gained-by-paging", lambda: pools(36.0, peak=256.0), NOT_TESTABLE),  # all that max-num-seqs allows
        ("thirty-to-a-hundred-times-faster", lambda: fastest(40), SUPPORTED),
        ("thirty-to-a-hundred-times-faster", lambda: fastest(29), CONTRADICTED),
        ("thirty-to-a-hundred-times-faster", lambda: fastest(51, low=25.7), NOT_DECIDED),
        # The source compares with a loop of single requests.
        ("thirty-to-a-hundred-times-faster", lambda: fastest(6, batch=16), NOT_TESTABLE),
        ("engines-on-one-a100", lambda: fastest(6.5, gpu="a100-sxm-80gb", batch=16), SUPPORTED),
        ("engines-on-one-a100", lambda: fastest(0.9, gpu="a100-sxm-80gb", batch=16), CONTRADICTED),
        ("engines-on-one-a100", lambda: fastest(6.5, gpu="a100-pcie-40gb", batch=16), NOT_TESTABLE),
        # A single request of the small model, with 50 tokens.
        ("faster-for-a-single-request", lambda: single("smollm-135m", 50, 1.5), SUPPORTED),
        ("faster-for-a-single-request", lambda: single("smollm-135m", 50, 0.5), CONTRADICTED),
        ("faster-for-a-single-request", lambda: single("smollm-135m", 64, 1.5), NOT_TESTABLE),
        ("faster-for-a-single-request", lambda: single(LLAMA, 50, 1.5), NOT_TESTABLE),
        ("concurrent-users-of-a-small-model", lambda: served(8.0, 2.0), SUPPORTED),
        ("concurrent-users-of-a-small-model", lambda: served(3.0, 6.0), CONTRADICTED),
        ("concurrent-users-of-a-small-model", lambda: served(8.0, 8.0), NOT_DECIDED),
        # Waste is judged with requests that hold a fifth of 512 slots.
        ("memory-used-by-paging", lambda: waste(both(80, 9.9)), SUPPORTED),
        ("memory-used-by-paging", lambda: waste(both(80, 10.1)), CONTRADICTED),
        ("memory-used-by-paging", lambda: waste(both(80, 10.1), length=4096), NOT_TESTABLE),
        ("memory-used-by-paging", lambda: waste(both(80, 10.1), output=60), NOT_TESTABLE),
        ("memory-used-by-paging", lambda: waste(both(80, 10.1), prompt=24), NOT_TESTABLE),
        ("memory-used-by-paging", lambda: waste({"contiguous_max_model_len": {"waste_pct": 80.0}}), NOT_TESTABLE),
        ("empty-slots-per-sequence", lambda: waste({"block_size_whatif": EMPTY_SLOTS}), CONTRADICTED),
        ("hf-reserves-max-new-tokens", lambda: reserved(318.7), CONTRADICTED),
        ("hf-reserves-max-new-tokens", lambda: reserved(351.2), SUPPORTED),
        ("hf-reserves-max-new-tokens", lambda: reserved(318.7, batch=2), NOT_TESTABLE),  # shorter rows are padded
        # Half the length doubles the printed concurrency, in as many blocks.
        ("max-model-len-is-a-capacity-knob", lambda: lengths(137.3, 8788), SUPPORTED),
        ("max-model-len-is-a-capacity-knob", lambda: lengths(100.0, 8788), CONTRADICTED),
        ("max-model-len-is-a-capacity-knob", lambda: lengths(137.3, 9000), CONTRADICTED),
    ],
)
def test_measurements_decide_under_the_conditions_of_a_claim(claim_id, of, verdict):
    assert judged(claim_id, of()) == verdict

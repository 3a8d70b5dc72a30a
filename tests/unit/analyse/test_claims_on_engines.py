"""Claims on engines, utilisation and concurrent users: with evidence for them, against them, and without evidence."""

import math

import pytest

from tests.unit.analyse.claim_evidence import LLAMA, evidence, findings, judged, republished
from tests.unit.analyse.synthetic_cells import cell
from workflow_scripts.analyse.claims_on_devices import facts_of
from workflow_scripts.analyse.claims_on_engines import SMALL_MODEL
from workflow_scripts.analyse.evidence import COMPUTED, CONTRADICTED, MEASURED, NOT_TESTABLE, PUBLISHED, SUPPORTED
from workflow_scripts.analyse.statistics import CHANGES, FLAT, NOT_DECIDED

HF = "hf-generate-on-a100"
OVER_HF = "vllm-over-hf-on-a100"
ENGINES = "engines-on-one-a100"
RATIO = "improvement-ratio"
BUSY = "gpu-utilisation-of-continuous-batching"
USERS = "concurrent-users-of-a-small-model"
LAB = "throughput-flat-over-max-num-seqs"
A100 = "a100-pcie-80gb"


# --- HuggingFace alone -----------------------------------------------------------------------------------------------


def test_one_sequence_cannot_make_293_tokens_a_second_on_an_a100():
    total, output = findings(HF, evidence())
    assert (total.label, total.says) == (COMPUTED, CONTRADICTED)
    assert total.text.startswith("The 293 tokens/s of A100 PCIe at batch_size 1 are 1.14 times the ceiling for prompt")
    assert "with at least 2 sequences at once, or with prompts that are at least 1.28 times as long" in total.text
    assert (output.says, output.label) == (None, COMPUTED)
    assert "are 2.28 times the ceiling for output tokens" in output.text
    assert total.ids == ("claims.yaml", "analyse.audit")


@pytest.mark.parametrize(
    ("rate", "batch", "verdict"), [(200, 1, NOT_TESTABLE), (293, 2, NOT_TESTABLE), (300, 1, CONTRADICTED)]
)
def test_a_rate_below_its_ceiling_is_left_open(rate, batch, verdict):
    assert judged(HF, evidence(), tokens_per_s=rate, batch_size=batch) == verdict


def static(rates, batch=1, gpu=A100, **columns):
    return cell({"batch_size": batch}, rates, gpu=gpu, engine="hf-static", **columns)


@pytest.mark.parametrize(
    ("rate", "verdict"), [(30.5, SUPPORTED), (27.5, SUPPORTED), (26.5, CONTRADICTED), (33.5, CONTRADICTED)]
)
def test_the_rate_measured_on_the_same_cards_must_be_the_published_one(rate, verdict):
    of = evidence(
        cells=[static((rate, rate)), static((500.0,), batch=8), cell({"max_num_seqs": 1}, (500.0,), gpu=A100)]
    )
    assert judged(HF, of, tokens_per_s=30) == verdict
    (found,) = [f for f in findings(HF, of, tokens_per_s=30) if f.label == MEASURED]
    assert found.text == (
        f"{A100}, {LLAMA}, chat: HuggingFace makes {rate:.3g} output tokens/s (95 % interval {rate:.3g} to"
        f" {rate:.3g}, between starts on this device) at batch 1."
    )
    assert found.ids == (f"{A100}/hf-static/{LLAMA}/chat/static-batch1-cachedynamic",)


@pytest.mark.parametrize("columns", [{"gpu": "cpu-all"}, {"gpu": "a100-sxm-80gb"}, {"model": "opt-125m"}])
def test_rates_of_other_cards_and_models_are_only_seen_here(columns):
    found = findings(HF, evidence(cells=[static((30.0,), **columns)]), tokens_per_s=30)[-1]
    assert (found.bears, found.says) == (False, None)


# --- vLLM over HuggingFace -------------------------------------------------------------------------------------------


def improvement(ratio, low=None, high=None, **columns):
    row = {
        "gpu": A100,
        "comparable": True,
        "hf_kind": "batch 1",
        "hf_engine": "hf-static",
        "hf_knobs": "static-batch1",
        "vllm_knobs": "seqs256",
        "vllm_output_tokens_per_s": 100.0,
        "hf_output_tokens_per_s": 10.0,
        "improvement_ratio": ratio,
        "improvement_ratio_low": ratio * 0.99 if low is None else low,
        "improvement_ratio_high": ratio * 1.01 if high is None else high,
        "verdict": "faster" if ratio > 1 else "not decided",
        "scope": "between starts on this device",
        "explanation": "It is faster.",
    }
    return row | columns


def test_a_ratio_over_an_impossible_rate_is_contradicted_and_batching_named():
    quotient, total, output = findings(OVER_HF, evidence())
    assert (quotient.label, quotient.says) == (PUBLISHED, None)
    assert quotient.text == (
        "5,243 over 293 tokens/s are 17.9x, for vLLM with up to 256 sequences over HuggingFace with 1, so the"
        " ratio includes batching."
    )
    assert (total.says, output.says) == (CONTRADICTED, None)
    assert judged(OVER_HF, evidence()) == CONTRADICTED


def possible(folder):
    """The same claims with a rate of HuggingFace that is below its ceiling."""
    return republished(folder, claims={HF: {"tokens_per_s": 100}})


@pytest.mark.parametrize(
    ("ratio", "columns", "verdict"),
    [
        (17.9, {}, SUPPORTED),
        (19.4, {}, SUPPORTED),
        (15.0, {}, CONTRADICTED),
        (17.9, {"improvement_ratio_low": 9.0, "improvement_ratio_high": 40.0}, NOT_TESTABLE),
        (15.0, {"improvement_ratio_high": 18.0}, NOT_TESTABLE),
        (17.9, {"improvement_ratio_low": math.nan, "improvement_ratio_high": math.nan}, NOT_TESTABLE),
        (17.9, {"gpu": "cpu-all"}, NOT_TESTABLE),
        (17.9, {"model": "opt-125m"}, NOT_TESTABLE),
        (17.9, {"comparable": False}, NOT_TESTABLE),
        (17.9, {"hf_kind": "static batch"}, NOT_TESTABLE),
    ],
)
def test_a_measured_ratio_over_single_requests_must_be_the_published_one(tmp_path, ratio, columns, verdict):
    of = evidence(possible(tmp_path), engines=[improvement(ratio, **columns)])
    assert judged(OVER_HF, of) == verdict


def test_the_fastest_cells_of_a_place_are_compared(tmp_path):
    slower = improvement(5.0, vllm_output_tokens_per_s=50.0, vllm_knobs="seqs1")
    faster_hf = improvement(8.0, hf_output_tokens_per_s=20.0, hf_knobs="other")
    elsewhere = improvement(9.0, gpu="h200")
    of = evidence(possible(tmp_path), engines=[slower, improvement(17.9), faster_hf, elsewhere])
    found = [f for f in findings(OVER_HF, of) if f.label == MEASURED]
    assert [f.says for f in found] == [CONTRADICTED, None]
    assert found[0].ids == (f"{A100}/vllm/{LLAMA}/chat/seqs256", f"{A100}/hf-static/{LLAMA}/chat/other")
    assert found[0].text == f"{A100}, {LLAMA}, chat: It is faster."


# --- three engines on one card ---------------------------------------------------------------------------------------

METRICS = ["throughput", "ttft_p50", "itl_p50", "max_batch_size"]


def table(vllm, tgi, hf):
    return [{"metric": m, "vllm": a, "tgi": b, "hf": c} for m, a, b, c in zip(METRICS, vllm, tgi, hf, strict=True)]


def test_the_published_engines_are_possible_and_left_open():
    found = findings(ENGINES, evidence())
    assert [f.says for f in found] == [None] * 6
    assert found[0].text.startswith("vLLM: The 2,400 tokens/s of A100 80GB at batch_size 256 are 0.112 times")
    assert found[1].text == (
        "vLLM: 2,400 tokens/s at 8 ms between the tokens of a sequence mean 19.2 sequences at once, if all are output"
        " tokens. Reading the weights takes at least 7.36 ms per step."
    )
    assert [f.text.partition(":")[0] for f in found] == ["vLLM", "vLLM", "TGI", "TGI", "HuggingFace", "HuggingFace"]
    assert found[1].scope == f"A100 80GB, {LLAMA}"


@pytest.mark.parametrize(
    ("rows", "which"),
    [
        (table((2400, 45, 7.3, 256), (1800, 60, 10, 128), (400, 200, 25, 16)), "vLLM"),
        (table((2400, 45, 8, 256), (1800, 60, 10, 128), (400, 200, 25, 1)), "HuggingFace"),
    ],
)
def test_a_step_or_a_rate_beyond_the_hardware_contradicts(tmp_path, rows, which):
    of = evidence(republished(tmp_path, {"engines_a100_80gb_llama31_8b.csv": rows}))
    assert judged(ENGINES, of) == CONTRADICTED
    assert [f.text.partition(":")[0] for f in findings(ENGINES, of) if f.says] == [which]


@pytest.mark.parametrize(
    ("ratio", "columns", "verdict"),
    [
        (6.0, {}, SUPPORTED),
        (6.5, {}, SUPPORTED),
        (3.0, {}, NOT_TESTABLE),
        (1.0, {}, CONTRADICTED),
        (1.01, {}, NOT_TESTABLE),
        (6.0, {"gpu": "a100-pcie-40gb"}, NOT_TESTABLE),
        (6.0, {"gpu": "a100-sxm-80gb"}, SUPPORTED),
        (6.0, {"hf_kind": "batch 1"}, NOT_TESTABLE),
    ],
)
def test_vllm_over_static_batches_is_the_part_that_can_be_measured(ratio, columns, verdict):
    row = improvement(ratio, **({"hf_kind": "static batch"} | columns))
    assert judged(ENGINES, evidence(engines=[row])) == verdict


# --- one number for the gain -----------------------------------------------------------------------------------------


def test_two_published_ratios_for_one_model_and_card_contradict_one_number(tmp_path):
    (found,) = findings(RATIO, evidence())
    assert (found.label, found.says) == (PUBLISHED, CONTRADICTED)
    assert found.text == "For an 8B model on an A100 one text gives 17.9x over HuggingFace at batch 1, another 6x."
    alike = republished(tmp_path, claims={OVER_HF: {"throughput_ratio": 6.5}})
    assert judged(RATIO, evidence(alike)) == NOT_TESTABLE


def alike(folder):
    return republished(folder, claims={OVER_HF: {"throughput_ratio": 6.0}})


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (improvement(5.0), improvement(5.3), SUPPORTED),
        (improvement(5.0, low=3.0, high=8.0), improvement(5.3, low=3.0, high=8.0), NOT_TESTABLE),
        (improvement(5.0), improvement(9.0), CONTRADICTED),
        (improvement(5.0, high=9.5), improvement(9.0, low=8.0), NOT_TESTABLE),
        (improvement(5.0, gpu="cpu-all"), improvement(9.0, gpu="cpu-all"), NOT_TESTABLE),
        (improvement(5.0), improvement(9.0, comparable=False), NOT_TESTABLE),
        (improvement(5.0), improvement(9.0, vllm_knobs="seqs1"), NOT_TESTABLE),
        (improvement(5.0), improvement(9.0, workload="other"), NOT_TESTABLE),
        (improvement(5.0, math.nan, math.nan), improvement(9.0, math.nan, math.nan), NOT_TESTABLE),
    ],
)
def test_one_vllm_with_several_ratios_contradicts_one_number(tmp_path, low, high, verdict):
    assert judged(RATIO, evidence(alike(tmp_path), engines=[high, low])) == verdict


def test_the_lowest_and_the_highest_ratio_are_told(tmp_path):
    rows = [improvement(9.0, hf_knobs="b"), improvement(7.0, hf_knobs="c"), improvement(5.0, hf_knobs="a")]
    found = findings(RATIO, evidence(alike(tmp_path), engines=rows))[-1]
    assert found.text == (
        f"{A100}, {LLAMA}, chat: vLLM with seqs256 makes 5 times the output tokens/s of HuggingFace batch 1, a"
        " (95 % interval 4.95 to 5.05, between starts on this device) and 9 times the output tokens/s of HuggingFace"
        " batch 1, b (95 % interval 8.91 to 9.09, between starts on this device)."
    )
    assert [cell_id.split("/")[-1] for cell_id in found.ids] == ["seqs256", "a", "b"]


# --- utilisation -----------------------------------------------------------------------------------------------------


def busy(continuous, batch, gpu="h200", **columns):
    return [
        cell(
            {"max_num_seqs": 64},
            (100.0, 100.0),
            gpu=gpu,
            utilization_pct_mean=[continuous - 1, continuous + 1],
            **columns,
        ),
        static((50.0,), 16, gpu, utilization_pct_mean=batch, **columns),
    ]


@pytest.mark.parametrize(
    ("continuous", "batch", "gpu", "verdict"),
    [
        (95, 55, "h200", SUPPORTED),
        (90, 50, "h200", SUPPORTED),
        (100, 60, "h200", SUPPORTED),
        (89, 55, "h200", CONTRADICTED),
        (101, 55, "h200", CONTRADICTED),
        (95, 49, "h200", CONTRADICTED),
        (95, 61, "h200", CONTRADICTED),
        (95, 55, "cpu-all", NOT_TESTABLE),
    ],
)
def test_both_utilisations_must_be_as_published_on_a_gpu(continuous, batch, gpu, verdict):
    assert judged(BUSY, evidence(cells=busy(continuous, batch, gpu))) == verdict


def test_utilisation_is_that_of_the_fastest_cells_that_batch():
    further = [
        cell({"max_num_seqs": 4}, (20.0,), utilization_pct_mean=10.0),
        cell({"max_num_seqs": 1}, (900.0,), utilization_pct_mean=10.0),
        static((900.0,), 1, "h200", utilization_pct_mean=10.0),
        static((20.0,), 2, "h200", utilization_pct_mean=10.0),
        static((900.0,), 32, "h200", utilization_pct_mean=None),
    ]
    note, found = findings(BUSY, evidence(cells=[*further, *busy(95, 55)]))
    assert (note.label, note.says) == (PUBLISHED, None)
    assert found.text == (
        f"h200, {LLAMA}, chat: The device was 95 % busy with continuous batching (vllm, seqs64) and 55 % busy with"
        " static batches (static-batch16-cachedynamic)."
    )
    assert [i.split("/")[1] for i in found.ids] == ["vllm", "hf-static"]


def test_one_kind_of_batching_alone_says_nothing():
    assert len(findings(BUSY, evidence(cells=busy(95, 55)[:1]))) == 1
    assert len(findings(BUSY, evidence(cells=busy(95, 55)[1:]))) == 1
    apart = [busy(95, 55)[0], busy(95, 55, workload="other")[1]]
    assert len(findings(BUSY, evidence(cells=apart))) == 1
    locks = [busy(95, 55, lock_sha256="a")[0], busy(95, 55, lock_sha256="b")[1]]
    assert len(findings(BUSY, evidence(cells=locks))) == 1
    assert len(findings(BUSY, evidence())) == 1


# --- users -----------------------------------------------------------------------------------------------------------

SMALL = "smollm-135m"


def users(ratio=8.0, verdict=CHANGES, slower=2.0, value="20", baseline="1", gpu="l4", model=SMALL, **columns):
    """Evidence of an effect of max-num-seqs, with requests that take `slower` times as long."""
    ends = {
        name: cell({"max_num_seqs": int(n)}, (1.0, 1.0), gpu=gpu, model=model)
        for name, n in (("a", value), ("b", baseline))
    }
    for row in ends["a"]:
        row |= {"prefill_s_mean": 1.0 * slower, "decode_s_mean": 4.0 * slower}
    for row in ends["b"]:
        row |= {"prefill_s_mean": 1.0, "decode_s_mean": 4.0}
    row = {
        "knob": "max_num_seqs",
        "comparison": "pair",
        "gpu": gpu,
        "model": model,
        "value": value,
        "baseline": baseline,
    }
    row |= {"verdict": verdict, "ratio": ratio, "explanation": "It rose.", "scope": "between starts on this device"}
    row |= {"ratio_low": 0.99 * ratio, "ratio_high": 1.01 * ratio}
    row |= {"cell_id": ends["a"][0]["cell_id"], "baseline_cell_id": ends["b"][0]["cell_id"]} | columns
    return evidence(cells=list(ends.values()), effects=[row])


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, SUPPORTED),
        ({"slower": 7.9}, SUPPORTED),
        ({"slower": 8.1}, CONTRADICTED),
        ({"verdict": FLAT, "ratio": 1.01, "slower": 0.5}, CONTRADICTED),
        ({"ratio": 0.8, "slower": 0.5}, CONTRADICTED),
        ({"verdict": NOT_DECIDED}, NOT_TESTABLE),
        ({"ratio_low": 1.5}, NOT_TESTABLE),
        ({"slower": math.nan}, NOT_TESTABLE),
        ({"value": "21"}, NOT_TESTABLE),
        ({"gpu": "cpu-all"}, NOT_TESTABLE),
        ({"model": "opt-125m"}, NOT_TESTABLE),
        ({"comparison": "overall"}, NOT_TESTABLE),
        ({"knob": "block_size"}, NOT_TESTABLE),
    ],
)
def test_the_rate_must_rise_and_the_time_of_a_request_by_less(change, verdict):
    assert judged(USERS, users(**change)) == verdict


def test_fewer_users_than_claimed_are_outside():
    assert judged(USERS, users(value="20", baseline="5"), concurrent_users=[10, 20]) == NOT_TESTABLE
    assert judged(USERS, users(value="20", baseline="10"), concurrent_users=[10, 20]) == SUPPORTED


def test_the_words_say_by_how_much_a_request_took_longer():
    found = findings(USERS, users(slower=2.5))[-1]
    assert found.text == f"l4, {SMALL}, chat: It rose. From its start to its end a request took 2.5 times as long."
    assert [i.split("/")[-1] for i in found.ids] == ["seqs20", "seqs1"]
    assert findings(USERS, users(slower=math.nan))[-1].text == f"l4, {SMALL}, chat: It rose."


def test_by_bytes_a_step_for_many_users_reads_little_more():
    """Weights of 0.269 GB; 23,040 bytes of KV a token, so 11.8 MB for each user with 512 tokens."""
    (found,) = findings(USERS, evidence())
    assert found.text == (
        "A step reads the weights once for all: with 512 tokens each, 20 users of smollm-135m read 1.8 times the bytes"
        " of 1. By bytes alone each token takes 1.8 times as long, and all together make 11.1 times the tokens/s."
    )
    slower = (2 * 134515008 + 20 * 512 * 23040) / (2 * 134515008 + 512 * 23040)
    assert (f"{slower:.3g}", f"{20 / slower:.3g}") == ("1.8", "11.1")


def test_the_example_is_of_a_model_of_the_size_that_the_claim_names():
    claimed = next(claim for claim in evidence().published.claims if claim.id == USERS).value("parameters")
    assert facts_of(SMALL_MODEL).parameters == pytest.approx(claimed, rel=0.01)


# --- other claims on speed -------------------------------------------------------------------------------------------

MANY = "thirty-to-a-hundred-times-faster"
SINGLE = "faster-for-a-single-request"


@pytest.mark.parametrize(
    ("ratio", "columns", "verdict"),
    [
        (40, {}, SUPPORTED),
        (29, {}, CONTRADICTED),
        (102, {}, CONTRADICTED),
        (30, {}, NOT_TESTABLE),
        (6, {"hf_kind": "static batch"}, CONTRADICTED),
        (6, {"hf_kind": "continuous batching"}, NOT_TESTABLE),
        (6, {"comparable": False}, NOT_TESTABLE),
        (6, {"gpu": "cpu-all"}, NOT_TESTABLE),
    ],
)
def test_the_fastest_cells_must_be_30_to_100_times_apart(ratio, columns, verdict):
    assert judged(MANY, evidence(engines=[improvement(ratio, **columns)])) == verdict


def test_other_published_ratios_are_told_beside_30_to_100():
    published, found = findings(MANY, evidence(engines=[improvement(40)]))
    assert (published.text, published.label) == ("Other published ratios are 17.9 and 6.", PUBLISHED)
    assert found.text == f"{A100}, {LLAMA}, chat: Over HuggingFace with batch 1: It is faster."


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ({}, SUPPORTED),
        ({"verdict": "slower"}, CONTRADICTED),
        ({"verdict": "not decided"}, NOT_TESTABLE),
        ({"verdict": "slower", "gpu": "cpu-all"}, NOT_TESTABLE),
        ({"vllm_max_num_seqs": 16}, NOT_TESTABLE),
        ({"hf_kind": "static batch"}, NOT_TESTABLE),
    ],
)
def test_one_request_at_a_time_in_both_engines_decides_on_single_requests(columns, verdict):
    of = evidence(engines=[improvement(1.5, **({"vllm_max_num_seqs": 1} | columns))])
    assert judged(SINGLE, of) == verdict

"""Claims on flatness and on speed-ups of devices: with evidence for them, against them, and without evidence."""

import math
import re

import pandas as pd
import pytest

from tests.unit.analyse.claim_evidence import evidence, findings, judged, republished
from tests.unit.analyse.synthetic_cells import cell
from workflow_scripts.analyse.claims_on_devices import against_ceilings
from workflow_scripts.analyse.evidence import COMPUTED, CONTRADICTED, MEASURED, NOT_TESTABLE, PUBLISHED, SUPPORTED
from workflow_scripts.analyse.statistics import CHANGES, FLAT, NOT_DECIDED

FLAT_SEQS = "throughput-flat-over-max-num-seqs"
FLAT_BLOCKS = "throughput-flat-over-block-size"
SEQS_TABLE = "paged_attention_lab_max_num_seqs.csv"
BLOCKS_TABLE = "paged_attention_lab_block_size.csv"
# Far below the ceiling of one sequence.
SLOW = [{"gpu": "H200", "max_num_seqs": n, "throughput_tok_s": 100, "approximate": False} for n in (1, 256)]


def effect(values, verdict, knob="max_num_seqs", **columns):
    names = {"cell_id": "fast", "baseline_cell_id": "slow", "engine": "vllm", "comparison": "overall"}
    return names | {"knob": knob, "values": values, "verdict": verdict, "explanation": "It changed."} | columns


def slow(folder):
    """Published rates that are possible, so that what was measured decides."""
    blocks = [row | {"block_size": 16} for row in SLOW]
    return republished(folder, {SEQS_TABLE: SLOW, BLOCKS_TABLE: blocks})


# --- flat over max-num-seqs ------------------------------------------------------------------------------------------


def test_the_ceiling_of_one_sequence_contradicts_flatness_on_every_gpu():
    found = findings(FLAT_SEQS, evidence())
    assert [(f.label, f.says) for f in found] == [(COMPUTED, CONTRADICTED)] * 4
    assert [f.scope.split(",")[0] for f in found] == ["H200", "H100", "A100 PCIe", "L40S"]
    assert found[0].text == (
        "The 11,939 tokens/s of H200 at max_num_seqs 1 are 18.7 times the ceiling for prompt and output tokens; 1 live"
        " sequences: a step reads 15.0 GB of weights at 4.8 TB/s. It would be possible with at least 19 sequences"
        " at once, or with prompts that are at least 36.4 times as long as outputs."
    )
    assert found[0].scope == "H200, llama-3.1-8b-instruct, 200 + 200 tokens per request"
    assert found[0].ids == (SEQS_TABLE, "analyse.audit")


def test_what_would_be_possible_is_the_least_that_is():
    """With as many sequences, or prompts that much longer, the same rate lies below its ceiling; with fewer above."""

    def says(sequences):
        rates = pd.DataFrame({"gpu": ["H200"], "max_num_seqs": [sequences], "throughput_tok_s": [11939.0]})
        (found,) = against_ceilings(rates, "throughput_tok_s", "a table")
        return found.says

    assert says(18) == CONTRADICTED
    # KV of 200 + 100 tokens a sequence adds a little to the weights, so a few more sequences than 19 are needed.
    assert says(21) is None


def test_possible_rates_decide_nothing_and_are_shown(tmp_path):
    of = evidence(slow(tmp_path))
    (found,) = findings(FLAT_SEQS, of)
    assert found.says is None
    assert "The 100 tokens/s of H200 at max_num_seqs 1 are 0.157 times the ceiling" in found.text
    assert "It would be possible" not in found.text
    assert judged(FLAT_SEQS, of) == NOT_TESTABLE


def test_the_worst_rate_of_a_gpu_is_shown(tmp_path):
    rows = [row | {"throughput_tok_s": 1000 * i} for i, row in enumerate(SLOW, start=1)]
    (found,) = findings(FLAT_SEQS, evidence(republished(tmp_path, {SEQS_TABLE: rows})))
    assert "The 1,000 tokens/s of H200 at max_num_seqs 1 are 1.57 times" in found.text
    assert "at least 2 sequences" in found.text


def test_a_device_that_is_not_known_has_no_ceiling(tmp_path):
    rows = [SLOW[0] | {"gpu": "H300"}, SLOW[0]]
    (found,) = findings(FLAT_SEQS, evidence(republished(tmp_path, {SEQS_TABLE: rows})))
    assert "H200" in found.text


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
def test_measured_flatness_decides_within_the_range(tmp_path, values, said, verdict):
    of = evidence(slow(tmp_path), effects=[effect(values, said)])
    assert judged(FLAT_SEQS, of) == verdict


def test_a_claimed_range_may_begin_elsewhere(tmp_path):
    of = evidence(slow(tmp_path), effects=[effect("4, 64", FLAT)])
    assert judged(FLAT_SEQS, of, max_num_seqs=(4, 64)) == SUPPORTED
    assert judged(FLAT_SEQS, of, max_num_seqs=(8, 64)) == NOT_TESTABLE


@pytest.mark.parametrize("columns", [{"gpu": "cpu-all"}, {"gpu": "b200"}, {"model": "opt-125m"}])
def test_other_devices_and_models_are_only_seen_here(tmp_path, columns):
    of = evidence(slow(tmp_path), effects=[effect("1, 256", CHANGES, **columns)])
    *_, found = findings(FLAT_SEQS, of)
    assert (found.bears, found.says, found.label) == (False, None, MEASURED)
    assert judged(FLAT_SEQS, of) == NOT_TESTABLE


@pytest.mark.parametrize("columns", [{"knob": "block_size"}, {"comparison": "pair"}, {"engine": "hf-static"}])
def test_only_the_knob_over_all_its_values_on_vllm_counts(tmp_path, columns):
    of = evidence(slow(tmp_path), effects=[effect("1, 256", CHANGES, **columns)])
    assert len(findings(FLAT_SEQS, of)) == 1


def test_measured_rates_stand_beside_those_published_for_the_card():
    cells = [
        cell({"max_num_seqs": n}, (1.0,), gpu="h200", model="llama-3.1-8b-instruct", total_tokens_per_s=rate)
        for n, rate in ((1, 760.0), (16, 3_000.0), (256, 20_000.0))
    ]
    *_, found = findings(FLAT_SEQS, evidence(cells=cells))
    assert (found.label, found.says) == (MEASURED, None)
    numbers = re.findall(r"(?<!H)\b\d[\d.,]*\b", found.text.split(": ", 1)[1])
    assert numbers == ["760", "1", "11,939", "15.7", "20,000", "256", "11,883", "0.594", "26.3"]
    assert {place.rsplit("/", 1)[-1] for place in found.ids} == {SEQS_TABLE, "seqs1", "seqs256"}
    planned = [row | {"outcome": "missing", "repeat": None} for row in cells[0]]
    assert findings(FLAT_SEQS, evidence(cells=[planned])) == findings(FLAT_SEQS, evidence())


def test_a_measured_finding_has_its_words_and_cells(tmp_path):
    of = evidence(slow(tmp_path), effects=[effect("1, 256", FLAT, source="measured elsewhere")])
    *_, found = findings(FLAT_SEQS, of)
    assert found.text == "h200, llama-3.1-8b-instruct, chat: It changed."
    assert (found.ids, found.label) == (("fast", "slow"), "measured elsewhere")


# --- flat over block sizes -------------------------------------------------------------------------------------------


def test_possible_rates_and_a_refused_size_leave_block_sizes_untested():
    found = findings(FLAT_BLOCKS, evidence())
    assert judged(FLAT_BLOCKS, evidence()) == NOT_TESTABLE
    assert [f.label for f in found] == [COMPUTED] * 4 + [PUBLISHED]
    assert "max-num-seqs is not stated: 256 assumed" in found[0].text
    assert found[0].ids[0] == BLOCKS_TABLE
    assert found[-1].text == "In vLLM 0.32 no attention backend takes blocks of 8 tokens on cuda: only multiples of 16."


@pytest.mark.parametrize(
    ("values", "said", "verdict"),
    [
        ("16, 32", FLAT, SUPPORTED),  # 8 is no size on a GPU
        ("8, 16, 32", FLAT, SUPPORTED),
        ("16", FLAT, NOT_TESTABLE),
        ("16, 32", CHANGES, CONTRADICTED),
        ("16, 64", CHANGES, NOT_TESTABLE),
        ("4, 16, 32", FLAT, NOT_TESTABLE),
    ],
)
def test_measured_block_sizes_decide_within_those_claimed(values, said, verdict):
    of = evidence(effects=[effect(values, said, knob="block_size")])
    assert judged(FLAT_BLOCKS, of) == verdict


def pair(low, high, verdict=NOT_DECIDED, baseline="16", **columns):
    ends = {"value": "32", "baseline": baseline, "ratio_low": low, "ratio_high": high, "scope": "between starts"}
    return effect("16, 32, 64", verdict, knob="block_size", comparison="pair", **ends | columns)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (pair(0.95, 1.07), SUPPORTED),
        (pair(0.95, 1.12), NOT_TESTABLE),
        (pair(0.99, 1.01, baseline="64"), NOT_TESTABLE),  # beyond the claim
        (pair(math.nan, math.nan), NOT_TESTABLE),
        (pair(1.03, 1.05, CHANGES), CONTRADICTED),
    ],
)
def test_the_claimed_sizes_decide_where_others_were_measured_too(found, verdict):
    overall = effect("16, 32, 64", NOT_DECIDED, knob="block_size", ratio_low=0.8, ratio_high=1.3)
    assert judged(FLAT_BLOCKS, evidence(effects=[overall, found])) == verdict


def test_an_impossible_rate_contradicts_flat_block_sizes(tmp_path):
    rows = [{"gpu": "L40S", "block_size": 16, "throughput_tok_s": 1e6, "approximate": False}]
    of = evidence(republished(tmp_path, {BLOCKS_TABLE: rows}))
    found = findings(FLAT_BLOCKS, of)[0]
    assert found.says == CONTRADICTED
    assert "It would be possible" not in found.text  # how many sequences ran is not stated
    assert found.text.startswith("The 1,000,000 tokens/s of L40S are ")


# --- block size by length --------------------------------------------------------------------------------------------


def test_a_size_that_no_gpu_takes_contradicts_and_others_do_not():
    assert judged("block-size-by-length", evidence()) == CONTRADICTED
    refused, waste = findings("block-size-by-length", evidence())
    assert (refused.label, refused.says) == (PUBLISHED, CONTRADICTED)
    assert "blocks of 4 tokens on cuda" in refused.text
    assert "1.5 of 4, 7.5 of 16, 15.5 of 32 slots" in waste.text
    assert judged("block-size-by-length", evidence(), block_size_short=16) == NOT_TESTABLE


@pytest.mark.parametrize(
    ("gpu", "said", "verdict"),
    [("l4", FLAT, CONTRADICTED), ("l4", CHANGES, NOT_TESTABLE), ("cpu-all", FLAT, NOT_TESTABLE)],
)
def test_sizes_that_make_no_difference_contradict_a_best_size(gpu, said, verdict):
    of = evidence(
        effects=[
            effect("16, 32", said, knob="block_size", gpu=gpu, model="opt-125m"),
            effect("16, 32", FLAT, knob="block_size", comparison="pair"),
            effect("16, 32", FLAT),
        ]
    )
    assert judged("block-size-by-length", of, block_size_short=16) == verdict


# --- speed-ups of devices --------------------------------------------------------------------------------------------


def test_a_ratio_far_from_that_of_bandwidths_is_contradicted():
    own, found = findings("h200-over-l40s", evidence())
    assert (own.label, own.says) == (PUBLISHED, None)
    assert own.text == "The claim's own table gives 2.954x, the geometric mean over 5 settings."
    assert (found.label, found.says) == (COMPUTED, CONTRADICTED)
    assert "It does not support memory bandwidths (5.56)" in found.text
    assert found.scope == "H200 over L40S, by data sheets"


@pytest.mark.parametrize(("ratio", "verdict"), [(5.56, SUPPORTED), (6.1, SUPPORTED), (6.2, CONTRADICTED)])
def test_a_ratio_within_10_percent_of_that_of_bandwidths_is_supported(ratio, verdict):
    assert judged("h200-over-l40s", evidence(), throughput_ratio=ratio) == verdict


def test_names_of_several_cards_leave_a_ratio_open_where_the_cards_disagree():
    own, found = findings("h100-over-a100", evidence())
    assert "2.111x, the geometric mean over 5 settings" in own.text
    assert found.says is None
    assert found.text == (
        "H100 over A100 PCIe may mean 6 pairs of cards. Within 10 % of 2.16x are the ratios of bandwidths of"
        " h100-sxm over a100-pcie-40gb (2.15x), h100-nvl over a100-pcie-80gb (2.02x); outside are those of"
        " h100-sxm over a100-pcie-80gb (1.73x), h100-pcie over a100-pcie-40gb (1.31x), h100-pcie over a100-pcie-80gb"
        " (1.05x), h100-nvl over a100-pcie-40gb (2.51x)."
    )
    assert judged("h100-over-a100", evidence()) == NOT_TESTABLE


def test_a_ratio_near_none_of_the_cards_is_contradicted():
    *_, found = findings("h100-over-a100", evidence(), throughput_ratio=5.0)
    assert found.says == CONTRADICTED
    assert "are the ratios of bandwidths of none; outside" in found.text


def ratio(value, explanation, **columns):
    names = {"gpu_a": "h200", "gpu_b": "l40s", "metric": "output_tokens_per_s", "engine": "vllm", "knobs": "bs16"}
    names |= {"ratio_low": value * 0.99, "ratio_high": value * 1.01, "scope": "between starts on this device"}
    return (
        names
        | {"ratio": value, "explanation": explanation, "compatible_with": None, "verdict_text": "It is so."}
        | columns
    )


@pytest.mark.parametrize(
    ("value", "explanation", "columns", "verdict"),
    [
        (5.5, "bandwidth", {}, SUPPORTED),
        (5.5, "bandwidth, measured_bandwidth", {}, SUPPORTED),
        (5.5, "flop, measured_bandwidth", {}, NOT_TESTABLE),  # not told apart
        (5.5, "flop", {}, CONTRADICTED),
        (5.5, "none", {}, CONTRADICTED),
        (4.0, "bandwidth", {}, CONTRADICTED),  # another ratio than the published one
        (4.0, "bandwidth", {"ratio_high": 5.6}, NOT_TESTABLE),
        (5.5, "none", {"compatible_with": "measured_bandwidth, flop"}, NOT_TESTABLE),
        (5.5, "none", {"compatible_with": "flop"}, CONTRADICTED),
        (5.5, "bandwidth, expected", {}, SUPPORTED),
        (5.5, "expected", {"compatible_with": "bandwidth"}, NOT_TESTABLE),
        (5.5, "expected", {}, CONTRADICTED),
        (5.5, "flop", {"cannot_show": "the weights stay in the cache"}, NOT_TESTABLE),
        (5.5, None, {}, NOT_TESTABLE),
        (5.5, "none", {"ratio_low": math.nan, "ratio_high": math.nan, "scope": None}, NOT_TESTABLE),
    ],
)
def test_a_measured_ratio_must_be_the_published_one_and_follow_bandwidth(value, explanation, columns, verdict):
    rows = [ratio(value, explanation, **columns)]
    measured = findings("h200-over-l40s", evidence(ratios=rows), throughput_ratio=5.5)[-1]
    assert measured.says == (None if verdict == NOT_TESTABLE else verdict)
    assert measured.text == "h200 over l40s, llama-3.1-8b-instruct, chat: It is so."
    assert measured.ids == ("h200/vllm/llama-3.1-8b-instruct/chat/bs16", "l40s/vllm/llama-3.1-8b-instruct/chat/bs16")


@pytest.mark.parametrize("columns", [{"gpu_a": "h100-sxm"}, {"gpu_b": "cpu-all"}, {"model": "opt-125m"}])
def test_other_pairs_of_devices_are_only_seen_here(columns):
    found = findings("h200-over-l40s", evidence(ratios=[ratio(5.5, "bandwidth", **columns)]))[-1]
    assert (found.bears, found.says) == (False, None)


def test_total_rates_are_no_further_evidence():
    of = evidence(ratios=[ratio(5.5, "bandwidth", metric="total_tokens_per_s")])
    assert len(findings("h200-over-l40s", of)) == 2

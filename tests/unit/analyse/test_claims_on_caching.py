"""Claims on prefix caching: with evidence for them, against them, and without evidence."""

import math

import pytest

from tests.unit.analyse.claim_evidence import LLAMA, evidence, findings, judged
from tests.unit.analyse.synthetic_cells import cell
from workflow_scripts.analyse.evidence import COMPUTED, CONTRADICTED, MEASURED, NOT_TESTABLE, SUPPORTED

HIT_RATE = "prefix-hit-rate-of-identical-prompts"
SPEEDUP = "speedup-of-a-shared-system-prompt"
SAVED = "computation-saved-by-prefix-caching"


# --- hit rate --------------------------------------------------------------------------------------------------------


def test_seven_of_eight_prompts_are_found_and_whole_blocks_are_less():
    share, blocks = findings(HIT_RATE, evidence())
    assert (share.label, share.says) == (COMPUTED, SUPPORTED)
    assert share.text == "All but the first of 8 prompts can be found, which is 87.5 % of them."
    assert (blocks.label, blocks.says) == (COMPUTED, None)
    assert "0 % at 16 tokens, 82.4 % at 17 tokens, 58.3 % at 48 tokens, 87.4 % at 1601 tokens in" in blocks.text
    assert "blocks of 16. 87.5 % is the limit for long prompts." in blocks.text


@pytest.mark.parametrize(
    ("prompts", "rate", "verdict"),
    [(8, 87.5, SUPPORTED), (8, 87.54, SUPPORTED), (8, 87.4, CONTRADICTED), (8, 87.6, CONTRADICTED), (4, 75, SUPPORTED)],
)
def test_a_published_rate_is_compared_to_a_tenth(prompts, rate, verdict):
    assert judged(HIT_RATE, evidence(), identical_prompts=prompts, prefix_hit_rate=rate) == verdict


def prefix(workload="prefix", rate=0.902, predicted=0.9019607, hits=5888.0, **columns):
    """24 prompts of 272 tokens of which 256 are shared, in blocks of 32, as an engine counted them."""
    counts = {"num_requests": 24, "prompt_tokens": 6528, "output_tokens": 192, "block_size_effective": 32}
    rates = {"prefix_cache_hits": hits, "prefix_cache_hit_rate": rate, "prefix_cache_hit_rate_predicted": predicted}
    return cell({"block_size": 32}, (1.0, 1.0), workload=workload, **(counts | rates | columns))


def test_measured_hits_are_held_against_the_formula_on_any_device():
    found = findings(HIT_RATE, evidence(cells=[prefix(gpu="cpu-all")]))[-1]
    assert (found.label, found.says, found.bears) == (MEASURED, None, True)
    assert found.text == (
        f"cpu-all, {LLAMA}, prefix: 90.2 % for 24 prompts of 272 tokens, in blocks of 32; 90.2 % by the formula."
    )
    assert found.ids == (f"cpu-all/vllm/{LLAMA}/prefix/bs32",)


@pytest.mark.parametrize("columns", [{"predicted": None}, {"predicted": 0.0}, {"hits": 0.0}, {"outcome": "invalid"}])
def test_other_workloads_and_cells_without_hits_have_no_formula(columns):
    assert len(findings(HIT_RATE, evidence(cells=[prefix(**columns)]))) == 2


# --- speed-up --------------------------------------------------------------------------------------------------------


def effect(ratio, low=None, high=None, **columns):
    row = {
        "knob": "enable_prefix_caching",
        "comparison": "pair",
        "took_effect": True,
        "gpu": "l4",
        "ratio": ratio,
        "ratio_low": ratio - 0.01 if low is None else low,
        "ratio_high": ratio + 0.01 if high is None else high,
        "explanation": "It is faster.",
        "cell_id": "on",
        "baseline_cell_id": "off",
    }
    return row | columns


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (effect(1.15), SUPPORTED),
        (effect(1.25), SUPPORTED),
        (effect(1.20, math.nan, math.nan), NOT_TESTABLE),
        (effect(1.26), SUPPORTED),  # within 10 % of the range
        (effect(1.2, 0.9, 1.5), NOT_TESTABLE),  # the range is in the interval, which shows nothing
        (effect(1.27), CONTRADICTED),
        (effect(1.13), CONTRADICTED),
        (effect(2.0, math.nan, math.nan), NOT_TESTABLE),
        (effect(2.0, gpu="cpu-all"), NOT_TESTABLE),
        (effect(1.2, gpu="cpu-all"), NOT_TESTABLE),
        (effect(2.0, took_effect=False), NOT_TESTABLE),
        (effect(2.0, took_effect=None), NOT_TESTABLE),
        (effect(2.0, comparison="overall"), NOT_TESTABLE),
        (effect(2.0, knob="block_size"), NOT_TESTABLE),
    ],
)
def test_a_speed_up_on_a_gpu_must_lie_in_the_range(row, verdict):
    assert judged(SPEEDUP, evidence(effects=[row])) == verdict


def test_what_a_speed_up_takes_is_told_and_the_measured_one_with_its_cells():
    takes, found = findings(SPEEDUP, evidence(effects=[effect(1.2)]))
    assert takes.text == "This speed-up needs 13 to 20 % of the time of a run to be spent on the prefix."
    assert (takes.label, takes.says) == (COMPUTED, None)
    assert (found.text, found.ids) == (f"l4, {LLAMA}, chat: It is faster.", ("on", "off"))


# --- computation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "verdict"),
    [(672.0, SUPPORTED), (2016.0, SUPPORTED), (671.0, CONTRADICTED), (2017.0, CONTRADICTED), (0.0, NOT_TESTABLE)],
)
def test_the_share_of_tokens_that_were_found_must_lie_in_the_range(hits, verdict):
    """10 % and 30 % of 6,528 prompt and 192 output tokens."""
    assert judged(SAVED, evidence(cells=[prefix(hits=hits)])) == verdict


def test_tokens_of_all_cells_of_a_workload_are_summed_and_named():
    other = prefix(hits=1344.0, gpu="cpu-all")
    second = cell(
        {"block_size": 16},
        (1.0,),
        workload="prefix",
        gpu="cpu-all",
        prompt_tokens=1000,
        output_tokens=0,
        prefix_cache_hits=500.0,
    )
    about, found = findings(SAVED, evidence(cells=[other, second]))
    assert (about.label, about.says) == (COMPUTED, None)
    assert "so 10 to 30 % are saved if this share is found" in about.text
    # 2 x 1,344 + 500 of 2 x 6,720 + 1,000 tokens.
    assert found.text == (
        f"cpu-all, {LLAMA}, prefix: 3,188 of 14,440 tokens were found in the cache, which saves 22.1 % of them."
    )
    assert [i.split("/")[-1] for i in found.ids] == ["bs32", "bs16"]
    assert (found.bears, found.says) == (False, None)


def test_workloads_and_devices_are_counted_apart():
    rows = [prefix(), prefix(gpu="l4"), prefix(workload="half"), prefix(model="opt-125m")]
    assert len(findings(SAVED, evidence(cells=rows))) == 5

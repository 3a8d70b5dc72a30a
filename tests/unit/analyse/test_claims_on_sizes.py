"""Claims on sizes of requests, weights and pages: with evidence for them, against them, and without evidence."""

import pytest

from tests.unit.analyse.claim_evidence import evidence, findings, judged
from workflow_scripts.analyse.claims_on_devices import facts_of
from workflow_scripts.analyse.evidence import COMPUTED, CONTRADICTED, MEASURED, NOT_TESTABLE, SUPPORTED

LLAMA_70B = "kv-of-llama-3-70b"
BATCH = "kv-of-a-batch-of-llama-3-70b"
ON_A100S = "llama-70b-on-a100s"
SHARE = "kv-share-of-memory"
UTILIZATION = "utilization-is-for-the-kv-cache"
PAGES = "pages-of-4-kib"
GIB = 2**30


@pytest.mark.parametrize(
    ("published", "verdict"),
    [(5.2, CONTRADICTED), (1.34, SUPPORTED), (1.23, SUPPORTED), (1.21, CONTRADICTED), (10.7, CONTRADICTED)],
)
def test_a_request_of_llama_3_70b_holds_what_its_configuration_says(published, verdict):
    assert judged(LLAMA_70B, evidence(), kv_cache=published) == verdict


def test_what_the_published_number_would_take_is_told():
    (found,) = findings(LLAMA_70B, evidence())
    assert 2 * 80 * 8 * 128 * 2 * 4096 == 1_342_177_280
    assert found.text == (
        "2 x 80 layers x 8 KV heads x 128 x 2 bytes x 4,096 tokens are 1.34 GB. 5.2 GB would need 31 KV heads; with a"
        " KV head for each of its 64 heads it would be 10.7 GB."
    )
    assert (found.label, found.scope) == (COMPUTED, "llama-3-70b, BF16 cache")


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [({}, CONTRADICTED), ({"kv_cache": 43}, SUPPORTED), ({"kv_cache": 166, "requests": 124}, SUPPORTED)],
)
def test_a_batch_holds_the_sum_of_its_requests(numbers, verdict):
    assert judged(BATCH, evidence(), **numbers) == verdict


def test_what_a_batch_holds_is_told_beside_what_was_published():
    (found,) = findings(BATCH, evidence())
    assert 32 * 1_342_177_280 == 42_949_672_960
    assert found.text == "32 requests of 4,096 tokens hold 42.9 GB; 166 GB are 3.86 times that."


# --- weights and memory ----------------------------------------------------------------------------------------------


def test_weights_of_70b_fit_on_two_gpus_and_with_4_bits_on_one():
    two, one = findings(ON_A100S, evidence())
    assert (two.says, one.says) == (SUPPORTED, SUPPORTED)
    weights, per_token = facts_of("llama-3-70b").weight_bytes, 327_680
    memory = 2 * 0.9 * 85_094_039_552
    assert f"take {weights / 1e9:.3g} GB; 2 A100 80GB with 0.9 of their memory have {memory / 1e9:.3g} GB." in two.text
    assert f"or {(memory - weights) / per_token:,.0f} tokens, are left for the KV cache." in two.text
    assert one.scope == "A100 80GB, llama-3.1-70b-instruct-awq"


@pytest.mark.parametrize("gpus", [1, 4])
def test_another_number_of_gpus_than_the_fewest_contradicts(gpus):
    found = findings(ON_A100S, evidence(), gpus=gpus)
    assert found[0].says == CONTRADICTED
    assert ("left for the KV cache" in found[0].text) == (gpus == 4)


def share(gib, gpu="h200", source="measured"):
    """A cell whose KV cache has this many of 100 GiB."""
    return {
        "cell_id": f"{gpu}/a",
        "gpu": gpu,
        "source": source,
        "gpu_memory_utilization": 0.9,
        "observed_kv_cache_bytes": gib * GIB,
        "predicted_device_memory_bytes": 100 * GIB,
    }


def test_weights_alone_leave_less_than_the_published_share_on_a_small_gpu():
    (found,) = findings(SHARE, evidence())
    left = 100 * (0.9 - facts_of("llama-3.1-8b-instruct").weight_bytes / 47_674_136_986)
    assert f"{left:.0f} % of l40s" in found.text
    assert (found.says, found.label) == (CONTRADICTED, COMPUTED)
    assert judged(SHARE, evidence(), kv_share=(40, 80)) == NOT_TESTABLE


@pytest.mark.parametrize(
    ("row", "says", "bears"),
    [
        (share(60), SUPPORTED, True),
        (share(80), SUPPORTED, True),
        (share(81), CONTRADICTED, True),
        (share(59), CONTRADICTED, True),
        (share(70, gpu="cpu-all"), None, False),
    ],
)
def test_a_measured_share_must_lie_in_the_range(row, says, bears):
    found = findings(SHARE, evidence(capacity=[row]))[-1]
    assert (found.says, found.bears, found.label) == (says, bears, MEASURED)
    assert len(findings(SHARE, evidence(capacity=[row | {"source": "published"}]))) == 1


@pytest.mark.parametrize(("published", "verdict"), [(90, CONTRADICTED), (70, NOT_TESTABLE)])
def test_the_utilization_holds_for_weights_too(published, verdict):
    assert judged(UTILIZATION, evidence(), kv_share=published) == verdict
    (found,) = findings(UTILIZATION, evidence())
    assert found.text.startswith("That is the share for the whole engine. At 0.9 the weights of")
    assert "% of h200 for the KV cache" in found.text


# --- pages -----------------------------------------------------------------------------------------------------------


def test_a_block_has_as_many_bytes_as_its_model_says():
    (found,) = findings(PAGES, evidence())
    assert "589,824 bytes with opt-125m (49,152 per layer)" in found.text
    assert "2,097,152 bytes with llama-3.1-8b-instruct (65,536 per layer)" in found.text
    assert found.says == CONTRADICTED
    assert judged(PAGES, evidence(), page=65536) == CONTRADICTED

"""Speed-ups of devices against the ratios of their bandwidths, and the devices that a published name covers."""

import math

import pytest

from tests.unit.questions.claims.claim_evidence import LLAMA, claim, evidence, judged, tables
from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.questions.claims.evidence import (
    COMPUTED,
    CONTRADICTED,
    NOT_TESTABLE,
    SUPPORTED,
    covers,
)
from workflow_scripts.statistics.comparisons import NOT_DECIDED


def test_a_ratio_within_10_percent_of_that_of_bandwidths_is_supported_and_another_contradicted():
    (found,) = evidence("h200-over-l40s", tables())
    assert (found.label, found.says) == (COMPUTED, CONTRADICTED)
    assert "h200 over l40s (5.56x)" in found.text
    for ratio, verdict in ((5.56, SUPPORTED), (6.1, SUPPORTED), (6.2, CONTRADICTED)):
        assert judged("h200-over-l40s", tables(), throughput_ratio=ratio) == verdict


def test_names_of_several_cards_leave_a_ratio_open_where_the_cards_disagree():
    (found,) = evidence("h100-over-a100", tables())
    assert found.says is None
    near, _, far = found.text.partition("outside")
    assert [text.count("over a100-pcie") for text in (near, far)] == [2, 4]
    assert "h100-sxm over a100-pcie-40gb (2.15x)" in near
    assert judged("h100-over-a100", tables()) == NOT_TESTABLE
    *_, near_none = evidence("h100-over-a100", tables(), throughput_ratio=5.0)
    assert (near_none.says, "of none;" in near_none.text) == (CONTRADICTED, True)


def ratio(value, explanation, **columns):
    """Tables of one comparison of two devices; `columns` are others of it, or of what explains it."""
    pair = {"kind": "device", "value_b": "h200", "value_a": "l40s", "a": "slow", "b": "fast"}
    pair |= {"metric": "output_tokens_per_s", "verdict": "changes"}
    pair |= {"ratio": value, "low": value * 0.99, "high": value * 1.01} | columns
    return tables(comparisons=[pair], devices=[{"a": "slow", "b": "fast", "explanation": explanation} | columns])


@pytest.mark.parametrize(
    ("value", "explanation", "columns", "verdict"),
    [
        (5.5, "bandwidth", {}, SUPPORTED),
        (5.5, "bandwidth, measured_bandwidth", {}, SUPPORTED),
        (5.5, "flop, measured_bandwidth", {}, NOT_DECIDED),  # not told apart
        (5.5, "flop", {}, CONTRADICTED),
        (5.5, "none", {}, CONTRADICTED),
        (4.0, "bandwidth", {}, CONTRADICTED),  # another ratio than the published one
        (4.0, "bandwidth", {"high": 5.6}, NOT_DECIDED),
        (5.5, "none", {"compatible_with": "measured_bandwidth, flop"}, NOT_DECIDED),
        (5.5, "none", {"compatible_with": "flop"}, CONTRADICTED),
        (5.5, "bandwidth, predicted", {}, SUPPORTED),
        (5.5, "predicted", {"compatible_with": "bandwidth"}, NOT_DECIDED),
        (5.5, "predicted", {}, CONTRADICTED),
        (5.5, "flop", {"cannot_show": "cached weights"}, NOT_TESTABLE),
        (5.5, None, {}, NOT_TESTABLE),
        (5.5, "none", {"low": math.nan, "high": math.nan}, NOT_TESTABLE),
    ],
)
def test_a_measured_ratio_must_be_the_published_one_and_follow_bandwidth(value, explanation, columns, verdict):
    measured = evidence("h200-over-l40s", ratio(value, explanation, **columns), throughput_ratio=5.5)[-1]
    assert measured.says == (None if verdict == NOT_TESTABLE else verdict)


@pytest.mark.parametrize(
    "columns",
    [{"value_b": "h100-sxm"}, {"value_a": "cpu-all"}, {"model": "opt-125m"}, {"metric": "total_tokens_per_s"}],
)
def test_other_pairs_of_devices_are_no_evidence(columns):
    assert len(evidence("h200-over-l40s", ratio(5.5, "bandwidth", **columns))) == 1


def test_a_published_name_covers_every_card_that_it_may_mean_and_no_name_every_gpu():
    of_two = claim("h200-over-l40s").model_copy(update={"gpus": ("H200", "A100 PCIe")})
    of_lab = [gpu for gpu in load_gpus() if covers(of_two, gpu, LLAMA)]
    assert sorted(of_lab) == ["a100-pcie-40gb", "a100-pcie-80gb", "h200"]
    assert not covers(of_two, "h200", "opt-125m")
    of_any = claim("empty-slots-per-sequence")
    assert [covers(of_any, gpu, LLAMA) for gpu in ("mi300x", "l4", "cpu-all")] == [True, True, False]

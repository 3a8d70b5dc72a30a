"""Claims on scheduling: with evidence for them, against them, and without evidence."""

import pytest

from tests.unit.analyse.claim_evidence import LLAMA, evidence, findings, judged
from tests.unit.analyse.synthetic_cells import cell
from workflow_scripts.analyse.evidence import COMPUTED, CONTRADICTED, MEASURED, NOT_TESTABLE, SUPPORTED

PROMPTS = "prompts-limit-concurrency"
EVICTED = "least-recently-used-blocks-are-evicted"
PARALLEL = "tensor-for-latency-pipeline-for-throughput"


@pytest.mark.parametrize("claim_id", [PROMPTS, EVICTED, PARALLEL])
def test_without_measured_cells_nothing_is_decided(claim_id):
    (found,) = findings(claim_id, evidence())
    assert (found.label, found.says) == (COMPUTED, None)


# --- prompts ---------------------------------------------------------------------------------------------------------


def running(peak, mean, seqs=256, requests=200, **columns):
    counts = {"num_requests": requests, "running_peak": float(peak), "running_mean": float(mean)}
    return evidence(cells=[cell({"max_num_seqs": seqs}, (1.0, 1.0), **(counts | columns))])


@pytest.mark.parametrize(
    ("peak", "mean", "columns", "verdict"),
    [
        (200, 46, {}, CONTRADICTED),
        (200, 101, {}, CONTRADICTED),
        (200, 60, {}, SUPPORTED),
        (100, 40, {}, SUPPORTED),
        (200, 46, {"gpu": "cpu-all"}, NOT_TESTABLE),
        (200, 46, {"requests": 300}, NOT_TESTABLE),
        (64, 46, {"seqs": 64}, NOT_TESTABLE),
        (200, None, {}, NOT_TESTABLE),
    ],
)
def test_the_peak_or_the_mean_must_lie_in_the_range(peak, mean, columns, verdict):
    of = running(peak, mean or 0, **columns, **({} if mean else {"running_mean": None}))
    assert judged(PROMPTS, of) == verdict


def test_peak_and_mean_are_told():
    found = findings(PROMPTS, running(200, 46))[-1]
    assert found.text == f"h200, {LLAMA}, chat: Of 200 requests 200 ran at once, and 46 on average."
    assert (found.label, found.ids) == (MEASURED, (f"h200/vllm/{LLAMA}/chat/seqs256",))


# --- eviction --------------------------------------------------------------------------------------------------------


def hits(found, scheduled, kept=0.8, gpu="h200"):
    rates = {"prefix_cache_hit_rate": found, "prefix_cache_hit_rate_predicted": kept}
    row = {"cell_id": f"{gpu}/vllm/{LLAMA}/chat/bs16", "gpu": gpu, "quantity": "prefix_cache_hit_rate"}
    return evidence(
        cells=[cell({"block_size": 16}, (1.0,), gpu=gpu, **rates)],
        predictions=[row | {"predicted": scheduled, "source": "predicted"}],
    )


@pytest.mark.parametrize(
    ("of", "verdict"),
    [
        (hits(0.5, 0.5), SUPPORTED),
        (hits(0.5, 0.504), SUPPORTED),
        (hits(0.5, 0.52), NOT_TESTABLE),
        (hits(0.5, 0.5, gpu="cpu-all"), NOT_TESTABLE),
    ],
)
def test_hits_after_evictions_must_be_those_of_the_schedule(of, verdict):
    assert judged(EVICTED, of) == verdict
    assert "80.0 % are expected without eviction" in findings(EVICTED, of)[-1].text


def test_where_nothing_is_evicted_hits_show_no_policy():
    assert len(findings(EVICTED, hits(0.8, 0.8))) == 1
    assert len(findings(EVICTED, evidence(cells=[cell({"block_size": 16}, (1.0,), prefix_cache_hit_rate=0.5)]))) == 1


# --- parallelism -----------------------------------------------------------------------------------------------------


def ranks(tensor, pipeline, tensor_s=0.01, pipeline_s=0.02, gpu="h200", scope="between starts on this device"):
    effects, cells = [], []
    for knob, ratio, tpot in (("tensor", tensor, tensor_s), ("pipeline", pipeline, pipeline_s)):
        knobs = {f"{knob}_parallel_size": 2}
        rows = cell(knobs, (1.0,), gpu=gpu, tpot_s_p50=tpot)
        effects.append(
            {
                "gpu": gpu,
                "engine": "vllm",
                "held": "",
                "knob": f"{knob}_parallel_size",
                "comparison": "pair",
                "value": "2",
                "baseline": "1",
                "cell_id": rows[0]["cell_id"],
                "ratio": ratio,
                "ratio_low": ratio * 0.99,
                "ratio_high": ratio * 1.01,
                "scope": scope,
            }
        )
        cells.append(rows)
    return evidence(cells=cells, effects=effects)


@pytest.mark.parametrize(
    ("of", "verdict"),
    [
        (ranks(1.5, 1.8), SUPPORTED),
        (ranks(1.8, 1.5), CONTRADICTED),
        (ranks(1.5, 1.51), NOT_TESTABLE),
        (ranks(1.5, 1.8, tensor_s=0.03), NOT_TESTABLE),
        (ranks(1.5, 1.8, gpu="cpu-all"), NOT_TESTABLE),
    ],
)
def test_stages_must_be_faster_in_all_and_slower_for_a_token(of, verdict):
    assert judged(PARALLEL, of) == verdict


def test_both_ways_to_share_a_model_are_told_side_by_side():
    found = findings(PARALLEL, ranks(1.5, 1.8))[-1]
    assert found.text.endswith(
        "On 2 GPUs, tensor parallelism makes 1.5 times the output tokens/s of 1, pipeline parallelism 1.8 times; a"
        " token takes 10 and 20 ms."
    )
    assert [i.split("/")[-1] for i in found.ids] == ["tp2", "pp2"]

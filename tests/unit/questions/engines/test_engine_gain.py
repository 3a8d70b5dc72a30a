import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.unit.questions.synthetic_cells import NOT_COUNTED, OTHER_PLACES, around, cell, only, starts_table
from workflow_scripts.questions.engines.table import DECOMPOSITION_SCHEMA, SCHEMA, engine_tables
from workflow_scripts.questions.knobs.pairs import WORK
from workflow_scripts.statistics.comparisons import FASTER


def vllm(rate, seqs=16, **options):
    knobs = {"max_num_seqs": seqs} | options.pop("knobs", {})
    return cell(knobs, rate if isinstance(rate, list) else around(rate), **options)


def static(rate, batch, cache="dynamic", **options):
    knobs = {"batch_size": batch, "cache_implementation": cache}
    return cell(knobs, rate if isinstance(rate, list) else around(rate), engine="hf-static", **options)


def continuous(rate, tokens=256, **options):
    knobs = {"page_size": 32, "num_blocks": 128, "max_batch_tokens": tokens}
    return cell(knobs, rate if isinstance(rate, list) else around(rate), engine="hf-continuous", **options)


def improvements(*cells):
    return SCHEMA.validate(engine_tables(starts_table(*cells))[0][list(SCHEMA.columns)])


def steps(*cells):
    return DECOMPOSITION_SCHEMA.validate(engine_tables(starts_table(*cells))[1])


# --- every vLLM cell against every HuggingFace cell


def test_every_vllm_cell_meets_every_huggingface_cell_of_its_place():
    found = improvements(vllm(8, 1), vllm(9, 16), static(1, 1), static(2, 8), continuous(4), static(1, 1, gpu="l40s"))
    assert found[["vllm_knobs", "hf_knobs"]].values.tolist() == [
        [seqs, hf]
        for seqs in ("seqs1", "seqs16")
        for hf in ("static-batch1-cachedynamic", "static-batch8-cachedynamic", "continuous-page32-blocks128-tokens256")
    ]
    assert found["hf_kind"].tolist()[:3] == ["batch 1", "static batch", "continuous batching"]
    assert found["hf_engine"].tolist()[:3] == ["hf-static", "hf-static", "hf-continuous"]
    assert found["hf_batch_size"].tolist()[:2] == [1, 8]
    assert pd.isna(found["hf_batch_size"][2])
    assert found["vllm_max_num_seqs"].tolist() == [1, 1, 1, 16, 16, 16]
    assert found["comparable"].all()
    assert found["reason"].isna().all()


@pytest.mark.parametrize("other", [*OTHER_PLACES, *NOT_COUNTED])
def test_cells_of_another_place_do_not_meet(other):
    assert [len(of) for of in engine_tables(starts_table(vllm(8), static(1, 1, **other)))] == [0, 0]


def test_improvement_is_a_ratio_within_rounds():
    fast, slow = [170.0, 180.0, 175.0], [10.0, 9.9, 10.3]
    found = only(improvements(vllm(fast), static(slow, 1)))
    assert found["improvement_ratio"] == pytest.approx(stats.gmean(fast) / stats.gmean(slow))
    low, high = (np.log(found[f"improvement_ratio_{end}"] / found["improvement_ratio"]) for end in ("low", "high"))
    assert -low == pytest.approx(high)
    assert 0.02 < high < 0.1
    assert found["verdict"] == "faster"
    assert (found["vllm_repeats"], found["hf_repeats"]) == (3, 3)
    assert found["scope"] == "between starts on this device"
    assert found["vllm_output_tokens_per_s"] == pytest.approx(stats.gmean(fast))
    assert found["hf_output_tokens_per_s"] == pytest.approx(stats.gmean(slow))


# --- equal work


@pytest.mark.parametrize(
    ("of_vllm", "of_hf", "reason"),
    [
        *(({name: 10}, {name: 11}, f"{name} differs: 10 against 11") for name in WORK),
        ({"lock_sha256": "b" * 64}, {"lock_sha256": "a" * 64}, "lock aaaaaaaaaaaa against bbbbbbbbbbbb"),
    ],
)
def test_unequal_work_and_other_environments_are_not_comparable(of_vllm, of_hf, reason):
    cells = vllm(8, **of_vllm), static(1, 1, **of_hf)
    found = only(improvements(*cells))
    assert (found["comparable"], reason in found["reason"]) == (False, True)
    assert found[["improvement_ratio", "improvement_ratio_low", "improvement_ratio_high"]].isna().all()
    assert found["vllm_output_tokens_per_s"] == pytest.approx(8)
    # Steps between others are.
    found = steps(vllm(24, **of_vllm), *(static(n, 8 * n - 7, **of_hf) for n in (1, 2)), continuous(4, **of_hf))
    found = found.set_index("factor")
    assert found.index[found["comparable"]].tolist() == ["static_batching", "continuous_batching"]
    assert reason in found.loc["engine", "reason"]
    assert found["share_pct"].isna().all()


@pytest.mark.parametrize("side", ["vllm", "hf"])
def test_work_that_differs_between_repeats_or_is_not_known_is_not_comparable(side):
    def reason(**work):
        a, b = (work, {}) if side == "vllm" else ({}, work)
        return only(improvements(vllm(8, **a), static(1, 1, **b)))["reason"]

    assert reason(output_tokens=[1000, 1000, 999]) == "output_tokens differs between repeats"
    assert reason(output_tokens=None) == "output_tokens is not known"
    first, second = reason(num_requests=7, prompt_tokens=[1, 2, 3]).split("; ")
    assert first == "prompt_tokens differs between repeats"
    assert second == ("num_requests differs: 7 against 64" if side == "vllm" else "num_requests differs: 64 against 7")


@pytest.mark.parametrize(
    ("knobs", "differs"),
    [
        ({"quantization": "awq"}, "quantization awq"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 2"),
        ({"speculative_method": "ngram", "num_speculative_tokens": 4}, "num_speculative_tokens 4"),
        ({"kv_cache_dtype": "auto"}, None),
        ({"tensor_parallel_size": 1, "block_size": 32}, None),
        ({"speculative_method": "ngram", "num_speculative_tokens": 0}, None),
    ],
)
def test_other_numbers_or_more_devices_are_not_comparable(knobs, differs):
    found = only(improvements(vllm(8, knobs=knobs), static(1, 1)))
    assert found["comparable"] == (differs is None)
    assert pd.isna(found["reason"]) if differs is None else found["reason"].startswith(differs)


# --- the gain as a product of steps


def test_the_steps_from_single_requests_to_vllm():
    found = steps(vllm(24), static(1, 1), static(3, 8), continuous(4))
    single, batch = (f"hf-static/static-batch{size}-cachedynamic" for size in (1, 8))
    flowing = "hf-continuous/continuous-page32-blocks128-tokens256"
    assert found[["factor", "numerator", "denominator"]].values.tolist() == [
        ["static_batching", batch, single],
        ["continuous_batching", flowing, batch],
        ["engine", "vllm/seqs16", flowing],
        ["total", "vllm/seqs16", single],
    ]
    for column in ("ratio", "ratio_low", "ratio_high"):
        assert found[column].tolist() == pytest.approx([3, 4 / 3, 6, 24], rel=0.01)
    assert found["share_pct"].tolist() == pytest.approx([100 * math.log(r) / math.log(24) for r in (3, 4 / 3, 6, 24)])
    same = found[["scope", "comparable", "vllm_knobs", "vllm_max_num_seqs"]].drop_duplicates()
    assert same.values.tolist() == [["between starts on this device", True, "seqs16", 16]]


# Making an example smaller takes longer than reading it as it is.
@settings(max_examples=25, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.lists(st.floats(1, 100), min_size=3, max_size=3), min_size=4, max_size=4))
def test_steps_multiply_to_the_total_and_shares_add_up(rates):
    one, batch, flowing, fast = rates
    found = steps(vllm(fast), static(one, 1), static(batch, 8), continuous(flowing))
    assert found["ratio"][:3].prod() == pytest.approx(found["ratio"][3])
    if found["verdict"][3] == FASTER:
        assert found["share_pct"][:3].sum() == pytest.approx(100)
        assert found["share_pct"][3] == pytest.approx(100)
    else:
        assert found["share_pct"].isna().all()


def test_the_static_batch_has_vllms_size_and_the_cache_of_the_single_requests_whatever_their_speed():
    found = steps(
        vllm(24),
        static(1, 1),
        static(0.5, 1, "static"),
        static(2, 4),
        static(3, 8, "static"),
        static(2.9, 16, "static"),
        continuous(5, tokens=512),
        continuous(4),
    )
    assert found["numerator"].tolist()[:2] == [
        "hf-static/static-batch16-cachestatic",
        "hf-continuous/continuous-page32-blocks128-tokens512",
    ]
    assert found["denominator"].tolist()[0] == "hf-static/static-batch1-cachestatic"
    assert found["ratio"].tolist() == pytest.approx([5.8, 5 / 2.9, 24 / 5, 48])


@pytest.mark.parametrize(("seqs", "batch"), [(4, 4), (6, 4), (8, 8), (256, 16), (2, 4)])
def test_the_static_batch_is_the_largest_that_is_no_larger_than_vllms(seqs, batch):
    # Every vLLM cell that batches has its own steps.
    found = steps(vllm(1, 1), vllm(24, seqs), vllm(3, 512), static(1, 1), *(static(3, size) for size in (4, 8, 16)))
    assert found["vllm_knobs"].tolist() == [f"seqs{seqs}"] * 4 + ["seqs512"] * 4
    assert found["numerator"][0] == f"hf-static/static-batch{batch}-cachedynamic"


def test_a_cache_without_single_requests_is_left_out_however_fast_its_batches_are():
    for fast in (2.9, 3.1):
        found = steps(vllm(24, 8), static(1, 1), static(3, 8), static(fast, 8, "static"))
        assert found["numerator"][0] == "hf-static/static-batch8-cachedynamic"
        assert found["comparable"].tolist() == [True, False, False, True]
    # Without any batch the first cache is taken.
    found = steps(vllm(24), static(1, 1), static(2, 1, "static"))
    assert only(found[found["factor"] == "total"])["denominator"] == "hf-static/static-batch1-cachedynamic"


def test_continuous_batchings_that_are_not_told_apart_are_named():
    alone = vllm(24), static(1, 1), continuous(4), continuous(4.1, 512), continuous(2, 128)
    assert steps(*alone)["ties"].isna().all()
    repeated = continuous([4.0, 4.2, 4.1]), continuous([4.1, 4.0, 4.3], 512)
    found = steps(*alone[:2], *repeated, continuous(2, 128))
    assert found["numerator"][1] == "hf-continuous/continuous-page32-blocks128-tokens512"
    assert found["ties"].isna().tolist() == [True, False, False, True]
    assert found["ties"][1] == "continuous-page32-blocks128-tokens256"


@pytest.mark.parametrize(
    ("cells", "ratios"),
    [
        ((static(3, 8), continuous(4)), {"continuous_batching": 4 / 3, "engine": 6}),
        ((static(1, 1),), {"total": 24}),
        ((continuous(1),), {"engine": 24}),
    ],
)
def test_a_step_whose_cells_were_not_measured_has_no_ratio(cells, ratios):
    found = steps(vllm(24), *cells).set_index("factor")
    assert found["ratio"].dropna().to_dict() == pytest.approx(ratios)
    assert found["comparable"].to_dict() == {factor: factor in ratios for factor in found.index}
    assert found.loc["total", "numerator"] == "vllm/seqs16"
    assert pd.isna(found.loc["total", "denominator"]) == ("total" not in ratios)


def test_a_loss_has_a_negative_share_and_no_total_gain_no_shares():
    found = steps(vllm(8), static(1, 1), static(4, 8), continuous(2))
    assert found["share_pct"].tolist() == pytest.approx([200 / 3, -100 / 3, 200 / 3, 100])
    assert steps(vllm(0.5), static(1, 1), static(4, 8), continuous(2))["share_pct"].isna().all()
    noisy = (
        vllm(around(1.02, 0.3, 1)),
        static(around(1, 0.3), 1),
        static(around(4, 0.3), 8),
        continuous(around(2, 0.3)),
    )
    assert steps(*noisy)["share_pct"].isna().all()

import json
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.unit.questions.synthetic_cells import NOT_COUNTED, OTHER_PLACES, around, cell, only, starts_table
from workflow_scripts.questions.knobs.pairs import ALIKE, knob_groups, looks_at
from workflow_scripts.questions.knobs.table import SCHEMA, knob_effects
from workflow_scripts.statistics.comparisons import ONE_START
from workflow_scripts.statistics.further_starts import Looks
from workflow_scripts.statistics.summary import ENVIRONMENT
from workflow_scripts.study.study import Starts


def effects(*cells, margin_pct=2.0, comparison=None):
    found = SCHEMA.validate(knob_effects(starts_table(*cells), margin_pct))
    return found[found["comparison"] == comparison].reset_index(drop=True) if comparison else found


def flag(value):
    return None if pd.isna(value) else bool(value)


def limited(seqs, requests, rate, steady):
    steady = steady and [steady * factor for factor in around(1)]
    return cell({"max_num_seqs": seqs}, around(rate), num_requests=requests, steady_output_tokens_per_s=steady)


def test_cells_with_other_requests_are_compared_while_they_are_full():
    equal = [limited(seqs, 64, rate, steady) for seqs, rate, steady in ((1, 100, 100), (4, 300, 400), (16, 400, 800))]
    assert set(effects(*equal)["metric"]) == {"output_tokens_per_s"}
    assert set(effects(*equal)["work"]) == {"equal"}
    same = effects(*equal).set_index(["comparison", "value"])
    assert same.loc[("overall", "16"), ["ratio", "steady_ratio"]].tolist() == pytest.approx([4, 8])
    other = limited(16, 128, 400, 800)
    found = effects(*equal[:2], other).set_index(["comparison", "value"])
    assert set(found["metric"]) == {"steady_output_tokens_per_s"}
    assert found["work"].tolist() == ["equal", "differs", "differs"]
    assert found.loc[("pair", "4"), ["ratio", "whole_ratio"]].tolist() == pytest.approx([4, 3])
    assert found.loc[("overall", "16"), ["rate", "baseline_rate"]].tolist() == pytest.approx([800, 100])
    assert found.loc[("overall", "16"), ["ratio", "whole_ratio"]].tolist() == pytest.approx([8, 4])
    # A cell that is never full has no such rate, and then none of its group is compared by it.
    unknown = effects(*equal[:2], limited(16, 128, 400, None)).set_index(["comparison", "value"])
    assert set(unknown["metric"]) == {"output_tokens_per_s"}
    assert unknown.loc["overall", ["ratio", "whole_ratio"]].values.tolist() == [pytest.approx([4, 4])]
    assert pd.isna(unknown.loc[("overall", "16"), "steady_ratio"])
    assert unknown["work"].tolist() == ["equal", "differs", "differs"]


@pytest.mark.parametrize("faster", [0, 1])
def test_the_ratio_while_full_has_its_interval_in_either_order(faster):
    steady = [100.0, 101.0, 99.0], [206.0, 200.0, 194.0]
    blocks = (16, 32) if faster else (32, 16)
    cells = [
        cell({"block_size": block}, around(rate), steady_output_tokens_per_s=of)
        for block, rate, of in zip(blocks, (100, 300), steady, strict=True)
    ]
    found = only(effects(*cells, comparison="overall"))
    low, ratio, high = np.log(found[["steady_ratio_low", "steady_ratio", "steady_ratio_high"]].astype(float))
    assert ratio == pytest.approx((np.log(steady[1]) - np.log(steady[0])).mean())
    assert ratio - low == pytest.approx(high - ratio)
    assert 0.01 < high - ratio < 0.06


# --- what is compared with what


def test_values_are_compared_with_the_smallest_in_every_group_that_is_alike_otherwise():
    places = product(("h200", "l40s"), (16, 32), (128, 1, 16))
    cells = [cell({"max_num_seqs": n, "block_size": block}, around(100), gpu=gpu) for gpu, block, n in places]
    found = effects(*cells, comparison="pair")
    by_seqs = found[found["knob"] == "max_num_seqs"]
    assert by_seqs[["gpu", "held", "value", "baseline", "values"]].values.tolist() == [
        [gpu, f"block_size={block}", value, "1", "1, 16, 128"]
        for gpu, block, value in product(("h200", "l40s"), (16, 32), ("16", "128"))
    ]
    by_block = found[found["knob"] == "block_size"]
    assert len(by_block) == 6
    assert set(by_block["held"]) == {"max_num_seqs=1", "max_num_seqs=16", "max_num_seqs=128"}
    assert set(by_block["value"] + by_block["baseline"]) == {"3216"}


@pytest.mark.parametrize("other", [*OTHER_PLACES, {"engine": "hf-static"}, {"lock_sha256": "b"}, *NOT_COUNTED])
def test_cells_that_differ_in_anything_else_are_not_compared(other):
    knobs = {"batch_size": 8} if "engine" in other else {"max_num_seqs": 16}
    assert effects(cell({"max_num_seqs": 1}, lock_sha256="a"), cell(knobs, **({"lock_sha256": "a"} | other))).empty


def test_models_are_compared_at_equal_settings_with_the_first_in_the_alphabet():
    models = product((1, 16), (("opt", 100), ("opt-awq", 200)))
    both = [cell({"max_num_seqs": n}, around(rate), model=model) for n, (model, rate) in models]
    found = effects(*both, cell({"max_num_seqs": 64}, around(100), model="opt"))
    by_model = found[found["knob"] == "model"]
    pairs = by_model[by_model["comparison"] == "pair"]
    assert pairs[["model", "value", "baseline", "held"]].values.tolist() == [
        ["opt-awq", "opt-awq", "opt", f"max_num_seqs={seqs}"] for seqs in (1, 16)
    ]
    assert pairs["ratio"].tolist() == pytest.approx([2, 2])
    assert by_model["took_effect"].isna().all()
    assert set(found.loc[found["knob"] == "max_num_seqs", "model"]) == {"opt", "opt-awq"}


@pytest.mark.parametrize(
    ("knobs", "compared"),
    [
        # What a cell leaves to the engine is the baseline.
        (
            [{"max_num_seqs": 1}, *({"max_num_seqs": 1, "block_size": n} for n in (16, 32)), {"max_num_seqs": 4}],
            [
                ["max_num_seqs", "4", "1", "1, 4", ""],
                *(["block_size", n, "default", "default, 16, 32", "max_num_seqs=1"] for n in ("16", "32")),
            ],
        ),
        # The baseline of a switch is false, and of names the first in the alphabet.
        ([{"enforce_eager": on} for on in (True, False)], [["enforce_eager", "true", "false", "false, true", ""]]),
        ([{"kv_cache_dtype": t} for t in ("fp8", "auto")], [["kv_cache_dtype", "fp8", "auto", "auto, fp8", ""]]),
    ],
)
def test_values_and_baselines(knobs, compared):
    found = effects(*map(cell, knobs), comparison="pair")
    assert found[["knob", "value", "baseline", "values", "held"]].values.tolist() == compared


@pytest.mark.parametrize(
    ("knob", "values", "compared"),
    [
        ("block_size", [32, None, 16], ["default", "16", "32"]),
        ("users", [32, None, 16], ["16", "32"]),
        ("enforce_eager", [True, None, False], ["false", "true"]),
    ],
)
def test_no_load_and_no_switch_has_a_default_beside_its_values(knob, values, compared):
    cells = pd.DataFrame(dict.fromkeys((*ALIKE, *ENVIRONMENT), "same"), index=range(3)).assign(
        **{f"knob_{knob}": values}
    )
    assert knob_groups(cells, f"knob_{knob}", [])["value"].tolist() == compared


# --- the numbers


def test_ratio_and_interval_of_a_pair_are_those_of_its_starts():
    cells = cell({"max_num_seqs": 1}, [100.0, 102.0, 101.0]), cell({"max_num_seqs": 4}, [205.0, 200.0, 207.0])
    found = only(effects(*cells, comparison="pair"))
    logs = np.log([205.0, 200.0, 207.0]) - np.log([100.0, 102.0, 101.0])
    assert found["ratio"] == pytest.approx(np.exp(logs.mean()))
    # The starts show a standard error of 1.6 %, those of other studies less.
    half = math.log(found["ratio_high"] / found["ratio"])
    assert half == pytest.approx(math.log(found["ratio"] / found["ratio_low"]))
    assert 0.015 < half < 0.06
    rates = [stats.gmean(of) for of in ([205.0, 200.0, 207.0], [100.0, 102.0, 101.0])]
    assert found[["rate", "baseline_rate"]].tolist() == pytest.approx(rates)
    assert math.log(found["ratio_again_high"] / found["ratio"]) == pytest.approx(math.sqrt(2) * half, rel=0.01)
    assert (found["repeats"], found["baseline_repeats"], found["starts"]) == (3, 3, 3)
    assert found["scope"] == "between starts on this device"
    assert found["cell_id"].endswith("/seqs4")
    assert found["baseline_cell_id"].endswith("/seqs1")
    assert found["margin_pct"] == 2.0


def test_a_ratio_is_the_quotient_of_the_rates_beside_it_and_one_pair_has_one_interval():
    cells = [cell({"max_num_seqs": 1}, [100.0, 102.0]), cell({"max_num_seqs": 4}, [205.0, 200.0, 230.0])]
    cells.append(cell({"max_num_seqs": 8}, [300.0, 310.0, 320.0]))
    found = effects(*cells)
    assert found["ratio"].to_numpy() == pytest.approx((found["rate"] / found["baseline_rate"]).to_numpy())
    pair, overall = (found[found["comparison"].eq(name) & found["value"].eq("8")] for name in ("pair", "overall"))
    ends = ["ratio", "ratio_low", "ratio_high", "ratio_again_low", "ratio_again_high"]
    assert overall[ends].values.tolist() == pair[ends].values.tolist()
    assert pair["rate"].item() == pytest.approx(stats.gmean([300.0, 310.0, 320.0]))


@pytest.mark.parametrize(
    ("ratio", "sd", "verdict", "needed"),
    [
        (1.001, 0.001, "flat", 0),
        (1.5, 0.001, "changes", 0),
        (0.5, 0.001, "changes", 0),
        (1.0, 0.015, "not decided", 4),
        (1.0199, 0.01, "not decided", None),
    ],
)
def test_verdict_and_what_it_would_take(ratio, sd, verdict, needed):
    cells = cell({"block_size": 16}, around(100, sd)), cell({"block_size": 32}, around(100 * ratio, sd, 1))
    found = only(effects(*cells, comparison="pair"))
    assert found["verdict"] == verdict
    assert (None if pd.isna(found["starts_needed"]) else found["starts_needed"]) == needed


def test_a_cell_with_two_modes_has_an_interval_and_a_verdict():
    def starts(of, *rates):
        noise = np.roll([0.002, 0, -0.002, 0, 0.001, -0.001], of)
        return cell({"max_num_seqs": of}, np.array(rates) * np.exp(noise))

    steady = [starts(n, *[100.0] * 6) for n in (1, 2, 4)]
    found = effects(*steady, starts(8, 300, 390, 300, 390, 390, 300), comparison="pair").set_index("value")
    assert found["verdict"].to_dict() == {"2": "flat", "4": "flat", "8": "changes"}
    assert found.loc["8", ["ratio_low", "ratio_high"]].notna().all()


def test_a_plan_that_gave_counted_starts_was_a_look_at_them():
    cells = cell({"block_size": 16}, around(100, 0.006)), cell({"block_size": 32}, around(100, 0.006, 1))
    rows = starts_table(*cells)
    three = Starts(at_least=3, at_most=3)
    for planned, earlier in ((["3"] * 3, 0), (["2", "2", "3"], 1), (["1", "2, or up to 8", "3"], 2), ([None] * 3, 0)):
        seen = rows.assign(planned_starts=planned * 2)
        assert looks_at(three, seen) == Looks(3, 3, earlier)
        found = knob_effects(seen, 2.0, looks_at(three, seen))
        assert found["level_pct"].tolist() == pytest.approx([5 * 0.75 * 0.25**earlier] * 2)
        assert set(found["verdict"]) == {"not decided" if earlier == 2 else "flat"}
    gone = rows.assign(planned_starts=["2", "2", "3"] * 2, comparable=[False, False, True] * 2)
    assert looks_at(three, gone) == Looks(3, 3)


# --- all values together


def seqs(rates, sd=0.001, **columns):
    return [cell({"max_num_seqs": n}, around(rate, sd, i % 3), **columns) for i, (n, rate) in enumerate(rates.items())]


def test_overall_is_the_fastest_against_the_slowest_with_the_interval_of_this_pair():
    found = only(effects(*seqs({1: 100, 4: 300, 16: 50}, sd=0.01), comparison="overall"))
    assert found[["value", "baseline", "values", "verdict"]].tolist() == ["4", "16", "1, 4, 16", "changes"]
    assert found["ratio"] == pytest.approx(6)
    assert 5.7 < found["ratio_low"] < 5.95 < 6.05 < found["ratio_high"] < 6.3
    assert found["starts_needed"] == 0


@pytest.mark.parametrize(
    ("rates", "sd", "fastest", "decided"),
    [
        ({1: 100, 4: 300, 16: 50}, 0.001, "4", True),
        ({1: 100, 4: 300, 16: 301}, 0.001, "4, 16", True),  # equally fast
        ({1: 100, 4: 300, 16: 330}, 0.1, "4, 16", False),  # only the smallest is shown to be slower
        ({1: 100, 4: 116, 16: 130}, 0.2, "1, 4, 16", False),
    ],
)
def test_the_fastest_are_those_that_no_other_is_shown_to_exceed(rates, sd, fastest, decided):
    # Groups come one after the other, pairs first.
    found = effects(*seqs(rates, sd), *seqs({1: 3, 4: 1}, gpu="l40s"))
    order = [("h200", "4"), ("h200", "16"), ("h200", "overall"), ("l40s", "4"), ("l40s", "overall")]
    assert list(zip(found["gpu"], found["value"].where(found["comparison"] == "pair", "overall"), strict=True)) == order
    overall = found[found["comparison"] == "overall"].iloc[0]
    assert (overall["fastest"], flag(overall["fastest_decided"])) == (fastest, decided)


def test_overall_is_flat_only_if_every_pair_is():
    assert only(effects(*seqs({1: 100, 4: 101, 16: 100.5}), comparison="overall"))["verdict"] == "flat"
    equal = only(effects(*seqs({1: 100, 4: 100}, sd=0.0), comparison="overall"))
    assert equal[["value", "baseline", "ratio", "verdict"]].tolist() == ["4", "1", 1.0, "flat"]  # still two cells
    # Each is within 20 % of the first, but not the others of each other.
    pairs = effects(*seqs({1: 100, 4: 111, 16: 90.5}, sd=0.008), margin_pct=20)
    assert pairs.loc[pairs["comparison"] == "pair", "verdict"].tolist() == ["flat", "flat"]
    overall = only(pairs[pairs["comparison"] == "overall"])
    assert overall[["verdict", "starts_needed"]].tolist() == ["not decided", 1]
    # It waits for the last pair, and has no plan where a pair has none.
    pairs = effects(*seqs({1: 100, 4: 100, 16: 101.5}, sd=0.01))
    needed = pairs.loc[pairs["comparison"] == "pair", "starts_needed"].tolist()
    overall = only(pairs[pairs["comparison"] == "overall"])
    assert overall["verdict"] == "not decided"
    assert overall["starts_needed"] == max(needed) > min(needed)
    overall = only(effects(*seqs({1: 100, 4: 102, 16: 101}), comparison="overall"))
    assert overall[["value", "baseline", "verdict"]].tolist() == ["4", "1", "not decided"]
    assert pd.isna(overall["starts_needed"])


def test_a_change_needs_more_the_more_comparisons_the_study_has():
    two = effects(*seqs({1: 100, 4: 108.5}, sd=0.04))
    assert two["verdict"].tolist() == ["changes", "changes"]
    gpus = ("l40s", "h100-sxm", "a100-pcie-80gb")
    many = [row for gpu in gpus for row in seqs({1: 100, 4: 101}, sd=0.04, gpu=gpu, study="other")]
    five = effects(*seqs({1: 100, 4: 108.5}, sd=0.04), *many)
    assert set(five.loc[five["gpu"] == "h200", "verdict"]) == {"not decided"}


def test_overall_shows_the_pair_that_decides_it():
    # 64 is the slowest, and its starts vary too much to decide anything.
    cells = [*seqs({1: 100, 4: 130}), cell({"max_num_seqs": 64}, around(95, 0.5))]
    overall = only(effects(*cells, comparison="overall"))
    assert overall[["value", "baseline", "verdict"]].tolist() == ["4", "1", "changes"]
    assert overall["ratio_low"] > 1.15
    # Single starts are compared by what others vary.
    cells = [cell({"max_num_seqs": n}, [rate]) for n, rate in ((1, 100.0), (4, 40.0), (16, 90.0))]
    overall = only(effects(*cells, comparison="overall"))
    assert overall[["value", "baseline", "verdict"]].tolist() == ["1", "4", "changes"]
    assert overall["ratio"] == pytest.approx(2.5)
    assert (overall["scope"], overall["starts_needed"]) == (ONE_START, 0)


# --- whether the knob took effect, and what bound


@pytest.mark.parametrize(
    ("engine", "knobs", "column"),
    [
        ("vllm", [{"block_size": 16}, {"block_size": 32}], "block_size_effective"),
        ("vllm", [{"enable_prefix_caching": on} for on in (False, True)], "prefix_cache_hits"),
        ("vllm", [{"attention_backend": name} for name in ("FLASHINFER", "FLASH_ATTN")], "attention_backend"),
        ("vllm-serve", [{"users": 1}, {"users": 4}], "running_peak"),
        ("hf-static", [{"batch_size": 1}, {"batch_size": 8}], "running_peak"),
    ],
)
def test_a_knob_took_effect_if_the_engine_shows_a_difference(engine, knobs, column):
    """The field of each knob says in which column the engine shows it."""
    first, second = ("A", "B") if column == "attention_backend" else (3, 4)
    for seen, took_effect in (((first, second), True), ((first, first), False), ((first, None), None)):
        cells = zip(knobs, seen, strict=True)
        found = effects(*(cell(of, around(1), engine=engine, **{column: value}) for of, value in cells))
        assert set(found["knob"]) == {*knobs[0]}
        assert [flag(of) for of in found["took_effect"]] == [took_effect] * 2


@pytest.mark.parametrize(
    ("peaks", "took_effect"), [((1, 1, 2), True), ((1, None, 2), True), ((2, 2, 2), False), ((2, 2, None), None)]
)
def test_overall_took_effect_if_any_pair_shows_it(peaks, took_effect):
    values = zip((1, 4, 16), peaks, strict=True)
    cells = (cell({"max_num_seqs": n}, around(1), running_peak=peak, num_requests=24) for n, peak in values)
    assert flag(only(effects(*cells, comparison="overall"))["took_effect"]) is took_effect


def test_what_the_engine_shows_is_that_of_one_repeat_and_nothing_is_shown_of_another_knob():
    seen = ((False, 0), (True, 96))
    found = effects(*(cell({"enable_prefix_caching": on}, around(1), prefix_cache_hits=hits) for on, hits in seen))
    assert found[["shown", "baseline_shown"]].values.tolist() == [["96", "0"]] * 2
    found = effects(*(cell({"enforce_eager": eager}, around(1)) for eager in (True, False)))
    assert found["took_effect"].isna().all()


def test_what_bound_the_engine():
    found = effects(
        *(cell({"max_num_seqs": n}, around(1), running_peak=min(n, 24), num_requests=24) for n in (1, 4, 64))
    )
    assert found[["comparison", "value", "bound_by"]].values.tolist()[:2] == [
        ["pair", "4", "sequences"],
        ["pair", "64", "prompts"],
    ]
    assert only(found[found["comparison"] == "overall"])["bound_by"] == "prompts, sequences"
    unknown = effects(*(cell({"max_num_seqs": n}, around(1)) for n in (1, 4)))
    assert unknown["bound_by"].isna().all()


# --- what the engine moved with the knob


def of_settings(seqs, **settings):
    return cell({"max_num_seqs": seqs}, around(100 + seqs), effective=json.dumps({"max_num_seqs": seqs, **settings}))


def test_a_default_that_moves_with_a_knob_is_told_beside_the_verdict():
    cells = [
        of_settings(seqs, max_num_batched_tokens=tokens, num_gpu_blocks=100 - seqs, max_model_len=512)
        for seqs, tokens in ((1, 512.0), (8, 4096.0), (16, 4096.0))
    ]
    found = effects(*cells)
    assert found[["comparison", "value", "moved_with_it"]].values.tolist() == [
        ["pair", "8", "max_num_batched_tokens 512 -> 4,096"],
        ["pair", "16", "max_num_batched_tokens 512 -> 4,096"],
        ["overall", "16", "max_num_batched_tokens 512 -> 4,096"],
    ]


def test_what_the_study_asks_for_and_what_only_one_cell_tells_did_not_move():
    same = {"attention_backend": "CPU_ATTN", "max_num_batched_tokens": 512}
    found = effects(of_settings(1, **same), of_settings(8, **same, dtype="float32"))
    assert found["moved_with_it"].isna().all()
    assert effects(of_settings(1, **same), cell({"max_num_seqs": 8}, around(100)))["moved_with_it"].isna().all()
    pages = []
    for size, backend in ((32, "a"), (64, "b")):
        knobs = {"page_size": size, "num_blocks": 8, "max_batch_tokens": 64}
        told = json.dumps({"block_size": size, "attention_backend": backend})
        pages.append(cell(knobs, engine="hf-continuous", effective=told))
    assert set(effects(*pages)["moved_with_it"]) == {"attention_backend a -> b"}

"""The table of all comparisons: which cells are compared, in which direction, and what is shown."""

import json
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.unit.questions.synthetic_cells import NOT_COUNTED, OTHER_PLACES, around, cell, only, starts_table
from workflow_scripts.questions.comparisons.pairs import ALIKE, MANY_VALUES, WORK, grouped, looks_at, overall
from workflow_scripts.questions.comparisons.table import SCHEMA, comparison_tables
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks
from workflow_scripts.study.study import Starts
from workflow_scripts.tables.summary import ENVIRONMENT, Summaries

RATE, STEADY = "output_tokens_per_s", "steady_output_tokens_per_s"
ONE, FOUR = {"max_num_seqs": 1}, {"max_num_seqs": 4}
HF = {"engine": "hf-static"}


def compared(*cells, metric=RATE, margin_pct=5.0):
    return of_rows(starts_table(*cells), metric, margin_pct)


def of_rows(rows, metric=RATE, margin_pct=5.0, looks=ONE_LOOK):
    found = SCHEMA.validate(comparison_tables(Summaries(rows), margin_pct, looks)[0])
    return found[found["metric"] == metric]


# Two cells with the rates 100 and 200, each with its other columns -> what the pair is.
PAIRS = {
    "a knob": (ONE, {}, FOUR, {}, ("knob", "max_num_seqs", "1", "4", True)),
    "a switch": (
        *({"enable_prefix_caching": False}, {}, {"enable_prefix_caching": True}, {}),
        ("knob", "enable_prefix_caching", "false", "true", True),
    ),
    "left to the engine": (FOUR, {}, FOUR | {"block_size": 32}, {}, ("knob", "block_size", "default", "32", True)),
    "the model": (FOUR, {}, FOUR, {"model": "opt-125m"}, ("model", "model", "llama-3.1-8b-instruct", "opt-125m", True)),
    "the device": (FOUR, {"gpu": "l40s"}, FOUR, {}, ("device", "gpu", "l40s", "h200", None)),
    "the engine": (
        *({"batch_size": 4}, HF, FOUR, {}),
        ("engine", "engine", "hf-static/static-batch4-cachedynamic", "vllm/seqs4", None),
    ),
    "the server": (
        *({"endpoint": "other", "users": 4}, {"engine": "openai"}, {"users": 4} | FOUR, {"engine": "vllm-serve"}),
        ("server", "server", "other", "vllm-serve", None),
    ),
    "a server's users": (
        *({"users": 1} | FOUR, {"engine": "vllm-serve"}, {"users": 2} | FOUR, {"engine": "vllm-serve"}),
        ("load", "users", "1", "2", True),
    ),
}


@pytest.mark.parametrize(("knobs_a", "more_a", "knobs_b", "more_b", "expected"), PAIRS.values(), ids=PAIRS)
def test_two_cells_that_differ_in_one_thing_are_one_row(knobs_a, more_a, knobs_b, more_b, expected):
    a, b = cell(knobs_a, around(100.0), **more_a), cell(knobs_b, around(200.0), **more_b)
    row = only(compared(a, b))
    assert (
        tuple(None if pd.isna(of) else of for of in row[["kind", "name", "value_a", "value_b", "from_first"]])
        == expected
    )
    assert (row["a"], row["b"]) == (a[0]["cell_id"], b[0]["cell_id"])
    assert row[["mean_a", "mean_b", "ratio"]].tolist() == pytest.approx([100, 200, 2])
    assert 1 < row["again_low"] < row["low"] < row["at_least"] < 2 < row["high"] < row["again_high"]
    assert (row["verdict"], row["starts"]) == ("changes", 3)
    assert row["work"] == "equal"


@pytest.mark.parametrize(
    "other", [*({"knobs": {"block_size": 32, **FOUR}, **place} for place in [*OTHER_PLACES, *NOT_COUNTED])]
)
def test_what_differs_in_more_or_does_not_count_is_not_compared(other):
    knobs = other.pop("knobs")
    assert compared(cell(FOUR, around(100.0)), cell(knobs, around(200.0), **other)).empty


@pytest.mark.parametrize(
    ("rate", "sd", "margin_pct", "verdict", "bounded"),
    [
        (100.2, 0.001, 5.0, "flat", False),
        (200.0, 0.001, 5.0, "changes", True),
        (106.0, 0.01, 5.0, "likely", True),
        (101.0, 0.2, 5.0, "not decided", False),
    ],
)
def test_the_verdict_and_the_bound_follow_from_the_margin_and_the_interval(rate, sd, margin_pct, verdict, bounded):
    row = only(compared(cell(ONE, around(100.0, sd)), cell(FOUR, around(rate, sd, turn=1)), margin_pct=margin_pct))
    assert (row["verdict"], pd.notna(row["at_least"])) == (verdict, bounded)
    assert row[["starts_needed"]].eq(0).fillna(False).item() == (verdict in ("flat", "changes"))


def limited(seqs, requests, rate, steady):
    steady = steady and [steady * factor for factor in around(1)]
    return cell({"max_num_seqs": seqs}, around(rate), num_requests=requests, steady_output_tokens_per_s=steady)


def test_cells_with_other_requests_are_compared_while_full_and_the_whole_rate_is_not_tested():
    equal = [limited(seqs, 64, rate, steady) for seqs, rate, steady in ((1, 100, 100), (4, 300, 400))]
    same, full = only(compared(*equal)), only(compared(*equal, metric=STEADY))
    assert (same["work"], same["ratio"], full["ratio"]) == ("equal", pytest.approx(3), pytest.approx(4))
    assert (pd.notna(same["verdict"]), pd.notna(full["verdict"]), full["low"] < 4 < full["high"]) == (True, False, True)
    found = compared(*equal, limited(16, 128, 400, 800), metric=STEADY)
    assert found["work"].tolist() == ["equal", "differs", "differs"]
    assert (found["ratio"].tolist(), found["verdict"].tolist()) == (pytest.approx([4, 8, 2]), ["changes"] * 3)
    whole = compared(*equal, limited(16, 128, 400, 800))
    assert whole["ratio"].tolist() == pytest.approx([3, 4, 4 / 3])
    assert whole[["verdict", "at_least", "low"]].isna().all(axis=None)
    # A cell that is never full has no such rate, and then none of its group is compared by it.
    unknown = compared(*equal, limited(16, 128, 400, None))
    assert (unknown["work"].tolist(), set(unknown["verdict"])) == (["equal", "differs", "differs"], {"changes"})


@pytest.mark.parametrize(("count", "pairs"), [(MANY_VALUES, MANY_VALUES * (MANY_VALUES - 1) // 2), (20, 19 + 18)])
def test_pairs_of_a_knob_with_many_values_grow_with_their_number(count, pairs):
    found = compared(*(cell({"max_num_seqs": n}, around(100.0 + n)) for n in range(1, count + 1)))
    assert len(found) == pairs
    assert found["from_first"].sum() == count - 1


# --- which values are compared


def test_values_are_compared_in_every_group_that_is_alike_otherwise():
    places = product(("h200", "l40s"), (16, 32), (128, 1, 16))
    cells = [cell({"max_num_seqs": n, "block_size": block}, around(100), gpu=gpu) for gpu, block, n in places]
    found = compared(*cells)
    by_seqs = found[found["name"].eq("max_num_seqs") & found["from_first"]]
    assert by_seqs[["gpu", "held", "value_b", "value_a", "values"]].values.tolist() == [
        [gpu, f"block_size={block}", value, "1", "1, 16, 128"]
        for gpu, block, value in product(("h200", "l40s"), (16, 32), ("16", "128"))
    ]
    by_block = found[found["name"] == "block_size"]
    assert len(by_block) == 6
    assert set(by_block["held"]) == {"max_num_seqs=1", "max_num_seqs=16", "max_num_seqs=128"}
    assert set(by_block["value_b"] + by_block["value_a"]) == {"3216"}


@pytest.mark.parametrize(
    ("knob", "values", "expected"),
    [
        ("block_size", [32, None, 16], ["default", "16", "32"]),
        ("users", [32, None, 16], ["16", "32"]),
        ("enforce_eager", [True, None, False], ["false", "true"]),
        ("kv_cache_dtype", ["fp8", "auto", None], ["default", "auto", "fp8"]),
    ],
)
def test_no_load_and_no_switch_has_a_default_beside_its_values(knob, values, expected):
    cells = pd.DataFrame(dict.fromkeys((*ALIKE, *ENVIRONMENT), "same"), index=range(3)).assign(
        **{f"knob_{knob}": values}
    )
    assert grouped(cells, f"knob_{knob}")["value"].tolist() == expected


def test_environments_are_compared_cell_by_cell_with_what_changed_by_itself():
    def measured(environment, seqs, rate, **settings):
        of = cell({"max_num_seqs": seqs}, around(rate), effective=json.dumps(settings), lock_sha256=environment)
        at = f"vllm@{environment}" if environment else "vllm"
        return [row | {"engine": at, "cell_id": row["cell_id"].replace("/vllm/", f"/{at}/")} for row in of]

    old = [measured("vllm-0.20", seqs, 60 * seqs, chunked=True, num_gpu_blocks=900 - seqs) for seqs in (1, 4)]
    new = [measured("", seqs, 100 * seqs, chunked=False, num_gpu_blocks=1000, more=1) for seqs in (1, 4)]
    rows = compared(*old, *new, measured("vllm-0.20", 8, 480))
    found = rows[rows["kind"] == "environment"]
    assert found[["engine", "value_a", "value_b", "held", "moved_with_it"]].values.tolist() == [
        [
            *("vllm", "default", "vllm-0.20", f"max_num_seqs={seqs}"),
            f"chunked false -> true; num_gpu_blocks 1,000 -> {900 - seqs}",
        ]
        for seqs in (1, 4)
    ]
    # What other knobs do is compared inside an environment only.
    inside = rows[rows["kind"] == "knob"]
    assert (inside["a"].str.split("/").str[1] == inside["b"].str.split("/").str[1]).all()


# --- the numbers


def test_ratio_and_interval_of_a_pair_are_those_of_its_starts():
    rates = [100.0, 102.0, 101.0], [205.0, 200.0, 207.0]
    found = only(compared(*(cell(knobs, of) for knobs, of in zip((ONE, FOUR), rates, strict=True))))
    logs = np.log(rates[1]) - np.log(rates[0])
    assert found["ratio"] == pytest.approx(np.exp(logs.mean()))
    # The starts show a standard error of 1.6 %, those of other studies less.
    half = math.log(found["high"] / found["ratio"])
    assert half == pytest.approx(math.log(found["ratio"] / found["low"]))
    assert 0.015 < half < 0.06
    assert found[["mean_a", "mean_b"]].tolist() == pytest.approx([stats.gmean(of) for of in rates])
    assert math.log(found["again_high"] / found["ratio"]) == pytest.approx(math.sqrt(2) * half, rel=0.01)
    assert (found["scope"], found["margin_pct"]) == ("between starts on this device", 5.0)


def test_a_plan_that_gave_counted_starts_was_a_look_at_them():
    rows = starts_table(cell(ONE, around(100, 0.006)), cell(FOUR, around(100, 0.006, 1)))
    three = Starts(at_least=3, at_most=3)
    for planned, earlier in ((["3"] * 3, 0), (["2", "2", "3"], 1), (["1", "2, or up to 8", "3"], 2), ([None] * 3, 0)):
        seen = rows.assign(planned_starts=planned * 2)
        assert looks_at(three, seen) == Looks(3, 3, earlier)
        found = only(of_rows(seen, margin_pct=2.0, looks=looks_at(three, seen)))
        assert found["verdict"] == ("not decided" if earlier == 2 else "flat")
    gone = rows.assign(planned_starts=["2", "2", "3"] * 2, comparable=[False, False, True] * 2)
    assert looks_at(three, gone) == Looks(3, 3)


def test_a_change_needs_more_the_more_comparisons_the_study_has():
    two = [cell(knobs, around(rate, 0.04, i)) for i, (knobs, rate) in enumerate(((ONE, 100), (FOUR, 108.5)))]
    assert only(compared(*two, margin_pct=2.0))["verdict"] == "changes"
    many = [
        cell(knobs, around(rate, 0.04, i), gpu=gpu, study="other")
        for gpu in ("l40s", "h100-sxm", "a100-pcie-80gb")
        for i, (knobs, rate) in enumerate(((ONE, 100), (FOUR, 101)))
    ]
    found = compared(*two, *many, margin_pct=2.0).query("kind == 'knob' and gpu == 'h200'")
    assert only(found)["verdict"] == "likely"


# --- all values together


def of_seqs(rates, sd=0.001, margin_pct=2.0):
    cells = [cell({"max_num_seqs": n}, around(rate, sd, i % 3)) for i, (n, rate) in enumerate(rates.items())]
    return only(overall(compared(*cells, margin_pct=margin_pct), "max_num_seqs"))


@pytest.mark.parametrize(
    ("rates", "sd", "pair", "verdict"),
    [
        ({1: 100, 4: 300, 16: 50}, 0.001, ["16", "4"], "changes"),
        ({1: 100, 4: 300, 16: 301}, 0.001, ["1", "16"], "changes"),  # equally fast
        ({1: 100, 4: 300, 16: 330}, 0.1, ["1", "16"], "changes"),  # the smallest alone is slower
        ({1: 100, 4: 116, 16: 130}, 0.2, ["1", "16"], "not decided"),
        ({1: 100, 4: 101, 16: 100.5}, 0.001, ["1", "4"], "flat"),
        ({1: 100, 4: 102, 16: 101}, 0.001, ["1", "4"], "not decided"),
        ({1: 100, 4: 100}, 0.0, ["1", "4"], "flat"),
    ],
)
def test_all_values_together_are_the_pair_furthest_apart_with_the_verdict_of_all(rates, sd, pair, verdict):
    found = of_seqs(rates, sd)
    assert found[["value_a", "value_b"]].tolist() == pair
    ratio = rates[int(pair[1])] / rates[int(pair[0])]
    assert found["ratio"] == pytest.approx(ratio)
    assert found["low"] <= found["ratio"] <= found["high"]
    assert found["verdict"] == verdict


def test_all_values_are_flat_only_if_every_pair_is():
    # Each is within 20 % of the first, but not the others of each other.
    assert of_seqs({1: 100, 4: 111, 16: 90.5}, sd=0.008, margin_pct=20)["verdict"] == "not decided"


def test_the_pair_that_decides_is_shown():
    # 64 is the slowest, and its starts vary too much to decide anything.
    cells = [cell({"max_num_seqs": n}, around(rate, turn=n % 3)) for n, rate in ((1, 100), (4, 130))]
    found = compared(*cells, cell({"max_num_seqs": 64}, around(95, 0.5)), margin_pct=2.0)
    shown = only(overall(found, "max_num_seqs"))
    assert shown[["value_b", "value_a", "verdict"]].tolist() == ["4", "1", "changes"]
    assert shown["low"] > 1.15


# --- what moved with a knob, and what bound


def test_a_default_that_moves_with_a_knob_is_told_beside_the_verdict():
    def of_settings(seqs, **settings):
        told = {"max_num_seqs": seqs, "num_gpu_blocks": 100 - seqs, **settings}
        return cell({"max_num_seqs": seqs}, around(100 + seqs), effective=json.dumps(told))

    cells = [of_settings(seqs, max_num_batched_tokens=tokens) for seqs, tokens in ((1, 512.0), (8, 4096.0))]
    assert only(compared(*cells))["moved_with_it"] == "max_num_batched_tokens 512 -> 4,096"
    # What the study asks for, and what only one cell tells, did not move.
    assert pd.isna(only(compared(of_settings(1), of_settings(8, dtype="float32")))["moved_with_it"])
    assert pd.isna(only(compared(of_settings(1), cell({"max_num_seqs": 8}, around(100))))["moved_with_it"])


# --- engines


def static(rate, batch, **options):
    knobs = {"batch_size": batch, "cache_implementation": "dynamic"}
    return cell(knobs, rate if isinstance(rate, list) else around(rate), engine="hf-static", **options)


def continuous(rate):
    return cell({"page_size": 32, "num_blocks": 128, "max_batch_tokens": 256}, around(rate), engine="hf-continuous")


def of_engines(*cells):
    return compared(*cells).query("kind == 'engine'")


def test_every_cell_meets_those_of_the_other_engines_at_its_place():
    vllm = [cell({"max_num_seqs": n}, around(rate)) for n, rate in ((1, 8), (16, 24))]
    found = of_engines(*vllm, static(1, 1), static(3, 8), continuous(4), static(1, 1, gpu="l40s"))
    ratios = dict(zip(zip(found["value_a"], found["value_b"], strict=True), found["ratio"], strict=True))
    single, batch = (f"hf-static/static-batch{size}-cachedynamic" for size in (1, 8))
    flowing = "hf-continuous/continuous-page32-blocks128-tokens256"
    rates = {single: 1, batch: 3, flowing: 4, "vllm/seqs1": 8, "vllm/seqs16": 24}
    expected = {(a, b): rates[b] / rates[a] for a in (single, batch) for b in (flowing, "vllm/seqs1", "vllm/seqs16")}
    expected |= {(flowing, b): rates[b] / 4 for b in ("vllm/seqs1", "vllm/seqs16")}
    assert ratios == pytest.approx(expected)
    assert found["why_not"].isna().all()


def test_servers_with_other_work_or_users_do_not_meet():
    vllm, knobs = cell({"users": 5} | FOUR, around(900), engine="vllm-serve"), {"endpoint": "other", "users": 5}
    fewer = cell(knobs, around(100), engine="openai", output_tokens=900)
    one = cell(knobs | {"users": 1}, around(100), engine="openai")
    assert compared(vllm, fewer, one).query("kind == 'server'").empty


@pytest.mark.parametrize("other", [*OTHER_PLACES, *NOT_COUNTED])
def test_engines_of_another_place_do_not_meet(other):
    assert of_engines(cell(FOUR), static(1, 1, **other)).empty


@pytest.mark.parametrize(
    ("of_vllm", "of_hf", "reason"),
    [
        *(({name: 10}, {name: 11}, f"{name} differs: 10 against 11") for name in WORK),
        ({"lock_sha256": "b" * 64}, {"lock_sha256": "a" * 64}, "lock aaaaaaaaaaaa against bbbbbbbbbbbb"),
        ({"output_tokens": [1000, 1000, 999]}, {}, "output_tokens differs between repeats"),
        ({}, {"output_tokens": None}, "output_tokens is not known"),
        ({"knobs": {"quantization": "awq"}}, {}, "quantization awq on one side"),
        ({"knobs": {"tensor_parallel_size": 2}}, {}, "tensor_parallel_size 2 on one side"),
        ({"knobs": {"tensor_parallel_size": 1, "kv_cache_dtype": "auto", "block_size": 32}}, {}, None),
        ({"knobs": {"speculative_method": "ngram", "num_speculative_tokens": 4}}, {}, "num_speculative_tokens 4"),
        ({"knobs": {"speculative_method": "ngram", "num_speculative_tokens": 0}}, {}, None),
    ],
)
def test_unequal_work_and_other_environments_are_not_comparable(of_vllm, of_hf, reason):
    knobs = FOUR | of_vllm.pop("knobs", {})
    found = only(of_engines(cell(knobs, around(8), **of_vllm), static(1, 1, **of_hf)))
    assert pd.isna(found["why_not"]) if reason is None else reason in found["why_not"]
    assert found[["ratio", "low", "high", "verdict"]].isna().all() == (reason is not None)

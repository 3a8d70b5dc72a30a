import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.unit.questions.synthetic_cells import OTHER_PLACES, around, cell, only, starts_table
from tests.unit.study.test_serve_command import DUMMY, HUB
from workflow_scripts.questions.comparisons.table import comparison_tables
from workflow_scripts.questions.recommendations.table import SCHEMA, recommendations
from workflow_scripts.statistics.comparisons import LIKELY
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks
from workflow_scripts.tables.summary import Summaries

DEMO = Path(__file__).parents[4] / "config" / "studies" / "demo.yaml"
MODELS = {
    "llama-3.1-8b-instruct": (HUB.model_copy(update={"hub_repo": "org/llama", "revision": None}), Path("models/llama")),
    "tiny": (DUMMY, Path("models/tiny")),
}


def config(seqs, rate, tpot=0.01, *, ttft=0.1, p99=1.5, **options):
    """A cell whose latencies are the same in all repeats, with 99th percentiles p99 times the median."""
    knobs = {"max_num_seqs": seqs} | options.pop("knobs", {})
    columns = {"tpot_s_p50": tpot, "ttft_s_p50": ttft, "tpot_s_p99": p99 * tpot, "ttft_s_p99": p99 * ttft}
    return cell(knobs, rate if isinstance(rate, list) else around(rate), **(columns | options))


def recommended(*cells, role=None, margin_pct=2.0, models=MODELS, looks=ONE_LOOK, tpot=None):
    table = starts_table(*cells)
    comparisons = comparison_tables(Summaries(table), margin_pct, looks=looks)[0]
    found = SCHEMA.validate(recommendations(Summaries(table), comparisons, margin_pct, models, tpot, looks))
    return found[found["role"] == role].reset_index(drop=True) if role else found


# --- the fastest


def test_only_vllm_cells_that_count_are_recommended():
    found = recommended(
        config(4, 50),
        config(8, 90, outcome="invalid"),
        config(16, 90, comparable=False),
        cell({"batch_size": 8}, around(90), engine="hf-static"),
        config(64, 90, knobs={"num_gpu_blocks_override": 17}),
    )
    assert set(found["knobs"]) == {"seqs4"}
    assert recommended(config(8, 90, outcome="timeout")).empty
    assert recommended(config(8, 90, outcome="timeout")).columns.tolist() == list(SCHEMA.columns)


@pytest.mark.parametrize("other", [*OTHER_PLACES, {"lock_sha256": "b"}])
def test_every_place_has_its_own(other):
    places = config(4, 50, lock_sha256="a"), config(16, 90, **({"lock_sha256": "a"} | other))
    found = recommended(*places, role="best_throughput")
    assert found["knobs"].tolist() == ["seqs4", "seqs16"]
    (name, value), *_ = other.items()
    assert name == "lock_sha256" or found[name][1] == value


# --- ties


def test_configurations_that_are_not_shown_to_be_slower_are_ties():
    def best(*cells):
        return only(recommended(*cells, role="best_throughput"))[["knobs", "ties"]].tolist()

    assert best(config(1, 95), config(4, 100), config(8, [99.8, 99.9, 100.2])) == ["seqs4", "seqs8"]
    # A setting that is slower by less than the margin is not shown to be slower.
    assert best(config(1, 99), config(4, 100)) == ["seqs4", "seqs1"]
    # One start each shows what is far apart.
    assert best(config(1, [20.0]), config(4, [100.0]), config(8, [99.9])) == ["seqs4", "seqs8"]


@pytest.mark.parametrize("knobs", [{}, {"block_size": 32}])
def test_a_tie_is_a_test_that_is_not_passed(knobs):
    """Of settings that differ in one knob it is the test of the table of comparisons."""
    best = config(4, around(100, 0.01))
    for distance, is_tie in ((0.015, True), (0.035, False)):
        other = config(1, around(100 * math.exp(-math.log(1.02) - distance), 0.01)[::-1], knobs=knobs)
        found = only(recommended(best, other, role="best_throughput"))
        assert (found["knobs"], found["eligible"], pd.notna(found["ties"])) == ("seqs4", 2, is_tie)
        effects = comparison_tables(Summaries(starts_table(best, other)), 2.0)[0].query(
            "metric == 'output_tokens_per_s'"
        )
        [effect] = effects["verdict"].replace(LIKELY, "not decided").unique() if not knobs else [None]
        assert effect == (None if knobs else "not decided" if is_tie else "changes")


def test_settings_that_served_other_requests_are_ranked_by_the_rate_while_full():
    """Over whole repeats the first is faster, and a third, which was never full, is faster still."""
    steady = [around(100), around(200), []]
    cells = [
        config(4 * n, 400 / n, num_requests=8 * n, **({"steady_output_tokens_per_s": rates} if rates else {}))
        for n, rates in enumerate(steady, 1)
    ]
    found = recommended(*cells[:2], role="best_throughput")
    found = pd.concat([found, recommended(*cells, role="best_throughput")])
    assert found["knobs"].tolist() == ["seqs8"] * 2
    assert found["rate"].tolist() == pytest.approx([stats.gmean(steady[1])] * 2)
    assert found["metric"].unique() == ["steady_output_tokens_per_s"]
    assert (found["compared"].tolist(), found["ties"].isna().all()) == ([2, 2], True)
    # One rate while full ranks nothing.
    assert only(recommended(cells[0], cells[2], role="best_throughput"))["metric"] == "output_tokens_per_s"


# --- within a latency


@pytest.mark.parametrize(
    ("tpot", "knobs", "ties", "eligible", "bound"),
    [
        (0.02, "seqs4", "seqs8", 3, "p99 TPOT <= 20 ms"),
        (None, "seqs4", "seqs8", 3, "p99 TPOT <= 20 ms, 2 times the lowest median"),
        (0.001, None, None, 0, "p99 TPOT <= 1 ms"),
    ],
)
def test_the_fastest_within_a_bound_of_latency(tpot, knobs, ties, eligible, bound):
    """Only those that keep the bound are ties of the fastest that does."""
    latencies = ((1, 10, 0.01), (4, 30, 0.02), (8, 30, 0.02), (16, 60, 0.1), (32, 60, 0.0201))
    cells = (config(n, rate, of_token, p99=1.0) for n, rate, of_token in latencies)
    found = only(recommended(*cells, role="best_within_latency", tpot=tpot))
    assert [None if pd.isna(found[name]) else found[name] for name in ("knobs", "ties")] == [knobs, ties]
    assert found[["eligible", "compared", "latency_bound"]].tolist() == [eligible, 5, bound]
    assert found["tpot_s_p99"] == pytest.approx(0.02 if knobs else 0.01)
    place = ["gpu", "model", "workload", "study", "source"]
    assert found[place].tolist() == ["h200", "llama-3.1-8b-instruct", "chat", "try", "measured"]
    assert found[["cell_id", "rate", "command"]].isna().tolist() == [knobs is None] * 3


def test_without_latencies_no_bound_is_kept():
    without = cell({"max_num_seqs": 1}, around(10))
    found = recommended(without)
    assert found["role"].tolist() == ["best_throughput", "best_within_latency", "smallest_within_margin"]
    assert found.loc[1, ["knobs", "latency_bound"]].isna().all()
    assert found["tpot_s_p50"].isna().all()
    assert pd.isna(only(recommended(without, role="best_within_latency", tpot=1.0))["knobs"])


def test_more_starts_do_not_make_a_bound_harder_to_keep():
    """The highest of many would: the mean over starts is 0.0144."""
    shaky = config(4, [30.0] * 9, tpot_s_p99=[0.01, 0.03, 0.01] * 3)
    for bound, knobs in ((0.014, "seqs1"), (0.015, "seqs4")):
        found = only(recommended(config(1, 10, 0.005), shaky, role="best_within_latency", tpot=bound))
        assert found["knobs"] == knobs


# --- the smallest that is as fast


@pytest.mark.parametrize(("margin_pct", "smallest"), [(2.5, "seqs4"), (1.3, "seqs16")])
def test_the_smallest_within_the_margin(margin_pct, smallest):
    cells = config(1, 50), config(4, 99), config(16, 100), config(64, 100.5)
    found = only(recommended(*cells, role="smallest_within_margin", margin_pct=margin_pct))
    assert found[["knobs", "margin_pct"]].tolist() == [smallest, margin_pct]
    assert pd.isna(found["ties"])
    # Starts that vary much show nothing, so the fastest itself is left.
    noisy = config(1, around(100.0, 0.1)), config(16, around(100.1, 0.1, 1))
    found = only(recommended(*noisy, role="smallest_within_margin", margin_pct=margin_pct))
    assert found["knobs"] == "seqs16"


def test_within_the_margin_is_shown_not_assumed():
    """The interval of the ratio must lie within the margin, and that of a later plan is wider."""
    fastest = config(16, around(100, 0.0025))
    for ratio, smallest, later in ((99.8, "seqs1", "seqs1"), (99.1, "seqs1", "seqs16"), (98.5, "seqs16", "seqs16")):
        other = config(1, around(ratio, 0.0025)[::-1])
        looks = {smallest: ONE_LOOK}, {later: Looks(3, 3, earlier_plans=2)}
        for expected, at in ((name, of) for one in looks for name, of in one.items()):
            found = only(recommended(other, fastest, role="smallest_within_margin", looks=at))
            assert found["knobs"] == expected


def test_that_one_of_many_settings_is_as_fast_is_tested_over_all_of_them():
    """Nine are slower by just more than the margin; one test per setting would choose one of them in 20 %."""
    rng, count = np.random.default_rng(1), 60
    rates = 100 * np.exp(rng.normal(0, 0.005, (count, 10, 4)) - 0.0199 * (np.arange(10) < 9)[:, None])
    cells = (config(2 + n, rates[i, n].tolist(), workload=f"w{i}") for i in range(count) for n in range(10))
    found = recommended(*cells, role="smallest_within_margin")
    assert len(found) == count
    assert (found["knobs"] != "seqs11").mean() <= 0.1


def test_a_setting_that_missed_a_fast_round_is_ranked_without_the_rounds():
    slow_rounds = starts_table(config(4, [100.0, 100.0]))
    others = starts_table(config(8, [90.0, 90.0, 135.0]), config(16, [80.0, 80.0, 120.0]))
    both = pd.concat([slow_rounds, others], ignore_index=True)
    found = recommendations(Summaries(both), comparison_tables(Summaries(both), 2.0)[0], 2.0, MODELS)
    assert found["knobs"][0] == "seqs4"


# Fewest sequences first, then memory, then the block. A share that the study leaves to the engine may be a large one.
@pytest.mark.parametrize(
    ("larger", "smaller"),
    [
        ({"gpu_memory_utilization": 0.5, "block_size": 16}, {"max_num_seqs": 2, "gpu_memory_utilization": 0.9}),
        ({"gpu_memory_utilization": 0.9, "block_size": 16}, {"gpu_memory_utilization": 0.5, "block_size": 64}),
        ({"cpu_kv_cache_gib": 4}, {"cpu_kv_cache_gib": 2, "block_size": 64}),
        ({"block_size": 32}, {"block_size": 16}),
        ({"enable_prefix_caching": True}, {"enable_prefix_caching": False}),
        ({}, {"gpu_memory_utilization": 0.95}),
    ],
)
def test_what_is_smallest(larger, smaller):
    knobs = [{"max_num_seqs": 4} | of for of in (larger, smaller)]
    cells = [cell(k, around(100), block_size_effective=k.get("block_size")) for k in knobs]
    for these in (cells, cells[::-1]):
        assert only(recommended(*these, role="smallest_within_margin"))["knobs"] == cells[1][0]["knobs"]


def test_commands_and_files():
    effective = {"max_num_seqs": 16, "max_num_batched_tokens": 8192, "max_model_len": 4096, "block_size": 16}
    knobs = {"enable_prefix_caching": False, "gpu_memory_utilization": 0.85}
    served = config(16, 100, knobs=knobs, **{f"{name}_effective": value for name, value in effective.items()})
    found = only(recommended(served, role="best_throughput"))
    assert found["command"] == (
        "vllm serve org/llama --dtype bfloat16 --max-num-seqs 16 --max-num-batched-tokens 8192 --max-model-len 4096"
        " --gpu-memory-utilization 0.85 --no-enable-prefix-caching"
    )
    # Random weights, and nothing known of what took effect.
    cells = config(16, 100, model="tiny"), cell({"batch_size": 1}, engine="hf-static", model="tiny")
    found = only(recommended(*cells, role="best_throughput"))
    assert found["command"] == "vllm serve models/tiny --load-format dummy --dtype float32 --max-num-seqs 16"
    # A model that is not the study's has no command.
    found = only(recommended(config(16, 100, model="opt-125m"), role="best_throughput"))
    assert pd.isna(found["command"])

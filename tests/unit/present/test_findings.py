import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from tests.unit.present.conftest import changed, in_table, report_of, table_in, told, written
from workflow_scripts.catalog.any_model import model_of_folder
from workflow_scripts.catalog.gpus_and_models import get_model, study_models
from workflow_scripts.common.columns import column
from workflow_scripts.page.blocks import Link, Text
from workflow_scripts.page.report import Report
from workflow_scripts.page.sentences import verdicts_on, what_verdicts_cover
from workflow_scripts.page.series import PLACES
from workflow_scripts.questions.cells.section import unsuccessful
from workflow_scripts.questions.devices.section import cannot_show
from workflow_scripts.questions.engines.section import equal_work, fastest_of_both
from workflow_scripts.questions.engines.table import with_cell_ids
from workflow_scripts.questions.knobs.prefix_caching import (
    first_repeats_with_cache,
    gains_and_hits,
    hits_by_kv_cache,
    memory_saved,
)
from workflow_scripts.questions.knobs.section import models_compared
from workflow_scripts.questions.knobs.speculation import gains_and_drafts
from workflow_scripts.questions.limits.section import above_ceilings
from workflow_scripts.questions.memory.kv_block_size import RESERVED, _refused, prediction_errors
from workflow_scripts.questions.trust import section as how_sure
from workflow_scripts.questions.trust.what_ran import native_types, not_understood, remote_code, simulated
from workflow_scripts.questions.trust.where_measured import slowed_cells, slowed_gpus, unsteady_cells
from workflow_scripts.questions.waiting.section import much_waiting, shares_by_cell
from workflow_scripts.study.study import ModelOverride
from workflow_scripts.tables.results import MissingError, records


@pytest.fixture
def report(tmp_path):
    return report_of(tmp_path)


def with_limits(report: Report, *rows: tuple[str, float, float, bool], **columns: object) -> Report:
    limits = pd.DataFrame(rows, columns=["cell_id", "factor", "tolerance", "exceeds"])
    cells = named(pd.DataFrame({"cell_id": limits["cell_id"].unique(), "outcome": "ok"}))
    return written(report, cells=cells, limits=limits.assign(ceiling_broken="made up", **columns))


def named(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells, a, b and so on, with what names them: blocks of 1, 2 and so on."""
    sizes = [ord(cell) - ord("a") + 1 for cell in cells["cell_id"]]
    return cells.assign(
        gpu="h200", engine="vllm", model="m", workload="w", knobs=cells["cell_id"], knob_block_size=sizes
    )


@pytest.mark.parametrize(
    ("rows", "verdict", "phrase"),
    [
        ([("a", 1.5, 0.0, True), ("a", 2.0, 0.0, True), ("b", 0.5, 0.0, False)], "impossible", "2 times its"),
        ([("a", 1.5, math.inf, False), ("b", 0.5, math.inf, False)], "not decided", "1 of 2 cells"),
        ([("a", 0.9, 0.0, False), ("b", 0.5, 0.0, False)], "possible", "2 cells"),
    ],
)
def test_cells_are_held_against_their_ceilings_once_each(report, rows, verdict, phrase):
    ((found, sentence),) = told(above_ceilings, with_limits(report, *rows))
    assert (found, phrase in sentence) == (verdict, True)


def with_pairs(report: Report, knob: str, cells: dict[str, list[float]], ratios: list[float]) -> Report:
    """Tables of pairs of cells that differ in a knob, and of the cells with the knob on, two repeats each."""
    ids = [str(i) for i in range(len(ratios))]
    place = {"gpu": "h200", "model": "m", "workload": "w", "knob": knob, "comparison": "pair"}
    numbers = {"metric": "output_tokens_per_s", "ratio": ratios, "ratio_low": ratios, "ratio_high": ratios}
    numbers |= {"margin_pct": 2.0, "value": "2", "baseline": "1", "bimodal": False}
    numbers |= {"verdict": ["flat" if ratio == 1 else "changes" for ratio in ratios]}
    numbers |= {"held": [f"block_size=16, max_num_seqs={i}" for i in ids]}
    effects = pd.DataFrame({"cell_id": ids}).assign(**place, **numbers)
    of_cells = pd.DataFrame({"cell_id": ids, "outcome": "ok", "comparable": True, "start": 1, "repeat": 0, **cells})
    return written(report, knobs=effects, cells=pd.concat([of_cells, of_cells.assign(repeat=1)]))


def test_the_memory_that_a_shared_prefix_saves_is_told_beside_what_it_takes_without(report):
    knob = "enable_prefix_caching"
    used = {"prefix_cache_hits": [0.0, 90.0], "kv_bytes_used_mean": [2.0**20, 1000.0 * 2**20]}
    report = with_pairs(report, knob, used, [1.0, 5.0])
    effects, cells = in_table(report, "knobs"), in_table(report, "cells")
    effects = effects.assign(baseline_cell_id=effects["cell_id"] + "-off")
    off = cells.assign(cell_id=cells["cell_id"] + "-off", prefix_cache_hits=0.0, kv_bytes_used_mean=8000.0 * 2**20)
    # The first pair found nothing in the cache, so nothing is shared.
    ((verdict, sentence),) = told(memory_saved, written(report, knobs=effects, cells=pd.concat([cells, off])))
    assert verdict == "7.81 to 0.977 GiB"
    assert all(size in sentence for size in ("0.977 GiB", "7.81 GiB"))
    none = pd.concat([cells.assign(prefix_cache_hits=0.0), off])
    assert told(memory_saved, written(report, cells=none)) == []


def test_hits_are_told_of_the_smallest_and_the_largest_kv_cache(report):
    cells = named(
        pd.DataFrame({"cell_id": list("abcd"), "outcome": "ok", "prefix_cache_hit_rate": [0.4, 0.6, 0.5, 0.1]})
    )
    cells = cells.assign(prefix_cache_hits=8.0, prefix_cache_queries=9.0, knob_block_size=16, repeat=0, start=1)
    cells = cells.assign(knob_num_gpu_blocks_override=[17, 257, 33, 17], workload=["w", "w", "w", "other"])
    ((verdict, sentence),) = told(hits_by_kv_cache, written(report, cells=cells))
    assert verdict == "60 % found"
    assert "40 % with 17 KV blocks and 60 % with 257 KV blocks" in sentence


HITS = {"prefix_cache_hit_rate": [0.8634, 0.0], "prefix_cache_saved_pct": [84.999, 0.0]}
DRAFTS = {"draft_acceptance_rate": [0.5], "draft_tokens": [116.0], "tokens_per_draft_mean": [2.515]}
CACHING, ROOM = "enable_prefix_caching", {"kv_cache_tokens": [65536.0]}
WHERE, ACCEPTED = "h200, m, w, at most 0 sequences", ["50 %", "116 tokens", "2.52 tokens"]


@pytest.mark.parametrize(
    ("part", "knob", "cells", "ratios", "verdicts", "numbers"),
    [
        (gains_and_hits, CACHING, HITS, [6.762, 1.0], ["6.76 times", "flat"], [WHERE, "86.3 %", "85 %"]),
        (gains_and_drafts, "num_speculative_tokens", DRAFTS, [0.95], ["0.95 times"], ACCEPTED),
        (models_compared, "model", ROOM, [0.25], ["0.25 times"], ["65,536 tokens"]),
    ],
)
def test_gains_are_told_with_what_explains_them(report, part, knob, cells, ratios, verdicts, numbers):
    found = told(part, with_pairs(report, knob, cells, ratios))
    assert [verdict for verdict, _ in found] == verdicts
    assert all(number in found[0][1] for number in numbers)


def test_of_many_pairs_some_are_told_from_the_largest_gain_to_the_smallest(report):
    many = [float(ratio) for ratio in range(2, 22)]
    report = with_pairs(report, "num_speculative_tokens", {"draft_acceptance_rate": [math.nan] * 20}, many)
    verdicts = [verdict for verdict, _ in told(gains_and_drafts, report)]
    assert (len(verdicts), verdicts[0], verdicts[-1]) == (6, "21 times", "2 times")
    *_, note = gains_and_drafts(report)
    assert isinstance(note, Text)
    assert note.text.startswith("6 of 20 comparisons")


@pytest.mark.parametrize(("foreseen", "why"), [("only 16", "only 16"), (None, "ValueError: 8")])
def test_a_block_size_that_could_not_run_has_a_reason_in_plain_words_if_it_was_foreseen(foreseen, why):
    sized = {"gpu": "h200", "knob_block_size": [8, 16], "cell_id": ["a", "b"], "outcome": ["infeasible", "ok"]}
    grid = pd.DataFrame(sized | {"reason": ["ValueError: 8 (at line 3)", None]})
    memory = pd.DataFrame(
        {"cell_id": ["a", "b"], "predicted_infeasible": [foreseen, None], "num_blocks_error_pct": None}
    )
    report = SimpleNamespace(grid=grid, tables=SimpleNamespace(get=lambda name, *_: {"memory": memory}[name]))
    assert _refused(report, "h200") == f"; block size 8 could not run: {why}"


def test_the_kv_memory_of_both_engines_stands_beside_their_ratio(results):
    memory = column("kv_bytes_used_mean")
    pairs = with_cell_ids(equal_work(results.tables).drop_duplicates(PLACES))
    values = results.tables.value(memory.name)
    said = told(fastest_of_both, results.report)
    for of, (_, sentence) in zip(records(pairs), said, strict=False):
        cells = [of["cell_id"], of["baseline_cell_id"]]
        (vllm, hf), empty = map(memory.text, values[cells]), results.tables.waste_pct[cells]
        assert f"take {vllm} of keys and values against {hf}" in sentence
        assert "{:.3g} % and {:.3g} % of empty slots".format(*empty) in sentence
    assert said


def with_capacity(
    report: Report, *rows: tuple[str, float, float, float], given: Any = math.nan, outcome: Any = "ok"
) -> Report:
    names = ["source", "observed_kv_cache_tokens", "observed_max_concurrency", "kv_cache_tokens_error_pct"]
    table = pd.DataFrame(rows, columns=names).assign(cell_id=[f"c{i}" for i in range(len(rows))])
    cells = table[["cell_id"]].assign(outcome=outcome, knob_cpu_kv_cache_gib=given)
    return written(report, memory=table, cells=cells)


def test_capacity_says_how_many_cells_were_predicted_how_well(report):
    nan = float("nan")
    measured = [("measured", 100, 12.5, 0.5), ("measured", 80, 10, -12.34), ("measured", 9, nan, nan)]
    report = with_capacity(report, *measured, ("published", 100, 12.5, 110.0))
    # The third tells no requests, so its tokens do not stand beside those of the others.
    ((verdict, sentence),) = told(prediction_errors, report)
    assert verdict == "at most 12.3 % off"
    assert all(part in sentence for part in ("1 of 2", "12.3 %", "80 to 100", "10 to 12.5", "1 more"))
    report = with_capacity(report, ("measured", 100, nan, 0.0), given=1.0)
    assert told(prediction_errors, report) == []  # a note says that it is only arithmetic
    two = [("measured", 100, nan, 0.5), ("measured", 100, nan, 3.0)]
    ((_, of_one),) = told(prediction_errors, with_capacity(report, *two, given=[nan, 1.0]))
    assert "1 of 1 cells" in of_one
    assert "0.5 %" in of_one
    ((_, of_one),) = told(prediction_errors, with_capacity(report, *two, outcome=["ok", "infeasible"]))
    assert "1 of 1 cells" in of_one
    report = with_capacity(report, ("published", 100, 12.5, 0.0), ("measured", 100, 12.5, nan))
    with pytest.raises(MissingError, match="predicted and measured"):
        told(prediction_errors, report)


@pytest.mark.parametrize(("first", "end"), [("rare", "often (block size 3)"), ("often", "(block size 2)")])
def test_cells_that_did_not_run_are_a_finding_with_the_reason_that_most_have(report, first, end):
    cells = pd.DataFrame({"cell_id": list("abcd"), "outcome": ["ok", "engine_error", "engine_error", "engine_error"]})
    cells = named(cells.assign(reason=[None, first, "often", "often"]))
    ((verdict, sentence),) = told(unsuccessful, written(report, cells=cells))
    assert (verdict, sentence[:10]) == ("engine error", "3 of 4 cel")
    assert sentence.endswith(end)


def test_starts_that_failed_or_were_not_steady_are_told_though_the_first_start_was_good(report):
    cells = pd.DataFrame({"cell_id": list("aabb"), "outcome": ["ok", "timeout", "ok", "ok"], "start": [1, 2, 1, 2]})
    report = written(report, cells=named(cells.assign(repeat=0, steady=[True, None, True, False])))
    for part, verdict, cell in ((unsuccessful, "failed start", "1"), (unsteady_cells, "not steady", "2")):
        ((found, sentence),) = told(part, report)
        assert found == verdict
        assert all(words in sentence for words in ("1 of 2 measured", f"block size {cell}"))


def test_a_prefix_cache_that_found_nothing_is_told_only_where_the_study_turns_it_on_and_off(report):
    cells = pd.DataFrame({"repeat": [0, 0], "prefix_cache_queries": [9, 0], "prefix_cache_hits": [0, 0]})
    cells["cell_id"] = ["a", "b"]
    with pytest.raises(MissingError, match="found anything"):
        first_repeats_with_cache(cells)
    assert len(first_repeats_with_cache(cells.assign(prefix_cache_hits=[1, 0]))) == 1
    two_starts = pd.concat([cells.assign(prefix_cache_hits=[1, 0])] * 2)
    assert len(first_repeats_with_cache(two_starts)) == 1
    assert len(first_repeats_with_cache(cells.assign(knob_enable_prefix_caching=[True, False]))) == 1


def test_the_headlines_say_what_their_intervals_do_not_cover(report):
    report = with_pairs(report, "max_num_seqs", {}, [2.0])
    effects = in_table(report, "knobs").assign(comparison="overall", scope="within one start")
    ((verdict, sentence),) = told(verdicts_on("max_num_seqs"), written(report, knobs=effects))
    assert verdict == "2 times"
    assert sentence.endswith("(h200, m, w, block size 16, at most 0 sequences)")
    for scope in ("within one start", "between starts on this device", None):
        (block,) = what_verdicts_cover(written(report, knobs=effects.assign(scope=scope)))
        assert isinstance(block, Text)
        assert (scope or "No ratio") in block.text


def test_a_processor_that_hides_what_memory_does_is_said_once(report):
    ratios = pd.DataFrame({"gpu_a": "a", "gpu_b": "b", "cannot_show": ["disturbed", "disturbed", None]})
    assert [verdict for verdict, _ in told(cannot_show, written(report, devices=ratios))] == ["cannot show"]
    assert told(cannot_show, written(report, devices=ratios.assign(cannot_show=None))) == []


def test_the_type_that_a_device_decided_and_a_model_of_unknown_structure_are_named(report, tmp_path, monkeypatch):
    cells = pd.DataFrame({"cell_id": ["a", "b", "c"], "gpu": "cpu-all", "device_name": "a CPU"})
    cells = cells.assign(model=["tiny-llama-57m", "tiny-llama-57m", "opt-125m"], outcome="ok", comparable=True)
    for dtype, phrase in (("bfloat16", "natively"), ("float32", "emulate")):
        ((verdict, sentence),) = told(native_types, written(report, cells=cells.assign(dtype=dtype)))
        assert (verdict, phrase in sentence) == (dtype, True)
    config = json.loads(get_model("tiny-llama-57m").config.read_text())
    (tmp_path / "given").mkdir()
    (tmp_path / "given/config.json").write_text(json.dumps(config | {"model_type": "made_up"}))
    monkeypatch.setitem(study_models, "mine", model_of_folder("mine", tmp_path / "given"))
    cells = named(pd.DataFrame({"cell_id": ["a", "b"]})).assign(model=["mine", "tiny-llama-57m"])
    ((verdict, sentence),) = told(not_understood, written(report, cells=cells))
    assert verdict == "unknown"
    assert all(part in sentence for part in ("of mine", "'made_up'"))


def test_cells_whose_gpu_waits_are_named_and_the_driver_tells_of_engines_without_steps(report):
    cells = named(pd.DataFrame({"cell_id": ["a", "b", "c"], "outcome": "ok"}))
    waits = {"launch_s": [1.5, 0.3, None], "arrival_s": [0.4, 0.1, None], "other_s": [0.1, 0.1, None]}
    waits |= {"device_s": [8.0, 9.5, None], "waiting_share": [0.2, 0.05, None], "driver_idle_share": [0.2, 0.05, 0.6]}
    table = cells.assign(start=1, repeat=0, wall_s=10.0, prompt_steps=[10, 10, None], **waits)
    rates = {"predicted": [100.0, 100.0, 100.0], "captured_output_tokens_per_s": [112.0, None, 101.0]}
    rates["twice_batched_output_tokens_per_s"] = [101.0, None, 130.0]
    predicted = cells.assign(quantity="output_tokens_per_s", graph_tokens=128.0, **rates)
    waiting = table.drop(columns=["outcome", "knob_block_size"])
    predicted = predicted.drop(columns=["outcome", "knob_block_size"])
    report = written(report, cells=cells, waiting=waiting, predictions=predicted)
    by_driver, by_steps = (sentence for _, sentence in told(much_waiting, report))
    for sentence, numbers in (
        (by_driver, ("block size 3", "60 %", "30 % more")),
        (by_steps, ("block size 1", "20 %", "12 % more", "128 tokens", "(10 steps, 150 ms each)")),
    ):
        assert all(number in sentence for number in numbers)
    assert "max_num_batched_tokens" not in by_steps
    assert shares_by_cell(table)["device_share"].tolist()[1:] == [0.8, 0.95]
    # The driver is coarse in short repeats, so it tells only what steps do not.
    idle = shares_by_cell(table.assign(driver_idle_share=[0.1, 0.9, 0.6]))
    assert idle["waits"].tolist() == pytest.approx([0.6, 0.2, 0.05])


def test_code_from_a_models_repository_is_named_with_its_commit(results):
    study = results.report.study
    trusted = study.model_copy(update={"models": {"llama-3.1-8b-instruct": ModelOverride(trust_remote_code=True)}})
    ((verdict, sentence),) = told(remote_code, replace(results.report, study=trusted))
    assert verdict == "remote code"
    assert "llama-3.1-8b-instruct (meta-llama/Llama-3.1-8B-Instruct at 0e9e39f2" in sentence
    assert remote_code in how_sure.SUBJECT.findings
    assert list(remote_code(results.report)) == []
    assert "remote code" not in results.html


def test_reserved_memory_is_the_median_over_the_repeats_of_each_cell(results, tmp_path, cells):
    reserved = cells["engine"].map({"vllm": 8 * 2**30, "hf-static": 2 * 2**30}).where(cells["repeat"].notna())
    used = reserved / 8 * (1 + cells["repeat"].astype(float) / 10)
    sizes = {"kv_bytes_reserved_peak": reserved, "kv_bytes_reserved_mean": reserved / 2, "kv_bytes_used_mean": used}
    others = dict.fromkeys(("torch_memory_bytes_max", "process_memory_growth_bytes_max"), math.nan)
    of_study = changed(results.report, tmp_path / "some", cells=cells.assign(**sizes, **others))
    table = table_in(RESERVED, of_study)
    of_hf = [row for row in table.rows if "hf-static" in row]
    # The middle one of three repeats: an eighth and a tenth more, of half of what was reserved at the peak.
    assert [row[-3:] for row in of_hf] == [["2", "1", "0.275"]] * 6
    assert "(%) 27.5" in table.note
    with pytest.raises(MissingError, match="KV cache reserved"):
        list(RESERVED(changed(results.report, tmp_path / "none", cells=cells.assign(kv_bytes_reserved_peak=math.nan))))


def test_pretended_gpus_are_the_first_thing_that_the_page_says(results, tmp_path, cells):
    ((verdict, sentence),) = told(simulated, changed(results.report, tmp_path, cells=cells.assign(source="simulated")))
    assert verdict == "simulated"
    assert sentence.startswith("No number of h200 (simulated), ")
    assert how_sure.SUBJECT.findings[0] is simulated
    assert told(simulated, results.report) == []
    assert "is a measurement of a GPU" not in results.html


def test_cells_with_a_gpu_slowed_down_are_counted_and_named_and_a_power_cap_is_no_fault(results, tmp_path, cells):
    timed = cells.dropna(subset="throttle_reasons")
    slowed = timed[(timed["gpu"] == "l40s") & (timed["repeat"] == 1)]
    ((_, sentence),) = told(slowed_gpus, results.report)
    assert sentence.startswith(f"In {slowed['cell_id'].nunique()} of {timed['cell_id'].nunique()} cells")
    named = table_in(slowed_cells, results.report)
    links = [row[0] for row in named.rows if isinstance(row[0], Link)]
    assert [link.href.partition("&cell=")[2] for link in links] == slowed["cell_id"].tolist()
    assert len({link.text for link in links}) == slowed["cell_id"].nunique()
    assert "HwThermalSlowdown,SwPowerCap" in str(named)
    capped = changed(results.report, tmp_path, cells=cells.assign(throttle_reasons="GpuIdle,SwPowerCap"))
    assert list(slowed_gpus(capped)) == list(slowed_cells(capped)) == []

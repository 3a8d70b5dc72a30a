"""The first screen: answers and best settings are those of the tables, and ties decide nothing."""

import re
import shutil
import time
from dataclasses import replace

import pandas as pd
import pytest

from tests.generated_study import write_outcomes
from tests.unit.present.conftest import changed, in_table, told, written
from workflow_scripts.common.wording import number
from workflow_scripts.page.blocks import Finding, Fold, Table
from workflow_scripts.page.report import Report
from workflow_scripts.page.sentences import span, verdicts_on
from workflow_scripts.present.first_screen import Answer, _trust, best_in_words, best_settings, first_screen
from workflow_scripts.present.page import _lines
from workflow_scripts.questions.devices.section import expectations
from workflow_scripts.questions.knobs import sequence_limit
from workflow_scripts.questions.knobs.section import ENGINE, largest_changes, not_compared
from workflow_scripts.questions.knobs.sequence_limit import drains
from workflow_scripts.questions.limits.section import reached
from workflow_scripts.questions.sections import SECTIONS
from workflow_scripts.tables.cell_intervals import cell_intervals
from workflow_scripts.tables.results import Tables

KNOBS = ["knob_block_size", "knob_max_num_seqs"]


def test_an_unfinished_study_says_how_far_it_is_and_what_runs(report, results, tmp_path):
    write_outcomes(results.study, tmp_path)
    cells = tmp_path / report.study.name / "cells"
    missing = report.grid.loc[report.grid["outcome"] == "missing", "cell_id"].iloc[0]
    (cells / missing / "outcome.json").unlink()
    evidence = cells / missing / "raw.partial"
    evidence.mkdir()
    (evidence / "device_trace.jsonl").write_text(f'{{}}\n{{"time_unix_s": {time.time() - 90}}}\n')
    told = first_screen(replace(report, cells=cells)).unfinished
    assert told is not None
    count = len(report.grid)
    assert (told.ended, told.wanted) == (count - 1, count)
    assert told.words[0] == f"{count - 1} of {count} cells have ended."
    assert re.search(r"a100.*: block size 64, .* \(for [\d.]+ min\)", told.words[1])
    assert told.words[-1].startswith("As of 20")
    # Of a folder that lacks what the tables hold, and of tables without a folder, nothing is told.
    shutil.rmtree(cells / "h200")
    assert first_screen(replace(report, cells=cells)).unfinished is None
    assert first_screen(replace(report, cells=tmp_path / "none" / "cells")).unfinished is None


def best(report: Report, engine: str = "vllm") -> dict[tuple[str, str], list[str]]:
    """The rows of an engine's best settings, by work and device."""
    block = best_settings(report)
    table = block.blocks[0] if isinstance(block, Fold) else block
    assert isinstance(table, Table)
    places = [(str(row[0]), *str(row[1]).rsplit(", ", 1), list(map(str, row[2:]))) for row in table.rows]
    return {(work, gpu): texts for work, gpu, of, texts in places if of == engine}


def answer(report: Report, section: str) -> str:
    [lines] = [answer.lines for answer in first_screen(report).answers if answer.section == section]
    return " ".join(line.sentence for line in lines)


def test_each_answer_has_its_picture_and_leads_to_its_section(report, tmp_path):
    answers = first_screen(report).answers
    assert [answer.section for answer in answers] == ["max-num-seqs", "latency", "devices", "knobs", "predictions"]
    assert all(answer.figure for answer in answers)
    with_shares = changed(report, tmp_path, devices=in_table(report, "devices").assign(weights_share_b=0.44))
    assert "44 % at 1 and 44 % at 256" in told(expectations, with_shares)[0][1]


def test_the_ratio_of_throughput_is_that_of_the_first_finding_of_its_section(report):
    finding, *_ = told(verdicts_on("max_num_seqs"), report)
    ratios = [re.findall(r"([\d.]+) times", text)[0] for text in (finding[1], answer(report, "max-num-seqs"))]
    assert ratios[0] == ratios[1]


def test_published_rates_stand_beside_what_was_measured(report, tmp_path):
    predictions = in_table(report, "predictions")
    cells = report.tables.measured
    group = cells[(cells["gpu"] == "h200") & (cells["workload"] == "chat") & (cells["engine"] == "vllm")]
    one = group[group["knob_max_num_seqs"] == group["knob_max_num_seqs"].min()]
    rates = report.tables.value("output_tokens_per_s").loc[one["cell_id"].unique()]
    published = predictions.assign(published=predictions["cell_id"].map(10 * rates), published_prompt_share=0.5)
    told = answer(changed(report, tmp_path / "half", predictions=published), "max-num-seqs")
    assert "2.5 to 5 times the measured output tokens/s if 75 to 50 % of its tokens are prompt" in told
    # A mix that the rate needs leaves nothing of that range.
    told = answer(
        changed(report, tmp_path, predictions=published.assign(published_prompt_share=0.9732)), "max-num-seqs"
    )
    assert "possible only if at least 97.3 % are prompt tokens, at most 0.268 times what was measured" in told
    assert "75 to 0 %" not in told
    none = predictions.assign(published=None).astype({"published": float})
    assert "Published" not in answer(changed(report, tmp_path / "none", predictions=none), "max-num-seqs")


def test_the_drain_is_told_with_the_rate_of_whole_repeats_and_the_steady_one(report, tmp_path, cells):
    steady = 2 * cells["output_tokens_per_s"]
    full = cells.assign(
        steady_output_tokens_per_s=steady, drain_share=0.25, num_requests=2 * cells["knob_max_num_seqs"]
    )
    knobs = in_table(report, "knobs").assign(metric="steady_output_tokens_per_s")
    knobs = knobs.assign(**{of: 2 * knobs[of] for of in ("rate", "baseline_rate")})
    now = changed(report, tmp_path, cells=full, knobs=knobs)
    whole, full = answer(report, "max-num-seqs"), answer(now, "max-num-seqs")
    [told_rates] = re.findall(r"output tokens/s on h200 \(([\d,]+) to ([\d,]+), while the engine is full\)", full)
    rates = {number(rate) for rate in knobs[["rate", "baseline_rate"]].stack()}
    assert (set(told_rates) <= rates, "while the engine is full" in whole) == (True, False)
    ends = told(drains, now)
    assert {verdict for verdict, _ in ends} == {"25 % not full"}
    for _, text in ends:
        pairs = re.findall(r"([\d,.]+) output tokens/s while the engine is full, ([\d,.]+) over whole", text)
        ratios = [float(a.replace(",", "")) / float(b.replace(",", "")) for a, b in pairs]
        assert ratios == pytest.approx([2] * 2, rel=0.01)


def test_the_share_of_the_ceiling_is_that_of_the_table_at_both_ends(report):
    limits = report.tables.limits
    cells = report.tables.measured["cell_id"]
    sheet = limits.loc[(limits["rates"] == "datasheet") & limits["cell_id"].isin(cells), "ceiling_share"]
    findings = told(reached, report)
    assert findings
    for badge, text in findings:
        ends = badge.removesuffix(" %").split(" to ")
        assert set(ends) <= {number(100 * share) for share in sheet}
        assert all(f"{end} % with" in text for end in ends)


def test_a_study_that_asks_for_the_pipeline_is_told_whether_it_holds(report, tmp_path, cells):
    study = report.study.model_copy(update={"question": "Does the pipeline hold?"})
    answer = first_screen(replace(report, study=study)).answers[0]
    lost = int((~report.grid["outcome"].isin(["ok", "infeasible"])).sum())
    assert (answer.section, lost > 0, answer.lines[0].verdict, answer.lines[0].tone) == ("cells", True, "failed", "bad")
    assert f"; {lost} failed" in answer.lines[0].sentence
    ran = changed(report, tmp_path, cells=cells[cells["outcome"].isin(["ok", "infeasible"])])
    assert first_screen(replace(ran, study=study)).answers[0].lines[0].verdict == "holds"
    assert first_screen(report).answers[0].section != "cells"


def test_the_row_of_a_recommendation_has_its_numbers(report, tmp_path):
    table = report.tables.need("recommendations").assign(ties=None)
    rows = best(changed(report, tmp_path, recommendations=table))
    recommended = table[table["role"] == "best_throughput"]
    assert len(recommended)
    for _, row in recommended.iterrows():
        rate, low, high = (row[f"rate{end}"] for end in ("", "_low", "_high"))
        shown = rows[f"{row['model']}, {row['workload']}", row["gpu"]]
        assert shown[1] == f"{number(rate)} ({span([low, high])})"


def test_the_largest_model_with_the_most_work_comes_first(report, tmp_path, cells):
    small = cells["gpu"] == "h200"
    cells = cells.assign(model_weights_gib=small.map({True: 0.2, False: 15.0}))
    cells["model"] = cells["model"].mask(small, "opt-125m")
    rows = list(best(changed(report, tmp_path, cells=cells)))
    assert rows[0][0].startswith("llama")
    assert rows[-1][0].startswith("opt-125m")


GRID = pd.DataFrame([(16, 1), (16, 8), (32, 1), (32, 8), (64, 8)], columns=KNOBS)


TWO = "block size 16, at most 1 sequence; block size 32, at most 8 sequences"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([3], "Block size 32, at most 8 sequences (of 5)"),
        ([4, 1, 3], "At most 8 sequences; block size 16, 32 or 64"),
        ([0, 3], f"Not decided between 2 of 5 settings: {TWO}"),
        ([0, 1, 2, 3, 4], "Not decided between 5 settings"),
    ],
)
def test_settings_that_are_tied_are_said_to_be_in_an_order_that_no_mean_decides(members, words):
    assert best_in_words(GRID.iloc[members], GRID, KNOBS) == words
    assert (
        best_in_words(GRID.iloc[[3]], GRID.iloc[[2, 3]], KNOBS) == "At most 8 sequences (instead of at most 1 sequence)"
    )


def test_a_tie_shows_the_range_of_its_settings(report, tmp_path):
    table = in_table(report, "recommendations")
    first = table["role"].eq("best_throughput") & table["gpu"].eq("h200") & table["workload"].eq("chat")
    measured = report.tables.measured
    place = (measured["gpu"] == "h200") & (measured["workload"] == "chat") & (measured["engine"] == "vllm")
    others = [knobs for knobs in measured.loc[place, "knobs"].unique() if knobs != table.loc[first, "knobs"].iloc[0]]
    tied = changed(report, tmp_path, recommendations=table.assign(ties=table["ties"].mask(first, others[0])))
    of_both = measured[place & measured["knobs"].isin([others[0], table.loc[first, "knobs"].iloc[0]])]
    rates = report.tables.value("output_tokens_per_s").loc[of_both["cell_id"]]
    assert best(tied)["llama-3.1-8b-instruct, chat", "h200"][1] == f"{span(rates)} (of 2)"


def test_places_without_a_recommendation_or_without_a_rate(report, tmp_path, cells):
    recommended = in_table(report, "recommendations")
    recommended = recommended[recommended["gpu"] != "a100-sxm-80gb"]
    cells.loc[cells["gpu"] == "l40s", "output_tokens_per_s"] = None
    rows = best(changed(report, tmp_path, cells=cells, recommendations=recommended))
    assert ("llama-3.1-8b-instruct, chat", "a100-sxm-80gb") in rows
    assert "l40s" not in {gpu for _, gpu in rows}


def test_the_fastest_without_a_recommendation_is_what_intervals_show_and_a_load_is_no_setting(report, tmp_path, cells):
    nothing, intervals = in_table(report, "recommendations").head(0), in_table(report, "intervals")
    values = intervals.index + 100.0
    for ends, verdict in (((0.5, 2), "Not decided"), ((1, 1), "(of ")):
        now = intervals.assign(value=values, low=values * ends[0], high=values * ends[1])
        rows = best(changed(report, tmp_path / verdict[:2], intervals=now, recommendations=nothing))
        assert verdict in rows["llama-3.1-8b-instruct, chat", "h200"][0]
    loaded = cells.assign(knob_request_rate_per_s=4.0)
    assert best_settings(changed(report, tmp_path / "load", cells=loaded)) is None


def test_changes_are_ranked_and_told_with_interval_margin_and_what_is_undecided(report, tmp_path):
    effects = in_table(report, "knobs")
    overall = effects["comparison"] == "overall"
    rows = effects[overall].drop_duplicates("knob").set_index("knob", drop=False)
    rows.loc["max_num_seqs", ["verdict", "ratio", "ratio_low", "ratio_high"]] = ["changes", 9999, 9000, 10000]
    rows.loc["batch_size", ["verdict", "ratio", "ratio_low", "ratio_high"]] = ["changes", 1234.5, 1000, 1500]
    renamed = rows.loc[["batch_size", "batch_size"]].assign(ratio=[0.99, 1.2], ratio_low=0.9, ratio_high=1.3)
    renamed = renamed.assign(knob=["gpu_memory_utilization", "max_model_len"], verdict=["flat", "not decided"])
    rows = pd.concat([rows, renamed.assign(margin_pct=5.0, value="1", baseline="2")])
    now = changed(report, tmp_path, knobs=rows.reset_index(drop=True))
    ranked = largest_changes(now.tables)
    assert ranked["size"].is_monotonic_decreasing
    assert ranked["about"].iloc[0] == "max_num_seqs"
    assert ENGINE in set(ranked["label"])
    told = answer(now, "knobs")
    for phrase in (
        "1,230 times (1,000 to 1,500)",
        "5 %: share of the memory.",
        "of 1 token instead of 2 on h200: 1.2 times",
    ):
        assert phrase in told
    # Settings with a section of their own have an answer there.
    assert not any(words in told for words in ("9,000", "block size", "prefix caching"))


@pytest.mark.parametrize(("lock", "told"), [("a" * 64, 0), ("b" * 64, 1)])
def test_a_setting_that_was_varied_only_between_environments_is_called_not_compared(report, tmp_path, lock, told):
    cells = in_table(report, "cells").assign(lock_sha256="a" * 64)
    of = cells[cells["outcome"].eq("ok") & cells["engine"].eq("vllm")].head(1)
    other = of.assign(
        cell_id=of["cell_id"] + "-fp8", knob_kv_cache_dtype="fp8", lock_sha256=lock, kv_cache_tokens=123456
    )
    now = changed(report, tmp_path, cells=pd.concat([cells, other]))
    found = list(not_compared(now))
    assert len(found) == told
    assert all("KV-cache type fp8" in of.sentence and "hold 123,456 and" in of.sentence for of in found)


def test_imported_cells_are_not_counted_as_measured(report, tmp_path, cells):
    some = cells["cell_id"].isin(cells.loc[cells["outcome"] == "ok", "cell_id"].unique()[:2])
    before = dict(first_screen(report).trust)["Cells"]
    now = changed(report, tmp_path, cells=cells.assign(source=cells["source"].mask(some, "imported")))
    after = dict(first_screen(now).trust)["Cells"]
    count = int(before.partition(" ")[0])
    assert after.startswith(f"{count - 2} of 78 measured, ")
    assert after.endswith(", 2 imported from runs elsewhere")


def test_the_line_of_trust_counts_cells_starts_and_versions_and_names_simulated_devices(report, tmp_path):
    trust = dict(first_screen(report).trust)
    assert re.fullmatch(r"\d+ of 80 measured, \d+ infeasible, .*1 invalid, 1 not run yet", trust["Cells"])
    assert trust["Measured"].startswith("3 repeats of one start per cell; ")
    job = pd.DataFrame({"cell_id": "a", "start": 1, "kind": "record", "what": ["job: SLURM_JOB_ID"], "value": "7"})
    assert "measured, by Slurm jobs," in dict(_trust(changed(report, tmp_path / "jobs", provenance=job)))["Cells"]
    assert "of the CPU" in trust["Load by others"]
    slow = in_table(report, "cells").assign(steady=False)
    measured = slow.loc[slow["outcome"] != "missing", "cell_id"].nunique()
    rates = in_table(report, "intervals").assign(value=80.0, without_first=100.0)
    steady = dict(_trust(changed(report, tmp_path / "slow", cells=slow, intervals=rates)))["Not steady"]
    assert all(part in steady for part in (f"{measured} of {measured} ", "up to 25 % higher"))
    assert trust["Versions"].startswith("vllm 0.32.0")
    table = in_table(report, "cells").assign(source="simulated")
    one = table["cell_id"] == table.loc[table["outcome"] == "ok", "cell_id"].iloc[0]
    table.loc[one, "output_tokens_per_s"] = median = table.loc[one, "output_tokens_per_s"].median()
    again = table[one].assign(start=2, output_tokens_per_s=1.1 * median)
    both = pd.concat([table, again])
    trust = dict(first_screen(changed(report, tmp_path, cells=both, intervals=cell_intervals(both))).trust)
    assert next(iter(trust)) == "Simulated"
    assert all(part in trust["Measured"] for part in ("3 repeats", "1 to 2 starts", "10 %"))


def test_nothing_measured_is_said(report, tmp_path):
    missing = in_table(report, "cells").drop_duplicates("cell_id").assign(outcome="missing", reason=None)
    screen = first_screen(written(replace(report, tables=Tables(tmp_path)), cells=missing))
    assert (len(screen.answers), screen.best) == (1, None)


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("How well does it predict few KV blocks and a server?", ["predictions", "block-size", "memory", "serving"]),
        (
            "Which ratio shows; is throughput flat; what of HuggingFace?",
            ["devices", "max-num-seqs", "engines"],
        ),
        ("Why?", ["measured-or-predicted", "environments", "max-num-seqs"]),
    ],
)
def test_subjects_stand_in_the_order_of_the_question(question, first):
    subjects = sorted(SECTIONS, key=lambda subject: subject.asked_at(question))
    assert [subject.id for subject in subjects][: len(first)] == first


def test_an_answer_stands_where_its_section_does_and_replaces_its_first_line():
    answers = [
        Answer("a", [Finding("v", "Own."), Finding("w", "More.")], None),
        Answer("b", [Finding("", "B.")], None),
        Answer("cells", [Finding("", "None.")], None),
    ]
    sections = [{"id": "b", "lines": [Finding("x", "First."), Finding("y", "Second.")]}, {"id": "a", "lines": []}]
    lines = [(section, line.verdict, line.sentence) for section, line in _lines(answers, sections)]
    own = [("b", "x", "B."), ("b", "y", "Second."), ("a", "v", "Own."), ("a", "w", "More.")]
    assert lines == [("cells", "", "None."), *own]


def test_rates_of_another_setting_than_max_num_seqs_are_left_to_its_verdict(report, monkeypatch):
    monkeypatch.setattr(sequence_limit, "most_important_group", lambda tables: ("block_size", None))
    assert "max-num-seqs" in [answer.section for answer in first_screen(report).answers if not answer.lines]


def test_weights_that_the_catalog_makes_random_are_said(report):
    sweep = report.study.sweeps[0].model_copy(update={"model": ["tiny-llama-57m"]})
    study = report.study.model_copy(update={"sweeps": [sweep], "models": {}})
    assert "random, of tiny-llama-57m;" in dict(_trust(replace(report, study=study)))["Weights"]

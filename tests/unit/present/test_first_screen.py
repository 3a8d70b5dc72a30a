"""The first screen: scorecards say what the tables say, ties decide nothing, and no number has too many digits."""

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.generated_study import write_outcomes
from workflow_scripts.common.wording import number
from workflow_scripts.present.first_screen import first_screen
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import Tables
from workflow_scripts.present.scorecards import Card, best_in_words, scorecards
from workflow_scripts.present.words import span
from workflow_scripts.study.study_file import load_study

KNOBS = ["knob_block_size", "knob_max_num_seqs"]


@pytest.fixture
def report(results):
    root = results.root
    return Report(
        load_study(results.study), Tables(root / "tables"), root / "figures", root / "cells", root, root / "report.html"
    )


def changed(report: Report, folder: Path, **tables: pd.DataFrame) -> Report:
    """The report of the same study, with other tables."""
    for path in report.tables.folder.glob("*.parquet"):
        tables.get(path.stem, pd.read_parquet(path)).to_parquet(folder / path.name)
    return replace(report, tables=Tables(folder))


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
    assert re.fullmatch(
        r"Being measured: a100.*: block size 64, at most 256 sequences \(for 1\.5 min\)\.", told.words[1]
    )
    assert told.words[-1].startswith("As of 20")
    # Of a folder that lacks what the tables hold, and of tables without a folder, nothing is told.
    shutil.rmtree(cells / "h200")
    assert first_screen(replace(report, cells=cells)).unfinished is None
    assert first_screen(replace(report, cells=tmp_path / "none" / "cells")).unfinished is None


def fact(card: Card, name: str) -> tuple[str, str]:
    return next((fact.value, fact.note) for fact in card.facts if fact.name == name)


def test_each_place_has_a_card_with_the_numbers_of_its_recommendation(report, tmp_path):
    table = report.tables.need("recommendations").assign(ties=None)
    cards = {card.place: card for card in scorecards(changed(report, tmp_path, recommendations=table))}
    grid = report.tables.cells
    assert list(cards) == list(dict.fromkeys(grid["gpu"] + " · " + grid["model"] + " · " + grid["workload"]))
    best = table[table["role"] == "best_throughput"]
    assert len(best)
    for _, row in best.iterrows():
        card = cards[f"{row['gpu']} · {row['model']} · {row['workload']}"]
        assert card.note.startswith("The fastest of ")
        rate, low, high = (row[f"output_tokens_per_s{end}"] for end in ("", "_low", "_high"))
        assert fact(card, "Output") == (f"{number(rate)} tokens/s", span([low, high]))


def test_the_gain_is_over_huggingface_if_it_did_equal_work(report):
    [card] = [card for card in scorecards(report) if card.place.startswith("h200") and card.place.endswith("chat")]
    value, note = fact(card, "Gain")
    assert "HuggingFace" in note
    assert value.endswith(" times") or value == "no difference shown"
    other = next(card for card in scorecards(report) if card.place.startswith("a100"))
    assert "HuggingFace" not in fact(other, "Gain")[1]


def test_an_interval_that_holds_1_is_no_gain(report, tmp_path):
    engines = pd.read_parquet(report.tables.folder / "engines.parquet").assign(improvement_ratio_low=0.5)
    [card] = [c for c in scorecards(changed(report, tmp_path, engines=engines)) if re.match("h200.*chat$", c.place)]
    assert fact(card, "Gain")[0] == "no difference shown"


def test_a_verdict_without_an_interval_is_a_gain(report, tmp_path):
    """Cells that share no round have no interval; their ratio may be so large that it is shown all the same."""
    ends = {f"improvement_ratio{end}": value for end, value in (("", 9.0), ("_low", None), ("_high", None))}
    engines = pd.read_parquet(report.tables.folder / "engines.parquet").assign(**ends)
    for verdict, value in (("faster", "9 times"), ("not decided", "no difference shown")):
        other = changed(
            report, tmp_path, engines=engines.assign(verdict=verdict).astype({"improvement_ratio_low": float})
        )
        [card] = [c for c in scorecards(other) if re.match("h200.*chat$", c.place)]
        found, note = fact(card, "Gain")
        assert found == value
        assert ("no interval" in note) == (verdict == "faster")


def test_in_a_table_of_an_earlier_version_the_interval_tells_which_engine_is_faster(report, tmp_path):
    engines = pd.read_parquet(report.tables.folder / "engines.parquet").drop(columns="verdict")
    for low, shown in ((1.2, True), (0.8, False)):
        ends = {"improvement_ratio": 1.5, "improvement_ratio_low": low, "improvement_ratio_high": 1.9}
        answers = first_screen(changed(report, tmp_path, engines=engines.assign(**ends))).answers
        [answer] = [answer for answer in answers if "HuggingFace" in answer]
        assert ("1.5 times" in answer) == shown


def test_a_gain_that_another_start_may_not_give_is_not_decided(report, tmp_path):
    effects = pd.read_parquet(report.tables.folder / "effects.parquet")
    effects = effects.assign(ratio=1.5, ratio_low=1.4, ratio_high=1.6, verdict="not decided", scope="within one start")
    cards = scorecards(changed(report, tmp_path, effects=effects))
    [card] = [card for card in cards if card.place.startswith("a100")]
    value, note = fact(card, "Gain")
    assert value == "not decided"
    assert note.endswith(": 1.4 to 1.6 times within one start")


def cells(*settings: tuple[int, int]) -> pd.DataFrame:
    return pd.DataFrame(settings, columns=KNOBS).assign(cell_id=[str(i) for i in range(len(settings))])


BLOCKS = "No difference shown between block size 16, block size 32 and block size 64."
GRID = cells((16, 1), (16, 8), (32, 1), (32, 8), (64, 8))


@pytest.mark.parametrize(
    ("members", "best", "note"),
    [
        ([3], "Block size 32, at most 8 sequences", "The fastest of 5 settings."),
        (
            [1, 3, 4],
            "At most 8 sequences",
            "No difference shown between block size 16, block size 32 and block size 64.",
        ),
        (
            [4, 1, 3],
            "At most 8 sequences",
            "No difference shown between block size 16, block size 32 and block size 64.",
        ),
        ([0, 3], "2 settings tied", "between: block size 16, at most 1 sequence; block size 32, at most 8"),
        ([3, 4], "2 settings tied", "between: block size 32, at most 8 sequences; block size 64, at most 8 sequences."),
        ([0, 1, 2, 3, 4], "No difference shown", "Of 5 settings, none is shown to be faster than another."),
    ],
)
def test_settings_that_are_tied_are_said_to_be_in_an_order_that_no_mean_decides(members, best, note):
    words, said = best_in_words(GRID.iloc[members], GRID, KNOBS)
    assert words == best
    assert note in said


def test_imported_cells_are_not_counted_as_measured(report, tmp_path):
    cells = pd.read_parquet(report.tables.folder / "cells.parquet")
    some = cells["cell_id"].isin(cells.loc[cells["outcome"] == "ok", "cell_id"].unique()[:2])
    before = dict(first_screen(report).trust)["Cells"]
    now = changed(report, tmp_path, cells=cells.assign(source=cells["source"].mask(some, "imported")))
    after = dict(first_screen(now).trust)["Cells"]
    count = int(before.partition(" ")[0])
    assert after.startswith(f"{count - 2} of 78 measured, ")
    assert after.endswith(", 2 imported from runs elsewhere")


def test_a_tie_shows_the_range_of_its_settings(report, tmp_path):
    table = pd.read_parquet(report.tables.folder / "recommendations.parquet")
    first = table["role"].eq("best_throughput") & table["gpu"].eq("h200") & table["workload"].eq("chat")
    measured = report.tables.measured
    place = (measured["gpu"] == "h200") & (measured["workload"] == "chat") & (measured["engine"] == "vllm")
    others = [knobs for knobs in measured.loc[place, "knobs"].unique() if knobs != table.loc[first, "knobs"].iloc[0]]
    tied = changed(report, tmp_path, recommendations=table.assign(ties=table["ties"].mask(first, others[0])))
    [card] = [c for c in scorecards(tied) if re.match("h200.*chat$", c.place)]
    of_both = measured[place & measured["knobs"].isin([others[0], table.loc[first, "knobs"].iloc[0]])]
    medians = of_both.groupby("cell_id")["output_tokens_per_s"].median()
    assert fact(card, "Output") == (f"{span(medians)} tokens/s", "")
    assert "No difference shown between" in card.note


def test_a_place_without_a_recommendation_has_its_highest_median_and_says_that_nothing_tested_it(report, tmp_path):
    table = pd.read_parquet(report.tables.folder / "recommendations.parquet")
    [card] = [
        c
        for c in scorecards(changed(report, tmp_path, recommendations=table[table["gpu"] != "a100-sxm-80gb"]))
        if c.place.startswith("a100")
    ]
    assert card.best.startswith("vllm: ")
    assert "differences are not tested" in card.note


def test_answers_tell_a_change_with_its_interval_and_what_is_flat_or_undecided(report, tmp_path):
    effects = pd.read_parquet(report.tables.folder / "effects.parquet")
    overall = effects["comparison"] == "overall"
    rows = effects[overall].drop_duplicates("knob").set_index("knob", drop=False)
    rows.loc["max_num_seqs", ["verdict", "ratio", "ratio_low", "ratio_high"]] = ["changes", 12.345, 10.0, 15.0]
    rows.loc["block_size", ["verdict", "margin_pct"]] = ["flat", 5.0]
    rows.loc["enable_prefix_caching", "verdict"] = "not decided"
    answers = first_screen(changed(report, tmp_path, effects=rows.reset_index(drop=True))).answers
    assert any(text.startswith("Up to ") and ": 12.3 times (10 to 15), " in text for text in answers)
    assert any(answer.startswith("No difference of more than ") and "block size" in answer for answer in answers)
    assert "No difference shown, and none ruled out: prefix caching" in " ".join(answers)
    assert any("HuggingFace" in answer for answer in answers)
    assert any("a100-sxm-80gb" in answer and " times, median of" in answer for answer in answers)


def test_the_trust_strip_counts_cells_and_names_hosts_versions_and_what_intervals_cover(report, tmp_path):
    trust = dict(first_screen(report).trust)
    assert re.fullmatch(r"\d+ of 80 measured, \d+ failed \(.*infeasible.*\), 1 invalid, 1 not run yet", trust["Cells"])
    told = "brackets hold 95 % of further runs, if they differ only by what varies"
    assert trust["Intervals"].startswith(f"{told} within one start; ")
    assert "of the CPU" in trust["Load by others"]
    assert "node-1" in trust["Host"]
    assert trust["Versions"].startswith("vllm 0.32.0")
    effects = pd.read_parquet(report.tables.folder / "effects.parquet").assign(scope="between starts on this device")
    simulated = pd.read_parquet(report.tables.folder / "cells.parquet").assign(source="simulated")
    trust = dict(first_screen(changed(report, tmp_path, effects=effects, cells=simulated)).trust)
    assert trust["Intervals"].startswith(f"{told} between starts on this device; ")
    assert next(iter(trust)) == "Simulated"


def test_nothing_measured_is_said(report, tmp_path):
    (tmp_path / "tables").mkdir()
    missing = pd.read_parquet(report.tables.folder / "cells.parquet").drop_duplicates("cell_id")
    missing.assign(outcome="missing", reason=None).to_parquet(tmp_path / "tables" / "cells.parquet")
    screen = first_screen(replace(report, tables=Tables(tmp_path / "tables")))
    assert list(screen.answers) == ["Nothing has been measured yet."]
    assert {card.best for card in screen.cards} == {"Nothing measured"}


def test_no_number_on_the_first_screen_has_more_than_three_significant_digits(results):
    html = results.html
    cards = re.sub(r"<[^>]+>", " ", html[html.index('<ul class="answers">') : html.index('<dl class="trust">')])
    cards = re.sub(r"\S*(?:llama|sxm|l40s|h200)\S*", " ", cards)
    numbers = re.findall(r"\d[\d,]*\.?\d*", cards)
    assert len(numbers) > 20
    # Values of settings, such as a block size, are counts and exact.
    assert [text for text in numbers if len(re.sub(r"[.,]", "", text).strip("0")) > 3] == []


def test_a_place_whose_first_start_failed_or_whose_rate_is_not_known_has_a_card(report, tmp_path):
    cells = pd.read_parquet(report.tables.folder / "cells.parquet")
    best = pd.read_parquet(report.tables.folder / "recommendations.parquet")
    best = best[best["role"] == "best_throughput"]
    h200 = cells["cell_id"].eq(best.loc[best["gpu"] == "h200", "cell_id"].iloc[0])
    both = pd.concat([cells[h200].head(1), cells[h200], cells[~h200]], ignore_index=True)
    both.loc[0, ["outcome", "reason", "repeat", "output_tokens_per_s"]] = ["engine_error", "CUDA error", None, None]
    both.loc[1 : h200.sum(), "start"] = 2
    both.loc[both["gpu"].str.startswith("a100"), "output_tokens_per_s"] = None
    tables = {"cells": both, "recommendations": best[best["gpu"] == "h200"]}
    twice = changed(report, tmp_path, **tables)
    cards = {card.place: card for card in scorecards(twice)}
    assert len(cards) == len(scorecards(report))
    assert {card.best for place, card in cards.items() if place.startswith("a100")} == {"No throughput known"}
    [place] = [
        " · ".join(names) for names in cells.loc[h200, ["gpu", "model", "workload"]].drop_duplicates().to_numpy()
    ]
    assert fact(cards[place], "Output")
    assert "3 repeats per start, 1 to 2 starts per cell" in dict(first_screen(twice).trust)["Intervals"]


def test_the_page_of_tables_from_before_starts_were_counted_is_written(results, tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    for path in (results.root / "tables").glob("*.parquet"):
        pd.read_parquet(path).drop(columns="start", errors="ignore").to_parquet(tables / path.name)
    assert results.write_page(tmp_path / "report.html", tables) == 0
    assert "KeyError" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_place_with_one_setting_and_no_recommendation_names_the_setting(report, tmp_path):
    cells = pd.read_parquet(report.tables.folder / "cells.parquet")
    of_a100 = cells[cells["gpu"].str.startswith("a100") & cells["outcome"].eq("ok")]
    one = cells[cells["cell_id"] == of_a100["cell_id"].iloc[0]]
    best = pd.read_parquet(report.tables.folder / "recommendations.parquet").head(0)
    [card] = scorecards(changed(report, tmp_path, cells=one, recommendations=best))
    assert re.match(r"vllm: .*at most \d+ sequences?", card.best)
    assert card.note == "The only setting measured."


def test_the_change_that_is_told_is_one_whose_own_interval_excludes_1(report, tmp_path):
    effects = pd.read_parquet(report.tables.folder / "effects.parquet")
    rows = effects[effects["knob"] == "max_num_seqs"].drop_duplicates("comparison").assign(verdict="changes")
    wide = rows["comparison"] == "overall"
    rows.loc[wide, ["ratio", "ratio_low", "ratio_high"]] = [12.0, 0.6, 240.0]
    rows.loc[~wide, ["ratio", "ratio_low", "ratio_high"]] = [0.5, 0.4, 0.625]
    answers = first_screen(changed(report, tmp_path, effects=rows)).answers
    assert "0.5 times (0.4 to 0.625)" in answers[0]


def test_two_values_have_one_interval_in_the_answer_on_the_card_and_in_the_findings(report, tmp_path):
    effects = pd.read_parquet(report.tables.folder / "effects.parquet")
    key = ["knob", "cell_id", "baseline_cell_id"]
    twice = effects[effects.duplicated(key, keep=False) & (effects["knob"] == "max_num_seqs")].drop_duplicates(key)
    rows = effects.merge(twice[key], on=key).assign(verdict="changes", ratio=4.0, ratio_low=3.5, ratio_high=4.5)
    assert set(rows["comparison"]) == {"pair", "overall"}
    rows.loc[rows["comparison"] == "overall", ["ratio_low", "ratio_high"]] = [2.9, 5.4]
    only_knobs = changed(report, tmp_path, effects=rows, engines=report.tables.need("engines").head(0))
    assert "4 times (2.9 to 5.4)" in first_screen(only_knobs).answers[0]
    gains = [fact.note for card in scorecards(only_knobs) for fact in card.facts if fact.name == "Gain"]
    assert gains
    assert all(note.endswith(": 2.9 to 5.4") for note in gains)

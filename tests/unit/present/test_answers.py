"""Answers of the first screen: their verdicts and words, from comparisons made up for the purpose."""

import re
from contextlib import suppress

import pandas as pd
import pytest

from workflow_scripts.page.answers import Answer, setting_answer
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.kit import Lines
from workflow_scripts.page.series import device_names
from workflow_scripts.questions.cells.section import answers as cell_answers
from workflow_scripts.questions.devices.section import answers as device_answers
from workflow_scripts.questions.knobs.sequence_limit import answers as ladder_answers
from workflow_scripts.questions.sections import SECTIONS
from workflow_scripts.tables.results import RATE, MissingError, records

CASES = {
    # verdict, ratio, low, high -> whether it matters, whether it helps, and the words
    ("changes", 3.5, 3.1, 4.0): ("Yes", "Yes", "3.5×, 32 over 16"),
    ("changes", 0.5, 0.45, 0.55): ("Yes", "No", "2.0×, 16 over 32"),
    ("likely", 1.06, 1.001, 1.13): ("Likely", "Likely", "1.06×, 32 over 16"),
    ("likely", 0.5, 0.2, 0.9): ("Likely", "Open", "2×, 16 over 32"),
    ("flat", 1.005, 0.99, 1.01): ("No", "No", "within 2 %"),
    ("not decided", 1.2, 0.8, 1.9): ("Open", "Open", "1.2×, 32 over 16"),
    ("not decided", 1.28, 0.3, 5.0): ("Open", "Open", "1.3×, 32 over 16"),  # never 1×
}


def row(verdict: str, value: float, low: float, high: float, **changes: object) -> pd.DataFrame:
    of = {"name": "block_size", "value_a": "16", "value_b": "32", "gpu": "h200", "workload": "chat", "margin_pct": 2.0}
    of |= {"metric": RATE, "verdict": verdict, "ratio": value, "low": low, "high": high}
    return pd.DataFrame([{**of, **changes}])


@pytest.mark.parametrize("case", CASES)
def test_a_setting_has_the_verdict_of_its_comparison(report, case):
    matters, helps, words = CASES[case]
    (of,) = setting_answer(report.tables, row(*case), "Block size matters?", "block size", helps=False)
    assert (of.verdict, of.answer) == (matters, words)
    assert all(bar.value >= 1 for bar in of.bars)
    assert all(bar.hollow == (case[0] in ("likely", "not decided")) for bar in of.bars)
    (of,) = setting_answer(report.tables, row(*case), "Helps?", "it", helps=True)
    assert of.verdict == helps


def test_the_answers_of_made_up_results_are_those_of_their_tables(report):
    (ladder,) = ladder_answers(report)
    # What a reader is asked follows from what the table decides.
    found = {"changes": ("No", "Flat in max-num-seqs?"), "likely": ("Likely", "Grows with max-num-seqs?")}
    of_ladder = comparisons(report.tables, "knob", "max_num_seqs")
    assert (ladder.verdict, ladder.question) == found[of_ladder["verdict"].iloc[0]]
    assert re.fullmatch(r"\d+× on the H200, 1 to \d+ sequences", ladder.answer)
    (of,) = device_answers(report)
    assert of.question.startswith("As fast as its bandwidth, ")
    assert [bar.label for bar in of.bars] == ["at 1", "at 256"]


def test_every_row_names_its_device_and_every_mean_has_its_interval(report):
    names, drawn = device_names(report.tables), 0
    for draw in (draw for subject in SECTIONS for draw in subject.figures):
        with suppress(MissingError):
            shown = draw(report.tables).shown
            for panel in [] if isinstance(shown, Lines) else shown:
                rows = panel.rows.assign(device=panel.rows["gpu"].map(names)).dropna(subset="device")
                assert all(row["device"] in row["name"] for row in records(rows)), draw
                # Memory is made up the same in all repeats, so it is exact.
                if panel.measure in (RATE, "ratio", "ceiling_share"):
                    assert rows[["low", "high"]].notna().all(axis=None), draw
                drawn += 1
    assert drawn >= 7


@pytest.mark.parametrize(
    ("outcomes", "verdict", "said"),
    [
        ({}, "Yes", "80 of 80 measured"),
        ({"timeout": 2}, "Partly", "78 of 80 measured, 2 failed"),
        ({"missing": 80}, "Open", "0 of 80 measured"),
        ({"engine_error": 80}, "No", "0 of 80 measured, 80 failed"),
    ],
)
def test_how_cells_ended_is_an_answer_of_any_study(report, tmp_path, outcomes, verdict, said):
    grid = report.grid.assign(outcome="ok", reason="it broke")
    for outcome, count in outcomes.items():
        grid.loc[grid.index[:count], "outcome"] = outcome
    report.__dict__["grid"] = grid
    found = list(cell_answers(report))
    assert (found[0].verdict, found[0].answer) == (verdict, said)
    assert all(isinstance(of, Answer) for of in found)
    assert [of.question for of in found[1:2]] == ["One reason for all?"] * (verdict in ("Partly", "No"))

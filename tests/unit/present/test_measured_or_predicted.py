"""What was measured and what is predicted stay apart: in the figure, in the counts and in the words."""

import numpy as np
import pandas as pd
import pytest

from tests.unit.present.conftest import changed, told
from workflow_scripts.present.first_screen import first_screen
from workflow_scripts.questions.predictions.measured_or_predicted import SUBJECT, measured_or_predicted, states
from workflow_scripts.study.study import Measure
from workflow_scripts.tables.results import RATE


@pytest.fixture
def report(results, tmp_path):
    """The made-up study, as if every third cell that ran checked the predictions, and every second other one had only
    been predicted."""
    tables = results.tables
    rate = tables.measured.groupby("cell_id")[RATE].mean()
    rows = tables.cells[["cell_id", "gpu", "engine", "model", "workload", "knobs"]]
    rows = rows[rows["cell_id"].isin(rate.index)].assign(estimated=lambda rows: rows["cell_id"].map(rate))
    place = np.arange(len(rows))
    rows["state"] = np.select([place % 3 == 0, place % 3 == 1], ["check", "predicted"], "measured")
    rows["measured"] = rows["estimated"].where(rows["state"] != "predicted")
    rows = rows.assign(low=0.8 * rows["estimated"], high=1.25 * rows["estimated"], predicted=rows["estimated"])
    questions = [["knobs", "here", "block_size", "flat", 0.99, True], ["devices", "here", "a / b", "2", 0.6, False]]
    columns = ["kind", "place", "subject", "answer", "probability", "is_answered"]
    questions_table = pd.DataFrame(questions, columns=columns)
    return changed(results.report, tmp_path, estimates=rows.assign(error_pct=0.0), questions=questions_table)


def test_marks_are_filled_only_for_what_was_measured(report, axes_of):
    plot = measured_or_predicted(report.tables)
    labels = {handle.get_label(): handle for handle in plot.handles}
    assert labels["predicted, with its 95 % band"].get_markerfacecolor() == "none"
    rows = report.tables.need("estimates")
    filled, hollow = set(), set()
    for place in range(len(plot.panels)):
        for line in axes_of(plot, place).lines:
            if line.get_marker() in ("o", "s"):
                (hollow if line.get_markerfacecolor() == "none" else filled).update(line.get_ydata())
    assert set() < filled <= set(rows["measured"].dropna())
    assert set() < hollow <= set(rows.loc[rows["state"] != "measured", "estimated"])
    assert plot.sources == ["measured", "predicted"]


def test_counts_tell_what_was_measured_what_is_predicted_and_what_checks_it(report):
    rows = report.tables.need("estimates")
    count = rows["state"].value_counts()
    (_, sentence), (verdict, opened) = told(states, report)
    assert f"{count['measured'] + count['check']} of {len(rows)} cells measured" in sentence
    assert f"{count['predicted']} predicted within 25 %" in sentence
    assert f"checked on {count['check']} held back at random, {count['check']} within the band" in sentence
    assert verdict == "1 answered"
    assert "1 of 2 questions answered" in opened
    assert "devices, here: a / b" in opened
    (of_cells,) = (words for name, words in first_screen(report).trust if name == "Cells")
    assert f"{count['predicted']} predicted within 25 %" in of_cells
    assert "not run" not in of_cells


def test_only_a_study_that_chooses_its_cells_has_the_section(report):
    assert not SUBJECT.is_in(report.study)
    assert SUBJECT.is_in(report.study.model_copy(update={"measure": Measure()}))

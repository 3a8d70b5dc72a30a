import pandas as pd
import pytest

from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.subjects.predicted_and_measured import (
    LINES,
    SUBJECT,
    _accuracy,
    predicted_beside_measured,
    predicted_by_max_num_seqs,
    prediction_findings,
)
from workflow_scripts.study.study_file import load_study


@pytest.fixture
def tables(results):
    return Tables(results.root / "tables")


def test_measured_is_drawn_against_predicted_and_says_how_far_off_it_is(tables):
    plot = predicted_beside_measured(tables)
    assert plot.sources == ["measured", "predicted"]
    assert (plot.x_label, plot.y_label) == ("Predicted output tokens per s", "Measured output tokens per s")
    assert "outside its band" in [handle.get_label() for handle in plot.handles]
    assert "have a median error of 5 %" in plot.alt


def test_what_was_only_predicted_is_drawn_apart(tables):
    plot = predicted_by_max_num_seqs(tables)
    labels = {handle.get_label(): handle for handle in plot.handles}
    assert set(labels) == {"predicted, with its band", "measured", "published"}
    assert labels["predicted, with its band"].get_markerfacecolor() == "none"
    assert labels["measured"].get_markerfacecolor() != "none"
    assert all(line["linestyle"] != "-" and line["markerfacecolor"] == "none" for line in LINES)
    assert plot.sources == ["predicted", "measured", "published"]


def test_findings_name_accuracy_flags_and_flat_lines(results):
    root = results.root
    report = Report(load_study(results.study), Tables(root / "tables"), root, root, root, root / "report.html")
    (block,) = prediction_findings(report)
    sentences = {finding.verdict: finding.sentence for finding in block.findings}
    assert set(sentences) == {"prediction", "flagged", "published too high"}
    assert any(" is off by 5 % in the median" in finding.sentence for finding in block.findings)
    assert "2.01 times the prediction" in sentences["flagged"]
    assert "the published rate is 100,000 tokens per s, above the prediction of" in sentences["published too high"]


def test_accuracy_says_how_many_cells_were_predicted_without_a_band():
    errors = {"gpu": "h200", "engine": "vllm", "predicted": 9.0, "measured": 10.0, "error_pct": -10.0}
    (finding,) = _accuracy(pd.DataFrame([errors | {"low": 8.0}, errors | {"low": None}]))
    assert "is off by 10 % in the median" in finding.sentence
    assert finding.sentence.endswith(", in 2 vllm cells (1 uncalibrated).")


def test_without_predictions_the_figures_are_missing(tmp_path):
    assert len(SUBJECT.figures) == 2
    for figure in SUBJECT.figures:
        with pytest.raises(MissingError, match="no table predictions"):
            figure.plot(Tables(tmp_path))

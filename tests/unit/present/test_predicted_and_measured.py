import re

import pandas as pd
import pytest

from tests.unit.present.conftest import told
from workflow_scripts.questions.predictions.section import (
    LINES,
    _accuracy,
    predicted_by_max_num_seqs,
    prediction_errors,
    prediction_findings,
)


def test_each_cell_is_a_dot_at_predicted_over_measured_in_ascending_order(results, axes_of):
    tables = results.tables
    plot = prediction_errors(tables)
    assert plot.sources == ["measured", "predicted"]
    table = tables.need("predictions").dropna(subset=["predicted", "measured"])
    table = table[table["quantity"] == "output_tokens_per_s"]
    error = 100 * (table["predicted"] / table["measured"] - 1).abs()
    assert f"{len(table)} cells. Predictions have a median error of {error.median():.3g} %" in plot.alt
    ax = axes_of(plot)
    of_one = table[table["gpu"] == "a100-sxm-80gb"]
    drawn = [list(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == len(of_one)]
    assert sorted(of_one["predicted"] / of_one["measured"]) in [pytest.approx(dots) for dots in drawn]


def test_what_was_only_predicted_is_drawn_apart(results):
    plot = predicted_by_max_num_seqs(results.tables)
    labels = {handle.get_label(): handle for handle in plot.handles}
    mix = {"published by others, if all are output tokens", "if 75 to 0 % are prompt tokens"}
    assert set(labels) == {"predicted, with its band", "measured", *mix}
    assert labels["predicted, with its band"].get_markerfacecolor() == "none"
    assert labels["measured"].get_markerfacecolor() != "none"
    assert all(line["linestyle"] != "-" and line["markerfacecolor"] == "none" for line in LINES)
    assert plot.sources == ["predicted", "measured", "published"]


def test_findings_name_accuracy_and_flags(results):
    sentences = dict(told(prediction_findings, results.report))
    numberless = {re.sub(r"[\d.]+", "N", verdict) for verdict in sentences}
    assert numberless == {"N % off", "flagged"}
    rows = results.tables.need("predictions").dropna(subset=["predicted", "measured"])
    # The rate of a server follows from its load.
    rows = rows[(rows["quantity"] == "output_tokens_per_s") & ~rows["engine"].eq("vllm-serve")]
    for (gpu, engine), of_one in rows.groupby(["gpu", "engine"]):
        error = 100 * (of_one["predicted"] / of_one["measured"] - 1).abs().median()
        text = sentences[f"{error:.3g} % off"]
        assert all(part in text for part in (gpu, engine, f" is off by {error:.3g} % "))
    assert "outside the band" in sentences["flagged"]
    errors = {"gpu": "h200", "engine": "vllm", "predicted": 9.0, "measured": 10.0, "error_pct": -10.0}
    (finding,) = _accuracy(pd.DataFrame([errors | {"low": 8.0}, errors | {"low": None}]))
    assert all(part in finding.sentence for part in ("by 10 %", "(1 uncalibrated)"))

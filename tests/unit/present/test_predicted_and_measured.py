import re

import pandas as pd
import pytest

from tests.unit.present.conftest import changed, in_table, told
from workflow_scripts.questions.predictions.section import (
    LINES,
    _accuracy,
    _cause,
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
    mix = {"published by others, if all are output tokens", "if up to 75 % are prompt tokens, where possible"}
    assert set(labels) == {"predicted, with its band", "measured", *mix}
    assert labels["predicted, with its band"].get_markerfacecolor() == "none"
    assert labels["measured"].get_markerfacecolor() != "none"
    assert all(line["linestyle"] != "-" and line["markerfacecolor"] == "none" for line in LINES)
    assert plot.sources == ["predicted", "measured", "published"]


def test_findings_name_accuracy_and_flags(results):
    sentences = dict(told(prediction_findings, results.report))
    numberless = {re.sub(r"[\d.]+", "N", verdict) for verdict in sentences}
    assert numberless == {"N % off", "N % off, median TTFT", "flagged"}
    assert "outside the band" in sentences["flagged"]
    errors_of = {"speed_source": "calibrated", "calibrated_at": "2026-11-23T06:39:19Z", "low": 8.0, "band_pct": 12.0}
    of_cells = pd.DataFrame([errors_of | {"cell_id": of, "error_pct": -float(of)} for of in (1, 2, 9)])
    of_cells["in_band"] = pd.array([True, True, None], "boolean")
    of_cells = of_cells.assign(engine="vllm", model="llama", calibrated_of="vllm, opt", band_group=["a", None, None])
    of_cells = of_cells.assign(same_card=pd.array([True, False, None], "boolean"), calibrated_h_apart=[0.2, 30.5, 1.0])
    found = _accuracy(of_cells.assign(quantity="output_tokens_per_s", low=[8.0, 8.0, None]), "h200", "vllm")
    assert (found.verdict, found.tone) == ("2 % off", "good")
    assert "all 2 values with a band are inside it; the band of 1 of 3 cells is that of public runs" in found.sentence
    assert all(part in found.sentence for part in ("by 2 % (at most 9 %) for", "3 vllm cells (1 without a band)"))
    beyond = _accuracy(of_cells.assign(quantity="output_tokens_per_s", in_band=[True, True, False]), "h200", "vllm")
    assert (beyond.tone, "1 of 3 values are outside their 90 % bands (1 of out" in beyond.sentence) == ("neutral", True)
    assert _accuracy(of_cells.assign(quantity="output_tokens_per_s", band_pct=50.0), "h200", "vllm").tone == "neutral"
    more = pd.concat([of_cells, of_cells.tail(1)]).assign(quantity="output_tokens_per_s")
    asides = _accuracy(more, "h200", "vllm").sentence
    assert all(
        part in asides
        for part in (
            "4 of 4 rates are predicted too low",
            "of 2026-11-23, made with vllm, opt (1 of 2 cells on its card, within 31 hours)",
        )
    )
    both = pd.concat([of_cells.assign(quantity=of) for of in ("output_tokens_per_s", "tpot_s_p50")])
    both["error_pct"] = [1, 2, 3, 10, 20, 30]
    assert _accuracy(both, "h200", "vllm").tone == "neutral"


def test_a_flag_names_the_cause_that_explains_much_of_it(results, tmp_path):
    """Launches are compared with launches."""
    waiting = in_table(results.report, "waiting").head(1).assign(launch_s=1.3, wall_s=10.0, waiting_share=0.5)
    report, cell = changed(results.report, tmp_path, waiting=waiting), waiting["cell_id"].iloc[0]
    causes = [
        _cause({"cell_id": cell, "launch_share": 0.02, "error_pct": error}, report) for error in (11.0, 30.0, -11.0)
    ]
    assert [("13 %" in of, "(2 % predicted)" in of) for of in causes] == [(True, True), (False, False), (False, False)]


def test_a_line_of_predictions_has_one_setting_of_the_other_knobs(results, axes_of, tmp_path):
    """Cells with FP8 weights are another line; their median with the others would be the rate of no cell."""
    cells, predictions = (in_table(results.report, name) for name in ("cells", "predictions"))
    alike = cells[cells["engine"].eq("vllm") & cells["knob_max_num_seqs"].isin([1, 4])]
    other = alike.assign(cell_id=alike["cell_id"] + "-fp8", knob_quantization="fp8")
    doubled = predictions.assign(cell_id=predictions["cell_id"] + "-fp8", predicted=2 * predictions["predicted"])
    doubled = doubled[doubled["cell_id"].isin(other["cell_id"])]
    assert doubled["predicted"].notna().any()
    both = {"cells": pd.concat([cells, other]), "predictions": pd.concat([predictions, doubled])}
    plot = predicted_by_max_num_seqs(changed(results.report, tmp_path, **both).tables)
    for panel in range(len(plot.panels)):
        lines = [line for line in axes_of(plot, panel).lines if line.get_marker() == LINES[0]["marker"]]
        assert {rate for line in lines for rate in line.get_ydata()} <= set(predictions["predicted"])

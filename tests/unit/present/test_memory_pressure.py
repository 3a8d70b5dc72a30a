"""The section on KV blocks that run short."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from tests.unit.present.conftest import told
from workflow_scripts.present.blocks import Fold, Table
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.subjects.memory_pressure import (
    POOL,
    QUANTITIES,
    SUBJECT,
    every_pool,
    pressure_by_pool,
    sets_the_pool,
    under_pressure,
    users_in_the_same_memory,
)
from workflow_scripts.study.study_file import load_study

PLACE = {"gpu": "h200", "engine": "vllm", "model": "m", "workload": "chat"}


def cell(blocks: float, size: float, running: float, preemptions: float) -> dict[str, object]:
    """A cell with one repeat; requests of up to 256 tokens."""
    return {
        "cell_id": f"h200/vllm/m/chat/bs{size:g}-pool{blocks:g}",
        **PLACE,
        "knobs": f"bs{size:g}-pool{blocks:g}",
        "start": 1.0,
        "repeat": 0.0,
        "outcome": "ok",
        "comparable": True,
        "source": "measured",
        f"knob_{POOL}": blocks,
        "num_gpu_blocks": blocks,
        "block_size_effective": size,
        "max_model_len_effective": 256.0,
        "num_requests": 40.0,
        "running_peak": running,
        "output_tokens_per_s": 10 * running,
        "ttft_s_p50": 1 / running,
        "preemptions": preemptions,
        "recomputed_tokens": 50 * preemptions,
        "prefix_cache_hit_rate": 0.0,
    }


CELLS = [cell(33, 32, 20, 7), cell(65, 32, 40, 0), cell(5, 256, 4, 0), cell(9, 256, 8, 0)]


def report_of(folder: Path, predicted_preemptions: float = 7) -> Report:
    cells = pd.DataFrame(CELLS)
    cells.to_parquet(folder / "cells.parquet")
    measured = cells.set_index("cell_id")
    rows = [
        {"cell_id": name, "quantity": quantity, "predicted": row[quantity], "running_peak_predicted": 1.0}
        for name, row in measured.iterrows()
        for quantity in QUANTITIES
    ]
    predictions = pd.DataFrame(rows)
    short = predictions["cell_id"].str.endswith("bs32-pool33") & predictions["quantity"].eq("preemptions")
    predictions.loc[short, "predicted"] = predicted_preemptions
    predictions.to_parquet(folder / "predictions.parquet")
    study = load_study(Path("config/studies/kv_pressure.yaml"))
    return Report(study, Tables(folder), folder, folder, folder, folder / "report.html")


def test_users_in_the_same_memory_are_counted_in_blocks_and_contiguously(tmp_path: Path) -> None:
    assert told(users_in_the_same_memory, report_of(tmp_path)) == [
        (
            "5x the users",
            "h200, m, chat: a KV cache of 1,024 tokens holds 20 requests at once in blocks of 32 tokens, and 4 if each "
            "reserves 256 tokens. Both are measured.",
        ),
        (
            "predicted",
            "The schedule predicts the preemptions and the tokens computed again exactly in 4 of 4 cells; up to 7 "
            "preemptions were measured in a repeat.",
        ),
    ]


def test_a_wrong_prediction_is_counted_as_such(tmp_path: Path) -> None:
    assert (
        "exactly in 3 of 4 cells" in told(users_in_the_same_memory, report_of(tmp_path, predicted_preemptions=6))[1][1]
    )


def test_pools_of_equal_memory_lie_above_each_other(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    rows = under_pressure(report.tables).set_index("knobs")
    assert rows["pool_tokens"].to_dict() == {
        "bs32-pool33": 1024,
        "bs32-pool65": 2048,
        "bs256-pool5": 1024,
        "bs256-pool9": 2048,
    }
    assert rows.loc["bs256-pool5", "layout"] == "contiguous: 256 tokens per request"
    assert rows["running_peak_predicted"].eq(1).all()
    plot = pressure_by_pool(report.tables)
    assert plot.sources == ["measured", "predicted"]
    # Nothing was found in a prefix cache, so there is nothing to draw of it.
    assert [panel.title for panel in plot.panels] == list(QUANTITIES.values())[:-1]
    figure, ax = plt.subplots()
    plot.panels[3].draw(ax)
    lines = {line.get_marker(): np.asarray(line.get_ydata()).tolist() for line in ax.lines[:2]}
    assert list(lines.values()) == [[7, 0], [7, 0]]
    plt.close(figure)
    assert "1024 tokens in blocks of 32 tokens: 200 output tokens per s, 7 preemptions" in plot.alt


def test_the_table_has_measured_beside_predicted(tmp_path: Path) -> None:
    (fold,) = every_pool(report_of(tmp_path))
    assert isinstance(fold, Fold)
    (table,) = fold.blocks
    assert isinstance(table, Table)
    assert {"Preemptions", "Preemptions, predicted"} <= set(table.headings)
    assert len(table.rows) == 4


def test_a_study_without_the_knob_has_no_such_section(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert SUBJECT.is_in(report.study)
    assert not sets_the_pool(load_study(Path("config/studies/demo.yaml")))
    pd.DataFrame(CELLS).drop(columns=f"knob_{POOL}").to_parquet(tmp_path / "cells.parquet")
    without = Tables(tmp_path)
    with pytest.raises(MissingError, match="the study sets the number of KV blocks of no measured cell"):
        under_pressure(without)
    assert list(users_in_the_same_memory(Report(report.study, without, *[tmp_path] * 3, tmp_path / "r.html"))) == []

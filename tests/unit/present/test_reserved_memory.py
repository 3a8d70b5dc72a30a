"""Reserved and used KV memory, one row per cell."""

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from workflow_scripts.present.blocks import Fold, Table, Text
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.subjects.reserved_memory import (
    DRAWN,
    HOW_ENGINES_RESERVE,
    MOST_CELLS,
    SUBJECT,
    kv_reserved_and_used,
)
from workflow_scripts.study.study_file import load_study


@pytest.fixture
def report(results, tmp_path):
    cells = pd.read_parquet(results.root / "tables" / "cells.parquet")
    reserved = cells["engine"].map({"vllm": 8 * 2**30, "hf-static": 2 * 2**30}).where(cells["repeat"].notna())
    cells = cells.assign(
        kv_bytes_reserved_peak=reserved,
        kv_bytes_reserved_mean=reserved / 2,
        kv_bytes_used_mean=reserved / 8 * (1 + cells["repeat"].astype(float) / 10),
        torch_memory_bytes_max=float("nan"),
        process_memory_growth_bytes_max=float("nan"),
    )
    cells.to_parquet(tmp_path / "cells.parquet")
    measured = cells.loc[cells["repeat"].notna(), ["cell_id", "start", "repeat"]].assign(
        layout="paged", source="measured"
    )
    held = measured.assign(slots_held_mean=150.0, tokens_held_mean=100.0, layer_kind=None)
    what_if = held.assign(layout="block_size_whatif", source="predicted", slots_held_mean=1000.0)
    pd.concat([held, what_if]).to_parquet(tmp_path / "waste.parquet")
    root = results.root
    study = load_study(results.study)
    return Report(study, Tables(tmp_path), root / "figures", root / "cells", Path(), root / "report.html")


def test_each_cell_has_a_row_with_the_median_of_its_repeats(report):
    [text] = SUBJECT.parts[1](report)
    assert isinstance(text, Text)
    assert text.text == HOW_ENGINES_RESERVE
    [fold] = SUBJECT.tables[0](report)
    assert isinstance(fold, Fold)
    [table] = fold.blocks
    assert isinstance(table, Table)
    assert table.headings[-4:] == [
        "KV reserved, peak (GiB)",
        "KV reserved, mean (GiB)",
        "KV used, mean (GiB)",
        "Used share of reserved, of means (%)",
    ]
    of_hf = [row for row in table.rows if "hf-static" in row]
    # The middle one of three repeats: an eighth and a tenth more, of half of what was reserved at the peak.
    assert [row[-4:] for row in of_hf] == [["2", "1", "0.275", "27.5"]] * len(of_hf)
    assert len(of_hf) == 6


def test_marks_lie_at_what_was_set_aside_held_and_used(report):
    plot = kv_reserved_and_used(report.tables)
    assert plot.sources == ["measured"]
    figure, ax = plt.subplots()
    plot.panels[0].draw(ax)
    rows = [text.get_text() for text in ax.texts]
    marks = [line.get_xdata()[0] for line in ax.lines if line.get_marker() != "None"]
    of_row = dict(zip(rows, zip(*[iter(marks)] * 3, strict=True), strict=True))
    # The middle of three repeats: 1.1 GiB used with vLLM's pool of 8 GiB, a quarter of that with HF's of 2, as in the
    # table; half as much again is held.
    for row, (reserved, held, used) in of_row.items():
        part = 1 if row.startswith("vllm · ") else 0.25
        assert (reserved, held, used) == pytest.approx((8192 * part, 1.5 * 1126.4 * part, 1126.4 * part))
    assert {row.split(" · ")[0] for row in rows} == {"vllm", "hf-static"}
    plt.close(figure)


def test_of_many_cells_some_are_drawn_and_the_figure_says_so(report, tmp_path):
    cells, waste = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("cells", "waste"))
    copies = [[table.assign(cell_id=table["cell_id"] + f"-{i}") for i in range(MOST_CELLS)] for table in (cells, waste)]
    copies[0] = [table.assign(knobs=table["knobs"] + f"-{i}") for i, table in enumerate(copies[0])]
    for name, parts in zip(("cells", "waste"), copies, strict=True):
        pd.concat(parts).to_parquet(tmp_path / f"{name}.parquet")
    plot = kv_reserved_and_used(Tables(tmp_path))
    figure, ax = plt.subplots()
    plot.panels[0].draw(ax)
    assert len(ax.texts) == MOST_CELLS
    assert any("cells are drawn; the table cells holds all" in note for note in plot.notes)
    plt.close(figure)


def test_without_a_reservation_the_section_says_so(report, tmp_path):
    path = tmp_path / "cells.parquet"
    pd.read_parquet(path).assign(kv_bytes_reserved_peak=float("nan")).to_parquet(path)
    with pytest.raises(MissingError, match="no cell recorded how many bytes its KV cache reserved"):
        list(SUBJECT.tables[0](replace(report, tables=Tables(tmp_path))))


def test_marks_of_what_was_measured_are_solid():
    assert all("markerfacecolor" not in style for style in DRAWN.values())

"""The section on KV blocks that run short."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.unit.present.conftest import report_of, table_in, told, whole, write_cells
from workflow_scripts.common.columns import column
from workflow_scripts.page.report import Report
from workflow_scripts.questions.memory.section import (
    POOL,
    QUANTITIES,
    SUBJECT,
    USERS,
    every_pool,
    every_way,
    pressure_by_pool,
    same_memory,
    under_pressure,
    users_by_cache,
    users_in_the_same_memory,
)
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.results import MissingError, Tables

PLACE = {"gpu": "h200", "engine": "vllm", "model": "m", "workload": "chat"}


def cell(blocks: float, size: float, running: float, preemptions: float) -> dict[str, object]:
    """A cell with one repeat; requests of up to 256 tokens."""
    knobs = f"bs{size:g}-pool{blocks:g}"
    row: dict[str, object] = {"cell_id": f"h200/vllm/m/chat/{knobs}", "knobs": knobs, **PLACE, "start": 1.0}
    row |= {"repeat": 0.0, "outcome": "ok", "comparable": True, "source": "measured", f"knob_{POOL}": blocks}
    row |= {"num_gpu_blocks": blocks, "block_size_effective": size, "max_model_len_effective": 256.0}
    row |= {"num_requests": 40.0, "running_peak": running, "output_tokens_per_s": 10 * running}
    row |= {"running_while_others_wait": None if running == 40 else float(running), "ttft_s_p50": 1 / running}
    return row | {"preemptions": preemptions, "recomputed_tokens": 50 * preemptions, "prefix_cache_hit_rate": 0.0}


CELLS = [cell(33, 32, 20, 7), cell(65, 32, 40, 0), cell(9, 128, 8, 1), cell(5, 256, 4, 0), cell(9, 256, 8, 0)]


def of_transformers(engine: str, knobs: str, running: float, **set_knobs: object) -> dict[str, object]:
    """A cell of transformers with one repeat."""
    row = cell(1, 1, running, 0) | {f"knob_{POOL}": None, "num_gpu_blocks": None, "block_size_effective": None}
    place = {"cell_id": f"h200/{engine}/m/chat/{knobs}", "engine": engine, "knobs": knobs}
    return row | place | {f"knob_{name}": value for name, value in set_knobs.items()}


TRANSFORMERS = [
    of_transformers("hf-continuous", "pages", 18, page_size=32, num_blocks=32),
    of_transformers("hf-static", "dynamic-room1024", 6, room_tokens=1024, cache_implementation="dynamic"),
    of_transformers("hf-static", "static-room1024", 5, room_tokens=1024, cache_implementation="static"),
    of_transformers("hf-static", "dynamic-room512", 3, room_tokens=512, cache_implementation="dynamic"),
    of_transformers("hf-static", "dynamic", 40, cache_implementation="dynamic"),
]


def pools(folder: Path, predicted_preemptions: float = 7, further: Sequence[dict[str, object]] = ()) -> Report:
    cells = pd.DataFrame([*CELLS, *further])
    write_cells(cells, folder)
    measured = cells.set_index("cell_id").assign(**{USERS: cells["running_peak"].to_numpy() + 1})
    predictions = measured[[*QUANTITIES, USERS]].melt(var_name="quantity", value_name="predicted", ignore_index=False)
    predictions = predictions.reset_index().assign(running_peak_predicted=1.0, evicted_blocks_predicted=3.0)
    short = predictions["cell_id"].str.endswith("bs32-pool33") & predictions["quantity"].eq("preemptions")
    predictions.loc[short, "predicted"] = predicted_preemptions
    whole("predictions", predictions).to_parquet(folder / "predictions.parquet")
    return report_of(folder, Path("config/studies/kv_pressure.yaml"))


def test_users_in_the_same_memory_are_counted_in_blocks_and_contiguously(tmp_path):
    report = pools(tmp_path)
    users, blocks, predicted = told(users_in_the_same_memory, report)
    assert [verdict for verdict, _ in (users, blocks, predicted)] == ["4 to 20 requests", "block size", "5 of 5 exact"]
    assert all(part in users[1] for part in ("1,024 tokens", "4 requests", "256 tokens; 20 in", "8 in blocks of 128"))
    assert all(number in blocks[1] for number in ("128 instead of 32", "8 requests", "80 output", "instead of 200"))
    assert all(
        number in predicted[1] for number in ("5 of 5", "7 measured, 7 predicted", "350 measured, 350 predicted")
    )
    (*_, wrong) = told(users_in_the_same_memory, pools(tmp_path, predicted_preemptions=6))
    assert "4 of 5" in wrong[1]
    # The table has measured beside predicted.
    ((_, table),) = (fold.blocks for fold in every_pool(report))
    evicted = "Blocks of shared prompts that lost their content, predicted"
    assert {"Preemptions", "Preemptions, predicted"} <= set(table.headings)
    assert f"{evicted} 3" in table.note
    assert len(table.rows) == len(CELLS)
    # Without a pool in which reservations wait there are no users to compare.
    write_cells(pd.DataFrame(CELLS).assign(running_while_others_wait=float("nan")), tmp_path)
    tables = Tables(tmp_path)
    with pytest.raises(MissingError, match="in no pool"):
        users_by_cache(tables)
    assert list(every_way(replace(report, tables=tables))) == []


def test_caches_of_transformers_are_compared_in_the_same_memory(tmp_path, axes_of):
    report = pools(tmp_path, further=TRANSFORMERS)
    waste = [{"cell_id": row["cell_id"], "layer_kind": None, "source": "measured", "waste_pct": 20.0} for row in CELLS]
    what_if = [row | {"source": "predicted", "waste_pct": 90.0} for row in waste]
    whole("fragmentation", pd.DataFrame([*waste, *what_if])).to_parquet(tmp_path / "fragmentation.parquet")
    verdict, sentence = told(users_in_the_same_memory, report)[0]
    assert (verdict, sentence.count("80 %")) == ("4 to 20 requests", 3)
    rows = same_memory(report.tables)
    small = rows[rows["pool_tokens"] == 1024]
    assert small["times"].tolist() == [5, 4.5, 2, 1.5, 1.25, 1]
    assert small["users_predicted"].tolist() == [21, 19, 9, 7, 6, 5]
    assert set(rows["pool_tokens"]) == {1024, 2048}
    assert len(table_in(every_way, report).rows) == 8
    plot = users_by_cache(report.tables)
    assert plot.sources == ["measured", "predicted"]
    assert [panel.title[-12:] for panel in plot.panels] == ["1,024 tokens", "2,048 tokens"]
    ax = axes_of(plot, 0)
    assert [bar.get_width() for bar in ax.patches] == [20, 18, 8, 6, 5, 4]
    assert [line.get_xdata() for line in ax.lines] == [[21], [19], [9], [7], [6], [5]]


def test_pools_of_equal_memory_lie_above_each_other(tmp_path, axes_of):
    report = pools(tmp_path)
    rows = under_pressure(report.tables).set_index("knobs")
    sizes = {"bs32-pool33": 1024, "bs32-pool65": 2048, "bs128-pool9": 1024, "bs256-pool5": 1024, "bs256-pool9": 2048}
    assert rows["pool_tokens"].to_dict() == sizes
    assert rows.loc["bs256-pool5", "layout"] == "contiguous: 256 tokens per request"
    assert rows["running_peak_predicted"].eq(1).all()
    plot = pressure_by_pool(report.tables)
    # Nothing was found in a prefix cache, so there is nothing to draw of it.
    assert [panel.title for panel in plot.panels] == [column(name).axis for name in QUANTITIES[:-1]]
    ax = axes_of(plot, 3)
    lines = {line.get_marker(): np.asarray(line.get_ydata()).tolist() for line in ax.lines[:2]}
    assert list(lines.values()) == [[7, 0], [7, 0]]
    write_cells(pd.DataFrame([CELLS[0], CELLS[3]]), tmp_path)
    with pytest.raises(MissingError, match="two sizes"):
        pressure_by_pool(Tables(tmp_path))


def test_a_study_without_the_knob_has_no_such_section(tmp_path):
    report = pools(tmp_path)
    assert SUBJECT.is_in(report.study)
    assert not SUBJECT.is_in(load_study(Path("config/studies/paged_attention.yaml")))
    write_cells(pd.DataFrame(CELLS).drop(columns=f"knob_{POOL}"), tmp_path)
    without = Tables(tmp_path)
    with pytest.raises(MissingError, match="of no measured cell"):
        under_pressure(without)
    assert list(users_in_the_same_memory(replace(report, tables=without))) == []

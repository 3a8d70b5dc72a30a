"""Reserved and used KV memory, one row per cell."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from workflow_scripts.present.blocks import Fold, Table
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.subjects.reserved_memory import RESERVED
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
    [fold] = RESERVED(report)
    assert isinstance(fold, Fold)
    [table] = fold.blocks
    assert isinstance(table, Table)
    of_hf = [row for row in table.rows if "hf-static" in row]
    # The middle one of three repeats: an eighth and a tenth more, of half of what was reserved at the peak.
    assert [row[-4:] for row in of_hf] == [["2", "1", "0.275", "27.5"]] * len(of_hf)
    assert len(of_hf) == 6


def test_without_a_reservation_the_section_says_so(report, tmp_path):
    path = tmp_path / "cells.parquet"
    pd.read_parquet(path).assign(kv_bytes_reserved_peak=float("nan")).to_parquet(path)
    with pytest.raises(MissingError, match="KV cache reserved"):
        list(RESERVED(replace(report, tables=Tables(tmp_path))))

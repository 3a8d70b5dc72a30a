"""KV memory reserved beside used, a row a cell."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.present.conftest import Results
from workflow_scripts.present.blocks import Table, Text
from workflow_scripts.present.report import Report
from workflow_scripts.present.reserved import HOW_ENGINES_RESERVE, reserved_and_used
from workflow_scripts.present.tables import MissingError, Tables
from workflow_scripts.study import load_study


@pytest.fixture
def report(results: Results, tmp_path: Path) -> Report:
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
    root = results.root
    study = load_study(results.study)
    return Report(study, Tables(tmp_path), root / "figures", root / "cells", Path(), root / "report.html")


def test_each_cell_has_a_row_with_the_median_of_its_repeats(report: Report) -> None:
    text, table = reserved_and_used(report)
    assert isinstance(text, Text)
    assert text.text == HOW_ENGINES_RESERVE
    assert isinstance(table, Table)
    assert table.headings[-4:] == [
        "KV reserved, peak (GiB)",
        "mean (GiB)",
        "KV used, mean (GiB)",
        "Used of reserved, means (%)",
    ]
    of_hf = [row for row in table.rows if "hf-static" in row]
    # The middle one of three repeats: an eighth and a tenth more, of half of what was reserved at the peak.
    assert [row[-4:] for row in of_hf] == [["2", "1", "0.275", "27.5"]] * len(of_hf)
    assert len(of_hf) == 6


def test_without_a_reservation_the_section_says_so(results: Results, report: Report) -> None:
    with pytest.raises(MissingError, match="no cell tells the bytes"):
        list(reserved_and_used(replace(report, tables=Tables(results.root / "tables"))))

from contextlib import nullcontext

import pandas as pd
import pytest

from tests.unit.present.conftest import whole, write_cells
from tests.unit.questions.parsed_tables import write_parsed
from workflow_scripts.common.faults import InputError
from workflow_scripts.page.blocks import table_of
from workflow_scripts.study.parsed_columns import table_columns
from workflow_scripts.tables.results import MissingError, Tables
from workflow_scripts.tables.typed_tables import TableError


def test_an_absent_and_an_empty_table_are_missing(tmp_path):
    whole("limits", pd.DataFrame()).to_parquet(tmp_path / "limits.parquet")
    tables = Tables(tmp_path)
    for name, why in {"absent": "there is no table absent", "limits": "the table limits has no rows"}.items():
        with pytest.raises(MissingError, match=why):
            tables.need(name)
        assert list(tables.get(name, "a")) == ["a"]


def test_a_table_that_does_not_fit_its_schema_is_refused(tmp_path):
    table = whole("comparisons", pd.DataFrame({"ratio": [1.5], "scope": "the starts"}))
    for wrong, why in ((table.assign(ratio="x"), "column 'ratio' is not"), (table[["ratio"]], "'scope' is missing")):
        wrong.to_parquet(tmp_path / "comparisons.parquet")
        with pytest.raises(TableError, match=why):
            Tables(tmp_path).get("comparisons")
    table.assign(scope=2.5).to_parquet(tmp_path / "comparisons.parquet")
    assert list(Tables(tmp_path).get("comparisons")["scope"]) == ["2.5"]


def test_a_table_of_a_device_that_no_cell_has_is_refused(tmp_path):
    whole("cells", pd.DataFrame({"cell_id": ["a"], "gpu": "h200"})).to_parquet(tmp_path / "cells.parquet")
    for gpu in ("h200", "l40s"):
        whole("comparisons", pd.DataFrame({"ratio": [1.5], "gpu": gpu})).to_parquet(tmp_path / "comparisons.parquet")
        with nullcontext() if gpu == "h200" else pytest.raises(InputError, match="'l40s'"):
            Tables(tmp_path).need("comparisons")


def test_nulls_of_numbers_are_nan_and_of_flags_none_and_devices_measured_elsewhere_are_named_so(tmp_path):
    table = pd.DataFrame({"start": pd.array([1, None], "Int64"), "comparable": pd.array([True, None], "boolean")})
    table = table.assign(cell_id=["a", "b"], gpu="h200", repeat=0, source=["measured", "measured elsewhere"])
    whole("cells", table.drop(columns="repeat")).to_parquet(tmp_path / "cells.parquet")
    read = Tables(tmp_path).need("cells")
    assert read["start"].dtype == float
    assert read["start"].isna().tolist() == [False, True]
    assert read["comparable"].isna().tolist() == [False, True]
    assert list(read["gpu"]) == ["h200", "h200 (measured elsewhere)"]


def test_a_column_of_values_is_one_of_numbers_with_and_without_intervals():
    rows = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0], "b_low": [0.5, None, None], "a_low": float("nan")})
    headings = {"a": "A", "b": "B", "a_low": "A column without any value"}
    shown = table_of(rows.assign(a_high=rows["a_low"], b_high=[3.0, 3.0, None]), headings, "caption")
    assert shown.headings == ["A", "B"]
    assert shown.rows == [["1", "1 (0.5 to 3)"], ["2", "2 (at most 3)"], ["3", "3"]]
    assert shown.numeric == [True, True]


def test_a_cell_of_which_one_start_ended_ok_is_measured_and_its_facts_are_of_the_first_that_did(tmp_path):
    # Cell a failed in its first start, b in its second, and c has not run.
    cells = pd.DataFrame({"cell_id": [f"h200/vllm/m/w/{cell}" for cell in "aaabbc"], "comparable": True})
    cells = cells.assign(outcome=["engine_error", "ok", "ok", "ok", "timeout", "missing"])
    cells = cells.assign(start=[1, 2, 2, 1, 2, None], repeat=[None, 0, 1, 0, None, None])
    cells = cells.assign(reason=["CUDA error", *[None] * 5]).convert_dtypes()
    write_cells(cells, tmp_path)
    ids = ["h200/vllm/m/w/a", "h200/vllm/m/w/b"]
    facts = pd.DataFrame({"cell_id": [cell for cell in ids for _ in range(2)], "start": [1, 2] * 2, "repeat": 0})
    facts = facts.assign(time_s=[1.0, 2.0, 3.0, 4.0]).reindex(columns=[*table_columns()["trace"]])
    write_parsed(tmp_path / "h200", "trace", facts)
    tables = Tables(tmp_path, tmp_path)
    assert [cell[-1] for cell in tables.cells["cell_id"]] == ["a", "b", "c"]
    assert list(tables.cells["outcome"]) == ["ok", "ok", "missing"]
    assert [text[:7] for text in tables.cells["failed_starts"].dropna()] == ["start 1", "start 2"]
    assert list(tables.facts("trace", ids)["time_s"]) == [2.0, 3.0]
    # Only the facts of the cells that are asked for are read.
    assert list(tables.facts("trace", ids[1:])["time_s"]) == [3.0]
    for name, cell, why in (("trace", "c", r"trace\.parquet has no rows"), ("steps", "a", r"no steps\.parquet")):
        with pytest.raises(MissingError, match=why):
            tables.facts(name, [f"h200/vllm/m/w/{cell}"])

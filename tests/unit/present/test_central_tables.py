"""The tables to print, from made-up results."""

import pytest

from workflow_scripts.present.blocks import Fold, Table, Text
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.subjects.central_tables import central_tables
from workflow_scripts.study.study_file import load_study

RATE = "Output tokens per s (95 % interval)"


@pytest.fixture
def tables(results):
    root = results.root
    report = Report(load_study(results.study), Tables(root / "tables"), root, root, root, root / "report.html")
    return {table.caption: table for table in folded(report)}


def folded(report: Report) -> list[Table]:
    return [block.blocks[0] for block in central_tables(report) if isinstance(block, Fold)]


def test_a_large_study_shows_a_part_of_them_and_says_so(results, tables, monkeypatch):
    monkeypatch.setattr("workflow_scripts.present.subjects.central_tables.MOST_TABLES", 1)
    root = results.root
    report = Report(load_study(results.study), Tables(root / "tables"), root, root, root, root / "report.html")
    by_sequences = [table for caption, table in tables.items() if "by max-num-seqs" in caption]
    assert folded(report) == [by_sequences[0], next(t for c, t in tables.items() if "by block size" in c)]
    assert sum(isinstance(block, Text) for block in central_tables(report)) == 2


def rows(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]


def one(tables: dict[str, Table], *words: str) -> Table:
    (found,) = [table for caption, table in tables.items() if all(word in caption for word in words)]
    return found


def test_every_device_stands_by_max_num_seqs_with_its_interval_and_huggingface_below(tables):
    found = rows(one(tables, "max-num-seqs", "chat", "block size 16"))
    of_h200 = [row for row in found if row["Device"] == "h200"]
    assert [row["max-num-seqs"] for row in of_h200] == [
        *("1", "4", "16", "64", "256"),
        *(f"hf-static, batches of {size}, cache implementation dynamic" for size in (1, 16, 64)),
    ]
    assert " to " in of_h200[0][RATE]
    assert of_h200[0]["KV blocks"] == "144,000"
    assert of_h200[0]["Peak memory (GiB)"] == "55.88"
    assert of_h200[0]["Empty slots in held KV memory (%)"] != "–"
    # HuggingFace was not run on this device.
    assert [row["max-num-seqs"] for row in found if row["Device"] == "a100-sxm-80gb"] == ["1", "4", "16", "64", "256"]


def test_what_was_refused_stays_with_its_reason(tables):
    found = [
        row for row in rows(one(tables, "block size:", "at most 256 sequences")) if row["Device"] == "a100-sxm-80gb"
    ]
    assert [(row["Block size"], row[RATE] == "–") for row in found] == [
        *(("8", True), ("16", False), ("32", False), ("64", True))
    ]
    assert found[0]["Why there is no rate"].startswith("infeasible: ValueError: block size 8 is refused")
    assert (found[1]["Why there is no rate"], found[3]["Why there is no rate"]) == ("–", "missing")


def test_a_study_that_varies_neither_has_no_such_table(results, tmp_path):
    tables = Tables(results.root / "tables")
    one_cell = tables.cells[tables.cells["cell_id"] == tables.cells["cell_id"].iloc[0]]
    one_cell.to_parquet(tmp_path / "cells.parquet")
    report = Report(load_study(results.study), Tables(tmp_path), *[tmp_path] * 3, tmp_path / "report.html")
    with pytest.raises(MissingError, match="no two cells of an engine differ only in max-num-seqs or the block size"):
        list(central_tables(report))

"""The tables to print, from made-up results."""

import pandas as pd
import pytest

from tests.unit.present.conftest import report_of
from workflow_scripts.analyse.tables import read_table, write_table
from workflow_scripts.present import figures
from workflow_scripts.present.blocks import Fold, Table
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.subjects import central_tables as module
from workflow_scripts.present.subjects.central_tables import central_tables, knob_tables

RATES, TOTAL, BLOCKS = range(3)


@pytest.fixture
def root(results):
    return results.root


@pytest.fixture
def tables(root):
    return dict(knob_tables(Tables(root / "tables")))


def changed(root, folder, name, change):
    """The tables of the study with another table of this name."""
    for path in (root / "tables").glob("*.parquet"):
        (folder / path.name).symlink_to(path)
    (folder / f"{name}.parquet").unlink()
    write_table(change(read_table(root / "tables" / f"{name}.parquet")), folder / f"{name}.parquet")
    return dict(knob_tables(Tables(folder)))


def rows(table: Table, **names: str) -> list[dict[str, str]]:
    """The rows with these names."""
    found = [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]
    return [row for row in found if all(row[name] == value for name, value in names.items())]


def test_each_device_has_a_row_with_a_rate_and_its_interval_at_each_value(tables):
    table = tables["max_num_seqs"][RATES]
    assert table.headings == [
        *("Device / max-num-seqs", "Other settings", "1", "4", "16", "64", "256", "Why there is no rate")
    ]
    assert "vllm, llama-3.1-8b-instruct, chat" in table.note
    found = rows(table, **{"Other settings": "block size 16"})
    assert [row["Device / max-num-seqs"] for row in found] == ["h200", "a100-sxm-80gb", "l40s"]
    assert all("\u00a0to\u00a0" in row["1"] for row in found)
    memory = tables["block_size"][BLOCKS - 1]
    assert memory.caption.startswith("KV blocks")
    assert rows(memory, **{"Other settings": "at most 64 sequences"})[0]["16"] == "144,000"
    # HuggingFace has its batches instead; it was not run on the A100.
    batches = tables["batch_size"][RATES]
    assert [row["Device / batch size"] for row in rows(batches)] == ["h200", "l40s"]


def test_what_was_refused_stays_with_its_reason_and_what_is_missing_is_predicted(root, tables, tmp_path):
    all_sequences = {"Other settings": "at most 256 sequences"}
    [of_a100] = rows(tables["block_size"][RATES], **{"Device / block size": "a100-sxm-80gb"}, **all_sequences)
    assert (of_a100["8"], of_a100["64"]) == ("infeasible", "missing")
    assert of_a100["Why there is no rate"].startswith("8: ValueError: block size 8 is refused")
    [of_l40s] = rows(tables["block_size"][RATES], **{"Device / block size": "l40s"}, **all_sequences)
    assert of_l40s["64"] == "timeout"
    assert of_l40s["Why there is no rate"].endswith("64: not done after 1800 s")

    def predict(predictions: pd.DataFrame) -> pd.DataFrame:
        lost = predictions["cell_id"].str.contains("a100") & predictions["cell_id"].str.contains("bs64-seqs256")
        return predictions.assign(predicted=predictions["predicted"].mask(lost, 1234.0))

    predicted = changed(root, tmp_path, "predictions", predict)["block_size"][RATES]
    [of_a100] = rows(predicted, **{"Device / block size": "a100-sxm-80gb"}, **all_sequences)
    assert of_a100["64"] == "1,234 predicted"


def test_published_rates_have_rows_of_their_own(tables):
    found = rows(tables["max_num_seqs"][TOTAL], **{"Other settings": "block size 16"})
    assert [row["Device / max-num-seqs"] for row in found] == ["h200", "h200 (published)"]
    assert [row["Workload"] for row in found][1] == "the source's own"
    assert found[1]["4"] == "100,000"


def test_imported_rates_are_labelled(root, tmp_path):
    found = changed(root, tmp_path, "cells", lambda cells: cells.assign(source="imported"))
    assert {row["Device / batch size"] for row in rows(found["batch_size"][RATES])} == {
        *("h200 (imported)", "l40s (imported)")
    }


def test_the_fastest_is_marked_as_the_analysis_decides(root, tmp_path):
    names = {"Device / max-num-seqs": "h200", "Other settings": "block size 16"}

    def marked(fastest: str, decided: bool) -> dict[str, str]:
        folder = tmp_path / f"{fastest}-{decided}"
        folder.mkdir()
        tables = changed(
            root, folder, "effects", lambda effects: effects.assign(fastest=fastest, fastest_decided=decided)
        )
        [row] = rows(tables["max_num_seqs"][RATES], **names)
        marks = (module.BEST, module.PERHAPS_BEST)
        return {value: mark for value, text in row.items() for mark in marks if f"\u00a0{mark} (" in text}

    assert marked("256", decided=True) == {"256": "★"}
    assert marked("64, 256", decided=True) == {"64": "★", "256": "★"}
    assert marked("16, 64, 256", decided=False) == {"16": "☆", "64": "☆", "256": "☆"}


def test_a_large_study_shows_some_rows_and_says_so(root, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    table = dict(knob_tables(Tables(root / "tables")))["max_num_seqs"][RATES]
    assert len(table.rows) == 2
    assert "2 of 12 rows" in table.note


def test_they_are_shown_and_written_as_markdown(results, tmp_path):
    report = results.report
    assert [type(block) for block in central_tables(report)] == [Table, Fold] * 3
    figures.write_tables(report.tables, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"by_{knob}.md" for knob in module.KNOBS}
    heading, rule, *_, of_h200 = (tmp_path / "by_max_num_seqs.md").read_text(encoding="utf-8").splitlines()[4:10]
    assert heading.startswith("| Device / max-num-seqs | Other settings | 1 | 4 |")
    assert rule.startswith("| --- | --- | ---: | ---: |")
    assert of_h200.startswith("| h200 | block size 16 | ")


def test_a_study_that_varies_no_such_knob_has_no_such_table(root, tmp_path):
    tables = Tables(root / "tables")
    one_cell = tables.cells[tables.cells["cell_id"] == tables.cells["cell_id"].iloc[0]]
    one_cell.to_parquet(tmp_path / "cells.parquet")
    with pytest.raises(MissingError, match=r"no two cells .* max-num-seqs, block size, batch"):
        list(central_tables(report_of(tmp_path)))

"""What a reader saves from the page: figures as SVG, tables as CSV, and all data."""

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.present.synthetic import SCRIPT
from workflow_scripts.study.outcome import WHAT_TO_DO
from workflow_scripts.tables.measurements import read_measurements

pytestmark = pytest.mark.needs_tool("chromium")

CELL = "l40s/vllm/llama-3.1-8b-instruct/chat/bs16-seqs16-len4096"
SVG = "{http://www.w3.org/2000/svg}"


def button(place: str, kind: str) -> str:
    """The button below `place` that saves as this kind."""
    return f"[...document.querySelectorAll('{place} .save button')].find((b) => b.textContent === '{kind}')"


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_every_table_is_saved_as_csv(tab, report, tmp_path):
    tab.open(report)
    assert tab.evaluate("document.querySelectorAll('#view-report figure.table:not(:has(.save))').length") == 0
    rows = rows_of(tab.download(button("#limits", "CSV"), tmp_path))
    assert len({len(row) for row in rows}) == 1
    caption = "Cells that failed or did not run, by reason"
    table = f"[...document.querySelectorAll('#cells figure')].find((f) => f.textContent.includes('{caption}'))"
    headings, *cells = rows_of(tab.download(f"{table}.querySelector('.save button')", tmp_path))
    assert headings[:4] == ["Outcome", "Reason", "What you do", "Cells"]
    assert WHAT_TO_DO["timeout"] in [row[2] for row in cells if row[0] == "timeout"]
    assert any(SCRIPT in row[1] for row in cells)


def test_all_data_are_saved_as_the_tables_have_them(tab, report, tmp_path):
    tab.open(report)
    saved = tab.download("document.querySelector('#take-away button.plain')", tmp_path)
    assert saved.name == "kvsweep-study-synthetic.json"
    data = json.loads(saved.read_text(encoding="utf-8"))
    cells = read_measurements(report.parent / "tables")
    assert data["cells"]["cell_id"] == list(cells["cell_id"].drop_duplicates())
    repeats = pd.DataFrame(data["repeats"])
    known = cells[cells["repeat"].notna()]
    assert repeats["output_tokens_per_s"].to_numpy() == pytest.approx(known["output_tokens_per_s"], rel=1e-4)
    assert list(repeats["cell"].map(dict(enumerate(data["cells"]["cell_id"])))) == list(known["cell_id"])
    assert CELL in data["timelines"]
    assert len(data["timelines"][CELL]["requests"]["queued_s"]) == 64 * 3

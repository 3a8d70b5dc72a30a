"""The recipe for a figure with its table in docs/extending.md, followed as it stands."""

import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.recipes import blocks, recipe
from tests.unit.questions.made import made
from workflow_scripts.page.report import Subject
from workflow_scripts.present import page
from workflow_scripts.present.figures import draw_figures
from workflow_scripts.questions import all_tables
from workflow_scripts.questions.sections import SECTIONS
from workflow_scripts.questions.table_docs import index
from workflow_scripts.tables import typed_tables as tables

NAME = "workflow_scripts.questions.longest_waits.section"


def module_of(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the recipe shows."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, "docs/extending.md", "exec"), module.__dict__)
    return module


@pytest.fixture
def subject(monkeypatch):
    """The recipe's subject, listed as the recipe says."""
    text = recipe("A figure with its table")
    assert f"`{NAME.replace('.', '/')}.py`" in text.partition("```")[0]
    module = module_of(NAME, blocks(text, "python")[0], monkeypatch)
    subject: Subject = module.SUBJECT
    monkeypatch.setattr(page, "SECTIONS", [*SECTIONS, subject])
    monkeypatch.setattr("workflow_scripts.present.figures.FIGURES", {draw.__name__: draw for draw in subject.figures})
    return subject


def test_the_recipe_for_a_figure_with_its_table_works(results, subject, tmp_path):
    drawn = draw_figures(results.tables, tmp_path / "figures")
    assert "missing" not in drawn["longest_waits"]
    assert (tmp_path / "figures" / "longest_waits.rst").read_text(encoding="utf-8").startswith("The 99th percentile")
    assert results.write_page(tmp_path / "report.html", figures=tmp_path / "figures") == 0
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    section = html[html.index('<section id="longest-waits"') :]
    assert '<figure id="figure-longest_waits">' in section
    assert 'aria-label="The longest waits"' in section
    assert '<p class="told">The slowest requests wait 400 ms.' in section
    assert [answer.verdict for answer in subject.answers(results.report)] == ["Yes"]


def test_the_recipe_for_a_table_works(results, tmp_path, monkeypatch):
    _, code, listed = blocks(recipe("A figure with its table"), "python")
    monkeypatch.setattr(tables, "TABLE_SCHEMAS", dict(tables.TABLE_SCHEMAS))
    monkeypatch.setattr(all_tables, "_MAKERS", all_tables._MAKERS | eval(f"{{{listed}}}"))
    module_of("workflow_scripts.questions.longest_waits.table", code, monkeypatch)
    folder = Path(shutil.copytree(results.root / "tables", tmp_path / "tables"))
    found = made(results.study, folder, "waits")
    assert found["longest_wait_s"].max() == tables.read_table(folder / "repeats.parquet")["ttft_s_p99"].max()
    assert "## waits\n\nOne row per cell that was measured.\n" in index()

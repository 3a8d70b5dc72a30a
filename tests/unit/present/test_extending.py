"""The recipe for a figure with its table in docs/extending.md, followed as it stands."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.present.conftest import Results
from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.present import page
from workflow_scripts.present.figures import draw_figures
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import Tables
from workflow_scripts.present.subject import Subject
from workflow_scripts.present.subjects import SUBJECTS
from workflow_scripts.study.study_file import load_study

NAME = "workflow_scripts.present.subjects.longest_waits"


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Subject:
    """The recipe's subject, listed as the recipe says."""
    recipe = (CHECKOUT / "docs" / "extending.md").read_text(encoding="utf-8")
    section = recipe[recipe.index("## A figure with its table") :]
    code = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert code
    assert f"{NAME.replace('.', '/')}.py" in section[: code.start()]
    module = ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    exec(compile(code[1], "docs/extending.md", "exec"), module.__dict__)
    subject: Subject = module.SUBJECT
    monkeypatch.setattr(page, "SUBJECTS", [*SUBJECTS, subject])
    monkeypatch.setattr("workflow_scripts.present.figures.FIGURES", {figure.name: figure for figure in subject.figures})
    return subject


def test_the_recipe_for_a_figure_with_its_table_works(results: Results, subject: Subject, tmp_path: Path) -> None:
    drawn = draw_figures(Tables(results.root / "tables"), tmp_path / "figures")
    assert "missing" not in drawn["longest_waits"]
    assert (tmp_path / "figures" / "longest_waits.rst").read_text(encoding="utf-8").startswith("The time that 99 %")
    assert results.write_page(tmp_path / "report.html", figures=tmp_path / "figures") == 0
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    section = html[html.index('<section id="longest-waits"') :]
    assert '<figure id="figure-longest_waits">' in section
    assert "A falling line means" in section
    assert 'aria-label="The longest waits"' in section
    [finding] = subject.findings
    root = results.root
    report = Report(load_study(results.study), Tables(root / "tables"), root, root, root, root / "report.html")
    [block] = finding(report)
    assert "wait longest" in str(block)

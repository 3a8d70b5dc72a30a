from pathlib import Path

import pytest

from tests.unit.made_studies import study_content
from tests.unit.present.conftest import report_of, told
from tests.unit.questions.environments.test_environment_changes import CELLS
from workflow_scripts.present.first_screen import first_screen
from workflow_scripts.questions.environments.section import SUBJECT, changed_by_itself, environments, verdicts
from workflow_scripts.questions.environments.table import environment_changes
from workflow_scripts.questions.knobs.table import knob_effects
from workflow_scripts.study.study import Study
from workflow_scripts.tables.measurements import write_measurements
from workflow_scripts.tables.results import MissingError, Tables
from workflow_scripts.tables.typed_tables import write_table


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    write_measurements(CELLS, tmp_path)
    write_table(knob_effects(CELLS, 2.0), tmp_path / "knobs.parquet")
    write_table(environment_changes(CELLS), tmp_path / "environments.parquet")
    return tmp_path


def test_the_section_and_the_first_screen_tell_what_changed_by_itself_and_the_largest_ratio(tables):
    report = report_of(tables)
    ((verdict, sentence),) = told(verdicts, report)
    assert verdict == "0.6 times"
    assert "vllm-0.20 instead of default: 0.6 times" in sentence
    ((verdict, sentence),) = told(changed_by_itself, report)
    assert verdict == "by itself"
    for change in ("chunked prefill false → true", "num gpu blocks 1000 → 899", "start (s) 10 → 20"):
        assert change in sentence
    assert "vllm 0.32.0" not in sentence
    (answer,) = [answer for answer in first_screen(report).answers if answer.section == "environments"]
    first, _, by_itself = answer.lines[0].sentence.partition(" (0.")
    assert all(part in first for part in ("vllm-0.20 instead of default", "h200", "2 changes"))
    assert first.endswith(" 0.6")
    assert "chunked prefill false → true" in by_itself


def test_the_figure_has_a_dot_for_each_cell_and_environment(tables, axes_of):
    plot = environments(Tables(tables))
    ax = axes_of(plot)
    dots = [x for line in ax.lines if line.get_marker() not in ("", "None", None) for x in line.get_xdata()]
    assert sorted(float(x) for x in dots) == pytest.approx([0.6, 0.6])
    assert [handle.get_label() for handle in plot.handles] == ["vllm-0.20", "95 % interval"]


def test_a_study_without_other_environments_has_no_such_section(tmp_path):
    assert not SUBJECT.is_in(Study.model_validate(study_content({"knobs": {}})))
    assert SUBJECT.is_in(Study.model_validate(study_content({"knobs": {}, "environment": ["default", "vllm-0.25.1"]})))
    write_table(knob_effects(CELLS[CELLS["engine"] == "vllm"], 2.0), tmp_path / "knobs.parquet")
    with pytest.raises(MissingError, match="two environments"):
        environments(Tables(tmp_path))

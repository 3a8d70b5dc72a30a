"""The command that measures a cell, where its engine does not matter."""

import sys
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.grid import Cell, expand
from workflow_scripts.measure import cell as command
from workflow_scripts.paths import StudyPaths
from workflow_scripts.study import Study, load_study

DEMO = Path(__file__).parents[3] / "config/studies/demo.yaml"


def test_a_full_disk_leaves_a_last_line_and_no_half_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load_study(DEMO)
    one, paths = expand(study)[0], StudyPaths(tmp_path, study.name)

    def on_a_full_disk(_: Study, cell: Cell, paths: StudyPaths, *__: Any) -> int:
        (paths.cell(cell) / "raw.partial").mkdir(parents=True)
        print("INFO half a li", end="", file=sys.stderr)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "measure_cell", on_a_full_disk)
    assert command.main(["--study", str(DEMO), "--results", str(tmp_path), "--cell", one.id]) == 1
    assert list(paths.cell(one).iterdir()) == []
    assert capsys.readouterr().err == "INFO half a li\n[Errno 28] No space left on device\n"

"""The command that measures a cell, in cases that do not depend on the engine."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.measure import cell as command
from workflow_scripts.measure.forkserver import Ended
from workflow_scripts.study.definition import cell_definition, model_key, resolved_models, workload_key
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import Study, load_study

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


@pytest.mark.parametrize("node", [None, "n-7"])
def test_on_the_wrong_device_a_cell_has_no_outcome_not_in_the_last_attempt_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], node: str | None
) -> None:
    study = load_study(DEMO)
    one, paths = expand(study)[0], StudyPaths(tmp_path, study.name)
    definition = cell_definition(study, one, resolved_models(study))
    prepared = paths.model(one.model, model_key(definition.model)) / "config.json"
    for file in (prepared, paths.workload(one.model, one.workload, workload_key(definition))):
        file.parent.mkdir(parents=True)
        file.touch()

    def on_another_device(_: str, arguments: list[str], *__: Any, **___: Any) -> Ended:
        reason = "h200 was asked for, and there is no NVIDIA GPU here"
        record = {"outcome": "invalid", "reason": reason, "wrong_device": True}
        (Path(arguments[0]).parent / "measured.json").write_text(json.dumps(record))
        return Ended(0)

    monkeypatch.setattr(command, "run_forked", on_another_device)
    monkeypatch.setenv("SLURMD_NODENAME", node) if node else monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    for attempt in ("1", "3"):
        called = ["--study", str(DEMO), "--results", str(tmp_path), "--cell", one.id]
        assert command.main([*called, "--attempt", attempt, "--attempts", "3"]) == command.WRONG_DEVICE
        said = capsys.readouterr().err
        assert said.startswith("h200 was asked for, and there is no NVIDIA GPU here; attempt")
        assert list(paths.cell(one).iterdir()) == []
    noted = [path.name for path in paths.wrong_nodes(one.gpu).glob("*")]
    assert noted == ([node] if node else [])

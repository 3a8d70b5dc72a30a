"""What a batch measures, and with which exit code it ends; the command that measures a cell is a stand-in."""

import subprocess
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from workflow_scripts.cluster.batches import Batch, write_batch
from workflow_scripts.measure import batch as command
from workflow_scripts.measure.cell import WRONG_DEVICE
from workflow_scripts.study.paths import HERE
from workflow_scripts.study.rounds import CellStart

DEMO = Path(__file__).parents[3] / "config/studies/demo.yaml"
CELLS = ("cpu-all/a", "cpu-all/b", "cpu-all/c")


class Round:
    """A round of three cells, the words that measuring each was called with, and the exit codes that it gives."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, starts: object) -> None:
        self.folder, self.codes = folder, dict.fromkeys(CELLS, 0)
        self.called: list[dict[str, str | bool]] = []
        study = yaml.safe_load(DEMO.read_text()) | {"starts": starts}
        (folder / "study.yaml").write_text(yaml.safe_dump(study))
        self.on(HERE)
        monkeypatch.setattr(subprocess, "run", self.measure_cell)

    def on(self, gpu: str) -> None:
        """Write the round's batch: that of this machine, or of a GPU type of a cluster."""
        (self.folder / "batch.json").unlink(missing_ok=True)
        of = Batch(gpu, "0a", 4, tuple(CellStart(cell, 2) for cell in CELLS), 6)
        write_batch(self.folder / "batch.json", of)

    def measure_cell(self, words: list[str], **_: Any) -> SimpleNamespace:
        args = dict(pairwise(words))
        self.called.append({"again": "--again" in words} | {n: args[f"--{n}"] for n in ("cell", "round", "position")})
        return SimpleNamespace(returncode=self.codes[args["--cell"]])

    def measure(self, *attempt: str) -> int:
        self.called.clear()
        places = ["--study", str(self.folder / "study.yaml"), "--results", str(self.folder / "results")]
        return command.main([*places, "--batch", str(self.folder / "batch.json"), *attempt])


@pytest.fixture
def of_several(tmp_path, monkeypatch):
    return Round(tmp_path, monkeypatch, starts=3)


def test_cells_are_measured_in_order_and_the_first_once_more_at_the_end(of_several):
    assert of_several.measure() == 0
    assert [(call["cell"], call["round"], call["position"], call["again"]) for call in of_several.called] == [
        *((cell, "4", str(place), False) for place, cell in enumerate(CELLS, start=6)),
        (CELLS[0], "4", "9", True),
    ]


def test_with_one_start_of_each_cell_nothing_is_measured_twice_and_a_failure_is_an_error(tmp_path, monkeypatch):
    only = Round(tmp_path, monkeypatch, starts=1)
    assert only.measure() == 0
    assert [call["cell"] for call in only.called] == [*CELLS]
    only.codes[CELLS[1]] = 1
    assert only.measure() == 1


def test_a_cell_that_fails_stops_no_other_cell_and_no_later_round(of_several, capsys):
    of_several.codes[CELLS[0]] = 1
    assert of_several.measure("--attempts", "2") == 1  # another attempt follows
    assert [call["cell"] for call in of_several.called] == [*CELLS]
    assert of_several.measure("--attempt", "2", "--attempts", "2") == 0
    # The first cell that was measured shows the drift of what was.
    assert [(call["cell"], call["again"]) for call in of_several.called[3:]] == [(CELLS[1], True)]
    assert of_several.called[3]["position"] == "9"
    assert "1 of 3 cells " in capsys.readouterr().err


def test_on_a_node_with_the_wrong_device_no_further_cell_is_tried(of_several):
    of_several.on("h200")
    of_several.codes[CELLS[1]] = WRONG_DEVICE
    assert of_several.measure("--attempts", "2") == 1
    assert [call["cell"] for call in of_several.called] == [*CELLS[:2]]


def test_a_device_that_this_machine_lacks_stops_no_cell_and_one_measured_cell_shows_no_drift(of_several):
    of_several.codes[CELLS[0]] = WRONG_DEVICE
    assert of_several.measure() == 0
    assert [call["cell"] for call in of_several.called] == [*CELLS, CELLS[1]]
    of_several.codes = dict.fromkeys(CELLS, 1) | {CELLS[1]: 0}
    assert of_several.measure() == 0
    assert [call["cell"] for call in of_several.called] == [*CELLS]

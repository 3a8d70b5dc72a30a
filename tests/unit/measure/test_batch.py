"""What a batch measures, and with which exit code it ends; the command that measures a cell is a stand-in."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.made_studies import fixed, write_study
from workflow_scripts.cluster.batches import Batch, write_batch
from workflow_scripts.measure import batch as command
from workflow_scripts.measure.cell import WRONG_DEVICE
from workflow_scripts.study.grid import expand
from workflow_scripts.study.paths import HERE, StudyPaths
from workflow_scripts.study.rounds import CellStart
from workflow_scripts.study.study_file import load_study

# Two workloads at each of two block sizes: two starts of an engine.
WORKLOADS = {"chat": fixed(), "short": fixed(num_prompts=2)}


class Round:
    """A round of four cells, the words that measuring was called with, and the exit codes that each cell gives."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, starts: object, **changes: object) -> None:
        sweep = {"gpu": "cpu-all", "workload": [*WORKLOADS], "knobs": {"block_size": [16, 32], "max_num_seqs": 1}}
        self.folder = folder
        self.file = write_study(folder, sweep, workloads=WORKLOADS, starts=starts, **changes)
        self.study = load_study(self.file)
        cells = [cell.id for cell in expand(self.study)]
        # In an order in which the second and the third cell have different engines.
        self.cells = sorted(cells, key=lambda cell: (cell.split("/")[3], cell))
        self.codes, self.ended = dict.fromkeys(self.cells, 0), set[str]()
        self.called: list[dict[str, Any]] = []
        self.on(HERE)
        monkeypatch.setattr(subprocess, "run", self.measure_cell)
        monkeypatch.setattr(command, "without_outcome", self.without_outcome)

    def on(self, gpu: str) -> None:
        """Write the round's batch: that of this machine, or of a GPU type of a cluster."""
        (self.folder / "batch.json").unlink(missing_ok=True)
        of = Batch(gpu, "0a", 4, tuple(CellStart(cell, 2) for cell in self.cells), 6)
        write_batch(self.folder / "batch.json", of)

    def measure_cell(self, words: list[str], **_: Any) -> SimpleNamespace:
        args: dict[str, list[str]] = {}
        for word in words[4:]:
            args.setdefault(word, []) if word.startswith("--") else args[[*args][-1]].append(word)
        cells = args["--cell"]
        assert args["--start"] == ["2"] * len(cells)
        place = {"round": args["--round"][0], "position": args["--position"][0]}
        self.called.append({"cells": cells, **place})
        self.ended |= {cell for cell in cells if not self.codes[cell]}
        return SimpleNamespace(returncode=max(self.codes[cell] for cell in cells))

    def without_outcome(self, starts: list[CellStart], *_: object) -> list[CellStart]:
        return [start for start in starts if start.cell not in self.ended]

    def measure(self, *attempt: str) -> int:
        self.called.clear()
        places = ["--study", str(self.file), "--results", str(self.folder / "results")]
        return command.main([*places, "--batch", str(self.folder / "batch.json"), *attempt])

    @property
    def sessions(self) -> list[list[str]]:
        return [call["cells"] for call in self.called]


@pytest.fixture
def of_several(tmp_path, monkeypatch):
    return Round(tmp_path, monkeypatch, starts=3)


def test_cells_that_differ_in_their_workload_share_a_start(of_several):
    a, b, c, d = of_several.cells
    assert of_several.measure() == 0
    assert [tuple(call.values()) for call in of_several.called] == [
        ([a, c], "4", "6"),
        ([b, d], "4", "8"),
    ]


def test_a_study_may_give_each_cell_a_start_of_its_own(tmp_path, monkeypatch):
    alone = Round(tmp_path, monkeypatch, starts=3, share_starts=False)
    assert alone.measure() == 0
    assert alone.sessions == [[cell] for cell in alone.cells]
    assert [call["position"] for call in alone.called] == ["6", "7", "8", "9"]


def test_with_one_start_of_each_cell_a_failure_is_an_error(tmp_path, monkeypatch):
    only = Round(tmp_path, monkeypatch, starts=1)
    assert only.measure() == 0
    assert len(only.called) == 2
    only.ended.clear()
    only.codes[only.cells[1]] = 1
    assert only.measure() == 1


def test_a_cell_that_fails_stops_no_other_cell_and_no_later_round(of_several, capsys):
    a, b, c, d = of_several.cells
    of_several.codes[a] = 1
    assert of_several.measure("--attempts", "2") == 1  # another attempt follows
    assert of_several.sessions == [[a, c], [b, d]]
    assert of_several.measure("--attempt", "2", "--attempts", "2") == 0
    log = StudyPaths(of_several.folder / "results", of_several.study.name).log(a, 2)
    said = capsys.readouterr()
    assert str(log) in said.out
    assert "1 of 4 cells " in said.err


def test_on_a_node_with_the_wrong_device_no_further_cell_is_tried(of_several):
    of_several.on("h200")
    of_several.codes[of_several.cells[2]] = WRONG_DEVICE
    assert of_several.measure("--attempts", "2") == 1
    assert len(of_several.called) == 1


def test_a_device_that_this_machine_lacks_stops_no_cell(of_several):
    a, b, c, d = of_several.cells
    of_several.codes[a] = of_several.codes[c] = WRONG_DEVICE
    assert of_several.measure() == 0
    assert of_several.sessions == [[a, c], [b, d]]

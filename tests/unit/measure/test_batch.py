"""What a batch measures, what its manifest says, and with which exit code it ends; the command that measures a cell is
a stand-in."""

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.made_studies import MadeStudy, end_cell, fixed
from workflow_scripts.cluster.batches import Batch, Round
from workflow_scripts.common.files import read_json
from workflow_scripts.measure import batch as command
from workflow_scripts.measure.cell import WRONG_DEVICE
from workflow_scripts.measure.provenance import now_in_utc
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.rounds import CellStart

# Two workloads at each of two block sizes: two starts of an engine.
WORKLOADS = {"chat": fixed(), "short": fixed(num_prompts=2)}


class Measured:
    """A round of four cells, the words that measuring was called with, and the exit codes that each cell gives."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, starts: object, **changes: object) -> None:
        knobs = {"block_size": [16, 32], "max_num_seqs": 1}
        sweep = {"gpu": changes.pop("gpu", "cpu-all"), "workload": [*WORKLOADS], "knobs": knobs}
        self.folder, self.made = folder, MadeStudy(folder, sweep, workloads=WORKLOADS, starts=starts, **changes)
        self.of, self.paths = Cells(self.made.study), self.made.paths
        self.batch = self.batch_of(2)
        self.cells = [start.cell for start in self.batch.starts]
        self.codes, self.called = dict.fromkeys(self.cells, 0), list[dict[str, Any]]()
        run = subprocess.run
        monkeypatch.setattr(
            subprocess, "run", lambda words, **how: (self.measure_cell if "--cell" in words else run)(words, **how)
        )

    def batch_of(self, number: int) -> Batch:
        round_ = Round(number, (CellStart(cell, number) for cell in self.of.cells), self.of)
        ((gpus, part),) = round_.roots(True, {*map(self.of.needs, self.of.cells.values())})
        return round_.batch(gpus, part)

    def measure_cell(self, words: list[str], **_: Any) -> SimpleNamespace:
        args: dict[str, list[str]] = {}
        for word in words[4:]:
            args.setdefault(word, []) if word.startswith("--") else args[[*args][-1]].append(word)
        cells, number = args["--cell"], int(args["--round"][0])
        self.called.append({"cells": cells, "round": number, "position": int(args["--position"][0])})
        for cell, start in zip(cells, map(int, args["--start"]), strict=True):
            if not self.codes[cell]:
                self.end(cell, start, number)
        return SimpleNamespace(returncode=max(self.codes[cell] for cell in cells))

    def end(self, cell: str, start: int, number: int, **changes: Any) -> None:
        record = {"start": {"start": start, "round": number}, "provenance": {"ended_at": now_in_utc()}}
        end_cell(self.made.study, self.paths, self.of.cells[cell], start, **record | changes)

    def measure(self, *words: str) -> int:
        self.called.clear()
        batch = self.batch
        names = ["--gpus", batch.gpus, "--round", str(batch.round), "--batch", batch.name]
        return command.main([*self.made.options, *names, "--out", str(self.folder / "manifest.json"), *words])

    @property
    def sessions(self) -> list[list[str]]:
        return [call["cells"] for call in self.called]

    @property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.folder / "manifest.json")


@pytest.fixture
def of_several(tmp_path, monkeypatch):
    """The second round of a study; the first was measured just before."""
    several = Measured(tmp_path, monkeypatch, starts=3)
    for cell in several.cells:
        several.end(cell, 1, 1)
    return several


def test_cells_that_differ_in_their_workload_share_a_start(of_several):
    a, b, c, d = of_several.cells
    assert of_several.measure() == 0
    assert [tuple(call.values()) for call in of_several.called] == [([a, b], 2, 1), ([c, d], 2, 3)]
    assert {one["outcome"] for one in of_several.manifest.values()} == {"ok"}
    assert of_several.manifest.keys() == {f"{cell}/start-2" for cell in of_several.cells}


def test_what_has_its_outcome_is_left_out_and_the_rest_keeps_its_place(of_several):
    a, b, c, d = of_several.cells
    of_several.end(a, 2, 2)
    before = of_several.paths.outcome(a, 2).read_bytes()
    assert of_several.measure() == 0
    # The round goes on; one of its cells was measured in it.
    assert [tuple(call.values()) for call in of_several.called] == [([b], 2, 2), ([c, d], 2, 3)]
    assert of_several.paths.outcome(a, 2).read_bytes() == before
    assert of_several.measure() == 0
    assert of_several.called == []


def test_a_failed_start_is_tried_again_in_the_first_attempt_alone(of_several):
    failed, *others = of_several.cells
    for cell in of_several.cells:
        of_several.end(cell, 2, 2, outcome="engine_error" if cell == failed else "ok")
    assert of_several.measure("--attempt", "2", "--attempts", "2") == of_several.measure("--rerun", "none") == 0
    assert of_several.called == []
    assert of_several.measure() == 0
    # In a round of its own, because it was measured in this one before.
    assert [tuple(call.values())[:2] for call in of_several.called] == [([failed], 2)]
    assert Outcome.read(of_several.paths.start(failed, 2) / "attempt-1/outcome.json").outcome == "engine_error"
    assert of_several.measure("--rerun", others[0]) == 0
    assert of_several.sessions == [[others[0]]]


def test_a_study_may_give_each_cell_a_start_of_its_own(tmp_path, monkeypatch):
    alone = Measured(tmp_path, monkeypatch, starts=3, share_starts=False)
    assert alone.measure() == 0
    assert alone.sessions == [[cell] for cell in alone.cells]
    assert [call["position"] for call in alone.called] == [1, 2, 3, 4]


def test_with_one_start_of_each_cell_a_failure_is_an_error_and_leaves_no_manifest(tmp_path, monkeypatch):
    only = Measured(tmp_path, monkeypatch, starts=1)
    only.batch = only.batch_of(1)
    only.codes[only.cells[1]] = 1
    assert only.measure() == 1
    assert not (tmp_path / "manifest.json").exists()
    only.codes[only.cells[1]] = 0
    assert only.measure() == 0
    assert only.sessions == [[only.cells[1]]]


def test_a_cell_that_fails_stops_no_other_cell_and_no_later_round(of_several, capsys):
    a, b, c, d = of_several.cells
    of_several.codes[a] = 1
    assert of_several.measure("--attempts", "2") == 1  # another attempt follows
    assert of_several.sessions == [[a, b], [c, d]]
    assert of_several.measure("--attempt", "2", "--attempts", "2") == 0
    assert of_several.sessions == [[a]]
    said = capsys.readouterr()
    assert str(of_several.paths.log(a, 2)) in said.out
    assert "1 of 4 cells " in said.err
    assert [folder for folder, one in of_several.manifest.items() if one is None] == [f"{a}/start-2"]


def test_on_the_wrong_device_no_cell_is_tried_but_one_of_several_stops_none(of_several, tmp_path, monkeypatch):
    of_several.codes = dict.fromkeys(of_several.cells, WRONG_DEVICE)
    assert of_several.measure("--attempts", "2") == 1
    assert len(of_several.called) == 1
    (tmp_path / "mixed").mkdir()
    mixed = Measured(tmp_path / "mixed", monkeypatch, starts=3, gpu=["cpu-1core", "cpu-all"])
    mixed.codes = dict.fromkeys(mixed.cells, WRONG_DEVICE)
    assert mixed.measure() == 0
    assert len(mixed.called) == 4


def test_a_batch_that_the_study_does_not_have_is_an_error(of_several, capsys):
    assert of_several.measure("--batch", "x1b-00000000") == 2
    assert "has no batch x1b-00000000" in capsys.readouterr().err


def test_sigterm_ends_a_batch_after_the_present_start_of_an_engine(tmp_path, monkeypatch, capsys):
    once, run = Measured(tmp_path, monkeypatch, starts=2), subprocess.run
    once.batch = once.batch_of(1)

    def killed(words: list[str], **how: Any) -> Any:
        if "--cell" in words:
            os.kill(os.getpid(), signal.SIGTERM)
        return run(words, **how)

    monkeypatch.setattr(subprocess, "run", killed)
    assert once.measure() == 1
    assert [len(cells) for cells in once.sessions] == [2]
    monkeypatch.setattr(subprocess, "run", run)
    assert once.measure() == 0
    assert [len(cells) for cells in once.sessions] == [2]
    # The second start of an engine would say how long the rest takes; the only one of this call does not.
    assert capsys.readouterr().out.count("of round 1]") == 4

"""Which starts that have ended are measured again, and where the old ones are kept."""

import pytest

from tests.unit.made_studies import end_cell, fixed, write_study
from workflow_scripts.common.faults import InputError
from workflow_scripts.study import reruns
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.grid import expand
from workflow_scripts.study.outcome import outcome_in
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.reruns import check_rerun, set_aside, to_rerun
from workflow_scripts.study.rounds import CellStart, ended_starts
from workflow_scripts.study.study_file import load_study

HERE = {"git_commit": "abc", "versions": {"torch": "2.9"}, "lock_sha256": "f" * 64}
OUTCOMES = ("ok", "infeasible", "timeout", "engine_error", "invalid")


class Failed:
    """A study of five cells that have ended in each way; `again` says which starts a call measures again."""

    def __init__(self, folder, monkeypatch):
        values = {"max_num_seqs": [1, 2, 4, 8, 16]}
        sweep = {"gpu": "h200", "model": "llama-3.1-8b-instruct", "knobs": values}
        self.study = load_study(write_study(folder, sweep, workloads={"chat": fixed()}))
        self.paths, self.cells = StudyPaths(folder / "results", "try"), expand(self.study)
        self.here = HERE | {"driver_version": "580.1"}
        monkeypatch.setattr(reruns, "installation_of", lambda cell: self.here)

    def end(self, cell, outcome, **changes):
        of = {"provenance": HERE, "device": {"driver_version": "580.1"}, "phases_s": {"start": 1.0}}
        end_cell(self.study, self.paths, cell, outcome=outcome, **of | changes)

    def again(self, rerun="failed", tries=2):
        ended = ended_starts(Cells(self.study).definitions, self.paths)
        return to_rerun(ended, self.cells, self.paths, rerun, tries)


@pytest.fixture
def failed(tmp_path, monkeypatch):
    made = Failed(tmp_path, monkeypatch)
    for cell, outcome in zip(made.cells, OUTCOMES, strict=True):
        made.end(cell, outcome)
    return made


@pytest.mark.parametrize(
    ("rerun", "outcomes"),
    [
        ("failed", OUTCOMES[2:]),
        ("none", ()),
        ("all", OUTCOMES),
        ("*/seqs1", ("ok",)),
        ("h200/*", OUTCOMES),
    ],
)
def test_failed_starts_are_tried_again_unless_a_call_asks_for_others(failed, rerun, outcomes):
    assert tuple(failed.again(rerun).values()) == outcomes


def test_a_pattern_without_a_cell_is_an_error_that_names_it(failed):
    with pytest.raises(InputError, match="rerun=seqs99"):
        check_rerun(expand(failed.study), "seqs99")


@pytest.mark.parametrize(
    ("here", "is_tried"),
    [
        ({}, False),
        ({"git_commit": "def"}, True),
        ({"versions": {"torch": "2.10"}}, True),
        ({"lock_sha256": "0" * 64}, True),
        ({"driver_version": "590.2"}, True),
        # What this host does not know tells no installations apart: a container or a node measures.
        ({"versions": ..., "lock_sha256": ..., "driver_version": ...}, False),
    ],
)
def test_the_same_installation_tries_twice_and_another_one_again(failed, here, is_tried):
    cell = failed.cells[3]
    assert CellStart(cell.id, 1) in failed.again()
    set_aside(failed.paths.cell(cell))
    failed.end(cell, "engine_error")
    assert CellStart(cell.id, 1) in failed.again(tries=3)
    assert CellStart(cell.id, 1) not in failed.again()
    failed.here = {name: value for name, value in (failed.here | here).items() if value is not ...}
    assert (CellStart(cell.id, 1) in failed.again()) == is_tried


def test_an_attempt_is_kept_with_its_evidence_and_an_interrupted_move_is_completed(failed):
    folder = failed.paths.cell(failed.cells[3])
    (folder / "raw").mkdir()
    (folder / "raw/engine.log").write_text("why")
    (folder / "attempt-1/raw").mkdir(parents=True)  # the last call was killed after it had moved other evidence
    set_aside(folder)
    assert outcome_in(folder / "attempt-1/outcome.json").outcome == "engine_error"
    assert not (folder / "outcome.json").exists()
    failed.end(failed.cells[3], "timeout")
    set_aside(folder)
    assert [outcome_in(path).outcome for path in reruns.attempts(folder)] == ["engine_error", "timeout"]

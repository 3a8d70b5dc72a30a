"""Which batches a call of snakemake has, from what has ended."""

import re
from pathlib import Path

import pytest

from tests.unit.made_studies import MadeStudy, end_cell, fixed, round_plan
from workflow_scripts.cluster.batches import (
    Pending,
    batches_of_cluster,
    batches_of_machine,
    ended_cells,
    is_list_of,
    known_sha256,
    main,
    pending,
    write_batch,
)
from workflow_scripts.common.files import read_json
from workflow_scripts.study.definition import definitions_sha256, session_keys
from workflow_scripts.study.rounds import CellStart, Round, ended_starts


class Called(MadeStudy):
    """A study on two GPU types, some cells of which have ended."""

    def __init__(self, folder: Path, **changes: object) -> None:
        knobs = {"max_num_seqs": [1, 2], "tensor_parallel_size": [1, 2]}
        settings = {"starts": {"at_least": 2, "at_most": 4}, "workloads": {"chat": fixed()}} | changes
        super().__init__(folder, {"gpu": ["h200", "l40s"], "knobs": knobs}, name="called", **settings)
        self.definitions, self.sessions = definitions_sha256(self.study), session_keys(self.study)

    def on(self, gpu: str) -> list[str]:
        return [name for name, cell in self.cells.items() if cell.gpu == gpu]

    def end_all(self) -> None:
        for start in (1, 2):
            self.end(*self.cells, start=start)

    def end(self, *ids: str, start: int = 1) -> None:
        for name in ids:
            end_cell(self.study, self.paths, self.cells[name], start, start={"start": start, "round": start})

    def pending(self, *gpus: str, now_s: float = 3600.0) -> Pending:
        cells = [name for gpu in gpus for name in self.on(gpu)]
        return pending(self.study, self.paths, ended_starts(self.definitions, self.paths), cells, now_s)

    def decide(self, number: int, gpus: list[str], **changes: object) -> None:
        """Write the plan with which measuring on these GPUs ended."""
        known = known_sha256(self.study, self.paths, gpus)
        plan = round_plan(number, *changes.pop("starts", ()), **{"ended": "all is said", "known": known} | changes)
        plan.write(self.paths.round_plan(number))


@pytest.fixture
def called(tmp_path):
    return Called(tmp_path)


def test_what_was_decided_is_decided_again_only_if_something_it_depends_on_has_changed(called):
    found = called.pending("h200", "l40s")
    assert [{one.cell for one in each.starts} for each in found.rounds] == [{*called.cells}] * 2
    assert found.decided == 3
    assert not called.paths.root.exists()  # planning writes nothing
    called.end_all()
    assert called.pending("h200") == Pending([], 3)
    called.decide(3, ["h200"])
    assert called.pending("h200") == Pending([], None)
    called.decide(3, ["h200"], failed=("any",))
    assert called.pending("h200") == Pending([], 3)
    called.decide(3, ["h200"])
    called.end(called.on("h200")[0], start=3)
    assert called.pending("h200") == Pending([], 4)


def test_a_decision_holds_for_the_devices_that_its_call_could_measure(called):
    called.end_all()
    called.decide(3, ["h200"])
    assert called.pending("l40s") == Pending([], 3)
    assert called.pending("h200", "l40s") == Pending([], 3)
    # What another machine measures and decides later on its own devices changes nothing on these.
    called.end(*called.on("l40s"), start=3)
    called.decide(4, ["l40s"])
    assert called.pending("h200") == called.pending("l40s") == Pending([], None)


def test_places_in_a_round_are_counted_for_each_gpu_type(called):
    h200, l40s = called.on("h200"), called.on("l40s")
    of = Round(3, tuple(CellStart(name, 2) for name in [*l40s[1:], *h200]), done=(l40s[0],))
    batches = list(batches_of_cluster(of, called.cells, called.definitions, called.sessions, size=2))
    assert sorted(one for batch in batches for one in batch.starts) == sorted(of.starts)
    assert {len(batch.starts) for batch in batches} == {1, 2}
    for gpu, first in (("h200", 1), ("l40s", 2)):
        mine = [batch for batch in batches if batch.gpu == gpu]
        places = [batch.first_position + place for batch in mine for place in range(len(batch.starts))]
        assert sorted(places) == [*range(first, 5)]
        # Cells that need different numbers of GPUs share no job.
        assert all(len({called.cells[one.cell].knobs.ranks for one in batch.starts}) == 1 for batch in mine)
    (here,) = batches_of_machine(of, called.definitions, called.sessions)
    assert (here.first_position, here.starts) == (2, of.starts)


def test_the_list_of_what_has_ended_says_so_until_something_else_ends(called, capsys):
    cells = [called.cells[name] for name in called.on("h200")]
    listed = called.paths.ended("h200")
    assert not is_list_of(listed, ended_cells(cells, called.paths))
    called.end(cells[0].id)
    assert main([*called.options, "--gpu", "h200", "--out", str(listed)]) == 0
    assert list(read_json(listed)) == [cells[0].id]
    assert is_list_of(listed, ended_cells(cells, called.paths))
    outcome = called.paths.outcome(cells[0])
    outcome.write_text(outcome.read_text().replace('"ok"', '"timeout"'))
    assert not is_list_of(listed, ended_cells(cells, called.paths))


def test_cells_are_not_listed_while_a_start_that_was_due_has_no_outcome(called, capsys):
    due, listed, file = called.on("h200")[:2], called.paths.ended("h200"), called.paths.root / "batch.json"
    write_batch(
        file,
        next(
            batches_of_machine(Round(1, tuple(CellStart(one, 1) for one in due)), called.definitions, called.sessions)
        ),
    )
    words = [*called.options, "--gpu", "h200", "--out", str(listed), "--batches", str(file)]
    for one in due:
        assert main(words) == 1
        called.end(one)
        outcome = called.paths.outcome(one)
        of_former = re.sub('"definition_sha256": "[0-9a-f]+"', '"definition_sha256": "0"', outcome.read_text())
        outcome.write_text(of_former)  # which counts as none
        assert main(words) == 1
        assert capsys.readouterr().err.splitlines().count(f"    {one}  {called.paths.log(one)}") == 2
        assert not listed.exists()
        called.end(one)
    assert main(words) == 0
    assert sorted(read_json(listed)) == sorted(due)


def test_a_batch_is_another_one_when_a_definition_or_the_round_changes():
    def key(number: int, **definitions: str) -> str:
        starts = CellStart("a", 1), CellStart("b", 1)
        return next(batches_of_machine(Round(number, starts), definitions, definitions)).key

    assert len({key(1, a="x", b="y"), key(1, b="y", a="x"), key(1, a="z", b="y"), key(2, a="x", b="y")}) == 3

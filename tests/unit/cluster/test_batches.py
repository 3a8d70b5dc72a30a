"""Which batches a call of snakemake has, from the study, its evidence and its manifests."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.unit.made_studies import MadeStudy, end_cell, fixed
from workflow_scripts.cluster.batches import Batch, Round, main
from workflow_scripts.cluster.pending import Pending, Wanted, manifest_of
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json, write_json, write_text
from workflow_scripts.parse.cell_tables import main as parse_cells
from workflow_scripts.study.definition import Cells
from workflow_scripts.study.rounds import CellStart, in_random_order

WORKLOADS = {"chat": fixed(), "short": fixed(num_prompts=2)}


class Called(MadeStudy):
    """A study on two GPU types with 64 cells: two workloads share each start of an engine."""

    def __init__(self, folder: Path, sequences: int = 8, **changes: object) -> None:
        knobs = {"max_num_seqs": [*range(1, sequences + 1)], "tensor_parallel_size": [1, 2]}
        sweep = {"gpu": ["h200", "l40s"], "workload": [*WORKLOADS], "knobs": knobs}
        super().__init__(folder, sweep, name="called", **{"starts": 2, "workloads": WORKLOADS} | changes)
        self.of = Cells(self.study)

    def on(self, gpu: str) -> list[str]:
        return [name for name, cell in self.cells.items() if cell.gpu == gpu]

    def ended(self, *ids: str, start: int = 1, **changes: object) -> None:
        for name in ids:
            end_cell(self.study, self.paths, self.cells[name], start, start={"start": start, "round": start}, **changes)

    def call(self, here: Collection[str] = (), size: int | None = 8, **rerun: object) -> Pending:
        return Pending(self.of, self.paths, here or self.cells, size, **rerun)

    def wanted(self, number: int = 1, **options: object) -> list[Wanted]:
        return self.call(**options).wanted(number)

    def measure(self, wanted: list[Wanted], lost: Collection[str] = ()) -> None:
        """What jobs would do."""
        for one in wanted:
            for start in one.pending:
                if start.cell not in lost:
                    self.ended(start.cell, start=start.start)
            batch = one.batch
            if one.pending:
                manifest = manifest_of(batch, self.of.definitions, self.paths)
                write_json(self.paths.manifest(batch.gpus, batch.round, batch.name), manifest)


@pytest.fixture
def called(tmp_path):
    return Called(tmp_path)


def names(wanted: list[Wanted]) -> set[tuple[str, str]]:
    return {(one.batch.gpus, one.batch.name) for one in wanted}


def cells_of(batches: list[Wanted]) -> list[str]:
    return sorted(start.cell for one in batches for start in one.pending)


def test_a_round_is_packed_into_jobs_of_whole_sessions_that_their_names_tell(called):
    wanted = called.wanted()
    assert cells_of(wanted) == sorted(called.cells)
    assert not called.paths.root.exists()  # planning writes nothing
    assert max(len(one.pending) for one in wanted) <= 8
    round_ = Round(1, (CellStart(cell, 1) for cell in called.cells), called.of)
    for one in wanted:
        assert round_.named(one.batch.gpus, one.batch.name) == one.batch
        # Cells that need different numbers of GPUs share no job, and cells that can share a start of an engine do.
        ids = [start.cell for start in one.batch.starts]
        assert {called.of.needs(called.cells[cell]) for cell in ids} == {called.of.needs(called.cells[ids[0]])}
        assert {called.of.sessions[cell] for cell in {*called.cells} - {*ids}}.isdisjoint(
            map(called.of.sessions.get, ids)
        )
    with pytest.raises(InputError, match="no batch x1b-00000000"):
        round_.named("h200", "x1b-00000000")


def test_a_session_with_more_cells_than_a_job_is_divided(called):
    assert [len(one.pending) for one in called.wanted(size=1)] == [1] * len(called.cells)


def test_one_machine_measures_a_round_in_one_job_in_a_random_order_with_sessions_together(called):
    (one,) = called.wanted(size=None)
    order = [start.cell for start in one.batch.starts]
    firsts = [cells[0] for cells in called.of.in_sessions(order)]
    assert order == [cell for cells in called.of.in_sessions(in_random_order(called.cells, 1)) for cell in cells]
    assert firsts != sorted(firsts)
    assert [*one.batch.places.values()] == [*range(1, len(order) + 1)]
    (second,) = called.wanted(2, size=None)
    assert [start.cell for start in second.batch.starts] != order
    assert {start.start for start in second.batch.starts} == {2}


def test_what_was_measured_in_jobs_is_complete_on_one_machine_too(called):
    called.measure(called.wanted())
    again = called.wanted()
    assert cells_of(again) == []
    assert names(again) == names(called.wanted(size=None)) == names(called.wanted(size=2))
    assert called.call().not_listed_sha256("h200", 1) == called.call(size=None).not_listed_sha256("h200", 1)


def test_what_is_lost_is_packed_anew_and_holds_under_another_name(called):
    lost = {*called.on("h200")[::5]}
    called.measure(called.wanted(), lost)
    left = [one for one in called.wanted() if one.pending]
    assert cells_of(left) == sorted(lost)
    assert len(left) <= 3  # of seven cells, on two numbers of GPUs
    called.measure(left)
    after = called.wanted()
    assert cells_of(after) == []
    assert names(left) <= names(after)
    assert names(after) == names(called.wanted())


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{}")], ids=["deleted", "damaged"])
def test_evidence_that_is_deleted_or_damaged_is_measured_again_and_no_other(called, damage):
    called.measure(called.wanted())
    hurt = called.on("l40s")[3]
    damage(called.paths.outcome(hurt))
    (left,) = (one for one in called.wanted() if one.pending)
    assert cells_of([left]) == [hurt]
    manifest = called.paths.manifest(left.batch.gpus, 1, left.batch.name)
    assert not manifest.exists()
    called.measure([left])
    assert cells_of(called.wanted()) == []


def test_a_changed_definition_and_an_added_value_are_all_that_is_measured(called):
    called.measure(called.wanted())
    more = Called(called.file.parent, sequences=9)
    left = [one for one in more.wanted() if one.pending]
    assert cells_of(left) == sorted({*more.cells} - {*called.cells})
    # Copied manifests of another definition are none of the study.
    other = Called(called.file.parent, workloads={"chat": fixed(5), "short": WORKLOADS["short"]})
    assert cells_of(other.wanted()) == sorted(cell for cell in other.cells if "/chat/" in cell)


def test_results_without_manifests_are_accepted_and_are_new_to_parsing(called):
    before = called.call().not_listed_sha256("h200", 1), called.call().not_listed_sha256("l40s", 1)
    called.ended(*called.on("h200"))
    assert cells_of(called.wanted()) == sorted(called.on("l40s"))
    h200, l40s = called.call().not_listed_sha256("h200", 1), called.call().not_listed_sha256("l40s", 1)
    assert (h200 == before[0], l40s == before[1]) == (False, True)
    # A further start that was measured by hand is new too.
    called.ended(called.on("h200")[0], start=5)
    assert called.call().not_listed_sha256("h200", 1) != h200


def test_what_other_machines_measured_is_neither_pending_nor_repeated(called):
    called.measure(called.wanted(here=called.on("l40s")))
    here = called.on("h200")
    wanted = called.wanted(here=here)
    assert cells_of(wanted) == sorted(here)
    assert {gpus for gpus, _ in names(wanted)} == {"h200", "l40s"}
    assert {one.batch.gpus for one in called.wanted(here=here, size=None) if one.pending} == {"h200"}


def test_failed_starts_are_tried_again_as_the_call_says(called):
    called.measure(called.wanted())
    failed = called.on("h200")[2]
    called.ended(failed, outcome="timeout")
    assert cells_of(called.wanted()) == [failed]
    assert cells_of(called.wanted(rerun="none")) == []
    assert cells_of(called.wanted(rerun="l40s/*")) == sorted(called.on("l40s"))
    assert cells_of(called.wanted(rerun="all", size=None)) == sorted(called.cells)
    with pytest.raises(InputError, match="rerun=h100"):
        called.wanted(rerun="h100/*")


def test_a_record_of_another_definition_is_no_outcome_and_is_named(called):
    cell = called.on("h200")[0]
    called.ended(cell)
    record = read_json(called.paths.outcome(cell))
    called.paths.outcome(cell).write_text(json.dumps(record | {"definition_sha256": "0" * 64}))
    call = called.call()
    (note,) = call.notes(call.wanted(1))
    assert note.startswith("1 cells ")
    assert str(called.paths.outcome(cell)) in note


def test_lists_name_all_starts_and_one_without_outcome_is_not_parsed(called, capsys, tmp_path):
    lost = called.on("h200")[0]
    called.measure(called.wanted(here=called.on("h200")), [lost])
    measured = called.paths.measured
    listed = [path.relative_to(measured).with_suffix("").as_posix() for path in called.paths.manifests()]
    words = ["--measured", str(measured), "--names", *listed, "--out", str(tmp_path / "list.json")]
    assert main(words) == 0
    content = read_json(tmp_path / "list.json")
    assert sorted(content) == sorted(called.on("h200"))
    assert [cell for cell, one in content.items() if one is None] == [lost]
    lists = ["--measured", str(tmp_path / "list.json")]
    assert parse_cells(["--cells", str(tmp_path), "--gpu", "h200", *lists, "--out", str(tmp_path)]) == 2
    assert f"{lost}/measure.log: not tried" in capsys.readouterr().err
    write_text(tmp_path / lost / "measure.log", "first\nno engine here\n")
    assert parse_cells(["--cells", str(tmp_path), "--gpu", "h200", *lists, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("no engine here\n")


def test_a_round_that_was_decided_on_has_its_starts_alone(called):
    starts = tuple(CellStart(cell, 3) for cell in called.on("h200")[:3])
    wanted = called.call().wanted(3, starts)
    assert {start for one in wanted for start in one.pending} == {*starts}
    assert all(isinstance(one.batch, Batch) and one.batch.round == 3 for one in wanted)

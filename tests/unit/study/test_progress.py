"""How far a study is, from only its files."""

import os
import shutil

import pytest

from tests.unit.made_studies import round_plan
from tests.unit.study.test_status import Seen, cell
from workflow_scripts.common.files import write_json
from workflow_scripts.study.cell_status import status_of_starts
from workflow_scripts.study.progress import Progress, progress

# The present.
NOW = 1_800_000_000.0
# A cell that took 90 s, and 10 s until the next one begins.
TOOK = {"start": 60.0, "measure": 30.0}


def of(seen: Seen) -> Progress:
    return progress(seen.study, seen.paths, status_of_starts(seen.study, seen.paths), NOW)


@pytest.fixture
def seen(tmp_path):
    """Four of the six cells of an h200 have ended, one every 100 s, and the next one has run for 30 s."""
    seen = Seen(tmp_path)
    h200 = [name for name in seen.cells if name.startswith("h200")]
    for place, name in enumerate(h200[:4]):
        seen.end(name, "ok", phases_s=TOOK, ended_s=NOW - 340 + 100 * place)
    seen.begin(h200[4], NOW - 30, NOW - 1)
    return seen


def test_what_has_ended_what_runs_and_what_is_left_are_told(seen):
    assert list(of(seen).in_words()) == [
        "4 of 12 cells have ended.",
        f"Being measured: {cell('h200', 32)} (for 30 s).",
        "About 2.8 min left, until 2027-01-15 08:02 UTC, without the cells of l40s, which wait.",
    ]
    assert of(seen).left_s == pytest.approx(2 * 100 - 30)
    # Cells that run at once share what is left.
    seen.begin(cell("h200", 32, 2), NOW - 50, NOW)
    found = of(seen)
    assert [(one.cell.id, one.for_s) for one in found.running] == [
        (cell("h200", 32), 30.0),
        (cell("h200", 32, 2), 50.0),
    ]
    assert found.left_s == pytest.approx((200 - 30 - 50) / 2)


def test_a_cell_that_takes_longer_than_those_like_it_is_said_to(seen):
    seen.begin(cell("h200", 32, 2), NOW - 150, NOW)
    assert "at least 35 s" in list(of(seen).in_words())[-1]
    shutil.rmtree(seen.paths.cell(cell("h200", 32)))
    seen.end(cell("h200", 32), "ok", phases_s=TOOK, ended_s=NOW - 5)
    assert (of(seen).left_s, of(seen).is_late) == (0, True)


def test_on_one_machine_the_cells_of_all_devices_follow_each_other(seen):
    batch = seen.paths.batch("here", "0123abcd")
    write_json(batch, {})
    assert (of(seen).left_s, of(seen).waiting) == (pytest.approx(8 * 100 - 30), [])
    batch.with_suffix(".done").touch()
    assert of(seen).waiting == ["l40s"]


def test_a_cell_that_was_killed_does_not_run(seen):
    for trace in seen.paths.root.rglob("device_trace.jsonl"):
        os.utime(trace, (NOW, NOW - 200))
    found = of(seen)
    assert (found.running, found.last_end_s) == ([], NOW - 40)
    # Another cell may have begun since, so something is still being measured.
    assert found.left_s == 200
    later = progress(seen.study, seen.paths, status_of_starts(seen.study, seen.paths), NOW + 1000)
    assert "17 min ago" in list(later.in_words())[-1]


def test_without_a_trace_a_log_within_the_time_limit_shows_that_a_cell_runs(seen):
    for trace in seen.paths.root.rglob("device_trace.jsonl"):
        trace.unlink()
    assert [one.for_s for one in of(seen).running] == [30.0]
    (log,) = seen.paths.root.rglob("engine.log")
    os.utime(log, (NOW, NOW - seen.study.cell_time_limit_s - 1))
    assert of(seen).running == []
    log.unlink()  # as while a start waits for its device
    assert of(seen).running == []


def test_a_cell_takes_as_long_as_those_like_it(tmp_path):
    seen = Seen(tmp_path)
    # A cell that was killed at its time limit has no phases.
    seen.end(cell("h200", 8), "timeout", ended_s=NOW - 10)
    seen.end(cell("l40s", 8), "ok", phases_s=TOOK, ended_s=NOW - 10, host="node-2")
    limit_s = seen.study.cell_time_limit_s
    assert of(seen).left_s == max(5 * limit_s, 5 * 90)


def test_starts_are_counted_if_a_cell_has_several(tmp_path):
    seen = Seen(tmp_path, starts=2)
    for start in (1, 2):
        seen.end(cell("h200", 8), "ok", start=start, ended_s=NOW - 1000)
    seen.end(cell("h200", 16), "ok", ended_s=NOW - 1000)
    seen.end(cell("h200", 32), "ok", ended_s=NOW - 1000, protocol=0)
    seen.begin(cell("h200", 16), NOW - 5, NOW, start=2)
    seen.begin(cell("h200", 8), NOW - 3, NOW, folder="again-1")
    found = of(seen)
    assert (found.ended, found.wanted, found.cells) == (3, 24, 12)
    assert [(one.cell.id, one.start, one.for_s, one.again) for one in found.running] == [
        (cell("h200", 8), 1, 3.0, True),
        (cell("h200", 16), 2, 5.0, False),
    ]


def test_a_round_that_was_decided_on_counts_and_more_may_follow(tmp_path):
    seen = Seen(tmp_path, starts={"at_least": 2, "at_most": 5})
    for name in seen.cells:
        for start in (1, 2):
            seen.end(name, "ok", phases_s=TOOK, start=start, ended_s=NOW - 10)
    assert (of(seen).ended, of(seen).wanted, of(seen).is_complete) == (24, 24, False)
    plan = round_plan(3, *((name, 3) for name in list(seen.cells)[:3]))
    plan.write(seen.paths.round_plan(3))
    seen.end(plan.starts[0].cell, "ok", phases_s=TOOK, start=3, ended_s=NOW - 5)
    assert (of(seen).ended, of(seen).wanted) == (25, 27)
    assert list(of(seen).in_words())[-1].endswith("; further rounds may follow.")
    plan.model_copy(update={"round": 4, "starts": (), "ended": "all is said"}).write(seen.paths.round_plan(4))
    assert of(seen).is_complete


def test_a_study_that_measures_only_what_matters_wants_what_its_rounds_have_decided(tmp_path):
    seen = Seen(tmp_path, starts={"at_least": 2, "at_most": 2}, measure={})
    assert (of(seen).ended, of(seen).wanted, of(seen).may_grow) == (0, 0, True)
    first, second, *_ = seen.cells
    plan = round_plan(1, (first, 1), (second, 1))
    plan.write(seen.paths.round_plan(1))
    seen.end(first, "ok", phases_s=TOOK, ended_s=NOW - 5)
    assert (of(seen).ended, of(seen).wanted) == (1, 2)
    plan.model_copy(update={"round": 2, "starts": (), "ended": "all is said"}).write(seen.paths.round_plan(2))
    assert of(seen).is_complete

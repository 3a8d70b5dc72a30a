"""Which starts of which cells a call measures, and in which rounds."""

import os

import pytest

from tests.unit.made_studies import round_plan
from workflow_scripts.common.files import write_json, write_text
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import (
    LONGEST_BREAK_S,
    CellStart,
    Ended,
    ended_starts,
    in_random_order,
    last_plan,
    last_seen_s,
    next_start,
    present_round,
    round_of,
)

CELLS = [f"cpu/engine/model/workload/{name}" for name in "abcdefgh"]
HOUR = 3600.0


def test_the_order_of_a_round_is_random_and_the_same_in_each_call():
    orders = [in_random_order(CELLS, number) for number in (1, 2, 3)]
    assert len({tuple(order) for order in [*orders, CELLS]}) == 4
    assert orders[0] == in_random_order(CELLS[::-1], 1)  # whatever the order of the study's sweeps


def test_what_is_missing_is_measured_in_an_interrupted_round_or_in_one_of_its_own():
    ended = {cell: {1: Ended(1, 0.0)} for cell in CELLS[:3]}
    for since_s, number in ((LONGEST_BREAK_S, 1), (LONGEST_BREAK_S + 1, 2)):
        assert round_of(CELLS[3:], ended, present_round(ended, since_s)) == number
    # The first start of one cell had no outcome; its second had one.
    ended = {cell: {1: Ended(1, 0.0), 2: Ended(2, HOUR)} for cell in CELLS}
    del ended[CELLS[0]][1]
    for now_s in (9 * HOUR, HOUR):  # at once, it still is another round than the one in which the cell was measured
        assert round_of(CELLS[:1], ended, present_round(ended, now_s)) == 3
    assert round_of(CELLS, {}, present_round({}, HOUR)) == 1


def test_a_start_that_still_runs_is_no_break(tmp_path):
    paths = StudyPaths(tmp_path, "seen")
    ended = {CELLS[0]: {1: Ended(1, HOUR)}, CELLS[1]: {}}
    later_s = HOUR + LONGEST_BREAK_S + 60
    assert present_round(ended, later_s, last_seen_s(ended, paths)) == 2
    evidence = paths.cell(CELLS[1]) / "raw.partial/device_trace.jsonl"
    write_text(evidence, "")
    os.utime(evidence, (later_s - 1, later_s - 1))
    assert present_round(ended, later_s, last_seen_s(ended, paths)) == 1
    assert present_round({}, later_s, last_seen_s(ended, paths)) == 1


@pytest.mark.parametrize(("set_back_s", "number"), [(60.0, 1), (LONGEST_BREAK_S + 60, 2)])
def test_a_clock_that_was_set_back_by_much_does_not_prolong_a_round(set_back_s, number):
    assert present_round({CELLS[0]: {1: Ended(1, HOUR)}}, HOUR - set_back_s) == number


def test_a_further_start_by_hand_has_the_next_free_number_and_a_round_without_its_cell():
    ended = {CELLS[0]: {1: Ended(1, 0.0), 3: Ended(2, HOUR)}, CELLS[1]: {1: Ended(1, 0.0)}}
    assert next_start(ended, CELLS[0], 2) == (CellStart(CELLS[0], 2), 3)
    assert next_start(ended, CELLS[1], 2) == (CellStart(CELLS[1], 2), 2)
    assert next_start(ended, CELLS[2], 2) == (CellStart(CELLS[2], 1), 2)


def test_the_last_decision_is_the_one_that_ended_measuring_or_the_newest_that_did_not(tmp_path):
    paths = StudyPaths(tmp_path, "seen")
    assert last_plan(paths, 2) is None
    plans = [round_plan(number, (CELLS[0], number)) for number in (3, 4)]
    plans += [round_plan(number, ended="all is said") for number in (5, 6)]  # the sixth is of an earlier call
    for plan in plans:
        plan.write(paths.round_plan("h200", plan.round))
    assert last_plan(paths, 2) == plans[2]
    assert last_plan(paths, 6) is None
    # Devices of another machine, which decides for itself, are still to be measured.
    plans[0].write(paths.round_plan("l40s", 3))
    assert last_plan(paths, 2) == plans[0]


def test_what_has_ended_is_read_from_the_records_of_the_present_definition(tmp_path):
    paths = StudyPaths(tmp_path, "seen")
    ended = {"cell_id": CELLS[0], "outcome": "ok", "definition": {}, "definition_sha256": "present"}
    ended["provenance"] = {"ended_at": "1970-01-01T00:01:40+00:00"}
    for number, changes in enumerate(
        [
            {},
            {"definition_sha256": "former"},
            {"start": {"round": 6}},
            {"outcome": "invalid"},  # never ran
        ],
        start=1,
    ):
        write_json(paths.outcome(CELLS[0], number), ended | changes)
    known = ended_starts(dict.fromkeys(CELLS[:2], "present"), paths)
    assert known == {CELLS[0]: {1: Ended(1, 100.0), 3: Ended(6, 100.0)}, CELLS[1]: {}}

"""Which starts of which cells a call measures, and in which rounds."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.made_studies import round_plan
from workflow_scripts.common.files import write_json, write_text
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import (
    LONGEST_BREAK_S,
    CellStart,
    Ended,
    Round,
    ended_starts,
    forget_plans,
    last_plan,
    last_seen_s,
    next_start,
    plans,
    present_round,
    rounds_to_measure,
)

CELLS = [f"cpu/engine/model/workload/{name}" for name in "abcdefgh"]
HOUR = 3600.0


def missing(ended: dict[str, dict[int, Ended]], cells: list[str], at_least: int, now_s: float) -> list[Round]:
    return rounds_to_measure(ended, None, cells, at_least, present_round(ended, now_s))


def test_a_new_study_measures_every_cell_once_in_each_round_in_another_order():
    rounds = missing({}, CELLS, 3, now_s=0.0)
    for number, one in enumerate(rounds, 1):
        assert (one.number, one.done, sorted(one.starts)) == (number, (), [CellStart(cell, number) for cell in CELLS])
    assert len({tuple(start.cell for start in one.starts) for one in rounds} | {tuple(CELLS)}) == 4
    assert rounds == missing({}, CELLS[::-1], 3, now_s=0.0)  # whatever the order of the study's sweeps


def test_what_is_missing_is_measured_in_an_interrupted_round_or_in_one_of_its_own():
    ended = {cell: {1: Ended(1, 0.0)} for cell in CELLS[:3]}
    for since_s, number, done in ((LONGEST_BREAK_S, 1, tuple(CELLS[:3])), (LONGEST_BREAK_S + 1, 2, ())):
        (rest,) = missing(ended, CELLS, 1, now_s=since_s)
        assert (rest.number, rest.done, {one.cell for one in rest.starts}) == (number, done, {*CELLS[3:]})
    # The first start of one cell had no outcome; its second had one.
    ended = {cell: {1: Ended(1, 0.0), 2: Ended(2, HOUR)} for cell in CELLS}
    del ended[CELLS[0]][1]
    for now_s in (9 * HOUR, HOUR):  # at once, it still is another round than the one in which the cell was measured
        assert missing(ended, CELLS, 2, now_s) == [Round(3, (CellStart(CELLS[0], 1),))]


def test_a_decided_round_that_was_interrupted_goes_on_with_what_the_call_measures():
    ended = {cell: {1: Ended(1, 0.0), 2: Ended(2, 0.0)} for cell in CELLS}
    ended[CELLS[1]][3] = Ended(3, HOUR)
    plan, cells = round_plan(3, (CELLS[1], 3), (CELLS[4], 3)), CELLS[:]
    rest = Round(3, (CellStart(CELLS[4], 3),), (CELLS[1],))
    assert rounds_to_measure(ended, plan, cells, 2, present_round(ended, HOUR + 60)) == [rest]
    assert rounds_to_measure(ended, plan, cells, 2, present_round(ended, 9 * HOUR)) == []
    cells.remove(CELLS[4])  # it has left the study, or is on a device of another machine
    assert rounds_to_measure(ended, plan, cells, 2, 3) == []
    ended[CELLS[4]][3] = Ended(3, HOUR)
    assert rounds_to_measure(ended, plan, CELLS, 2, 3) == []  # it is complete
    assert rounds_to_measure(ended, round_plan(4, (CELLS[0], 3)), CELLS, 2, 3) == []  # it has not begun


def test_what_is_missing_beside_an_interrupted_round_is_measured_in_it_or_after_it_and_nothing_twice():
    """The second start of cell 1 failed, and in the interrupted round it is due; cell 5 is new."""
    ended = {cell: {1: Ended(1, 0.0), 2: Ended(2, 0.0)} for cell in CELLS[:5]} | {CELLS[5]: {}}
    del ended[CELLS[1]][2]
    ended[CELLS[0]][3] = Ended(3, HOUR)
    plan = round_plan(3, (CELLS[0], 3), (CELLS[1], 2))
    assert rounds_to_measure(ended, plan, CELLS[:6], 2, present_round(ended, HOUR + 60)) == [
        Round(3, (CellStart(CELLS[1], 2), CellStart(CELLS[5], 1)), (CELLS[0],)),
        Round(4, (CellStart(CELLS[5], 2),)),
    ]


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


def test_the_last_plan_is_that_of_the_highest_number(tmp_path):
    paths = StudyPaths(tmp_path, "seen")
    assert last_plan(paths) is None
    for number in (9, 10):
        round_plan(number, (CELLS[0], number)).write(paths.round_plan(number))
    assert last_plan(paths) == round_plan(10, (CELLS[0], 10))
    forget_plans(paths, 10)
    assert [plan.round for plan in plans(paths)] == [9]


@settings(max_examples=30)
@given(
    known=st.dictionaries(st.sampled_from(CELLS), st.dictionaries(st.integers(1, 5), st.integers(1, 4), max_size=4)),
    at_least=st.integers(1, 4),
    now_s=st.sampled_from([0.0, HOUR]),
)
def test_afterwards_each_cell_has_its_starts_and_none_two_in_a_round(known, at_least, now_s):
    ended = {c: {n: Ended(r, 0.0) for n, r in starts.items()} for c, starts in known.items()}
    rounds = missing(ended, CELLS, at_least, now_s)
    numbers = [one.number for one in rounds]
    assert numbers == sorted(set(numbers))
    for cell in CELLS:
        had = known.get(cell, {})
        new = [(start.start, one.number) for one in rounds for start in one.starts if start.cell == cell]
        assert len(new) == max(0, at_least - len(had))
        assert {start for start, _ in new}.isdisjoint(had)
        assert {number for _, number in new}.isdisjoint(had.values())
        assert len({*new}) == len({number for _, number in new}) == len(new)


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

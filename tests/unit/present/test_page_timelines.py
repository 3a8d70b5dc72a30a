import re

from tests.unit.present.test_page_data import unpacked, values
from workflow_scripts.present.page_timelines import MOST_BYTES, MOST_ROWS, timelines
from workflow_scripts.present.report_tables import Tables


def test_the_page_holds_timelines_of_its_cells_up_to_a_size(results):
    all_of_them = timelines(results.tables)
    assert sum(map(len, all_of_them.values())) <= MOST_BYTES
    held = dict(re.findall(r'<template class="timeline" data-cell="([^"]*)">([^<]*)</template>', results.html))
    assert held == all_of_them
    few = timelines(results.tables, 30_000)
    assert 0 < len(few) < len(all_of_them)
    assert sum(map(len, few.values())) <= 30_000
    # The fastest cell of each place comes before the second fastest of any.
    places = [cell.rsplit("/", 1)[0] for cell in all_of_them]
    assert len(set(places[: len(set(places))])) == len(set(places))


def test_a_timeline_has_every_repeat_with_all_rows_or_evenly_chosen_ones(results):
    cell = "l40s/vllm/llama-3.1-8b-instruct/chat/bs16-seqs16-len4096"
    timeline = unpacked(timelines(results.tables)[cell])
    requests = timeline["requests"]["columns"]
    assert timeline["requests"]["rows"] == len(requests["repeat"]) == 3 * 64
    assert values(requests["queued_s"])[:3] == [0, 0.1, 0.2]
    assert len(timeline["steps"]["columns"]["time_s"]) == 3 * 60
    assert all(most >= 64 for most in MOST_ROWS.values())


def test_a_large_study_and_a_long_repeat_keep_some_cells_and_evenly_chosen_rows(results, monkeypatch):
    ten = list(timelines(results.tables).items())[:10]
    # Ten cells are read eight and two at a time.
    monkeypatch.setattr("workflow_scripts.present.page_timelines.MOST_CELLS", 10)
    assert list(timelines(results.tables).items()) == ten
    assert timelines(Tables(results.root / "tables", results.root / "nowhere")) == {}
    most = {"requests": 10, "steps": 25, "trace": 7}
    monkeypatch.setattr("workflow_scripts.present.page_timelines.MOST_ROWS", most)
    timeline = unpacked(next(iter(timelines(results.tables).values())))
    kept = {name: len(timeline[name]["columns"]["repeat"]) for name in timeline}
    assert kept == {name: 3 * rows for name, rows in most.items()}
    assert timeline["steps"]["rows"] == 180
    times = timeline["steps"]["columns"]["time_s"][:25]
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] > 9

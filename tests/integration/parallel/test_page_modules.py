"""Modules of the page's script, run in a real browser beside the Python code that they must agree with."""

import json
import random

import pytest

from workflow_scripts.physics import formulas

pytestmark = pytest.mark.needs_tool("chromium")


def test_tables_are_written_as_csv(in_page):
    def csv_of(texts: list[list[str]], numeric: list[bool]) -> str:
        cell = "(text, i) => ({ textContent: text, classList: { contains: () => numeric[i] } })"
        rows = f"{json.dumps(texts)}.map((texts) => ({{ cells: texts.map({cell}) }}))"
        table = (
            f"((numeric) => {{ const rows = {rows}; return {{ rows, tHead: {{ rows }} }}; }})({json.dumps(numeric)})"
        )
        return str(in_page("save.js", f"m.csvOf({table})"))

    texts = [["Name", "Rate", "8,16"], ['=1+"2"', "12,300", "–"], ["a\nb | c", "+3.1 %", "8,16"]]
    assert csv_of(texts, [False, True, False]) == (
        'Name,Rate,"8,16"\r\n"\'=1+""2""",12300,\r\n"a\nb | c",+3.1 %,"8,16"\r\n'
    )
    ranges = ["-1.2 to 3", "-1.2 to +3.5 %", "-2 to 1 (95 %)", "-1+2", "-1 to 3+A1", "+cmd"]
    assert csv_of([ranges], [False] * 6) == ("-1.2 to 3,-1.2 to +3.5 %,-2 to 1 (95 %),'-1+2,'-1 to 3+A1,'+cmd\r\n")
    assert in_page("save.js", "[m.slug('Study demo: KV blocks'), m.slug('??'), m.slug('../x')]") == [
        *("study-demo-kv-blocks", "kvsweep", "x")
    ]


def test_a_cell_has_its_rows_and_of_each_measure_the_value_with_interval_and_range(in_page):
    data = {
        "cells": {"cell_id": ["a", "b", "c"]},
        # The rows of a cell need not follow each other.
        "repeats": {"cell": [1, 0, 1, 1, 0], "rate": [4, 1, 9, 5, None], "power": [None] * 5},
        "limits": {"cell": [2], "rates": {"of": ["measured"], "at": [0]}},
        "predictions": {},
        "values": {"rate": [1.5, 5, None]},
        # An interval of a measure without values is of no cell here.
        "intervals": {"cell": [1, 0], "measure": ["power", "rate"], "low": [6, 1], "high": [8, 2]},
    }
    told = "[c.repeats, c.limits, c.statistic('rate'), c.statistic('power'), c.statistic('none')]"
    a, b, c = in_page("data.js", f"m.storeOf({json.dumps(data)}).cells.map((c) => {told})")
    interval = {"low": 1, "high": 2}
    assert a[0] == [{"cell": 0, "rate": 1, "power": None}, {"cell": 0, "rate": None, "power": None}]
    assert a[1:] == [[], {"value": 1.5, "low": 1, "high": 1, "n": 1, "interval": interval}, None, None]
    assert [row["rate"] for row in b[0]] == [4, 9, 5]
    assert b[2:] == [{"value": 5, "low": 4, "high": 9, "n": 3, "interval": None}, None, None]
    assert c == [[], [{"cell": 2, "rates": "measured"}], None, None, None]
    assert in_page("data.js", f"m.storeOf({json.dumps(data)}).byId.get('c').limits.length") == 1


def test_blocks_over_the_steps_are_those_of_the_formula_and_shared_ones_count_once(in_page):
    """The sum over the decode steps is what `block_seconds` counts, and the prompt's blocks are there before."""
    chance, names = random.Random(3), ("prompt_tokens", "output_tokens", "block_size")
    requests = [
        dict(zip(names, (chance.randint(1, 200), chance.randint(2, 90), chance.choice([1, 8, 16, 48])), strict=True))
        for _ in range(300)
    ]
    script = """(requests) => requests.map((r) => {
      const steps = r.output_tokens - 1;
      const request = {...r, scheduled_s: 0, first_token_s: 1, last_token_s: 1 + steps};
      const held = (time) => m.blocksAt([request], time, r.block_size).reduce((n, b) => n + b.full + (b.partly > 0), 0);
      return [held(0.5), ...Array.from({length: steps}, (_, i) => held(1.5 + i))].reduce((a, b) => a + b);
    })"""
    summed = in_page("blocks.js", f"({script})({json.dumps(requests)})")
    expected = [
        formulas.block_seconds(float(prompt), float(output), 1.0, output - 1.0, size)
        for prompt, output, size in (r.values() for r in requests)
    ]
    assert summed == pytest.approx(expected)
    # Four requests of 40 tokens; three found the 32 of two blocks in the cache, and the first filled them.
    of_one = {"prompt_tokens": 40, "output_tokens": 10, "scheduled_s": 0, "first_token_s": 5, "last_token_s": 9}
    requests = [of_one, *({**of_one, "cached_prompt_tokens": 32} for _ in range(3))]
    assert in_page("blocks.js", f"m.blocksInUse(m.blocksAt({json.dumps(requests)}, 1, 16))") == 3 + 3
    assert in_page("blocks.js", f"m.blocksInUse(m.blocksAt({json.dumps(requests[1:])}, 1, 16))") == 2 + 3
    assert in_page("blocks.js", f"m.blocksAt({json.dumps(requests)}, 9, 16)") == []


def test_phases_of_a_request_that_lack_a_time_are_left_out(in_page):
    request = {"queued_s": 0, "scheduled_s": 0.5, "first_token_s": 1, "last_token_s": None}
    assert in_page("timeline.js", f"m.phasesOf({json.dumps(request)})") == [["waiting", 0, 0.5], ["prefill", 0.5, 1]]


def test_the_pareto_front_is_what_no_other_point_beats(in_page):
    chance = random.Random(2)
    clouds = [
        [{"x": chance.randint(1, 9), "y": chance.randint(1, 9)} for _ in range(chance.randint(0, 25))]
        for _ in range(200)
    ]

    def beaten(point: dict[str, int], other: dict[str, int]) -> bool:
        no_worse = other["x"] <= point["x"] and other["y"] >= point["y"]
        return no_worse and other != point

    def by_place(points: list[dict[str, int]]) -> list[dict[str, int]]:
        return sorted(points, key=lambda point: (point["x"], point["y"]))

    found = in_page("limits.js", f"{json.dumps(clouds)}.map(m.paretoFront)")
    for cloud, front in zip(clouds, found, strict=True):
        assert by_place(front) == by_place([p for p in cloud if not any(beaten(p, other) for other in cloud)])


@pytest.mark.parametrize(
    ("differs", "told", "rate"),
    [
        ({}, 0, ""),
        ({"workload": "b"}, 1, ""),
        ({"requests": 8}, 1, "steady_"),
        ({"requests": 8, "steady": False}, 1, ""),
        ({"requests": None}, 0, ""),
        ({"requests": 8, "environment": "environment 2"}, 2, "steady_"),
    ],
)
def test_cells_that_did_different_work_are_called_so(in_page, differs, told, rate):
    """A cell that was not measured served no other number of requests."""
    one = {"model": "m", "workload": "a", "environment": "environment 1", "requests": 4, "steady": True}
    statistic = """(name) => of.requests && (of.steady || !name.startsWith("steady")) ? {value: of.requests} : null"""
    script = f"{json.dumps([one, one | differs])}.map((of) => ({{...of, statistic: {statistic}}}))"
    assert len(in_page("fair.js", f"m.unlike({script}, m.RATE)")) == told
    assert in_page("fair.js", f"m.fairRate({script})") == f"{rate}output_tokens_per_s"

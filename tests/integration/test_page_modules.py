"""Modules of the page's script, run in a real browser beside the Python code that they must agree with."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser import Tab
from workflow_scripts.physics import formulas
from workflow_scripts.present.page_script import joined
from workflow_scripts.present.report import REPORT

pytestmark = pytest.mark.needs_tool("chromium")

Run = Callable[[str, str], Any]


@pytest.fixture
def run(one_tab: Tab) -> Run:
    """Evaluate an expression with what a module exports as `m`."""

    def evaluate(module: str, expression: str) -> Any:
        return one_tab.evaluate(f"((m) => ({expression}))({joined(REPORT / 'page', module).strip().removesuffix(';')})")

    return evaluate


def test_numbers_have_three_digits_and_thousands_separated(run: Run) -> None:
    numbers = [12345.678, 0.0123456, 0, None, 999.5, 1e-7, 1e6]
    assert run("words.js", f"{json.dumps(numbers)}.map((n) => m.number(n))") == [
        *("12,300", "0.0123", "0", "–", "1,000", "1.00e-7", "1,000,000")
    ]
    assert run("words.js", "[m.bytes(131072), m.bytes(0), m.bytes(5e12), m.withUnit(null, 's')]") == [
        *("128 KiB", "0 bytes", "4.55 TiB", "–")
    ]


def test_a_column_of_repeated_texts_is_read_back(run: Run) -> None:
    columns = {"a": [1, None], "b": {"of": ["x"], "at": [None, 0]}}
    assert run("data.js", f"m.rowsOf({json.dumps(columns)})") == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert run("data.js", "[m.rowsOf({}), m.median([3, 1, 2]), m.median([4, 1, 2, 3])]") == [[], 2, 2.5]


def test_an_address_holds_a_view_or_a_section(run: Run) -> None:
    assert run(
        "address.js", "['', '#energy', '#figure-x'].map((a) => [m.parseAddress(a).view, m.parseAddress(a).section])"
    ) == [*(["report", ""], ["report", "energy"], ["report", "figure-x"])]
    assert run("address.js", "m.parseAddress('#view=explore&gpu=a%26b&gpu=c').parameters.getAll('gpu')") == ["a&b", "c"]


def test_axes_have_round_ticks_within_their_ends(run: Run) -> None:
    linear = run("scale.js", "m.ticksOf(m.scaleOf([0, 97], false, 0, 1), 5)")
    assert linear == [0, 25, 50, 75, 100]
    logarithmic = run("scale.js", "m.ticksOf(m.scaleOf([3, 2000], true, 0, 1), 8)")
    assert logarithmic == [5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    # A scale of nothing, of zeros and of one value still has an extent.
    assert (
        run(
            "scale.js",
            "[[], [0, 0], [5]].map((v) => [true, false].every((l) => m.ticksOf(m.scaleOf(v, l, 0, 1), 5).length > 0))",
        )
        == [True] * 3
    )


def test_blocks_of_a_request_over_its_steps_are_those_of_the_formula(run: Run) -> None:
    """The sum over the decode steps is what `block_seconds` counts, and the prompt's blocks are there before."""
    chance = random.Random(3)
    requests = [
        {
            "prompt_tokens": chance.randint(1, 200),
            "output_tokens": chance.randint(2, 90),
            "block_size": chance.choice([1, 8, 16, 48]),
        }
        for _ in range(300)
    ]
    script = """(requests) => requests.map((r) => {
      const steps = r.output_tokens - 1;
      const request = {...r, scheduled_s: 0, first_token_s: 1, last_token_s: 1 + steps};
      const held = (time) => m.blocksAt([request], time, r.block_size).reduce((n, b) => n + b.full + (b.partly > 0), 0);
      return [held(0.5), ...Array.from({length: steps}, (_, i) => held(1.5 + i))].reduce((a, b) => a + b);
    })"""
    summed = run("blocks.js", f"({script})({json.dumps(requests)})")
    expected = [
        formulas.block_seconds(
            float(r["prompt_tokens"]), float(r["output_tokens"]), 1.0, r["output_tokens"] - 1.0, r["block_size"]
        )
        for r in requests
    ]
    assert summed == pytest.approx(expected)


def test_shared_blocks_count_once(run: Run) -> None:
    """Four requests of 40 tokens; three found the 32 of two blocks in the cache, and the first filled them."""
    of_one = {"prompt_tokens": 40, "output_tokens": 10, "scheduled_s": 0, "first_token_s": 5, "last_token_s": 9}
    requests = [of_one, *({**of_one, "cached_prompt_tokens": 32} for _ in range(3))]
    assert run("blocks.js", f"m.blocksInUse(m.blocksAt({json.dumps(requests)}, 1, 16))") == 3 + 3
    assert run("blocks.js", f"m.blocksInUse(m.blocksAt({json.dumps(requests[1:])}, 1, 16))") == 2 + 3
    assert run("blocks.js", f"m.blocksAt({json.dumps(requests)}, 9, 16)") == []


def test_phases_of_a_request_that_lack_a_time_are_left_out(run: Run) -> None:
    request = {"queued_s": 0, "scheduled_s": 0.5, "first_token_s": 1, "last_token_s": None}
    assert run("timeline.js", f"m.phasesOf({json.dumps(request)})") == [["waiting", 0, 0.5], ["prefill", 0.5, 1]]

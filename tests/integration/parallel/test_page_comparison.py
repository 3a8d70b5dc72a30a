"""Comparing reports in the page: its statistics and rules beside those of Python, and the view in a real browser."""

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from tests.browser import Tab
from tests.unit.analyse.digests import ENVIRONMENT, cell, digest, mean, pair, random_digest
from tests.unit.present.synthetic import SCRIPT
from workflow_scripts.analyse.compare.comparability import value_text
from workflow_scripts.analyse.compare.comparison import comparison
from workflow_scripts.analyse.compare.digest import Digest, read_digest
from workflow_scripts.present.page_data import packed

pytestmark = pytest.mark.needs_tool("chromium")

VIEW = "#view=compare"
STATUS = "document.querySelector('#view-compare [role=status]')"
IN_PAGE = re.compile(r'<template id="digest">[^<]*</template>')


def test_students_distribution_is_that_of_scipy(in_page):
    """Tails and quantiles for 4,000 random degrees of freedom from 0.5 to 10 million, and the normal distribution."""
    chance = random.Random(8)
    dfs = [*(10 ** chance.uniform(-0.3, 7) for _ in range(4000)), 1.0, 2.0]
    points = [[10 ** chance.uniform(-3, 1), df] for df in dfs]
    tails = in_page("student.js", f"{json.dumps(points)}.map(([t, df]) => m.studentTail(t, df))")
    assert tails == pytest.approx([stats.t.sf(t, df) for t, df in points], rel=1e-6, abs=1e-20)
    asked = [[chance.choice([0.95, 0.975]), df] for df in dfs]
    quantiles = in_page("student.js", f"{json.dumps(asked)}.map(([p, df]) => m.studentQuantile(p, df))")
    assert quantiles == pytest.approx([stats.t.ppf(p, df) for p, df in asked], rel=1e-9)
    normal = "[m.studentTail(1.5, Infinity), m.studentTail(6, Infinity), m.studentQuantile(0.975, Infinity)]"
    assert in_page("student.js", normal) == pytest.approx([stats.norm.sf(1.5), stats.norm.sf(6), stats.norm.ppf(0.975)])
    assert in_page("student.js", "[m.studentTail(-1, 5), m.studentTail(0, 5)]") == pytest.approx(
        [stats.t.sf(-1, 5), 0.5]
    )
    assert in_page("student.js", "[m.studentTail(1, 0), m.studentQuantile(0.95, NaN)].map(Number.isNaN)") == [
        True,
        True,
    ]


def test_numbers_are_written_as_by_the_command(in_page):
    numbers = [0, -0.0, 1, -2.5, 1e15, 999999999999999.9, 1e16, 1e21, 1e22, 1.5e-4, 1e-5, 1.25e-7, -3e-300, 0.1 + 0.2]
    assert in_page("comparability.js", f"{json.dumps(numbers)}.map(m.valueText)") == [
        value_text(value) for value in numbers
    ]


def same(here: Any, there: Any, where: str = "") -> None:
    """Whether two JSON values are equal, with numbers to nine digits."""
    if isinstance(there, dict):
        assert list(here) == list(there), where
        for name in there:
            same(here[name], there[name], f"{where}.{name}")
    elif isinstance(there, list):
        assert len(here) == len(there), where
        for place, (one, other) in enumerate(zip(here, there, strict=True)):
            same(one, other, f"{where}.{place}")
    elif isinstance(there, float) and not isinstance(here, bool):
        assert here == pytest.approx(there, rel=1e-9), where
    else:
        assert here == there, where


def test_a_comparison_is_that_of_python(in_page):
    """60 pairs of made-up studies with some of everything: ratios, intervals, verdicts, reasons and differences."""
    chance = random.Random(15)
    cases = [(random_digest(chance), random_digest(chance), chance.choice([0.0, 0.1, 15.0])) for _ in range(60)]
    told = json.dumps([[a.model_dump(mode="json"), b.model_dump(mode="json"), vary] for a, b, vary in cases])
    here = in_page("comparison.js", f"{told}.map(([a, b, vary]) => m.comparison(a, b, vary))")
    seen = set()
    for found, (a, b, vary) in zip(here, cases, strict=True):
        expected = comparison(a, b, vary).model_dump(mode="json")
        same(found, expected)
        seen |= {row["verdict"] for row in expected["cells"]} | {row["contradiction"] for row in expected["pairs"]}
        seen |= {why.split(" in A")[0] for row in expected["refused"] for why in row["why"]}
    assert {"changes", "flat", "not decided", "opposite directions", "flat against changes", None} <= seen
    assert len(seen) > 12


def other(report: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """The report with a digest that `change` has changed, as another run would have it."""
    record = read_digest(report).model_dump(mode="json")
    change(record)
    path = report.with_name(name)
    path.write_text(IN_PAGE.sub(f'<template id="digest">{packed(record)}</template>', report.read_text()))
    return path


def next_day(record: dict[str, Any]) -> None:
    """Everything a third faster on another host a day later, with a newer engine."""
    for of_cell in record["cells"]:
        of_cell["began"] = of_cell["began"] and of_cell["began"].replace("01-02", "01-03")
        for of_mean in of_cell["means"]:
            of_mean["log_mean"] += math.log(1.33)
        of_cell["environment"] |= {"host": ["node-2"], "engine_version": ["0.33.0"]}


def choose(tab: Tab, path: Path) -> None:
    """Give the file to the page's own input, as the browser's dialog does."""
    root = tab.call("DOM.getDocument")["root"]["nodeId"]
    node = tab.call("DOM.querySelector", nodeId=root, selector="#view-compare input[type=file]")["nodeId"]
    tab.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)


def drop(tab: Tab, path: Path) -> None:
    """Drop the file onto the page."""
    script = """(text) => {
      const data = new DataTransfer();
      data.items.add(new File([text], "other.html", { type: "text/html" }));
      const event = (name) => new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true });
      return [document.body.dispatchEvent(event("dragover")), document.body.dispatchEvent(event("drop"))];
    }"""
    # Both are prevented; otherwise the browser would leave the page and open the file.
    assert tab.evaluate(f"({script})({json.dumps(path.read_text())})") == [False, False]


def test_a_dropped_report_is_compared_as_by_the_command(tab, report, tmp_path):
    before = other(report, "before.html", next_day)
    tab.open(report)
    drop(tab, before)
    tab.wait("document.querySelector('#view-compare table')")
    assert "view=compare" in tab.evaluate("location.hash")
    expected = comparison(read_digest(before), read_digest(report))
    told = tab.evaluate(f"{STATUS}.innerText")
    assert "A: synthetic (other.html). B: synthetic (this report)." in told
    cells = len({row.cell for row in expected.cells})
    assert f"{len(expected.cells)} measures of {cells} cells compared: 0 changed, 0 flat within 2 %" in told
    assert f"{len(expected.pairs)} comparisons of the same two cells" in told
    rows = "[...document.querySelectorAll('#view-compare table')].map((t) => [t.ariaLabel, t.rows.length - 1])"
    shown = dict(tab.evaluate(rows))
    assert shown["Cells, the largest change first"] == min(50, len(expected.cells))
    assert len(expected.cells) > 50
    buttons = "[...document.querySelectorAll('#view-compare .save button')]"
    save = f"{buttons}.find((button) => button.ariaLabel.includes('CSV: Cells,'))"
    assert len(tab.download(save, tmp_path).read_text(encoding="utf-8").splitlines()) == 1 + len(expected.cells)
    assert shown["What else differs between A and B"] == len(expected.differences)
    assert "0.33.0" in tab.evaluate("document.querySelector('#view-compare').innerText")
    # The other way round, and with occasions that hardly vary.
    tab.evaluate("document.querySelector('#view-compare input[type=checkbox]').click()")
    tab.wait(f"{STATUS}.innerText.includes('A: synthetic (this report)')")
    set_vary = "(i) => { i.value = '1'; i.dispatchEvent(new Event('input')); }"
    tab.evaluate(f"({set_vary})(document.querySelector('#view-compare input[type=number]'))")
    changed = sum(row.verdict == "changes" for row in comparison(read_digest(report), read_digest(before), 1).cells)
    assert changed > 0
    tab.wait(f"{STATUS}.innerText.includes('compared: {changed} changed')")
    tab.evaluate("document.querySelector('#view-compare tbody .link').click()")
    tab.wait("document.querySelector('dialog')?.open")
    tab.press("Escape")


def test_a_report_is_chosen_by_keyboard_and_the_same_report_is_not_compared(tab, report):
    tab.open(report, VIEW)
    tab.wait("document.querySelector('#view-compare input[type=file]')")
    assert tab.evaluate(f"{STATUS}.innerText") == "No other report has been chosen yet."
    tab.evaluate("document.querySelector('#tab-compare').focus()")
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.outerHTML").startswith('<input type="file"')
    choose(tab, report)
    tab.wait("document.querySelector('#view-compare table')")
    assert "0 measures of 0 cells compared" in tab.evaluate(f"{STATUS}.innerText")
    assert "same measurement" in tab.evaluate("document.querySelector('#view-compare').innerText")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<p>some page</p>", "not a report"),
        ('<template id="digest">AAAA</template>', "cannot be unpacked"),
        (f'<template id="digest">{packed({"version": 2})}</template>', "of another version: version"),
        (f'<template id="digest">{packed([])}</template>', "of another version: version"),
    ],
)
def test_a_file_that_is_no_report_is_told(tab, report, tmp_path, text, told):
    (tmp_path / "other.html").write_text(text)
    tab.open(report, VIEW)
    tab.wait("document.querySelector('#view-compare input[type=file]')")
    choose(tab, tmp_path / "other.html")
    tab.wait(f"{STATUS}.innerText.includes({json.dumps(told)})")


def hostile_study() -> Digest:
    """Markup, and names that objects inherit, in every text of a digest."""
    image = "<img src=x onerror=\"document.title='hit'\">"
    texts = [SCRIPT, image, "__proto__", "constructor"]
    environment = {**ENVIRONMENT, "host": [image], "constructor": ["x"], "__proto__": [image]}
    hostile = {"environment": environment, "effective": {"toString": image, "__proto__": 1}}
    cells = [cell(f"{text}", mean(100 + place), began=text, **hostile) for place, text in enumerate(texts)]
    return digest(
        *cells,
        cell(f"refused{image}", mean(1), comparable=False, reason=image, **hostile),
        cell("ended", outcome=image, reason=SCRIPT, **hostile),
        study=image,
        settings={"equivalence_margin_pct": 2.0, image: SCRIPT, "__proto__": 3},
        pairs=[pair(1.5, 1.4, 1.6, image, name=SCRIPT, scope=image, cell=cells[0].id, baseline=cells[1].id)],
    )


def test_markup_in_another_report_stays_text(tab, report):
    """Both studies are hostile, so that their cells are compared; the page around the other one would run scripts."""
    one = hostile_study()
    two = one.model_copy(update={"cells": [of.model_copy(update={"began": None}) for of in one.cells]})
    paths = []
    for name, of in (("one.html", one), ("two.html", two)):
        block = f'<template id="digest">{packed(of.model_dump(mode="json"))}</template>'
        paths.append(report.with_name(name))
        paths[-1].write_text(IN_PAGE.sub(block, report.read_text()))
    paths[1].write_text(f"<script>document.title = 'hit'</script>{SCRIPT}{paths[1].read_text()}")
    tab.open(paths[0])
    title = tab.evaluate("document.title")
    drop(tab, paths[1])
    tab.wait("document.querySelector('#view-compare table')")
    told = tab.evaluate("document.querySelector('#view-compare').innerText")
    assert told.count(SCRIPT) >= 2
    assert "<img src=x" in told
    assert tab.evaluate("document.querySelectorAll('#view-compare img, #view-compare script').length") == 0
    assert tab.evaluate("document.title") == title
    assert tab.evaluate("({}).onerror === undefined && ({}).host === undefined")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_view_fits_the_window(tab, report, width, dark):
    tab.open(report, VIEW, width=width, dark=dark)
    tab.wait("document.querySelector('#view-compare input[type=file]')")
    drop(tab, other(report, "before.html", next_day))
    tab.wait("document.querySelector('#view-compare table')")
    assert tab.too_wide("#view-compare *") == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width

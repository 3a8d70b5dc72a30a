"""The report in a real browser: it fits the window, logs no errors and requests nothing from outside."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import UNFOLD, Tab
from tests.unit.present.synthetic import DRAWN

pytestmark = pytest.mark.needs_tool("chromium")

# Height of the windows that are opened.
SCREEN_PX = 900
PROBE = """(() => {
  return {
    width: innerWidth,
    scrollWidth: document.documentElement.scrollWidth,
    scrolling: [...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth + 1)
      .map((e) => e.firstElementChild.ariaLabel),
    height: document.documentElement.scrollHeight,
    plots: [...document.querySelectorAll("figure .plot svg")].filter((e) => e.checkVisibility())
      .map((e) => e.clientWidth),
    sortable: document.querySelectorAll("thead th button").length,
    firstAnswer: document.querySelector(".answers li").getBoundingClientRect().bottom,
    firstPicture: document.querySelector(".pictures figure").getBoundingClientRect().top,
    background: getComputedStyle(document.body).backgroundColor,
  };
})()"""


def probe(tab: Tab) -> dict[str, Any]:
    return {**tab.evaluate(PROBE), "tooWide": tab.too_wide("body *", ".scroll, pre, .skip")}


def seen_at(tab: Tab, report: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
    """What the probe finds in the page with all sections open, at a width in CSS pixels; the console must stay silent.

    `folded` is what it finds as the page opens.
    """
    tab.open(report, width=width, dark=dark)
    folded = probe(tab)
    tab.evaluate(UNFOLD)
    seen = {**probe(tab), "folded": folded}
    assert tab.complaints == []
    return seen


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_its_width_with_every_figure_and_begins_with_an_answer(one_tab, report, width):
    seen = seen_at(one_tab, report, width)
    assert seen["width"] == width
    assert seen["tooWide"] == []
    assert seen["scrollWidth"] == width
    assert width == 400 or seen["scrolling"] == []
    drawn = json.loads((report.parent / "figures/figures.json").read_text(encoding="utf-8"))
    figures = [name for name in DRAWN if "missing" not in drawn[name]]
    # Each in its section, and two on the first screen.
    assert len(seen["plots"]) == len(figures) + 2
    assert all(wide > 300 for wide in seen["plots"])
    assert seen["sortable"] > 20
    folded = seen["folded"]
    assert (folded["scrollWidth"], folded["tooWide"]) == (width, [])
    assert 0 < folded["firstAnswer"] <= SCREEN_PX
    assert folded["firstAnswer"] < folded["firstPicture"]


# Of each table with numbers in a narrow window: how far its cells lie from below their headings (of a single row, from
# beside them), where its first number ends, by how much a number is too wide, and whether what names its rows tells
# them apart and stands above the numbers.
NARROW = """[...document.querySelectorAll("#view-report table:has(tbody .number)")].map((t) => {
  const [left, top] = ["left", "top"].map((side) => (e) => e.getBoundingClientRect()[side]);
  const single = t.closest(".single");
  const place = single ? top : left;
  const [head, rows] = [[...t.tHead.rows[0].cells], [...t.tBodies[0].rows]];
  const names = rows.map((row) => [...row.querySelectorAll(".name")]);
  const number = t.querySelector("tbody .number");
  return {
    title: t.ariaLabel,
    apart: Math.max(...rows.flatMap((row) => [...row.cells].map((cell, i) => Math.abs(place(cell) - place(head[i]))))),
    ends: number.getBoundingClientRect().right,
    wide: Math.max(...[...t.querySelectorAll(".number")].map((e) => e.scrollWidth - e.clientWidth)),
    tells: new Set(names.map((of) => of.map((e) => e.textContent).join())).size === rows.length,
    first: Boolean(single) || Math.max(...[...number.closest("tr").querySelectorAll(".name")].map(top)) < top(number),
  };
})"""


def test_a_narrow_window_shows_what_names_a_row_and_its_first_number_below_their_headings(one_tab, report):
    one_tab.open(report, width=400)
    one_tab.evaluate(UNFOLD)
    tables = one_tab.evaluate(NARROW)
    assert len(tables) > 20
    assert [of for of in tables if of["apart"] > 0.5 or of["ends"] > 400 or of["wide"] > 0] == []
    named = [of for of in tables if of["tells"]]
    assert len(named) > len(tables) / 2
    assert all(of["first"] for of in named)


def test_a_planted_script_is_refused_and_the_console_says_so(one_tab, report, tmp_path):
    planted = tmp_path / "planted.html"
    html = report.read_text(encoding="utf-8").replace("</body>", "<script>document.body.remove()</script></body>")
    planted.write_text(html, encoding="utf-8")
    one_tab.open(planted)
    assert one_tab.evaluate("document.querySelectorAll('main section').length") > 10
    assert any("Content Security Policy" in complaint for complaint in one_tab.complaints)


# What is seen in print: nothing of the views, and no table wider than an A4 page between its margins (673 pixels).
PRINTED = """(() => {
  const seen = (e) => e.checkVisibility() && e.getClientRects().length;
  const shown = (chosen) => [...document.querySelectorAll(chosen)].filter(seen).length;
  return {
    report: shown("#view-report #summary, #view-report .pictures .plot"),
    screen: shown(".tabs, .save, .plain, dialog, .filter, .controls, #view-explore *"),
    wide: [...document.querySelectorAll("#view-report table")].filter((e) => e.checkVisibility())
      .filter((e) => e.getBoundingClientRect().width > 674).map((e) => e.ariaLabel),
  };
})()"""


def test_the_page_prints_as_an_a4_document_of_few_pages_whatever_is_on_the_screen(one_tab, report):
    cell = "h200/vllm/llama-3.1-8b-instruct/chat/bs16-seqs64-len4096"
    one_tab.open(report, f"#view=explore&cell={cell}", dark=True)
    one_tab.wait("document.querySelector('dialog')?.open")
    printed = base64.b64decode(one_tab.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    boxes = [[float(side) for side in box.split()] for box in re.findall(rb"/MediaBox \[([\d. ]+)\]", printed)]
    assert 3 < len(boxes) <= 12
    # Points of A4: 210 x 297 mm.
    assert all(box == pytest.approx([0, 0, 595.3, 841.9], abs=1) for box in boxes)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    one_tab.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    one_tab.call("Emulation.setDeviceMetricsOverride", width=673, height=985, deviceScaleFactor=1, mobile=False)
    seen = one_tab.evaluate(PRINTED)
    one_tab.call("Emulation.setEmulatedMedia", media="", features=[])
    assert seen == {"report": 3, "screen": 0, "wide": []}

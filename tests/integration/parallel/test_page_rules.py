"""The rules of the page, measured in a real browser at two widths: little to read first, pictures that can be read."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Tab
from tests.unit.present.synthetic import GENERATED, draw_generated

pytestmark = pytest.mark.needs_tool("chromium")

# Texts above the first table, without those of pictures; pictures; answers; the smallest text in a picture; sections.
MEASURE = r"""(() => {
  const box = (e) => e.getBoundingClientRect();
  const seen = (e) => e.checkVisibility() && box(e).width > 0 && box(e).height > 0;
  const top = (e) => Math.round(box(e).top + scrollY);
  const first = [...document.querySelectorAll("table")].find(seen);
  const end = first ? top(first) : 1e9;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const parent = node.parentElement;
    if (!node.textContent.trim() || !parent.checkVisibility() || parent.closest("svg, script, style")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const at = range.getBoundingClientRect();
    if (at.width > 0 && at.left >= 0 && at.top + scrollY < end) texts.push(node.textContent);
  }
  const lines = (e) => {
    const range = document.createRange();
    range.selectNodeContents(e);
    return new Set([...range.getClientRects()].filter((r) => r.width > 0).map((r) => Math.round(r.top / 12))).size;
  };
  const scale = (svg) => box(svg).width / svg.viewBox.baseVal.width;
  const inPlots = [...document.querySelectorAll(".plot svg text")].filter(seen);
  const focusable = "a[href], button, input, select, summary, [tabindex]";
  return {
    above: texts.join("\n"),
    table: end,
    pictures: [...document.querySelectorAll(".pictures svg[viewBox]:not(.marks)")].filter(seen)
      .map((e) => [top(e), Math.round(box(e).width), Math.round(box(e).height)]),
    answers: [...document.querySelectorAll(".answers li")].map((e) => ({
      verdict: e.querySelector(".verdict").innerText.trim(),
      question: e.querySelector(".q").innerText, answer: e.querySelector(".ans").innerText,
      lines: lines(e.querySelector(".ans"))})),
    smallest: Math.min(...inPlots.map((e) => parseFloat(getComputedStyle(e).fontSize) * scale(e.ownerSVGElement))),
    width: document.documentElement.scrollWidth,
    sections: [...document.querySelectorAll("main section:has(> .told)")].map((e) => ({
      id: e.id, told: e.querySelector(".told").innerText,
      wide: Math.max(0, ...[...e.querySelectorAll(":scope > figure .plot svg")].map((s) => box(s).width)),
      folds: e.querySelectorAll(":scope > details").length})),
    stops: [...document.querySelectorAll(focusable)].filter((e) => seen(e) && e.tabIndex >= 0).length,
    sentences: [...document.querySelectorAll(".told")].map((e) => e.innerText),
    outside: [...document.querySelectorAll(".pictures .plot svg text, section > figure .plot svg text")]
      .filter((e) => seen(e) && (box(e).right > box(e.ownerSVGElement).right + 2
        || box(e).left < box(e.ownerSVGElement).left - 2))
      .map((e) => e.textContent),
  };
})()"""
VERDICT = re.compile(r"[▲✕◐△○]\s*(Yes|No|Partly|Likely|Open)")


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z0-9][\w'.,%/×-]*", text))


def numbers(text: str) -> int:
    return len(re.findall(r"(?<![A-Za-z\d,.-])\d[\d,]*(?:\.\d+)?", text))


def measured(tab: Tab, page: Path, width: int) -> dict[str, Any]:
    tab.open(page, width=width)
    tab.wait("document.querySelector('.tabs')")
    found: dict[str, Any] = tab.evaluate(MEASURE)
    assert tab.complaints == []
    return found


def keeps_the_rules(tab: Tab, page: Path, *, least_pictures: int = 2) -> None:
    wide = measured(tab, page, 1280)
    assert (words(wide["above"]) <= 120, numbers(wide["above"]) <= 40) == (True, True), wide["above"]
    assert not re.search(r"\d[\d.,]* to \d[\d.,]*\)|interval \d[\d.,]* to", wide["above"])
    assert 3 <= len(wide["answers"]) <= 7
    for of in wide["answers"]:
        assert VERDICT.fullmatch(of["verdict"]), of
        assert words(of["question"]) <= 6, of
        assert words(of["answer"]) <= 8, of
        assert numbers(of["answer"]) <= 4, of
        assert of["lines"] == 1, of
    assert len(wide["pictures"]) >= least_pictures
    assert all(y + high <= 800 and across >= 560 and high >= 300 for y, across, high in wide["pictures"])
    assert wide["table"] <= 900
    assert (wide["smallest"] >= 12, wide["width"]) == (True, 1280)
    assert wide["outside"] == []
    for section in wide["sections"]:
        assert words(section["told"]) <= 14, section
        assert numbers(section["told"]) <= 2, section
        assert section["wide"] == 0 or section["wide"] >= 760, section
        assert section["folds"] <= 2, section
    assert len(set(wide["sentences"])) == len(wide["sentences"])
    assert wide["stops"] <= 60
    narrow = measured(tab, page, 400)
    assert words(narrow["above"]) <= 140
    assert all(of["lines"] <= 2 for of in narrow["answers"])
    assert (narrow["smallest"] >= 12, narrow["width"]) == (True, 400)
    assert narrow["pictures"][0][0] < 920
    assert narrow["outside"] == []


@pytest.mark.parametrize("name", GENERATED)
def test_the_page_of_any_study_keeps_the_rules(one_tab, tmp_path_factory, name):
    keeps_the_rules(one_tab, draw_generated(tmp_path_factory.mktemp("drawn"), name))


@pytest.mark.parametrize("evidence", ["two_gpus", "h200_later", "slurm_h100"])
def test_the_pages_of_recorded_evidence_keep_the_rules(one_tab, request, evidence):
    keeps_the_rules(one_tab, request.getfixturevalue(evidence) / "report.html")

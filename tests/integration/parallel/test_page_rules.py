"""The rules of the page, measured in a real browser at two widths: little to read first, pictures that can be read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Tab
from tests.unit.present.generated import GENERATED, SEEDS, draw_generated
from workflow_scripts.present import compare

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
  const said = (elements) => elements.filter(seen).map((e) => e.innerText).join("\n");
  const scale = (svg) => box(svg).width / svg.viewBox.baseVal.width;
  const inPlots = [...document.querySelectorAll(".plot svg text")].filter(seen);
  // Texts of one picture that lie on each other; a pixel at each side is free.
  const collisions = [...document.querySelectorAll(".plot svg, .answers svg")].filter(seen).flatMap((svg) => {
    const texts = [...svg.querySelectorAll("text")].map((e) => [e.textContent, box(e)]);
    const meet = (r, s) => r.left + 2 < s.right && s.left + 2 < r.right && r.top + 6 < s.bottom && s.top + 6 < r.bottom;
    return texts.flatMap(([a, r], i) => texts.slice(i + 1).filter(([, s]) => meet(r, s)).map(([b]) => `${a} | ${b}`));
  });
  const focusable = "a[href], button, input, select, summary, [tabindex]";
  return {
    above: texts.join("\n"),
    table: first ? end : 0,
    pictures: [...document.querySelectorAll(".pictures svg[viewBox]:not(.marks)")].filter(seen)
      .map((e) => [top(e), Math.round(box(e).width), Math.round(box(e).height)]),
    answers: [...document.querySelectorAll(".answers li")].map((e) => ({
      verdict: e.querySelector(".verdict").innerText.trim(),
      question: e.querySelector(".q").innerText, answer: e.querySelector(".ans").innerText,
      lines: lines(e.querySelector(".ans"))})),
    prose: said([...document.querySelectorAll("main p, main .ans")]),
    collisions,
    smallest: Math.min(99, ...inPlots.map((e) => parseFloat(getComputedStyle(e).fontSize) * scale(e.ownerSVGElement))),
    width: document.documentElement.scrollWidth,
    sections: [...document.querySelectorAll("main section:has(> .told)")].map((e) => ({
      id: e.id, told: e.querySelector(".told").innerText, said: said([...e.querySelectorAll(":scope > :not(figure)")]),
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
    tab.wait("document.querySelector('.tabs') || !document.querySelector('#page-data')")
    found: dict[str, Any] = tab.evaluate(MEASURE)
    assert tab.complaints == []
    return found


def broken_rules(tab: Tab, page: Path, *, answers: int = 3, pictures: int = 2) -> Iterator[str]:
    """What a page breaks of the rules, at both widths; above its first table it has so many answers and pictures."""
    wide = measured(tab, page, 1280)
    yield from _of_any_width(wide, 1280, most_words=120, most_lines=1)
    if numbers(wide["above"]) > 40:
        yield f"{numbers(wide['above'])} numbers above the table: {wide['above']}"
    if not answers <= len(wide["answers"]) <= 7:
        yield f"{len(wide['answers'])} answers"
    for of in wide["answers"]:
        most = (words(of["question"]) <= 6, words(of["answer"]) <= 8, numbers(of["answer"]) <= 4)
        if not (VERDICT.fullmatch(of["verdict"]) and all(most)):
            yield f"answer: {of}"
    if len(wide["pictures"]) < pictures:
        yield f"{len(wide['pictures'])} pictures"
    for y, across, high in wide["pictures"]:
        if y + high > 800 or across < 560 or high < 300:
            yield f"picture of {across} x {high} at y = {y}"
    if pictures and wide["table"] > 900:
        yield f"first table at y = {wide['table']}"
    for section in wide["sections"]:
        if words(section["told"]) > 14 or numbers(section["told"]) > 2 or words(section["said"]) > 60:
            yield f"section's words: {section}"
        if 0 < section["wide"] < 760 or section["folds"] > 2:
            yield f"section's picture or folds: {section}"
    if len(set(wide["sentences"])) < len(wide["sentences"]):
        yield f"a sentence occurs twice: {wide['sentences']}"
    if wide["stops"] > 60:
        yield f"{wide['stops']} tab stops"
    narrow = measured(tab, page, 400)
    yield from _of_any_width(narrow, 400, most_words=140, most_lines=2)
    if pictures and narrow["pictures"][0][0] >= 920:
        yield f"first picture at y = {narrow['pictures'][0][0]} at 400"


def _of_any_width(found: dict[str, Any], width: int, most_words: int, most_lines: int) -> Iterator[str]:
    if words(found["above"]) > most_words:
        yield f"{words(found['above'])} words above the table at {width}: {found['above']}"
    if re.search(r"\d[\d.,]* to \d[\d.,]*\)|interval \d[\d.,]* to", found["prose"]):
        yield f"an interval in prose: {found['prose']}"
    for of in found["answers"]:
        if of["lines"] > most_lines:
            yield f"answer of {of['lines']} lines at {width}: {of['answer']}"
    if found["smallest"] < 12:
        yield f"text of {found['smallest']:.1f} px in a picture at {width}"
    if found["width"] != width:
        yield f"{found['width']} px wide at {width}"
    for what in ("outside", "collisions"):
        if found[what]:
            yield f"{what} at {width}: {found[what]}"


@pytest.mark.parametrize("name", [*GENERATED, *map(str, SEEDS)])
def test_the_page_of_any_study_keeps_the_rules(one_tab, tmp_path_factory, name):
    assert list(broken_rules(one_tab, draw_generated(tmp_path_factory.mktemp("drawn"), name))) == []


@pytest.mark.parametrize("evidence", ["two_gpus", "h200_later", "slurm_h100"])
def test_the_pages_of_recorded_evidence_keep_the_rules(one_tab, request, evidence):
    assert list(broken_rules(one_tab, request.getfixturevalue(evidence) / "report.html")) == []


def test_the_page_of_a_comparison_keeps_the_rules(one_tab, two_gpus, h200_later, tmp_path):
    compare.main([str(two_gpus), str(h200_later), "--html", str(tmp_path / "comparison.html")])
    assert list(broken_rules(one_tab, tmp_path / "comparison.html")) == []

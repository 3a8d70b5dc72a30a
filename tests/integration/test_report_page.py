"""The report in a real browser: it fits the window, logs no errors and requests nothing from outside."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Tab
from tests.unit.present.synthetic import write_results
from workflow_scripts.present import figures, page

pytestmark = pytest.mark.needs_tool("chromium")

LOADED = "[...document.images].every((image) => image.complete)"
PROBE = """(() => {
  const wide = [...document.querySelectorAll("body *")].filter((e) =>
    !e.closest(".scroll, pre, .skip") && e.getBoundingClientRect().right > innerWidth + 0.5);
  return {
    width: innerWidth,
    scrollWidth: document.documentElement.scrollWidth,
    tooWide: wide.map((e) => e.outerHTML.slice(0, 80)),
    images: [...document.images].map((i) => ({loaded: i.complete && i.naturalWidth > 0, width: i.clientWidth,
      drawn: i.currentSrc === i.src ? "page" : "column"})),
    sortable: document.querySelectorAll("thead th button").length,
    firstScreen: document.getElementById("summary").getBoundingClientRect().bottom,
    background: getComputedStyle(document.body).backgroundColor,
  };
})()"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    study = str(write_results(root))
    tables, drawn, out = str(root / "tables"), str(root / "figures"), root / "report.html"
    assert figures.main(["--study", study, "--tables", tables, "--parsed", str(root / "parsed"), "--out", drawn]) == 0
    folders = ["--tables", tables, "--figures", drawn, "--cells", str(root / "cells")]
    assert page.main(["--study", study, *folders, "--out", str(out)]) == 0
    return out


def seen_at(tab: Tab, report: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
    """What the probe finds in the page at a width in CSS pixels; the console must stay silent."""
    tab.open(report, width=width, dark=dark)
    tab.wait(LOADED)
    seen: dict[str, Any] = tab.evaluate(PROBE)
    assert tab.complaints == []
    return seen


@pytest.mark.parametrize(("width", "drawn", "screens"), [(1280, "page", 1), (400, "column", 2)])
def test_the_page_fits_its_width_with_every_figure(
    one_tab: Tab, report: Path, width: int, drawn: str, screens: int
) -> None:
    seen = seen_at(one_tab, report, width)
    assert seen["width"] == width
    assert seen["tooWide"] == []
    assert seen["scrollWidth"] == width
    images = seen["images"]
    assert len(images) == len(figures.FIGURES)
    assert all(image["loaded"] and image["drawn"] == drawn and image["width"] > 300 for image in images)
    assert seen["sortable"] > 20
    assert 0 < seen["firstScreen"] <= screens * 800


def test_the_page_turns_dark_with_the_reader(one_tab: Tab, report: Path) -> None:
    light, dark = seen_at(one_tab, report, 1280), seen_at(one_tab, report, 1280, dark=True)
    assert (light["background"], dark["background"]) == ("rgb(254, 254, 254)", "rgb(20, 24, 29)")


def test_the_page_is_drawn_and_has_one_main_part_that_holds_its_views(
    one_tab: Tab, report: Path, tmp_path: Path
) -> None:
    one_tab.open(report)
    one_tab.wait(LOADED)
    one_tab.picture(tmp_path / "page.png", whole=True)
    assert (tmp_path / "page.png").stat().st_size > 100_000
    assert one_tab.evaluate("document.querySelectorAll('main').length") == 1
    outside = "[...document.body.children].filter((e) => !e.matches('main, header, .skip, script, template')).length"
    assert one_tab.evaluate(outside) == 0


def test_a_planted_script_is_refused_and_the_console_says_so(one_tab: Tab, report: Path, tmp_path: Path) -> None:
    planted = tmp_path / "planted.html"
    html = report.read_text(encoding="utf-8").replace("</body>", "<script>document.body.remove()</script></body>")
    planted.write_text(html, encoding="utf-8")
    one_tab.open(planted)
    assert one_tab.evaluate("document.querySelectorAll('main section').length") > 10
    assert any("Content Security Policy" in complaint for complaint in one_tab.complaints)


def test_the_page_prints_with_all_folds_open(one_tab: Tab, report: Path) -> None:
    one_tab.open(report)
    printed = base64.b64decode(one_tab.call("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", printed)) > 3
    assert one_tab.evaluate("document.querySelectorAll('#view-report details:not([open])').length") == 0

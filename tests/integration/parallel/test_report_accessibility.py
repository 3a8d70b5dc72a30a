"""The page for everybody: axe-core finds nothing to complain of, and the keyboard reaches everything."""

import hashlib
from pathlib import Path

import pytest

from tests.browser import UNFOLD, Tab

pytestmark = pytest.mark.needs_tool("chromium")

AXE = Path(__file__).parents[2] / "vendor" / "axe-core" / "axe.min.js"
CELL = "l40s/vllm/llama-3.1-8b-instruct/chat/bs16-seqs16-len4096"
VIEWS = "[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)"
DRAWN = "![...document.querySelectorAll('[role=tabpanel]:not([hidden])')].some((p) => !p.querySelector('h1, section'))"
CHECK = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.flatMap((violation) =>
    violation.nodes.map((node) => `${violation.id}: ${node.html.slice(0, 200)} ${node.failureSummary}`)))"""
PLANT = """(() => {
  const planted = document.createElement("div");
  planted.id = "planted";
  planted.append(document.createElement("select"), "hardly seen");
  Object.assign(planted.style, {color: "#888", background: "#999"});
  document.querySelector("main").prepend(planted);
})()"""

# Remembers what has had the focus, and tells what can be reached with the keyboard and what is left of it.
WATCH = """(() => {
  window.reached = new Set();
  document.addEventListener("focusin", (event) => window.reached.add(event.target));
  const kinds = "a[href], button, input, select, textarea, summary, [tabindex]";
  const place = () => document.querySelector("dialog[open]") ?? document;
  window.reachable = () => [...place().querySelectorAll(kinds)].filter((e) => e.checkVisibility() && e.tabIndex >= 0);
  window.left = () => window.reachable().filter((e) => !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 120));
})()"""


def open_view(tab: Tab, name: str) -> None:
    tab.evaluate(f"document.getElementById({name!r}).click()")
    tab.wait(DRAWN)


def test_axe_core_is_the_file_that_was_published():
    told = (AXE.parent / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() in told


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_no_violation_in_any_view(tab, report, width, dark):
    tab.open(report, width=width, dark=dark)
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    tab.evaluate(PLANT)
    found = [violation.split(":")[0] for violation in tab.evaluate(CHECK)]
    assert found == ["color-contrast", "select-name"], "planted faults are found"
    tab.evaluate("document.getElementById('planted').remove()")
    views = tab.evaluate(VIEWS)
    assert len(views) == 3
    for view in views:
        open_view(tab, view)
        assert tab.evaluate(CHECK) == [], view
    open_view(tab, "tab-report")
    tab.evaluate(UNFOLD)
    assert tab.evaluate(CHECK) == []
    tab.evaluate(f"location.hash = '#view=explore&cell={CELL}'")
    tab.wait("document.querySelector('dialog')?.open && document.querySelector('dialog input[type=range]')")
    assert tab.evaluate(CHECK) == []


def walk(tab: Tab) -> list[str]:
    """Press Tab as often as there is something to reach; return what was not reached."""
    tab.evaluate(WATCH)
    for _ in range(tab.evaluate("window.reachable().length") + 30):
        tab.press("Tab")
    left: list[str] = tab.evaluate("window.left()")
    return left


def test_the_keyboard_reaches_everything_in_every_view(tab, report):
    tab.open(report)
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    for view in tab.evaluate(VIEWS):
        open_view(tab, view)
        assert walk(tab) == [], view
        assert tab.evaluate("window.reachable().length") > 3
    open_view(tab, "tab-report")
    folded = tab.evaluate("window.reachable().length")
    tab.evaluate(UNFOLD)
    assert walk(tab) == []
    assert tab.evaluate("window.reachable().length") > folded + 20
    tab.open(report, f"#view=explore&cell={CELL}")
    tab.wait("document.querySelector('dialog')?.open")
    assert walk(tab) == []

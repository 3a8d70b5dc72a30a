"""The page of a comparison in a real browser: it fits the window, and axe finds nothing."""

import random

import pytest

from tests.integration.parallel.test_report_accessibility import AXE, CHECK
from tests.unit.questions.digests import random_digest
from workflow_scripts.present import compare

pytestmark = pytest.mark.needs_tool("chromium")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder, chance = tmp_path_factory.mktemp("comparison"), random.Random(1)
    runs = [folder / name for name in ("a.json", "b.json")]
    for run in runs:
        run.write_text(random_digest(chance).model_dump_json())
    compare.main([*map(str, runs), "--occasions-vary", "1", "--html", str(folder / "comparison.html")])
    return folder / "comparison.html"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_the_window_and_axe_finds_no_violation(tab, comparison, width, dark):
    tab.open(comparison, width=width, dark=dark)
    assert tab.too_wide("body *", ".scroll, pre, .skip") == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("document.querySelectorAll('[role=tab]').length") == 0
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    assert tab.evaluate(CHECK) == []

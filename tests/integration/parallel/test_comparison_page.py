"""The page of a comparison in a real browser: it fits the window, and axe finds nothing."""

import random

import pytest

from tests.integration.parallel.test_report_accessibility import AXE, CHECK
from tests.unit.questions.runs import random_run
from workflow_scripts.present.comparison_page import page
from workflow_scripts.questions.compare import comparison as compare

pytestmark = pytest.mark.needs_tool("chromium")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    path, chance = tmp_path_factory.mktemp("comparison") / "comparison.html", random.Random(1)
    path.write_text(page(compare.comparison([random_run(chance)], random_run(chance), 1)), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_the_window_and_axe_finds_no_violation(tab, comparison, width, dark):
    tab.open(comparison, width=width, dark=dark)
    assert tab.too_wide("body *", ".scroll, pre, .skip") == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("document.querySelectorAll('[role=tab]').length") == 0
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    assert tab.evaluate(CHECK) == []

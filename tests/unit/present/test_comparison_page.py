"""The page that `kvsweep compare --html` draws: what the command prints, and nothing else."""

import random

from tests.unit.present.synthetic import SCRIPT
from tests.unit.present.test_page import Page
from tests.unit.questions.runs import cell, mean, random_run, run
from workflow_scripts.page.kit import MOST_DRAWN
from workflow_scripts.present import compare, comparison_page
from workflow_scripts.questions.compare.comparison import comparison


def page_of(a, b):
    return Page(comparison_page.page(comparison([a], b)))


def test_the_page_has_every_row_that_the_command_prints():
    chance = random.Random(3)
    found = comparison([random_run(chance)], random_run(chance), 1)
    page = Page(comparison_page.page(found))
    parts = compare.tables(found)
    assert {*parts} == {"Cells", "What differs", "Not compared"}
    tables = [table for of_part in parts.values() for table in of_part]
    assert sorted(table["aria-label"] for table in page.all("table")) == sorted(table.caption for table in tables)
    names, values = ([[*row][of] for table in tables for row in table.rows] for of in (slice(1), slice(1, None)))
    assert sorted(page.text["td"]) == sorted(value for row in values for value in row)
    assert {name for (name,) in names} <= {*page.text["th"]}
    assert all(sentence in page.text["p"] for sentence in compare.summary(found))


def test_the_page_loads_nothing_and_has_no_views_and_texts_of_runs_stay_texts():
    hostile = [cell(SCRIPT, mean(rate), began=None, effective={SCRIPT: rate}) for rate in (100, 300)]
    page = page_of(*(run(of, study=SCRIPT) for of in hostile))
    assert len(page.all("script")) == 1
    assert not page.all("link")
    assert page.ids().count("page-data") == 0
    assert any(SCRIPT in text for text in page.text["th"])
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_a_comparison_of_nothing_has_a_page_that_says_why():
    page = page_of(run(cell("bs16", mean(100))), run(cell("bs16", mean(100), comparable=False)))
    assert not page.all("svg")
    assert any("another definition" in text for text in page.text["td"])


def test_the_picture_shows_the_cells_that_differ_most():
    cells = [(cell(f"bs{i}", mean(100)), cell(f"bs{i}", mean(60 + 2 * i))) for i in range(MOST_DRAWN + 5)]
    found = comparison([run(*(a for a, _ in cells))], run(*(b for _, b in cells)), 1)
    plot = comparison_page.ratios(found, "output_tokens_per_s")
    (panel,) = plot.shown
    drawn = panel.rows["value"].tolist()
    assert drawn == sorted(drawn, key=lambda of: -max(of, 1 / of))
    assert (len(drawn), 1.0 in drawn, bool(plot.note)) == (MOST_DRAWN, False, True)
    assert "bs0: 0.60" in plot.alt

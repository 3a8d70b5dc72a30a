"""The page that `kvsweep compare --html` draws: what the command prints, and nothing else."""

import random

import pytest

from tests.unit.present.synthetic import SCRIPT
from tests.unit.present.test_page import Page
from tests.unit.questions.digests import cell, digest, mean, random_digest
from workflow_scripts.page.kit import MOST_ROWS
from workflow_scripts.present import compare
from workflow_scripts.present.comparison_page import ratios
from workflow_scripts.questions.compare.comparison import comparison


@pytest.fixture
def page_of(tmp_path):
    def page(a, b, *options):
        for name, of in (("a", a), ("b", b)):
            (tmp_path / f"{name}.json").write_text(of.model_dump_json())
        out = tmp_path / "comparison.html"
        compare.main([str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--html", str(out), *options])
        return Page(out.read_text(encoding="utf-8"))

    return page


def test_the_page_has_every_row_that_the_command_prints(page_of):
    chance = random.Random(2)
    a, b = random_digest(chance), random_digest(chance)
    page = page_of(a, b, "--occasions-vary", "1")
    found = comparison([a], b, 1)
    parts = compare.tables(found)
    assert {*parts} == {"Cells", "What differs", "Not compared"}
    tables = [table for of_part in parts.values() for table in of_part]
    assert sorted(table["aria-label"] for table in page.all("table")) == sorted(table.caption for table in tables)
    names, values = ([[*row][of] for table in tables for row in table.rows] for of in (slice(1), slice(1, None)))
    assert sorted(page.text["td"]) == sorted(value for row in values for value in row)
    assert {name for (name,) in names} <= {*page.text["th"]}
    assert all(sentence in page.text["p"] for sentence in compare.summary(found))


def test_the_page_loads_nothing_and_has_no_views_and_texts_of_digests_stay_texts(page_of):
    hostile = [cell(SCRIPT, mean(rate), began=None, effective={SCRIPT: rate}) for rate in (100, 300)]
    page = page_of(*(digest(of, study=SCRIPT) for of in hostile))
    assert len(page.all("script")) == 1
    assert not page.all("link")
    assert page.ids().count("page-data") == 0
    assert any(SCRIPT in text for text in page.text["th"])
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_a_comparison_of_nothing_has_a_page_that_says_why(page_of):
    page = page_of(digest(cell("bs16", mean(100))), digest(cell("bs16", mean(100), comparable=False)))
    assert not page.all("svg")
    assert any("another definition" in text for text in page.text["td"])


def test_the_picture_shows_the_cells_that_differ_most():
    cells = [(cell(f"bs{i}", mean(100)), cell(f"bs{i}", mean(60 + 2 * i))) for i in range(MOST_ROWS + 5)]
    found = comparison([digest(*(a for a, _ in cells))], digest(*(b for _, b in cells)), 1)
    plot = ratios(found, "output_tokens_per_s")
    (panel,) = plot.shown
    drawn = panel.rows["value"].tolist()
    assert drawn == sorted(drawn, key=lambda of: -max(of, 1 / of))
    assert (len(drawn), 1.0 in drawn, bool(plot.note)) == (MOST_ROWS, False, True)
    assert "bs0: 0.60" in plot.alt

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.unit.present.conftest import changed, write_cells
from tests.unit.present.synthetic import SCRIPT, SPEED
from workflow_scripts.page.blocks import UNKNOWN, Table
from workflow_scripts.page.parts import METRIC_WORDS, claims_on, four_metrics
from workflow_scripts.questions.cells.workload_requests import workloads
from workflow_scripts.questions.sections import SUBJECTS
from workflow_scripts.questions.trust.provenance import provenance_table
from workflow_scripts.study.definition import study_sha256
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study

ANSWERED = {f"#{of.id}" for of in SUBJECTS if of.answers}
VOID = {"meta", "img", "source", "link", "br", "hr"}


class Page(HTMLParser):
    """What a page holds: its elements with their attributes, and the text inside each kind of element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)
            self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        for tag in self._open:
            self.text[tag][-1] += data

    def close(self) -> None:
        super().close()
        assert not self._open, f"never closed: {self._open}"

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]


@pytest.fixture(scope="module")
def page(results):
    return Page(results.html)


def test_nothing_is_loaded_from_anywhere_and_markup_in_logs_is_text(results, page):
    assert len(page.all("script")) == 1
    assert SCRIPT not in results.html
    sources = [a[name] for _, a in page.elements for name in ("src", "srcset", "data", "poster", "action") if name in a]
    assert sources == []
    assert not page.all("link")
    assert not re.search(r"url\(|@import", page.text["style"][0])
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert policy.endswith("base-uri 'none'; form-action 'none'")
    assert "unsafe" not in policy


def test_links_lead_to_sections_and_to_files_that_are_there(results, page):
    targets = [attributes["href"] for attributes in page.all("a")]
    assert any(target.endswith("/raw/engine.log") for target in targets)
    for target in targets:
        if target.startswith("#view=report&cell="):
            assert target.partition("cell=")[2].split("/")[0] in SPEED
        elif target.startswith("#"):
            assert target.removeprefix("#") in page.ids()
        else:
            assert (results.root / target).is_file(), target
    assert not [name for name, count in Counter(page.ids()).items() if count > 1]


def test_the_metrics_of_the_sources_stand_in_one_table_for_each_device_and_value(report):
    [fold] = four_metrics("block_size")(report)
    [table] = fold.blocks
    rows = [dict(zip(table.headings, map(str, row), strict=True)) for row in table.rows]
    at_64 = next(
        row for row in rows if (row["Device"], row["block size"]) == ("h200", "16") and "64 s" in row["Settings"]
    )
    assert at_64["GPU blocks"] == "144,000"
    assert all(at_64[next(of for of in at_64 if of.startswith(words))] != UNKNOWN for words in METRIC_WORDS.values())
    of_8 = {row["Outcome"] for row in rows if (row["Device"], row["block size"]) == ("a100-sxm-80gb", "8")}
    assert of_8 == {"infeasible"}


def test_cells_that_are_not_ok_are_told_with_their_reasons(page):
    cells = " ".join(page.text["td"])
    for reason in ("after 1800 s", "EngineDeadError", "not run yet"):
        assert reason in cells
    assert any(re.match(r"Cells: \d+ measured, \d+ infeasible, .* not run", of) for of in page.text["summary"])
    assert any("2 times its ceiling" in text for text in page.text["p"])


def test_the_page_says_how_to_cite_the_study_and_where_its_tables_are(results, page):
    digest = study_sha256(load_study(results.study))
    entry = next(text for text in page.text["p"] if text.startswith("Cite as: kvsweep "))
    assert f"sha256:{digest}" in entry
    assert entry.endswith(f" by commit {'0' * 12}.")
    hrefs = {attributes["href"] for attributes in page.all("a")}
    assert {f"tables/{name}.parquet" for name in ("cells", "intervals", "claims")} <= hrefs
    # Cells are told by device, host and lock.
    table = next(table for table in page.text["figure"] if "Cells by where they were measured" in table)
    for gpu, lock in (("h200", "a"), ("l40s", "b")):
        assert re.search(rf"^{gpu}{lock}{{12}}[1-9]\d*$", table, re.MULTILINE), table
    for told in ("Host node-1", "Engine 0.32.0", "Protocol version 1", f"Commit of the pipeline {'0' * 12}"):
        assert told in table


def test_claims_are_told_with_their_verdicts_and_evidence_if_the_study_names_any(results, page):
    told = [text for text in page.text["details"] if "A made-up claim" in text]
    assert len(told) == 3
    assert any("contradicted: A made-up claim" in text and "Evidence: [limits] It is not." in text for text in told)
    assert any(": snakemake --cores all" in text for text in told)
    none = replace(results.report, study=results.report.study.model_copy(update={"claims": []}))
    for report, has_some in ((results.report, True), (none, False)):
        assert any(list(claims_on(section)(report)) for section in ("devices", "block-size")) == has_some


def page_of(results, tmp_path, cells):
    """The page of these cells and their values without figures and other tables."""
    (tmp_path / "tables").mkdir()
    write_cells(cells, tmp_path / "tables")
    folders = {"tables": tmp_path / "tables", "figures": tmp_path / "no figures"}
    assert results.write_page(tmp_path / "report.html", **folders) == 0
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_what_is_missing_is_shown_as_missing(results, tmp_path, cells):
    page = page_of(results, tmp_path, cells)
    there = [section for section in SUBJECTS if section.is_in(results.report.study)]
    assert {section.id for section in there} <= set(page.ids())
    empty = [attributes["id"] for tag, attributes in page.elements if tag == "p" and "id" in attributes]
    lacking = "devices limits knobs predictions serving recommendations"
    assert set(lacking.split()) - set(empty) == set()
    assert "the figures were not drawn" in " ".join(page.text["p"])


def test_a_study_of_which_nothing_ran_has_a_page_and_one_without_cells_has_none(results, tmp_path, cells, capsys):
    provenance = ["host", "engine_version", "git_commit", "started_at", "cpu_steal_pct", "cpu_others_pct"]
    cells = cells.drop_duplicates("cell_id").assign(outcome="missing", reason=None, **dict.fromkeys(provenance))
    cells["repeat"] = float("nan")
    assert any("0 of 80 cells have a rate." in text for text in page_of(results, tmp_path, cells).text["p"])
    (tmp_path / "report.html").unlink()
    assert results.write_page(tmp_path / "report.html", tables=tmp_path, figures=tmp_path) == 2
    assert "cells.parquet" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_logs_are_those_of_cells_that_were_tried_in_vain_and_of_the_start_that_is_shown(results, tmp_path, cells):
    missing, shown = (cells.loc[cells["outcome"] == outcome, "cell_id"].iloc[0] for outcome in ("missing", "ok"))
    cells = cells.assign(start=cells["start"].mask(cells["cell_id"] == shown, 2))
    logs = [f"cells/{missing}/measure.log", f"cells/{shown}/start-2/raw/engine.log"]
    for log in logs:
        (tmp_path / log).parent.mkdir(parents=True)
        (tmp_path / log).write_text("measuring\n[Errno 28]  No space left on device\n\n")
    known = provenance_table(cells, StudyPaths(tmp_path.parent, tmp_path.name))
    tables = changed(results.report, tmp_path / "tables", cells=cells, provenance=known).tables.folder
    places = {"tables": tables, "figures": tmp_path, "cells": tmp_path / "cells"}
    assert results.write_page(tmp_path / "report.html", **places) == 0
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "[Errno 28] No space left on device" in page.text["td"]
    assert set(logs) <= {link["href"] for link in page.all("a")}


def test_a_workload_has_the_requests_that_its_cells_served(report, tmp_path, cells):
    chat = cells["workload"].eq("chat") & cells["repeat"].notna()
    cells.loc[chat, "num_requests"] = [12, *[512] * (chat.sum() - 1)]
    table = next(block for block in workloads(changed(report, tmp_path, cells=cells)) if isinstance(block, Table))
    place = table.headings.index("Requests per cell")
    assert {row[0]: row[place] for row in table.rows}["chat"] == "12 to 512"
    prompt = table.headings.index("Prompt tokens")
    assert {row[0]: row[prompt] for row in table.rows}["system-prompt"] == "512 shared and 64"

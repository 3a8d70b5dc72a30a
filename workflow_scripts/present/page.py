"""Write the report of a study: one HTML file that opens offline.

    kvsweep report --study config/studies/demo.yaml --tables results/demo/tables \\
        --figures results/demo/figures --cells results/demo/cells --out results/demo/report.html

Styles, script and figures are inside the file. Missing parts are shown as missing, with the reason.
"""

import base64
import hashlib
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2

from workflow_scripts.common.command import STUDY, TABLES, command, option, out
from workflow_scripts.common.files import read_json, write_text
from workflow_scripts.page.blocks import Absent, Figure, Finding, Findings, Fold, Text
from workflow_scripts.page.report import REPORT, Report, Subject, blocks_of
from workflow_scripts.present.first_screen import Answer, first_screen
from workflow_scripts.present.page_data import packed, page_data, timelines
from workflow_scripts.present.page_script import joined
from workflow_scripts.questions.sections import APPENDIX, SECTIONS
from workflow_scripts.study.paths import DIGEST
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.results import Tables

# The styles of the text, and those of the views that the script adds.
STYLES = ("page.css", "views.css")
# Findings of a section whose first sentence is not folded.
OPEN_FINDINGS = 2
_FIRST_SENTENCE = re.compile(r".*?[^.]\.(?= [A-Z(])")


def render(report: Report, study_file: Path) -> str:
    """The whole page of a study."""
    digest = report.tables.folder / DIGEST
    sections = [_section(subject, report) for subject in SECTIONS if subject.is_in(report.study)]
    asked = {subject.id: subject.asked_at(report.study.question) for subject in SECTIONS}
    first = first_screen(report)
    first = replace(first, answers=sorted(first.answers, key=lambda answer: asked.get(answer.section, 0)))
    return page_of(
        title=f"kvsweep: study {report.study.name}",
        question=report.study.question,
        first=first,
        lines=_lines(first.answers, sorted(sections, key=lambda section: asked[section["id"]])),
        data=packed(page_data(report, study_file)),
        timelines=timelines(report.tables),
        # With this digest of the study another report is compared.
        digest=packed(read_json(digest)) if digest.exists() else None,
        sections=sections,
        appendix=[_section(subject, report) for subject in APPENDIX if subject.is_in(report.study)],
    )


def page_of(**content: Any) -> str:
    """A page with its styles and script; every text from tables, logs and studies is escaped or packed."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(REPORT), autoescape=True, undefined=jinja2.StrictUndefined
    )
    # The page's policy allows only inline styles and scripts with such a digest.
    environment.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    environment.filters["type_name"] = lambda block: type(block).__name__.lower()
    return environment.get_template("page.html.j2").render(
        style="".join((REPORT / name).read_text(encoding="utf-8") for name in STYLES),
        script=joined(REPORT / "page"),
        **content,
    )


def _section(subject: Subject, report: Report) -> dict[str, Any]:
    """What the template needs of a section: its first findings in one sentence each, all others, and its blocks."""
    finding_blocks = [block for part in subject.findings for block in blocks_of(part, report)]
    findings = [block for block in finding_blocks if isinstance(block, Finding)]
    notes = " ".join(block.text for block in finding_blocks if isinstance(block, Text))
    blocks = [block for part in subject.parts for block in blocks_of(part, report)]
    shown = [block for block in blocks if not isinstance(block, Absent)]
    absent = [block for block in (*finding_blocks, *blocks) if isinstance(block, Absent)]
    open_ = findings[: max(OPEN_FINDINGS, subject.lines)]
    first = [replace(finding, sentence=_first_sentence(finding.sentence)) for finding in open_]
    more = [finding for finding in findings if finding not in first]
    return {
        "id": subject.id,
        "title": subject.title,
        "lines": first[: subject.lines],
        "findings": Findings(first, "" if more else notes) if findings else None,
        "more": Fold("In detail", [Findings(more, notes)]) if more else None,
        "blocks": sorted(shown, key=lambda block: not isinstance(block, Figure)),
        "absent": _together(absent if shown or findings else absent[:1]),
        "is_empty": not shown and not findings,
    }


def _lines(answers: Sequence[Answer], sections: Sequence[dict[str, Any]]) -> list[tuple[str, Finding]]:
    """The lines of the first screen, with the address of their section; those of an answer replace the first of its
    section."""
    said = {of.section: of.lines for of in answers if of.lines}
    lines = []
    for section in sections:
        found = list(section["lines"])
        if own := said.pop(section["id"], None):
            badge = found[0].verdict if found else ""
            found[:1] = [replace(line, verdict=line.verdict or badge) for line in own]
        lines += [(section["id"], line) for line in found]
    return [*((section, line) for section, own in said.items() for line in own), *lines]


def _first_sentence(text: str) -> str:
    """The first of several sentences.

    >>> _first_sentence("It is 1.5 times faster. More starts would help. (h200)"), _first_sentence("One. (h200)")
    ('It is 1.5 times faster.', 'One.')
    """
    match = _FIRST_SENTENCE.match(text)
    return match[0] if match else text


def _together(absent: Sequence[Absent]) -> str:
    """What is missing, each reason once, with what is missing for that reason.

    >>> _together([Absent("figure a", "none ran"), Absent("", "no table"), Absent("figure b", "none ran")])
    'none ran (figure a, figure b); no table'
    """
    lacking: dict[str, list[str]] = {}
    for block in absent:
        lacking.setdefault(block.reason, []).extend(filter(None, [block.what]))
    return "; ".join(f"{reason} ({', '.join(whats)})" if whats else reason for reason, whats in lacking.items())


@command(
    "report",
    STUDY,
    TABLES,
    option("--figures", type=Path, required=True, help="folder that `kvsweep figures` wrote"),
    option("--cells", type=Path, required=True, help="folder of the cells; their logs are linked"),
    option("--prepared", type=Path, help="folder with workloads/, for the actual requests (default: beside CELLS)"),
    option("--parsed", type=Path, help="folder with the facts of each GPU (default: parsed beside CELLS)"),
    out("the HTML file to write"),
)
def main(args: Namespace) -> None:
    prepared = args.prepared or args.cells.parent / "prepared"
    tables = Tables(args.tables, args.parsed or args.cells.parent / "parsed")
    report = Report(load_study(args.study), tables, args.figures, args.cells, prepared, args.out)
    report.tables.need("cells")
    write_text(args.out, render(report, args.study))

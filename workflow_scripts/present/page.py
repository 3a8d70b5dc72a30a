"""Write the report of a study: one HTML file that opens offline.

    kvsweep draw-report --study config/studies/demo.yaml --tables results/demo/tables \\
        --figures results/demo/figures --cells results/demo/cells --out results/demo/report.html

Styles, script and figures are inside the file. Missing parts are shown as missing, with the reason.
"""

import base64
import hashlib
from argparse import Namespace
from pathlib import Path
from typing import Any

import jinja2

from workflow_scripts.common.command import STUDY, TABLES_OPTION, command, option, out
from workflow_scripts.common.files import write_text
from workflow_scripts.page.blocks import Absent, Figure, Text
from workflow_scripts.page.report import REPORT, Report, Subject, blocks_of, figure_of
from workflow_scripts.page.style import style_sheet
from workflow_scripts.present.first_screen import first_screen
from workflow_scripts.present.page_data import packed, page_data, timelines
from workflow_scripts.present.page_script import joined
from workflow_scripts.questions.sections import APPENDIX, SECTIONS
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.results import MissingError, Tables

# The styles of the text, and those of the views that the script adds.
STYLES = ("page.css", "views.css")


def render(report: Report, study_file: Path) -> str:
    """The whole page of a study."""
    sections, appendix = (
        [_section(subject, report) for subject in subjects if subject.is_in(report.study)]
        for subjects in (SECTIONS, APPENDIX)
    )
    # What has only tables answers no question of this study.
    answering = [section for section in sections if section["sentence"] or section["figure"]]
    return page_of(
        title=f"kvsweep: study {report.study.name}",
        question=report.study.question,
        first=first_screen(report),
        data=packed(page_data(report, study_file)),
        timelines=timelines(report.tables),
        sections=answering,
        appendix=[section for section in sections if section not in answering] + appendix,
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
        style=style_sheet() + "".join((REPORT / name).read_text(encoding="utf-8") for name in STYLES),
        script=joined(REPORT / "page"),
        **content,
    )


def _section(subject: Subject, report: Report) -> dict[str, Any]:
    """What the template needs of a section: its sentence, its picture, and the blocks of its two folds."""
    sentence, absent = "", []
    if subject.sentence:
        try:
            sentence = subject.sentence(report)
        except MissingError as e:
            absent.append(Absent(str(e)))
    figures = [figure_of(draw, report) for draw in subject.figures]
    drawn = [figure for figure in figures if isinstance(figure, Figure)]
    blocks = {
        name: [block for part in parts for block in blocks_of(part, report)]
        for name, parts in (("why", subject.why), ("tables", subject.tables))
    }
    absent += [block for block in (*figures, *blocks["why"], *blocks["tables"]) if isinstance(block, Absent)]
    why, tables = ([block for block in part if not isinstance(block, Absent)] for part in blocks.values())
    told = [Text(figure.caption) for figure in drawn[:1]]
    return {
        "id": subject.id,
        "title": subject.title,
        "sentence": sentence,
        "figure": drawn[0] if drawn else None,
        "why": [*told, *why, *drawn[1:]],
        "tables": tables,
        "absent": "; ".join(dict.fromkeys(gap.reason for gap in absent[: None if sentence or drawn or tables else 1])),
        "is_empty": not (sentence or drawn or why or tables),
    }


@command(
    "draw-report",
    STUDY,
    TABLES_OPTION,
    option("--figures", type=Path, required=True, help="folder that `kvsweep figures` wrote"),
    option(
        "--cells",
        type=Path,
        required=True,
        help="folder of the cells; their logs are linked, and what was prepared and parsed lies beside it",
    ),
    out("the HTML file to write"),
)
def main(args: Namespace) -> None:
    tables = Tables(args.tables, args.cells.parent / "parsed")
    report = Report(load_study(args.study), tables, args.figures, args.cells, args.out)
    report.tables.need("cells")
    write_text(args.out, render(report, args.study))

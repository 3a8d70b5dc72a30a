"""Draw the comparison of two runs as one page that opens offline.

    kvsweep draw-comparison --comparison comparison.json --out comparison.html

`kvsweep compare --html` calls it. All numbers, verdicts and sentences are those that `compare` prints.
"""

import math
import re
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.files import read_json, write_text
from workflow_scripts.common.wording import plural, sentence
from workflow_scripts.page.answers import NO, OPEN, PARTLY, YES, Answer, Bar, is_hollow, times
from workflow_scripts.page.blocks import Block, Figure, Table, Text
from workflow_scripts.page.kit import Plot, ratio, use_style
from workflow_scripts.page.plot import write_plot
from workflow_scripts.page.report import caption_of, figure_in
from workflow_scripts.page.style import INK
from workflow_scripts.present.first_screen import PICTURES, rows_of
from workflow_scripts.present.page import page_of
from workflow_scripts.statistics.comparisons import CHANGES, NOT_DECIDED

# Measures with an answer, the parts with cells that are not compared, and the part with what differs.
MOST_MEASURES, NOT_COMPARED, DIFFERENT = 4, ("refused", "outcomes", "only_a", "only_b"), "What differs"
_NUMBER = re.compile(r"(-?[\d.,]+(e[+-]?\d+)?)?")


def ratios(content: Mapping[str, Any], measure: str) -> Plot:
    """Ratio of each cell, B over A, with its 95 % interval; hollow: not decided. Verdicts are of all cells and measures
    together."""
    found = content["comparison"]
    rows = pd.DataFrame(found["cells"])
    rows = rows[rows["measure"] == measure].astype({"ratio": float, "low": float, "high": float})
    rows = rows.assign(
        name=rows["cell"].map(content["names"]), value=rows["ratio"], hollow=rows["verdict"] == NOT_DECIDED, colour=INK
    )
    largest = rows["value"].map(lambda value: -max(value, 1 / value))
    return ratio(
        rows.iloc[largest.argsort(kind="stable")].drop_duplicates("name"),
        f"{column(measure).label}: B over A",
        f"ratio of {content['measures'][measure]}",
    )


def _figure(content: Mapping[str, Any], measure: str) -> Figure:
    use_style()
    plot = ratios(content, measure)
    with tempfile.TemporaryDirectory() as scratch:
        write_plot(plot, Path(scratch), measure)
        return figure_in(Path(scratch), measure, plot.describe(), caption_of(ratios))


def _table(section: Mapping[str, Any]) -> Table:
    numeric = [all(map(_NUMBER.fullmatch, column)) for column in zip(*section["rows"], strict=True)]
    return Table(section["title"], list(map(sentence, section["headings"])), section["rows"], numeric)


def answers(content: Mapping[str, Any]) -> Iterator[Answer]:
    """What changed, by measure, and how far the two runs can be compared."""
    found = content["comparison"]
    for measure in list(content["measures"])[:MOST_MEASURES]:
        rows = [row for row in found["cells"] if row["measure"] == measure]
        known = [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]
        top = max(known, key=lambda row: (row["verdict"] == CHANGES, abs(math.log(row["ratio"]))))
        verdicts = [row["verdict"] for row in rows]
        verdict = YES if CHANGES in verdicts else OPEN if NOT_DECIDED in verdicts else NO
        said = f"{verdicts.count(CHANGES)} of {plural(len(rows), 'cell')}, largest {times(top)}"
        bar = Bar(top["ratio"], top["low"], top["high"], hollow=is_hollow(top))
        yield Answer(verdict, f"{column(measure).label.removesuffix(' per output token')} changed?", said, (bar,))
    compared, others = len({row["cell"] for row in found["cells"]}), sum(len(found[name]) for name in NOT_COMPARED)
    all_compared = YES if not others else PARTLY if compared else NO
    yield Answer(all_compared, "All cells compared?", f"{compared} of {compared + others}")
    ended = len(found["outcomes"])
    yield Answer(NO if ended else YES, "Same outcomes?", f"{ended} cells ended otherwise" if ended else "all")
    differing = sum(len(section["rows"]) for section in content["sections"] if section["part"] == DIFFERENT)
    yield Answer(NO if differing else YES, "Measured alike?", f"{differing or 'no'} differences")


def _section(title: str, **blocks: Sequence[Block]) -> dict[str, Any]:
    """A section of the page as the template needs it, with its folds."""
    name = re.sub(r"\W+", "-", title.lower())
    shown: dict[str, Any] = {"id": name, "title": title, "sentence": "", "figure": None}
    return {**shown, "why": [], "tables": [], "absent": "", "is_empty": False, **blocks}


def render(content: Mapping[str, Any]) -> str:
    found = content["comparison"]
    which, *sentences = content["summary"]
    parts: dict[str, list[Block]] = {}
    for section in content["sections"]:
        parts.setdefault(section["part"], []).append(_table(section))
    changed = sum(row["verdict"] == CHANGES for row in found["cells"])
    title = f"{found['study_b']} over {found['study_a']}: {changed} of {plural(len(found['cells']), 'measure')} changed"
    rows = rows_of([("result", answer) for answer in answers(content)], {})
    pictures = [("result", _figure(content, measure)) for measure in list(content["measures"])[:PICTURES]]
    return page_of(
        title=f"kvsweep: {found['study_a']} and {found['study_b']} compared",
        question="",
        first={"title": title, "sub": which, **rows, "pictures": pictures, "fastest": [], "without_rate": None},
        sections=[
            _section("Result", why=list(map(Text, sentences))),
            *(_section(name, tables=blocks) for name, blocks in parts.items()),
        ],
        appendix=[],
        data=None,
        timelines={},
    )


@command(
    "draw-comparison",
    option("--comparison", type=Path, required=True, help="the JSON that `kvsweep compare --html` makes"),
    out("the HTML file to write"),
)
def main(args: Namespace) -> None:
    write_text(args.out, render(read_json(args.comparison)))

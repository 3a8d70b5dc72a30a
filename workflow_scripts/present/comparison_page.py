"""The comparison of two runs as one page that opens offline, which `kvsweep compare --html` draws.

All numbers, verdicts and sentences are those that `compare` prints.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import plural
from workflow_scripts.page.answers import NO, OPEN, PARTLY, YES, Answer, Bar, is_hollow, times
from workflow_scripts.page.blocks import Block, Figure, Table, Text
from workflow_scripts.page.kit import Plot, ratio, use_style
from workflow_scripts.page.plot import write_plot
from workflow_scripts.page.report import caption_of, figure_in
from workflow_scripts.page.style import INK
from workflow_scripts.present import compare
from workflow_scripts.present.first_screen import MOST_PICTURES, rows_of
from workflow_scripts.present.page import page_of
from workflow_scripts.questions.compare.comparison import Comparison, in_words
from workflow_scripts.statistics.comparisons import CHANGES, NOT_DECIDED
from workflow_scripts.tables.results import records

# Measures with an answer.
MOST_MEASURES = 4
_NUMBER = re.compile(r"(-?[\d.,]+(e[+-]?\d+)?)?")


def _rows(result: Comparison, measure: str) -> pd.DataFrame:
    """The cells that were compared by a measure, the largest change first."""
    found = sorted((c for c in result.cells if c.measure == measure), key=lambda c: -c.size)
    rows = pd.DataFrame([c.model_dump() for c in found]).astype({"low": float, "high": float})
    return rows.assign(name=rows["cell"].map(in_words(result.compared)[1]))


def ratios(result: Comparison, measure: str) -> Plot:
    """Ratio of each cell, B over A, with its 95 % interval; hollow: not decided. Verdicts are of all cells and measures
    together."""
    rows = _rows(result, measure).drop_duplicates("name")
    rows = rows.assign(value=rows["ratio"], hollow=rows["verdict"] == NOT_DECIDED, colour=INK)
    return ratio(rows, f"{column(measure).label}: B over A", f"ratio of {column(measure).axis}")


def _figure(result: Comparison, measure: str) -> Figure:
    use_style()
    plot = ratios(result, measure)
    with tempfile.TemporaryDirectory() as scratch:
        write_plot(plot, Path(scratch), measure)
        return figure_in(Path(scratch), measure, plot.describe(), caption_of(ratios))


def answers(result: Comparison, measures: Sequence[str]) -> Iterator[Answer]:
    """What changed, by measure, and how far the two runs can be compared."""
    for measure in measures[:MOST_MEASURES]:
        rows = _rows(result, measure)
        changes = rows["verdict"].eq(CHANGES)
        verdict = YES if changes.any() else OPEN if rows["verdict"].eq(NOT_DECIDED).any() else NO
        top = records(rows[changes] if changes.any() else rows)[0]
        said = f"{changes.sum()} of {plural(len(rows), 'cell')}, largest {times(top)}"
        bar = Bar(top["ratio"], top["low"], top["high"], hollow=is_hollow(top))
        yield Answer(verdict, f"{column(measure).label.removesuffix(' per output token')} changed?", said, (bar,))
    compared, ended = len(result.compared), len(result.outcomes)
    others = len(result.refused) + ended + len(result.only_a) + len(result.only_b)
    all_compared = YES if not others else PARTLY if compared else NO
    yield Answer(all_compared, "All cells compared?", f"{compared} of {compared + others}")
    yield Answer(NO if ended else YES, "Same outcomes?", f"{ended} cells ended otherwise" if ended else "all")
    differing = len(result.differences)
    yield Answer(NO if differing else YES, "Measured alike?", f"{differing or 'no'} differences")


def _section(title: str, **blocks: Sequence[Block]) -> dict[str, Any]:
    """A section of the page as the template needs it, with its folds."""
    name = re.sub(r"\W+", "-", title.lower())
    shown: dict[str, Any] = {"id": name, "title": title, "sentence": "", "figure": None}
    return {**shown, "why": [], "tables": [], "absent": "", "is_empty": False, **blocks}


def _table(table: compare.Printed) -> Table:
    numeric = [all(map(_NUMBER.fullmatch, texts)) for texts in zip(*table.rows, strict=True)]
    return Table(*table, numeric)


def page(result: Comparison) -> str:
    """The page of a comparison, with the sentences and tables that the terminal shows."""
    which, *sentences = compare.summary(result)
    measures = list(dict.fromkeys(c.measure for c in result.cells))
    changed = sum(c.verdict == CHANGES for c in result.cells)
    title = f"{result.study_b} over {result.study_a}: {changed} of {plural(len(result.cells), 'measure')} changed"
    rows = rows_of([("result", answer) for answer in answers(result, measures)], {})
    pictures = [("result", _figure(result, measure)) for measure in measures[:MOST_PICTURES]]
    return page_of(
        title=f"kvsweep: {result.study_a} and {result.study_b} compared",
        question="",
        first={"title": title, "sub": which, **rows, "pictures": pictures, "fastest": [], "without_rate": None},
        sections=[
            _section("Result", why=list(map(Text, sentences))),
            *(_section(part, tables=list(map(_table, table))) for part, table in compare.tables(result).items()),
        ],
        appendix=[],
        data=None,
        timelines={},
    )

"""Draw the comparison of two runs as one page that opens offline.

    kvsweep draw-comparison --comparison comparison.json --out comparison.html

`kvsweep compare --html` calls it. All numbers, verdicts and sentences are those that `compare` prints.
"""

import re
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.files import read_json, write_text
from workflow_scripts.common.wording import sentence
from workflow_scripts.page.blocks import Block, Figure, Table, Text
from workflow_scripts.page.kit import SIZES, Plot, Reference, ratio, use_style
from workflow_scripts.page.plot import inline, size_px, write_plot
from workflow_scripts.page.report import figure_facts
from workflow_scripts.present.first_screen import FirstScreen
from workflow_scripts.present.page import page_of
from workflow_scripts.statistics.comparisons import NOT_DECIDED

_NUMBER = re.compile(r"(-?[\d.,]+(e[+-]?\d+)?)?")


def ratios(content: Mapping[str, Any]) -> Plot:
    """Ratio of each cell, B over A, with its 95 % interval, by the first measure; hollow: not decided. Verdicts are of
    all cells and measures together."""
    found = content["comparison"]
    measure = next(iter(content["measures"]))
    rows = pd.DataFrame(found["cells"])
    rows = rows[rows["measure"] == measure].astype({"ratio": float, "low": float, "high": float})
    rows = rows.assign(
        name=rows["cell"].map(content["names"]), value=rows["ratio"], hollow=rows["verdict"] == NOT_DECIDED
    )
    largest = rows["value"].map(lambda value: -max(value, 1 / value))
    return ratio(
        rows.iloc[largest.argsort(kind="stable")].drop_duplicates("name"),
        f"{found['study_b']} (B) over {found['study_a']} (A)",
        f"ratio of {content['measures'][measure]}",
        unit="×",
        references=[Reference(1, "")],
    )


def _figure(content: Mapping[str, Any]) -> Figure:
    use_style()
    plot = ratios(content)
    with tempfile.TemporaryDirectory() as scratch:
        write_plot(plot, Path(scratch), "ratios")
        files = {kind.removeprefix("."): Path(scratch) / f"ratios{kind}.svg" for kind in SIZES}
        return Figure(
            "ratios",
            title=plot.title,
            drawn={kind: inline(path) for kind, path in files.items()},
            sizes={kind: size_px(path) for kind, path in files.items()},
            marks=dict.fromkeys(files, ()),
            alt=plot.alt,
            caption=f"{ratios.__doc__} {figure_facts(plot.describe())}",
        )


def _table(section: Mapping[str, Any]) -> Table:
    numeric = [all(map(_NUMBER.fullmatch, column)) for column in zip(*section["rows"], strict=True)]
    return Table(section["title"], list(map(sentence, section["headings"])), section["rows"], numeric)


def _section(title: str, blocks: Sequence[Block], figure: Figure | None = None) -> dict[str, Any]:
    """A section of the page as the template needs it; its blocks are not folded."""
    name = re.sub(r"\W+", "-", title.lower())
    shown = {"id": name, "title": title, "sentence": "", "figure": figure, "open": blocks}
    return {**shown, "why": [], "tables": [], "absent": "", "is_empty": False}


def render(content: Mapping[str, Any]) -> str:
    found = content["comparison"]
    which, *sentences = content["summary"]
    parts: dict[str, list[Block]] = {}
    for section in content["sections"]:
        parts.setdefault(section["part"], []).append(_table(section))
    figure = _figure(content) if found["cells"] else None
    title = f"{found['study_b']} over {found['study_a']}"
    return page_of(
        title=f"kvsweep: {found['study_a']} and {found['study_b']} compared",
        question="",
        first=FirstScreen(title, which, [], [], "", [], [], None, []),
        sections=[
            _section("Result", list(map(Text, sentences)), figure=figure),
            *(_section(name, blocks) for name, blocks in parts.items()),
        ],
        appendix=[],
        data=None,
        digest=None,
        timelines={},
    )


@command(
    "draw-comparison",
    option("--comparison", type=Path, required=True, help="the JSON that `kvsweep compare --html` makes"),
    out("the HTML file to write"),
)
def main(args: Namespace) -> None:
    write_text(args.out, render(read_json(args.comparison)))

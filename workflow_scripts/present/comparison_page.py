"""Draw the comparison of two runs as one page that opens offline.

    kvsweep draw-comparison --comparison comparison.json --out comparison.html

`kvsweep compare --html` calls it. All numbers, verdicts and sentences are those that `compare` prints.
"""

import re
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow_scripts.common.command import command, option, out
from workflow_scripts.common.files import read_json, write_text
from workflow_scripts.common.wording import sentence
from workflow_scripts.page.blocks import Block, Figure, Table, Text
from workflow_scripts.page.plot import Plot, data_address, size_px, use_style, write_plot
from workflow_scripts.page.ratio_plot import plot_ratios
from workflow_scripts.page.report import figure_facts
from workflow_scripts.page.style import GRID, marks
from workflow_scripts.present.page import page_of
from workflow_scripts.statistics.comparisons import NOT_DECIDED

# Maximum number of cells in a panel.
MOST_CELLS = 40
_NUMBER = re.compile(r"(-?[\d.,]+(e[+-]?\d+)?)?")
_CAPTION = [
    (
        "",
        "A mark is the ratio of a cell, B over A, with its 95 % interval. All panels show the cells in one order: by "
        "the ratio of the first measure.",
    ),
    (
        "How to read it:",
        "A ratio in the grey band is within the margin of the study. A cell counts as changed or flat by its "
        "verdict in the table, for which all cells and measures are tested together.",
    ),
]


def ratios(content: Mapping[str, Any]) -> Plot:
    """One panel per measure: the ratio of each cell with its interval, on the band in which it is flat.

    All panels have the same cells in the same order: by the ratio of the first measure that a cell has.
    """
    found = content["comparison"]
    rows = pd.DataFrame(found["cells"]).rename(columns={"low": "ratio_low", "high": "ratio_high"})
    rows = rows.astype({"ratio_low": float, "ratio_high": float}).assign(
        source="measured",
        panel=rows["measure"].map(content["measures"]),
        label=rows["cell"].map(content["names"]),
        hollow=rows["verdict"] == NOT_DECIDED,
        name=rows["cell"].str.split("/").str[0],
    )
    largest = rows["ratio"].map(lambda ratio: max(ratio, 1 / ratio)).groupby(rows["cell"]).max()
    rows = rows[rows["cell"].isin(largest.nlargest(MOST_CELLS).index)]
    measures = list(content["measures"])
    rows = rows.assign(place=rows["measure"].map(measures.index)).sort_values(
        ["place", "ratio"], ascending=[True, False]
    )
    cells = list(rows["cell"].unique())
    rows = rows.assign(order=rows["cell"].map(cells.index)).sort_values(["place", "order"])
    plot = plot_ratios(
        rows,
        marks(sorted(set(rows["name"]))),
        title=f"{found['study_b']} (B) over {found['study_a']} (A)",
        panels_are="measures",
    )
    margin = 1 + found["margin_pct"] / 100
    few = [f"the {MOST_CELLS} cells that differ most in any measure are drawn; the table has all"]
    return replace(
        plot,
        panels=[replace(panel, draw=partial(_on_band, draw=panel.draw, margin=margin)) for panel in plot.panels],
        x_label="Ratio (1: no difference)",
        handles=[*plot.handles, Patch(color=GRID, label=f"within {found['margin_pct']:g} %")],
        notes=few if len(largest) > MOST_CELLS else [],
    )


def _on_band(ax: Axes, draw: Callable[..., None], margin: float) -> None:
    ax.axvspan(1 / margin, margin, color=GRID, linewidth=0, zorder=0)
    draw(ax)


def _figure(content: Mapping[str, Any]) -> Figure:
    use_style()
    plot = ratios(content)
    with tempfile.TemporaryDirectory() as scratch:
        write_plot(plot, Path(scratch), "ratios")
        wide, narrow = Path(scratch) / "ratios.svg", Path(scratch) / "ratios.column.svg"
        return Figure(
            "ratios",
            wide=data_address(wide),
            narrow=data_address(narrow),
            wide_px=size_px(wide),
            narrow_px=size_px(narrow),
            alt=plot.alt,
            caption=_CAPTION,
            facts=figure_facts(plot.describe()),
        )


def _table(section: Mapping[str, Any]) -> Table:
    numeric = [all(map(_NUMBER.fullmatch, column)) for column in zip(*section["rows"], strict=True)]
    return Table(section["title"], list(map(sentence, section["headings"])), section["rows"], numeric)


def _section(title: str, *blocks: Block) -> dict[str, Any]:
    """A section of the page as the template needs it."""
    of = {"id": re.sub(r"\W+", "-", title.lower()), "title": title, "blocks": blocks}
    return {**of, "findings": None, "more": None, "absent": "", "is_empty": False}


def render(content: Mapping[str, Any]) -> str:
    found = content["comparison"]
    which, *sentences = content["summary"]
    parts: dict[str, list[Block]] = {}
    if found["cells"]:
        parts["Cells"] = [_figure(content)]
    for section in content["sections"]:
        parts.setdefault(section["part"], []).append(_table(section))
    return page_of(
        title=f"kvsweep: {found['study_a']} and {found['study_b']} compared",
        question=which,
        first={"unfinished": None, "trust": [], "answers": [], "best": None},
        lines=[],
        sections=[
            _section("Result", *map(Text, sentences)),
            *(_section(title, *blocks) for title, blocks in parts.items()),
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

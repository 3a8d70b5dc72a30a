"""The outcome of every cell, with the reasons of those that failed."""

from collections.abc import Iterator, Mapping
from textwrap import shorten
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from workflow_scripts.common.columns import column
from workflow_scripts.page.blocks import Block, Finding, Fold, Link, Table, Text, outcome_words, shown, table_of
from workflow_scripts.page.plot import Panel, Plot, hide_y
from workflow_scripts.page.report import MOST_ROWS, FigurePart, Report, Subject
from workflow_scripts.page.sentences import with_counts
from workflow_scripts.page.style import INK, MUTED, OUTCOMES, PAPER
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.tables.results import RATE, Tables, records

TILES_PER_ROW = 30
MOST_TILES = 600
MOST_BARS = 40
# Of a reason in a sentence; the list of reasons has the whole text.
MOST_LETTERS = 120
ROW_IN = 0.19
EDGE: Mapping[str, Any] = {"edgecolor": MUTED, "linewidth": 0.4}


def grid_outcomes(tables: Tables) -> Plot:
    """One tile per cell, with colour and sign of its outcome; bars of counts if there are too many cells for tiles."""
    cells = tables.cells
    tiles = len(cells) <= MOST_TILES
    by = cells.groupby(COORDINATES if tiles else COORDINATES[:3], sort=False)
    strips = {" · ".join(map(str, names)): list(part["outcome"]) for names, part in by}
    notes = []
    if not tiles:
        notes.append(f"the study has {len(cells)} cells, more than can be drawn one by one: bars count them")
        if len(strips) > MOST_BARS:
            notes.append(f"{MOST_BARS} of {len(strips)} combinations of device, engine and model are drawn")
            strips = dict(list(strips.items())[:MOST_BARS])
    rows = sum(map(_lines_of, strips.values())) if tiles else 2 * len(strips)
    return Plot(
        title=f"Outcome of each of the {len(cells)} cells" if tiles else f"Outcomes of {len(cells)} cells",
        alt=f"{len(cells)} cells: {with_counts(cells['outcome'])}.",
        panels=[Panel("", lambda ax: _draw_tiles(ax, strips) if tiles else _draw_bars(ax, strips))],
        handles=[
            Patch(facecolor=color, edgecolor=MUTED, label=f"{sign} {outcome_words(outcome)}".strip())
            for outcome, (color, sign) in OUTCOMES.items()
            if outcome in set(cells["outcome"])
        ],
        notes=notes,
        panel_height_in=rows * ROW_IN + (0.1 if tiles else 0.5),
        x_label="" if tiles else "Cells",
    )


def _lines_of(outcomes: list[str]) -> int:
    return 1 + -(-len(outcomes) // TILES_PER_ROW)


def _draw_tiles(ax: Axes, strips: Mapping[str, list[str]]) -> None:
    y = 0
    for title, outcomes in strips.items():
        ax.text(0, y + 0.62, title, va="center", fontsize=8.5)
        for i, outcome in enumerate(outcomes):
            color, sign = OUTCOMES[outcome]
            column, row = i % TILES_PER_ROW, y + 1 + i // TILES_PER_ROW
            ax.add_patch(Rectangle((column, row + 0.08), 0.88, 0.84, facecolor=color, **EDGE))
            ink = INK if color == PAPER else "white"
            ax.text(column + 0.44, row + 0.5, sign, color=ink, ha="center", va="center_baseline", fontsize=7)
        y += _lines_of(outcomes)
    ax.set_xlim(0, TILES_PER_ROW)
    ax.set_ylim(y, 0)
    ax.axis("off")


def _draw_bars(ax: Axes, strips: Mapping[str, list[str]]) -> None:
    for i, (title, outcomes) in enumerate(strips.items()):
        counts = pd.Series(outcomes).value_counts()
        ax.text(0, 2 * i + 0.62, f"{title}: {len(outcomes)}", va="center", fontsize=8.5)
        left = 0
        for outcome, (color, _) in OUTCOMES.items():
            if outcome in counts:
                ax.barh(2 * i + 1.4, counts[outcome], left=left, height=0.8, color=color, **EDGE)
                left += counts[outcome]
    ax.set_ylim(2 * len(strips), 0)
    hide_y(ax)


def _counted(report: Report, cells: pd.DataFrame, columns: Mapping[str, str], caption: str, what: str) -> Table:
    """A table of the different values of the columns, each with its number of cells and an example."""
    rows = cells.groupby(list(columns), sort=False)["cell_id"].agg(["size", "first"]).reset_index()
    rows = rows.assign(first=rows["first"].map(report.cell_link))
    rows = rows.sort_values("size", ascending=False, kind="stable")
    note = f"{MOST_ROWS} of {len(rows)} {what}." if len(rows) > MOST_ROWS else ""
    return table_of(rows.head(MOST_ROWS), {**columns, "size": "Cells", "first": "Example"}, caption, note)


def reasons(report: Report) -> Iterator[Block]:
    troubled = report.grid[report.grid["outcome"] != "ok"]
    if len(troubled):
        words = troubled.assign(
            outcome=troubled["outcome"].map(outcome_words), reason=troubled["reason"].fillna("not run yet")
        )
        columns = {"outcome": "Outcome", "reason": "Reason"}
        yield _counted(report, words, columns, "Cells that failed or did not run, by reason", "reasons")


def unsuccessful(report: Report) -> Iterator[Block]:
    troubled = report.grid[~report.grid["outcome"].isin(["ok", "missing"])]
    for outcome, cells in troubled.groupby("outcome", sort=False):
        reasons = cells["reason"].dropna().value_counts()
        sentence = f"{len(cells)} of {len(report.grid)} cells ended as {outcome_words(outcome)}."
        if len(reasons):
            example = cells.loc[cells["reason"] == reasons.index[0], "cell_id"].iloc[0]
            of_some = "" if reasons.iloc[0] == len(cells) else f"In {reasons.iloc[0]} of them: "
            sentence += (
                f" {of_some}{shorten(reasons.index[0], MOST_LETTERS, placeholder=' ...')} ({report.names[example]})"
            )
        yield Finding(outcome_words(outcome), sentence, "bad")
    failed = report.grid["failed_starts"].dropna()
    if len(failed):
        example = report.grid.loc[failed.index[0], "cell_id"]
        measured = report.grid["outcome"].eq("ok").sum()
        sentence = (
            f"In {len(failed)} of {measured} measured cells some starts of the engine failed; only the others count. "
            f"For example, {failed.iloc[0]} ({report.names[example]})"
        )
        yield Finding("failed start", sentence, "bad")
    if len(troubled) or len(failed):
        yield Text("The section Cells and failures gives all reasons.")


def not_as_asked(report: Report) -> Iterator[Block]:
    replaced = report.grid.dropna(subset="not_as_asked")
    if len(replaced):
        columns = {"not_as_asked": "What took effect"}
        yield _counted(report, replaced, columns, "Settings that the engine replaced silently", "replacements")


def every_cell(report: Report) -> Iterator[Block]:
    rates = report.tables.value(RATE)
    for names, part in report.grid.groupby(COORDINATES, sort=False):
        summary = f"{' · '.join(map(str, names))}: {with_counts(part['outcome'])}"
        yield Fold(summary, [_cell_lines(report, part, rates)])


def _cell_lines(report: Report, part: pd.DataFrame, rates: "pd.Series[float]") -> Table:
    rows: list[list[str | Link]] = []
    places = report.logs.drop_duplicates("cell_id").set_index("cell_id")["what"]
    for cell in records(part[["cell_id", "outcome", "comparable", "reason"]]):
        log = places.get(cell["cell_id"])
        link = (report.link(report.cells / cell["cell_id"] / log, "log") if log else None) or "no log"
        ended = cell["outcome"] != "missing"
        outcome = outcome_words(cell["outcome"]) + (", not comparable" if ended and cell["comparable"] is False else "")
        rate = shown(rates.get(cell["cell_id"]), RATE)
        name = report.cell_link(cell["cell_id"], report.labels[cell["cell_id"]])
        rows.append([name, outcome, rate, shown(cell["reason"]), link])
    headings = ["Settings", "Outcome", column(RATE).axis, "Reason", "Engine log"]
    return Table("Cells", headings, rows, [False, False, True, False, False])


SUBJECT = Subject(
    id="cells",
    title="Cells and failures",
    parts=[FigurePart(grid_outcomes), reasons, not_as_asked, every_cell],
)

"""The outcome of every cell of the grid."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from workflow_scripts.present.plot import Panel, Plot
from workflow_scripts.present.report_tables import Tables
from workflow_scripts.present.style import INK, MUTED, OUTCOMES, PAPER

TILES_PER_ROW = 30
MOST_TILES = 600
MOST_BARS = 40
ROW_IN = 0.19


@dataclass(frozen=True)
class _Strip:
    """Cells of one device, engine, model and workload: one outcome per cell."""

    title: str
    outcomes: list[str]

    @property
    def rows(self) -> int:
        return 1 + -(-len(self.outcomes) // TILES_PER_ROW)


def grid_outcomes(tables: Tables) -> Plot:
    """One tile per cell, with colour and sign of its outcome; bars of counts if there are too many cells for tiles."""
    cells = tables.cells.drop_duplicates("cell_id")
    counts = cells["outcome"].value_counts()
    tiles = len(cells) <= MOST_TILES
    strips = list(_strips(cells, ["gpu", "engine", "model", "workload"] if tiles else ["gpu", "engine", "model"]))
    notes = []
    if not tiles:
        notes.append(f"the study has {len(cells)} cells, more than can be drawn one by one: bars count them")
        if len(strips) > MOST_BARS:
            notes.append(f"{MOST_BARS} of {len(strips)} combinations of device, engine and model are drawn")
            strips = strips[:MOST_BARS]
    rows = sum(strip.rows for strip in strips) if tiles else 2 * len(strips)
    return Plot(
        title=f"Outcome of each of the {len(cells)} cells" if tiles else f"Outcomes of {len(cells)} cells",
        alt=f"{len(cells)} cells: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + ".",
        sources=["measured"],
        panels=[Panel("", lambda ax: _draw_tiles(ax, strips) if tiles else _draw_bars(ax, strips))],
        handles=_handles(cells),
        notes=notes,
        panel_height_in=rows * ROW_IN + (0.1 if tiles else 0.5),
        x_label="" if tiles else "Cells",
    )


def _strips(cells: pd.DataFrame, keys: list[str]) -> Iterator[_Strip]:
    for names, part in cells.groupby(keys, sort=False):
        yield _Strip(" · ".join(map(str, names)), list(part["outcome"]))


def _handles(cells: pd.DataFrame) -> list[Artist]:
    seen = set(cells["outcome"])
    return [
        Patch(facecolor=color, edgecolor=MUTED, label=f"{sign} {outcome}".strip().replace("_", " "))
        for outcome, (color, sign) in OUTCOMES.items()
        if outcome in seen
    ]


def _draw_tiles(ax: Axes, strips: list[_Strip]) -> None:
    y = 0
    for strip in strips:
        ax.text(0, y + 0.62, strip.title, va="center", fontsize=8.5)
        for i, outcome in enumerate(strip.outcomes):
            color, sign = OUTCOMES[outcome]
            column, row = i % TILES_PER_ROW, y + 1 + i // TILES_PER_ROW
            ax.add_patch(Rectangle((column, row + 0.08), 0.88, 0.84, facecolor=color, edgecolor=MUTED, linewidth=0.4))
            ink = INK if color == PAPER else "white"
            ax.text(column + 0.44, row + 0.5, sign, color=ink, ha="center", va="center_baseline", fontsize=7)
        y += strip.rows
    ax.set_xlim(0, TILES_PER_ROW)
    ax.set_ylim(y, 0)
    ax.axis("off")


def _draw_bars(ax: Axes, strips: list[_Strip]) -> None:
    for i, strip in enumerate(strips):
        counts = pd.Series(strip.outcomes).value_counts()
        ax.text(0, 2 * i + 0.62, f"{strip.title}: {len(strip.outcomes)}", va="center", fontsize=8.5)
        left = 0
        for outcome, (color, _) in OUTCOMES.items():
            if outcome in counts:
                ax.barh(
                    2 * i + 1.4, counts[outcome], left=left, height=0.8, color=color, edgecolor=MUTED, linewidth=0.4
                )
                left += counts[outcome]
    ax.set_ylim(2 * len(strips), 0)
    ax.yaxis.set_visible(False)
    ax.spines["left"].set_visible(False)

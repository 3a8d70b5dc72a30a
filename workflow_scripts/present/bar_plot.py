"""Figures of absolute values as bars, with every repeat as a dot."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow_scripts.present.plot import LINE_IN, Panel, Plot, hide_y, key, write_label
from workflow_scripts.present.series import means, repeats_of
from workflow_scripts.present.style import INK, Mark

LINES_PER_BAR = 2.0
MOST_BARS = 12
DOT: Mapping[str, Any] = {"color": INK, "marker": "o", "markersize": 3, "linestyle": "none"}


def plot_bars(
    rows: pd.DataFrame, measures: Mapping[str, str], named: Mapping[str, Mark], *, title: str, panels_are: str
) -> Plot:
    """One panel per value of `panel` and per measure (column -> name); a bar is the mean of the rows of a `label`.

    `name` says in which colour a bar is drawn.
    """
    known = {column: name for column, name in measures.items() if rows[column].notna().any()}
    groups = sorted(rows.groupby("panel", sort=False), key=lambda item: -item[1]["cell_id"].nunique())
    most = max(part["label"].nunique() for _, part in groups)
    few = [f"the {MOST_BARS} highest bars of a panel are drawn; the tables hold all"] if most > MOST_BARS else []
    return Plot(
        title=title,
        alt=f"{title}, measured: " + "; ".join(_in_words(panel, part, known) for panel, part in groups[:4]) + ".",
        sources=sorted(rows["source"].unique()),
        panels=[
            Panel("\n".join(filter(None, (name, str(panel)))), partial(_draw, rows=part, column=column, named=named))
            for panel, part in groups
            for column, name in known.items()
            if part[column].notna().any()
        ],
        panels_are=panels_are,
        handles=[
            *(Patch(color=named[name].color, label=name) for name in dict.fromkeys(rows["name"])),
            key("a repeat", **DOT),
        ],
        repeats=repeats_of(rows),
        notes=[*few, "bars are geometric means over repeats and starts, as in the tables"],
        panel_height_in=LINE_IN * LINES_PER_BAR * min(MOST_BARS, most) + 0.75,
    )


def _bars(rows: pd.DataFrame, column: str) -> list[tuple[str, float]]:
    """The labels with their means, the highest first."""
    of_label = means(rows, [column], "label")[column].dropna().sort_values(ascending=False, kind="stable")
    return list(of_label.head(MOST_BARS).items())  # type: ignore[arg-type]


def _draw(ax: Axes, rows: pd.DataFrame, column: str, named: Mapping[str, Mark]) -> None:
    bars = _bars(rows, column)
    for i, (label, mean) in enumerate(bars):
        y, part = LINES_PER_BAR * i, rows[rows["label"] == label]
        write_label(ax, y + 0.5, f"{label}: {mean:,.3g}" if mean < 1000 else f"{label}: {mean:,.0f}")
        ax.barh(y + 1.3, mean, height=0.6, color=named[part["name"].iloc[0]].color)
        ax.plot(part[column], [y + 1.3] * len(part), **DOT)
    ax.set_ylim(LINES_PER_BAR * len(bars), 0)
    ax.set_xlim(0, 1.08 * float(rows[column].max()))
    ax.locator_params(axis="x", nbins=5)
    hide_y(ax)


def _in_words(panel: object, rows: pd.DataFrame, measures: Mapping[str, str]) -> str:
    told = [f"{label} {high:.3g} ({name})" for column, name in measures.items() for label, high in _bars(rows, column)]
    return f"{panel}: {', '.join(told)}"

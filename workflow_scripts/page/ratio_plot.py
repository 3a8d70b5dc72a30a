"""Figures with a label above each line: ratios with their intervals, one dot per pair of cells, and bars of values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow_scripts.common.columns import Column, column, unit_of
from workflow_scripts.common.wording import number
from workflow_scripts.page.plot import (
    LINE_IN,
    Panel,
    Plot,
    hide_y,
    key,
    log_ticks,
    mark_cells,
    mark_handles,
    set_ticks,
    write_label,
)
from workflow_scripts.page.series import evenly, repeats_in_words, repeats_of
from workflow_scripts.page.style import INK, MUTED, PAPER, LineStyle, Mark
from workflow_scripts.tables.results import Tables, records

MOST_LABELS = 14
MOST_DOTS = 40
# Ticks of an axis of ratios, in order of preference.
TICKS = (
    *(1, 2, 5, 10, 0.5, 20, 50, 100, 200, 500, 0.2, 0.1, 3, 1.5, 7, 4, 1.2, 0.05, 0.8, 1.1, 0.9, 0.6, 1.4, 0.7),
    *(1.05, 0.95, 1.02, 0.98),
)
# A ratio that may be 1.
HOLLOW: Mapping[str, Any] = {"linestyle": "none", "markerfacecolor": PAPER}
LINES_PER_BAR = 2.0
MOST_BARS = 12
DOT: Mapping[str, Any] = {"color": INK, "marker": "o", "markersize": 3, "linestyle": "none"}


class Reference(NamedTuple):
    """A ratio that is the same for all dots of a panel, drawn as a vertical line."""

    column: str
    label: str
    color: str
    style: LineStyle


def plot_ratios(
    rows: pd.DataFrame,
    named: Mapping[str, Mark],
    *,
    title: str,
    panels_are: str = "",
    repeats: Sequence[str] = (),
    references: Sequence[Reference] = (),
    interval: str = "95 % interval",
    notes: Iterable[str] = (),
) -> Plot:
    """One panel per value of `panel`, if there is such a column; the panel with the most rows comes first. A column
    `hollow` marks ratios that are not decided."""
    rows = rows.assign(panel=rows.get("panel", ""), hollow=rows.get("hollow", False))
    references = [r for r in references if rows[r.column].notna().any()]
    all_rows = len(rows)
    rows = evenly(rows, ["panel", "label"], "ratio", MOST_DOTS)
    columns = ["ratio", "ratio_low", "ratio_high", "beside", *(r.column for r in references)]
    values = rows.reindex(columns=columns).to_numpy(dtype=float)
    limits = min(np.nanmin(values), 1) / 1.06, max(np.nanmax(values), 1) * 1.06
    groups = sorted(rows.groupby("panel", sort=False), key=lambda item: -len(item[1]))
    draw = partial(_draw, named=named, limits=limits, references=references)
    notes = list(notes)
    if len(rows) < all_rows:
        notes.append(
            f"at most {MOST_DOTS} dots are drawn below a label, evenly from the lowest ratio to the highest; the table "
            "holds all"
        )
    if rows.duplicated(["panel", "label", "name"]).any():
        notes.append("dots with the same mark below the same label differ in other settings")
    handles = mark_handles({name: named[name] for name in named if name in set(rows["name"])})
    if rows["ratio_low"].notna().any():
        handles.append(key(interval, MUTED, linewidth=1.5))
    if rows["hollow"].any():
        handles.append(key("not decided", MUTED, marker="o", **HOLLOW))
    handles += [key(r.label, r.color, r.style) for r in references]
    if "beside" in rows and rows["beside"].notna().any():
        handles.append(key("KV-cache tokens (measured)", marker="x", linestyle="none"))
    return Plot(
        title=title,
        alt=_in_words(f"{title}, measured.", rows),
        sources=sorted({*rows["source"], *(["published"] if any("published" in r.label for r in references) else [])}),
        panels=[
            Panel(str(panel), partial(draw, rows=part), height_in=_lines_of(part) * LINE_IN + 0.75)
            for panel, part in groups
        ],
        panels_are=panels_are,
        x_label="Ratio (1: no difference)",
        handles=handles,
        repeats=repeats_of_pairs(rows, *repeats) if repeats else "",
        notes=notes,
    )


def labelled(rows: pd.DataFrame, names: Sequence[str], settings: str) -> pd.DataFrame:
    """The rows, each with a `label`: the names and settings that differ between rows; settings only if they are few."""
    varied = [name for name in names if rows[name].nunique() > 1]
    several = rows[settings].nunique() > 1
    few = rows.groupby([*varied, settings]).ngroups <= MOST_LABELS
    columns = [*varied, settings] if several and few else varied
    labels = [" · ".join(filter(None, map(str, values))) for _, *values in rows[columns].itertuples(name=None)]
    return rows.assign(label=labels)


def _lines_of(rows: pd.DataFrame) -> float:
    """Height of a panel in lines of text."""
    return sum(bool(label) + _thickness(len(part)) for label, part in rows.groupby("label", sort=False))


def _thickness(dots: int) -> float:
    """Height in lines of text for the dots of one label: less per dot if there are many."""
    return max(1.0, min(0.6 * dots, 6.0))


def _draw(
    ax: Axes,
    rows: pd.DataFrame,
    named: Mapping[str, Mark],
    limits: tuple[float, float],
    references: Sequence[Reference],
) -> None:
    for reference in references:
        for value in rows[reference.column].dropna().unique():
            ax.axvline(value, color=reference.color, linestyle=reference.style, linewidth=1.2)
    y = 0.0
    for label, part in rows.groupby("label", sort=False):
        if label:
            write_label(ax, y + 0.5, str(label))
            y += 1
        thickness = _thickness(len(part))
        part = part.assign(y=y + thickness * (np.arange(len(part)) + 0.5) / len(part))
        for name, dots in part.groupby("name", sort=False):
            mark = named[str(name)]
            ax.hlines(dots["y"], dots["ratio_low"], dots["ratio_high"], color=mark.color, linewidth=1.5)
            for hollow, alike in dots.groupby("hollow"):
                look = HOLLOW if hollow else {"linestyle": "none"}
                ax.plot(alike["ratio"], alike["y"], marker=mark.marker, color=mark.color, **look)
            known = dots.reindex(columns=["ratio", "y", "cell_id"]).dropna(subset="cell_id")
            mark_cells(ax, known["ratio"], known["y"], known["cell_id"], "ratio", on="x")
        if "beside" in part:
            ax.plot(part["beside"], part["y"], marker="x", color=INK, linestyle="none", markersize=4)
        y += thickness
    ax.set_ylim(y + 0.2, 0)
    hide_y(ax)
    _ratio_axis(ax, *limits)


def _ratio_axis(ax: Axes, low: float, high: float) -> None:
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    apart = math.log(high / low) / 8
    ticks: list[float] = []
    for tick in TICKS:
        if low <= tick <= high and all(abs(math.log(tick / other)) > apart for other in ticks):
            ticks.append(tick)
    set_ticks(ax.xaxis, ticks)
    log_ticks(ax.xaxis, low, high)
    ax.axvline(1, color=MUTED, linewidth=0.8, zorder=0)


def repeats_of_pairs(rows: pd.DataFrame, *columns: str) -> str:
    return repeats_in_words(pd.concat([rows[column] for column in columns]).dropna())


def _in_words(start: str, rows: pd.DataFrame) -> str:
    sentences = [start]
    for row in records(rows.head(8)):
        about = ", ".join(filter(None, (row["panel"], row["label"], row["name"])))
        low, high = row["ratio_low"], row["ratio_high"]
        ends = "" if math.isnan(low) else f" ({number(low)} to {number(high)})"
        sentences.append(f"{about}: {number(row['ratio'])}{ends}.")
    if len(rows) > 8:
        sentences.append(f"The table holds {len(rows) - 8} more.")
    return " ".join(sentences)


def plot_bars(
    rows: pd.DataFrame,
    tables: Tables,
    measures: Sequence[str],
    named: Mapping[str, Mark],
    *,
    title: str,
    panels_are: str,
) -> Plot:
    """One panel per value of `panel` and per measure; a bar is the value of the cell of a `label`, with its interval.

    `name` says in which colour a bar is drawn.
    """
    drawn = [column(name) for name in measures if rows[name].notna().any()]
    units = {of.name: unit_of(of.name, rows[of.name].max()) for of in drawn}
    rows = rows.assign(
        **{name: rows[name] * factor for name, (_, factor) in units.items()},
        **{
            f"{of.name}_{end}": rows["cell_id"].map(ends) * units[of.name][1]
            for of in drawn
            for end, ends in tables.intervals_of(of.name).items()
        },
    )
    groups = sorted(rows.groupby("panel", sort=False), key=lambda item: -item[1]["cell_id"].nunique())
    most = max(part["label"].nunique() for _, part in groups)
    few = [f"the {MOST_BARS} highest bars of a panel are drawn; the tables hold all"] if most > MOST_BARS else []
    return Plot(
        title=title,
        alt=f"{title}, measured: " + "; ".join(_bars_in_words(panel, part, units) for panel, part in groups[:4]) + ".",
        sources=sorted(rows["source"].unique()),
        panels=[
            Panel(
                "\n".join(filter(None, (f"{of.label} ({units[of.name][0]})", str(panel)))),
                partial(_draw_bars, rows=part, of=of, factor=units[of.name][1], named=named),
            )
            for panel, part in groups
            for of in drawn
            if part[of.name].notna().any()
        ],
        panels_are=panels_are,
        handles=[
            *(Patch(color=named[name].color, label=name) for name in dict.fromkeys(rows["name"])),
            key("95 % interval", MUTED, linewidth=1.5),
            key("a repeat", **DOT),
        ],
        repeats=repeats_of(rows),
        notes=[*few, "bars are the values of cells over all repeats and starts, as in the tables"],
        panel_height_in=LINE_IN * LINES_PER_BAR * min(MOST_BARS, most) + 0.75,
    )


def _bars(rows: pd.DataFrame, name: str) -> list[tuple[str, float, float, float]]:
    """The labels with their means and the ends of their intervals, the highest first."""
    value, low, high = (f"{name}_{of}" for of in ("value", "low", "high"))
    of_label = rows.groupby("label", sort=False)[[value, low, high]].median().dropna(subset=value)
    of_label = of_label.sort_values(value, ascending=False, kind="stable")
    return list(of_label.head(MOST_BARS).itertuples(name=None))


def _draw_bars(ax: Axes, rows: pd.DataFrame, of: Column, factor: float, named: Mapping[str, Mark]) -> None:
    name, told = of.name, of.factor / factor
    bars = _bars(rows, name)
    for i, (label, mean, *ends) in enumerate(bars):
        y, part = LINES_PER_BAR * i, rows[rows["label"] == label]
        write_label(ax, y + 0.5, f"{label}: {number(mean)}")
        ax.barh(y + 1.3, mean, height=0.6, color=named[part["name"].iloc[0]].color)
        ax.hlines(y + 1.75, *ends, color=MUTED, linewidth=1.5)
        ax.plot(part[name], [y + 1.3] * len(part), **DOT)
        mark_cells(ax, [mean], [y + 1.3], part["cell_id"].head(1), name, on="x", ends=[ends], factor=told)
    ax.set_ylim(LINES_PER_BAR * len(bars), 0)
    ax.set_xlim(0, 1.08 * float(rows[[name, f"{name}_high"]].max().max()))
    ax.locator_params(axis="x", nbins=5)
    hide_y(ax)


def _bars_in_words(panel: object, rows: pd.DataFrame, units: Mapping[str, tuple[str, float]]) -> str:
    bars = [f"{label} {number(high)} {unit}" for of, (unit, _) in units.items() for label, high, *_ in _bars(rows, of)]
    return f"{panel}: {', '.join(bars)}"

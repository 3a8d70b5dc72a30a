"""Figures of a rate or share by the value of one knob: which lines they have, and how these are drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow_scripts.catalog.published import PROMPT_SHARES
from workflow_scripts.common.columns import Column, column
from workflow_scripts.page.plot import (
    Panel,
    Plot,
    draw_repeats,
    key,
    line_through,
    log2_axis,
    mark_cells,
    mark_handles,
    ratio_axis,
)
from workflow_scripts.page.series import Group, ends_in_words, groups_varying, repeats_of
from workflow_scripts.page.style import COLOURS, INK, MUTED, OUTCOMES, LineStyle, Mark, marks
from workflow_scripts.physics.rate_ceiling import at_least
from workflow_scripts.study.setting_words import knob_axis, knob_name
from workflow_scripts.tables.parsed_facts import REPEAT
from workflow_scripts.tables.results import RATE, STEADY, Tables, require

LINE_STYLES: Sequence[LineStyle] = ("-", (0, (5, 1.5)), (0, (4, 1.5, 1, 1.5)))
# Rates from which a ceiling is computed -> style and name of its line.
CEILINGS: Mapping[str, tuple[LineStyle, str]] = {
    "datasheet": ((0, (9, 2)), "ceiling, data sheet (predicted)"),
    "measured": ((0, (4, 1.2, 1, 1.2, 1, 1.2)), "ceiling, measured rates (predicted)"),
}
# A column of rows whose measure is the rate while the engine is full: the cell's rate over whole repeats.
WHOLE, KINDS = "over_whole_repeats", {True: "while the engine is full", False: "over whole repeats"}
# Columns of rows: the value of the row's cell over all its repeats, and the ends of its 95 % interval.
ENDS = ("value", "low", "high")
VALUE, LOW, HIGH = ENDS
WHOLE_LINE: Mapping[str, Any] = {"marker": "o", "markerfacecolor": "none", "linestyle": (0, (2, 1.5)), "linewidth": 0.9}
# The same sign that invalid cells have in the figure of outcomes.
INVALID: Mapping[str, Any] = {"marker": f"${OUTCOMES['invalid'][1]}$", "linestyle": "none"}
PUBLISHED: Mapping[str, Any] = {"marker": "x", "markersize": 6, "markeredgewidth": 1.6, "linewidth": 0.7}
BESIDE: Mapping[str, Any] = {"textcoords": "offset points", "va": "top", "fontsize": 8.5, "fontweight": "bold"}
NO_CEILINGS = pd.DataFrame()
NOTHING_PUBLISHED = pd.DataFrame(columns=["published", "published_prompt_share"], dtype=float)
ALL_SETTINGS, ONE_SETTING = "all settings of other knobs", "no other setting varies"
_BAND = (
    "if many settings of other knobs were measured, a line is the median of all of them and its band spans the lowest "
    "to the highest"
)
_WHILE_FULL = (
    "the cells of a line served different requests, so rates are those while as many sequences ran as the limit allows"
)
_PUBLISHED = (
    "crosses are rates that others published for the same device and setting, of requests that are not known; a source "
    "that does not say which tokens it counts may count prompts. The text is the share of prompt tokens with which a "
    "data sheet (of several cards that its name may mean, that of the fastest) allows the cross that needs the most; a "
    "rate in reach of its ceiling may still be wrong"
)
_FAILED = "a question mark is a cell that failed a check, for example because it is above its ceiling"


def compared(tables: Tables, rows: pd.DataFrame, knob: str, panel_keys: Sequence[str]) -> list[Group]:
    """The panels; the columns `colour` and `style` of their rows say how each row is drawn.

    Colours distinguish devices; in a panel with only one device they distinguish settings, which may be more numerous.
    """
    groups = groups_varying(rows, knob, tables.knobs, panel_keys)
    one_device = len({gpu for group in groups for gpu in group.rows["gpu"]}) == 1
    several = any(len(group.labels) > 1 for group in groups)
    by_setting = "gpu" in panel_keys or (one_device and several)
    most_series = len(COLOURS) if by_setting else len(LINE_STYLES)
    for group in groups:
        series = group.rows["series"] if len(group.labels) <= most_series else ALL_SETTINGS
        if several and group.labels == [""]:
            series = ONE_SETTING
        group.rows["colour"] = series if by_setting else group.rows["gpu"]
        group.rows["style"] = "" if by_setting else series
    return groups


def colours_of(tables: Tables, rows: pd.DataFrame) -> dict[str, Mark]:
    """The mark of each `colour` of rows; that of a device is the same in every figure."""
    names = list(dict.fromkeys(rows["colour"]))
    every = marks(tables.devices if set(names) <= set(tables.devices) else names)
    return {name: every[name] for name in names}


def ceilings_of(tables: Tables, groups: Iterable[Group], rate: str = RATE) -> pd.DataFrame:
    """Ceilings of each cell, one column per source of the device's rates."""
    limits = tables.get("limits", "cell_id", "rates", f"{rate}_ceiling")
    of_cells = limits[limits["cell_id"].isin({cell for group in groups for cell in group.rows["cell_id"]})]
    return of_cells.pivot_table(index="cell_id", columns="rates", values=f"{rate}_ceiling")


@dataclass(frozen=True)
class _Lines:
    """What is drawn in every panel, and how: `ceilings` and `published` are by cell, and may have none."""

    measure: str
    colours: Mapping[str, Mark]
    styles: Mapping[str, LineStyle]
    ceilings: pd.DataFrame
    published: pd.DataFrame
    limits: tuple[float, float]

    def draw(self, ax: Axes, rows: pd.DataFrame, invalid: pd.DataFrame) -> None:
        for (colour, style), line in rows.groupby(["colour", "style"], sort=False):
            draw = _draw_band if ALL_SETTINGS in (colour, style) else draw_line
            draw(ax, line, self.measure, self.colours[str(colour)], self.styles[str(style)])
        if WHOLE not in rows:
            for colour, line in rows.groupby("colour", sort=False):
                for rates, ceiling in self.ceilings.items():
                    at = _highest(line, ceiling)
                    color, style = self.colours[str(colour)].color, CEILINGS[str(rates)][0]
                    ax.plot(at.index, at, color=color, linestyle=style, linewidth=1.2)
        for gpu, cells in invalid.groupby("gpu"):
            color = self.colours[str(gpu)].color if gpu in self.colours else INK
            ax.plot(cells["x"], cells[self.measure], color=color, markersize=8, **INVALID)
        log2_axis(ax, rows["x"].unique())
        ratio_axis(ax, *self.limits)
        if len(self.published):
            self._draw_published(ax, rows)

    def _draw_published(self, ax: Axes, rows: pd.DataFrame) -> None:
        """Draw published rates, and at the one that needs the most prompt tokens their share that makes it possible."""
        rows = rows.merge(self.published, left_on="cell_id", right_index=True)
        for colour, of_one in rows.groupby("colour", sort=False):
            at = of_one.groupby("x")[["published", "published_prompt_share"]].median()
            draw_published(ax, at["published"], at["published_prompt_share"], color=self.colours[str(colour)].color)
        most = rows.sort_values("published_prompt_share", na_position="first").iloc[-1]
        if most["published_prompt_share"] > 0:
            place, side = ((4, -6), "left") if most["x"] < rows["x"].max() else ((-4, -6), "right")
            share = at_least(most["published_prompt_share"])
            text = f"{most['gpu']}, {most['x']:g}: possible only if\n{share}\nare prompt tokens"
            ax.annotate(text, (most["x"], most["published"]), place, ha=side, **BESIDE)


def plot_by_knob(
    tables: Tables,
    groups: list[Group],
    knob: str,
    measure: str,
    ceilings: pd.DataFrame = NO_CEILINGS,
    published: pd.DataFrame = NOTHING_PUBLISHED,
) -> Plot:
    """The figure of a measure, one panel per group; `published` has rates by others for some cells, by their ids, and
    the share of prompt tokens that they need."""
    name, shown = knob_name(knob), column(measure)
    names = (*REPEAT, "gpu", "source", "x", "colour", "style", measure, *ENDS, WHOLE)
    of_all = [group.rows if VALUE in group.rows else with_ends(tables, group.rows, measure) for group in groups]
    of_all = [in_unit(rows.filter(names), shown) for rows in of_all]
    groups = [replace(group, rows=rows) for group, rows in zip(groups, of_all, strict=True)]
    rows = pd.concat([group.rows for group in groups])
    require(rows[measure].dropna(), f"{shown.in_words} is known for no cell")
    colours = colours_of(tables, rows)
    styles = dict(zip(dict.fromkeys(rows["style"]), cycle(LINE_STYLES), strict=False))
    invalid = [in_unit(_invalid(tables, group, f"knob_{knob}", measure), shown) for group in groups]
    possible = published[~(published["published_prompt_share"] > max(PROMPT_SHARES))]
    ceilings, low = shown.scaled(ceilings), shown.scaled(possible["published"] * (1 - max(PROMPT_SHARES)))
    drawn = (rows.filter([measure, WHOLE]), ceilings, *(cells[[measure]] for cells in invalid))
    values = np.concatenate([low, published["published"], *(part.to_numpy(dtype=float).ravel() for part in drawn)])
    limits = float(np.nanmin(values)), float(np.nanmax(values))
    lines = _Lines(measure, colours, styles, ceilings, published, limits)
    handles = mark_handles(colours)
    handles += [key(name, linestyle=style) for name, style in styles.items() if name]
    handles.append(key("mean, 95 % interval; a repeat is a dot", MUTED, linewidth=1.5))
    handles += [key(name, linestyle=style) for style, name in (CEILINGS[str(rates)] for rates in ceilings)]
    if WHOLE in rows:
        handles.append(key("over whole repeats, with filling and drain", **WHOLE_LINE))
    if len(published):
        handles += published_handles(len(possible) > 0)
    if any(map(len, invalid)):
        handles.append(key("invalid, not compared", **INVALID))
    devices = {*rows["gpu"]}
    place = f" on {devices.pop()}" if len(devices) == 1 and not set(rows["colour"]) <= devices else ""
    heads = [f"{group.title}\n" for group in groups] if len(groups) > 1 else [""]
    shared = f": {groups[0].title}" * (len(groups) == 1)
    beside = ["predicted"] * (not ceilings.empty) + ["published"] * (not published.empty)
    return Plot(
        title=f"{shown.label} against {name}{place}{shared}",
        alt=" ".join([f"{shown.label} against {name}, measured.", *_in_words(groups)]),
        sources=[*sorted(rows["source"].unique()), *beside],
        panels=[
            Panel(f"{head}{KINDS[WHOLE in group.rows]}", partial(lines.draw, rows=group.rows, invalid=cells))
            for group, head, cells in zip(groups, heads, invalid, strict=True)
        ],
        x_label=knob_axis(knob),
        y_label=shown.axis,
        handles=handles,
        repeats=repeats_of(rows),
        notes=[
            *[_BAND] * (ALL_SETTINGS in {*rows["colour"], *rows["style"]}),
            *[_WHILE_FULL] * (WHOLE in rows),
            *[_PUBLISHED] * (len(published) > 0),
            *[_FAILED] * any(map(len, invalid)),
        ],
    )


def draw_published(ax: Axes, at: "pd.Series[float]", needed: "pd.Series[float]", **look: Any) -> None:
    """Draw published tokens/s by the value of a knob, and how many of them may be output tokens if at most a share of
    PROMPT_SHARES, and no less than the share `needed`, are prompt tokens."""
    ax.plot(at.index, at, **{**PUBLISHED, **look})
    needed = needed.fillna(0.0).clip(lower=0.0)
    possible = at.where(needed <= max(PROMPT_SHARES))
    low, high = possible * (1 - max(PROMPT_SHARES)), possible * (1 - needed)
    ax.fill_between(at.index, low, high, color=look.get("color", INK), alpha=0.25, linewidth=0)


def published_handles(mixes: bool = True, **look: Any) -> list[Artist]:
    band = Patch(
        label=f"if up to {100 * max(PROMPT_SHARES):g} % are prompt tokens, where possible",
        color=INK,
        alpha=0.25,
        linewidth=0,
    )
    return [key("published by others, if all are output tokens", **{**PUBLISHED, **look}), *[band] * mixes]


def with_ends(tables: Tables, rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The rows, each with the value of its cell and the ends of the value's interval."""
    return rows.drop(columns=[*ENDS], errors="ignore").join(tables.intervals_of(measure), on="cell_id")


def in_unit(rows: pd.DataFrame, shown: Column) -> pd.DataFrame:
    return rows.assign(**{of: shown.scaled(rows[of]) for of in (shown.name, *ENDS, WHOLE) if of in rows})


def _invalid(tables: Tables, group: Group, knob: str, measure: str) -> pd.DataFrame:
    """The median of each invalid cell that belongs in the panel, with its value of the knob as `x`."""
    rows = tables.invalid[tables.invalid[knob].isin(group.rows["x"].unique())]
    rows = rows[(rows[list(group.keys)] == list(group.keys.values())).all(axis=1)]
    values = rows.rename(columns={knob: "x"}).groupby(["cell_id", "gpu"])
    return values[["x", measure]].median().reset_index()


def _highest(rows: pd.DataFrame, ceiling: "pd.Series[float]") -> "pd.Series[float]":
    """At each `x` the highest ceiling of its cells."""
    return rows["cell_id"].map(ceiling).groupby(rows["x"]).max().dropna()


def draw_line(ax: Axes, rows: pd.DataFrame, rate: str, mark: Mark, style: LineStyle) -> None:
    """Draw each repeat as a dot, and the mean as a mark with its 95 % interval as a bar."""
    at = rows.groupby("x")[[*ENDS]].median()
    draw_repeats(ax, rows["x"], rows[rate], mark.color)
    ax.vlines(at.index, at[LOW], at[HIGH], color=mark.color, linewidth=1.5)
    cells, measure = rows.drop_duplicates("cell_id"), STEADY if WHOLE in rows else rate
    mark_cells(ax, cells["x"], cells[VALUE], cells["cell_id"], measure, ends=cells[[LOW, HIGH]].to_numpy())
    ax.plot(at.index, at[VALUE], color=mark.color, marker=mark.marker, **line_through(len(at), style))
    if WHOLE in rows:
        whole = rows.groupby("x")[WHOLE].median()
        ax.plot(whole.index, whole, color=mark.color, **WHOLE_LINE)


def _draw_band(ax: Axes, rows: pd.DataFrame, rate: str, mark: Mark, style: LineStyle) -> None:
    at = rows.groupby("x")[rate].agg(["median", "min", "max"])
    ax.fill_between(at.index, at["min"], at["max"], color=mark.color, alpha=0.25, linewidth=0)
    ax.plot(at.index, at["median"], color=mark.color, marker=mark.marker, linestyle=style)


def _in_words(groups: Sequence[Group]) -> Iterable[str]:
    for group in groups[:6]:
        for colour, rows in group.rows.groupby("colour", sort=False):
            what = ", ".join(filter(None, (group.title, str(colour))))
            yield ends_in_words(f"{what}: mean", rows.groupby("x")[VALUE].median())

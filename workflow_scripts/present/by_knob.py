"""Figures of a rate or share by the value of one knob: which lines they have, and how these are drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow_scripts.common.wording import sentence
from workflow_scripts.present.plot import Panel, Plot, key, log2_axis, mark_handles, ratio_axis
from workflow_scripts.present.report_tables import REPEAT, MissingError, Tables
from workflow_scripts.present.series import Group, groups_varying, means, repeats_of
from workflow_scripts.present.style import COLOURS, INK, OUTCOMES, LineStyle, Mark, marks
from workflow_scripts.study.setting_words import knob_name

LINE_STYLES: Sequence[LineStyle] = ("-", (0, (5, 1.5)), (0, (4, 1.5, 1, 1.5)))
# Rates from which a ceiling is computed -> style and name of its line.
CEILINGS: Mapping[str, tuple[LineStyle, str]] = {
    "datasheet": ((0, (1, 1.2)), "ceiling, data sheet (predicted)"),
    "measured": ((0, (4, 1.2, 1, 1.2, 1, 1.2)), "ceiling, measured rates (predicted)"),
}
# A column of rows whose measure is the rate while the engine is full: the rate over whole repeats.
WHOLE = "over_whole_repeats"
WHOLE_LINE: Mapping[str, Any] = {"marker": "o", "markerfacecolor": "none", "linestyle": (0, (2, 1.5)), "linewidth": 0.9}
# The same sign that invalid cells have in the figure of outcomes.
INVALID = f"${OUTCOMES['invalid'][1]}$"
PUBLISHED: Mapping[str, Any] = {"marker": "x", "markersize": 6, "markeredgewidth": 1.6, "linewidth": 0.7}
IMPOSSIBLE, SHADE = COLOURS[7], 0.12
# A published rate above the measured one by less than this factor may be of other lengths.
WORTH_SAYING = 1.5
UNITS = {"max_num_seqs": " (sequences)", "block_size": " (tokens)"}
ALL_SETTINGS, ONE_SETTING = "all settings of other knobs", "one setting of other knobs"


class Measure(NamedTuple):
    """The quantity of the y axis: a column, its name and its axis label."""

    column: str
    name: str
    label: str


OUTPUT = Measure("output_tokens_per_s", "Output tokens per second", "Output tokens per s")
TOTAL = Measure("total_tokens_per_s", "Total tokens (prompt and output) per second", "Total tokens per s")


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


def plot_by_knob(
    tables: Tables,
    groups: list[Group],
    knob: str,
    measure: Measure,
    ceilings: pd.DataFrame | None = None,
    published: "pd.Series[float] | None" = None,
) -> Plot:
    """The figure of a measure, one panel per group; `published` has rates by others for some cells, by their ids."""
    names = (*REPEAT, "gpu", "source", "x", "colour", "style", measure.column, WHOLE)
    groups = [replace(group, rows=group.rows[[name for name in names if name in group.rows]]) for group in groups]
    rows = pd.concat([group.rows for group in groups])
    if rows[measure.column].isna().all():
        raise MissingError(f"{measure.column} is known for no cell")
    colours = marks(tables.devices if set(rows["colour"]) <= set(tables.devices) else rows["colour"])
    styles = dict(zip(dict.fromkeys(rows["style"]), cycle(LINE_STYLES), strict=False))
    name = knob_name(knob)
    invalid = {group.title: _invalid(tables, group, f"knob_{knob}", measure) for group in groups}
    parts = [rows[measure.column], rows.get(WHOLE), published, *(part[measure.column] for part in invalid.values())]
    drawn = pd.concat([*parts, *([] if ceilings is None else [column for _, column in ceilings.items()])])
    draw = partial(
        _draw,
        colours=colours,
        styles=styles,
        measure=measure,
        ceilings=ceilings,
        published=published,
        limits=(float(drawn.min()), float(drawn.max())),
    )
    band = (
        "if many settings of other knobs were measured, a line is the median of all of them and its band spans the "
        "lowest to the highest"
    )
    handles = mark_handles({name: colours[name] for name in dict.fromkeys(rows["colour"])})
    handles += [key(name, linestyle=style) for name, style in styles.items() if name]
    ceiling_lines = [] if ceilings is None else [CEILINGS[str(rates)] for rates in ceilings]
    handles += [key(name, linestyle=style) for style, name in ceiling_lines]
    if WHOLE in rows:
        handles.append(key("over whole repeats, with filling and drain", **WHOLE_LINE))
    if published is not None:
        handles.append(key("published by others", **PUBLISHED))
        if ceilings is not None:
            handles.append(Patch(color=IMPOSSIBLE, alpha=SHADE, linewidth=0, label="impossible: above every ceiling"))
    if any(len(part) for part in invalid.values()):
        handles.append(key("invalid, not compared", linestyle="none", marker=INVALID))
    return Plot(
        title=f"{measure.name} against {name}",
        alt=_in_words(groups, measure, name),
        sources=sorted(rows["source"].unique())
        + ["predicted"] * (ceilings is not None)
        + ["published"] * (published is not None),
        panels=[Panel(group.title, partial(draw, group=group, invalid=invalid[group.title])) for group in groups],
        x_label=(sentence(name) if " " in name else name) + UNITS.get(knob, ""),
        y_label=measure.label,
        handles=handles,
        repeats=repeats_of(rows),
        notes=[band] if ALL_SETTINGS in {*rows["colour"], *rows["style"]} else [],
    )


def _invalid(tables: Tables, group: Group, knob: str, measure: Measure) -> pd.DataFrame:
    """The median of each invalid cell that belongs in the panel, with its value of the knob as `x`."""
    rows = tables.invalid[tables.invalid[knob].isin(group.rows["x"].unique())]
    rows = rows[(rows[list(group.keys)] == list(group.keys.values())).all(axis=1)]
    values = rows.rename(columns={knob: "x"}).groupby(["cell_id", "gpu"])
    return values[["x", measure.column]].median().reset_index()


def ceilings_of(tables: Tables, groups: Iterable[Group], rate: str = OUTPUT.column) -> pd.DataFrame | None:
    """Ceilings of each cell, one column per source of the device's rates; None if none is known."""
    limits = tables.get("limits")
    if limits is None:
        return None
    ids = {cell for group in groups for cell in group.rows["cell_id"]}
    of_cells = limits[limits["cell_id"].isin(ids)]
    ceilings = of_cells.pivot_table(index="cell_id", columns="rates", values=f"{rate}_ceiling")
    return None if ceilings.empty else ceilings


def _draw(
    ax: Axes,
    group: Group,
    colours: Mapping[str, Mark],
    styles: Mapping[str, LineStyle],
    measure: Measure,
    ceilings: pd.DataFrame | None,
    published: "pd.Series[float] | None",
    limits: tuple[float, float],
    invalid: pd.DataFrame,
) -> None:
    for (colour, style), rows in group.rows.groupby(["colour", "style"], sort=False):
        draw = _draw_band if ALL_SETTINGS in (colour, style) else _draw_line
        draw(ax, rows, measure.column, colours[str(colour)], styles[str(style)])
    if ceilings is not None and WHOLE not in group.rows:
        for colour, rows in group.rows.groupby("colour", sort=False):
            for rates, ceiling in ceilings.items():
                over = rows.assign(ceiling=rows["cell_id"].map(ceiling)).groupby("x")["ceiling"].max().dropna()
                ax.plot(
                    over.index, over, color=colours[str(colour)].color, linestyle=CEILINGS[str(rates)][0], linewidth=1.2
                )
    for gpu, rows in invalid.groupby("gpu"):
        color = colours[str(gpu)].color if gpu in colours else INK
        ax.plot(rows["x"], rows[measure.column], linestyle="none", marker=INVALID, color=color, markersize=8)
    log2_axis(ax, group.rows["x"].unique())
    ratio_axis(ax, *limits)
    if published is not None:
        _draw_published(ax, group.rows, colours, measure.column, published)
        if ceilings is not None:
            rows = group.rows.assign(ceiling=group.rows["cell_id"].map(ceilings.max(axis=1)))
            highest = rows.groupby("x")["ceiling"].max().dropna()
            ax.fill_between(highest.index, highest, ax.get_ylim()[1], color=IMPOSSIBLE, alpha=SHADE, linewidth=0)


def _draw_published(
    ax: Axes, rows: pd.DataFrame, colours: Mapping[str, Mark], rate: str, published: "pd.Series[float]"
) -> None:
    """Draw published rates as crosses, and by how much they exceed what the first device measured, where it is most."""
    rows = rows.assign(published=rows["cell_id"].map(published)).dropna(subset="published")
    for colour, of_one in rows.groupby("colour", sort=False):
        at = of_one.groupby("x")["published"].median()
        ax.plot(at.index, at, color=colours[str(colour)].color, **PUBLISHED)
    first = rows[rows["colour"] == rows["colour"].iloc[0]]
    both = means(first, ["published", rate], "x")
    most = int((both["published"] / both[rate]).to_numpy().argmax())
    x, (highest, own) = both.index[most], both.to_numpy()[most]
    times = highest / own
    if times > WORTH_SAYING:
        arrow = {"arrowstyle": "<->", "color": INK, "shrinkA": 5, "shrinkB": 5}
        ax.annotate("", (x, own), (x, highest), arrowprops=arrow)
        side = 1 if x < both.index.max() else -1
        ax.annotate(
            f"{times:.3g} times what\nwas measured",
            (x, highest),
            (6 * side, -8),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="top",
            fontsize=8.5,
            fontweight="bold",
        )


def _draw_line(ax: Axes, rows: pd.DataFrame, rate: str, mark: Mark, style: LineStyle) -> None:
    """Draw each repeat as a faint dot, and the mean as a mark with a bar from the lowest to the highest repeat."""
    at = rows.groupby("x")[rate].agg(["min", "max"])
    ax.plot(rows["x"], rows[rate], linestyle="none", marker=".", color=mark.color, alpha=0.35, markersize=4)
    ax.vlines(at.index, at["min"], at["max"], color=mark.color, linewidth=1.5)
    ax.plot(at.index, means(rows, [rate], "x")[rate], color=mark.color, marker=mark.marker, linestyle=style)
    if WHOLE in rows:
        whole = means(rows, [WHOLE], "x")[WHOLE]
        ax.plot(whole.index, whole, color=mark.color, **WHOLE_LINE)


def _draw_band(ax: Axes, rows: pd.DataFrame, rate: str, mark: Mark, style: LineStyle) -> None:
    at = rows.groupby("x")[rate].agg(["median", "min", "max"])
    ax.fill_between(at.index, at["min"], at["max"], color=mark.color, alpha=0.15, linewidth=0)
    ax.plot(at.index, at["median"], color=mark.color, marker=mark.marker, linestyle=style)


def _in_words(groups: Sequence[Group], measure: Measure, knob: str) -> str:
    sentences = [f"{measure.name} against {knob}, measured."]
    for group in groups[:6]:
        for colour, rows in group.rows.groupby("colour", sort=False):
            at = means(rows, [measure.column], "x")[measure.column]
            sentences.append(
                f"{', '.join(filter(None, (group.title, str(colour))))}: mean {at.iloc[0]:,.4g} at "
                f"{at.index[0]:g}, {at.iloc[-1]:,.4g} at {at.index[-1]:g}."
            )
    return " ".join(sentences)

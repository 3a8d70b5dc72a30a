"""Latency against throughput, and how much of the wait for the first token is queueing."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.common.columns import column
from workflow_scripts.page.by_knob import ALL_SETTINGS, HIGH, LOW, VALUE, colours_of, draw_line, in_unit, with_ends
from workflow_scripts.page.plot import (
    Panel,
    Plot,
    key,
    line_through,
    log2_axis,
    mark_cells,
    mark_handles,
    plain_log_axis,
    ratio_axis,
)
from workflow_scripts.page.report import FigurePart, Subject
from workflow_scripts.page.series import Group, ends_in_words, one_line, repeats_of
from workflow_scripts.page.style import INK, MUTED, LineStyle, Mark
from workflow_scripts.questions.knobs.sequence_limit import at_both_ends, most_important_group, rate_of
from workflow_scripts.study.setting_words import knob_axis, knob_name
from workflow_scripts.tables.results import RATE, STEADY, Tables, require

TTFT, PER_TOKEN = "ttft_s_p50", "tpot_s_p50"
# Output tokens/s of one request, as its user sees them: 1 / TPOT.
PER_USER = "_per_user"
SPEED = f"value{PER_USER}"
PARETO: Mapping[str, Any] = {"color": INK, "alpha": 0.25, "linewidth": 6}
FIRST: Mapping[str, tuple[LineStyle, str]] = {
    "queue_s_p50": ("-", "waiting until scheduled"),
    "prefill_s_p50": ((0, (5, 1.5)), "from there to the first token"),
}


def speed_per_user(tables: Tables) -> Plot:
    """Output tokens/s of the device against those of one request, and the points that none beats in both."""
    knob, lines = _lines(tables)
    rate = rate_of(lines)
    rows = require(lines.rows.dropna(subset=[rate, PER_TOKEN]), "no cell has both a rate and a time per token")
    cells = with_ends(tables, rows.drop_duplicates("cell_id").sort_values("x", kind="stable"), rate)
    cells = cells.join(1 / tables.intervals_of(PER_TOKEN).add_suffix(PER_USER), on="cell_id")
    named_as = colours_of(tables, rows)
    return Plot(
        title="Throughput against speed per user",
        alt=_ends(cells, column(rate).axis, knob_name(knob)),
        sources=sorted(rows["source"].unique()),
        panels=[
            Panel(
                f"{lines.title}\nnumbers are {knob_name(knob)}",
                partial(_curve, cells=cells, repeats=rows, rate=rate, named_as=named_as),
            )
        ],
        x_label="tokens/s per user (1 / TPOT, whole repeats)",
        y_label=column(rate).axis,
        handles=[
            *mark_handles(named_as),
            key("95 % intervals; a repeat is a dot", MUTED, linewidth=1.5),
            key("no drawn cell is better in both (Pareto)", **PARETO),
        ],
        repeats=repeats_of(rows),
    )


def latency(tables: Tables) -> Plot:
    knob, lines = _lines(tables)
    rows = require(lines.rows.dropna(subset=[RATE, PER_TOKEN, *FIRST]), "no request reports when it was scheduled")
    named_as = colours_of(tables, rows)
    parts = {of: in_unit(with_ends(tables, rows, of), column(of)) for of in FIRST}
    # Waits may be nearly 0, so their ratios say nothing of other starts.
    parts["queue_s_p50"][[LOW, HIGH]] = np.nan
    name = knob_name(knob)
    return Plot(
        title="What the first token waits for",
        alt=_ends(parts["queue_s_p50"], column("queue_s_p50").axis, name),
        sources=sorted(rows["source"].unique()),
        panels=[
            Panel(
                f"{lines.title}\nMedians ({column(TTFT).unit}) by {name}",
                partial(_first, parts=parts, named_as=named_as),
            )
        ],
        x_label=knob_axis(knob),
        handles=[
            *mark_handles(named_as),
            *(key(label, linestyle=style) for style, label in FIRST.values()),
            key("95 % interval, not of waits; a repeat is a dot", MUTED, linewidth=1.5),
        ],
        repeats=repeats_of(rows),
        notes=["the cells had different numbers of requests, and more of them wait longer"]
        * (rate_of(lines) == STEADY),
    )


def _lines(tables: Tables) -> tuple[str, Group]:
    """The knob that matters most, and the lines along it that colours tell apart: one of each device if those of
    several settings would look alike."""
    knob, group = most_important_group(tables)
    if {*group.rows["style"]} == {""} and ALL_SETTINGS not in {*group.rows["colour"]}:
        return knob, group
    line = one_line(group)
    return knob, replace(line, rows=line.rows.assign(colour=line.rows["gpu"]))


def _ends(rows: pd.DataFrame, axis: str, name: str) -> str:
    return " ".join(
        ends_in_words(f"{colour}: {axis} by {name}", line.groupby("x")[VALUE].median())
        for colour, line in rows.groupby("colour", sort=False)
    )


def _curve(ax: Axes, cells: pd.DataFrame, repeats: pd.DataFrame, rate: str, named_as: Mapping[str, Mark]) -> None:
    best = cells.sort_values([SPEED, "value"], ascending=False)
    best = best[best["value"] > best["value"].cummax().shift(fill_value=0)]
    ax.plot(best[SPEED], best["value"], **PARETO)
    sides = cycle([((7, 3), "left"), ((-7, -9), "right")])
    for (colour, part), (place, side) in zip(cells.groupby("colour", sort=False), sides, strict=False):
        mark = named_as[str(colour)]
        ax.plot(part[SPEED], part["value"], color=mark.color, marker=mark.marker, **line_through(len(part)))
        ax.vlines(part[SPEED], part["low"], part["high"], color=mark.color, linewidth=1.5)
        ax.hlines(part["value"], part[f"low{PER_USER}"], part[f"high{PER_USER}"], color=mark.color, linewidth=1.5)
        each = repeats[repeats["colour"] == colour]
        ax.scatter(1 / each[PER_TOKEN], each[rate], color=mark.color, marker=".", s=20, linewidths=0)
        mark_cells(ax, part[SPEED], part["value"], part["cell_id"], rate, ends=part[["low", "high"]].to_numpy())
        for x, speed, at in part[["x", SPEED, "value"]].itertuples(index=False):
            ax.annotate(f"{x:g}", (speed, at), place, textcoords="offset points", ha=side, fontsize=8)
    plain_log_axis(ax, "x", cells[SPEED].min() / 1.3, cells[SPEED].max() * 1.3, most=6)
    ratio_axis(ax, cells["value"].min() / 1.3, 1.3 * cells["value"].max())  # with room for numbers at the marks


def _first(ax: Axes, parts: Mapping[str, pd.DataFrame], named_as: Mapping[str, Mark]) -> None:
    values = np.concatenate([rows[name] for name, rows in parts.items()])
    low, high = values[values > 0].min(), values.max()
    for name, rows in parts.items():
        for colour, line in rows.groupby("colour", sort=False):
            draw_line(ax, line, name, named_as[str(colour)], FIRST[name][0])
    log2_axis(ax, rows["x"].unique())
    # An interval that is much wider than the range of the repeats ends at the edge.
    ends = np.clip(pd.concat([rows[[LOW, HIGH]] for rows in parts.values()]), low / 3, high * 3)
    ratio_axis(ax, np.nanmin([low, *ends[LOW]]), np.nanmax([high, *ends[HIGH]]))


SUBJECT = Subject(
    id="latency",
    title="Latency against throughput",
    asked="latenc|users",
    parts=[FigurePart(speed_per_user), FigurePart(latency)],
    findings=[at_both_ends(PER_TOKEN)],
)

"""Latency against throughput, and how much of the wait for the first token is queueing."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.common.columns import column
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
from workflow_scripts.page.series import Group, device_marks, ends_in_words, repeats_of, values_at
from workflow_scripts.page.style import INK, MUTED, LineStyle, Mark
from workflow_scripts.questions.knobs.sequence_limit import at_both_ends, most_important_line, rate_of
from workflow_scripts.study.setting_words import knob_axis, knob_name
from workflow_scripts.tables.results import RATE, STEADY, Tables, require

TTFT, PER_TOKEN = "ttft_s_p50", "tpot_s_p50"
# Output tokens/s of one request, as its user sees them: 1 / TPOT.
PER_USER = "tokens_per_s_per_user"
PARETO: Mapping[str, Any] = {"color": INK, "alpha": 0.25, "linewidth": 6}
FIRST: Mapping[str, tuple[LineStyle, str]] = {
    "queue_s_p50": ("-", "waiting until scheduled"),
    "prefill_s_p50": ((0, (5, 1.5)), "from there to the first token"),
}


def speed_per_user(tables: Tables) -> Plot:
    """Output tokens/s of the device against those of one request, and the points that none beats in both."""
    knob, line = most_important_line(tables)
    rate = rate_of(line)
    rows = require(line.rows.dropna(subset=[rate, PER_TOKEN]), "no cell has both a rate and a time per token")
    named_as = device_marks(tables, rows)
    values = values_at(tables, replace(line, rows=rows), rate, PER_TOKEN).reset_index()
    values[PER_USER] = 1 / values[PER_TOKEN]
    cells = rows[["gpu", "x", "cell_id"]].drop_duplicates("cell_id").join(tables.value(rate), on="cell_id")
    values = values.merge(cells.drop_duplicates(["gpu", "x", rate]), on=["gpu", "x", rate], how="left")
    values = values.join(tables.intervals_of(rate)[["low", "high"]], on="cell_id")
    values = values.join(1 / tables.intervals_of(PER_TOKEN)[["low", "high"]].add_suffix("_speed"), on="cell_id")
    draw = partial(_curve, rows=values, repeats=rows, rate=rate, named_as=named_as)
    return Plot(
        title="Throughput against speed per user",
        alt=_ends(values, rate, column(rate).axis, knob_name(knob)),
        sources=sorted(rows["source"].unique()),
        panels=[_panel(f"numbers are {knob_name(knob)}", line, draw)],
        x_label="tokens/s per user (1 / median TPOT)",
        y_label=column(rate).axis,
        handles=[
            *mark_handles(named_as),
            key("95 % intervals; a repeat is a dot", MUTED, linewidth=1.5),
            key("no drawn cell is better in both (Pareto)", **PARETO),
        ],
        repeats=repeats_of(rows),
    )


def latency(tables: Tables) -> Plot:
    knob, line = most_important_line(tables)
    rows = require(line.rows.dropna(subset=[RATE, PER_TOKEN, *FIRST]), "no request reports when it was scheduled")
    named_as = device_marks(tables, rows)
    values = values_at(tables, replace(line, rows=rows), *FIRST).reset_index()
    values = values.assign(**{of: column(of).scaled(values[of]) for of in FIRST})
    name = knob_name(knob)
    return Plot(
        title="What the first token waits for",
        alt=_ends(values, "queue_s_p50", column("queue_s_p50").axis, name),
        sources=sorted(rows["source"].unique()),
        panels=[
            _panel(f"Medians ({column(TTFT).unit}) by {name}", line, partial(_first, rows=values, named_as=named_as))
        ],
        x_label=knob_axis(knob),
        handles=mark_handles(named_as) + [key(label, linestyle=style) for style, label in FIRST.values()],
        repeats=repeats_of(rows),
        notes=["the cells had different numbers of requests, and more of them wait longer"] * (rate_of(line) == STEADY),
    )


def _panel(title: str, line: Group, draw: Callable[[Axes], None]) -> Panel:
    """A panel whose title also says which settings its line has, if the study has others."""
    return Panel("\n".join(filter(None, [title, *line.labels])), draw)


def _ends(values: pd.DataFrame, measure: str, axis: str, name: str) -> str:
    return " ".join(
        ends_in_words(f"{gpu}: {axis} by {name}", of_one.set_index("x")[measure])
        for gpu, of_one in values.groupby("gpu", sort=False)
    )


def _curve(ax: Axes, rows: pd.DataFrame, repeats: pd.DataFrame, rate: str, named_as: Mapping[str, Mark]) -> None:
    best = rows.sort_values([PER_USER, rate], ascending=False)
    best = best[best[rate] > best[rate].cummax().shift(fill_value=0)]
    ax.plot(best[PER_USER], best[rate], **PARETO)
    sides = cycle([((7, 3), "left"), ((-7, -9), "right")])
    for (gpu, part), (place, side) in zip(rows.groupby("gpu", sort=False), sides, strict=False):
        mark = named_as[str(gpu)]
        ax.plot(part[PER_USER], part[rate], color=mark.color, marker=mark.marker, **line_through(len(part)))
        ax.vlines(part[PER_USER], part["low"], part["high"], color=mark.color, linewidth=1.5)
        ax.hlines(part[rate], part["low_speed"], part["high_speed"], color=mark.color, linewidth=1.5)
        each = repeats[repeats["gpu"] == gpu]
        ax.scatter(1 / each[PER_TOKEN], each[rate], color=mark.color, marker=".", alpha=0.35, s=16)
        mark_cells(ax, part[PER_USER], part[rate], part["cell_id"], rate, ends=part[["low", "high"]].to_numpy())
        for x, speed, at in part[["x", PER_USER, rate]].itertuples(index=False):
            ax.annotate(f"{x:g}", (speed, at), place, textcoords="offset points", ha=side, fontsize=8)
    plain_log_axis(ax, "x", rows[PER_USER].min() / 1.3, rows[PER_USER].max() * 1.3, most=6)
    ratio_axis(ax, rows[rate].min() / 1.3, 1.3 * rows[rate].max())  # with room for numbers at the marks


def _first(ax: Axes, rows: pd.DataFrame, named_as: Mapping[str, Mark]) -> None:
    for gpu, part in rows.groupby("gpu", sort=False):
        mark = named_as[str(gpu)]
        for name, (style, _) in FIRST.items():
            ax.plot(part["x"], part[name], color=mark.color, marker=mark.marker, **line_through(len(part), style))
    log2_axis(ax, rows["x"].unique())
    latencies = rows[list(FIRST)].to_numpy(dtype=float)
    ratio_axis(ax, np.nanmin(latencies[latencies > 0]), np.nanmax(latencies))


SUBJECT = Subject(
    id="latency",
    title="Latency against throughput",
    asked="latenc|users",
    parts=[FigurePart(speed_per_user), FigurePart(latency)],
    findings=[at_both_ends(PER_TOKEN)],
)

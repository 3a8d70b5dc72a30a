"""Latency against throughput, and how much of the wait for the first token is queueing."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.common.columns import column
from workflow_scripts.page.plot import Panel, Plot, key, log2_axis, mark_handles, plain_log_axis, ratio_axis
from workflow_scripts.page.report import FigurePart, Subject
from workflow_scripts.page.series import device_marks, ends_in_words, repeats_of, values_at
from workflow_scripts.page.style import LineStyle, Mark
from workflow_scripts.questions.knobs.sequence_limit import at_both_ends, most_important_group
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import RATE, Tables, require

TTFT, PER_TOKEN = "ttft_s_p50", "tpot_s_p50"
FIRST: Mapping[str, tuple[LineStyle, str]] = {
    "queue_s_p50": ("-", "waiting until scheduled"),
    "prefill_s_p50": ((0, (5, 1.5)), "from there to the first token"),
}


def latency(tables: Tables) -> Plot:
    knob, group = most_important_group(tables)
    rows = require(group.rows.dropna(subset=[RATE, PER_TOKEN, *FIRST]), "no request reports when it was scheduled")
    named_as = device_marks(tables, rows)
    names = [RATE, PER_TOKEN, *FIRST]
    values = values_at(tables, replace(group, rows=rows), *names).reset_index()
    values = values.assign(**{of: column(of).scaled(values[of]) for of in names})
    require(values.dropna(subset=[RATE, PER_TOKEN]), "no cell has both a rate and a time per token")
    name = knob_name(knob)
    return Plot(
        title="Latency against throughput, and what the first token waits for",
        alt=" ".join(
            ends_in_words(f"{gpu}: {column(PER_TOKEN).axis} by {name}", of_one.set_index("x")[PER_TOKEN])
            for gpu, of_one in values.groupby("gpu", sort=False)
        ),
        sources=sorted(rows["source"].unique()),
        panels=[
            Panel(
                f"{column(PER_TOKEN).axis} against {column(RATE).axis}; numbers are {name}",
                partial(_curve, rows=values, named_as=named_as),
            ),
            Panel(f"{column(TTFT).axis} against {name}", partial(_first, rows=values, named_as=named_as)),
        ],
        handles=mark_handles(named_as) + [key(label, linestyle=style) for style, label in FIRST.values()],
        repeats=repeats_of(rows),
    )


def _curve(ax: Axes, rows: pd.DataFrame, named_as: Mapping[str, Mark]) -> None:
    for gpu, part in rows.groupby("gpu", sort=False):
        mark = named_as[str(gpu)]
        ax.plot(part[RATE], part[PER_TOKEN], color=mark.color, marker=mark.marker)
    for x, rate, tpot in rows.drop_duplicates("x", keep="last")[["x", RATE, PER_TOKEN]].itertuples(index=False):
        ax.annotate(f"{x:g}", (rate, tpot), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    plain_log_axis(ax, "x", rows[RATE].min() / 1.5, rows[RATE].max() * 1.5, most=6)
    ratio_axis(ax, rows[PER_TOKEN].min(), rows[PER_TOKEN].max())


def _first(ax: Axes, rows: pd.DataFrame, named_as: Mapping[str, Mark]) -> None:
    for gpu, part in rows.groupby("gpu", sort=False):
        mark = named_as[str(gpu)]
        for name, (style, _) in FIRST.items():
            ax.plot(part["x"], part[name], color=mark.color, marker=mark.marker, linestyle=style)
    log2_axis(ax, rows["x"].unique())
    latencies = rows[list(FIRST)].to_numpy(dtype=float)
    ratio_axis(ax, np.nanmin(latencies[latencies > 0]), np.nanmax(latencies))


SUBJECT = Subject(
    id="latency",
    title="Latency against throughput",
    parts=[FigurePart(latency)],
    findings=[at_both_ends(PER_TOKEN)],
)

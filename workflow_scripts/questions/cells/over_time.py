"""Curves over time inside a few cells: running sequences and KV cache in use."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import number
from workflow_scripts.page.plot import Panel, Plot, key
from workflow_scripts.page.report import FigurePart, Subject
from workflow_scripts.page.series import cell_titles, repeats_of
from workflow_scripts.page.style import COLOURS
from workflow_scripts.statistics.summary import RATE_OF_ARRIVALS
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.tables.results import Tables, require

# Devices and engines; of each, two cells.
MOST_PLACES = 4
REPEAT_LINES = ("-", "--", ":")
PREEMPTED = ", and the one with the most preemptions, if there is any"
# A record says what ran in the step that ended at that time.
STEPS: Mapping[str, Any] = {"drawstyle": "steps-pre", "linewidth": 1.2}


def sequences_over_time(tables: Tables) -> Plot:
    columns = {"running": COLOURS[0], "waiting": COLOURS[1]}
    return _plot(tables, _steps_of_few_cells(tables), "Sequences running and waiting", "Sequences", columns)


def kv_cache_over_time(tables: Tables) -> Plot:
    rows = _steps_of_few_cells(tables).dropna(subset="kv_cache_usage")
    require(rows, "no engine reported how much of its KV cache is in use")
    usage = column("kv_cache_usage")
    rows = rows.assign(kv_cache_usage=usage.scaled(rows["kv_cache_usage"]))
    return _plot(tables, rows, usage.label, usage.axis, {usage.name: COLOURS[2]})


def _plot(tables: Tables, rows: pd.DataFrame, what: str, y_label: str, columns: Mapping[str, str]) -> Plot:
    handles = [key(name, color) for name, color in columns.items()] if len(columns) > 1 else []
    repeats = sorted(rows["repeat"].unique())
    for i, line in enumerate(REPEAT_LINES[: len(repeats)]):
        alike = ", ".join(f"{repeat:g}" for repeat in repeats[i :: len(REPEAT_LINES)])
        handles.append(key(f"repeat {alike}", "#7d7d7d", line))
    cells = list(dict.fromkeys(rows["cell_id"]))
    titles = cell_titles(tables.rows.drop_duplicates("cell_id").set_index("cell_id"), cells, tables.knobs)
    starts = tables.rows[tables.rows["cell_id"].isin(cells)].groupby("cell_id")["start"].nunique()
    notes = ["of each cell one start of its engine is drawn"] if starts.max() > 1 else []
    measured = tables.measured.drop_duplicates("cell_id")
    if len(cells) < len(measured):
        places = len(measured.drop_duplicates(["gpu", "engine"]))
        few = f"{MOST_PLACES} of {places} pairs of device and engine"
        of = few if places > MOST_PLACES else "each device and engine"
        ends = "those that may run the most and the fewest sequences at once, then of the highest and the lowest load"
        which = f"of {of}, {ends}{PREEMPTED}"
        notes.append(f"{len(cells)} of {len(measured)} measured cells are drawn: {which}")
    peaks = rows.groupby("cell_id")[next(iter(columns))].max()
    highest = [f"{', '.join(titles[str(cell)].splitlines())}: {number(peak)}" for cell, peak in peaks.items()]
    return Plot(
        title=f"{what} over the time of a repeat",
        alt=f"{y_label}, highest of each cell, measured: {'; '.join(highest)}.",
        panels=[
            Panel(titles[cell], partial(_draw, rows=part, columns=columns))
            for cell, part in rows.groupby("cell_id", sort=False)
        ],
        x_label=column("time_s").axis,
        y_label=y_label,
        handles=handles,
        repeats=repeats_of(rows),
        notes=notes,
        panel_height_in=2.3,
    )


def _steps_of_few_cells(tables: Tables) -> pd.DataFrame:
    """Steps of a few cells, of each its first start that gave results."""
    return tables.facts("steps", few_cells(tables)).sort_values(["cell_id", "repeat", "time_s"])


def few_cells(tables: Tables) -> "pd.Series[str]":
    """For each of the first `MOST_PLACES` devices and engines the cell that may run the most sequences at once (of
    several the one with the most requests, then with the most of them per second, then the one that most devices have)
    and the one that may run the fewest, and the cell with the most preemptions."""
    cells = tables.measured.drop_duplicates("cell_id")
    devices = cells.groupby([*COORDINATES[1:], "knobs"])["gpu"].transform("nunique")
    cells = cells.assign(devices=devices, per_s=cells.get(RATE_OF_ARRIVALS))
    order = ["max_concurrency_allowed", "num_requests", "per_s", "devices"]
    ends = [
        cells.sort_values(order, ascending=[fewest, fewest, fewest, False], kind="stable").drop_duplicates(
            ["gpu", "engine"]
        )
        for fewest in (False, True)
    ]
    places = cells[["gpu", "engine"]].drop_duplicates().head(MOST_PLACES)
    preempted = cells[cells["preemptions"] > 0].nlargest(1, "preemptions")
    return pd.concat([*ends, preempted]).drop_duplicates("cell_id").merge(places)["cell_id"]


def _draw(ax: Axes, rows: pd.DataFrame, columns: Mapping[str, str]) -> None:
    for name, color in columns.items():
        for i, (_, part) in enumerate(rows.groupby("repeat")):
            style = REPEAT_LINES[i % len(REPEAT_LINES)]
            ax.plot(part["time_s"], part[name], color=color, linestyle=style, alpha=0.55 if i else 1, **STEPS)
    ax.set_xlim(left=0)
    if "running" in columns:
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set_ylim(0, max(rows[name].max() for name in columns) * 1.12 or 1)


SUBJECT = Subject(
    id="over-time",
    title="Sequences and KV cache over time",
    parts=[FigurePart(sequences_over_time), FigurePart(kv_cache_over_time)],
)

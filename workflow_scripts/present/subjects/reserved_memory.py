"""Bytes that engines reserved for keys and values, beside those that they used."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow_scripts.present.plot import LINE_IN, Panel, Plot, plain_log_ticks, some_panels, write_label
from workflow_scripts.present.report_tables import REPEAT, MissingError, Tables, of_all_layers, records
from workflow_scripts.present.series import evenly, repeats_of
from workflow_scripts.present.style import COLOURS, MUTED
from workflow_scripts.present.subject import CELL, Caption, FigurePart, Subject, TablePart, prose

_VALUES = {
    "reserved_bytes": "kv_bytes_reserved_peak",
    "reserved_mean_bytes": "kv_bytes_reserved_mean",
    "used_bytes": "kv_bytes_used_mean",
    "torch_bytes": "torch_memory_bytes_max",
    "process_bytes": "process_memory_growth_bytes_max",
}
_PLACES = list(CELL)
_PANEL = ["gpu", "model", "workload"]
# How each quantity is drawn, from the largest to the smallest.
DRAWN: Mapping[str, dict[str, Any]] = {
    "reserved_bytes": {"label": "reserved, peak", "marker": "D", "color": COLOURS[1], "markersize": 8},
    "held_bytes": {"label": "held by requests, mean", "marker": "s", "color": COLOURS[2]},
    "used_bytes": {"label": "used by tokens, mean", "marker": "o", "color": COLOURS[0]},
}
MIB = 2**20
MOST_CELLS = 14
# Height of a cell in lines of text: its name and its marks.
LINES_PER_CELL = 1.8
HOW_ENGINES_RESERVE = (
    "Engines reserve memory for keys and values in one of three ways. vLLM and HuggingFace's continuous batching "
    "allocate a pool of blocks when they start. All of it is reserved, even if little is used; its size is a setting, "
    "and each running request holds whole blocks of it. HuggingFace's generate() has a cache for each batch, with one "
    "row per request. DynamicCache grows by one slot per row and step, and is copied each time. StaticCache is "
    "allocated at once for the longest prompt and the longest output of the batch. In both, padding in front of "
    "shorter prompts takes slots, and so do finished rows until the last row is done. Used memory is that of the "
    "tokens of requests in progress, without padding and without finished rows."
)


def medians(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians over the repeats of each cell."""
    rows = _known(cells).groupby(_PLACES, sort=False)[list(_VALUES)].median().reset_index()
    return rows.assign(used_pct=100 * rows["used_bytes"] / rows["reserved_mean_bytes"])


def kv_reserved_and_used(tables: Tables) -> Plot:
    """Bytes reserved at the peak, held by requests and used by tokens, one line per cell."""
    waste = of_all_layers(tables.need("waste"))
    of_engines = waste[waste["source"] == "measured"]
    known = _known(tables.need("cells")).merge(of_engines, on=REPEAT)
    known = known.assign(held_bytes=known["used_bytes"] * known["slots_held_mean"] / known["tokens_held_mean"])
    rows = known.groupby(_PLACES, sort=False)[list(DRAWN)].median().dropna().reset_index()
    if rows.empty:
        raise MissingError("no cell recorded how many bytes of keys and values its tokens took")
    cells = len(rows)
    rows = evenly(rows, _PANEL, "held_bytes", MOST_CELLS)
    values = rows[list(DRAWN)] / MIB
    limits = (float(values.min().min()) / 1.3, float(values.max().max()) * 1.3)
    told_apart = [name for name in _PANEL if rows[name].nunique() > 1] or ["model", "workload"]
    groups = sorted(rows.groupby(_PANEL, sort=False), key=lambda group: -len(group[1]))
    lines = LINES_PER_CELL * max(len(part) for _, part in groups)
    panels, notes = some_panels(
        [
            Panel(" · ".join(part[told_apart].iloc[0]), partial(_draw, rows=part, limits=limits, lines=lines))
            for _, part in groups
        ],
        "combinations of device, model and workload",
    )
    if len(rows) < cells:
        notes = [*notes, f"{len(rows)} of {cells} cells are drawn; the table cells holds all"]
    return Plot(
        title="KV memory: reserved, held by requests, used by tokens",
        alt="KV memory in MiB, measured. " + " ".join(_in_words(row) for row in records(rows.head(8))),
        sources=["measured"],
        panels=panels,
        x_label="MiB of keys and values (logarithmic)",
        handles=[Line2D([], [], linestyle="none", **style) for style in DRAWN.values()],
        repeats=repeats_of(known),
        notes=[*notes, "a mark is the median over the repeats of its cell"],
        panel_height_in=LINE_IN * lines + 0.75,
    )


def _known(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows of the cells table with known reservations, with short names for the columns of bytes."""
    known = cells[cells["repeat"].notna() & cells["kv_bytes_reserved_peak"].notna()]
    if known.empty:
        raise MissingError("no cell recorded how many bytes its KV cache reserved")
    return known.rename(columns={column: name for name, column in _VALUES.items()})


def _draw(ax: Axes, rows: pd.DataFrame, limits: tuple[float, float], lines: float) -> None:
    for i, row in enumerate(records(rows)):
        y = LINES_PER_CELL * i
        write_label(ax, y + 0.5, f"{row['engine']} · {row['knobs']}")
        values = {name: row[name] / MIB for name in DRAWN}
        ax.plot([min(values.values()), max(values.values())], [y + 1.3] * 2, color=MUTED, linewidth=1)
        for name, style in DRAWN.items():
            ax.plot(values[name], y + 1.3, linestyle="none", **style)
    ax.set_ylim(lines, 0)
    ax.set_xscale("log")
    ax.set_xlim(*limits)
    plain_log_ticks(ax.xaxis, *limits, most=5)
    ax.yaxis.set_visible(False)
    ax.spines["left"].set_visible(False)


def _in_words(row: Mapping[str, Any]) -> str:
    reserved, held, used = (f"{row[name] / MIB:,.3g}" for name in DRAWN)
    place = ", ".join(row[name] for name in _PLACES)
    return f"{place}: {reserved} reserved, {held} held by requests, {used} used by tokens."


SUBJECT = Subject(
    id="kv-memory",
    title="KV memory reserved and used",
    lead="What engines reserve for keys and values at equal work, and how much of it the work needs.",
    parts=[
        FigurePart(
            kv_reserved_and_used,
            {
                "cells": [*REPEAT, *_VALUES.values()],
                "waste": [*REPEAT, "layer_kind", "slots_held_mean", "tokens_held_mean", "source"],
            },
            Caption(
                shows="Bytes of keys and values, one line per cell: the maximum that the engine reserved, what "
                "requests in progress held on average over time, and what their tokens used. Tokens of a shared prefix "
                "count once. vLLM and continuous batching reserve a pool when they start, and requests hold whole "
                "blocks of it. A static batch holds all that is reserved, one row per request.",
                reading="The memory between square and dot is held by requests but not used: the ends of last "
                "blocks, or the padding and finished rows of a batch. The memory between diamond and square is free "
                "for further requests; a static batch has none.",
                not_shown="The size of a pool is a setting and does not show what the work needs. Averages over time "
                "hide peaks; the section on memory over time shows those.",
            ),
        ),
        prose(HOW_ENGINES_RESERVE),
        TablePart(
            "cells",
            {
                **CELL,
                "reserved_bytes": "KV reserved, peak (GiB)",
                "reserved_mean_bytes": "KV reserved, mean (GiB)",
                "used_bytes": "KV used, mean (GiB)",
                "used_pct": "Used share of reserved, of means (%)",
                "torch_bytes": "Peak of torch, with weights (GiB)",
                "process_bytes": "Growth of the process (GiB)",
            },
            "KV memory reserved and used, medians over repeats",
            medians,
        ),
    ],
)

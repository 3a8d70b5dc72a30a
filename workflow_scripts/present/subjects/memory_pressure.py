"""What happens when KV blocks run short: requests at once, speed, preemptions and hits by the size of the pool."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow_scripts.present.blocks import Block, Finding, Findings, Fold, table_of
from workflow_scripts.present.plot import Panel, Plot, log2_axis, some_panels
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.series import NAMES, repeats_of
from workflow_scripts.present.style import INK, Mark, marks
from workflow_scripts.present.subject import CELL, Caption, FigurePart, Subject
from workflow_scripts.study.study_file import Study

POOL = "num_gpu_blocks_override"
# Column of the cells table -> its name in figure and table.
QUANTITIES: Mapping[str, str] = {
    "running_peak": "Requests at once, peak",
    "output_tokens_per_s": "Output tokens per s",
    "ttft_s_p50": "TTFT, median (s)",
    "preemptions": "Preemptions",
    "recomputed_tokens": "Tokens computed again",
    "prefix_cache_hit_rate": "Share of prompt tokens found in the prefix cache",
}
PREDICTED: Mapping[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": "none", "markersize": 8}


def sets_the_pool(study: Study) -> bool:
    """Whether a sweep of the study sets the number of KV blocks."""
    return any(POOL in sweep.knobs for sweep in study.sweeps)


def under_pressure(tables: Tables) -> pd.DataFrame:
    """One row per measured cell for which the study sets the number of blocks: medians over its repeats, and the
    predicted values as `*_predicted`.

    `pool_tokens` are those of all blocks that requests can get; `layout` is the block size in words.
    """
    cells = tables.measured
    rows = cells[cells[f"knob_{POOL}"].notna()] if f"knob_{POOL}" in cells else cells.head(0)
    if rows.empty:
        raise MissingError("the study sets the number of KV blocks of no measured cell")
    sizes = ["num_gpu_blocks", "block_size_effective", "max_model_len_effective", "num_requests"]
    rows = rows.groupby(["cell_id", *CELL], sort=False)[[*sizes, *QUANTITIES]].median().reset_index()
    size, longest = rows["block_size_effective"], rows["max_model_len_effective"]
    blocks = "blocks of " + size.map("{:g}".format) + " tokens"
    contiguous = "contiguous: " + longest.map("{:g}".format) + " tokens per request"
    rows = rows.assign(
        pool_tokens=(rows["num_gpu_blocks"] - 1) * size,
        contiguous=size >= longest,
        layout=contiguous.where(size >= longest, blocks),
    ).sort_values([*NAMES, "block_size_effective", "pool_tokens"], kind="stable")
    predictions = tables.get("predictions")
    if predictions is None:
        return rows
    predicted = predictions.pivot(index="cell_id", columns="quantity", values="predicted")
    predicted["running_peak"] = predictions.groupby("cell_id")["running_peak_predicted"].first()
    return rows.join(predicted.reindex(columns=list(QUANTITIES)).add_suffix("_predicted"), on="cell_id")


def pressure_by_pool(tables: Tables) -> Plot:
    """Each quantity against the tokens of the pool, one line per block size, beside the predicted values."""
    rows = under_pressure(tables)
    layouts = marks(rows["layout"])
    groups = list(rows.groupby(NAMES, sort=False))
    told_apart = [name for name in NAMES if rows[name].nunique() > 1]
    panels = []
    for _, part in groups:
        place = " · ".join(part[told_apart].iloc[0])
        for column, name in QUANTITIES.items():
            if part[column].max() > 0:
                title = f"{name}\n{place}" if place else name
                panels.append(Panel(title, partial(_draw, rows=part, column=column, layouts=layouts)))
    shown, notes = some_panels(panels, "panels")
    predicted = rows.filter(like="_predicted").notna().any(axis=None)
    handles: list[Artist] = [
        Line2D([], [], color=mark.color, marker=mark.marker, label=f"{layout} (measured)")
        for layout, mark in layouts.items()
    ]
    if predicted:
        handles.append(Line2D([], [], color=INK, label="predicted", **PREDICTED))
    measured = tables.measured
    return Plot(
        title="When KV blocks run short",
        alt=" ".join(_in_words(part) for _, part in groups[:4]),
        sources=["measured", *(["predicted"] if predicted else [])],
        panels=shown,
        x_label="Tokens of the pool",
        handles=handles,
        repeats=repeats_of(measured[measured["cell_id"].isin(rows["cell_id"])]),
        notes=[*notes, "marks are medians over repeats; a quantity that is 0 for all cells of a panel is not drawn"],
        panel_height_in=2.4,
    )


def _draw(ax: Axes, rows: pd.DataFrame, column: str, layouts: Mapping[str, Mark]) -> None:
    highest = 0.0
    for layout, line in rows.groupby("layout", sort=False):
        mark = layouts[str(layout)]
        ax.plot(line["pool_tokens"], line[column], color=mark.color, marker=mark.marker)
        highest = max(highest, float(line[column].max()))
        if f"{column}_predicted" in line:
            ax.plot(line["pool_tokens"], line[f"{column}_predicted"], color=mark.color, **PREDICTED)
            highest = max(highest, float(line[f"{column}_predicted"].fillna(0).max()))
    log2_axis(ax, rows["pool_tokens"].unique())
    ax.set_ylim(0, 1.12 * highest)


def _in_words(rows: pd.DataFrame) -> str:
    first, last = records(rows.sort_values("pool_tokens").iloc[[0, -1]])
    return (
        f"{', '.join(rows[NAMES].iloc[0])}: "
        + "; ".join(
            f"{row['pool_tokens']:g} tokens in {row['layout']}: {row['output_tokens_per_s']:.4g} output tokens per s, "
            f"{row['preemptions']:g} preemptions"
            for row in (first, last)
        )
        + "."
    )


def users_in_the_same_memory(report: Report) -> Iterator[Block]:
    """How many requests run at once in blocks and with a reservation of max-model-len each, with equal memory."""
    if f"knob_{POOL}" not in report.tables.cells:
        return
    rows = under_pressure(report.tables)
    keys = [*NAMES, "pool_tokens"]
    paged = rows[~rows["contiguous"]].sort_values("block_size_effective", kind="stable").drop_duplicates(keys)
    both = paged.merge(rows[rows["contiguous"]], on=keys, suffixes=("", "_whole"))
    both = both.assign(users=both["running_peak"] / both["running_peak_whole"])
    most = both.sort_values("users", ascending=False, kind="stable").drop_duplicates(NAMES)
    found = [
        Finding(
            f"{row['users']:.3g}x the users",
            f"{row['gpu']}, {row['model']}, {row['workload']}: a KV cache of {row['pool_tokens']:,.0f} tokens holds "
            f"{row['running_peak']:g} requests at once in {row['layout']}"
            + (" (all there are)" if row["running_peak"] >= row["num_requests"] else "")
            + f", and {row['running_peak_whole']:g} if each reserves "
            f"{row['max_model_len_effective']:,.0f} tokens. Both are measured.",
            "good",
        )
        for row in records(most)
    ]
    found += _exactness(rows)
    if found:
        yield Findings(found)


def _exactness(rows: pd.DataFrame) -> Iterator[Finding]:
    known = [name for name in ("preemptions", "recomputed_tokens") if f"{name}_predicted" in rows]
    both = rows.dropna(subset=[*known, *(f"{name}_predicted" for name in known)])
    if not known or both.empty:
        return
    right = pd.concat([both[name] == both[f"{name}_predicted"] for name in known], axis=1).all(axis=1)
    yield Finding(
        "predicted",
        f"The schedule predicts the preemptions and the tokens computed again exactly in {int(right.sum())} of "
        f"{len(both)} cells; up to {both['preemptions'].max():g} preemptions were measured in a repeat.",
        "good" if right.all() else "neutral",
    )


def every_pool(report: Report) -> Iterator[Block]:
    """The table of all cells, measured and predicted."""
    rows = under_pressure(report.tables)
    columns = {**CELL, "pool_tokens": "Tokens of the pool", "layout": "Layout"}
    for column, name in QUANTITIES.items():
        columns |= {column: name, f"{column}_predicted": f"{name}, predicted"}
    caption = "Every size of the pool, medians over repeats"
    whole = report.link(report.tables.folder / "cells.csv", "cells.csv")
    yield Fold(f"{caption}: {len(rows)} rows", [table_of(rows, columns, caption, "", whole)])


SUBJECT = Subject(
    id="pressure",
    title="Memory pressure",
    lead="The same requests with fewer and fewer KV blocks, down to so few that requests wait and are preempted.",
    parts=[
        FigurePart(
            pressure_by_pool,
            {"cells": [*QUANTITIES, "num_gpu_blocks", "block_size_effective"]},
            Caption(
                shows="How the same requests run with KV caches of different sizes. Each line is a block size; equal "
                "positions on the horizontal axis are equal memory. A block as long as the longest allowed request is "
                "a contiguous reservation: each request holds memory for max-model-len from its beginning. Hollow "
                "diamonds are predicted.",
                reading="To the right, blocks never run short, and nothing depends on the size of the pool. To the "
                "left, fewer requests run at once, so throughput falls and the first token comes later. A running "
                "request that finds no free block takes those of the request that was admitted last. The latter is "
                "preempted and computes its tokens again. Requests also find less in the prefix cache, because its "
                "blocks are taken. With contiguous reservations nothing is preempted, and the fewest requests run.",
                not_shown="Requests at once, preemptions, tokens computed again and hits follow from the schedule, "
                "which depends only on the lengths of the requests. The speed depends on the device.",
            ),
        ),
        every_pool,
    ],
    findings=[users_in_the_same_memory],
    is_in=sets_the_pool,
)

"""KV memory: the predicted capacity beside the measured one, and how much of the memory held no token."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow_scripts.present.intervals import write_label
from workflow_scripts.present.plot import LINE_IN, Panel, Plot, plain_log_ticks, some_panels
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.series import evenly
from workflow_scripts.present.style import COLOURS, INK, MUTED, LineStyle
from workflow_scripts.present.throughput import log2_axis, repeats_of

MOST_PAIRS = 30
# Height of a pair of numbers in lines of text.
PAIR_LINES = 0.6


class Layout(NamedTuple):
    """How a layout of KV memory is drawn, and its name."""

    label: str
    color: str
    style: LineStyle


PAGED, WHATIF = "paged", "block_size_whatif"
# Layouts without blocks: one horizontal line each. Solid lines are measured, broken lines predicted.
LEVEL: Mapping[str, Layout] = {
    "contiguous_max_model_len": Layout("contiguous, max-model-len (predicted)", COLOURS[1], (0, (5, 1.5))),
    "contiguous_request_length": Layout("contiguous, own length (predicted)", COLOURS[3], (0, (5, 1.5))),
    "padded_batch": Layout("padded static batch (predicted)", COLOURS[4], (0, (5, 1.5))),
    "hf_dynamic_cache": Layout("HF dynamic cache (measured)", COLOURS[2], "-"),
    "hf_static_cache": Layout("HF static cache (measured)", COLOURS[7], "-"),
}

# Quantities of the capacity table -> label of their axis.
CAPACITIES: Mapping[str, str] = {
    "kv_cache_tokens": "KV-cache tokens",
    "num_blocks": "KV blocks",
    "max_concurrency": "Requests of full length at once",
}
# How a number of each source is drawn.
SOURCES: Mapping[str, dict[str, Any]] = {
    "measured": {"marker": "o", "color": COLOURS[0]},
    "measured elsewhere": {"marker": "s", "color": COLOURS[2]},
    "published": {"marker": "x", "color": INK},
    "predicted": {"marker": "D", "color": COLOURS[1], "markerfacecolor": "none", "markersize": 8},
}


def waste_by_block_size(tables: Tables) -> Plot:
    """Share of the reserved KV memory that held no token, by block size, beside other layouts."""
    waste = tables.need("waste", "cell_id", "repeat", "layout", "block_size", "waste_pct", "source")
    cells = tables.cells.drop_duplicates("cell_id")[["cell_id", "model", "workload"]]
    rows = waste.merge(cells, on="cell_id")
    if rows.empty:
        raise MissingError("the table waste holds none of the study's cells")
    keys = [key for key in ("model", "workload") if rows[key].nunique() > 1] or ["workload"]
    groups = sorted(rows.groupby(keys, sort=False), key=lambda item: -item[1]["cell_id"].nunique())
    panels, notes = some_panels(
        [Panel(" · ".join(map(str, names)), partial(_draw_waste, rows=part)) for names, part in groups],
        "models and workloads",
    )
    layouts = set(rows["layout"])
    handles: list[Artist] = []
    if PAGED in layouts:
        handles.append(Line2D([], [], color=COLOURS[0], marker="o", linestyle="none", label="paged (measured)"))
    if WHATIF in layouts:
        handles.append(Line2D([], [], color=COLOURS[0], linestyle=":", label="paged, other sizes (predicted)"))
    handles += [
        Line2D([], [], color=layout.color, linestyle=layout.style, label=layout.label)
        for name, layout in LEVEL.items()
        if name in layouts
    ]
    medians = rows[rows["layout"] == PAGED].groupby([*keys, "block_size"])["waste_pct"].median().reset_index()
    return Plot(
        title="KV memory that holds no token, against the block size",
        alt="Share of KV memory that held no token, measured: "
        + "; ".join(
            f"{', '.join(row[key] for key in keys)}, blocks of {row['block_size']:g} tokens: {row['waste_pct']:.3g} %"
            for row in records(medians)
        )
        + ".",
        sources=sorted(rows["source"].unique()),
        panels=panels,
        x_label="Block size (tokens)",
        y_label="KV memory without tokens (%)",
        handles=handles,
        repeats=repeats_of(rows),
        notes=[*notes, "a mark or line is the median of all cells and repeats of the panel, a bar or band their range"],
        panel_height_in=3.0,
    )


def _draw_waste(ax: Axes, rows: pd.DataFrame) -> None:
    for layout, part in rows.groupby("layout", sort=False):
        if layout in LEVEL:
            drawn = LEVEL[str(layout)]
            ax.axhline(part["waste_pct"].median(), color=drawn.color, linestyle=drawn.style, linewidth=1.3)
            continue
        at = part.groupby("block_size")["waste_pct"].agg(["median", "min", "max"])
        if layout == WHATIF:
            ax.fill_between(at.index, at["min"], at["max"], color=COLOURS[0], alpha=0.12, linewidth=0)
            ax.plot(at.index, at["median"], color=COLOURS[0], linestyle=":")
        else:
            ax.vlines(at.index, at["min"], at["max"], color=COLOURS[0], linewidth=1.5)
            ax.plot(at.index, at["median"], color=COLOURS[0], marker="o", linestyle="none")
    sizes = rows.loc[rows["layout"].isin([PAGED, WHATIF]), "block_size"].dropna().unique()
    if len(sizes):
        log2_axis(ax, sizes)
    ax.set_ylim(0, 100)


def kv_capacity(tables: Tables) -> Plot:
    """KV tokens, blocks and concurrency: the predicted values beside those of the engine."""
    table = tables.need("capacity", "gpu", "engine", "model", "source", "observed_num_blocks", "predicted_num_blocks")
    columns = [f"{side}_{name}" for name in CAPACITIES for side in ("observed", "predicted")]
    known = table[table[columns].notna().any(axis=1)]
    if known.empty:
        raise MissingError("no capacity of a KV cache is known or predicted")
    rows = known.assign(label=_labels(known)).drop_duplicates(["label", *columns])
    notes = ["cells with equal numbers are drawn once"]
    pairs = len(rows)
    rows = evenly(rows, ["label"], "predicted_num_blocks", max(2, MOST_PAIRS // rows["label"].nunique()))
    if len(rows) < pairs:
        notes.append(f"{len(rows)} of {pairs} pairs of different numbers are drawn; the table holds all")
    shown = {name: label for name, label in CAPACITIES.items() if rows[f"observed_{name}"].notna().any()}
    shown = shown or dict(CAPACITIES)
    sources = [source for source in SOURCES if source in {*rows["source"], "predicted"}]
    return Plot(
        title="KV capacity, predicted beside what the engine had",
        alt="; ".join(_in_words(rows)) + ".",
        sources=sources,
        panels=[Panel(label, partial(_draw_capacity, rows=rows, name=name)) for name, label in shown.items()],
        handles=[Line2D([], [], linestyle="none", label=source, **SOURCES[source]) for source in sources],
        notes=notes,
        panel_height_in=LINE_IN * (1.1 * rows["label"].nunique() + PAIR_LINES * len(rows)) + 0.6,
    )


def _labels(rows: pd.DataFrame) -> pd.Series:
    columns = [c for c in ("gpu", "engine", "model") if rows[c].nunique() > 1] or ["gpu", "engine"]
    labels: pd.Series = rows[columns].agg(" · ".join, axis=1)
    return labels


def _draw_capacity(ax: Axes, rows: pd.DataFrame, name: str) -> None:
    """Draw one line per pair of numbers, from the predicted value to the engine's."""
    y = 0.0
    for label, part in rows.groupby("label", sort=False):
        write_label(ax, y + 0.5, str(label))
        y += 1.1
        for row in records(part):
            predicted, observed = row[f"predicted_{name}"], row[f"observed_{name}"]
            ax.plot([predicted, observed], [y + 0.3] * 2, color=MUTED, linewidth=1)
            ax.plot(predicted, y + 0.3, linestyle="none", **SOURCES["predicted"])
            ax.plot(observed, y + 0.3, linestyle="none", **SOURCES[row["source"]])
            y += PAIR_LINES
    ax.set_ylim(y + 0.2, 0)
    ax.set_xscale("log")
    low, high = (limit * factor for limit, factor in zip(ax.get_xlim(), (1 / 1.1, 1.1), strict=True))
    ax.set_xlim(low, high)
    plain_log_ticks(ax.xaxis, low, high, most=5)
    ax.yaxis.set_visible(False)
    ax.spines["left"].set_visible(False)


def _in_words(rows: pd.DataFrame) -> Sequence[str]:
    first = rows.drop_duplicates("label").head(8)
    return [
        f"{label}: {observed:,.0f} {source}, {predicted:,.0f} predicted blocks"
        for label, source, observed, predicted in zip(
            first["label"],
            first["source"],
            first["observed_num_blocks"],
            first["predicted_num_blocks"],
            strict=True,
        )
    ]

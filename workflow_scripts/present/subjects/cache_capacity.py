"""The capacity of KV caches, as predicted and as the engines had it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow_scripts.engines.registry import every_knob
from workflow_scripts.present.blocks import Block, Finding, Findings, shown
from workflow_scripts.present.plot import LINE_IN, Panel, Plot, plain_log_ticks, write_label
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.sentences import some
from workflow_scripts.present.series import evenly
from workflow_scripts.present.style import COLOURS, INK, MUTED
from workflow_scripts.present.subject import Caption, FigurePart, Subject, TablePart

MOST_PAIRS = 30
# Height of a pair of numbers in lines of text.
PAIR_LINES = 0.6
# A smaller error of a KV cache prediction may come from other data in the device's memory.
WITHIN_PCT = 1.0

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


def kv_capacity(tables: Tables) -> Plot:
    """KV tokens, blocks and concurrency: the predicted values beside those of the engine."""
    table = tables.need("capacity")
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
        title="KV capacity as predicted, beside that of the engine",
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
        f"{label}: blocks: {shown(observed)} {source}, {shown(predicted)} predicted"
        for label, source, observed, predicted in zip(
            first["label"], first["source"], first["observed_num_blocks"], first["predicted_num_blocks"], strict=True
        )
    ]


def prediction_errors(report: Report) -> Iterator[Block]:
    """The errors of the KV cache predictions, compared with what engines measured."""
    names = ["observed_kv_cache_tokens", "observed_max_concurrency"]
    rows = report.tables.need("capacity", "cell_id", "source", "kv_cache_tokens_error_pct", *names)
    measured = rows[(rows["source"] == "measured") & rows["observed_kv_cache_tokens"].notna()]
    error_pct = measured["kv_cache_tokens_error_pct"].dropna().abs()
    if error_pct.empty:
        raise MissingError("no cell has KV-cache tokens that were both predicted and measured")
    within = int((error_pct <= WITHIN_PCT).sum())
    # The number of full-length requests is not known for every cell, so the tokens shown with it are of the same cells.
    whole = measured.dropna(subset=names)
    held = [_span(whole[name]) for name in names]
    sentence = f"Measured KV caches hold {held[0]} tokens, or {held[1]} requests of full length. " if held[0] else ""
    sentence += (
        f"The prediction is within {WITHIN_PCT:g} % of the measured tokens in {within} of {len(error_pct)} cells; the "
        f"largest error is {error_pct.max():.3g} %."
    )
    if given := int(measured.loc[error_pct.index, "cell_id"].isin(_size_given(report.tables)).sum()):
        sentence += (
            f" In {given} of these cells the study sets the size of the cache, so the prediction is only arithmetic."
        )
    if unpredicted := len(measured) - len(error_pct):
        sentence += f" {unpredicted} more measured cells have no prediction."
    all_within = within == len(error_pct)
    yield Findings([Finding("predicted" if all_within else "missed", sentence, "good" if all_within else "neutral")])


def _span(values: pd.Series) -> str:
    """The range from the minimum to the maximum, one number if they are equal; empty if there are no values."""
    return " to ".join(dict.fromkeys([shown(values.min()), shown(values.max())])) if len(values) else ""


def _size_given(tables: Tables) -> set[str]:
    """Cells for which the study sets the size of the KV cache."""
    amounts = [f"knob_{name}" for name, knob in every_knob().items() if knob.reserves == "amount"]
    knobs = [name for name in amounts if name in tables.cells]
    return set(tables.cells.loc[tables.cells[knobs].notna().any(axis=1), "cell_id"])


def why_predictions_missed(report: Report) -> Iterator[Block]:
    """Why predictions of the KV cache were wrong, for cells where they were."""
    rows = report.tables.need("capacity", "cell_id", "source", "kv_cache_tokens_error_pct", "explanation")
    explained = rows[rows["explanation"].notna()]
    if explained.empty:
        return
    # Cells that differ only in knobs without effect on the cache have the same explanation.
    yield some(
        [
            Finding(
                "published" if row["source"] == "published" else "missed",
                f"{report.names.get(row['cell_id'], row['cell_id'])}: {row['explanation']}",
            )
            for row in records(explained.drop_duplicates("explanation"))
        ],
        "capacity",
    )


SUBJECT = Subject(
    id="capacity",
    title="KV capacity",
    lead="How many tokens, blocks and requests fit into the KV cache, as predicted and as measured.",
    parts=[
        FigurePart(
            kv_capacity,
            {
                "capacity": [
                    *("gpu", "engine", "model", "source"),
                    *(f"{side}_{name}" for side in ("observed", "predicted") for name in CAPACITIES),
                ]
            },
            Caption(
                shows="What the KV cache holds, in tokens, blocks and requests of full length (max-model-len): as "
                "predicted before anything ran, and as the engine reported it. A line joins the two numbers of a cell. "
                "Crosses are numbers published by others, beside the prediction for their settings.",
                reading="If a diamond encloses its dot, the prediction was right. A diamond to the right of its dot "
                "predicted more capacity than there was. This is the dangerous side, because requests then wait or are "
                "preempted. The axes are logarithmic.",
                not_shown="A prediction that is right for one device, model and engine version says little about "
                "others. If the study sets the size of the cache, predicting its capacity is only arithmetic.",
            ),
        ),
        prediction_errors,
        why_predictions_missed,
        TablePart(
            "capacity",
            {
                "gpu": "Device",
                "model": "Model",
                "engine": "Engine",
                "knobs": "Settings",
                "source": "Source",
                "observed_num_blocks": "Blocks",
                "predicted_num_blocks": "Blocks, predicted",
                "observed_kv_cache_tokens": "Tokens",
                "predicted_kv_cache_tokens": "Tokens, predicted",
                "kv_cache_tokens_error_pct": "Error of predicted tokens (%)",
                "observed_max_concurrency": "Requests of full length",
                "predicted_max_concurrency": "Requests of full length, predicted",
                "observed_kv_cache_bytes": "KV cache (GiB)",
            },
            "Capacity of the KV cache, as the engine had it and as predicted",
        ),
    ],
    findings=[prediction_errors],
)

"""How much of the memory reserved for keys and values held no token."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.present.blocks import Block
from workflow_scripts.present.plot import Panel, Plot, key, log2_axis, some_panels
from workflow_scripts.present.report import Part, Report
from workflow_scripts.present.report_tables import REPEAT, MissingError, Tables, of_all_layers, records
from workflow_scripts.present.series import repeats_of
from workflow_scripts.present.style import COLOURS, LineStyle
from workflow_scripts.present.subject import FigurePart, TablePart, medians_by_cell

MOST_WORKLOADS = 3


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
    "paged_own_pages": Layout("paged, pages of each layer's own (predicted)", COLOURS[5], (0, (1, 1))),
    "paged_every_token": Layout("paged, every layer keeps all (predicted)", COLOURS[6], (0, (5, 1.5))),
    "hf_dynamic_cache": Layout("HF dynamic cache (measured)", COLOURS[2], "-"),
    "hf_static_cache": Layout("HF static cache (measured)", COLOURS[7], "-"),
}


def waste_by_block_size(tables: Tables) -> Plot:
    """Share of the reserved KV memory that held no token, by block size, beside other layouts."""
    waste = of_all_layers(tables.need("waste"))
    cells = tables.cells.drop_duplicates("cell_id")[["cell_id", "model", "workload"]]
    rows = waste.merge(cells, on="cell_id")
    if rows.empty:
        raise MissingError("the table waste holds none of the study's cells")
    keys = [key for key in ("model", "workload") if rows[key].nunique() > 1] or ["workload"]
    groups = sorted(rows.groupby(keys, sort=False), key=lambda item: -item[1]["cell_id"].nunique())
    panels, notes = some_panels(
        [Panel(" · ".join(map(str, names)), partial(_draw_waste, rows=part)) for names, part in groups],
        "models and workloads",
        MOST_WORKLOADS,
    )
    handles = {
        PAGED: key("paged (measured)", COLOURS[0], "none", marker="o"),
        WHATIF: key("paged, other sizes (predicted)", COLOURS[0], ":"),
        **{name: key(*layout) for name, layout in LEVEL.items()},
    }
    names = rows["layout"].map({name: layout.label.removesuffix(" (measured)") for name, layout in LEVEL.items()})
    blocks = "blocks of " + rows["block_size"].map("{:g}".format) + " tokens"
    measured = rows.assign(how=names.where(rows["layout"] != PAGED, blocks))[rows["source"] != "predicted"]
    medians = measured.groupby([*keys, "how"], sort=False)["waste_pct"].median().reset_index()
    return Plot(
        title="Empty slots in held KV memory, against the block size",
        alt="Share of the slots in held KV memory that held no token, measured: "
        + "; ".join(
            f"{', '.join(row[key] for key in keys)}, {row['how']}: {row['waste_pct']:.3g} %" for row in records(medians)
        )
        + ".",
        sources=sorted(rows["source"].unique()),
        panels=panels,
        x_label="Block size (tokens)",
        y_label="Empty slots in held KV memory (%)",
        handles=[handle for name, handle in handles.items() if name in set(rows["layout"])],
        repeats=repeats_of(rows),
        notes=[*notes, "marks and lines are medians over all cells and repeats of a panel, bars and bands the range"],
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
    else:
        ax.set_xticks([])
    ax.set_ylim(0, 100)


_BY_KIND_OF_LAYER = TablePart(
    "waste",
    {
        "cell_id": "Cell",
        "layer_kind": "Layers",
        "layout": "Layout",
        "tokens_held_mean": "Tokens needed",
        "slots_held_mean": "Slots held",
        "waste_pct": "Empty slots in held memory (%)",
        "source": "Source",
    },
    "Waste by kind of layer, in tokens of all layers, medians over repeats",
    lambda waste: medians_by_cell(waste[waste["layer_kind"].notna()], "layout", "layer_kind"),
)


def _by_kind_of_layer(report: Report) -> Iterator[Block]:
    """The table of kinds of layers, for models that have several."""
    waste = report.tables.need("waste")
    if len(of_all_layers(waste)) < len(waste):
        yield from _BY_KIND_OF_LAYER(report)


PARTS: Sequence[Part] = [
    FigurePart(waste_by_block_size, {"waste": [*REPEAT, "layout", "block_size", "waste_pct", "source"]}),
    TablePart(
        "waste",
        {
            "cell_id": "Cell",
            "layout": "Layout",
            "block_size": "Block size",
            "waste_pct": "Empty slots in held memory (%)",
            "wasted_slots_per_sequence": "Empty slots per sequence",
            "expected_wasted_slots_per_sequence": "Empty slots per sequence, expected",
            "source": "Source",
        },
        "Waste in the engines' actual layouts, medians over repeats",
        lambda waste: medians_by_cell(of_all_layers(waste[waste["source"] == "measured"]), "layout"),
    ),
    _by_kind_of_layer,
]

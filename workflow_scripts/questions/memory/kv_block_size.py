"""Throughput and KV memory by the size of a KV block: capacity as predicted and as the engines had it, and waste."""

from collections.abc import Iterator, Mapping
from functools import partial
from textwrap import shorten
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.common.columns import column, unit_of
from workflow_scripts.common.wording import number, plural
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.page.blocks import Block, Finding, Text, shown
from workflow_scripts.page.by_knob import compared, plot_by_knob
from workflow_scripts.page.plot import Panel, Plot, key, log2_axis
from workflow_scripts.page.report import CELL, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import claims_on, effects_of, some, span, verdicts_on
from workflow_scripts.page.series import repeats_of, told_apart
from workflow_scripts.page.style import COLOURS, LineStyle
from workflow_scripts.statistics.summary import RAN
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import knob_axis, setting_phrase
from workflow_scripts.tables.results import RATE, Tables, medians_by_cell, records, require

# A smaller error of a KV cache prediction may come from other data in the device's memory.
WITHIN_PCT = 1.0
# Of the reason why a block size could not run.
MOST_LETTERS = 100
# What prediction and engine disagree on, with columns of the table; bytes are also in GiB.
_DISAGREES: Mapping[str, str] = {
    "ran": "It ran, although it was predicted to be infeasible: {predicted_infeasible}.",
    "refused": "The engine refused what was predicted to run.",
    "block_size": "The engine used blocks of {observed_block_size:g} tokens, not of {predicted_block_size:g}.",
    "kv_cache_tokens": "Predicted: {predicted_kv_cache_tokens:,.0f} tokens, observed: {observed_kv_cache_tokens:,.0f}.",
    "num_blocks": "Predicted: {predicted_num_blocks:,.0f} blocks, observed: {observed_num_blocks:,.0f}.",
    "dtype": "The prediction is for {predicted_dtype}, the model ran in {dtype}.",
    "version": "The prediction is for vLLM {predicted_for_version}, this is {engine_version}.",
    "device_memory": "The blocks at several utilizations imply a device of {implied_memory_gib:.2f} GiB, not of "
    "{predicted_device_memory_gib:.2f} GiB.",
    "overhead": "The blocks at several utilizations imply {implied_overhead_gib:.2f} GiB of weights and overhead, not "
    "{predicted_overhead_gib:.2f} GiB.",
    "log": "The log contradicts itself: {observed_kv_cache_gib:.2f} GiB hold {recomputed_kv_cache_tokens:,.0f} tokens, "
    "but it says {observed_kv_cache_tokens:,.0f}.",
}
MOST_WORKLOADS = 3


PAGED, WHATIF = "paged", "block_size_whatif"
# Layouts without blocks -> name, colour and style of their horizontal line: solid if measured, broken if predicted.
LEVEL: Mapping[str, tuple[str, str, LineStyle]] = {
    # The dashes of these two alternate, because they are often at the same height.
    "contiguous_max_model_len": ("contiguous, max-model-len (predicted)", COLOURS[1], (0, (5, 5))),
    "contiguous_request_length": ("contiguous, own length (predicted)", COLOURS[3], (0, (5, 1.5))),
    "padded_batch": ("padded static batch (predicted)", COLOURS[4], (5, (5, 5))),
    "paged_own_pages": ("paged, pages of each layer's own (predicted)", COLOURS[5], (0, (1, 1))),
    "paged_every_token": ("paged, every layer keeps all (predicted)", COLOURS[6], (0, (5, 1.5))),
    "hf_dynamic_cache": ("HF dynamic cache (measured)", COLOURS[2], "-"),
    "hf_static_cache": ("HF static cache (measured)", COLOURS[7], "-"),
}
# Of several cells lines may lie close together, and marks on each other.
COMPUTED: Mapping[str, Any] = {"linewidth": 0.9, "alpha": 0.7}
COMPUTED_MARK: Mapping[str, Any] = {"marker": "o", "markersize": 3.5, "markerfacecolor": "none", "linestyle": "none"}
WITH_WINDOWS = (
    "a token that no later token attends to counts as empty: the distance between a dot and the line of layers that "
    "keep all tokens is what windows save, and that to the line of own pages the cost of pages with equal bytes and "
    "groups of equal size"
)
LAYOUTS = {name: label.partition(" (")[0] for name, (label, *_) in LEVEL.items()}


def output_by_block_size(tables: Tables) -> Plot:
    groups = compared(tables, tables.measured, "knob_block_size", COORDINATES)
    return plot_by_knob(tables, groups, "block_size", RATE)


def waste_by_block_size(tables: Tables) -> Plot:
    cells = tables.rows.drop_duplicates("cell_id")[["cell_id", "model", "workload"]]
    rows = _of_all_layers(tables.need("fragmentation")).merge(cells, on="cell_id")
    keys = told_apart(rows, ["model", "workload"], ["workload"])
    groups = sorted(rows.groupby(keys, sort=False), key=lambda item: -item[1]["cell_id"].nunique())
    handles = {
        PAGED: key("paged (measured)", COLOURS[0], "none", marker="o"),
        WHATIF: key("paged, other sizes (predicted)", COLOURS[0], **COMPUTED_MARK),
        **{name: key(*layout) for name, layout in LEVEL.items()},
    }
    names = rows["layout"].map(LAYOUTS)
    blocks = "blocks of " + rows["block_size"].map("{:g}".format) + " tokens"
    measured = rows.assign(how=names.where(rows["layout"] != PAGED, blocks))[rows["source"] != "predicted"]
    named = measured.assign(name=measured[[*keys, "how"]].agg(", ".join, axis=1))
    medians = named.groupby(["name", "cell_id"], sort=False)["waste_pct"].median()
    shares = [f"{name}: {span(of_cells)} %" for name, of_cells in medians.groupby(level="name", sort=False)]
    return Plot(
        title="Empty slots in held KV memory, against the block size",
        alt=f"Share of the slots in held KV memory that held no token, measured: {'; '.join(shares)}.",
        sources=sorted(rows["source"].unique()),
        panels=[Panel(" · ".join(map(str, names)), partial(_draw_waste, rows=part)) for names, part in groups],
        panels_are="models and workloads",
        most=MOST_WORKLOADS,
        x_label=knob_axis("block_size"),
        y_label=column("waste_pct").axis,
        handles=[handle for name, handle in handles.items() if name in set(rows["layout"])],
        repeats=repeats_of(rows),
        notes=[
            "a dot is the median of a cell's repeats; other layouts have a mark or line for the lowest and the highest "
            "cell",
            *[WITH_WINDOWS] * bool({"paged_own_pages", "paged_every_token"} & set(rows["layout"])),
        ],
        panel_height_in=3.0,
    )


def _draw_waste(ax: Axes, rows: pd.DataFrame) -> None:
    by = ["layout", "cell_id", "block_size"]
    of_cells = rows.groupby(by, sort=False, dropna=False)["waste_pct"].agg(["median", "min", "max"]).reset_index()
    # What looks the same is drawn once: a study may have thousands of cells.
    at = of_cells.round(1).drop_duplicates(["layout", "block_size", "median", "min", "max"])
    for layout, part in at.groupby("layout", sort=False):
        if layout in LEVEL:
            _, color, style = LEVEL[str(layout)]
            for level in {part["median"].min(), part["median"].max()}:
                ax.axhline(level, color=color, linestyle=style, **COMPUTED)
        elif layout == WHATIF:
            ends = part.groupby("block_size")["median"].agg(["min", "max"])
            ax.fill_between(ends.index, ends["min"], ends["max"], color=COLOURS[0], alpha=0.25, linewidth=0)
            ax.plot(ends.index, ends, color=COLOURS[0], **COMPUTED_MARK)
        else:
            ax.vlines(part["block_size"], part["min"], part["max"], color=COLOURS[0], linewidth=1.5)
            ax.plot(part["block_size"], part["median"], color=COLOURS[0], marker="o", linestyle="none")
    sizes = rows.loc[rows["layout"].isin([PAGED, WHATIF]), "block_size"].dropna().unique()
    if len(sizes):
        log2_axis(ax, sizes)
    else:
        ax.set_xticks([])
    ax.set_ylim(-2, 102)  # lines at 0 % are visible


def empty_slots(report: Report) -> Iterator[Block]:
    """For each device the share of the held slots without a token, with the smallest and the largest blocks."""
    shown_as, tables = column("waste_pct"), report.tables
    groups = compared(tables, tables.measured, "knob_block_size", COORDINATES)
    for gpu in dict.fromkeys(group.keys["gpu"] for group in groups):
        group = next(group for group in groups if group.keys["gpu"] == gpu)
        rows = group.rows[group.rows["series"] == group.labels[0]].drop_duplicates("x")
        at = rows.set_index("x")["cell_id"].map(tables.waste_pct).dropna().sort_index()
        if len(at) > 1:
            (small, first), (large, last) = ((at.index[end], at.iloc[end]) for end in (0, -1))
            words = f"{shown_as.in_words} {shown_as.text(first)} with {setting_phrase('block_size', small)}"
            words += f", {shown_as.text(last)} with {large:g}{_refused(report, gpu)}"
            yield Finding(shown_as.text(first, last), f"{gpu}: {words}.")


def _refused(report: Report, gpu: str) -> str:
    """The block sizes with which no cell of a device could run, with the predicted reason or the beginning of the
    engine's."""
    sized = report.grid[report.grid["gpu"] == gpu].groupby("knob_block_size")
    columns = ["cell_id", "predicted_infeasible"]
    foreseen = report.tables.get("memory", *columns)[columns].dropna()
    plain = foreseen.drop_duplicates("cell_id").set_index("cell_id")["predicted_infeasible"]
    return "".join(
        f"; {setting_phrase('block_size', size)} could not run: "
        + plain.get(
            cells["cell_id"].iloc[0],
            shorten(cells["reason"].iloc[0].partition("(")[0], MOST_LETTERS, placeholder=" ..."),
        )
        for size, cells in sized
        if cells["outcome"].eq("infeasible").all()
    )


def _of_all_layers(waste: pd.DataFrame) -> pd.DataFrame:
    """The rows that count all layers together, not those of one kind of layer."""
    return waste[waste["layer_kind"].isna()]


BY_KIND_OF_LAYER = TablePart(
    "fragmentation",
    {
        "cell_id": "Cell",
        "layer_kind": "Layers",
        "layout": "Layout",
        "tokens_held_mean": "Tokens needed",
        "slots_held_mean": "Slots held",
        "waste_pct": "",
        "source": "Source",
    },
    "Waste by kind of layer, in tokens of all layers, medians over repeats",
    lambda waste: medians_by_cell(waste[waste["layer_kind"].notna()], "layout", "layer_kind"),
    optional=True,  # for models that have several
)


def prediction_errors(report: Report) -> Iterator[Block]:
    names = ["observed_kv_cache_tokens", "observed_max_concurrency"]
    rows = report.tables.need("memory")
    rows = rows[rows["cell_id"].isin(report.grid.loc[report.grid["outcome"].isin(RAN), "cell_id"])]
    measured = rows[(rows["source"] == "measured") & rows["observed_kv_cache_tokens"].notna()]
    both = measured.dropna(subset="kv_cache_tokens_error_pct")
    require(both, "no cell has KV-cache tokens that were both predicted and measured")
    cells = report.tables.rows
    amounts = [f"knob_{name}" for name, knob in every_knob().items() if knob.reserves == "amount"]
    is_given = both["cell_id"].isin(cells.loc[cells.filter(amounts).notna().any(axis=1), "cell_id"])
    error_pct = both.loc[~is_given, "kv_cache_tokens_error_pct"].abs()
    within = int((error_pct <= WITHIN_PCT).sum())
    # The number of full-length requests is not known for every cell, so the tokens shown with it are of the same cells.
    whole = measured.dropna(subset=names)
    held = [" to ".join(dict.fromkeys([shown(whole[name].min()), shown(whole[name].max())])) for name in names]
    sentence = (
        f"The predicted KV cache is within {WITHIN_PCT:g} % of the measured tokens in {within} of {len(error_pct)} "
        f"cells; the largest error is {number(error_pct.max())} %."
        if len(error_pct)
        else "No size of a KV cache had to be predicted."
    )
    if len(whole):
        sentence += (
            f" Measured KV caches have blocks for {held[0]} tokens, or {held[1]} requests of full length; vLLM keeps "
            "one of the blocks to itself."
        )
    if given := int(is_given.sum()):
        sentence += f" In {plural(given, 'cell')} the study sets the size, so the prediction is only arithmetic."
    if unpredicted := len(measured) - len(both):
        sentence += f" {unpredicted} more measured cells have no prediction."
    if error_pct.empty:
        yield Text(sentence)
    else:
        tone = "good" if within == len(error_pct) else "neutral"
        yield Finding(f"at most {number(error_pct.max())} % off", sentence, tone)


def why_predictions_missed(report: Report) -> Iterator[Block]:
    rows = report.tables.need("memory")
    # Cells that differ only in knobs without effect on the cache have the same sentences.
    first: dict[str, dict[str, Any]] = {}
    for row in records(rows[rows["disagrees"].notna()]):
        gib = {of.replace("_bytes", "_gib"): row[of] * unit_of(of)[1] for of in row if of.endswith("_bytes")}
        words = " ".join(_DISAGREES[code] for code in row["disagrees"].split(",")).format(**row, **gib)
        first.setdefault(words, row)
    verdicts = {"published": "published"}
    named = [(row["source"], report.names.get(row["cell_id"], row["cell_id"]), words) for words, row in first.items()]
    yield from some([Finding(verdicts.get(of, "missed"), f"{cell}: {words}") for of, cell, words in named], "memory")


CAPACITY = TablePart(
    "memory",
    {
        **CELL,
        "source": "Source",
        "observed_kv_cache_tokens": "Tokens",
        "predicted_kv_cache_tokens": "Tokens, predicted",
        "kv_cache_tokens_error_pct": "Error of predicted tokens",
        "observed_num_blocks": "Blocks",
        "predicted_num_blocks": "Blocks, predicted",
        "observed_max_concurrency": "Requests of full length",
        "predicted_max_concurrency": "Requests of full length, predicted",
        "predicted_infeasible": "Predicted to be refused",
    },
    "Capacity of the KV cache, as the engine had it and as predicted",
    note="Of the first start of each cell. Tokens and requests are those of all blocks, of which vLLM keeps one to "
    "itself; engines round the requests of full length.",
)


MEMORY = [f"kv_bytes_{of}" for of in ("reserved_peak", "reserved_mean", "used_mean")]
MEMORY += ["torch_memory_bytes_max", "process_memory_growth_bytes_max"]


def reserved_and_used(tables: Tables) -> pd.DataFrame:
    """Bytes that engines reserved for keys and values in each cell, and those that they used."""
    values = tables.values.reindex(columns=MEMORY).dropna(subset="kv_bytes_reserved_peak")
    require(values, "no cell recorded how many bytes its KV cache reserved")
    values["used_pct"] = 100 * values["kv_bytes_used_mean"] / values["kv_bytes_reserved_mean"]
    return tables.cells[["cell_id", *CELL]].merge(values, on="cell_id")


RESERVED = TablePart(
    "intervals",
    {**CELL, **dict.fromkeys(MEMORY, ""), "used_pct": "Used share of reserved, of means"},
    "KV memory reserved and used",
    rows=reserved_and_used,
)

SUBJECT = Subject(
    id="block-size",
    title="Block size and KV memory",
    lines=2,  # the speed, and the memory
    asked="block size|KV",
    parts=[
        FigurePart(output_by_block_size),
        effects_of("block_size"),
        FigurePart(waste_by_block_size),
        TablePart(
            "fragmentation",
            {
                "cell_id": "Cell",
                "layout": "Layout",
                "block_size": "Block size",
                "waste_pct": "",
                "wasted_slots_per_sequence": "Empty slots per sequence",
                "expected_wasted_slots_per_sequence": "Empty slots per sequence, expected of long ones",
                "source": "Source",
            },
            "Waste in the engines' actual layouts, medians over repeats",
            lambda waste: medians_by_cell(_of_all_layers(waste[waste["source"] == "measured"]), "layout").replace(
                LAYOUTS
            ),
        ),
        BY_KIND_OF_LAYER,
        CAPACITY,
        RESERVED,
        claims_on("block-size"),
    ],
    findings=[verdicts_on("block_size"), empty_slots, prediction_errors, why_predictions_missed],
)

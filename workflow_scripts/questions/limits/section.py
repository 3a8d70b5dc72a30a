"""How close the measurements come to what the hardware allows."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.common.columns import column, heading, unit_of
from workflow_scripts.common.wording import listed, plural
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.by_knob import CEILINGS, colours_of
from workflow_scripts.page.plot import Panel, Plot, key, mark_cells, plain_log_axis
from workflow_scripts.page.report import FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import NOT_DECIDED, some, span
from workflow_scripts.page.series import Group, repeats_of, told_apart
from workflow_scripts.page.style import INK, MARKERS, MUTED, Mark
from workflow_scripts.questions.knobs.sequence_limit import at_both_ends, most_important_group
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import MissingError, Tables, records, require, under_load

# What prevents fewer steps, in words.
STEPS_BOUND_BY = {
    "max_num_seqs": "sequences allowed at once",
    "longest_request": "longest request",
    "kv_blocks": column("num_gpu_blocks").label,
}
RATES = {"datasheet": "data sheet", "measured": "measured rates"}
_EDGED: Mapping[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 1.2}
_UNIT, _SHOWN = unit_of("flop_per_s")
_WORK = ("read_bytes", "flops", "mfu", "read_bytes_per_s", "flop_per_s")


def roofline(tables: Tables) -> Plot:
    limits = tables.limits.reindex(columns=["cell_id", "rates", *_WORK]).dropna()
    cells = tables.measured.reindex(columns=["cell_id", *COORDINATES, "knob_quantization"]).drop_duplicates("cell_id")
    names = told_apart(cells, COORDINATES[1:], ["engine"])
    cells = cells.assign(quantized=cells["knob_quantization"].notna(), kind=cells[names].agg(", ".join, axis=1))
    rows = limits.merge(cells)
    require(rows, "the work of no measured cell is known")
    notes = ["a mark is a cell at its rate; operations and bytes are computed from its schedule"]
    # A device has one roof for each type of weights, and on a CPU for each place from which they are read.
    roofs = rows.drop_duplicates(["gpu", "rates", "read_bytes_per_s", "flop_per_s"])
    if roofs.groupby(["gpu", "rates"])["flop_per_s"].nunique().max() > 1:
        notes.append("each type of weights has its own flat roof")
    points = rows.drop_duplicates("cell_id").set_index("cell_id")
    points = points.assign(x=points["flops"] / points["read_bytes"], y=points["mfu"] * points["flop_per_s"] * _SHOWN)
    with suppress(MissingError):
        knob, group = most_important_group(tables)
        points["value"] = group.rows.drop_duplicates("cell_id").set_index("cell_id")["x"]
        notes.append(f"numbers are {knob_name(knob)}, for the cells of the figure of throughput")
    loaded = int(under_load(tables.measured.drop_duplicates("cell_id")).sum())
    few = f"{plural(loaded, 'cell')} of servers under load are not drawn: their rate follows from the load"
    notes += [few] * (loaded > 0)
    named = colours_of(tables, points.assign(colour=points["gpu"]))
    kinds = dict(zip(dict.fromkeys(points["kind"]), cycle(MARKERS), strict=False))
    handles = [key(name, mark.color, linewidth=4) for name, mark in named.items()]
    handles += [key(kind, MUTED, "none", marker=marker) for kind, marker in kinds.items()]
    if points["quantized"].any():
        handles.append(key("8-bit weights", MUTED, "none", marker="o", **_EDGED))
    drawn = [rates for rates in CEILINGS if rates in set(roofs["rates"])]
    handles += [key(f"roof, {RATES[rates]}", linestyle=CEILINGS[rates][0]) for rates in drawn]
    at = [
        f"{gpu}, {plural(len(of), 'cell')}: {span(of['x'])} operations per byte, {span(of['y'])} {_UNIT}"
        for gpu, of in points.groupby("gpu", sort=False)
    ]
    return Plot(
        title="Rate of operations against operations per byte, below the roofs of each device",
        alt="; ".join(at) + ".",
        sources=["measured", "predicted"],
        panels=[Panel("", partial(_draw_roofline, points=points, roofs=roofs, named=named, kinds=kinds))],
        x_label="Operations per byte read",
        y_label=heading("flop_per_s", "Operations"),
        handles=handles,
        repeats=repeats_of(tables.measured.merge(points[[]], on="cell_id")),
        notes=notes,
        panel_height_in=3.6,
    )


def _draw_roofline(
    ax: Axes, points: pd.DataFrame, roofs: pd.DataFrame, named: Mapping[str, Mark], kinds: Mapping[str, str]
) -> None:
    ridge = roofs["flop_per_s"] / roofs["read_bytes_per_s"]
    low, high = points["x"].min() / 2, max(4 * points["x"].max(), 2 * ridge.max())
    for roof in records(roofs):
        x = np.array([low, roof["flop_per_s"] / roof["read_bytes_per_s"], high])
        y = np.minimum(x * roof["read_bytes_per_s"], roof["flop_per_s"]) * _SHOWN
        ax.plot(x, y, color=named[roof["gpu"]].color, linestyle=CEILINGS[roof["rates"]][0], linewidth=1.2)
    for (gpu, kind, quantized), part in points.groupby(["gpu", "kind", "quantized"], sort=False):
        look = {"color": named[str(gpu)].color, "marker": kinds[str(kind)], **(_EDGED if quantized else {})}
        ax.plot(part["x"], part["y"], alpha=0.8, linestyle="none", **look)
        mark_cells(ax, part["x"], part["y"], map(str, part.index), "flop_per_s")
    if "value" in points:
        last = points[points["gpu"] == points["gpu"].iloc[-1]].dropna(subset="value")
        for row in records(last.drop_duplicates("value")):
            ax.annotate(f"{row['value']:g}", (row["x"], row["y"]), (5, -9), textcoords="offset points", fontsize=8)
    plain_log_axis(ax, "x", low, high, most=7)
    plain_log_axis(ax, "y", points["y"].min() / 2, 1.6 * roofs["flop_per_s"].max() * _SHOWN, most=8)


def closest(tables: Tables) -> pd.DataFrame:
    limits = tables.limits.drop_duplicates("cell_id").replace({"steps_bound_by": STEPS_BOUND_BY, "rates": RATES})
    return limits.sort_values("ceiling_share", ascending=False, kind="stable")


def _badge(first: float, last: float) -> str:
    """Both shares of the ceiling; a ceiling below the rate says nothing of how close the rate is."""
    return column("ceiling_share").text(first, last) if max(first, last) <= 1 else NOT_DECIDED


def _sources(tables: Tables, line: Group) -> str:
    of_line = tables.limits[tables.limits["cell_id"].isin(line.rows["cell_id"])].drop_duplicates("cell_id")
    return f" (ceilings: {listed(of_line['rates'].map(RATES).unique())})"


reached = at_both_ends("ceiling_share", _badge, _sources)


def above_ceilings(report: Report) -> Iterator[Block]:
    limits = report.tables.need("limits").dropna(subset="factor").sort_values("factor", ascending=False)
    require(limits, "no ceiling is known for any cell")
    exceeds, cells = limits["exceeds"].eq(True), limits["cell_id"].nunique()
    findings = []
    for row in records(limits[exceeds].drop_duplicates("cell_id")):
        cell, times = report.names.get(row["cell_id"], row["cell_id"]), f"{row['factor']:.3g} times its ceiling"
        sentence = f"{cell}: {times} on {row['ceiling_broken']}. It is marked invalid and not compared."
        findings.append(Finding("impossible", sentence, "bad"))
    doubtful = limits[~exceeds & (limits["factor"] > 1)]
    for tolerance in doubtful["tolerance"].astype(float).unique():
        rows = doubtful[doubtful["tolerance"] == tolerance]
        why = f"within the error of {100 * tolerance:g} % of these rates"
        if tolerance == np.inf:
            why = "others loaded the host while these rates were measured, so the ceiling may be too low"
        sentence = (
            f"In {rows['cell_id'].nunique()} of {cells} cells the rate of a repeat is up to {rows['factor'].max():.3g} "
            f"times a ceiling from measured rates of the device; {why}."
        )
        findings.append(Finding(NOT_DECIDED, sentence))
    if not findings:
        sentence = f"None of the {cells} cells with a known ceiling is faster than its device allows."
        findings.append(Finding("possible", sentence, "good"))
    yield from some(findings, "limits")


SUBJECT = Subject(
    id="limits",
    title="How close to the hardware's limits",
    asked="limits|hardware",
    parts=[
        FigurePart(roofline),
        TablePart(
            "limits",
            {
                "cell_id": "Cell",
                "rates": "Source of the device's rates",
                "ceiling_share": "",
                "output_tokens_per_s_ceiling": "Ceiling of the output over whole repeats",
                "mbu": "",
                "read_bytes_per_s": "Reading, at most",
                "mfu": "",
                "flop_per_s": "Operations, at most",
                "experts_touched_share": "Experts that a decode step used",
                "experts_touched_share_uniform": "Expected of equally likely experts",
                "decode_bound_by": "Ceiling of decoding set by",
                "bound_by": "Ceiling of the repeat set by",
                "steps_bound_by": "Steps limited by",
            },
            "Cells closest to their ceilings",
            rows=closest,
            note="By the data sheet, if its rates are known; the file has all sources of rates. The rate of a server "
            "under load follows from the load, so it is no share of the ceiling.",
        ),
    ],
    findings=[reached, above_ceilings],
    lines=2,  # two devices
)

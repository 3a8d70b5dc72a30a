"""Predictions made before anything ran, beside measured and published values."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow_scripts.catalog.published import PROMPT_SHARES
from workflow_scripts.common.columns import column, heading
from workflow_scripts.common.wording import listed, number, plural
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.by_knob import draw_published, published_handles
from workflow_scripts.page.plot import Panel, Plot, key, line_through, log2_axis, mark_cells, plain_log_axis
from workflow_scripts.page.ratio_plot import plot_ratios
from workflow_scripts.page.report import CELL, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.series import PLACES, ends_in_words
from workflow_scripts.page.style import COLOURS, INK, marks
from workflow_scripts.study.calibrations import COVERAGE
from workflow_scripts.study.setting_words import knob_axis
from workflow_scripts.tables.results import RATE, MissingError, Tables, records, require, under_load

# Values that are only predicted have hollow marks on a broken line; each workload of a panel has its own line.
LINES: Sequence[Mapping[str, Any]] = [
    {"color": COLOURS[i], "marker": marker, "markerfacecolor": "none", "linestyle": (0, dashes), "linewidth": 1.3}
    for i, marker, dashes in ((1, "D", (5, 1.5)), (2, "^", (3, 1.2)), (3, "s", (1.5, 1)), (4, "v", (6, 1, 1, 1)))
]
MEASURED: Mapping[str, Any] = {"color": COLOURS[0], "marker": "o", "linestyle": "none"}
# Errors are called good up to this size, unless a band is so wide that it could hardly be missed.
GOOD_PCT, WIDE_BAND_PCT = 10, 20
# A flagged cell is said to have waited for its host if that explains this part of its error.
EXPLAINS = 0.5
# A device and engine whose errors have one direction in this share of at least so many cells are said to have it.
BIASED, FEW_CELLS = 0.8, 4
# So many errors are named one by one.
FEW_VALUES = 2
LATENCIES = ("ttft_s_p50", "tpot_s_p50")
# What a prediction is made from, in words.
SOURCES: Mapping[str, str] = {
    "calibrated": "this study's calibration",
    "project file": "the project's calibration",
    "measured rates": "measured rates of the device",
    "data sheet": "the data sheet",
}
PUBLISHED: Mapping[str, Any] = {"color": INK, "marker": "x", "linestyle": ":", "linewidth": 1.0}


def prediction_errors(tables: Tables) -> Plot:
    table = tables.need("predictions")
    rows = table[table["quantity"] == RATE].dropna(subset=["predicted", "measured"])
    require(rows, "no cell was both predicted and measured")
    ratio, low, high = (rows[name] / rows["measured"] for name in ("predicted", "low", "high"))
    both = low.notna() & high.notna()
    rows = rows.assign(
        ratio=ratio,
        ratio_low=low.where(both),
        ratio_high=high.where(both),
        label=rows["gpu"] + " · " + rows["engine"],
        name=rows["gpu"],
    )
    size = rows["error_pct"].abs()
    plot = plot_ratios(
        rows.sort_values("ratio"),
        marks(tables.devices),
        title=f"Predicted {column(RATE).in_words} over measured, cells sorted by their error",
        interval="band of the prediction",
    )
    median, most = number(size.median()), number(size.max())
    alt = f"{len(rows)} cells. Predictions have a median error of {median} %, at most {most} %."
    return replace(plot, alt=alt, sources=["measured", "predicted"], x_label="Predicted over measured (1: exact)")


def predicted_by_max_num_seqs(tables: Tables) -> Plot:
    table = tables.need("predictions")
    cells = tables.rows.drop_duplicates("cell_id")
    if "knob_max_num_seqs" not in cells:
        raise MissingError("no cell sets max-num-seqs")
    rows = table[(table["quantity"] == RATE) & table["predicted"].notna() & (table["engine"] == VLLM.name)]
    rows = rows.merge(cells[["cell_id", *tables.knobs]], on="cell_id").dropna(subset=["knob_max_num_seqs"])
    # Along a line, other settings are equal; of each place the settings with the most cells have the line.
    others = [name for name in tables.knobs if name != "knob_max_num_seqs"]
    alike = rows.groupby([*PLACES, *others], dropna=False, sort=False)
    rows = rows.assign(line=alike.ngroup(), cells=alike["knob_max_num_seqs"].transform("nunique"))
    rows = require(rows[rows["cells"] > 1], "no prediction over several values of max-num-seqs")
    most = rows.sort_values("cells", ascending=False, kind="stable").drop_duplicates(PLACES)["line"]
    left_out = rows["line"].nunique() - len(most)
    rows = rows[rows["line"].isin(most)]
    in_a_panel = rows["workload"].nunique() <= len(LINES)
    keys = [key for key in PLACES if key == "gpu" or (rows[key].nunique() > 1 and (key == "model" or not in_a_panel))]
    styles = {name: LINES[i if in_a_panel else 0] for i, name in enumerate(dict.fromkeys(rows["workload"]))}
    named = styles if in_a_panel else {"": LINES[0]}
    looks = {"measured": MEASURED, "published": PUBLISHED}
    looks = {name: style for name, style in looks.items() if rows[name].notna().any()}
    handles: list[Artist] = [key(name, **style) for name, style in looks.items()]
    if "published" in looks:
        handles[-1:] = published_handles(**PUBLISHED)
    several = len(named) > 1
    lines = [key(f"predicted{f': {name}' * several}, with its band", **style) for name, style in named.items()]
    return Plot(
        title=f"{column(RATE).label} over whole repeats, against max-num-seqs, as predicted",
        alt=" ".join(
            ends_in_words(f"{', '.join(map(str, names))}, predicted:", _by_limit(part)["predicted"])
            for names, part in list(rows.groupby(PLACES, sort=False))[:8]
        ),
        sources=["predicted", *looks],
        panels=[
            Panel(" · ".join(map(str, names)), partial(_draw_sweep, part=part, styles=styles))
            for names, part in rows.groupby(keys, sort=False)
        ],
        panels_are="devices, models and workloads",
        x_label=knob_axis("max_num_seqs"),
        y_label=column(RATE).axis,
        handles=[*lines, *handles],
        notes=["other settings are those with the most cells; the table has all"] * (left_out > 0),
    )


def _by_limit(line: pd.DataFrame) -> pd.DataFrame:
    return line.set_index("knob_max_num_seqs").sort_index()


def _draw_sweep(ax: Axes, part: pd.DataFrame, styles: Mapping[str, Mapping[str, Any]]) -> None:
    columns = ["predicted", "low", "high", "measured", "published"]
    for workload, line in part.groupby("workload", sort=False):
        style = styles[str(workload)]
        by = _by_limit(line)
        ax.fill_between(by.index, by["low"], by["high"], color=style["color"], alpha=0.25, linewidth=0)
        ax.plot(by.index, by["measured"], **MEASURED)
        ax.plot(by.index, by["predicted"], **{**style, **line_through(len(by), style["linestyle"])})
        mark_cells(ax, by.index, by["measured"], by["cell_id"], RATE)
    published = part.groupby("knob_max_num_seqs")[["published", "published_prompt_share"]].median()
    published = published.dropna(subset="published")
    if len(published):
        draw_published(ax, published["published"], published["published_prompt_share"], **PUBLISHED)
    log2_axis(ax, part["knob_max_num_seqs"].unique())
    ends = part[columns].assign(published_low=part["published"] * (1 - max(PROMPT_SHARES)))
    plain_log_axis(ax, "y", ends.min().min() / 1.3, ends.max().max() * 1.3, most=6)


def prediction_findings(report: Report) -> Iterator[Block]:
    """The errors of each device, engine and model, first of the one with the most cells, and apart those of cells with
    few KV blocks and of another card than the calibrated one; where a rate follows from the load, only of latencies."""
    rows, cells = report.tables.need("predictions"), report.tables.cells
    loaded = rows["cell_id"].isin(cells.loc[under_load(cells), "cell_id"])
    compared = rows[~loaded | (rows["quantity"] != RATE)].dropna(subset=["measured", "predicted"])
    several = compared["model"].nunique() > 1
    few_blocks, same_card = compared["bound_by"].eq("kv_blocks"), compared["same_card"].fillna(value=True)
    parts = list(compared.groupby(["gpu", "engine", "model", few_blocks, same_card], sort=False))
    for (gpu, engine, model, few, _), part in sorted(parts, key=lambda of: -of[1]["cell_id"].nunique()):
        where = f"{gpu}, {model}" if several else str(gpu)
        yield _accuracy(part, where + ", with few KV blocks" * bool(few), str(engine))
    yield from _flags(rows[rows["quantity"] == RATE], report)


def _accuracy(compared: pd.DataFrame, where: str, engine: str) -> Finding:
    """The errors of some cells."""
    of_cells = compared.drop_duplicates("cell_id")
    cells = plural(len(of_cells), f"{engine} cell")
    cells += f" ({without} without a band)" if (without := int(of_cells["low"].isna().sum())) else ""
    compared = compared[compared["quantity"].isin([RATE, *LATENCIES])]
    sizes = compared["error_pct"].abs().dropna().groupby(compared["quantity"])
    errors = {quantity: sizes.get_group(quantity) for quantity in (RATE, *LATENCIES) if quantity in sizes.groups}
    off = {column(quantity).in_words: _sizes(of_one) for quantity, of_one in errors.items()}
    outside = compared.loc[compared["in_band"].eq(False), "quantity"].value_counts()
    is_wide = compared["band_pct"].max() > WIDE_BAND_PCT
    kind = "neutral" if sizes.median().max() > GOOD_PCT or len(outside) or is_wide else "good"
    rates = compared[compared["quantity"] == RATE].set_index("cell_id")["error_pct"]
    most, way = max((int((rates > 0).sum()), "high"), (int((rates < 0).sum()), "low"))
    biased = len(rates) >= FEW_CELLS and most >= BIASED * len(rates)
    asides = []
    if len(outside):
        which = ", ".join(f"{count} of {column(str(quantity)).in_words}" for quantity, count in outside.items())
        of_values = f"{outside.sum()} of {compared['in_band'].count()} values"
        asides = [f"{of_values} are outside their {100 * COVERAGE:g} % bands ({which})"]
    elif (inside := int(compared["in_band"].count())) > 1:
        asides = [f"all {inside} values with a band are inside it"]
    if groups := int(of_cells["band_group"].notna().sum()):
        asides.append(f"the band of {groups} of {plural(len(of_cells), 'cell')} is that of public runs")
    asides += [f"{most} of {len(rates)} rates are predicted too {way}"] * biased
    are, median = "are" if len(of_cells) > 1 else "is", ", in the median" * (len(of_cells) > FEW_VALUES)
    named = listed(f"{words} for {name}" for name, words in off.items())
    sentence = f"On {where}, {cells} predicted from {_source(of_cells)} {are} off by {named}{median}"
    of_latency = "" if RATE in errors else f", {next(iter(off))}"
    badge = next(iter(off.values())).partition(" (")[0]
    return Finding(f"{badge} off{of_latency}", "; ".join([sentence, *asides]) + ".", kind)


def _sizes(errors: "pd.Series[float]") -> str:
    """Few errors one by one, in the order of their cells; of more the median and the largest.

    >>> _sizes(pd.Series([20.8, 1.4])), _sizes(pd.Series([1.0, 2, 9]))
    ('20.8 and 1.4 %', '2 % (at most 9 %)')
    """
    if len(errors) <= FEW_VALUES:
        return f"{listed(map(number, errors))} %"
    return f"{number(errors.median())} % (at most {number(errors.max())} %)"


def _source(cells: pd.DataFrame) -> str:
    """What the cells were predicted from; of a calibration also what was calibrated if it is another engine or model,
    its date, its card, and how far in time it was."""
    source = listed(cells["speed_source"].map(SOURCES).fillna("an unknown source").unique())
    dates = sorted({str(at)[:10] for at in cells["calibrated_at"].dropna()})
    source += f" of {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}" if dates else ""
    others = set(cells["calibrated_of"].dropna()) - set(cells["engine"] + ", " + cells["model"])
    source += f", made with {listed(sorted(others), 'or')}" if others else ""
    cards = cells["same_card"].dropna()
    if cards.empty:
        return source
    most = f"{cards.sum()} of {len(cards)} cells on its card" if cards.any() else "on another card"
    card = "on the same card" if cards.all() else most
    return f"{source} ({card}, within {plural(math.ceil(cells['calibrated_h_apart'].max()), 'hour')})"


def _flags(rows: pd.DataFrame, report: Report) -> Iterator[Finding]:
    flagged = rows[rows["flagged"].eq(True)]
    if len(flagged):
        first = records(flagged)[0]
        words = f"{report.names.get(first['cell_id'], first['cell_id'])}: {first['why']}"
        if first["why"] == "outside the band":
            predicted, low, high, measured = (number(first[of]) for of in ("predicted", "low", "high", "measured"))
            words += f" of {low} to {high} output tokens/s ({predicted} predicted, {measured} measured)"
            words += _cause(first, report)
        example = ", for example " if len(flagged) > 1 else ": "
        known = rows["measured"].notna() & rows["low"].notna() | rows["flagged"].eq(True)
        of_rates = f"{column(RATE).label} of {len(flagged)} of {plural(int(known.sum()), 'cell')} with a band"
        yield Finding("flagged", f"{of_rates}{example}{words}.", "bad")


def _cause(row: Mapping[str, Any], report: Report) -> str:
    """What explains much of a rate below its band: that the GPU waited more for launches than was predicted."""
    waiting = report.tables.get("waiting", "cell_id", "launch_s", "wall_s")
    waiting = waiting[waiting["cell_id"] == row["cell_id"]]
    share = (waiting["launch_s"] / waiting["wall_s"]).mean()
    if (share - row["launch_share"]) > EXPLAINS * row["error_pct"] / 100 > 0:
        waits, predicted = (f"{100 * of:.0f} %" for of in (share, row["launch_share"]))
        return f"; its GPU waits for launches for {waits} of the time ({predicted} predicted)"
    return ""


def _of_quantity(name: str, further: Mapping[str, str]) -> TablePart:
    """The part with the predicted values of a quantity; of cells that were not measured, nothing is said about a
    difference."""
    shown = column(name)

    def of_cells(predictions: pd.DataFrame) -> pd.DataFrame:
        rows = predictions[(predictions["quantity"] == name) & predictions["predicted"].notna()]
        of_table = {"measured": "measured", "predicted": "predicted", "predicted_low": "low", "predicted_high": "high"}
        flagged = rows["flagged"].astype(object).where(rows["measured"].notna(), None)
        return rows.assign(flagged=flagged, **{of: shown.scaled(rows[name]) for of, name in of_table.items()})

    headings = {"measured": heading(name, "Measured"), "predicted": heading(name, "Predicted (band)")}
    return TablePart(
        "predictions",
        {**CELL, **headings, "error_pct": "Error", **further},
        f"{shown.label} of every cell, predicted and measured",
        of_cells,
        note="A prediction without a band has the bound that the data sheet sets for its schedule in the band's place."
        + " The bound of a rate counts the padding of static batches, which the ceiling does not." * (name == RATE),
        optional=name != RATE,
    )


SUBJECT = Subject(
    id="predictions",
    title="Predicted and measured",
    asked="predict",
    parts=[
        FigurePart(prediction_errors),
        FigurePart(predicted_by_max_num_seqs),
        _of_quantity(
            RATE,
            {
                "flagged": "Flagged",
                "running_peak_measured": "Peak of sequences at once, measured (of servers: as sampled)",
                "running_peak_predicted": "Peak of sequences at once, predicted",
            },
        ),
        *(_of_quantity(latency, {"in_band": "In its band"}) for latency in LATENCIES),
    ],
    findings=[prediction_findings],
    lines=6,  # the errors of two engines and two models on two devices
)

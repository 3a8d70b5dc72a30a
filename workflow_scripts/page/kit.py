"""The kit of plots: `line`, and the kinds with one row per name: `ratio`, `bar` and `strip`.

Each is one call that takes rows of values from tables and draws them, at any size, without a legend: lines end in their
label, rows begin with their name. It also writes the text for a reader who cannot see it. Nothing is computed here.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from workflow_scripts.common.wording import shortened
from workflow_scripts.page.digits import rounded, rounded_ratio
from workflow_scripts.page.style import COLOURS, GRID, INK, MUTED, PAPER, Look
from workflow_scripts.tables.results import records

# More series or rows than these are not told apart: the series are drawn in several panels, the rows left out.
MOST_SERIES, MOST_PANELS, MOST_DRAWN = 4, 6, 16
# Sizes in CSS pixels: of a section and a paper's page, of a phone and a paper's column, and of the first screen.
SIZES: Mapping[str, tuple[int, int]] = {"": (860, 400), ".column": (368, 300), ".first": (576, 318)}
# Letters of a label.
_MOST_LETTERS = 22
# Height of a text, of a row, and of a row below its name in a narrow plot.
TEXT_PX, NARROW_TEXT_PX, LINE_PX, ROW_PX, NAMED_ROW_PX, AXIS_PX = 14.0, 12.5, 17, 34, 52, 56
# For a label above or below a line, within the axes.
ROOM_PX = 16
_LETTER = 0.57  # mean width of a letter, of its height


@dataclass(frozen=True)
class Reference:
    """A value that is the same for all marks, drawn as a line with its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Panel:
    """Rows of one kind on one axis: columns `name`, `value`, `low`, `high`, and perhaps `hollow`, `colour`, `cell_id`.
    `sources` are the kinds of its numbers; `note` says what was left out.

    `dots` are single repeats, with `name` and `value`. Values have `unit` after their digits. `band_low` and
    `band_high` are the ends of a band that is drawn behind the interval.
    """

    kind: str
    rows: pd.DataFrame
    label: str
    unit: str = ""
    measure: str = ""
    dots: pd.DataFrame | None = None
    sources: Sequence[str] = ("measured",)
    note: str = ""


@dataclass(frozen=True)
class Lines:
    """Lines with columns `series`, `x`, `y`, `low`, `high`, and perhaps `hollow` and `cell_id`."""

    rows: pd.DataFrame
    looks: Mapping[str, Look]
    label: str
    x_label: str
    unit: str = ""
    measure: str = ""
    references: Sequence[Reference] = ()
    is_share: bool = False  # in per cent, on a linear axis, and by a quantity that is no setting
    sources: Sequence[str] = ("measured",)
    note: str = ""

    def mark_of(self, name: str) -> str:
        """What a label says of the marks of its line, if some lines have hollow ones."""
        hollow = self.rows.reindex(columns=["hollow"])["hollow"].eq(True).groupby(self.rows["series"]).all()
        marks = hollow[[name for name in hollow.index if not self.looks[name].dashes]]
        return "" if marks.nunique() < 2 or name not in marks else "○ " if marks[name] else "● "


@dataclass(frozen=True)
class Plot:
    """A figure: what it shows in words, and its panels. `alt` is for a reader who cannot see it."""

    title: str
    alt: str
    shown: Lines | Sequence[Panel]
    marks: list[tuple[str, str, list[float], float, float]] = field(default_factory=list, compare=False)

    @property
    def parts(self) -> Sequence[Any]:
        return [self.shown] if isinstance(self.shown, Lines) else self.shown

    @property
    def note(self) -> str:
        return str(self.parts[0].note)

    def describe(self) -> dict[str, Any]:
        sources = dict.fromkeys(source for part in self.parts for source in part.sources)
        return {"title": self.title, "alt": self.alt, "sources": list(sources), "note": self.note}

    def size_px(self, kind: str) -> tuple[int, int]:
        """Width and height of the figure at one of the `SIZES`; what has rows is as high as these need."""
        width, height = SIZES[kind]
        if isinstance(self.shown, Lines):
            narrow = kind == ".column"
            panels = 1 if kind == ".first" else len(_panels(self.shown))
            return width, height * (1 if panels == 1 else math.ceil(panels / (1 if narrow else 2)))
        if kind == ".first":
            return width, height
        rows = [len(panel.rows["name"].unique()) for panel in self.shown]
        if kind == ".column":
            further = sum(_wrapped(panel.label, width, NARROW_TEXT_PX).count("\n") for panel in self.shown)
            return width, sum(AXIS_PX + NAMED_ROW_PX * count for count in rows) + LINE_PX * further
        return width, max(180, AXIS_PX + ROW_PX * max(rows))


def line(rows: pd.DataFrame, looks: Mapping[str, Look], title: str, label: str, x_label: str, **more: Any) -> Plot:
    """Lines by a setting or against another quantity, with the interval of each value."""
    lines = Lines(rows, looks, label, x_label, **more)
    told = []
    for series, part in list(rows.groupby("series", sort=False))[:8]:
        ends = records(part.iloc[[0, -1]].drop_duplicates(["x", "y"]))
        told.append(f"{series}: " + ", ".join(f"{_told(end, lines.unit, 'y')} at {end['x']:g}" for end in ends))
    return Plot(title, f"{title}; {label} by {x_label}. {'. '.join(told)}.", lines)


def ratio(rows: pd.DataFrame, title: str, label: str, **more: Any) -> Plot:
    """One row per name: a ratio with its interval, on a logarithmic axis that has 1."""
    return _of_rows("ratio", rows, title, label, unit="×", **more)


def bar(rows: pd.DataFrame, title: str, label: str, **more: Any) -> Plot:
    """One row per name: a bar from 0, with its interval."""
    return _of_rows("bar", rows, title, label, **more)


def strip(rows: pd.DataFrame, dots: pd.DataFrame, title: str, label: str, **more: Any) -> Plot:
    """One row per name: each repeat as a dot, and the mean with its interval."""
    return _of_rows("strip", rows, title, label, dots=dots, **more)


def beside(title: str, *plots: Plot) -> Plot:
    """Plots of the same names side by side."""
    return Plot(title, " ".join(plot.alt for plot in plots), [panel for plot in plots for panel in plot.parts])


def _of_rows(kind: str, rows: pd.DataFrame, title: str, label: str, **more: Any) -> Plot:
    names = rows["name"].unique()
    if len(names) > MOST_DRAWN:
        more["note"] = f"{MOST_DRAWN} of {len(names)} are drawn; the table has all."
        rows = rows[rows["name"].isin(names[:MOST_DRAWN])]
    panel = Panel(kind, rows, label, **more)
    told = [f"{row['name']}: {_told(row, panel.unit)}" for row in records(rows.head(8))]
    return Plot(title, f"{title}; {label}. {'; '.join(told)}.", [panel])


def _value(unit: str, value: float, low: float, high: float) -> str:
    return f"{(rounded_ratio if unit == '×' else rounded)(value, low, high)}{unit}"


def _told(row: Mapping[str, Any], unit: str, key: str = "value") -> str:
    value, low, high = (float(row.get(name, math.nan)) for name in (key, "low", "high"))
    text = _value(unit, value, low, high)
    return text if math.isnan(low + high) else f"{text} ({rounded(low, low, high)} to {rounded(high, low, high)})"


def _wrapped(text: str, width: float, text_px: float) -> str:
    """A text in as many lines as a width in pixels asks for."""
    return "\n".join(textwrap.wrap(text, max(8, int(width / _LETTER / text_px))))


def _in_rows(name: str, letters: int, end: str = "", most: int = 2) -> str:
    """A name and its end in at most so many lines of so many letters; of a longer one the name is shortened.

    >>> _in_rows("batches of 16 instead of 1", 16), _in_rows("batches of 16 instead of 1", 8, " 5 %")
    ('batches of 16\\ninstead of 1', 'batche…d\\nof 1 5 %')
    """
    for room in range(max(len(name), 3), 2, -1):
        rows = textwrap.wrap(f"{shortened(name, room)}{end}", letters)
        if len(rows) <= most:
            break
    return "\n".join(rows)


def use_style() -> None:
    import matplotlib as mpl
    import seaborn as sns  # takes as long as a small page, which draws nothing

    mpl.use("agg")
    sns.set_theme(style="white", context="paper")
    mpl.rc("font", family="DejaVu Sans")
    mpl.rc("axes", facecolor="none", labelcolor=MUTED, edgecolor=GRID, linewidth=0.8)
    mpl.rc("axes.spines", top=False, right=False, left=False)
    mpl.rc(("xtick", "ytick"), color=MUTED)
    mpl.rc("text", color=MUTED)
    # Text stays text: the files are small, and can be searched and read aloud.
    mpl.rc("svg", fonttype="none", hashsalt="kvsweep")


def drawn(plot: Plot, kind: str) -> Figure:
    """The figure at one of the `SIZES`; `plot.marks` are then those of its cells."""
    width, height = plot.size_px(kind)
    narrow = kind == ".column"
    text_px = NARROW_TEXT_PX if narrow else TEXT_PX
    figure = Figure(figsize=(width / 96, height / 96), dpi=96)
    page = _Page(figure, width, height, text_px, narrow, kind == ".first")
    plot.marks.clear()
    if isinstance(plot.shown, Lines):
        _draw_lines(page, plot.shown)
    else:
        _draw_panels(page, plot.shown)
    for ax, x, y, cell, measure, told in page.marks:
        across, up = ax.transData.transform((x, y))
        if math.isfinite(across) and math.isfinite(up):
            plot.marks.append((cell, measure, told, round(across / width, 4), round(1 - up / height, 4)))
    return figure


@dataclass
class _Page:
    """A figure that is being drawn, with its size and the marks of cells in it."""

    figure: Figure
    width: int
    height: int
    text_px: float
    narrow: bool
    first: bool
    marks: list[tuple[Axes, float, float, str, str, list[float]]] = field(default_factory=list)

    @property
    def letters(self) -> int:
        """Of a label at the end of a line."""
        return _MOST_LETTERS - 7 * self.narrow

    @property
    def points(self) -> float:
        return self.text_px * 0.75

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Axes at a place in pixels from the top left."""
        box = (left / self.width, 1 - bottom / self.height, (right - left) / self.width, (bottom - top) / self.height)
        ax = self.figure.add_axes(box)
        ax.tick_params(labelsize=self.points, length=0)
        return ax

    def width_of(self, texts: Iterable[str]) -> float:
        return max((len(row) for text in texts for row in text.splitlines()), default=0) * _LETTER * self.text_px

    def write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Text at a place in pixels from the top left."""
        self.figure.text(x / self.width, 1 - y / self.height, text, fontsize=self.points, **{"va": "center", **style})

    def mark(self, ax: Axes, row: Mapping[str, Any], x: float, y: float, measure: str, value: float) -> None:
        if measure and isinstance(row.get("cell_id"), str) and not self.first:
            told = [float(f"{end:.9g}") for end in (value, row["low"], row["high"]) if math.isfinite(end)]
            self.marks.append((ax, float(x), float(y), row["cell_id"], measure, told))


def _panels(lines: Lines) -> list[list[str]]:
    """The series of each panel."""
    names = list(dict.fromkeys(lines.rows["series"]))
    return [names[i : i + MOST_SERIES] for i in range(0, len(names), MOST_SERIES)][:MOST_PANELS]


def _draw_lines(page: _Page, lines: Lines) -> None:
    panels = _panels(lines)[: 1 if page.first else MOST_PANELS]
    columns = 1 if page.narrow else min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    ends = lines.rows[["y", "low", "high"]].to_numpy(dtype=float)
    low, high = _range([*ends[ends > 0], *(ref.at for ref in lines.references)])
    tall = page.height / rows
    room = (high / low) ** (ROOM_PX / max(tall - 80 - 2 * ROOM_PX, ROOM_PX))
    low, high = low / room, high * room
    ticks = [f"{tick:,.10g}{lines.unit}" for tick in _ticks(low, high, 6)]
    left = page.width_of(ticks) + 10
    labels = {name: _end_label(page, lines, str(name), part) for name, part in lines.rows.groupby("series", sort=False)}
    named = [*labels.values(), *(ref.label for ref in lines.references)]
    right = min(1.2 * page.width_of(named) + 16, page.width / 2.6)  # these are bold
    wide, title = page.width / columns, _wrapped(lines.label, page.width, page.text_px)
    further = LINE_PX * title.count("\n")
    for place, names in enumerate(panels):
        x0, y0 = wide * (place % columns), tall * (place // columns)
        ax = page.axes(x0 + left, y0 + 34 + further, x0 + wide - right, y0 + tall - 46)
        if place == 0:
            page.write(2, 12 + further / 2, title)
        page.write((2 * x0 + left + wide - right) / 2, y0 + tall - 9, lines.x_label, ha="center")
        if lines.is_share:
            ax.set_ylim(0, 100)
            _set_ticks(ax.yaxis, range(0, 101, 20), lines.unit)
        else:
            _log_axis(ax, ax.yaxis, low, high, lines.unit, 6)
        ax.yaxis.grid(visible=True, color=GRID, linewidth=0.8)
        ax.spines["bottom"].set_visible(False)
        _x_axis(ax, lines)
        _draw_series(page, ax, lines, {name: labels[name] for name in names})


def _x_axis(ax: Axes, lines: Lines) -> None:
    room, values = 2 * ROOM_PX / ax.bbox.width, sorted(set(lines.rows["x"].dropna()))
    if lines.is_share:
        low, high = _range(values)
        return _log_axis(ax, ax.xaxis, low / (high / low) ** room, high, "", 5)
    if values[0] > 0:
        ax.set_xscale("log")
        ax.set_xlim(values[0] / max(1.12, (values[-1] / values[0]) ** room), values[-1] * 1.12)
    return _set_ticks(ax.xaxis, values if len(values) <= 7 else values[:: math.ceil(len(values) / 6)], "")


def _draw_series(page: _Page, ax: Axes, lines: Lines, ends: Mapping[str, str]) -> None:
    """Draw the lines of a panel, with what is written at their ends."""
    import seaborn as sns

    for reference in lines.references:
        ax.axhline(reference.at, color=MUTED, linewidth=1)
    series = [(name, lines.rows[lines.rows["series"] == name].dropna(subset="y"), lines.looks[name]) for name in ends]
    for _, part, look in series:
        style: dict[str, Any] = {"linestyle": (0, look.dashes), "linewidth": 1.4} if look.dashes else {}
        sns.lineplot(
            x=part["x"], y=part["y"], ax=ax, color=look.colour, sort=False, estimator=None, legend=False, **style
        )
        if not look.dashes:
            _intervals(ax, part["x"], part["low"], part["high"], look.colour)
            for row in records(part):
                _dot(ax, row["x"], row["y"], look.colour, look.marker, bool(row.get("hollow", False)))
                page.mark(ax, row, row["x"], row["y"], lines.measure, row["y"])
    ax.set(xlabel="", ylabel="")
    right = [(ax.get_xlim()[1], ref.at, ref.label, MUTED, False) for ref in lines.references]
    last = [(*part.iloc[-1][["x", "y"]], ends[name], look.colour, not look.dashes) for name, part, look in series]
    _label_firsts(page, ax, lines, [one for one in series if not one[2].dashes])
    _write_ends(page, ax, last + right)


def _label_firsts(page: _Page, ax: Axes, lines: Lines, series: Sequence[tuple[str, pd.DataFrame, Look]]) -> None:
    """Write the first value of one or two lines, beyond its interval and on the side of the line where nothing else is;
    to the right if the line leaves it."""
    if len(series) > 2 or len(lines.rows) <= 2:
        return
    for place, (_, part, look) in enumerate(sorted(series, key=lambda one: -one[1]["y"].iloc[0])):
        first, falls = part.iloc[0], part["y"].iloc[-1] < part["y"].iloc[0]
        above = not place if len(series) == 2 else falls and not any(ref.at > first["y"] for ref in lines.references)
        end = first["high" if above else "low"]
        at = end if math.isfinite(end) else first["y"]
        text = f"{rounded(first['y'], first['low'], first['high'])}{lines.unit}"
        _beside(page, ax, first["x"], at, text, look.colour, (3 * (above == falls), 13 if above else -13))


def _end_label(page: _Page, lines: Lines, name: str, rows: pd.DataFrame) -> str:
    """The name of a line, with the value at its end if it was measured."""
    last = rows.dropna(subset="y").iloc[-1]
    value = "" if lines.looks[name].dashes else f" {rounded(last['y'], last['low'], last['high'])}{lines.unit}"
    return _in_rows(f"{lines.mark_of(name)}{name}", page.letters, value)


def _write_ends(page: _Page, ax: Axes, labels: Sequence[tuple[float, float, str, str, bool]]) -> None:
    """Write labels to the right of their lines, each above the next one; the highest is not above the axes."""
    placed = sorted(labels, key=lambda label: label[1])
    half = [0.58 * page.text_px * (1 + label[2].count("\n")) for label in placed]
    points = [ax.transData.transform(label[:2]) for label in placed]
    top, ups = -math.inf, []
    for (_, y), tall in zip(points, half, strict=True):
        ups.append(max(float(y), top + tall))
        top = ups[-1] + tall
    top = float(ax.bbox.y1) + 12
    for place in reversed(range(len(placed))):
        ups[place] = min(ups[place], top - half[place])
        top = ups[place] - half[place]
    for (x, _), up, (*_, text, colour, bold) in zip(points, ups, placed, strict=True):
        weight = "bold" if bold else "normal"
        page.write(float(x) + 9, page.height - up, text, color=colour, fontweight=weight, linespacing=1.15)


def _beside(page: _Page, ax: Axes, x: float, y: float, text: str, colour: str, offset: tuple[float, float]) -> None:
    ax.annotate(
        text,
        (x, y),
        offset,
        textcoords="offset pixels",
        color=colour,
        fontsize=page.points,
        fontweight="bold",
        va="center",
        ha="right" if offset[0] < 0 else "left" if offset[0] else "center",
        # No line of the grid goes through it.
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
        zorder=2.5,
    )


def _intervals(ax: Axes, at: Any, low: Any, high: Any, colour: str, *, across: bool = False) -> None:
    """Draw intervals with caps that are wider than a mark, so that those that are shorter than it are seen."""
    (ax.hlines if across else ax.vlines)(at, low, high, color=colour, linewidth=1.7, alpha=0.8)
    for end in (low, high):
        places, marker = ((end, at), "|") if across else ((at, end), "_")
        ax.plot(*places, marker, color=colour, markersize=10, markeredgewidth=1.3)


def _dot(ax: Axes, x: float, y: float, colour: str, marker: str, hollow: bool) -> None:
    face = PAPER if hollow else colour
    ax.plot([x], [y], marker=marker, color=colour, markerfacecolor=face, markersize=5, linestyle="none", zorder=3)


def _draw_panels(page: _Page, panels: Sequence[Panel]) -> None:
    names = list(dict.fromkeys(name for panel in panels for name in panel.rows["name"]))
    left = 4.0 if page.narrow else min(page.width_of(names) + 14, 0.46 * page.width)
    wide = (page.width - left) / (1 if page.narrow else len(panels))
    room = page.width if page.narrow else wide - 8
    labels = [_wrapped(panel.label, room, page.text_px) for panel in panels]
    further = [LINE_PX * label.count("\n") for label in labels]
    row_px = (page.height - AXIS_PX - max(further)) / max(len(names), 1)
    if page.first:
        row_px = min(row_px, 58.0)
    top = 0.0
    for place, panel in enumerate(panels):
        own = list(dict.fromkeys(panel.rows["name"])) if page.narrow else names
        height = NAMED_ROW_PX * len(own) if page.narrow else row_px * len(own)
        x0 = left if page.narrow else left + wide * place
        above = further[place] if page.narrow else max(further)
        begin = top + above + 26
        ax = page.axes(x0, begin, x0 + wide - 26, begin + height)
        page.write(2 if page.narrow else x0, begin - 14 - further[place] / 2, labels[place])
        _draw_rows(page, ax, panel, own)
        for i, name in enumerate(own):
            if page.narrow:
                most = int(page.width / _LETTER / page.text_px)
                ax.text(0, i - 0.28, shortened(name, most), transform=ax.get_yaxis_transform(), color=INK, va="center")
                ax.texts[-1].set_fontsize(page.points)
            elif place == 0:
                most = int((left - 10) / _LETTER / page.text_px)
                words = _in_rows(name, most, most=max(1, int(row_px / LINE_PX)))
                page.write(2, begin + (i + 0.5) * row_px, words, color=INK)
        top += above + height + AXIS_PX if page.narrow else 0


def _draw_rows(page: _Page, ax: Axes, panel: Panel, names: Sequence[str]) -> None:
    import seaborn as sns

    rows, is_bar = panel.rows, panel.kind == "bar"
    ends = rows[["low", "high"]].astype(float).dropna().to_numpy().ravel()  # a bound alone is not drawn
    bands = rows.reindex(columns=["band_low", "band_high"]).astype(float).dropna().to_numpy().ravel()
    values = [*rows["value"].astype(float), *ends, *bands, *[1.0] * (panel.kind == "ratio")]
    if panel.dots is not None:
        values += list(panel.dots["value"].astype(float))
    down = 0.22 if page.narrow else 0.0
    at = {name: i + down for i, name in enumerate(names)}
    ax.yaxis.set_visible(False)
    if is_bar:
        most = max([value for value in values if value > 0], default=1.0)
        ax.set_xlim(0, most * (1.45 if page.width / len(names) < 90 or page.narrow else 1.3))
        ax.xaxis.set_visible(False)
        ax.spines["bottom"].set_visible(False)
    else:
        low, high = _range([value for value in values if value > 0])
        room = (high / low) ** (0.3 if page.narrow else 0.16)
        _log_axis(ax, ax.xaxis, low, high * room, panel.unit, 4 if page.narrow or page.first else 6)
        ax.xaxis.grid(visible=True, color=GRID, linewidth=0.8)
    if panel.kind == "ratio":
        # A line at 1, but not through a name above its row.
        starts = [i - (0.1 if page.narrow else 0.5) for i in range(len(names))]
        ax.vlines([1.0] * len(names), starts, [i + 0.5 for i in range(len(names))], MUTED, linewidth=1)
    if panel.dots is not None:
        places = panel.dots["name"].map(at)
        sns.scatterplot(x=panel.dots["value"], y=places + 0.26, ax=ax, color=MUTED, s=12, linewidth=0, legend=False)
    colours = rows.get("colour", pd.Series(COLOURS[0], index=rows.index))
    if is_bar:
        ax.barh(rows["name"].map(at), rows["value"], 0.5, color=list(colours), linewidth=0)
    for row, colour in zip(records(rows), colours, strict=True):
        y, end = at[row["name"]], row["value"]
        band = row.get("band_low", math.nan), row.get("band_high", math.nan)
        if math.isfinite(sum(band)):
            ax.hlines(y, *band, color=colour, linewidth=9, alpha=0.25, zorder=1)
            end = max(end, band[1])
        if math.isfinite(row["low"] + row["high"]):
            _intervals(ax, [y], [row["low"]], [row["high"]], INK if is_bar else colour, across=True)
            end = max(end, row["high"])
        if panel.kind != "bar":
            _dot(ax, row["value"], y, colour, row.get("marker") or "o", bool(row.get("hollow", False)))
        page.mark(ax, row, row["value"], y, panel.measure, row["value"])
        text = row.get("text", _value(panel.unit, row["value"], row["low"], row["high"]))
        if text and math.isfinite(row["value"]):
            _beside(page, ax, end, y, text, colour, (9, 0))
    ax.set(xlabel="", ylabel="")
    ax.set_ylim(len(names) - 0.5, -0.5)


def _range(values: Iterable[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis: a little beyond the values, and a range of at least 30 %."""
    known = [float(value) for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = min(known), max(known)
    widen = max(1.3 / (high / low), 1.0) ** 0.5 * (high / low) ** 0.05
    return low / widen, high * widen


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Ticks of a logarithmic axis: at round numbers, not more than `most`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [(*(1 + i / 20 for i in range(20)), *(2 + i / 10 for i in range(80)))]
    choices += [(1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)]
    ticks: list[float] = []
    for steps in choices:
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) <= most:
            break
    return ticks[:: math.ceil(len(ticks) / most)] if ticks else []


def _log_axis(ax: Axes, axis: Axis, low: float, high: float, unit: str, most: int) -> None:
    name = "x" if axis is ax.xaxis else "y"
    ax.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    ticks = _ticks(low, high, most)
    if name == "x":
        # The label of a tick at the edge of the figure would be cut.
        px = ax.bbox.width / math.log(high / low)
        texts = {tick: f"{tick:,.10g}{unit}" for tick in ticks}
        ticks = [t for t in ticks if ax.bbox.x0 + px * math.log(t / low) > _LETTER * TEXT_PX * len(texts[t]) / 2]
    _set_ticks(axis, ticks, unit)


def _set_ticks(axis: Axis, ticks: Sequence[float], unit: str) -> None:
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}{unit}"))

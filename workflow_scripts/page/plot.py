"""From panels to files: lay out a figure in page width and in column width, write it as SVG and PNG, and embed it."""

import base64
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator, ScalarFormatter
from matplotlib.transforms import ScaledTranslation

from workflow_scripts.common.files import write_bytes
from workflow_scripts.page.style import DARK, GRID, INK, MUTED, PAPER, LineStyle, Mark

# Widths in inches, of a page and of a column. With an SVG's 72 points per inch they are 998 and 360 CSS pixels.
PAGE_WIDTH_IN, SINGLE_WIDTH_IN, COLUMN_WIDTH_IN = 10.4, 6.6, 3.75
PNG_DPI, PX_PER_PT = 200, 96 / 72
LINE_IN = 0.2
# Of how many marks of a figure the page says the cell.
MOST_MARKS = 100
# The marks of axes, as x, y, cell, measure, and value with the ends of its interval, if it has one.
_MARKS: WeakKeyDictionary[Axes, list[tuple[float, float, str, str, list[float]]]] = WeakKeyDictionary()
MAX_PANELS = 12
# A logarithmic axis whose ends differ by a smaller factor has closer ticks.
SHORT_AXIS = 7


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its heading, the function that draws into it, and its height, if it is not that of the plot."""

    title: str
    draw: Callable[[Axes], None]
    height_in: float | None = None


@dataclass(frozen=True)
class Plot:
    """A figure that can be drawn in any width.

    `alt` is the description for a reader who cannot see the figure. `sources` are the kinds of numbers in it (measured,
    predicted, published). Of its `panels`, the first `most` are drawn; `panels_are` says what they are. `repeats` is
    the number of timed passes behind a mark. `notes` say what was left out or combined to keep the figure legible.
    """

    title: str
    alt: str
    panels: Sequence[Panel]
    sources: Sequence[str] = ("measured",)
    panels_are: str = "panels"
    most: int = MAX_PANELS
    x_label: str = ""
    y_label: str = ""
    handles: Sequence[Artist] = ()
    repeats: str = ""
    notes: Sequence[str] = field(default_factory=tuple)
    panel_height_in: float = 2.7

    @property
    def drawn(self) -> Sequence[Panel]:
        return self.panels[: self.most]

    def describe(self) -> dict[str, Any]:
        """What the page says of the figure.

        >>> Plot("", "", [Panel(str(i), print) for i in range(14)], panels_are="workloads").describe()["notes"]
        ['12 of 14 workloads are drawn, those with the most cells; the tables hold all']
        """
        notes = list(self.notes)
        if len(self.panels) > self.most:
            few = f"{self.most} of {len(self.panels)} {self.panels_are} are drawn, those with the most cells"
            notes.insert(0, f"{few}; the tables hold all")
        texts = {of: getattr(self, of) for of in ("title", "alt", "repeats")}
        return texts | {"sources": list(self.sources), "notes": notes}


def use_style() -> None:
    import seaborn as sns  # takes as long as a small page, which draws nothing

    mpl.use("agg")
    sns.set_theme(style="whitegrid", context="paper")
    mpl.rc("font", family="DejaVu Sans", size=9)
    mpl.rc("axes", labelsize=9, titlesize=9, titleweight="bold", titlelocation="left", linewidth=0.7, facecolor="none")
    mpl.rc("axes", labelcolor=INK, edgecolor=MUTED)
    mpl.rc("axes.spines", top=False, right=False)
    mpl.rc(("xtick", "ytick"), labelsize=8.5, color=INK)
    mpl.rc("legend", fontsize=8.5, frameon=False)
    mpl.rc("text", color=INK)
    mpl.rc("grid", color=GRID, linewidth=0.6)
    mpl.rc("lines", linewidth=1.5, markersize=5.5)
    # Edges of bars would look like marks on a dark page.
    mpl.rc("patch", force_edgecolor=False)
    # Text stays text: the files are small, and can be searched and read aloud.
    mpl.rc("svg", fonttype="none", hashsalt="kvsweep")
    # Lines may be off by half a point, which nobody sees, and need fewer points.
    mpl.rc("path", simplify_threshold=0.5)
    mpl.rc("savefig", facecolor="none")


def key(label: str, color: str = INK, linestyle: LineStyle = "-", **style: Any) -> Artist:
    """A legend entry."""
    return Line2D([], [], label=label, color=color, linestyle=linestyle, **style)


def line_through(points: int, style: LineStyle = "-") -> dict[str, Any]:
    """How marks are joined: by a thin dotted line if there are two, because these are no curve."""
    return {"linestyle": style} if points > 2 else {"linestyle": ":", "linewidth": 1.2}


def mark_handles(named: Mapping[str, Mark]) -> list[Artist]:
    return [key(name, m.color, marker=m.marker) for name, m in named.items() if name]


def draw_repeats(ax: Axes, x: Any, y: Any, color: str) -> None:
    """Draw each repeat as a dot to the right of its cell's mark and interval, which would hide it."""
    place = ax.transData + ScaledTranslation(5 / 72, 0, ax.figure.dpi_scale_trans)
    ax.plot(x, y, linestyle="none", marker=".", markersize=4.5, markeredgewidth=0, color=color, transform=place)


def hide_y(ax: Axes) -> None:
    """Remove the y axis of marks whose labels say what they are."""
    ax.yaxis.set_visible(False)
    ax.spines["left"].set_visible(False)


def mark_cells(
    ax: Axes,
    x: Iterable[float],
    y: Iterable[float],
    cells: Iterable[str],
    measure: str,
    *,
    on: Literal["x", "y"] = "y",
    ends: Iterable[Sequence[float]] | None = None,
    factor: float = 1,
) -> None:
    """Say of which cells marks are, so that the page names and opens them, and which measure they have on an axis; a
    `factor` makes it one in the measure's unit, and `ends` are those of its 95 % intervals."""
    marks = _MARKS.setdefault(ax, [])
    for across, up, cell, between in zip(x, y, cells, repeat(()) if ends is None else ends, strict=False):
        told = [float(f"{of * factor:.9g}") for of in (up if on == "y" else across, *between) if math.isfinite(of)]
        marks.append((float(across), float(up), cell, measure, told))


def _marks_of(figure: Any) -> list[tuple[str, str, list[float], float, float]]:
    """Cells, measures and values of marks, with their places as shares of the figure's width and height from the top
    left."""
    size = figure.bbox
    found = []
    for ax in figure.get_axes():
        for x, y, *told in _MARKS.get(ax, ()):
            across, up = ax.transData.transform((x, y))
            if math.isfinite(across) and math.isfinite(up):
                found.append((*told, round(across / size.width, 4), round(1 - up / size.height, 4)))
    return found[:MOST_MARKS]


def set_ticks(axis: Axis, ticks: Sequence[float], form: str = "{:g}") -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: form.format(value)))


def plain_log_axis(ax: Axes, which: Literal["x", "y"], low: float, high: float, most: int) -> None:
    """Set a logarithmic axis with ticks at 1, 2 and 5 of each decade, more on a short axis, fewer if there are many."""
    ax.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    short = high / low < SHORT_AXIS
    for steps in ((1, 1.5, 2, 3, 4, 5, 7),) if short else ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) <= most:
            break
    axis = ax.xaxis if which == "x" else ax.yaxis
    set_ticks(axis, ticks, "{:,.10g}")
    log_ticks(axis, low, high)


def log_ticks(axis: Axis, low: float, high: float) -> None:
    """Ticks without labels at 1 to 9 of each decade, which get closer as on any logarithmic scale."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in range(1, 10)]
    axis.set_minor_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_tick_params(which="minor", length=3, width=0.6, color=MUTED, left=True, bottom=True)
    axis.set_minor_formatter(NullFormatter())


def log2_axis(ax: Axes, values: Iterable[float]) -> None:
    ticks = sorted(values)
    ax.set_xscale("log", base=2)
    set_ticks(ax.xaxis, ticks)
    if len(ticks) > 9:
        ax.tick_params(axis="x", labelsize=7)
    ax.set_xlim(ticks[0] / 1.2, ticks[-1] * 1.2)


def ratio_axis(ax: Axes, low: float, high: float) -> None:
    """Set a logarithmic y axis, on which equal distances are equal ratios, with a range of at least a factor of four.

    On a narrower axis a difference of one per cent would look like a result.
    """
    widen = max(4 / (high / low), 1.25) ** 0.5
    plain_log_axis(ax, "y", low / widen, high * widen, most=12)


def write_label(ax: Axes, y: float, text: str) -> None:
    """Write a label above its marks, at the left edge of the axes, so that a long name does not make them narrower."""
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
    label = ax.text(0.005, y, text, transform=ax.get_yaxis_transform(), va="center", fontsize=8, color=INK, bbox=box)
    label.set_in_layout(False)


def write_plot(plot: Plot, folder: Path, name: str) -> dict[str, Any]:
    """Write `{name}.svg` and `{name}.png` in page width, and `{name}.column.svg` in column width; return the marks of
    cells in both widths."""
    columns = {1: 1, 2: 2, 4: 2}.get(len(plot.drawn), 3)
    wide = _drawn(plot, columns, SINGLE_WIDTH_IN if columns == 1 else PAGE_WIDTH_IN)
    write_bytes(folder / f"{name}.svg", _svg(wide, plot))
    wide.set_facecolor("white")
    wide.set_dpi(PNG_DPI)
    FigureCanvasAgg(wide).print_png(png := io.BytesIO())
    write_bytes(folder / f"{name}.png", png.getvalue())
    narrow = _drawn(plot, 1, COLUMN_WIDTH_IN)
    write_bytes(folder / f"{name}.column.svg", _svg(narrow, plot))
    marks = {"wide": _marks_of(wide), "narrow": _marks_of(narrow)}
    plt.close(wide)
    plt.close(narrow)
    return marks


def _drawn(plot: Plot, columns: int, width_in: float) -> Any:
    panels = plot.drawn
    rows = math.ceil(len(panels) / columns)
    title = textwrap.fill(plot.title, int(width_in * 11.5))
    # A legend entry needs the width of its text plus six letters.
    letters = int(width_in * 13.9)
    labels = [textwrap.fill(str(handle.get_label()), letters - 6) for handle in plot.handles]
    legend_columns = max(1, letters // (max(map(len, labels), default=1) + 6))
    legend_lines = math.ceil(sum(label.count("\n") + 1 for label in labels) / legend_columns)
    head_in = LINE_IN * (title.count("\n") + 1 + legend_lines) + 0.12
    heights_in = [
        max(panel.height_in or plot.panel_height_in for panel in panels[row * columns : (row + 1) * columns])
        for row in range(rows)
    ]
    body_in = sum(heights_in)
    figure = plt.figure(figsize=(width_in, head_in + body_in), layout="constrained")
    head, body = figure.subfigures(2, 1, height_ratios=[head_in, body_in])
    head.text(0.06 / width_in, 1 - 0.05 / head_in, title, va="top", fontsize=10, fontweight="bold")
    if plot.handles:
        head.legend(
            handles=list(plot.handles), labels=labels, loc="lower left", ncols=legend_columns, borderaxespad=0.2
        )
    grid = body.subplots(rows, columns, squeeze=False, height_ratios=heights_in)
    for ax in grid.flat[len(panels) :]:
        ax.set_visible(False)
    for i, (panel, ax) in enumerate(zip(panels, grid.flat, strict=False)):
        panel.draw(ax)
        for axis in (ax.xaxis, ax.yaxis):
            if isinstance(axis.get_major_formatter(), ScalarFormatter):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        lines = [textwrap.fill(line, int((width_in / columns - 0.6) * 11.5)) for line in panel.title.split("\n")]
        ax.set_title("\n".join(lines), fontsize=9, y=1)  # not looked for, which takes a third of the layout
        if i % columns == 0:
            ax.set_ylabel(plot.y_label)
        if i + columns >= len(panels):
            ax.set_xlabel(plot.x_label)
    # The layout is computed once, not again for each file.
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    # Texts that would extend beyond their axes, into the next panel or off the page, shrink until they fit.
    for ax in figure.get_axes():
        for text in ax.texts:
            scale = ax.get_window_extent().width / max(text.get_window_extent().width, 1)
            if scale < 1:
                text.set_fontsize(float(text.get_fontsize()) * scale)
    return figure


def _svg(figure: Any, plot: Plot) -> bytes:
    out = io.StringIO()
    # `savefig` would draw the figure twice.
    figure.set_facecolor("none")
    FigureCanvasSVG(figure).print_svg(out, metadata={"Title": plot.title, "Date": None, "Creator": None})
    # For a reader without the layout's font: fonts that are equally wide or narrower.
    text = out.getvalue().replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, Arial, sans-serif")
    # A hundredth of a point is enough for a coordinate; the numbers between the tags are what the figure says.
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), re.sub(r"\n\s*", "\n", text))
    # Nobody needs a text again as a comment, or its rotation by 0 degrees.
    text = re.sub(r'<!--.*?-->\n| transform="rotate\(-0 [^"]*"', "", text, flags=re.DOTALL)
    # Each style is written once.
    styles = {style: f"s{i}" for i, style in enumerate(dict.fromkeys(re.findall(r' style="([^"]*)"', text)))}
    text = re.sub(r' style="([^"]*)"', lambda match: f' class="{styles[match[1]]}"', text)
    sheet = "".join(f".{name}{{{style}}}\n" for style, name in styles.items())
    return text.replace("</style>", f"{sheet}</style>").encode()


def data_address(svg: Path) -> str:
    """A drawn figure as one address for an `img`; its ink is light if the page is dark."""
    text = svg.read_text(encoding="utf-8")
    names = {color: f"c{i}" for i, color in enumerate(DARK)}
    for color, name in names.items():
        text = text.replace(color, f"var(--{name})")
    light = "".join(f"--{name}:{color};" for color, name in names.items())
    dark = "".join(f"--{names[color]}:{value};" for color, value in DARK.items())
    sheet = f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    text = re.sub(r"(<svg\b[^>]*>)", lambda match: match[1] + sheet, text, count=1)
    return "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()


def size_px(svg: Path) -> tuple[int, int]:
    """Width and height of a drawn figure in CSS pixels, rounded."""
    sizes = dict(re.findall(r'\b(width|height)="([\d.]+)pt"', svg.read_text(encoding="utf-8")[:2000]))
    return round(float(sizes["width"]) * PX_PER_PT), round(float(sizes["height"]) * PX_PER_PT)

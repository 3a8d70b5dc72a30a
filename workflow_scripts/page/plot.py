"""From plots to files: SVG for the page, a phone or a column, and the first screen, and PNG; and SVG into the page."""

import io
import re
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG

from workflow_scripts.common.files import write_bytes
from workflow_scripts.page.kit import SIZES, Plot, drawn
from workflow_scripts.page.style import NAMED_COLOURS

PNG_DPI, PX_PER_PT = 200, 96 / 72
# Of how many marks of a figure the page says the cell.
MOST_MARKS = 100
_ROOT = 'font-family="DejaVu Sans, Verdana, Arial, sans-serif" stroke-linejoin="round" stroke-linecap="butt"'


def write_plot(plot: Plot, folder: Path, name: str) -> dict[str, Any]:
    """Write `{name}{kind}.svg` at each of the `SIZES`, and `{name}.png`; return the marks of cells at each size."""
    marks = {}
    for kind in SIZES:
        figure = drawn(plot, kind)
        marks[kind] = list(plot.marks)[:MOST_MARKS]
        out = io.StringIO()
        figure.set_facecolor("none")
        FigureCanvasSVG(figure).print_svg(out, metadata={"Title": plot.title, "Date": None, "Creator": None})
        write_bytes(folder / f"{name}{kind}.svg", _small(out.getvalue(), f"{name}{kind}").encode())
        if not kind:
            figure.set_facecolor("white")
            figure.set_dpi(PNG_DPI)
            FigureCanvasAgg(figure).print_png(png := io.BytesIO())
            write_bytes(folder / f"{name}.png", png.getvalue())
    return marks


def _small(text: str, name: str) -> str:
    """An SVG with attributes instead of styles, which the page's policy would refuse, and without what nobody needs."""
    text = re.sub(r"<!--.*?-->\n?|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    # A hundredth of a point is enough for a coordinate; the numbers between the tags are what the figure says.
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), re.sub(r"\n\s*", "\n", text))
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r' style="([^"]*)"', lambda match: _attributes(match[1]), text)
    # Figures of one page have no id in common.
    own = re.sub(r"\W", "-", name)
    text = re.sub(r'(id="|href="#|url\(#)(\w)', rf"\1{own}-\2", text)
    return re.sub(r"<svg\b", f"<svg {_ROOT}", text, count=1)


def _attributes(style: str) -> str:
    """A style as attributes.

    >>> _attributes("font: 700 10.5px 'DejaVu Sans'; text-anchor: middle; fill: #17202a")
    ' font-weight="700" font-size="10.5px" text-anchor="middle" fill="#17202a"'
    """
    texts = []
    for part in style.split(";"):
        name, _, value = (text.strip() for text in part.partition(":"))
        if name == "font":
            weight, size = re.findall(r"(?:(\w+) )?([\d.]+px)", value)[0]
            texts += [f'font-weight="{weight}"'] * bool(weight) + [f'font-size="{size}"']
        elif name:
            texts.append(f'{name}="{value}"')
    return "".join(f" {text}" for text in texts)


def inline(svg: Path) -> str:
    """A drawn figure as an element of the page, whose colours are the page's, light or dark."""
    text = svg.read_text(encoding="utf-8")
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<title>.*?</title>\n?", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r' (?:xmlns(?::xlink)?|version)="[^"]*"| font-family="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    for colour, (name, _) in NAMED_COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return text


def size_px(svg: Path) -> tuple[int, int]:
    """Width and height of a drawn figure in CSS pixels, rounded."""
    sizes = dict(re.findall(r'\b(width|height)="([\d.]+)pt"', svg.read_text(encoding="utf-8")[:2000]))
    return round(float(sizes["width"]) * PX_PER_PT), round(float(sizes["height"]) * PX_PER_PT)

"""Drawn figures as data addresses that follow the reader's light or dark page."""

import base64
import re
from pathlib import Path

from workflow_scripts.present.style import GRID, INK, MUTED, PAPER

# Colour in the drawing -> its colour on a dark page.
_DARK = {INK: "#e6edf3", MUTED: "#9aa4af", GRID: "#343b44", PAPER: "#14181d"}
PX_PER_PT = 96 / 72


def data_address(svg: Path) -> str:
    """The figure as one address for an `img`; its ink is light if the page is dark."""
    text = svg.read_text(encoding="utf-8")
    names = {color: f"c{i}" for i, color in enumerate(_DARK)}
    for color, name in names.items():
        text = text.replace(color, f"var(--{name})")
    light = "".join(f"--{name}:{color};" for color, name in names.items())
    dark = "".join(f"--{names[color]}:{value};" for color, value in _DARK.items())
    sheet = f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    text = re.sub(r"(<svg\b[^>]*>)", lambda match: match[1] + sheet, text, count=1)
    return "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()


def size_px(svg: Path) -> tuple[int, int]:
    """Width and height of the figure in CSS pixels, rounded."""
    head = svg.read_text(encoding="utf-8")[:2000]
    width, height = (re.search(rf'\b{side}="([\d.]+)pt"', head) for side in ("width", "height"))
    if width is None or height is None:
        raise ValueError(f"{svg}: an SVG without width and height in points")
    return round(float(width[1]) * PX_PER_PT), round(float(height[1]) * PX_PER_PT)

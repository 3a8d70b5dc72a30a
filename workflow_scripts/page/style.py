"""Colours and marks of all figures: a colour belongs to one device, and everything else differs by fill or place."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle

# Ink, paper and devices, on a light and on a dark page. As text, each has a contrast of at least 4.5:1, and readers
# with common colour-vision deficiencies can tell the devices apart.
INK, MUTED, GRID, PAPER = "#17202a", "#5b6673", "#e3e7ec", "#fefefe"
COLOURS = ("#0b62c4", "#b84a00", "#3d0f2d", "#8205ff", "#6b0000", "#922480", "#d60047", "#00005b")
_DARK_COLOURS = ("#6cb2ff", "#ff9a57", "#fefe0a", "#7f66fe", "#f9007c", "#e69dc1", "#28fe93", "#c1fed6")
# Colour of a light page -> its name in the page's styles, and its colour on a dark page.
NAMED_COLOURS: Mapping[str, tuple[str, str]] = {
    INK: ("ink", "#e8edf2"),
    MUTED: ("muted", "#9aa6b2"),
    GRID: ("line", "#2a323b"),
    PAPER: ("paper", "#0f1317"),
    **{colour: (f"d{i}", _DARK_COLOURS[i]) for i, colour in enumerate(COLOURS)},
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")


@dataclass(frozen=True)
class Look:
    """How a series is drawn: a line with `dashes` was not measured and has no marks."""

    colour: str = INK
    marker: str = "o"
    dashes: tuple[float, float] | None = None


# Predicted lines are broken, published ones dotted.
PREDICTED_LINE, PUBLISHED_LINE = Look(MUTED, dashes=(4, 3)), Look(MUTED, dashes=(1, 2))


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, in the given order; with more names than colours, colour and mark together still differ.

    >>> looks(["h200", "l40s"])["l40s"].marker
    's'
    """
    pairs = zip(cycle(COLOURS), cycle(MARKERS), strict=False)
    return {name: Look(*pair) for name, pair in zip(dict.fromkeys(names), pairs, strict=False)}


def style_sheet() -> str:
    """The colours as variables of the page, light and dark."""

    def block(place: int) -> str:
        pairs = {name: (light, dark) for light, (name, dark) in NAMED_COLOURS.items()}
        return ":root{" + "".join(f"--{name}:{pair[place]};" for name, pair in pairs.items()) + "}"

    return f"{block(0)}\n@media screen and (prefers-color-scheme:dark){{{block(1)}}}\n"

"""Colours of the page, by formula: contrast as WCAG 2 defines it, and distances with colour-vision deficiencies."""

import itertools
import re

import numpy as np
import numpy.typing as npt
import pytest

from workflow_scripts.page.report import REPORT
from workflow_scripts.page.style import COLOURS, INK, MUTED, NAMED, PAPER

# Machado, Oliveira and Fernandes (2009), whole deficiency; for linear RGB.
DEFICIENCIES = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# sRGB to XYZ, and the white of D65.
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
WHITE = [0.95047, 1.0, 1.08883]


def linear(colour: str) -> npt.NDArray[np.float64]:
    """Linear RGB of a colour such as #0173b2."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours: 1 for the same, 21 for black on white."""
    light, dark = sorted((float(np.array(TO_XYZ[1]) @ linear(c)) for c in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(colour: str, deficiency: str) -> npt.NDArray[np.float64]:
    """CIELAB of a colour as it is seen."""
    seen = np.clip(np.array(DEFICIENCIES[deficiency]) @ linear(colour), 0, 1)
    xyz = np.array(TO_XYZ) @ seen / np.array(WHITE)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def nearest(colours: list[str], deficiency: str) -> float:
    """The least distance (CIE 1976) between two of the colours; about 2.3 can just be noticed."""
    pairs = itertools.combinations([lab(colour, deficiency) for colour in colours], 2)
    return min(float(np.linalg.norm(one - other)) for one, other in pairs)


@pytest.mark.parametrize("is_dark", [False, True])
def test_devices_and_the_text_of_figures_stand_out_from_the_page(is_dark):
    """Labels have the colours of devices. The text of the page itself is checked by axe-core."""
    seen = {colour: dark if is_dark else colour for colour, (_, dark) in NAMED.items()}
    assert [of for of in (*COLOURS, INK, MUTED) if contrast(seen[of], seen[PAPER]) < 4.5] == []


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_differ_with_every_deficiency(deficiency):
    """What differs by colour differs by shape, height or sign as well, but colours alone suffice."""
    of_views = [
        re.findall(r"#\w{6}", re.findall(rf"const {name} = \{{([^}}]*)\}}", (REPORT / "page" / module).read_text())[0])
        for module, name in (("timeline.js", "PHASES"), ("blocks.js", "COLOURS"))
    ]
    dark = [NAMED[colour][1] for colour in COLOURS]
    for colours in (list(COLOURS), dark, *of_views):
        assert nearest(colours, deficiency) > 15

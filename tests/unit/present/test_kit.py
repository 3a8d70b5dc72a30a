"""The kinds of plots: what they draw of rows, at every size, and what they say to who cannot see them."""

import re

import pandas as pd
import pytest

from workflow_scripts.page.kit import (
    MOST_DRAWN,
    MOST_SERIES,
    SIZES,
    bar,
    beside,
    drawn,
    line,
    ratio,
    strip,
    use_style,
)
from workflow_scripts.page.plot import inline, size_px, write_plot
from workflow_scripts.page.style import PREDICTED_LINE, Look, looks

NONE = float("nan")


@pytest.fixture(autouse=True)
def _style():
    use_style()


def ladder(devices: int) -> pd.DataFrame:
    """Rates of devices at three numbers of sequences, each device twice as fast as the one before."""
    rows = [
        {"series": f"device {i}", "x": x, "y": 100.0 * 2**i * x, "low": 90.0 * 2**i * x, "high": 110.0 * 2**i * x}
        for i in range(devices)
        for x in (1, 4, 16)
    ]
    return pd.DataFrame(rows).assign(cell_id="gpu/vllm/m/w/k")


def named(values: list[float], **columns: object) -> pd.DataFrame:
    rows = pd.DataFrame({"name": [f"row {i}" for i in range(len(values))], "value": values})
    return rows.assign(low=rows["value"] / 1.1, high=rows["value"] * 1.1, **columns)


PLOTS = {
    "line": line(ladder(2), looks(["device 0", "device 1"]), "Rates", "tokens/s", "sequences", measure="y"),
    "ratio": ratio(named([0.5, 2.0], hollow=[True, False]), "Ratios", "rate"),
    "bar": bar(named([5.0, 16.0]), "Shares", "empty", unit=" %"),
    "strip": strip(named([5.0, 16.0]), named([5.1, 15.0, 16.5]).head(2), "Repeats", "tokens/s"),
    "beside": beside("Both", bar(named([5.0, 16.0]), "a", "a"), ratio(named([1.2, 0.9]), "b", "b")),
}


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_has_its_labels_at_every_size_and_no_legend(name, tmp_path):
    plot = PLOTS[name]
    write_plot(plot, tmp_path, name)
    for kind, (width, height) in SIZES.items():
        text = inline(tmp_path / f"{name}{kind}.svg")
        size = size_px(tmp_path / f"{name}{kind}.svg")
        assert size == plot.size_px(kind)
        assert (size[0], size[1] >= height) == (width, True) or kind != ".first"
        sizes = [float(of) for of in re.findall(r'font-size="([\d.]+)px"', text)]
        # An SVG has 72 points per inch, a page 96 pixels.
        assert min(sizes) * 96 / 72 >= 12
        labels = re.findall(r"<text[^>]*>([^<]*)</text>", text)
        assert any("device 1" in of or "row 1" in of for of in labels), labels
        assert "legend" not in text
        assert not re.search(r"#(0b62c4|17202a|fefefe)", text)
    assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_more_series_than_four_are_several_panels_and_more_rows_than_fit_are_said_to_be_left_out():
    many = line(ladder(MOST_SERIES + 2), looks(f"device {i}" for i in range(6)), "Rates", "tokens/s", "sequences")
    assert len(drawn(many, "").get_axes()) == 2
    assert len(drawn(many, ".first").get_axes()) == 1
    cut = bar(named([1.0 + i for i in range(MOST_DRAWN + 3)]), "Shares", "share")
    assert cut.note.startswith(f"{MOST_DRAWN} of {MOST_DRAWN + 3} are drawn")
    assert bar(named([1.0]), "Shares", "share").note == ""


def test_a_mark_says_its_cell_and_the_ends_of_its_interval():
    plot = PLOTS["line"]
    drawn(plot, "")
    assert len(plot.marks) == 6
    cell, measure, told, x, y = plot.marks[0]
    assert (cell, measure, told) == ("gpu/vllm/m/w/k", "y", [100, 90, 110])
    assert 0 < x < y < 1
    drawn(plot, ".first")
    assert plot.marks == []


def texts_of(plot, kind: str) -> list[str]:
    figure = drawn(plot, kind)
    return [text.get_text() for of in (figure, *figure.get_axes()) for text in of.texts]


def test_labels_tell_hollow_lines_from_solid_ones_and_caps_show_short_intervals():
    rows = ladder(2).assign(hollow=lambda of: of["series"].eq("device 1"), low=lambda of: of["y"] / 1.001)
    plot = line(rows, looks(["device 0", "device 1"]), "Rates", "tokens/s", "sequences")
    assert {text.split()[0] for text in texts_of(plot, "") if "device" in text} == {"●", "○"}
    (ax,) = drawn(plot, "").get_axes()
    caps = [of for of in ax.lines if of.get_marker() == "_"]
    assert {len(of.get_ydata()) for of in caps} == {3}
    assert min(cap.get_markersize() for cap in caps) > max(of.get_markersize() for of in ax.lines if of not in caps)


def test_a_band_is_behind_its_interval_and_a_bound_alone_is_not_drawn():
    rows = named([1.0, 1.3]).assign(band_low=[0.8, NONE], band_high=[1.2, 40.0])
    (ax,) = drawn(ratio(rows, "Errors", "predicted over measured"), "").get_axes()
    band = min(ax.collections, key=lambda of: of.get_zorder())
    assert [segment[:, 0].tolist() for segment in band.get_segments()] == [[0.8, 1.2]]
    assert ax.get_xlim()[1] < 3


def test_what_is_not_measured_is_a_broken_line_without_marks():
    rows = ladder(1).assign(series="predicted", low=NONE, high=NONE)
    both = pd.concat([ladder(1), rows])
    plot = line(both, {"device 0": Look(), "predicted": PREDICTED_LINE}, "Rates", "tokens/s", "sequences")
    (ax,) = drawn(plot, "").get_axes()
    assert [of.get_linestyle() for of in ax.lines].count("--") == 1
    assert len([of for of in ax.lines if of.get_marker() == "o"]) == 3

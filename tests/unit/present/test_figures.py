import base64
import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tests.unit.present.conftest import write_cells
from tests.unit.present.synthetic import DRAWN, arguments
from workflow_scripts.common.columns import column
from workflow_scripts.page.plot import (
    COLUMN_WIDTH_IN,
    MAX_PANELS,
    PAGE_WIDTH_IN,
    Panel,
    Plot,
    _drawn,
    data_address,
    size_px,
    use_style,
    write_label,
    write_plot,
)
from workflow_scripts.page.style import DARK, INK
from workflow_scripts.present.figures import FIGURES, main
from workflow_scripts.questions.memory.kv_block_size import _draw_waste
from workflow_scripts.tables.measurements import read_measurements, write_measurements
from workflow_scripts.tables.results import MissingError, Tables

SVG = "{http://www.w3.org/2000/svg}"


def manifest(folder: Path) -> dict[str, dict[str, object]]:
    return json.loads((folder / "figures.json").read_text())


def words(svg: Path) -> list[str]:
    return ["".join(text.itertext()) for text in ET.parse(svg).iter(f"{SVG}text")]


def test_coordinates_are_rounded_but_not_what_a_figure_says(tmp_path):
    use_style()
    write_plot(Plot("A title", "", [Panel("0.0796 GiB", print)]), tmp_path, "figure")
    assert {"A title", "0.0796 GiB"} <= set(words(tmp_path / "figure.svg"))
    coordinates = re.findall(r' [xy]="-?\d+\.(\d+)"', (tmp_path / "figure.svg").read_text())
    assert max(map(len, coordinates)) == 2


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_is_drawn_in_both_widths_and_described(results, name):
    folder = results.root / "figures"
    described = manifest(folder)[name]
    assert "missing" not in described, described
    assert described["alt"]
    assert set(described["sources"]) <= {"measured", "predicted", "published"}
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    wide, narrow = (ET.parse(folder / f"{name}{width}.svg").getroot() for width in ("", ".column"))
    assert float(narrow.attrib["width"].removesuffix("pt")) < float(wide.attrib["width"].removesuffix("pt"))
    assert float(wide.attrib["width"].removesuffix("pt")) <= 72 * PAGE_WIDTH_IN
    title = "".join(words(folder / f"{name}.svg")).replace(" ", "")
    assert str(described["title"]).replace(" ", "") in title


def test_axes_and_legends_say_what_is_drawn_its_unit_and_its_source(results):
    labels = {"max-num-seqs (sequences)", column("output_tokens_per_s").axis, "ceiling, data sheet (predicted)"}
    assert labels <= set(words(results.root / "figures" / "output_by_max_num_seqs.svg"))


def test_lengths_are_those_of_the_requests_that_were_run(results, axes_of):
    plot = FIGURES["workload_lengths"].plot(results.tables)
    assert [panel.title for panel in plot.panels] == ["chat", "system-prompt"]
    assert "chat: 335 prompt and 32 output tokens in 64 requests" in plot.alt
    ax = axes_of(plot)
    prompt, output = ax.lines
    assert sorted(set(prompt.get_xdata())) == [20 + 10 * i for i in range(64)]
    assert set(output.get_xdata()) == {32}
    assert max(prompt.get_ydata()) == max(output.get_ydata()) == 1


def test_arrivals_are_drawn_of_cells_alone_where_requests_arrive_over_time(results, tmp_path, axes_of):
    tables = results.tables
    plot = FIGURES["workload_arrivals"].plot(tables)
    assert 0 < len(plot.panels) <= 6
    assert all(cell.startswith("l40s/") for cell in re.findall(r"\S+/vllm/\S+", plot.alt))
    ax = axes_of(plot)
    assert list(ax.lines[0].get_xdata()) == pytest.approx([0.1 * i for i in range(64)])
    for path in (results.root / "parsed").glob("*/requests.parquet"):
        copy = tmp_path / path.parent.name / path.name
        copy.parent.mkdir()
        pd.read_parquet(path).assign(queued_s=0.01, last_token_s=0.1).to_parquet(copy)
    with pytest.raises(MissingError, match="at once"):
        FIGURES["workload_arrivals"].plot(Tables(results.root / "tables", tmp_path))


def test_a_text_has_a_panel_for_each_tokenizer_that_counts_it_differently(results, tmp_path, cells):
    cells["model"] = cells["model"].mask(cells["gpu"] == "l40s", "other-model")
    write_measurements(cells, tmp_path)
    parsed = shutil.copytree(results.root / "parsed", tmp_path / "parsed")
    requests = pd.read_parquet(parsed / "l40s/requests.parquet")
    requests["prompt_tokens"] += requests["cell_id"].str.contains("/chat/").astype(int)
    requests.to_parquet(parsed / "l40s/requests.parquet")
    titles = [panel.title for panel in FIGURES["workload_lengths"].plot(Tables(tmp_path, parsed)).panels]
    assert sorted(titles) == ["chat · llama-3.1-8b-instruct", "chat · other-model", "system-prompt"]


def test_cells_with_other_requests_are_drawn_while_full_beside_whole_repeats(results, axes_of, plot_of):
    whole, cells = "over whole repeats, with filling and drain", read_measurements(results.root / "tables")
    steady = cells.assign(steady_output_tokens_per_s=2 * cells["output_tokens_per_s"])
    for requests, unequal in ((cells["num_requests"], False), (2 * cells["knob_max_num_seqs"], True)):
        changed = steady.assign(num_requests=requests)
        plot = plot_of("throughput", changed)
        assert [panel.title.endswith("while the engine is full") for panel in plot.panels] == [unequal]
        with pytest.raises(MissingError, match="same lines"):  # nothing is published here
            plot_of("output_by_max_num_seqs", changed)
        assert (whole in [handle.get_label() for handle in plot.handles]) == unequal
        ax = axes_of(plot)
        assert any(line.get_markerfacecolor() == "none" for line in ax.lines) == unequal


def test_a_mark_has_its_interval_and_its_repeats_on_an_axis_whose_ticks_show_its_scale(results, axes_of):
    tables = results.tables
    ax = axes_of(FIGURES["throughput"].plot(tables))
    ends = {tuple(path.vertices[:, 1]) for lines in ax.collections for path in lines.get_paths() if len(path) == 2}
    known = tables.intervals_of("output_tokens_per_s")[["low", "high"]].itertuples(index=False, name=None)
    assert ends
    assert ends <= set(known)
    dots = np.concatenate([line.get_ydata() for line in ax.lines if line.get_marker() == "."])
    assert set(dots) <= set(tables.measured["output_tokens_per_s"])
    apart = np.diff(np.log(ax.yaxis.get_minorticklocs()[:10]))
    assert len({round(gap, 6) for gap in apart}) > 5


def test_two_figures_of_the_same_cells_have_their_own_values(results, axes_of):
    tables = Tables(results.root / "tables")
    for name, measure in (("throughput", "output_tokens_per_s"), ("energy", "energy_j_per_output_token")):
        line = next(line for line in axes_of(FIGURES[name].plot(tables)).lines if line.get_linestyle() == "-")
        assert set(line.get_ydata()) <= set(tables.value(measure))


def test_an_invalid_cell_is_shown_as_such_and_is_in_no_line(results, axes_of):
    """The cell of the A100 with blocks of 32 tokens and one sequence is invalid."""
    plot = FIGURES["output_by_block_size"].plot(results.tables)
    assert "invalid, not compared" in [handle.get_label() for handle in plot.handles]
    ax = axes_of(plot, [panel.title for panel in plot.panels].index("a100-sxm-80gb\nover whole repeats"))
    lines = {line.get_marker(): [int(x) for x in line.get_xdata()] for line in ax.lines}
    assert lines["$?$"] == [32]
    assert lines["o"] == [16, 64]


def test_what_cannot_be_drawn_is_not_drawn_and_the_reason_is_told(results, tmp_path, cells):
    def draw(cells: pd.DataFrame) -> dict[str, dict[str, object]]:
        """Draw what can be drawn of these cells alone."""
        (tmp_path / "tables").mkdir(exist_ok=True)
        write_cells(cells, tmp_path / "tables")
        assert main(arguments(study=results.study, tables=tmp_path / "tables", out=tmp_path / "out")) == 0
        return manifest(tmp_path / "out")

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "device_ratios.svg").write_text("of an earlier run")
    told = draw(cells[cells["knob_max_num_seqs"] == 16])
    for name, lacks in (
        ("output_by_max_num_seqs", "differ only in max-num-seqs"),
        ("device_ratios", "devices.parquet"),
    ):
        assert lacks in str(told[name]["missing"])
    drawn = {name for name, figure in told.items() if "missing" not in figure}
    assert drawn == {
        "throughput",
        "speed_per_user",
        "latency",
        "energy",
        "output_by_block_size",
        "spread",
        "grid_outcomes",
    }
    assert {path.name.split(".")[0] for path in (tmp_path / "out").glob("*.svg")} == drawn
    assert {path.stem for path in (tmp_path / "out").glob("*.rst")} == drawn
    # What was measured under another definition is in no comparison.
    told = draw(cells.assign(comparable=False))
    assert told["output_by_max_num_seqs"] == {"missing": "no cell has been measured yet"}


def test_drawing_twice_gives_the_same_bytes(results, tmp_path):
    name = "device_ratios"
    write_plot(FIGURES[name].plot(results.tables), tmp_path, name)
    for path in sorted(tmp_path.iterdir()):
        assert path.read_bytes() == (results.root / "figures" / path.name).read_bytes(), path.name


def test_a_large_study_draws_some_panels_and_counts_its_outcomes(cells, plot_of):
    def many(of: pd.DataFrame, times: int, **columns: list[object]) -> pd.DataFrame:
        parts = ({name: values[i] for name, values in columns.items()} for i in range(times))
        return pd.concat([of.assign(cell_id=of["cell_id"] + str(i), **part) for i, part in enumerate(parts)])

    vllm = cells[cells["engine"] == "vllm"]
    workloads = [f"w{i}" for i in range(MAX_PANELS + 3)]
    plot = plot_of("output_by_max_num_seqs", many(vllm, MAX_PANELS + 3, workload=workloads))
    assert len(plot.drawn) == MAX_PANELS
    # The first of the panels is in the figure of throughput.
    assert f"{MAX_PANELS} of {MAX_PANELS + 2} panels are drawn" in plot.describe()["notes"][0]
    plot = plot_of("grid_outcomes", many(cells, 20))
    assert "bars count them" in plot.notes[0]
    assert "300 infeasible" in plot.alt
    # Settings of one device are told apart by colour.
    plain = vllm["knob_block_size"].eq(16) & vllm["knob_enable_prefix_caching"].isna() & vllm["gpu"].eq("h200")
    plot = plot_of("throughput", many(vllm[plain], 4, knob_seed=list(range(4))))
    lines = [handle for handle in plot.handles if "seed" in str(handle.get_label())]
    assert len({handle.get_color() for handle in lines}) == len(lines) == 4


def test_cells_that_waste_the_same_are_drawn_once():
    layouts = [("paged", 16, 2.0), ("paged", 32, 4.0), ("contiguous_max_model_len", np.nan, 90.0)]
    rows = pd.DataFrame(
        [(f"cell{n}", *layout) for n in range(500) for layout in layouts],
        columns=["cell_id", "layout", "block_size", "waste_pct"],
    )
    ax = Figure().subplots()
    _draw_waste(ax, rows)
    marks, level = ax.lines
    assert [*zip(*marks.get_data(), strict=True)] == [(16, 2), (32, 4)]
    assert level.get_ydata() == [90, 90]


@pytest.mark.filterwarnings("error")
def test_a_long_legend_is_broken_into_lines_and_stays_on_the_page():
    use_style()
    long = [Line2D([], [], label=f"setting {'with a long name ' * 6}{i}") for i in range(3)]
    figure = _drawn(Plot("t", "a", [Panel("p", lambda ax: None)], handles=long), 1, COLUMN_WIDTH_IN)
    head = figure.subfigs[0]
    (legend,) = head.legends
    drawn = legend.get_window_extent()
    assert drawn.x1 <= figure.bbox.x1
    assert head.bbox.y0 <= drawn.y0
    assert drawn.y1 < head.texts[0].get_window_extent().y0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("panels", [1, 3])
def test_a_long_name_takes_no_room_from_the_marks_and_stays_within_its_panel(panels):
    use_style()

    def draw(ax: Axes) -> None:
        ax.plot([1, 2], [1, 1])
        write_label(ax, 1, "block_size=32, max_num_seqs=8, max_model_len=512, enforce_eager=true, cpu_kv_cache_gib=1")

    figure = _drawn(Plot("t", "a", [Panel("p", draw)] * panels), panels, PAGE_WIDTH_IN)
    for ax in figure.get_axes():
        (label,) = ax.texts
        width = ax.get_window_extent().width
        assert width > 0.8 * figure.get_window_extent().width / panels
        # Letters take whole pixels, so they do not shrink evenly.
        assert label.get_window_extent().width <= 1.05 * width


def test_ink_turns_with_the_page_and_other_colours_do_not(tmp_path):
    drawn = tmp_path / "a.svg"
    paths = f'<path style="fill: {INK}"/><path style="fill: #0173b2"/>'
    drawn.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36.4pt">{paths}</svg>')
    assert size_px(drawn) == (96, 49)
    kind, data = data_address(drawn).split(",")
    assert kind == "data:image/svg+xml;base64"
    text = base64.b64decode(data).decode()
    ET.fromstring(text)
    sheet, paths = text.split("</style>")
    assert [f"--c0:{ink};" in part for part, ink in zip(sheet.split("@media"), (INK, DARK[INK]), strict=True)] == [
        True
    ] * 2
    assert "fill: var(--c0)" in paths
    assert "fill: #0173b2" in paths


def test_the_pareto_line_has_the_cells_that_none_beats_in_rate_and_speed(results, axes_of):
    tables = Tables(results.root / "tables")
    thick, *lines = axes_of(FIGURES["speed_per_user"].plot(tables)).lines
    points = [point for line in lines for point in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    unbeaten = {p for p in points if not any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in points)}
    assert set(zip(thick.get_xdata(), thick.get_ydata(), strict=True)) == unbeaten
    rates, times = tables.value("output_tokens_per_s"), tables.value("tpot_s_p50")
    assert {(round(x, 6), round(y, 6)) for x, y in points} <= {
        (round(1 / times[cell], 6), round(rates[cell], 6)) for cell in rates.index
    }

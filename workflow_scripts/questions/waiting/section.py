"""Where GPUs wait for their hosts."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.columns import heading
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.plot import LINE_IN, Panel, Plot, hide_y, key, mark_cells, write_label
from workflow_scripts.page.report import CELL, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import some
from workflow_scripts.page.series import repeats_of, told_apart
from workflow_scripts.page.style import COLOURS, INK
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import labels
from workflow_scripts.study.study import Study
from workflow_scripts.tables.parsed_facts import REPEAT
from workflow_scripts.tables.results import RATE, Tables, records, require

# A cell whose GPU waits for a larger share of the time is named.
MUCH_WAITING = 0.1
# A smaller predicted gain is not worth a sentence.
MUCH_GAIN = 0.02
# Column of the predictions, a rate -> what would give it.
REMEDIES: Mapping[str, str] = {
    "captured_output_tokens_per_s": " Steps of more than {graph_tokens:.0f} tokens are launched kernel by kernel; the "
    "step model predicts {gain} more output tokens/s with graphs for all steps (a larger max_cudagraph_capture_size, "
    "whose graphs take memory).",
    "twice_batched_output_tokens_per_s": " Prompts wait for the next step; with twice the max_num_batched_tokens the "
    "step model predicts {gain} more output tokens/s (its memory is not counted).",
}
# Cells of a panel, those that wait most.
MOST_CELLS = 6
WAITS: Mapping[str, tuple[str, str]] = {
    "launch": ("launches of steps with prompts", COLOURS[1]),
    "arrival": ("first steps, arrival of requests", COLOURS[2]),
    "other": ("other", COLOURS[4]),
}
BY_DRIVER: Mapping[str, Any] = {"color": INK, "marker": "|", "markeredgewidth": 1.6, "linestyle": "none"}
# Two independent measures of waiting: of the engine's steps, and of the driver.
MEASURES = ["waiting_share", "driver_idle_share"]


def waiting_by_repeat(tables: Tables) -> Plot:
    waiting = sampled(tables.need("waiting"))
    rows = waiting.merge(tables.measured[[*REPEAT, *tables.knobs]], on=REPEAT).sort_values(REPEAT)
    require(rows, "no GPU was sampled while it ran")
    most = shares_by_cell(rows).groupby("gpu").head(MOST_CELLS)[["gpu", "cell_id", "waits"]]
    each = rows.drop_duplicates("cell_id")
    cells = most[["cell_id"]].merge(each.assign(settings=labels(each, tables.knobs)), on="cell_id")
    named = cells[[*told_apart(cells, COORDINATES[1:], []), "settings"]]
    titles = dict(zip(cells["cell_id"], named.agg(", ".join, axis=1), strict=True))
    of_drawn = rows.loc[rows["cell_id"].isin(most["cell_id"]), ["waiting_share", "driver_idle_share"]]
    draw = partial(_draw, most_pct=105 * float(of_drawn.max().max()))
    panels, lines = [], 0.0
    for gpu in [device for device in tables.devices if device in set(cells["gpu"])]:
        shown = [(titles[cell], rows[rows["cell_id"] == cell]) for cell in cells.loc[cells["gpu"] == gpu, "cell_id"]]
        panels.append(Panel(gpu, partial(draw, cells=shown)))
        lines = max(lines, sum(1.5 + len(repeats) / 2 for _, repeats in shown))
    return Plot(
        title="What GPUs wait for in each repeat",
        alt=" ".join(
            f"{gpu}, {titles[cell]}: waits for {_pct(share)} of the time."
            for gpu, cell, share in most.itertuples(index=False, name=None)
        ),
        panels=panels,
        x_label=heading("waiting_share", "Waiting, share of the time"),
        handles=[
            *(Patch(color=color, label=words) for words, color in WAITS.values()),
            key("no kernel, by the driver", **BY_DRIVER),
        ],
        repeats=repeats_of(rows),
        notes=[
            "of the cells that are long enough to be sampled, those that wait most on each device; the table has all"
        ],
        panel_height_in=lines * LINE_IN + 0.7,
    )


def _draw(ax: Axes, cells: Sequence[tuple[str, pd.DataFrame]], most_pct: float) -> None:
    """Draw a bar of half a line for each repeat, below the name of its cell; the axis ends at `most_pct`."""
    top = 0.0
    for name, rows in cells:
        write_label(ax, top + 0.5, name)
        y = top + 1.25 + 0.5 * np.arange(len(rows))
        left = np.zeros(len(rows))
        for part, (_, color) in WAITS.items():
            width = 100 * (rows[f"{part}_s"] / rows["wall_s"]).clip(lower=0).to_numpy(dtype=float)
            ax.barh(y, width, left=left, height=0.4, color=color)
            left += width
        by_driver = 100 * rows["driver_idle_share"].to_numpy(dtype=float)
        ax.plot(by_driver, y, **BY_DRIVER)
        mark_cells(ax, by_driver, y, rows["cell_id"], "driver_idle_share", on="x")
        top = y[-1] + 0.5
    ax.set_ylim(top, 0)
    ax.set_xlim(0, most_pct)
    hide_y(ax)


def sampled(waiting: pd.DataFrame) -> pd.DataFrame:
    """The repeats that were long enough to be sampled."""
    return waiting.dropna(subset="driver_idle_share")


def shares_by_cell(waiting: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, the one that waits most first: means over repeats, and of both measures of waiting the lowest
    and the highest.

    `waits` is the mean by the steps of the engine, or by the driver if it does not report them; `most_waits` is the
    highest of a repeat by either measure.
    """
    shares = {f"{part}_share": waiting[f"{part}_s"] / waiting["wall_s"] for part in ("device", *WAITS)}
    of_cell = waiting.assign(**shares).groupby([*CELL, "cell_id"], sort=False)
    cells = of_cell[[*shares, *MEASURES, "launch_s", "prompt_steps"]].mean()
    for end in ("min", "max"):
        cells = cells.join(of_cell[MEASURES].agg(end).add_suffix(f"_{end}"))
    most = cells[[f"{measure}_max" for measure in MEASURES]].max(axis=1)
    cells = cells.assign(waits=cells["waiting_share"].fillna(cells["driver_idle_share"]), most_waits=most).dropna(
        subset="waits"
    )
    return cells.sort_values("waits", ascending=False, kind="stable").reset_index()


def much_waiting(report: Report) -> Iterator[Block]:
    """The cells whose GPU waits for much of the time, and for what; not those that are too short to
    be sampled."""
    cells = shares_by_cell(sampled(report.tables.need("waiting")))
    much = cells[cells["waits"] > MUCH_WAITING]
    if much.empty:
        sentence = (
            f"In none of {len(cells)} cells does the GPU wait for its host for {_pct(MUCH_WAITING)} of the time: at "
            f"most for {_pct(cells['waits'].max())}, and in the worst repeat, by its steps or by the driver, for "
            f"{_pct(cells['most_waits'].max())}."
        )
        yield Finding("busy GPU", sentence, "good" if cells["most_waits"].max() <= MUCH_WAITING else "neutral")
    remedies = _remedies(report.tables)
    findings = [
        Finding(_pct(row["waits"]), _waiting_text(report, row) + remedies.get(row["cell_id"], ""))
        for row in records(much)
    ]
    yield from some(findings, "waiting")


def _waiting_text(report: Report, row: Mapping[str, Any]) -> str:
    by_steps, by_driver = (
        f"{_pct(row[measure])} of the time ({_pct(row[f'{measure}_min'])} to {_pct(row[f'{measure}_max'])} by repeat)"
        for measure in MEASURES
    )
    sentence = f"{report.names.get(row['cell_id'], row['cell_id'])}: the GPU waits for its host for "
    driver = "by the utilization that the driver reports"
    if pd.isna(row["waiting_share"]):
        return f"{sentence}{by_driver}, {driver}."
    each_ms = 1000 * row["launch_s"] / row["prompt_steps"]
    return (
        f"{sentence}{by_steps}, {_pct(row['launch_share'])} for launches of steps with prompts "
        f"({row['prompt_steps']:.0f} steps, {each_ms:.0f} ms each) and {_pct(row['arrival_share'])} for the first "
        f"steps and the arrival of requests; {driver}, for {by_driver}."
    )


def _remedies(tables: Tables) -> Mapping[str, str]:
    """By cell what the step model says of larger graphs and of larger steps, if these would help."""
    predictions = tables.get("predictions", "quantity")
    return {
        row["cell_id"]: "".join(
            words.format(gain=_pct(gain), **row)
            for column, words in REMEDIES.items()
            if (gain := row[column] / row["predicted"] - 1) > MUCH_GAIN
        )
        for row in records(predictions[predictions["quantity"] == RATE])
    }


def _pct(share: float) -> str:
    return f"{100 * share:.0f} %"


def has_gpus(study: Study) -> bool:
    """Whether a study runs on any GPU; on a CPU, device and host are one."""
    gpus = load_gpus()
    names = {name for sweep in study.sweeps for name in ([sweep.gpu] if isinstance(sweep.gpu, str) else sweep.gpu)}
    return any(gpus[name].kind != "cpu" for name in names if name in gpus)


SUBJECT = Subject(
    id="waiting",
    title="Where GPUs wait for their hosts",
    asked="host",
    is_in=has_gpus,
    findings=[much_waiting],
    parts=[
        FigurePart(waiting_by_repeat),
        TablePart(
            "waiting",
            {
                **CELL,
                "waiting_share": "All waiting",
                "driver_idle_share": "No kernel, by the driver",
                "device_share": "GPU works",
                "launch_share": "Launches of steps with prompts",
                "arrival_share": "First steps, arrival",
                "other_share": "Other waiting",
                "waiting_share_min": "Least waiting of a repeat",
                "waiting_share_max": "Most waiting of a repeat",
                "driver_idle_share_max": "Most of a repeat without a kernel",
            },
            "Shares of the time, means over repeats",
            shares_by_cell,
            note="Waiting is the time that the estimated work of the GPU leaves, so the error of the estimate may make "
            "a part negative. It is not known of engines that do not report their steps, nor of quantized models. The "
            "driver does not tell for repeats that are too short to be sampled; the figure leaves them out.",
        ),
    ],
)

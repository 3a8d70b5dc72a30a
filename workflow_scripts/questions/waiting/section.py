"""Where GPUs wait for their hosts."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.page.kit import Plot, bar
from workflow_scripts.page.report import CELL, Report, Subject, TablePart
from workflow_scripts.page.series import cell_names, device_looks
from workflow_scripts.study.study import Study
from workflow_scripts.tables.results import Tables, records, require

# Cells that are drawn, those that wait most.
MOST_CELLS = 8
WAITS: Mapping[str, str] = {
    "launch": "Launches of steps with prompts",
    "arrival": "First steps, arrival",
    "other": "Other waiting",
}
# Two independent measures of waiting: of the engine's steps, and of the driver.
MEASURES = ["waiting_share", "driver_idle_share"]


def waiting(tables: Tables) -> Plot:
    """Share of the time in which the GPU waits for its host: what the estimated work of its steps leaves or, where an
    engine reports no steps, the time without a kernel by the driver. Cells too short to be sampled are left out."""
    shares = shares_by_cell(sampled(tables.need("waiting"))).head(MOST_CELLS)
    of_cells = tables.cells.set_index("cell_id").loc[shares["cell_id"]].reset_index()
    colours = device_looks(tables)
    rows = shares.assign(
        name=shares["cell_id"].map(cell_names(tables)),
        value=100 * shares["waits"],
        low=np.nan,
        high=np.nan,
        colour=[colours[gpu].colour for gpu in of_cells["gpu"]],
    )
    return bar(rows.drop_duplicates("name"), "Where GPUs wait for their hosts", "share of the time", unit=" %")


def sentence(report: Report) -> str:
    shares = shares_by_cell(sampled(report.tables.need("waiting")))
    top = records(shares)[0]
    return f"The GPU waits at most {100 * top['waits']:.0f} % of the time, with {top['engine']}."


def sampled(rows: pd.DataFrame) -> pd.DataFrame:
    """The repeats that were long enough to be sampled."""
    return require(rows.dropna(subset="driver_idle_share"), "no GPU was sampled while it ran")


def shares_by_cell(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, the one that waits most first: means over repeats, and of both measures of waiting the lowest
    and the highest. `waits` is the mean by the steps of the engine, or by the driver if it does not report them."""
    shares = {f"{part}_share": rows[f"{part}_s"] / rows["wall_s"] for part in ("device", *WAITS)}
    of_cell = rows.assign(**shares).groupby([*CELL, "cell_id"], sort=False)
    cells = of_cell[[*shares, *MEASURES, "launch_s", "prompt_steps"]].mean()
    for end in ("min", "max"):
        cells = cells.join(of_cell[MEASURES].agg(end).add_suffix(f"_{end}"))
    cells = cells.assign(waits=cells["waiting_share"].fillna(cells["driver_idle_share"])).dropna(subset="waits")
    return cells.sort_values("waits", ascending=False, kind="stable").reset_index()


def has_gpus(study: Study) -> bool:
    """Whether a study runs on any GPU; on a CPU, device and host are one."""
    gpus = load_gpus()
    names = {name for sweep in study.sweeps for name in ([sweep.gpu] if isinstance(sweep.gpu, str) else sweep.gpu)}
    return any(gpus[name].kind != "cpu" for name in names if name in gpus)


SUBJECT = Subject(
    id="waiting",
    title="Where GPUs wait for their hosts",
    is_in=has_gpus,
    sentence=sentence,
    figures=[waiting],
    tables=[
        TablePart(
            "waiting",
            {
                **CELL,
                "waiting_share": "All waiting",
                "driver_idle_share": "No kernel, by the driver",
                "device_share": "GPU works",
                **{f"{part}_share": words for part, words in WAITS.items()},
                "waiting_share_min": "Least waiting of a repeat",
                "waiting_share_max": "Most waiting of a repeat",
                "driver_idle_share_max": "Most of a repeat without a kernel",
            },
            "Shares of the time, means over repeats",
            shares_by_cell,
            note="The error of the estimated work may make a part negative.",
        ),
    ],
)

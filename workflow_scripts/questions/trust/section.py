"""What limits the numbers of a study: failures, load, unsteady cells, and what intervals cover."""

from workflow_scripts.common.columns import column
from workflow_scripts.page.plot import Plot
from workflow_scripts.page.ratio_plot import plot_ratios
from workflow_scripts.page.report import FigurePart, Subject
from workflow_scripts.page.sentences import what_verdicts_cover
from workflow_scripts.page.style import marks
from workflow_scripts.questions.cells.section import unsuccessful
from workflow_scripts.questions.trust.what_ran import native_types, not_understood, remote_code, simulated
from workflow_scripts.questions.trust.where_measured import (
    load_warning,
    loaded_cells,
    rounds,
    slowed_cells,
    slowed_gpus,
    unsteady_cells,
)
from workflow_scripts.tables.results import RATE, Tables, require


def spread(tables: Tables) -> Plot:
    rows = require(tables.measured.dropna(subset=RATE), "no measured cell has a rate")
    starts = "start " + rows["start"].map("{:g}".format)
    ratio = rows[RATE] / rows["cell_id"].map(tables.value(RATE))
    rows = rows.assign(ratio=ratio, name=starts, label=rows["gpu"] + " · " + rows["engine"])
    rows[["ratio_low", "ratio_high"]] = float("nan")
    return plot_ratios(
        rows.sort_values("ratio"),
        marks(starts.sort_values()),
        title=f"{column(RATE).label} of each repeat over the mean of its cell",
    )


SUBJECT = Subject(
    id="trust",
    lines=0,
    title="How sure the numbers are",
    parts=[FigurePart(spread), what_verdicts_cover, loaded_cells, slowed_cells, rounds],
    findings=[
        *(simulated, unsuccessful, slowed_gpus, load_warning, unsteady_cells),
        *(remote_code, not_understood, native_types),
    ],
)

"""What limits the numbers of a study: failures, load, unsteady cells, and what intervals cover."""

from collections.abc import Iterator

from workflow_scripts.page.blocks import Block, Text
from workflow_scripts.page.kit import Plot, strip
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.page.series import cell_names, coloured
from workflow_scripts.questions.trust.what_ran import cautions
from workflow_scripts.questions.trust.where_measured import (
    loaded_cells,
    rounds,
    slowed_cells,
    starts_in_words,
    unsteady_cells,
)
from workflow_scripts.tables.results import RATE, Tables, require

# Cells that are drawn, those whose repeats differ most.
MOST_CELLS = 10


def spread(tables: Tables) -> Plot:
    """Each repeat of a cell over the mean of the cell, as a dot, with the 95 % interval of the mean; the cells whose
    repeats differ most."""
    rows = require(tables.measured.dropna(subset=RATE), "no measured cell has a rate")
    ends = tables.intervals_of(RATE)
    names = cell_names(tables)
    dots = rows.assign(name=rows["cell_id"].map(names), value=rows[RATE] / rows["cell_id"].map(ends["value"]))
    dots = dots.dropna(subset="value")
    apart = dots.groupby("cell_id", sort=False)["value"].agg(lambda of: of.max() / of.min())
    most = apart.sort_values(ascending=False, kind="stable").index[:MOST_CELLS]
    of_cells = dots.drop_duplicates("cell_id").set_index("cell_id").loc[most].reset_index()
    cells = coloured(tables, of_cells).assign(
        value=1.0,
        low=(ends["low"] / ends["value"]).reindex(most).to_numpy(),
        high=(ends["high"] / ends["value"]).reindex(most).to_numpy(),
        text="",
    )
    label = "output tokens/s of each repeat over the mean of its cell"
    dots = dots[dots["cell_id"].isin(most)]
    return strip(cells.drop_duplicates("name"), dots, "How far repeats of a cell differ", label, unit="×", measure="")


def what_verdicts_cover(report: Report) -> Iterator[Block]:
    scopes = list(report.tables.get("comparisons", "scope")["scope"].dropna().unique())
    if scopes:
        yield Text(
            f"Of 100 intervals, about 95 contain the true ratio. They cover: {', or '.join(scopes)}. A verdict is that "
            "of all comparisons of the study together: at most 5 % of studies have any false one."
        )
    else:
        yield Text("No ratio has an interval, because the variation is not known.")


def sentence(report: Report) -> str:
    measured = int(report.grid["outcome"].eq("ok").sum())
    return f"{measured} of {len(report.grid)} cells were measured."


SUBJECT = Subject(
    id="trust",
    title="How sure the numbers are",
    sentence=sentence,
    figures=[spread],
    why=[what_verdicts_cover, starts_in_words, cautions],
    tables=[loaded_cells, slowed_cells, unsteady_cells, rounds],
)

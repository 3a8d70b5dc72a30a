"""Power and energy of the GPUs of each cell."""

from workflow_scripts.page.by_knob import plot_by_knob
from workflow_scripts.page.plot import Plot
from workflow_scripts.page.report import CELL, FigurePart, Subject, TablePart
from workflow_scripts.questions.knobs.sequence_limit import at_both_ends, most_important_group
from workflow_scripts.tables.results import Tables

ENERGY = "energy_j_per_output_token"
POWER = ("power_w_mean", "energy_j", ENERGY)


def energy(tables: Tables) -> Plot:
    knob, group = most_important_group(tables)
    return plot_by_knob(tables, [group], knob, ENERGY)


SUBJECT = Subject(
    id="energy",
    title="Energy",
    asked="energy",
    parts=[
        FigurePart(energy),
        TablePart(
            "intervals",
            {**CELL, **dict.fromkeys(POWER, "")},
            "Power and energy of a repeat, cell by cell",
            rows=lambda tables: tables.cells[["cell_id", *CELL]].merge(
                tables.values.reindex(columns=list(POWER)).dropna(subset="energy_j"), on="cell_id"
            ),
        ),
    ],
    findings=[at_both_ends(ENERGY)],
)

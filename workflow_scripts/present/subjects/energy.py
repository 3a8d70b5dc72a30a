"""Power and energy of the GPUs of each cell."""

import pandas as pd

from workflow_scripts.common.wording import number
from workflow_scripts.present.by_knob import Measure, plot_by_knob
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.report_tables import Tables, require
from workflow_scripts.present.subject import CELL, FigurePart, Subject, TablePart
from workflow_scripts.present.subjects.sequence_limit import at_both_ends, most_important_group

ENERGY = Measure("energy_j_per_output_token", "Energy per output token", "J per output token")


def medians_with_energy(cells: pd.DataFrame) -> pd.DataFrame:
    values = ["power_w_mean", "energy_j", "energy_j_per_output_token"]
    known = require(cells.dropna(subset="energy_j"), "no device reported its power throughout a repeat")
    return known.groupby(list(CELL), sort=False)[values].median().reset_index()


def energy(tables: Tables) -> Plot:
    knob, group = most_important_group(tables)
    return plot_by_knob(tables, [group], knob, ENERGY)


SUBJECT = Subject(
    id="energy",
    title="Energy",
    parts=[
        FigurePart(energy),
        TablePart(
            "cells",
            {
                **CELL,
                "power_w_mean": "Power (W)",
                "energy_j": "Energy (J)",
                "energy_j_per_output_token": "Energy per output token (J)",
            },
            "Power and energy, medians over the repeats of each cell",
            medians_with_energy,
        ),
    ],
    findings=[at_both_ends(ENERGY.column, lambda joules: f"{number(joules)} J per output token")],
)

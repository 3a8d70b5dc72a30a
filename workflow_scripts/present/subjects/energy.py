"""Power and energy of the GPUs of each cell."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.common.wording import number
from workflow_scripts.present.blocks import Block
from workflow_scripts.present.by_knob import Measure, plot_by_knob
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables
from workflow_scripts.present.subject import CELL, FigurePart, Subject, TablePart
from workflow_scripts.present.subjects.sequence_limit import at_both_ends, most_important_group

ENERGY = Measure("energy_j_per_output_token", "Energy per output token", "J per output token")


def medians_with_energy(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians of each cell over its repeats."""
    values = ["power_w_mean", "energy_j", "energy_j_per_output_token"]
    known = cells.reindex(columns=[*CELL, *values]).dropna(subset="energy_j")
    if known.empty:
        raise MissingError("no device reported its power throughout a repeat")
    return known.groupby(list(CELL), sort=False)[values].median().reset_index()


def energy(tables: Tables) -> Plot:
    """Energy per output token against the knob that matters most, one line per device."""
    knob, group = most_important_group(tables)
    return plot_by_knob(tables, [group], knob, ENERGY)


def energy_saved(report: Report) -> Iterator[Block]:
    """The energy of a token at both ends of the knob."""
    yield from at_both_ends(report.tables, ENERGY.column, lambda joules: f"{number(joules)} J per output token")


SUBJECT = Subject(
    id="energy",
    title="Energy",
    parts=[
        FigurePart(energy, {"cells": ["energy_j_per_output_token"]}),
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
    findings=[energy_saved],
)

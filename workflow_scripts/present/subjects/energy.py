"""Power and energy of the GPUs of each cell."""

import pandas as pd

from workflow_scripts.present.report_tables import MissingError
from workflow_scripts.present.subject import CELL, Subject, TablePart


def medians_with_energy(cells: pd.DataFrame) -> pd.DataFrame:
    """Medians of each cell over its repeats."""
    values = ["power_w_mean", "energy_j", "energy_j_per_output_token"]
    known = cells.reindex(columns=[*CELL, *values]).dropna(subset="energy_j")
    if known.empty:
        raise MissingError("no device reported its power throughout a repeat")
    return known.groupby(list(CELL), sort=False)[values].median().reset_index()


SUBJECT = Subject(
    id="energy",
    title="Energy",
    lead="The energy that all GPUs of a cell consumed while it was timed, in total and per generated token.",
    parts=[
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
        )
    ],
)

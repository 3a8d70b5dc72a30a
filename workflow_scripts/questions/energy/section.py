"""Power and energy of the GPUs of each cell."""

from workflow_scripts.page.digits import rounded
from workflow_scripts.page.kit import Plot
from workflow_scripts.page.main_line import line_of, main_line, values_along
from workflow_scripts.page.report import CELL, Report, Subject, TablePart
from workflow_scripts.page.series import device_names
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import Tables, records

ENERGY = "energy_j_per_output_token"
POWER = ("power_w_mean", "energy_j", ENERGY, "power_cap_share", "sm_clock_mhz_median", "sm_clock_mhz_min")


def energy(tables: Tables) -> Plot:
    """Energy of the cell's GPUs per output token over whole repeats, with its 95 % interval."""
    knob = main_line(tables).knob
    return line_of(tables, ENERGY, f"Energy by {knob_name(knob)}")


def sentence(report: Report) -> str:
    line = main_line(report.tables)
    rows = values_along(report.tables, line, ENERGY)
    rows = rows[rows["series"] == rows["series"].iloc[0]]
    first, last = (records(rows)[end] for end in (0, -1))
    low, high = (rounded(of["y"], of["low"], of["high"]) for of in (first, last))
    device = device_names(report.tables)[first["gpu"]]
    return f"On the {device}, a token takes {low} to {high} J."


SUBJECT = Subject(
    id="energy",
    title="Energy",
    asked="energy",
    sentence=sentence,
    figures=[energy],
    tables=[
        TablePart(
            "intervals",
            {**CELL, **dict.fromkeys(POWER, "")},
            "Power, clocks and energy of a repeat, cell by cell",
            rows=lambda tables: tables.cells[["cell_id", *CELL]].merge(
                tables.values.reindex(columns=list(POWER)).dropna(subset="energy_j"), on="cell_id"
            ),
        ),
    ],
)

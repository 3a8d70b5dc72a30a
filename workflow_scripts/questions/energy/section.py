"""Power and energy of the GPUs of each cell."""

from workflow_scripts.page.kit import Plot
from workflow_scripts.page.main_line import ends_of, line_of, main_line
from workflow_scripts.page.report import Report, Subject, of_cells
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import Tables

ENERGY = "energy_j_per_output_token"
POWER = ("power_w_mean", "energy_j", ENERGY, "power_cap_share", "sm_clock_mhz_median", "sm_clock_mhz_min")


def energy(tables: Tables) -> Plot:
    """Energy of the cell's GPUs per output token over whole repeats, with its 95 % interval."""
    knob = main_line(tables).knob
    return line_of(tables, ENERGY, f"Energy by {knob_name(knob)}")


def sentence(report: Report) -> str:
    return "On the {}, a token takes {} to {} J.".format(*ends_of(report.tables, ENERGY))


SUBJECT = Subject(
    id="energy",
    title="Energy",
    asked="energy",
    sentence=sentence,
    figures=[energy],
    tables=[
        of_cells(POWER, "Power, clocks and energy of a repeat, cell by cell", "energy_j"),
    ],
)

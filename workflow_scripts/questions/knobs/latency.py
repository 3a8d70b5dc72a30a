"""Latencies along the setting that matters most."""

from workflow_scripts.page.kit import Plot
from workflow_scripts.page.main_line import ends_of, line_of, main_line
from workflow_scripts.page.report import Report, Subject, of_cells
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import Tables

PER_TOKEN, TTFT = "tpot_s_p50", "ttft_s_p50"
LISTED = (PER_TOKEN, TTFT, "ttft_s_p99", "e2e_s_p50", "queue_s_p50")


def time_per_token(tables: Tables) -> Plot:
    """Median time per token of each cell, with its 95 % interval."""
    return line_of(tables, PER_TOKEN, f"Time per token by {knob_name(main_line(tables).knob)}")


def sentence(report: Report) -> str:
    device, low, high = ends_of(report.tables, PER_TOKEN)
    times = f"{low} ms" if low == high else f"{low} to {high} ms with more sequences"
    return f"On the {device}, tokens take {times}."


SUBJECT = Subject(
    id="latency",
    title="Latency",
    asked=r"latenc|users",
    sentence=sentence,
    figures=[time_per_token],
    tables=[of_cells(LISTED, "Latencies of every cell")],
)

"""Latency against throughput."""

from workflow_scripts.page.kit import Plot, line
from workflow_scripts.page.main_line import ends_of, main_line, rate_words, values_along
from workflow_scripts.page.report import Report, Subject, of_cells
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import Tables, require

PER_TOKEN, TTFT = "tpot_s_p50", "ttft_s_p50"
LISTED = (PER_TOKEN, TTFT, "ttft_s_p99", "e2e_s_p50", "queue_s_p50")


def speed_per_user(tables: Tables) -> Plot:
    """Output tokens/s of the device against those of one request (1 / TPOT), with 95 % intervals of both. Up is more
    work done, to the right faster for each user; numbers are the setting of each point."""
    along = main_line(tables)
    rows = values_along(tables, along, along.rate)
    times_s = tables.intervals_of(PER_TOKEN)
    speed = (1 / times_s).rename(columns={"value": "speed", "low": "x_high", "high": "x_low"})
    rows = require(rows.join(speed, on="cell_id").dropna(subset="speed"), "no cell has a time per token")
    return line(
        rows.assign(label=rows["x"].map("{:g}".format), x=rows["speed"]),
        along.looks,
        "Throughput against speed per user",
        f"{rate_words(along.rate).removeprefix('output ')}, by {knob_name(along.knob)}",
        "tokens/s per user (1 / TPOT)",
        measure=along.rate,
        x_is_setting=False,
    )


def sentence(report: Report) -> str:
    device, low, high = ends_of(report.tables, PER_TOKEN)
    times = f"{low} ms" if low == high else f"{low} to {high} ms with more sequences"
    return f"On the {device}, tokens take {times}."


SUBJECT = Subject(
    id="latency",
    title="Latency against throughput",
    asked=r"latenc|users",
    sentence=sentence,
    figures=[speed_per_user],
    tables=[
        of_cells(LISTED, "Latencies of every cell"),
    ],
)

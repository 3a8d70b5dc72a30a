"""Latency against throughput."""

from workflow_scripts.page.digits import rounded
from workflow_scripts.page.kit import Plot, line
from workflow_scripts.page.main_line import main_line, values_along
from workflow_scripts.page.report import CELL, Report, Subject, TablePart
from workflow_scripts.page.series import device_names
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import Tables, records, require

PER_TOKEN, TTFT = "tpot_s_p50", "ttft_s_p50"
LATENCIES = (PER_TOKEN, TTFT, "ttft_s_p99", "e2e_s_p50", "queue_s_p50")


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
        f"{along.words.removeprefix('output ')}, by {knob_name(along.knob)}",
        "tokens/s per user (1 / TPOT)",
        measure=along.rate,
        x_is_setting=False,
    )


def sentence(report: Report) -> str:
    along = main_line(report.tables)
    ends = values_along(report.tables, along, PER_TOKEN)
    ends = ends[ends["series"] == ends["series"].iloc[0]]
    first, last = (records(ends)[end] for end in (0, -1))
    low, high = (rounded(of["y"], of["low"], of["high"]) for of in (first, last))
    device = device_names(report.tables)[first["gpu"]]
    times = f"{low} ms" if low == high else f"{low} to {high} ms with more sequences"
    return f"On the {device}, tokens take {times}."


SUBJECT = Subject(
    id="latency",
    title="Latency against throughput",
    asked=r"latenc|users",
    sentence=sentence,
    figures=[speed_per_user],
    tables=[
        TablePart(
            "intervals",
            {**CELL, **dict.fromkeys(LATENCIES, "")},
            "Latencies of every cell",
            rows=lambda tables: tables.cells[["cell_id", *CELL]].merge(
                tables.values.reindex(columns=list(LATENCIES)).dropna(how="all"), on="cell_id"
            ),
        )
    ],
)

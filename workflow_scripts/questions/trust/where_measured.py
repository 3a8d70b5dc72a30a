"""Where and with what the cells were measured, and what disturbed them."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.common.wording import number
from workflow_scripts.device.device_check import FAULTS
from workflow_scripts.device.device_record import NOISY_PCT
from workflow_scripts.page.blocks import Absent, Block, Fold, Table, Text, table_of
from workflow_scripts.page.report import REPEAT_COLUMNS, Report, Subject, TablePart, several_starts
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import last_plan
from workflow_scripts.tables.results import RAN_IN, RATE, require
from workflow_scripts.workloads.warmup import TOLERANCE

SLOW_FIRST = f"a first repeat over {100 * TOLERANCE:g} % slower than the mean of the others"


def starts_in_words(report: Report) -> Iterator[Block]:
    """How often cells were measured, and how far starts of one cell differ."""
    measures = report.tables.get("intervals", "measure", "starts_apart_pct")
    apart = measures.groupby("measure")["starts_apart_pct"].max().get(RATE, 0.0)
    starts = report.tables.rows.groupby("cell_id")["start"].nunique()
    if starts.max() > 1:
        yield Text(f"Cells have up to {starts.max()} starts, whose mean rates differ by at most {number(apart)} %.")
    elif len(starts):
        yield Text("Each cell has one start of its engine; how much starts differ is known from other studies.")


slowed_cells = TablePart(
    "repeats",
    {"cell_id": "Cell", **REPEAT_COLUMNS, "throttle_reasons": "Reasons (NVML)"},
    "Repeats in which the clocks of a GPU were reduced by heat or the power supply",
    lambda cells: several_starts(_slowed_repeats(cells)),
    optional=True,
)


def _slowed_repeats(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows of `cells` in which heat or the power supply slowed a GPU down."""
    reasons = cells["throttle_reasons"].fillna("").str.split(",")
    return cells[[not set(FAULTS).isdisjoint(named) for named in reasons]]


unsteady_cells = TablePart(
    "repeats",
    {"cell_id": "Cell", "start": "First such start"},
    f"Cells with {SLOW_FIRST}, or whose last two passes of the warm-up differed as much",
    lambda cells: cells[cells["steady"].eq(False)].drop_duplicates("cell_id"),
    optional=True,
)


loaded_cells = TablePart(
    "repeats",
    {"cell_id": "Cell", "cpu_steal_pct": "Used by the hypervisor", "cpu_others_pct": "Used by others"},
    "CPU used by others while the cell was timed, of cells on a loaded host",
    lambda cells: host_load(cells)[1],
    optional=True,
)


def host_load(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The highest load by other processes in each measured cell, and the cells where it was above `NOISY_PCT`."""
    load = cells.groupby("cell_id", sort=False)[["cpu_steal_pct", "cpu_others_pct"]].max()
    load = require(load.dropna(how="all").reset_index(), "no cell recorded how busy its host was")
    noisy = (load[["cpu_steal_pct", "cpu_others_pct"]] > NOISY_PCT).any(axis=1)
    return load, load[noisy]


def provenance(report: Report) -> Iterator[Block]:
    """Cells by device, host, engine, environment and lock, which shows what was merged or measured again; and what is
    recorded besides numbers."""
    cells = report.tables.rows
    numbers = cells.groupby(["gpu", "engine"])[RAN_IN].nunique()
    several = {RAN_IN: "Environment"} if numbers.max() > 1 else {}
    places = {
        "gpu": "Device",
        "device_uuid": "UUID",
        "host": "Host",
        "processor": "Processor",
        "engine_version": "Engine",
        **several,
        "protocol": "Protocol version",
        "git_commit": "Commit of the pipeline",
        "lock_sha256": "Lock (SHA-256)",
        "source": "Source of the numbers",
    }
    measured = cells[cells["outcome"].eq("ok")]
    shortened = {name: measured[name].str[:12] for name in ("device_uuid", "git_commit", "lock_sha256")}
    measured = measured.assign(**shortened)
    counts = measured.groupby(list(places), dropna=False, sort=False)["cell_id"].nunique().reset_index(name="cells")
    note = "Cells with different locks, processors of CPU devices or protocol versions are not compared."
    if len(started := cells["started_at"].dropna()):
        note += f" The first and the last repeat started at {started.min()} and {started.max()}."
    yield table_of(counts, {**places, "cells": "Cells"}, "Cells by where they were measured", note)
    known = report.tables.get("provenance", "cell_id", "kind", "what", "value")
    recorded = known[known["kind"] == "record"]
    if recorded.empty:
        yield Absent("no cell has a record of versions")
    for cell, of_cell in recorded.groupby("cell_id", sort=False):
        facts = of_cell[["what", "value"]].to_numpy(dtype=object).tolist()
        title = f"Versions and settings recorded in {report.names.get(str(cell), str(cell))}"
        yield Fold(title, [Table("Provenance", ["What", "Value"], facts, [False, False])])


def rounds(report: Report) -> Iterator[Block]:
    plan = last_plan(StudyPaths(report.cells.parent.parent, report.study.name), report.study.starts.at_least)
    if plan is None or not report.study.starts.is_adaptive:
        return
    yield Text(f"{plan.in_words()}.")


SUBJECT = Subject(id="provenance", title="Provenance", tables=[provenance])

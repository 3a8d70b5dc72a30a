"""What limits the numbers of a study: failures, load, unsteady cells, and what intervals cover."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import readable_models
from workflow_scripts.common.wording import listed, number
from workflow_scripts.device.device_check import FAULTS
from workflow_scripts.device.device_record import NOISY_PCT
from workflow_scripts.page.blocks import Block, Text
from workflow_scripts.page.kit import Plot, strip
from workflow_scripts.page.report import Report, Subject, TablePart
from workflow_scripts.page.series import cell_names, coloured
from workflow_scripts.physics.model_facts import ModelFactsError, model_facts, read_config
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import last_plan
from workflow_scripts.tables.results import RATE, Tables, require
from workflow_scripts.workloads.warmup import TOLERANCE

# Cells that are drawn, those whose repeats differ most.
_MOST_CELLS = 10
_LOAD = ["cpu_steal_pct", "cpu_others_pct"]


def spread(tables: Tables) -> Plot:
    """Each repeat of a cell over the mean of the cell, as a dot, with the 95 % interval of the mean; the cells whose
    repeats differ most."""
    rows = require(tables.measured.dropna(subset=RATE), "no measured cell has a rate")
    ends = tables.intervals_of(RATE)
    dots = rows.assign(
        name=rows["cell_id"].map(cell_names(tables)), value=rows[RATE] / rows["cell_id"].map(ends["value"])
    )
    dots = dots.dropna(subset="value")
    apart = dots.groupby("cell_id", sort=False)["value"].agg(lambda values: values.max() / values.min())
    most = apart.sort_values(ascending=False, kind="stable").index[:_MOST_CELLS]
    of_cells = dots.drop_duplicates("cell_id").set_index("cell_id").loc[most].drop(columns="value")
    shares = ends.div(ends["value"], axis=0)[["value", "low", "high"]]
    cells = coloured(tables, of_cells.join(shares).reset_index()).assign(text="").drop_duplicates("name")
    label = "output tokens/s of each repeat over the mean of its cell"
    return strip(cells, dots[dots["cell_id"].isin(most)], "How far repeats of a cell differ", label, unit="×")


def sentence(report: Report) -> str:
    measured = int(report.grid["outcome"].eq("ok").sum())
    return f"{measured} of {len(report.grid)} cells were measured."


def what_intervals_cover(report: Report) -> Iterator[Block]:
    """What the intervals cover, how far starts of one cell differ, and why adaptive measuring ended."""
    tables, starts = report.tables, report.study.starts
    if scopes := list(tables.get("comparisons", "scope")["scope"].dropna().unique()):
        yield Text(
            f"Of 100 intervals, about 95 contain the true ratio. They cover: {', or '.join(scopes)}. A verdict is that "
            "of all comparisons of the study together: at most 5 % of studies have any false one."
        )
    else:
        yield Text("No ratio has an interval, because the variation is not known.")
    measures = tables.get("intervals", "measure", "starts_apart_pct")
    apart = measures.groupby("measure")["starts_apart_pct"].max().get(RATE, 0.0)
    most = tables.rows.groupby("cell_id")["start"].nunique().max()
    if most > 1:
        yield Text(f"Cells have up to {most} starts, whose mean rates differ by at most {number(apart)} %.")
    else:
        yield Text("Each cell has one start of its engine; how much starts differ is known from other studies.")
    plan = last_plan(StudyPaths(report.cells.parent.parent, report.study.name), starts.at_least)
    if plan and starts.is_adaptive:
        yield Text(f"{plan.in_words()}.")


def cautions(report: Report) -> Iterator[Block]:
    """What else a reader must know of the numbers: foreign code, random weights, unknown models."""
    models, cells = resolved_models(report.study), report.tables.rows
    if trusted := [
        f"{name} ({model.hub_repo} at {model.revision})" for name, model in models.items() if model.trust_remote_code
    ]:
        yield Text(
            f"The study sets trust_remote_code, so engines ran Python code from the repositories of {listed(trusted)}. "
            "This pipeline does not check that code, and it could do anything that the measuring account may do."
        )
    if random := [name for name, model in models.items() if model.load_format == "dummy"]:
        yield Text(
            f"The weights of {listed(random)} are random; the work does not depend on their values, but at a power "
            "limit the speed may, slightly."
        )
    known = readable_models()
    for name in sorted(set(cells["model"]) & known.keys()):
        try:
            model_facts(read_config(known[name].config), known[name].fixed_dtype or "float32")
        except ModelFactsError as e:
            reason = str(e).split("; supported:")[0]
            yield Text(f"Limits, KV capacity and predictions of {name} are unknown: {reason}.")


def host_load(cells: pd.DataFrame) -> pd.DataFrame:
    """The highest load by other processes in each cell that recorded it, in per cent of the CPU."""
    return cells.groupby("cell_id", sort=False)[_LOAD].max().dropna(how="all")


def is_noisy(load: pd.DataFrame) -> "pd.Series[bool]":
    return (load > NOISY_PCT).any(axis=1)


def disturbed(cells: pd.DataFrame) -> pd.DataFrame:
    """One row per cell with what disturbed any of its repeats."""
    slowed = cells["throttle_reasons"].where(cells["throttle_reasons"].str.contains("|".join(FAULTS)).eq(True))
    told = cells.assign(slowed=slowed, steady=cells["steady"].where(cells["steady"].eq(False)))
    rows = told.groupby("cell_id", sort=False)[["slowed", "steady"]].first()
    load = host_load(cells)
    return rows.join(load[is_noisy(load)]).dropna(how="all").reset_index()


SUBJECT = Subject(
    id="trust",
    title="How sure the numbers are",
    sentence=sentence,
    figures=[spread],
    why=[what_intervals_cover, cautions],
    tables=[
        TablePart(
            "repeats",
            {
                "cell_id": "Cell",
                "slowed": "Clocks reduced by (NVML)",
                "steady": "Steady",
                "cpu_steal_pct": "CPU used by the hypervisor",
                "cpu_others_pct": "CPU used by others",
            },
            "Disturbed cells",
            disturbed,
            note="Clocks are reduced by heat or the power supply. Not steady: a first repeat over "
            f"{100 * TOLERANCE:g} % slower than the others, or two last passes of the warm-up that differ as much.",
            optional=True,
        )
    ],
)

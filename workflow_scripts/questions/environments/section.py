"""What another environment, such as another version of the engine, did on the same cells."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from workflow_scripts.catalog.environments import DEFAULT
from workflow_scripts.common.columns import column, heading
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.plot import Plot
from workflow_scripts.page.ratio_plot import labelled, plot_ratios
from workflow_scripts.page.report import PLACE_HEADINGS, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import DECIDED, held_in_words, some, verdicts_by
from workflow_scripts.page.series import without_shared
from workflow_scripts.page.style import marks
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import RATE, Tables, require

# Of what an environment changed by itself, so much is told; the table holds all.
MOST_CHANGES = 6
_NAMES = {"start_s": heading("start_s", "start"), "kv_cache_tokens": column("kv_cache_tokens").in_words}


def _by_size(effects: pd.DataFrame) -> pd.DataFrame:
    """The comparisons of environments, those that are shown to differ first, then the largest first."""
    rows = effects[effects["knob"].eq("environment") & effects["comparison"].eq("pair")]
    rows = rows.assign(decided=rows["verdict"].isin(DECIDED), size=np.abs(np.log(rows["ratio"].astype(float))))
    return rows.sort_values(["decided", "size"], ascending=False, kind="stable")


def pairs(tables: Tables) -> pd.DataFrame:
    """Each cell in another environment over the baseline: by its rate and, of servers at a rate, by latencies."""
    of_both = [tables.get(name, "knob", "comparison", "verdict", "ratio") for name in ("knobs", "latencies")]
    parts = require([rows for rows in map(_by_size, of_both) if len(rows)], "no cell was measured in two environments")
    return pd.concat(parts)


def environments(tables: Tables) -> Plot:
    rows = pairs(tables)
    names = list(dict.fromkeys(rows["values"].str.split(", ").explode()))
    largest = rows.groupby("baseline_cell_id")["size"].transform("max")
    rows = rows.assign(
        largest=largest,
        place=rows["value"].map(names.index),
        settings=rows.groupby("engine")["held"].transform(without_shared).map(held_in_words),
        panel=rows["gpu"] + ": " + rows["metric"].map(lambda name: column(name).in_words),
        name=rows["value"],
    ).sort_values(["largest", "baseline_cell_id", "place"], ascending=[False, True, True])
    return plot_ratios(
        labelled(rows, ["engine", "model", "workload"], "settings"),
        marks(name for name in names if name in set(rows["value"])),
        title=f"Each cell in another environment, over {', '.join(rows['baseline'].unique())}",
        panels_are="devices and measures",
    )


def changed_by_itself(report: Report) -> Iterator[Block]:
    table = report.tables.need("environments")
    findings = []
    # Of engines in one environment, what changed alike is told once, and the start of the one with the most cells.
    table = table[table["setting"] != "engine_version"].sort_values("compared", ascending=False, kind="stable")
    table = table[~(table["setting"].eq("start_s") & table.duplicated(["gpu", "environment", "setting"]))]
    for (gpu, value, baseline), rows in table.groupby(["gpu", "environment", "baseline"], sort=False):
        alike = rows.groupby(["setting", "baseline_value", "value"], sort=False)[["cells", "compared"]].sum()
        changes = [
            f"{_NAMES.get(setting, knob_name(setting))} {there} → {here}"
            + (f" in {differ:g} of {of:g} cells" if differ < of else "")
            for (setting, there, here), differ, of in alike.itertuples(name=None)
        ]
        more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
        heading = f"{gpu}: what {value} changed by itself, compared with {baseline}"
        findings.append(Finding("by itself", f"{heading}: {', '.join(changes[:MOST_CHANGES])}{more}."))
    yield from some(findings, "environments")


def verdicts(report: Report) -> Iterator[Block]:
    yield from verdicts_by(pairs(report.tables), "gpu", "value", "metric")


SUBJECT = Subject(
    id="environments",
    title="Environments",
    asked="versions",
    is_in=lambda study: any(name != DEFAULT for sweep in study.sweeps for name in sweep.environment),
    findings=[changed_by_itself, verdicts],
    parts=[
        FigurePart(environments),
        TablePart(
            "environments",
            {
                **PLACE_HEADINGS,
                "environment": "Environment",
                "setting": "What took effect",
                "value": "Here",
                "baseline": "Compared with",
                "baseline_value": "There",
                "cells": "Cells that differ",
                "compared": "Of",
                "other_pairs": "Further pairs of values",
            },
            "What changed by itself",
        ),
        TablePart(
            "knobs",
            {
                "value": "Environment",
                "baseline": "Compared with",
                **PLACE_HEADINGS,
                "held": "Settings",
                "ratio": "Ratio (95 % interval)",
                "verdict": "Verdict",
                "rate": heading(RATE),
                "baseline_rate": heading(RATE, "Compared with"),
                "scope": "Interval covers",
                "starts_needed": "Further starts needed to decide",
            },
            f"{column(RATE).label} by environment",
            lambda effects: _by_size(effects).assign(held=lambda rows: rows["held"].map(held_in_words)),
        ),
    ],
)

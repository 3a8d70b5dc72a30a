"""What another environment, such as another version of the engine, did on the same cells."""

from collections.abc import Iterator

from workflow_scripts.catalog.environments import DEFAULT
from workflow_scripts.common.columns import column, heading
from workflow_scripts.common.wording import shortened
from workflow_scripts.page.answers import Answer, bars_of, times, verdict_on
from workflow_scripts.page.blocks import Block, Text
from workflow_scripts.page.comparisons import FLAT, comparisons
from workflow_scripts.page.kit import Plot
from workflow_scripts.page.parts import compared
from workflow_scripts.page.report import PLACE_HEADINGS, Report, Subject, TablePart
from workflow_scripts.questions.knobs.section import ratios_of
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import Tables, records

# Of what an environment changed by itself, so much is told; the table holds all.
MOST_CHANGES = 6
_NAMES = {"start_s": heading("start_s", "start"), "kv_cache_tokens": column("kv_cache_tokens").in_words}


def environments(tables: Tables) -> Plot:
    """Rate of each cell in another environment over that in the first one, with its 95 % interval; hollow: not
    decided."""
    return ratios_of(tables, "environment", "environment", "Environments")


def changed_by_itself(report: Report) -> Iterator[Block]:
    table = report.tables.need("environments")
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
        yield Text(f"{heading}: {', '.join(changes[:MOST_CHANGES])}{more}.")


def answers(report: Report) -> Iterator[Answer]:
    rows = comparisons(report.tables, "environment")
    row = records(rows)[0]
    said = (
        f"within {row['margin_pct']:g} %"
        if row["verdict"] == FLAT
        else f"{times(row)} with {shortened(row['value_b'], 20)}"
    )
    yield Answer(
        verdict_on(row), "Environment matters?", said, bars_of(report.tables, rows), f"{row['value_b']} {times(row)}"
    )


def sentence(report: Report) -> str:
    rows = comparisons(report.tables, "environment")
    row = records(rows)[0]
    return f"With {row['value_b']}, a cell has {times(row)} the rate with {row['value_a']}."


SUBJECT = Subject(
    id="environments",
    title="Environments",
    asked="versions|environment",
    is_in=lambda study: any(name != DEFAULT for sweep in study.sweeps for name in sweep.environment),
    sentence=sentence,
    figures=[environments],
    answers=answers,
    why=[changed_by_itself],
    tables=[
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
        compared("environment"),
    ],
)

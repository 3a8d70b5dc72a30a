"""Parts that several sections share: published claims, and tables of comparisons."""

import re
from collections.abc import Iterator

import pandas as pd

from workflow_scripts.page.blocks import Block, Fold, Text, outcome_words
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.report import CELL, PLACE_HEADINGS, Report, Shown, TablePart
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import knob_name, setting_phrase
from workflow_scripts.tables.results import RATE, Tables, records

_COMPARED = {
    "name": "Setting",
    **PLACE_HEADINGS,
    "held": "Other settings",
    "value_b": "Value",
    "value_a": "Compared with",
    "metric": "Rate",
    "ratio": "Ratio (95 % interval)",
    "verdict": "Verdict",
    "starts_needed": "Further starts needed to decide",
    "moved_with_it": "Changed by itself",
    "scope": "Interval covers",
}
# The metrics that sources print for each device and value of a knob, in their words.
METRIC_WORDS = {RATE: "Output", "num_gpu_blocks": "GPU blocks", "waste_pct": "Memory waste"}
METRIC_WORDS |= {"memory_used_bytes_max": "GPU memory"}


def claims_on(section: str) -> Shown:
    """The claims about the subject of a section; below each its evidence, labelled by source."""

    def part(report: Report) -> Iterator[Block]:
        if not report.study.claims:
            return
        rows = report.tables.need("claims")
        for row in records(rows[rows["section"].eq(section)]):
            paragraphs = {
                f"Published by {row['published_by']}": row["published_value"],
                "Evidence": row["evidence"],
                "What would test it": row["would_test"],
            }
            # A paragraph for each piece of evidence, which begins with its source in brackets.
            texts = [
                Text(part)
                for heading, text in paragraphs.items()
                if text
                for part in re.split(r"(?<=\.) (?=\[)", f"{heading}: {text}")
            ]
            yield Fold(f"Published claim, {row['verdict']}: {row['claim']}", texts)

    return part


def compared(kind: str, name: str = "", caption: str = "") -> TablePart:
    """The table of the comparisons of a kind, or of one setting."""
    return TablePart(
        "comparisons",
        _COMPARED,
        caption or f"Comparisons of {knob_name(name or kind)}",
        rows=lambda tables: in_words(comparisons(tables, kind, name)),
        optional=True,
    )


def four_metrics(knob: str) -> TablePart:
    """The four metrics of each device and value of a knob."""

    def rows(tables: Tables) -> pd.DataFrame:
        of_knob = f"knob_{knob}"
        cells = tables.cells.drop(columns=list(METRIC_WORDS), errors="ignore")
        if of_knob not in cells:
            return cells.head(0)
        others = [*COORDINATES, *(name for name in tables.knobs if name != of_knob)]
        varied = cells[cells.groupby(others, dropna=False, sort=False)[of_knob].transform("nunique") > 1]
        known = tables.values.reindex(columns=list(METRIC_WORDS)).join(tables.intervals_of(RATE)[["low", "high"]])
        known = known.rename(columns={"low": f"{RATE}_low", "high": f"{RATE}_high"})
        became = varied["outcome"].map(outcome_words).where(varied["outcome"] != "ok")
        return varied.assign(became=became).join(known, on="cell_id").sort_values(["gpu", of_knob], kind="stable")

    columns = {**CELL, f"knob_{knob}": knob_name(knob), **METRIC_WORDS, "became": "Outcome"}
    caption = f"tok/s, GPU blocks, memory waste, GPU memory by {knob_name(knob)}"
    return TablePart("cells", columns, caption, rows=rows, optional=True)


def in_words(rows: pd.DataFrame) -> pd.DataFrame:
    """Comparisons with their settings in words."""
    held = rows["held"].fillna("").map(held_in_words)
    return rows.assign(name=rows["name"].map(knob_name), held=held, ratio_low=rows["low"], ratio_high=rows["high"])


def held_in_words(held: str) -> str:
    """The settings that a table names in a cell.

    >>> held_in_words("block_size=32, max_num_seqs=1, enforce_eager=true"), held_in_words("")
    ('block size 32, at most 1 sequence, no compiled graphs', '')
    """
    parts = [part.partition("=") for part in str(held or "").split(", ") if part]
    return ", ".join(setting_phrase(knob, value) if value else knob for knob, _, value in parts)

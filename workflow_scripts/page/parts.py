"""Parts that several sections share: published claims, and tables of comparisons."""

import re
from collections.abc import Iterator

import pandas as pd

from workflow_scripts.page.blocks import Block, Fold, Text
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.report import PLACE_HEADINGS, Part, Report, TablePart
from workflow_scripts.study.setting_words import knob_name, setting_phrase
from workflow_scripts.tables.results import records

COMPARED = {
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


def claims_on(section: str) -> Part:
    """The claims about the subject of a section; below each its evidence, labelled by source."""

    def part(report: Report) -> Iterator[Block]:
        if not report.study.claims:
            return
        rows = report.tables.need("claims")
        for row in records(rows[rows["section"].eq(section)]):
            paragraphs = {
                f"Published by {row['published_by']}": row["published_value"],
                "Evidence": row["evidence"],
                "Seen here, without influence on the verdict": row["seen_here"],
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
        COMPARED,
        caption or f"Comparisons of {knob_name(name or kind)}",
        rows=lambda tables: in_words(comparisons(tables, kind, name)),
        optional=True,
    )


def in_words(rows: pd.DataFrame) -> pd.DataFrame:
    """Comparisons with their settings in words."""
    return rows.assign(
        name=rows["name"].map(knob_name),
        held=rows["held"].fillna("").map(held_in_words),
        ratio_low=rows["low"],
        ratio_high=rows["high"],
    )


def held_in_words(held: str) -> str:
    """The settings that a table names in a cell.

    >>> held_in_words("block_size=32, max_num_seqs=1, enforce_eager=true"), held_in_words("")
    ('block size 32, at most 1 sequence, no compiled graphs', '')
    """
    parts = [part.partition("=") for part in str(held or "").split(", ") if part]
    return ", ".join(setting_phrase(knob, value) if value else knob for knob, _, value in parts)

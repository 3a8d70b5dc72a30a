"""Throughput and KV memory by the size of a KV block."""

from workflow_scripts.present.by_knob import OUTPUT, compared, plot_by_knob
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.report_tables import Tables
from workflow_scripts.present.sentences import effects_of, verdicts_on
from workflow_scripts.present.series import NAMES
from workflow_scripts.present.subject import FigurePart, Subject
from workflow_scripts.present.subjects import wasted_memory
from workflow_scripts.present.subjects.cache_capacity import (
    CAPACITY,
    RESERVED,
    prediction_errors,
    why_predictions_missed,
)
from workflow_scripts.present.subjects.claims_retested import claims_on


def output_by_block_size(tables: Tables) -> Plot:
    """Output tokens per second by block size, one panel per device, one line per setting of the other knobs."""
    groups = compared(tables, tables.measured, "knob_block_size", NAMES)
    return plot_by_knob(tables, groups, "block_size", OUTPUT)


SUBJECT = Subject(
    id="block-size",
    title="Block size and KV memory",
    parts=[
        FigurePart(output_by_block_size, {"cells": ["output_tokens_per_s"]}),
        effects_of("block_size"),
        *wasted_memory.PARTS,
        CAPACITY,
        RESERVED,
        claims_on("block-size"),
    ],
    findings=[verdicts_on("block_size"), prediction_errors, why_predictions_missed],
)

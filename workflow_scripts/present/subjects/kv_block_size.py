"""Throughput and KV memory by the size of a KV block."""

from workflow_scripts.present.by_knob import OUTPUT, compared, plot_by_knob
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.report_tables import Tables
from workflow_scripts.present.sentences import effects_of, verdicts_on
from workflow_scripts.present.series import NAMES
from workflow_scripts.present.subject import Caption, FigurePart, Subject
from workflow_scripts.present.subjects import wasted_memory
from workflow_scripts.present.subjects.cache_capacity import CAPACITY, prediction_errors, why_predictions_missed
from workflow_scripts.present.subjects.claims_retested import claims_on
from workflow_scripts.present.subjects.reserved_memory import RESERVED


def output_by_block_size(tables: Tables) -> Plot:
    """Output tokens per second by block size, one panel per device, one line per setting of the other knobs."""
    groups = compared(tables, tables.measured, "knob_block_size", NAMES)
    return plot_by_knob(tables, groups, "block_size", OUTPUT)


SUBJECT = Subject(
    id="block-size",
    title="Block size and KV memory",
    parts=[
        FigurePart(
            output_by_block_size,
            {"cells": ["output_tokens_per_s"]},
            Caption(
                shows="Generated tokens per second against the size of a KV block. Each panel is a device, each line a "
                "setting of the other knobs. A mark is the mean over a cell's starts, its bar spans the lowest to "
                "the highest repeat, and faint dots are the repeats. A question mark is a cell that failed a check, "
                "for example because it is above its ceiling.",
                reading="The vertical axis is logarithmic and the same in all panels. A level line means that the "
                "block size made no visible difference for this workload and setting. Sizes that an engine refuses "
                "have no mark; they are listed among the cells that failed.",
                not_shown="Do not judge by eye whether a line is level: the table gives the result of the equivalence "
                "test for a stated margin. The block size also changes how much memory is wasted and how many "
                "requests fit. This affects speed only once the cache is full.",
            ),
        ),
        effects_of("block_size"),
        *wasted_memory.PARTS,
        CAPACITY,
        RESERVED,
        claims_on("block-size"),
    ],
    findings=[verdicts_on("block_size"), prediction_errors, why_predictions_missed],
)

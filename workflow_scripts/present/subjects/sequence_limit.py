"""Throughput by max-num-seqs, the number of sequences that may run at once."""

from workflow_scripts.present.by_knob import OUTPUT, TOTAL, ceilings_of, compared, plot_by_knob
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.report_tables import Tables
from workflow_scripts.present.sentences import effects_of, verdicts_on
from workflow_scripts.present.series import NAMES
from workflow_scripts.present.subject import Caption, FigurePart, Subject


def output_by_max_num_seqs(tables: Tables) -> Plot:
    """Output tokens per second by max-num-seqs, one line per device, with the ceiling if it is known."""
    groups = compared(tables, tables.measured, "knob_max_num_seqs", NAMES[1:])
    return plot_by_knob(tables, groups, "max-num-seqs", "sequences", OUTPUT, ceilings_of(tables, groups))


def total_by_max_num_seqs(tables: Tables) -> Plot:
    """Prompt and output tokens per second by max-num-seqs, one line per device."""
    groups = compared(tables, tables.measured, "knob_max_num_seqs", NAMES[1:])
    return plot_by_knob(tables, groups, "max-num-seqs", "sequences", TOTAL)


SUBJECT = Subject(
    id="max-num-seqs",
    title="Throughput against max-num-seqs",
    lead="How much more a device delivers when more sequences may run at once.",
    parts=[
        FigurePart(
            output_by_max_num_seqs,
            {"cells": ["output_tokens_per_s"]},
            Caption(
                shows="Generated tokens per second against max-num-seqs, the limit on sequences that run at once. "
                "Each line is a device, or a setting if there is only one device. Along a line nothing else changes. "
                "A mark is the median of a cell's repeats, its bar spans the lowest to the highest repeat, and faint "
                "dots are the repeats. Dotted and dash-dotted lines are the ceilings that the device's memory "
                "bandwidth and arithmetic set. A question mark is a cell that failed a check, for example because it "
                "is above its ceiling.",
                reading="Both axes are logarithmic, so equal distances are equal ratios. A straight rise means that "
                "throughput grows by the same factor each time the limit doubles. Where a line levels off, something "
                "else is the limit: the number of requests, the KV blocks, or the device's arithmetic.",
                not_shown="A level line does not prove that the limit has no effect, because the limit may never have "
                "been reached; the table of effects says whether it was. A single request usually takes longer when "
                "more of them run at once.",
            ),
        ),
        FigurePart(
            total_by_max_num_seqs,
            {"cells": ["total_tokens_per_s"]},
            Caption(
                shows="Prompt tokens and generated tokens together, per second, against max-num-seqs. Lines and marks "
                "mean the same as in the figure of output tokens.",
                reading="The curve lies above that of output tokens by the ratio of all tokens to generated tokens. "
                "This ratio is a property of the workload.",
                not_shown="This rate cannot be compared with rates of output tokens, on this page or elsewhere. It "
                "also counts prompt tokens that came from a prefix cache.",
            ),
        ),
        effects_of("max_num_seqs"),
    ],
    findings=[verdicts_on("max_num_seqs")],
)

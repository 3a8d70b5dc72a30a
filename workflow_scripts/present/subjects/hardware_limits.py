"""How close the measurements come to what the hardware allows."""

from collections.abc import Iterator
from dataclasses import replace

from workflow_scripts.present.blocks import Block, Finding
from workflow_scripts.present.by_knob import MBU, MFU, Measure, compared, plot_by_knob
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import REPEAT, MissingError, Tables, records
from workflow_scripts.present.sentences import some
from workflow_scripts.present.series import NAMES
from workflow_scripts.present.subject import Caption, FigurePart, Subject, TablePart, medians_by_cell


def mbu_by_max_num_seqs(tables: Tables) -> Plot:
    """Minimum share of the memory bandwidth that a repeat used, by max-num-seqs."""
    return _utilization(tables, MBU)


def mfu_by_max_num_seqs(tables: Tables) -> Plot:
    """Minimum share of the arithmetic that a repeat used, by max-num-seqs."""
    return _utilization(tables, MFU)


def _utilization(tables: Tables, share: Measure) -> Plot:
    limits = tables.need("limits")
    # If a device's rates have two sources, the data sheet is preferred.
    limits = limits[limits[share.column].notna()].sort_values("rates").drop_duplicates(REPEAT)
    rows = tables.measured.merge(limits[[*REPEAT, share.column]], on=REPEAT)
    if rows.empty:
        raise MissingError(f"no {share.label} is known for any measured cell")
    groups = compared(tables, rows, "knob_max_num_seqs", NAMES[1:])
    return replace(plot_by_knob(tables, groups, "max-num-seqs", "sequences", share), sources=["measured", "predicted"])


def above_ceilings(report: Report) -> Iterator[Block]:
    """Cells above a ceiling, cells above a ceiling by no more than its error, or a sentence that there are none."""
    rows = report.tables.need("limits", "cell_id", "exceeds", "factor", "tolerance", "ceiling_broken")
    known = rows[rows["factor"].notna()].sort_values("factor", ascending=False)
    if known.empty:
        raise MissingError("no ceiling is known for any cell")
    above = known[known["exceeds"].eq(True)].drop_duplicates("cell_id")
    doubtful = known.loc[~known["exceeds"].eq(True) & (known["factor"] > 1), "cell_id"].nunique()
    findings = [
        Finding(
            "impossible",
            f"{report.names.get(row['cell_id'], row['cell_id'])}: {row['factor']:.3g} times its ceiling on "
            f"{row['ceiling_broken']}. It is marked invalid and not compared.",
            "bad",
        )
        for row in records(above)
    ]
    if doubtful:
        sentence = (
            f"In {doubtful} of {known['cell_id'].nunique()} cells the rate is above a ceiling from measured device "
            "rates, but within the error of these rates. If others loaded the host while the rates were measured, this "
            "error is not known."
        )
        findings.append(Finding("not decided", sentence))
    if not findings:
        sentence = (
            f"None of the {known['cell_id'].nunique()} cells with a known ceiling is faster than its device allows."
        )
        findings.append(Finding("possible", sentence, "good"))
    yield some(findings, "limits")


SUBJECT = Subject(
    id="limits",
    title="How close to the hardware's limits",
    lead="How much of the device's bandwidth and arithmetic the work needed, and which cells are above a ceiling.",
    parts=[
        above_ceilings,
        FigurePart(
            mbu_by_max_num_seqs,
            {"limits": [*REPEAT, "rates", "mbu"]},
            Caption(
                shows="Model bandwidth utilization against max-num-seqs, one line per device: the bytes that the steps "
                "of a repeat had to read (weights, and keys and values of all live tokens), divided by the time taken "
                "and by the device's memory bandwidth. The bandwidth is that of the data sheet or, if there is none, "
                "as measured on the device. A mark is the median of a cell's repeats, and its bar spans the lowest to "
                "the highest repeat.",
                reading="Near 1, memory is the limit, and no engine could be much faster with this batch. Far below 1, "
                "the time goes elsewhere: to arithmetic, to starting kernels, or to waiting.",
                not_shown="The bytes are computed, not counted: they are the minimum that had to be read. A falling "
                "line does not mean lower throughput: with more sequences at once, arithmetic becomes the limit while "
                "tokens per second still rise.",
            ),
        ),
        FigurePart(
            mfu_by_max_num_seqs,
            {"limits": [*REPEAT, "rates", "mfu"]},
            Caption(
                shows="Model FLOP utilization against max-num-seqs, one line per device: the operations that the "
                "tokens of a repeat need, divided by the time taken and by the device's dense rate for the model's "
                "type. The rate is that of the data sheet or, if there is none, as measured on the device.",
                reading="Decoding one sequence needs few operations per byte read, so the share is small. It rises "
                "with the number of sequences that share a step. Together with MBU it shows which of the two limits a "
                "setting approaches.",
                not_shown="Operations on padding, and on tokens computed again after a preemption, are work for the "
                "device but are not counted here.",
            ),
        ),
        TablePart(
            "limits",
            {
                "cell_id": "Cell",
                "rates": "Source of the device's rates",
                "output_tokens_per_s_ceiling": "Ceiling (output tokens per s)",
                "factor": "Share of the ceiling that was reached",
                "mbu": "MBU",
                "mfu": "MFU",
                "experts_touched_share": "Experts that a decode step used",
                "experts_touched_share_uniform": "Expected of equally likely experts",
                "decode_bound_by": "Decoding limited by",
                "steps_bound_by": "Steps limited by",
            },
            "Cells closest to their ceilings, medians over repeats",
            lambda limits: medians_by_cell(limits, "rates").sort_values("factor", ascending=False, kind="stable"),
        ),
    ],
)

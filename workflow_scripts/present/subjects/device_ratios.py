"""Speed-ups of one device over another, beside the ratios of their rates."""

from collections.abc import Iterator

from workflow_scripts.common.wording import listed
from workflow_scripts.present.blocks import Block, Finding, Findings
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.ratio_plot import Reference, labelled, plot_ratios
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.sentences import some
from workflow_scripts.present.style import COLOURS, LineStyle, Mark
from workflow_scripts.present.subject import Caption, FigurePart, Subject, TablePart
from workflow_scripts.present.words import explained

OBSERVED = "output tokens per s (measured)"
# Solid lines were published, dashed lines measured.
DASHED: LineStyle = (0, (3, 1.5))
_REFERENCES = (
    Reference("bandwidth_ratio", "memory bandwidth (published)", COLOURS[1], "-"),
    Reference("flop_ratio", "matrix rate (published)", COLOURS[2], "-"),
    Reference("measured_bandwidth_ratio", "memory bandwidth (measured)", COLOURS[1], DASHED),
    Reference("measured_flop_ratio", "matrix rate (measured)", COLOURS[2], DASHED),
)


def device_ratios(tables: Tables) -> Plot:
    """The speed-up of one device over another, beside the ratios of their rates."""
    ratios = tables.need("ratios")
    ratios = ratios[ratios["metric"] == "output_tokens_per_s"]
    if ratios.empty:
        raise MissingError("no two devices were measured with the same settings")
    rows = labelled(ratios, ["engine", "model", "workload"], "knobs")
    return plot_ratios(
        rows.assign(
            name=OBSERVED, panel=ratios["gpu_a"] + " over " + ratios["gpu_b"], beside=ratios["kv_tokens_ratio"]
        ),
        {OBSERVED: Mark(COLOURS[0], "o")},
        title="Speed-up of one device over another, beside the ratios of their rates",
        panels_are="pairs of devices",
        repeats=("repeats_a", "repeats_b"),
        references=_REFERENCES,
    )


def explanations(report: Report) -> Iterator[Block]:
    """For each pair of devices what explains the speed-up, and one case in detail."""
    ratios = report.tables.need("ratios")
    ratios = ratios[ratios["metric"] == "output_tokens_per_s"]
    findings = []
    for (a, b), rows in ratios.groupby(["gpu_a", "gpu_b"], sort=False):
        explains = rows["explanation"].fillna("none").map(explained).value_counts()
        verdict = str(explains.index[0]) if len(explains) == 1 else "mixed"
        counted = listed(f"{name} in {count}" for name, count in explains.items())
        # Memory bandwidth should explain decoding, so the case with the largest share of decoding is shown.
        example = records(rows.sort_values("decode_share_a", ascending=False).head(1))[0]
        settings = report.settings.get(example["knobs"], example["knobs"])
        where = f"{example['engine']}, {example['model']}, {example['workload']}, {settings}"
        findings.append(
            Finding(
                verdict,
                f"{a} against {b}: the ratio is explained by {counted} of {len(rows)} cells. For example, {where}: "
                f"{example['verdict_text']}",
            )
        )
    yield some(findings, "ratios")


def cannot_show(report: Report) -> Iterator[Block]:
    """Pairs of devices that cannot show whether decoding follows memory bandwidth, and why."""
    ratios = report.tables.get("ratios")
    if ratios is not None and "cannot_show" in ratios and len(reasons := ratios["cannot_show"].dropna().unique()):
        yield Findings([Finding("cannot show", str(reason)) for reason in reasons])


SUBJECT = Subject(
    id="devices",
    title="Ratios of devices",
    lead="Why one device is faster than another: memory bandwidth, arithmetic, or KV capacity.",
    parts=[
        FigurePart(
            device_ratios,
            {"ratios": ["gpu_a", "gpu_b", "metric", "ratio"]},
            Caption(
                shows="Output tokens per second of one device divided by those of another, for cells that differ only "
                "in the device. The line through a dot is its 95 % interval. Vertical lines are the ratios of the two "
                "devices' rates: memory bandwidth and matrix rate, solid as published in data sheets and dashed as "
                "measured. A cross is the ratio of the tokens that their KV caches hold.",
                reading="If memory bandwidth is the limit, a dot lies at the bandwidth line; if arithmetic is, at "
                "the line of the matrix rate. Longer prompts and more sequences at once move it from the former to "
                "the latter.",
                not_shown="A dot may lie on a line by chance. If an interval contains several lines, the data cannot "
                "show which of them explains the speed-up. A device that is faster because its cache holds more "
                "requests says nothing about bandwidth.",
            ),
        ),
        TablePart(
            "ratios",
            {
                "gpu_a": "Faster device",
                "gpu_b": "Slower device",
                "engine": "Engine",
                "model": "Model",
                "workload": "Workload",
                "knobs": "Settings",
                "ratio": "Speed-up (95 % interval)",
                "scope": "Interval covers",
                "bandwidth_ratio": "Ratio of bandwidths, published",
                "flop_ratio": "Ratio of matrix rates, published",
                "measured_bandwidth_ratio": "Ratio of bandwidths, measured",
                "measured_flop_ratio": "Ratio of matrix rates, measured",
                "kv_tokens_ratio": "Ratio of KV-cache tokens",
                "explanation": "Explained by",
                "nearest_difference_pct": "Difference from the nearest ratio (%)",
            },
            "Ratios of output tokens per second",
            lambda ratios: ratios[ratios["metric"] == "output_tokens_per_s"].assign(
                explanation=lambda rows: rows["explanation"].map(explained, na_action="ignore")
            ),
        ),
    ],
    warnings=[cannot_show],
    findings=[explanations],
)

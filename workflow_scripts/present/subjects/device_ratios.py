"""Speed-ups of one device over another, beside the ratios of their rates."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isnan
from typing import Any

from workflow_scripts.common.wording import listed, plural
from workflow_scripts.present.blocks import Block, Finding
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.ratio_by_sequences import (
    groups_by_sequences,
    misses_pct,
    of_rates,
    plot_by_sequences,
    power_limit,
    speedups,
)
from workflow_scripts.present.ratio_plot import Reference, labelled, plot_ratios
from workflow_scripts.present.report import CELL, FigurePart, Report, Subject, TablePart
from workflow_scripts.present.report_tables import MissingError, Tables, records, require
from workflow_scripts.present.sentences import claims_on, explained, some, with_interval
from workflow_scripts.present.style import COLOURS, LineStyle, Mark

OBSERVED = "output tokens per s (measured)"
# Solid lines were published, dashed lines measured.
DASHED: LineStyle = (0, (3, 1.5))
_REFERENCES = (
    Reference("bandwidth_ratio", "memory bandwidth (published)", COLOURS[1], "-"),
    Reference("flop_ratio", "matrix rate (published)", COLOURS[2], "-"),
    Reference("measured_bandwidth_ratio", "memory bandwidth (measured)", COLOURS[1], DASHED),
    Reference("measured_flop_ratio", "matrix rate (measured)", COLOURS[2], DASHED),
)
_SHARES = {
    "weights_share": "Reading weights",
    "kv_share": "Reading KV",
    "operations_share": "Operations",
    "fixed_share": "Fixed costs",
    "launch_share": "Launches and arrival",
}
# Why a pair of devices cannot show that decoding follows memory bandwidth.
_CANNOT_SHOW: Mapping[str, str] = {
    "disturbed": "others used a CPU while its rates were measured, so it is unknown how fast it reads memory",
    "cached weights": "the weights that a step reads fit the last-level caches of both",
    "equal bandwidths": "their bandwidths hardly differ",
}


def device_ratios(tables: Tables) -> Plot:
    with suppress(MissingError):
        return plot_by_sequences(groups_by_sequences(tables), _REFERENCES)
    ratios = require(of_rates(tables.need("ratios")), "no two devices were measured with the same settings")
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


def expectations(report: Report) -> Iterator[Block]:
    findings = [Finding(ratios, told + why) for ratios, told, why in speedups(report.tables)]
    for group in groups_by_sequences(report.tables):
        rows = group.rows.dropna(subset="expected_ratio")
        if len(rows):
            columns = ("expected_ratio", "measured_bandwidth_ratio", "own_expected_ratio")
            off, by_bandwidths, own = (f"{misses_pct(rows, column):.1f} %" for column in columns)
            sentence = (
                f"The step model misses the ratio by {off} (root mean square of {plural(len(rows), 'cell')}), that of "
                f"measured bandwidths by {by_bandwidths}. The model was fitted to one calibration and scaled to the "
                f"other device by measured rates; fitted to both calibrations, it misses by {own}. ({group.title})"
            )
            findings.append(Finding(f"{off} off", sentence))
    yield from some(findings, "ratios")


def explanations(report: Report) -> Iterator[Block]:
    findings = []
    for (a, b), rows in of_rates(report.tables.need("ratios")).groupby(["gpu_a", "gpu_b"], sort=False):
        explains = rows["explanation"].fillna("none").map(explained).value_counts()
        verdict = str(explains.index[0]) if len(explains) == 1 else "mixed"
        counted = listed(f"{name} in {count}" for name, count in explains.items())
        # Memory bandwidth should explain decoding, so the case with the largest share of decoding is shown.
        example = records(rows.sort_values("decode_share_a", ascending=False).head(1))[0]
        settings = report.settings.get(example["knobs"], example["knobs"])
        where = f"{example['engine']}, {example['model']}, {example['workload']}, {settings}"
        sentence = (
            f"{a} against {b}: what is shown to explain the ratio is {counted} of {len(rows)} cells. "
            f"For example, {where}: {_in_words(example)}"
        )
        findings.append(Finding(verdict, sentence))
    yield from some(findings, "ratios")


def _in_words(row: Mapping[str, Any]) -> str:
    words = with_interval(row, "ratio", f" times the output tokens/s of {row['gpu_b']}")
    if isinstance(row["nearest"], str):
        words += f"; nearest is the ratio of {explained(row['nearest'])}, {row['nearest_difference_pct']:+.1f} %"
    if not isnan(row["decode_share_a"]):
        words += f"; decoding took {row['decode_share_a']:.0%} of the time on {row['gpu_a']}"
    return f"{words}."


def cannot_show(report: Report) -> Iterator[Block]:
    pairs = report.tables.need("ratios")[["gpu_a", "gpu_b", "cannot_show"]].dropna().drop_duplicates()
    for a, b, why in pairs.itertuples(index=False):
        words = f"{a} and {b} cannot show that decoding follows memory bandwidth: {_CANNOT_SHOW[why]}."
        yield Finding("cannot show", words)


SUBJECT = Subject(
    id="devices",
    title="Ratios of devices",
    parts=[
        FigurePart(device_ratios),
        FigurePart(power_limit),
        TablePart(
            "ratios",
            {
                "gpu_a": "Faster device",
                "gpu_b": "Slower device",
                **CELL,
                "ratio": "Speed-up (95 % interval)",
                "scope": "Interval covers",
                "device_ratio": "Without waiting for the host",
                "expected_ratio": "Expected from one calibration (predicted)",
                "own_expected_ratio": "Expected from both (predicted)",
                "bandwidth_ratio": "Ratio of bandwidths, published",
                "flop_ratio": "Ratio of matrix rates, published",
                "measured_bandwidth_ratio": "Ratio of bandwidths, measured",
                "measured_flop_ratio": "Ratio of matrix rates, measured",
                "kv_tokens_ratio": "Ratio of KV-cache tokens",
                **{f"{share}_b": f"{words}, slower device (predicted)" for share, words in _SHARES.items()},
                "power_cap_share_a": "Samples at the power limit, faster device",
                "power_cap_share_b": "Samples at the power limit, slower device",
                "explanation": "Shown to be within 10 % of",
                "compatible_with": "Also compatible with",
                "nearest_difference_pct": "Difference from the nearest ratio (%)",
            },
            "Ratios of output tokens per second",
            lambda ratios: of_rates(ratios).assign(
                explanation=lambda rows: rows["explanation"].map(explained, na_action="ignore"),
                compatible_with=lambda rows: rows["compatible_with"].map(explained, na_action="ignore"),
            ),
        ),
        claims_on("devices"),
    ],
    findings=[expectations, explanations, cannot_show],
)

"""Ratios of devices: by the number of sequences, beside what is predicted and the ratios of their rates."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.page.answers import NO, OPEN, PARTLY, YES, Answer, Bar, times, verdict_on
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.kit import Plot, Reference, line
from workflow_scripts.page.parts import claims_on, compared, in_words
from workflow_scripts.page.report import PLACE_HEADINGS, Report, Subject, TablePart
from workflow_scripts.page.series import device_names
from workflow_scripts.page.style import INK, PREDICTED_LINE, Look
from workflow_scripts.questions.knobs.section import ratio_rows
from workflow_scripts.statistics.comparisons import FLAT
from workflow_scripts.study.setting_words import knob_axis
from workflow_scripts.tables.results import MissingError, Tables, records, require

PAIR = {"value_b": "First device", "value_a": "Second device", **PLACE_HEADINGS, "held": "Settings"}
_PREDICTED, MEASURED_PAIR = "predicted", "{} over {}"


def along_sequences(tables: Tables) -> pd.DataFrame:
    """The ratios of one pair of devices with one model and workload, by the number of sequences, `x`: of the pair that
    was measured with the most numbers of sequences."""
    pairs = comparisons(tables, "device")
    groups = ["value_a", "value_b", "engine", "model", "workload"]
    known = pairs.dropna(subset="x")
    sizes = known.groupby(groups, sort=False)["x"].nunique()
    require(sizes, "no two devices were measured with the same settings")
    most = known.set_index(groups).loc[[sizes.idxmax()]].reset_index()
    return most.sort_values("x", kind="stable").drop_duplicates("x")


def explained(tables: Tables) -> pd.DataFrame:
    """The ratios of pairs of devices, beside those of their rates and what is predicted."""
    pairs = comparisons(tables, "device")
    return in_words(pairs).merge(tables.get("devices", "a", "b"), on=["a", "b"], how="left")


def of_pair(tables: Tables, row: Mapping[str, Any]) -> pd.DataFrame:
    """Those of the two devices of a comparison."""
    rows = explained(tables)
    return rows[rows["value_a"].eq(row["value_a"]) & rows["value_b"].eq(row["value_b"])]


def device_ratios(tables: Tables) -> Plot:
    """Ratio of output tokens/s over whole repeats, with its 95 % interval. Lines across are the ratios of the cards'
    rates: while weights are read, memory bandwidth decides; with many sequences, arithmetic does."""
    rows = along_sequences(tables)
    first, names = records(rows)[0], device_names(tables)
    if len(rows) < 2:
        return ratio_rows(tables, comparisons(tables, "device"), "One device over another")
    known = of_pair(tables, first)
    references = [
        Reference(ratio, f"{words} {ratio:.2f}×")
        for name, words in (("bandwidth_ratio", "bandwidth"), ("flop_ratio", "arithmetic"))
        for ratio in known.reindex(columns=[name])[name].dropna().head(1)
    ]
    series = MEASURED_PAIR.format(*(names.get(first[side], first[side]) for side in ("value_b", "value_a")))
    measured = rows.assign(series="measured", y=rows["ratio"], cell_id=rows["b"])
    alike = known[known["model"].eq(first["model"]) & known["workload"].eq(first["workload"])]
    predicted = alike.dropna(subset="predicted_ratio").assign(series=_PREDICTED, low=np.nan, high=np.nan)
    predicted = predicted[predicted["engine"] == first["engine"]]
    predicted = predicted.assign(y=predicted["predicted_ratio"]).sort_values("x")
    return line(
        pd.concat([measured, predicted])[["series", "x", "y", "low", "high", "cell_id"]],
        {"measured": Look(INK), _PREDICTED: PREDICTED_LINE},
        f"{series} by number of sequences",
        # Throughput along a setting may be that while full, which is another quantity.
        "ratio of output tokens/s, whole runs of equal work",
        knob_axis("max_num_seqs"),
        unit="×",
        measure="ratio",
        references=references,
        sources=("measured", "published", *[_PREDICTED] * bool(len(predicted))),
    )


def _ends(tables: Tables) -> tuple[str, str, list[dict[str, Any]]]:
    """The names of the two devices, and the first and the last of their ratios; one if there are no others."""
    rows, names = records(along_sequences(tables)), device_names(tables)
    a, b = (names.get(rows[0][side], rows[0][side]) for side in ("value_a", "value_b"))
    return a, b, rows[:1] + rows[1:][-1:]


def answers(report: Report) -> Iterator[Answer]:
    a, b, ends = _ends(report.tables)
    first = ends[0]
    bandwidth = of_pair(report.tables, first).get("bandwidth_ratio", pd.Series(dtype=float)).dropna()
    bars = tuple(Bar(end["ratio"], end["low"], end["high"], f"at {end['x']:g}", hollow=_open(end)) for end in ends)
    said = ", ".join(f"{times(end)} at {end['x']:g}" for end in ends)
    said = said.replace(f"at {first['x']:g}", f"at {first['x']:g} sequence{'s' * (first['x'] != 1)}", 1)
    gain = f"{b} over {a} {times(first)}"
    if bandwidth.empty:
        yield Answer(verdict_on(first, helps=True), f"{b} faster than {a}?", said, bars, gain)
        return
    times_faster = float(bandwidth.iloc[0])
    within = [end["low"] <= times_faster <= end["high"] for end in ends]
    verdict = YES if all(within) else PARTLY if any(within) else NO
    if all(within) and any(_open(end) for end in ends):
        verdict = OPEN
    yield Answer(verdict, f"As fast as its bandwidth, {times_faster:.2f}×?", said, bars, gain)


def _spread(row: dict[str, Any]) -> str:
    ends = dict.fromkeys(f"{row[end]:.2f}" for end in ("predicted_low", "predicted_high") if row[end] == row[end])
    return " to ".join(ends)


def _open(row: dict[str, Any]) -> bool:
    return bool(row["low"] <= 1 <= row["high"]) and row["verdict"] != FLAT


def sentence(report: Report) -> str:
    try:
        a, b, (first, *last) = _ends(report.tables)
    except MissingError:
        return _expected_sentence(report.tables)
    if not last:
        return f"The {b} is {times(first)} as fast as the {a}."
    how = "shrinks" if last[0]["ratio"] < first["ratio"] else "grows"
    return f"The lead of the {b} {how} from {times(first)} to {times(last[0])} with more sequences."


def _expected_sentence(tables: Tables) -> str:
    """Without measurements: what is expected of the two devices whose bandwidths differ the most."""
    wanted = ["bandwidth_ratio", "predicted_low"]
    rows = tables.get("expected_ratios", *wanted).dropna(subset=wanted)
    row = records(require(rows, "no two devices are measured or predicted").nlargest(1, "bandwidth_ratio"))[0]
    names = device_names(tables)
    pair = " over ".join(names.get(row[side], row[side]) for side in "ab")
    return f"Predicted, {pair} is {_spread(row)}×, with {row['bandwidth_ratio']:.2f} times the bandwidth."


SUBJECT = Subject(
    id="devices",
    title="Ratios of devices",
    asked="ratio|GPUs compare|bandwidth",
    sentence=sentence,
    figures=[device_ratios],
    answers=answers,
    tables=[
        TablePart(
            "expected_ratios",
            {
                "a": "First",
                "b": "Second",
                "gpu": "Device",
                "engine": "Engine",
                "model": "Model",
                "bandwidth_ratio": "Memory bandwidth",
                "range": "Predicted, lowest to highest",
                "published": "Published",
                "verdict": "Verdict on the published one",
            },
            "Expected ratios of output tokens/s, first over second",
            lambda rows: rows.assign(range=[_spread(row) for row in records(rows)]),
            note="Of two engines on one device, with as many sequences.",
            optional=True,
        ),
        compared("device", caption="Ratios of devices"),
        TablePart(
            "devices",
            {
                **PAIR,
                "predicted_ratio": "Predicted from one calibration",
                "explanation": "Shown to be within 10 % of",
                "bandwidth_ratio": "Memory bandwidth, published",
                "measured_bandwidth_ratio": "Memory bandwidth, measured",
                "flop_ratio": "Matrix rate, published",
                "measured_flop_ratio": "Matrix rate, measured",
                "measured_cache_ratio": "Cache bandwidth, measured",
                "kv_tokens_ratio": column("kv_cache_tokens").label,
            },
            "What explains them: ratios of rates and KV caches",
            rows=explained,
        ),
        claims_on("devices"),
    ],
)

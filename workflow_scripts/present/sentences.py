"""Sentences and tables that several subjects share: what is decided, the effects of a knob, and pairs of cells."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import interval_text, listed, number, plural, sentence
from workflow_scripts.present.blocks import Block, Finding, Findings, Text
from workflow_scripts.present.report import Part, Report
from workflow_scripts.present.report_tables import MissingError, records
from workflow_scripts.present.series import evenly, without_shared
from workflow_scripts.present.subject import PLACE, TablePart
from workflow_scripts.present.words import DECIDED, FLAT, NOT_DECIDED, held_in_words
from workflow_scripts.study.setting_words import instead_of, knob_name

# Maximum number of sentences of one kind; the table has all of them.
MOST_SENTENCES = 6
EFFECT_COLUMNS: Mapping[str, str] = {
    **PLACE,
    "held": "Other settings",
    "values": "Values compared",
    "value": "Fastest",
    "baseline": "Slowest",
    "ratio": "Fastest over slowest (95 % interval)",
    "scope": "Interval covers",
    "whole_ratio": "Over whole repeats",
    "work": "Requests",
    "verdict": "Verdict",
    "moved_with_it": "Settings that changed with it",
    "starts_needed": "Further starts needed to decide",
    "bound_by": "Running sequences limited by",
}
# Knobs whose effects have their own section.
OWN_SECTION = ("max_num_seqs", "block_size", "enable_prefix_caching", "num_speculative_tokens", "environment")
# Column that is compared -> its name in sentences.
_COMPARED: Mapping[str, str] = {
    "output_tokens_per_s": "output tokens/s",
    "steady_output_tokens_per_s": "output tokens/s while that many run",
    "ttft_s_p50": "median TTFT",
    "tpot_s_p50": "median TPOT",
    "e2e_s_p50": "median end-to-end latency",
}
# What `pairs_that_differ_in` reports pair by pair.
_TOLD_APART = ("enable_prefix_caching", "num_speculative_tokens", "model")


def ratio_finding(ratio: float, verdict: str, sentence: str) -> Finding:
    """A finding on a ratio, with the ratio as its badge if a difference is shown, otherwise with the verdict."""
    badge = f"{ratio:.3g} times" if verdict in DECIDED else verdict
    return Finding(badge, sentence, "good" if verdict == FLAT else "neutral")


def without_effect(rows: pd.DataFrame) -> Iterator[str]:
    """Which of the settings (`about`) are flat in all their comparisons, and on which there is no verdict."""
    flat = rows.groupby("about", sort=False)["verdict"].agg(set).map({FLAT}.issuperset)
    if flat.any():
        margin = number(rows["margin_pct"].max())
        yield f"No difference of more than {margin} %: {listed(map(knob_name, flat[flat].index))}."
    if not flat.all():
        yield f"{sentence(NOT_DECIDED)}: {listed(map(knob_name, flat[~flat].index))}."


def effects_of(knob: str) -> TablePart:
    """The table of the effects of one knob, with all of its values compared."""

    def keep(effects: pd.DataFrame) -> pd.DataFrame:
        rows = effects[(effects["knob"] == knob) & (effects["comparison"] == "overall")]
        return rows.assign(held=rows["held"].map(held_in_words))

    return TablePart("effects", EFFECT_COLUMNS, f"Effect of {knob_name(knob)} on output tokens per second", keep)


def verdicts_on(knob: str) -> Part:
    """For each device the verdicts over all values of a knob, and the largest change."""

    def part(report: Report) -> Iterator[Block]:
        effects = report.tables.need("effects", "knob", "comparison", "ratio", "verdict")
        rows = effects[(effects["comparison"] == "overall") & (effects["knob"] == knob)]
        if rows.empty:
            raise MissingError(f"no two measured cells differ only in {knob_name(knob)}")
        yield Findings([verdict_over(of_one) for _, of_one in rows.groupby("gpu", sort=False)])

    return part


def verdicts_of_others(report: Report) -> Iterator[Block]:
    """For each knob without its own section the verdicts over all of its values, and the largest change."""
    effects = report.tables.need("effects", "knob", "comparison", "ratio", "verdict")
    others = effects[(effects["comparison"] == "overall") & ~effects["knob"].isin([*OWN_SECTION, *_TOLD_APART])]
    if len(others):
        yield Findings([verdict_over(rows) for _, rows in others.groupby("knob", sort=False)])


def verdict_over(rows: pd.DataFrame) -> Finding:
    """The verdicts of rows that compare all values of one knob, and the largest change."""
    # A larger ratio that is not decided may be noise.
    size = rows["ratio"].where(rows["ratio"] > 1, 1 / rows["ratio"])
    order = rows.assign(decided=rows["verdict"].isin(DECIDED), size=size).sort_values(
        ["decided", "size"], ascending=False
    )
    largest = records(order.head(1))[0]
    text = f"{largest['gpu']}: {effect_in_words(largest)} ({place(largest)})"
    if largest.get("only_waiting") is True:
        text += f" Without waiting for the host, the ratio is {largest['device_ratio']:.3g}, within the margin."
    if len(rows) > 1:
        counted = ", ".join(f"{count} {name}" for name, count in rows["verdict"].value_counts().items())
        what = f"largest {'change' if largest['decided'] else 'ratio'} of {len(rows)} comparisons"
        text += f" This is the {what} of {knob_name(largest['knob'])}: {counted}."
    return ratio_finding(largest["ratio"], largest["verdict"], text)


def effect_in_words(row: Mapping[str, Any]) -> str:
    """The ratio of two values of a setting with its verdict, and what else the engine changed."""
    unit = f" times the {_COMPARED[row['metric']]}"
    ratio = interval_text(row["ratio"], row["ratio_low"], row["ratio_high"], unit, row["scope"])
    words = [f"{sentence(instead_of(row['knob'], row['value'], row['baseline']))}: {ratio}, {_verdict(row)}."]
    if pd.notna(row["took_effect"]):
        both = f", against {row['baseline_shown']}" if row["took_effect"] else " with both"
        words.append(f"The engine reports {row['shown']}{both}.")
    if pd.notna(row["moved_with_it"]):
        words.append(f"The engine changed other settings with it: {row['moved_with_it']}.")
    if pd.notna(over := row.get("saturated")):
        words.append(f"More load than the server sustains ({over}), so latencies grow with the run.")
    return " ".join(words)


def _verdict(row: Mapping[str, Any]) -> str:
    margin = f"{row['margin_pct']:g} %"
    if row["verdict"] == FLAT:
        return f"flat: in these starts any difference is within {margin}"
    if row["verdict"] == "changes":
        return f"a change of more than {margin}"
    if row["bimodal"]:
        return "not decided, because the starts of a cell fall into two groups"
    if pd.isna(row["ratio_low"]):
        return "not decided: this needs at least two starts of each, in the same rounds"
    if pd.isna(row["starts_needed"]):
        return f"not decided at a margin of {margin}, nor likely to be with 100 further starts of each"
    starts = plural(int(row["starts_needed"]), "further start")
    return f"not decided at a margin of {margin}: about {starts} of each would decide"


def what_verdicts_cover(report: Report) -> Iterator[Block]:
    """What the verdicts compare, and which variation their intervals cover."""
    effects = report.tables.need("effects", "scope")
    scopes = list(effects["scope"].dropna().unique())
    covers = (
        f"Of 100 intervals, about 95 contain the true ratio. They cover: {', or '.join(scopes)}. What a further run "
        "measures may lie outside, because it has an error too."
        if scopes
        else "No ratio has an interval, because the variation is not known."
    )
    what = "output tokens per second or, if its sentence says so, a latency"
    yield Text(f"A verdict compares {what}. The sentence also states the margin. {covers}")


def pairs_that_differ_in(
    report: Report, knob: str, known_by: str, found: Callable[[Mapping[str, Any]], str]
) -> Findings:
    """Pairs of cells that differ only in the knob, the largest gain first.

    `found` makes a further sentence from the medians of the pair's first cell, if its column `known_by` has a value.
    """
    effects = report.tables.need("effects", "comparison", "knob", "ratio", "held")
    pairs = effects[(effects["comparison"] == "pair") & (effects["knob"] == knob)]
    if pairs.empty:
        raise MissingError(f"no two measured cells differ only in {knob_name(knob)}")
    report.tables.need("cells", known_by)
    of_cell = report.tables.cells.groupby("cell_id").median(numeric_only=True)
    told = evenly(pairs.assign(held=without_shared(pairs["held"])), ["knob"], "ratio", MOST_SENTENCES)
    findings = []
    for row in records(told.sort_values("ratio", ascending=False, kind="stable")):
        cell = of_cell.loc[row["cell_id"]]
        further = f" {found(cell)}" if pd.notna(cell.get(known_by)) else ""
        text = f"{place(row)}: {effect_in_words(row)}{further}"
        findings.append(ratio_finding(row["ratio"], row["verdict"], text))
    few = f"{len(told)} of {len(pairs)} comparisons, evenly from the largest ratio to the smallest; the table effects "
    return Findings(findings, few + "holds all." if len(told) < len(pairs) else "")


def some(findings: list[Finding], table: str, most: int = MOST_SENTENCES) -> Findings:
    """At most this many sentences, with a note that names the table of all."""
    note = f"{most} of {len(findings)}; the table {table} holds all." if len(findings) > most else ""
    return Findings(findings[:most], note)


def place(row: Mapping[str, Any]) -> str:
    """Where a row of a table was measured, in words."""
    return ", ".join(filter(None, (row["gpu"], row["model"], row["workload"], held_in_words(row.get("held") or ""))))

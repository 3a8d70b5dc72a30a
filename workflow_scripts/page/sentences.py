"""Words, sentences and tables that several subjects share: verdicts, effects of a knob, pairs of cells, and claims."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import interval_text, listed, number, plural, sentence
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.page.blocks import Block, Finding, Fold, Text, outcome_words
from workflow_scripts.page.report import PLACE_HEADINGS, Part, Report, TablePart
from workflow_scripts.page.series import evenly, without_shared
from workflow_scripts.statistics.comparisons import log_margin
from workflow_scripts.study.setting_words import instead_of, knob_name, setting_phrase
from workflow_scripts.tables.results import RATE, Tables, records, require

# Verdicts by which a difference is shown, the one by which there is none, and the one by which it is not known.
DECIDED, FLAT, NOT_DECIDED = ("changes", "faster", "slower"), "flat", "not decided"


def span(values: Iterable[float]) -> str:
    """The range of some numbers; one number if they look equal, empty if none is known.

    >>> span([3.0, 1.0, 2.0]), span([5.0001, 5.0]), span([float("nan")])
    ('1 to 3', '5', '')
    """
    numbers = [value for value in values if not math.isnan(value)]
    return " to ".join(dict.fromkeys([number(min(numbers)), number(max(numbers))])) if numbers else ""


def with_counts(values: "pd.Series[Any]") -> str:
    """Each value with its count, the most frequent first.

    >>> with_counts(pd.Series(["engine_error", "ok", "ok"]))
    '2 measured, 1 engine error'
    """
    return ", ".join(f"{count} {outcome_words(value)}" for value, count in values.value_counts().items())


# What may explain the ratio of two devices.
_EXPLAINS = {
    "bandwidth": "memory bandwidth",
    "flop": "arithmetic",
    "measured_bandwidth": "measured memory bandwidth",
    "measured_flop": "measured arithmetic",
    "measured_cache": "measured rate of reading from cache",
    "kv_capacity": "size of the KV cache",
    "predicted": "rates that the step model predicts",
    "none": "no known ratio",
}


def explained(names: str) -> str:
    """What explains the ratio of two devices, given the names in the table `devices`.

    >>> explained("measured_bandwidth, measured_flop"), explained("none")
    ('measured memory bandwidth or measured arithmetic', 'no known ratio')
    """
    return listed((_EXPLAINS.get(name, name) for name in names.split(", ")), "or")


def held_in_words(held: str) -> str:
    """The settings that a table names in a cell, such as the column `held` of the effects.

    >>> held_in_words("block_size=32, max_num_seqs=1, enforce_eager=true"), held_in_words("")
    ('block size 32, at most 1 sequence, no compiled graphs', '')
    """
    parts = [part.partition("=") for part in held.split(", ") if part]
    return ", ".join(setting_phrase(knob, value) if value else knob for knob, _, value in parts)


# Maximum number of sentences of one kind; the table has all of them.
MOST_SENTENCES = 6
EFFECT_COLUMNS: Mapping[str, str] = {
    **PLACE_HEADINGS,
    "held": "Other settings",
    "ratio": "Highest over lowest (95 % interval)",
    "values": "Values compared",
    "value": "Highest rate",
    "baseline": "Lowest rate",
    "verdict": "Verdict",
    "scope": "Interval covers",
    "whole_ratio": "Over whole repeats",
    "work": "Requests",
    "moved_with_it": "Settings that changed with it",
    "starts_needed": "Further starts needed to decide",
    "bound_by": "Running sequences limited by",
}
# What limits the running sequences, by its name in the tables.
_BOUND_BY = {
    "sequences": "sequences allowed at once",
    "prompts": "number of requests",
    "kv_blocks": "number of KV blocks",
    "token_budget": "token budget of a step",
}
# Knobs whose effects have their own section.
OWN_SECTION = ("max_num_seqs", "block_size", "enable_prefix_caching", "num_speculative_tokens", "environment")
# What `pairs_that_differ_in` reports pair by pair.
_PAIR_KNOBS = ("enable_prefix_caching", "num_speculative_tokens", "model")


def ratio_finding(ratio: float, verdict: str, sentence: str) -> Finding:
    """A finding on a ratio, with the ratio as its badge if a difference is shown, otherwise with the verdict."""
    badge = f"{number(ratio)} times" if verdict in DECIDED else verdict
    return Finding(badge, sentence, "good" if verdict == FLAT else "neutral")


def without_effect(rows: pd.DataFrame) -> Iterator[Finding]:
    """Which of the settings (`about`) are flat in all their comparisons, and a ratio of each without a verdict."""
    flat = rows.groupby("about", sort=False)["verdict"].agg(set).map({FLAT}.issuperset)
    if flat.any():
        margin = number(rows["margin_pct"].max())
        settings = listed(map(knob_name, flat[flat].index))
        yield Finding(FLAT, f"No difference of more than {margin} %: {settings}.", "good")
    if not flat.all():
        first = rows[~rows["about"].map(flat)].drop_duplicates("about")
        for row in records(first.assign(scope=None)):
            times = with_interval(row, "ratio", f" times the {column(row['metric']).in_words}") + of_whole_repeats(row)
            what = sentence(instead_of(row["about"], row["value"], row["baseline"]))
            yield Finding(NOT_DECIDED, f"{what} on {row['gpu']}: {times}, {_verdict(row)}.")


def overall(effects: pd.DataFrame) -> pd.DataFrame:
    """The comparisons of all values of a knob, with the other settings in words."""
    rows = effects[effects["comparison"] == "overall"]
    bound_by = rows["bound_by"].map(
        lambda names: ", ".join(_BOUND_BY.get(name, name) for name in names.split(", ")), na_action="ignore"
    )
    switched = {"true": "on", "false": "off", "false, true": "off, on"}
    rows = rows.assign(held=rows["held"].map(held_in_words), knob=rows["knob"].map(knob_name), bound_by=bound_by)
    return rows.replace(dict.fromkeys(("value", "baseline", "values"), switched))


def effects_of(knob: str) -> TablePart:
    caption = f"Effect of {knob_name(knob)} on {column(RATE).in_words}"
    return TablePart(
        "knobs", EFFECT_COLUMNS, caption, lambda effects: overall(effects[effects["knob"] == knob]), optional=True
    )


def effects_on(tables: Tables, knob: str, comparison: str) -> pd.DataFrame:
    """The comparisons (`pair`, or `overall` for all values) of cells that differ only in the knob."""
    effects = tables.need("knobs")
    rows = effects[(effects["comparison"] == comparison) & (effects["knob"] == knob)]
    return require(rows, f"no two measured cells differ only in {knob_name(knob)}")


def verdicts_on(knob: str) -> Part:
    """For each device the verdicts over all values of a knob, and the largest change."""
    return lambda report: verdicts_by(effects_on(report.tables, knob, "overall"), "gpu")


def verdicts_of_others(report: Report) -> Iterator[Block]:
    effects = report.tables.need("knobs")
    others = effects[(effects["comparison"] == "overall") & ~effects["knob"].isin([*OWN_SECTION, *_PAIR_KNOBS])]
    yield from verdicts_by(others, "knob")


def verdicts_by(rows: pd.DataFrame, *keys: str) -> Iterator[Finding]:
    """For each group of comparisons with the same keys the verdicts, and the largest change."""
    for _, of_one in rows.groupby(list(keys), sort=False):
        largest = records(largest_first(of_one))[0]
        text = f"{largest['gpu']}: {effect_in_words(largest)} ({place(largest)})"
        if largest.get("only_waiting") is True:
            text += f" Without waiting for the host, the ratio is {number(largest['device_ratio'])}, within the margin."
        if len(of_one) > 1:
            what = f"largest {'change' if largest['decided'] else 'ratio'} of {len(of_one)} comparisons"
            text += f" This is the {what} of {knob_name(largest['knob'])}: {with_counts(of_one['verdict'])}."
        yield ratio_finding(largest["ratio"], largest["verdict"], text)


def largest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Comparisons from the largest change; those that are not decided come last, because their ratios may be noise."""
    rows = rows.assign(decided=rows["verdict"].isin(DECIDED), size=size_of(rows["ratio"]))
    return rows.sort_values(["decided", "size"], ascending=False, kind="stable")


def size_of(ratios: "pd.Series[float]") -> "pd.Series[float]":
    """The ratios, or those below 1 inverted, so that the largest change is the largest number."""
    return ratios.where(ratios > 1, 1 / ratios)


def with_interval(row: Mapping[str, Any], column: str, unit: str) -> str:
    """A value in words with its unit and its interval."""
    return interval_text(row[column], row[f"{column}_low"], row[f"{column}_high"], unit, row["scope"])


def of_whole_repeats(row: Mapping[str, Any]) -> str:
    """What a ratio of rates over whole repeats is while the engines are full, if that differs by more than the margin.

    >>> row = {"metric": "output_tokens_per_s", "ratio": 1.25, "margin_pct": 2}
    >>> of_whole_repeats(row | {"steady_ratio": 1.08, "steady_ratio_low": 0.95, "steady_ratio_high": 1.23})
    ' over whole repeats, 1.08 times while full (0.95 to 1.23)'
    """
    steady = row.get("steady_ratio")
    if row["metric"] != RATE or pd.isna(steady):
        return ""
    is_near = abs(math.log(steady / row["ratio"])) <= log_margin(row["margin_pct"])
    if is_near:
        return ""
    interval = span([row["steady_ratio_low"], row["steady_ratio_high"]])
    return f" over whole repeats, {number(steady)} times while full ({interval or 'no interval'})"


def effect_in_words(row: Mapping[str, Any]) -> str:
    """The ratio of two values of a setting with its verdict, and what else the engine changed."""
    ratio = with_interval(row, "ratio", f" times the {column(row['metric']).in_words}") + of_whole_repeats(row)
    words = [f"{sentence(instead_of(row['knob'], row['value'], row['baseline']))}: {ratio}, {_verdict(row)}."]
    if pd.notna(row["took_effect"]):
        both = f", against {row['baseline_shown']}" if row["took_effect"] else " with both"
        what = column(every_knob()[row["knob"]].shown_in).in_words.removesuffix(" effective")
        said = f"The engine reports {what} {row['shown']}{both}."
        words.append(re.sub(r"(?<![\d.])\d{4,}", lambda digits: f"{int(digits[0]):,}", said))
    if pd.notna(row["moved_with_it"]):
        words.append(f"The engine changed other settings with it: {row['moved_with_it']}.")
    if row["bimodal"]:
        words.append("The starts of a cell fall into two groups.")
    if pd.notna(over := row.get("saturated")):
        cells = {"value": row["value"], "baseline": row["baseline"]}.get(over)
        which = f"with {setting_phrase(row['knob'], cells)}" if cells else "in both"
        words.append(f"The load {which} is more than the server sustains, so latencies grow with the run.")
    return " ".join(words)


def _verdict(row: Mapping[str, Any]) -> str:
    margin = f"{row['margin_pct']:g} %"
    if row["verdict"] == FLAT:
        return f"flat: in these starts any difference is within {margin}"
    if row["verdict"] == "changes":
        return f"a change of more than {margin}"
    if pd.isna(row["ratio_low"]):
        return "not decided: this needs at least two starts of each, in the same rounds"
    if pd.isna(row["starts_needed"]):
        return f"not decided at a margin of {margin}, nor likely to be with 100 further starts of each"
    starts = plural(int(row["starts_needed"]), "further start")
    beyond, within = max(row["ratio_low"], 1 / row["ratio_high"]), max(row["ratio_high"], 1 / row["ratio_low"])
    alone = beyond > 1 + row["margin_pct"] / 100 or within <= 1 + row["margin_pct"] / 100
    among = " together with all other comparisons" if alone else ""
    return f"not decided{among} at a margin of {margin}: about {starts} of each would decide"


def what_verdicts_cover(report: Report) -> Iterator[Block]:
    report.tables.need("knobs")
    compared = (report.tables.get(name, "scope")["scope"] for name in ("knobs", "devices", "engines"))
    scopes = list(pd.concat(compared).dropna().unique())
    covers = (
        f"Of 100 intervals, about 95 contain the true ratio. They cover: {', or '.join(scopes)}. What a further run "
        "measures may lie outside, because it has an error too."
        if scopes
        else "No ratio has an interval, because the variation is not known."
    )
    what = f"{column(RATE).in_words} or, if its sentence says so, a latency"
    yield Text(
        f"A verdict compares {what}. The sentence also states the margin. At most 5 % of studies have any false "
        f"verdict, so one comparison may be not decided although its own interval excludes 1. {covers}"
    )


def pairs_that_differ_in(knob: str, known_by: str, describe: Callable[[Mapping[str, Any]], str]) -> Part:
    """Pairs of cells that differ only in the knob, the largest gain first.

    `describe` makes a further sentence from the medians of the pair's first cell, if its column `known_by` has a value.
    """

    def part(report: Report) -> Iterator[Block]:
        pairs = effects_on(report.tables, knob, "pair")
        of_cell = report.tables.rows.groupby("cell_id").median(numeric_only=True)
        selected = evenly(pairs.assign(held=without_shared(pairs["held"])), ["knob"], "ratio", MOST_SENTENCES)
        for row in records(selected.sort_values("ratio", ascending=False, kind="stable")):
            cell = of_cell.loc[row["cell_id"]]
            further = f" {describe(cell)}" if pd.notna(cell.get(known_by)) else ""
            yield ratio_finding(row["ratio"], row["verdict"], f"{place(row)}: {effect_in_words(row)}{further}")
        if len(selected) < len(pairs):
            few = f"{len(selected)} of {len(pairs)} comparisons, evenly from the largest ratio to the smallest"
            yield Text(f"{few}; the table `knobs` holds all.")

    return part


def some(findings: Sequence[Finding], table: str, most: int = MOST_SENTENCES) -> Iterator[Finding | Text]:
    """At most this many sentences, and a text that names the table of all."""
    yield from findings[:most]
    if len(findings) > most:
        yield Text(f"{most} of {len(findings)}; the table {table} holds all.")


def place(row: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (row["gpu"], row["model"], row["workload"], held_in_words(row.get("held") or ""))))


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

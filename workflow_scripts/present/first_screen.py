"""The first screen of the page: what the study found, one scorecard per device, model and workload, and how reliable
the numbers are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.wording import listed, number, plural, sentence
from workflow_scripts.present.blocks import outcome_words
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, records
from workflow_scripts.present.scorecards import SHOWN, Card, pairs_of_values, scorecards
from workflow_scripts.present.subjects.where_measured import NOISY_PCT, host_load
from workflow_scripts.present.words import explained, span
from workflow_scripts.study.progress import clock
from workflow_scripts.study.setting_words import said, setting

OPEN_CARDS, MOST_CHANGES, MOST_DEVICES = 3, 4, 2
# What a change of a knob is called; others are called by its values.
_CHANGES: Mapping[str, str] = {
    "max_num_seqs": "Up to {value} sequences at once instead of {baseline}",
    "block_size": "Blocks of {value} tokens instead of {baseline}",
    "batch_size": "Batches of {value} instead of {baseline}",
    "num_speculative_tokens": "Drafting {value} tokens ahead instead of {baseline}",
    "model": "{value} instead of {baseline}",
}
_FAILED = ("infeasible", "timeout", "engine_error")


@dataclass(frozen=True)
class Unfinished:
    """Progress of an unfinished study: how many of the `wanted` starts of cells have `ended`, and the same in words."""

    ended: int
    wanted: int
    words: Sequence[str]


@dataclass(frozen=True)
class FirstScreen:
    """What the reader sees first; `more_cards` are folded, so that the rest fits on a screen."""

    unfinished: Unfinished | None
    answers: Sequence[str]
    cards: Sequence[Card]
    more_cards: Sequence[Card]
    trust: Sequence[tuple[str, str]]


def first_screen(report: Report) -> FirstScreen:
    """The first screen of a study's report."""
    cards = scorecards(report)
    answers = [*_knobs(report), *_engines(report), *list(_devices(report))[:MOST_DEVICES]]
    if not answers:
        measured = report.grid["outcome"].eq("ok").any()
        answers = ["No two measured cells can be compared." if measured else "Nothing has been measured yet."]
    trust = [*_simulated(report), *_cells(report), *_intervals(report), *_load(report), *_hosts(report)]
    return FirstScreen(_unfinished(report), answers, cards[:OPEN_CARDS], cards[OPEN_CARDS:], trust)


def _unfinished(report: Report) -> Unfinished | None:
    seen = report.progress
    if seen is None:
        return None
    words = seen.in_words(lambda cell: report.names.get(cell.id, cell.id))
    return Unfinished(seen.ended, seen.wanted, [*words, f"As of {clock(seen.at_s)}."])


def _knobs(report: Report) -> Iterator[str]:
    """For each knob the change with the clearest effect; then the knobs without effect or without a verdict."""
    effects = report.tables.get("effects")
    if effects is None:
        return
    changes: list[str] = []
    flat: list[str] = []
    undecided: list[str] = []
    pairs = pairs_of_values(effects)
    pairs = pairs[pairs["verdict"] == "changes"]
    for knob, rows in effects[effects["comparison"] == "overall"].groupby("knob", sort=False):
        changed = rows[rows["verdict"] == "changes"]
        if len(changed):
            row = _surest(changed, pairs[pairs["knob"] == knob])
            seen = f", in {len(changed)} of {len(rows)} comparisons" if len(changed) < len(rows) else ""
            # An interval that holds for all pairs of values may contain 1 although two values are shown to differ.
            size = "a difference of unknown size" if row["ratio_low"] <= 1 <= row["ratio_high"] else _times(row)
            changes.append(f"{_change(row)}: {size}, {_where(report, row)}{seen}.")
        else:
            name = setting(str(knob), None).removesuffix(" default")
            (flat if (rows["verdict"] == "flat").all() else undecided).append(name)
    yield from changes[:MOST_CHANGES]
    if flat:
        margin = number(effects["margin_pct"].max())
        yield f"No difference of more than {margin} %: {listed(flat)}."
    if undecided:
        yield f"No difference shown, and none ruled out: {listed(undecided)}."


def _surest(overall: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, Any]:
    """The change whose interval is farthest from 1; a change that is less certain may have a larger mean.

    The interval of `overall` is wider than those of other pairs, because it holds for all of them at once.
    """
    rows = pd.concat([overall, pairs])
    distance = np.maximum(rows["ratio_low"].astype(float), 1 / rows["ratio_high"].astype(float))
    return records(rows.assign(distance=distance).sort_values("distance", ascending=False, kind="stable").head(1))[0]


def _change(row: Mapping[str, Any]) -> str:
    knob, value, baseline = row["knob"], row["value"], row["baseline"]
    if knob in _CHANGES:
        return _CHANGES[knob].format(value=value, baseline=baseline)
    if (value, baseline) == ("true", "false"):
        return sentence(said(knob, True).removesuffix(" on"))
    return f"{sentence(said(knob, value))} instead of {baseline}"


def _where(report: Report, row: Mapping[str, Any]) -> str:
    engine = [row["engine"]] if report.grid["engine"].nunique() > 1 else []
    return ", ".join([row["gpu"], row["workload"], *engine])


def _times(row: Mapping[str, Any], ratio: str = "ratio") -> str:
    """A ratio with its interval."""
    interval = span([row[f"{ratio}_low"], row[f"{ratio}_high"]])
    return f"{number(row[ratio])} times" + (f" ({interval})" if interval else "")


def _engines(report: Report) -> Iterator[str]:
    """The fastest vLLM setting against the fastest HuggingFace setting of the same place."""
    pairs = report.tables.get("engines")
    if pairs is None:
        return
    pairs = pairs[pairs["comparable"].eq(True)]
    fastest = pairs.sort_values(["vllm_output_tokens_per_s", "hf_output_tokens_per_s"], ascending=False)
    fastest = fastest.drop_duplicates(["gpu", "model", "workload"])
    if fastest.empty:
        return
    row = records(fastest.sort_values("improvement_ratio_low", ascending=False, kind="stable").head(1))[0]
    place = f"{row['gpu']}, {row['workload']}"
    # A table of an earlier version has no verdicts; there the interval decides.
    low, high = row["improvement_ratio_low"], row["improvement_ratio_high"]
    shown = row["verdict"] in SHOWN if "verdict" in row else low > 1 or high < 1
    if shown:
        times = _times(row, "improvement_ratio")
        yield f"vLLM against HuggingFace, each at its fastest: {times}, {place}."
    else:
        yield f"vLLM against HuggingFace, each at its fastest: no difference shown, {place}."


def _devices(report: Report) -> Iterator[str]:
    """For each pair of devices the median speed-up, and what explains it."""
    ratios = report.tables.get("ratios")
    if ratios is None:
        return
    for (a, b), rows in ratios[ratios["metric"] == "output_tokens_per_s"].groupby(["gpu_a", "gpu_b"], sort=False):
        known = rows["explanation"].where(rows["explanation"] != "none").dropna()
        why = "no known ratio of the devices explains it"
        if len(known):
            most = known.value_counts()
            why = f"{explained(most.index[0])} explains it in {most.iloc[0]} of {len(rows)}"
        if "cannot_show" in rows and rows["cannot_show"].notna().any():
            why = "this machine cannot show whether memory bandwidth explains it"
        of_settings = f"median of {len(rows)} settings" if len(rows) > 1 else "one setting"
        yield f"{a} against {b}: {number(rows['ratio'].median())} times, {of_settings}; {why}."


def _simulated(report: Report) -> Iterator[tuple[str, str]]:
    cells = report.tables.cells
    if "source" in cells and len(gpus := cells.loc[cells["source"] == "simulated", "gpu"].unique()):
        yield "Simulated", f"{listed(map(str, gpus))}: these numbers are made up and say nothing about a GPU"


def _cells(report: Report) -> Iterator[tuple[str, str]]:
    grid = report.grid
    elsewhere = grid["source"].eq("imported").to_numpy(dtype=bool)
    outcomes = grid.loc[~elsewhere, "outcome"]
    failed = outcomes[outcomes.isin(_FAILED)].value_counts()
    how = (
        f" ({', '.join(f'{count} {outcome_words(outcome)}' for outcome, count in failed.items())})"
        if len(failed)
        else ""
    )
    counted = [f"{outcomes.eq('ok').sum()} of {len(outcomes)} measured", f"{failed.sum()} failed{how}"]
    counted.append(f"{outcomes.eq('invalid').sum()} invalid")
    if missing := outcomes.eq("missing").sum():
        counted.append(f"{missing} not run yet")
    if elsewhere.any():
        counted.append(f"{elsewhere.sum()} imported from runs elsewhere")
    yield "Cells", ", ".join(counted)
    effects = report.tables.get("effects")
    if effects is not None:
        overall = effects[effects["comparison"] == "overall"]
        undecided = overall["verdict"].eq("not decided").sum()
        yield "Undecided", f"{undecided} of {len(overall)} comparisons of settings"


def _intervals(report: Report) -> Iterator[tuple[str, str]]:
    starts = report.tables.cells.groupby("cell_id")["start"].nunique()
    several = starts.max() > 1
    repeats = f"{plural(report.study.repeats, 'repeat')} per {'start' if several else 'cell'}"
    if several:
        repeats += f", {span(starts[starts > 0])} starts per cell"
    effects = report.tables.get("effects")
    scopes = [] if effects is None or "scope" not in effects else list(effects["scope"].dropna().unique())
    # An interval says nothing about variation that it does not cover, such as another start.
    covered = [f"if they differ only by what varies {listed(scopes, 'or')}"] if scopes else []
    yield "Intervals", "; ".join([", ".join(["brackets hold 95 % of further runs", *covered]), repeats])


def _load(report: Report) -> Iterator[tuple[str, str]]:
    try:
        load, noisy = host_load(report)
    except MissingError:
        return
    above = f"above {NOISY_PCT:g} % of the CPU in {len(noisy)} of {len(load)} measured cells"
    yield "Load by others", above if len(noisy) else f"never above {NOISY_PCT:g} % of the CPU"


def _hosts(report: Report) -> Iterator[tuple[str, str]]:
    """Names of hosts and devices, and versions of engines."""
    cells = report.tables.cells

    def known(column: str) -> list[str]:
        return [str(value) for value in cells[column].dropna().unique()] if column in cells else []

    if hosts := known("host"):
        yield "Host", ", ".join(dict.fromkeys([*hosts, *known("device_name")]))
    if "engine_version" in cells and cells["engine_version"].notna().any():
        versions = cells.dropna(subset="engine_version").groupby("engine", sort=False)["engine_version"].unique()
        named = [
            version if version[:1].isalpha() else f"{engine} {version}"
            for engine, of_one in versions.items()
            for version in map(str, of_one)
        ]
        yield "Versions", ", ".join(dict.fromkeys(named))

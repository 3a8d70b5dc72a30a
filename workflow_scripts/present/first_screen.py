"""The first screen of the page: one sentence and one picture per answer, the best settings, and one line of trust."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import listed, number, plural, sentence
from workflow_scripts.present.best_settings import best_settings
from workflow_scripts.present.blocks import Figure, Fold, Table, outcome_words
from workflow_scripts.present.by_knob import TOTAL
from workflow_scripts.present.figures import FIGURES
from workflow_scripts.present.ratio_by_sequences import speedups
from workflow_scripts.present.report import Report, blocks_of
from workflow_scripts.present.report_tables import MissingError, records
from workflow_scripts.present.sentences import without_effect
from workflow_scripts.present.series import means
from workflow_scripts.present.subjects import device_ratios, environments_compared, other_settings, sequence_limit
from workflow_scripts.present.subjects.measured_or_predicted import predicted_in_words
from workflow_scripts.present.subjects.where_measured import NOISY_PCT, host_load
from workflow_scripts.present.words import DECIDED, explained, span
from workflow_scripts.study.progress import clock
from workflow_scripts.study.setting_words import setting_phrase, shortly

MOST_DEVICES = 2
# A larger share of a repeat in which the engine drains is told.
MUCH_DRAIN = 0.1


@dataclass(frozen=True)
class Unfinished:
    """Progress of an unfinished study: how many of the `wanted` starts of cells have `ended`, and the same in words."""

    ended: int
    wanted: int
    words: Sequence[str]


@dataclass(frozen=True)
class Answer:
    """An answer of the study: its sentences, and its picture, which is that of the section with this address."""

    section: str
    sentences: Sequence[str]
    figure: Figure | None


@dataclass(frozen=True)
class FirstScreen:
    """What the reader sees first."""

    unfinished: Unfinished | None
    answers: Sequence[Answer]
    trust: Sequence[tuple[str, str]]
    best: Table | Fold | None


def first_screen(report: Report) -> FirstScreen:
    """The first screen of a study's report."""
    parts = {
        environments_compared.SUBJECT.id: (_environments, environments_compared.environments),
        sequence_limit.SUBJECT.id: (_throughput, sequence_limit.throughput),
        device_ratios.SUBJECT.id: (_devices, device_ratios.device_ratios),
        other_settings.SUBJECT.id: (_changes, other_settings.effects),
    }
    answers = []
    for section, (told, draw) in parts.items():
        try:
            sentences = list(told(report))
        except MissingError:
            continue
        answers.append(Answer(section, sentences, _figure(report, draw.__name__)))
    if not any(answer.sentences for answer in answers):
        measured = report.grid["outcome"].eq("ok").any()
        said_instead = "No two measured cells can be compared." if measured else "Nothing has been measured yet."
        answers = [Answer("cells", [said_instead], None)]
    trust = [*_simulated(report), *_cells(report), *_starts(report), *_load(report), *_versions(report)]
    return FirstScreen(_unfinished(report), answers, trust, best_settings(report))


def _figure(report: Report, name: str) -> Figure | None:
    return next((block for block in blocks_of(FIGURES[name], report) if isinstance(block, Figure)), None)


def _unfinished(report: Report) -> Unfinished | None:
    seen = report.progress
    if seen is None:
        return None
    words = seen.in_words(lambda cell: report.names.get(cell.id, cell.id))
    return Unfinished(seen.ended, seen.wanted, [*words, f"As of {clock(seen.at_s)}."])


def _environments(report: Report) -> Iterator[str]:
    """The verdicts on each environment with the largest ratio, and what changed by itself."""
    pairs = environments_compared.pairs(report.tables)
    for (gpu, value), rows in list(pairs.groupby(["gpu", "value"], sort=False))[:MOST_DEVICES]:
        counted = ", ".join(f"{count} {verdict}" for verdict, count in rows["verdict"].value_counts().items())
        largest = rows.iloc[0]
        ends = span(largest[["ratio_low", "ratio_high"]])
        yield (
            f"{value} instead of {largest['baseline']} on {gpu}: {counted}. The largest ratio is "
            f"{number(largest['ratio'])} ({ends or 'no interval'})."
        )
    for block in environments_compared.changed_by_itself(report):
        yield from (finding.sentence for finding in block.findings[:MOST_DEVICES])


def _throughput(report: Report) -> Iterator[str]:
    """The first device's total rate at the lowest and the highest value of the knob; then what others published."""
    knob, group = sequence_limit.most_important_group(report.tables)
    grown, ends = [], (group.rows["x"].min(), group.rows["x"].max())
    for gpu, of_one in group.rows.groupby("gpu", sort=False):
        at = means(of_one, [TOTAL.column], "x")[TOTAL.column].reindex(ends)
        if at.notna().all():
            share = of_one.reindex(columns=["x", sequence_limit.DRAIN]).groupby("x").median().loc[ends[1]].item()
            fewer = f", with fewer running in the last {100 * share:.0f} %" if share > MUCH_DRAIN else ""
            times = number(at[ends[1]] / at[ends[0]])
            grown.append(f"{times} times the total tokens/s on {gpu} ({span(at)}) over whole repeats{fewer}")
    if grown:
        yield f"{sentence(setting_phrase(knob, ends[1]))} instead of {shortly(knob, *ends)}: {grown[0]}."
    published = sequence_limit.published_rates(report.tables, set(group.rows["cell_id"]))
    if published is not None:
        rows = group.rows.assign(published=group.rows["cell_id"].map(published)).dropna(subset="published")
        columns = ["published", TOTAL.column]
        of_gpus = {gpu: means(of_one, columns, "x") for gpu, of_one in rows.groupby("gpu", sort=False)}
        pairs = pd.concat(of_gpus, names=["gpu"]).reset_index()
        pairs["times"] = pairs["published"] / pairs[TOTAL.column]
        of_first = pairs[pairs["gpu"] == pairs["gpu"].iloc[0]]
        worst = of_first.loc[of_first["times"].idxmax()]
        yield (
            f"Published for {worst['gpu']} with {setting_phrase(knob, worst['x'])}: {worst['published']:,.0f} tokens/s,"
            f" {number(worst['times'])} times what was measured."
        )


def _devices(report: Report) -> Iterator[str]:
    """For each pair of devices how the speed-up changes with the number of sequences; else what explains it."""
    with suppress(MissingError):
        yield from (told + why for _, told, why in list(speedups(report.tables))[:MOST_DEVICES])
        return
    ratios = report.tables.need("ratios")
    of_rates = ratios[ratios["metric"] == "output_tokens_per_s"]
    for (a, b), rows in list(of_rates.groupby(["gpu_a", "gpu_b"], sort=False))[:MOST_DEVICES]:
        known = rows["explanation"].where(rows["explanation"] != "none").dropna()
        why = "no single ratio of the devices is shown to explain it"
        if len(known):
            most = known.value_counts()
            why = f"it is shown to be the ratio of {explained(most.index[0])} in {most.iloc[0]} of {len(rows)}"
        if "cannot_show" in rows and rows["cannot_show"].notna().any():
            why = "this machine cannot show whether memory bandwidth explains it"
        of_settings = f"{len(rows)} settings" if len(rows) > 1 else "one setting"
        yield f"{a} against {b}: {span(rows['ratio'])} times over {of_settings}; {why}."


def _changes(report: Report) -> Iterator[str]:
    """The first device's largest change that is shown, then the settings without effect or without a verdict."""
    rows = other_settings.largest_changes(report.tables)
    shown = rows["verdict"].isin(DECIDED)
    own = rows[shown & (rows["gpu"] == next((gpu for gpu in report.tables.devices if gpu in set(rows["gpu"])), None))]
    for row in records((own if len(own) else rows[shown]).head(1)):
        yield f"{row['label']}: {_times(row)} the output tokens/s on {row['gpu']}."
    yield from without_effect(
        rows[~shown & (rows["about"] != "engine") & ~rows["about"].isin(rows.loc[shown, "about"])]
    )


def _times(row: dict[str, Any]) -> str:
    """A ratio with its interval."""
    interval = span([row["ratio_low"], row["ratio_high"]])
    return f"{number(row['ratio'])} times" + (f" ({interval})" if interval else "")


def _simulated(report: Report) -> Iterator[tuple[str, str]]:
    cells = report.tables.cells
    if "source" in cells and len(gpus := cells.loc[cells["source"] == "simulated", "gpu"].unique()):
        yield "Simulated", f"{listed(map(str, gpus))}: these numbers are made up and say nothing about a GPU"


def _cells(report: Report) -> Iterator[tuple[str, str]]:
    elsewhere = report.grid["source"].eq("imported").to_numpy(dtype=bool)
    outcomes = report.grid.loc[~elsewhere, "outcome"]
    counted = [f"{outcomes.eq('ok').sum()} of {len(outcomes)} measured"]
    for outcome in ("infeasible", "timeout", "engine_error", "invalid"):
        if count := outcomes.eq(outcome).sum():
            counted.append(f"{count} {outcome_words(outcome)}")
    estimates = report.tables.get("estimates")
    if estimates is not None:
        counted += predicted_in_words(estimates)
    elif missing := outcomes.eq("missing").sum():
        counted.append(f"{missing} not run yet")
    if elsewhere.any():
        counted.append(f"{elsewhere.sum()} imported from runs elsewhere")
    yield "Cells", ", ".join(counted)


def _starts(report: Report) -> Iterator[tuple[str, str]]:
    """How often each cell was measured, and how far the starts of one cell are apart."""
    cells = report.tables.cells
    starts = cells.groupby("cell_id")["start"].nunique()
    several = starts.max() > 1
    told = f"{plural(report.study.repeats, 'repeat')} per {'start' if several else 'cell'}"
    if several:
        medians = cells.groupby(["cell_id", "start"])["output_tokens_per_s"].median().groupby("cell_id")
        apart = 100 * (medians.max() / medians.min() - 1)[starts > 1].dropna()
        told += f", {span(starts[starts > 0])} starts per cell"
        told += f", which differ by at most {number(apart.max())} %" if len(apart) else ""
    yield "Measured", told


def _load(report: Report) -> Iterator[tuple[str, str]]:
    try:
        load, noisy = host_load(report)
    except MissingError:
        return
    above = f"above {NOISY_PCT:g} % of the CPU in {len(noisy)} of {len(load)} measured cells"
    yield "Load by others", above if len(noisy) else f"never above {NOISY_PCT:g} % of the CPU"


def _versions(report: Report) -> Iterator[tuple[str, str]]:
    cells = report.tables.cells
    if "engine_version" in cells and cells["engine_version"].notna().any():
        versions = cells.dropna(subset="engine_version").groupby("engine", sort=False)["engine_version"].unique()
        named = [
            version if version[:1].isalpha() else f"{engine} {version}"
            for engine, of_one in versions.items()
            for version in map(str, of_one)
        ]
        yield "Versions", ", ".join(dict.fromkeys(named))

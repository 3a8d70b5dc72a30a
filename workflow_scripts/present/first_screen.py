"""The first screen of the page: one sentence and one picture per answer, the best settings, and one line of trust."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import listed, number, plural, sentence
from workflow_scripts.device.device_record import NOISY_PCT
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.page.blocks import UNKNOWN, Figure, Finding, Fold, Table, outcome_words
from workflow_scripts.page.plot import Plot
from workflow_scripts.page.report import Report
from workflow_scripts.page.sentences import (
    DECIDED,
    NOT_DECIDED,
    OWN_SECTION,
    explained,
    largest_first,
    of_whole_repeats,
    span,
    with_counts,
    without_effect,
)
from workflow_scripts.page.series import PLACES, environments_in_words, one_line, values_at
from workflow_scripts.physics.rate_ceiling import times_at_mixes
from workflow_scripts.present.figures import FIGURES
from workflow_scripts.questions.devices import section as device_ratios
from workflow_scripts.questions.devices.section import of_rates, speedups
from workflow_scripts.questions.environments import section as environments_compared
from workflow_scripts.questions.knobs import latency, sequence_limit
from workflow_scripts.questions.knobs import section as other_settings
from workflow_scripts.questions.knobs.sequence_limit import WORK
from workflow_scripts.questions.limits.section import RATES
from workflow_scripts.questions.predictions import section as predicted_and_measured
from workflow_scripts.questions.recommendations.table import TESTS_ONLY
from workflow_scripts.questions.trust.where_measured import SLOW_FIRST, host_load, steadiness, without_first
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.study.progress import clock
from workflow_scripts.study.setting_words import instead_of, setting_phrase, settings_in_words, shortly
from workflow_scripts.tables.results import RAN_IN, RATE, STEADY, MissingError, Tables, records, under_load

MOST_DEVICES, MOST_RATES, SEQUENCES = 2, 3, "max_num_seqs"
TIMES, WAIT, ENERGY = ("tpot_s_p50", "ttft_s_p50"), "queue_s_p50", "energy_j_per_output_token"
# A wait for a free place is told if it is more than this share of the time to the first token.
WORTH_SAYING = 0.05
# If it is not decided between more settings, these are not named.
MOST_NAMED = 3
# A longer table of the fastest settings is folded.
MOST_OPEN = 10


@dataclass(frozen=True)
class Unfinished:
    """Progress of an unfinished study: how many of the `wanted` starts of cells have `ended`, and the same in words."""

    ended: int
    wanted: int
    words: Sequence[str]


@dataclass(frozen=True)
class Answer:
    """An answer of the study: its lines, and its picture, which is that of the section with this address. A line
    without a verdict says what the section's first finding says."""

    section: str
    lines: Sequence[Finding]
    figure: Figure | None


@dataclass(frozen=True)
class FirstScreen:
    """What the reader sees first."""

    unfinished: Unfinished | None
    answers: Sequence[Answer]
    trust: Sequence[tuple[str, str]]
    best: Table | Fold | None


def first_screen(report: Report) -> FirstScreen:
    parts: dict[str, tuple[Callable[[Report], Iterable[Finding]], Callable[[Tables], Plot]]] = {
        environments_compared.SUBJECT.id: (_in_one(_environments), environments_compared.environments),
        sequence_limit.SUBJECT.id: (_in_one(_throughput), sequence_limit.throughput),
        latency.SUBJECT.id: (lambda _: (), latency.speed_per_user),
        device_ratios.SUBJECT.id: (_in_one(_devices), device_ratios.device_ratios),
        other_settings.SUBJECT.id: (_changes, other_settings.effects),
        predicted_and_measured.SUBJECT.id: (lambda _: (), predicted_and_measured.prediction_errors),
    }
    answers = [Answer("cells", held, None)] if (held := list(_pipeline(report))) else []
    for section, (lines_of, draw) in parts.items():
        with suppress(MissingError):
            lines = list(lines_of(report))
            figure = next((block for block in FIGURES[draw.__name__](report) if isinstance(block, Figure)), None)
            answers.append(Answer(section, lines, figure))
    of_pairs = ("knobs", "latencies", "engines", "devices", "environments")
    if not any(answer.lines for answer in answers) and not any(len(report.tables.get(of)) for of in of_pairs):
        answers = [_without_comparison(report)]
    unfinished = None
    if seen := report.progress:
        words = [*seen.in_words(), f"As of {clock(seen.at_s)}."]
        unfinished = Unfinished(seen.ended, seen.wanted, words)
    return FirstScreen(unfinished, answers, list(_trust(report)), best_settings(report))


def _pipeline(report: Report) -> Iterator[Finding]:
    """Whether every cell that can run was measured, if the study asks whether the pipeline holds."""
    if "pipeline" in report.study.question:
        failed = int((~report.grid["outcome"].isin(["ok", "infeasible"])).sum())
        verdict, tone = ("failed", "bad") if failed else ("holds", "good")
        yield Finding(verdict, f"Cells: {', '.join(_cells(report))}; {failed} failed or not run.", tone)


def _without_comparison(report: Report) -> Answer:
    """How many cells were measured if no two differ in one setting alone, with the rates of the first ones."""
    cells = report.grid["cell_id"][report.grid["outcome"].eq("ok")]
    rates = report.tables.value(RATE).reindex(cells).dropna().head(MOST_RATES)
    named = "; ".join(f"{report.names[str(cell)]}: {column(RATE).text(rate)}" for cell, rate in rates.items())
    said = (
        f"No two measured cells differ in one setting alone. {named}" if len(cells) else "Nothing has been measured yet"
    )
    line = Finding(f"{len(cells)} of {plural(len(report.grid), 'cell')}", f"{said.removesuffix('. ')}.")
    return Answer("cells", [line], None)


def _in_one(sentences_of: Callable[[Report], Iterator[str]]) -> Callable[[Report], Iterator[Finding]]:
    """The sentences as one line without a verdict, if there are any."""

    def line(report: Report) -> Iterator[Finding]:
        if told := " ".join(sentences_of(report)):
            yield Finding("", told)

    return line


def _environments(report: Report) -> Iterator[str]:
    pairs = environments_compared.pairs(report.tables)
    for (gpu, value), rows in list(pairs.groupby(["gpu", "value"], sort=False))[:MOST_DEVICES]:
        largest = rows.iloc[0]
        ends = span(largest[["ratio_low", "ratio_high"]])
        yield (
            f"{value} instead of {largest['baseline']} on {gpu}: {with_counts(rows['verdict'])}. The largest ratio is "
            f"{number(largest['ratio'])} ({ends or 'no interval'})."
        )
    changed = environments_compared.changed_by_itself(report)
    yield from (block.sentence for block in islice(changed, MOST_DEVICES) if isinstance(block, Finding))


def _throughput(report: Report) -> Iterator[str]:
    """The first device's rate and KV memory at the lowest and the highest max-num-seqs; then what others published."""
    knob, group = sequence_limit.most_important_group(report.tables)
    if knob != SEQUENCES:
        return
    effects = report.tables.get("knobs", "comparison", "knob", "gpu", "ratio", "verdict")
    overall = effects[(effects["comparison"] == "overall") & (effects["knob"] == knob)]
    # As the first finding of the section, whose verdict stands before the sentence.
    for row in records(largest_first(overall[overall["gpu"].isin(overall["gpu"].head(1))]).head(1)):
        ends = f"; 95 % interval {interval}" if (interval := span([row["ratio_low"], row["ratio_high"]])) else ""
        settings = [name for name in group.rows["series"][group.rows["cell_id"] == row["cell_id"]] if name][:1]
        told = (
            f"with {', '.join([instead_of(knob, row['value'], row['baseline']), *settings])}, "
            f"{number(row['ratio'])} times the output tokens/s on {row['gpu']} ({number(row['baseline_rate'])} to "
            f"{number(row['rate'])}{', while the engine is full' if row['metric'] == STEADY else ''})"
            f"{ends}{of_whole_repeats(row)}."
        )
        yield f"Not flat: {told}" if row["verdict"] in DECIDED else sentence(told)
    yield from (block.sentence for block in islice(sequence_limit.kv_memory(report), 1) if isinstance(block, Finding))
    line = one_line(group)
    values = values_at(report.tables, line, sequence_limit.rate_of(line))
    published = sequence_limit.published_rates(report.tables, set(group.rows["cell_id"]))
    if len(published):
        rows = line.rows.merge(published, left_on="cell_id", right_index=True)
        gpu = rows["gpu"].iloc[0]
        own = rows[rows["gpu"] == gpu].groupby("x")[list(published)].median()
        own["times"] = own["published"] / values.loc[gpu].squeeze(axis=1)
        at = own.loc[own["times"].idxmax()]
        beside = times_at_mixes(at["times"], at["published_prompt_share"])
        yield f"Published for {gpu} with {setting_phrase(knob, at.name)}: {at['published']:,.0f} tokens/s, {beside}."


def _devices(report: Report) -> Iterator[str]:
    """For each pair of devices how the speed-up changes with the number of sequences; else what explains it."""
    with suppress(MissingError):
        yield from (comparison for _, comparison, _ in list(speedups(report.tables))[:MOST_DEVICES])
        return
    ratios = of_rates(report.tables.need("devices"))
    for (a, b), rows in list(ratios.groupby(["gpu_a", "gpu_b"], sort=False))[:MOST_DEVICES]:
        explanations = rows["explanation"].where(rows["explanation"] != "none").dropna()
        why = "no single ratio of the devices is shown to explain it"
        if len(explanations):
            most = explanations.value_counts()
            why = f"it is shown to be the ratio of {explained(most.index[0])} in {most.iloc[0]} of {len(rows)}"
        if rows["cannot_show"].notna().any():
            why = "this machine cannot show whether memory bandwidth explains it"
        of_settings = f"{len(rows)} settings" if len(rows) > 1 else "one setting"
        yield f"{a} against {b}: {span(rows['ratio'])} times over {of_settings}; {why}."


def _changes(report: Report) -> Iterator[Finding]:
    """Of the settings without a section of their own: the first device's largest change that is shown, then those
    without effect or without a verdict."""
    rows = other_settings.largest_changes(report.tables)
    rows = rows[~rows["about"].isin([*OWN_SECTION, "engine"])]
    shown = rows["verdict"].isin(DECIDED)
    own = rows[shown & (rows["gpu"] == next((gpu for gpu in report.tables.devices if gpu in set(rows["gpu"])), None))]
    for row in records((own if len(own) else rows[shown]).head(1)):
        interval = span([row["ratio_low"], row["ratio_high"]])
        times = f"{number(row['ratio'])} times" + (f" ({interval})" if interval else "")
        said = f"{row['label']}: {times} the output tokens/s on {row['gpu']}{of_whole_repeats(row)}."
        yield Finding(f"{number(row['ratio'])} times", said)
    yield from without_effect(rows[~shown & ~rows["about"].isin(rows.loc[shown, "about"])])
    yield from other_settings.not_compared(report)


def _trust(report: Report) -> Iterator[tuple[str, str]]:
    cells = report.tables.rows
    if len(gpus := cells.loc[cells["source"] == "simulated", "gpu"].unique()):
        yield "Simulated", f"{listed(map(str, gpus))}: these numbers are made up and say nothing about a GPU"
    if random := [
        of for of, model in resolved_models(report.study).items() if model.load_format in ("dummy", "seeded")
    ]:
        of = f"random, of {listed(random)}; the work does not depend on their values"
        yield "Weights", f"{of}, but at a power limit the speed may, slightly"
    yield "Cells", ", ".join(_cells(report))
    yield "Measured", _starts(report)
    known, unsteady = steadiness(cells)
    if unsteady:
        faster = without_first(report.tables, unsteady)
        yield "Not steady", f"{len(unsteady)} of {plural(len(known), 'measured cell')} had {SLOW_FIRST}{faster}"
    with suppress(MissingError):
        load, noisy = host_load(report.tables.rows)
        above = f"above {NOISY_PCT:g} % of the CPU in {len(noisy)} of {len(load)} measured cells"
        yield "Load by others", above if len(noisy) else f"never above {NOISY_PCT:g} % of the CPU"
    versions = cells.dropna(subset="engine_version").groupby("engine", sort=False)["engine_version"].unique()
    named = [
        version if version[:1].isalpha() else f"{engine} {version}"
        for engine, of_one in versions.items()
        for version in of_one
    ]
    if named:
        several = bool(cells.groupby(["gpu", "engine"])[RAN_IN].nunique().max() > 1)
        yield (
            "Versions",
            ", ".join(dict.fromkeys(named)) + ", in several environments, which are not compared" * several,
        )


def _cells(report: Report) -> Iterator[str]:
    elsewhere = report.grid["source"].eq("imported").to_numpy(dtype=bool)
    outcomes = report.grid.loc[~elsewhere, "outcome"]
    by_jobs = report.tables.get("provenance", "what")["what"].eq("job: SLURM_JOB_ID").any()
    yield f"{outcomes.eq('ok').sum()} of {len(outcomes)} measured{', by Slurm jobs' * bool(by_jobs)}"
    for outcome in ("infeasible", "timeout", "engine_error", "invalid"):
        if count := outcomes.eq(outcome).sum():
            yield f"{count} {outcome_words(outcome)}"
    if missing := outcomes.eq("missing").sum():
        yield f"{missing} not run yet"
    if elsewhere.any():
        yield f"{elsewhere.sum()} imported from runs elsewhere"


def _starts(report: Report) -> str:
    starts = report.tables.rows.groupby("cell_id")["start"].nunique()
    repeats = plural(report.study.repeats, "repeat")
    if starts.max() <= 1:
        return f"{repeats} of one start per cell; how much starts differ is known from other studies"
    text = f"{repeats} per start, {span(starts[starts > 0])} starts per cell"
    measures = report.tables.get("intervals", "measure", "starts_apart_pct")
    apart = measures.groupby("measure")["starts_apart_pct"].max().reindex([RATE, STEADY])
    named = [
        f"{number(of)} %{words}"
        for of, words in zip(apart, (" over whole repeats", " while full"), strict=True)
        if of > 0
    ]
    return text + (f", whose mean throughput differs by at most {listed(named)}" if named else "")


def best_settings(report: Report) -> Table | Fold | None:
    """The table, with the settings of each engine apart and the largest model with the most work first; None if no
    cell has a rate that is not that of its load."""
    tables, place = report.tables, [*PLACES, "engine"]
    recommended = tables.get("recommendations", "role", *PLACES)
    cells = report.grid[(report.grid["outcome"] == "ok") & report.grid["comparable"].eq(True)]
    cells = cells[~under_load(cells)]
    means_of = tables.values.reindex(columns=[RATE, *TIMES, WAIT, ENERGY])
    cells = cells[cells["cell_id"].isin(means_of.index[means_of[RATE].notna()])]
    if cells.empty:
        return None
    cells = cells.merge(tables.rows.drop_duplicates("cell_id")[["cell_id", RAN_IN]], on="cell_id")
    cells["environment"] = environments_in_words(cells)
    fastest = recommended[recommended["role"] == "best_throughput"].assign(engine=VLLM.name)
    best = {row["cell_id"]: row for row in records(fastest)}
    measured = tables.rows[tables.rows["cell_id"].isin(cells["cell_id"])]
    size = measured.groupby("model")["model_weights_gib"].max().fillna(0).to_dict()
    tokens = measured.assign(tokens=measured[RATE] * measured["wall_s"]).groupby(PLACES)["tokens"].sum().to_dict()
    places = sorted(
        cells.groupby([*place, RAN_IN], sort=False), key=lambda of: (size[of[0][1]], tokens[of[0][:3]]), reverse=True
    )
    rows = [
        _row(tables, of_place, means_of, next((best[cell] for cell in of_place["cell_id"] if cell in best), None))
        for _, of_place in places
    ]
    headings = ["Model and workload", "Device and engine", "Fastest setting"]
    headings += [column(RATE).axis, *(column(name).label for name in TIMES), column(ENERGY).axis, "Of ceiling"]
    note = (
        "Geometric means over starts, of whole repeats, with the 95 % interval; or the range of several settings, with "
        "their number, if it is not decided which is the fastest. Where requests differ, rates while full decide. "
        "First tokens include waiting."
    )
    if len(sources := tables.limits.drop_duplicates("cell_id")["rates"].map(RATES).unique()):
        note += f" Ceilings: {listed(sources)}."
    if means_of[ENERGY].isna().all():
        headings, rows = headings[:-2] + headings[-1:], [row[:-2] + row[-1:] for row in rows]
    table = Table("Fastest settings", headings, rows, [i > 2 for i in range(len(headings))], note)
    return table if len(rows) <= MOST_OPEN else Fold(f"Fastest settings of {len(rows)} combinations", [table])


def _row(tables: Tables, cells: pd.DataFrame, means_of: pd.DataFrame, best: dict[str, Any] | None) -> list[str]:
    """The row of a place; it does not depend on which of several tied settings has the highest mean.

    Without a recommendation, intervals say which settings are tied.
    """
    metric = best["metric"] if best else RATE
    if best:
        # What is a test of preemption is not recommended.
        cells = cells[cells.get(TESTS_ONLY, pd.Series(index=cells.index)).isna()]
    first, rates = cells.iloc[0], tables.intervals_of(metric).reindex(cells["cell_id"])
    if best is None:
        # Settings whose intervals overlap that of the highest mean are not shown to differ from it.
        lowest = float(rates["low"].iloc[rates["value"].to_numpy().argmax()])
        members = cells[~rates["high"].lt(lowest).to_numpy()]
    else:
        ties = best["ties"].split(", ") if isinstance(best["ties"], str) else []
        members = cells[cells["knobs"].isin([best["knobs"], *ties])]
    words = best_in_words(members, cells, tables.knobs)
    work = tables.measured.loc[tables.measured["cell_id"].isin(cells["cell_id"]), list(WORK)]
    words += "; requests differ" * bool(work.nunique().gt(1).any())
    of_them = means_of.loc[members["cell_id"]]
    rate = span(rates["value"].reindex(members["cell_id"]))
    if len(members) > 1:
        rate = f"{rate} (of {len(members)})"
    elif ends := span(rates.loc[members["cell_id"].iloc[0], ["low", "high"]]):
        rate = f"{rate} ({ends})"
    rate += " while full" * (metric == STEADY)
    times = [of_them[name].dropna() for name in TIMES]
    latencies = [
        column(name).text(of.min(), of.max()) if len(of) else UNKNOWN for name, of in zip(TIMES, times, strict=True)
    ]
    waits = of_them[WAIT].dropna()
    if len(waits) and waits.max() > WORTH_SAYING * times[1].max():
        latencies[1] += f", waits {column(WAIT).text(waits.min(), waits.max())}"
    named = [
        f"{first['model']}, {first['workload']}",
        f"{first['gpu']}, {first['engine']}{first['environment']}",
        words,
    ]
    return [*named, rate, *latencies, span(of_them[ENERGY]) or UNKNOWN, _of_limit(tables, members)]


def best_in_words(members: pd.DataFrame, cells: pd.DataFrame, knobs: Sequence[str]) -> str:
    """The best setting in words; `members` are the best cell and those not shown to be slower, `cells` all of them."""
    varied = [knob for knob in knobs if cells[knob].nunique(dropna=False) > 1]
    if len(cells) == 1:
        only = settings_in_words(members, [knob for knob in knobs if members[knob].notna().any()])[0]
        return f"{sentence(only)} (the only one)"
    if len(members) == 1:
        others = settings_in_words(cells.drop(members.index), varied)
        among = f"instead of {others[0]}" if len(others) == 1 else f"of {len(cells)}"
        return f"{sentence(settings_in_words(members, varied)[0])} ({among})"
    if len(members) == len(cells):
        return f"Not decided between {len(cells)} settings"
    fixed = [knob for knob in varied if members[knob].nunique(dropna=False) == 1]
    moving = [knob for knob in varied if knob not in fixed]
    values = members[fixed].astype("string").fillna("").iloc[0]
    alike = (cells[fixed].astype("string").fillna("") == values).all(axis=1)
    if fixed and alike.sum() == len(members):
        tied = listed(_side_by_side(members.sort_values(moving), moving), "or")
        return f"{sentence(settings_in_words(members.head(1), fixed)[0])}; {tied}"
    named = f": {'; '.join(settings_in_words(members, varied))}" if len(members) <= MOST_NAMED else ""
    return f"Not decided between {len(members)} of {len(cells)} settings{named}"


def _side_by_side(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    """The settings in words; of a single knob only the first in full."""
    if len(knobs) > 1:
        return settings_in_words(rows, knobs)
    first, *others = rows[knobs[0]]
    return [setting_phrase(knobs[0], first), *(shortly(knobs[0], other, first) for other in others)]


def _of_limit(tables: Tables, members: pd.DataFrame) -> str:
    shares = tables.value("ceiling_share").reindex(members["cell_id"]).dropna()
    text = f"{span(100 * shares)} %" if len(shares) else UNKNOWN
    return f"{text}, {NOT_DECIDED}" if shares.max() > 1 else text

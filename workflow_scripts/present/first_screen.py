"""The first screen of the page: title, answers, two pictures, and the fastest settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import plural, shortened
from workflow_scripts.device.device_record import NOISY_PCT
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.page.answers import NO, PARTLY, YES, Answer, Bar
from workflow_scripts.page.blocks import Figure, Table, outcome_words
from workflow_scripts.page.digits import rounded
from workflow_scripts.page.report import Report, Subject, figure_of
from workflow_scripts.page.series import PLACES, device_looks, device_names
from workflow_scripts.page.style import NAMED_COLOURS, Look
from workflow_scripts.questions.cells.section import SUBJECT as CELLS
from workflow_scripts.questions.sections import SECTIONS
from workflow_scripts.questions.trust.section import host_load, is_noisy
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.tables.results import RATE, STEADY, MissingError, records, under_load

LEAST_ANSWERS, _MOST_ANSWERS, MOST_PICTURES, MOST_FASTEST, MOST_DEVICES = 3, 7, 2, 5, 3
# What stands beside the rate of the fastest settings.
BESIDE = {"tpot_s_p50": "TPOT, ms", "ttft_s_p50": "TTFT, ms", "energy_j_per_output_token": "J/token"}
# Words of a composed title, letters of a name in it, of work, of its settings and of a reason.
MOST_WORDS, _MOST_NAME, MOST_WORK, MOST_SETTINGS, _MOST_REASON = 8, 28, 60, 45, 80
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
_FINE_TICKS = (1, 1.1, 1.2, 1.5, 2, 3, 5, 0.9, 0.8, 0.7, 0.5)
KEY = "Bars: 95 % intervals. Hollow: undecided."
KEY_OF_STUDY = f"{KEY} While full: as many requests run as allowed."


def first_screen(report: Report) -> dict[str, Any]:
    """What the reader sees first, as the template needs it."""
    found, fastest = _answers(report), _fastest(report)
    return {
        "title": _title(report, [answer for _, answer in found]),
        "sub": " · ".join(_sub(report)),
        **rows_of(found, device_looks(report.tables), KEY_OF_STUDY),
        "pictures": _pictures(report),
        **fastest,
        "without_rate": None if fastest["fastest"] else _without_rate(report),
    }


def rows_of(answers: Sequence[tuple[str, Answer]], looks: Mapping[str, Look], key: str = KEY) -> dict[str, Any]:
    """The rows of answers, each with its section and its bars, the ticks of their common axis in per cent with their
    texts, and the key to it; `looks` are those of devices."""
    values = [end for _, answer in answers for bar in answer.bars for end in (bar.value, bar.low, bar.high)]
    place, ticks = _axis(values)
    rows = [{"section": at, "answer": answer, "bars": _bars(looks, answer.bars, place)} for at, answer in answers]
    return {"rows": rows, "ticks": ticks, "key": key if ticks else ""}


def _without_rate(report: Report) -> Table:
    """How cells ended, if none has a rate."""
    rows = report.grid.assign(
        reason=report.grid["reason"].fillna("").map(lambda why: shortened(str(why), _MOST_REASON))
    )
    counts = rows.groupby(["outcome", "reason"], sort=False).size().sort_values(ascending=False).head(MOST_FASTEST)
    found = records(counts.reset_index(name="cells"))
    body = [[f"{row['cells']:,}", outcome_words(row["outcome"]), row["reason"]] for row in found]
    return Table("Cells", ["Cells", "Outcome", "Reason"], body, [True, False, False])


def _answers(report: Report) -> list[tuple[str, Answer]]:
    """The answers to the questions that the study asks, in their order; if these are few, further ones."""
    asked: list[tuple[float, str, Answer]] = []
    others: list[tuple[str, Answer]] = []
    for subject in (*SECTIONS, CELLS):
        if subject.answers is None or not subject.is_in(report.study):
            continue
        with suppress(MissingError):
            found = list(subject.answers(report))
            at = subject.asked_at(report.study.question)
            if at is None:
                others += [(subject.id, answer) for answer in found]
            else:
                asked += [(at, subject.id, answer) for answer in found]
    rows = [(section, answer) for _, section, answer in sorted(asked, key=lambda row: row[0])]
    # Questions that were not asked come in the order of the page.
    return (rows + others[: max(0, LEAST_ANSWERS + 1 - len(rows))])[:_MOST_ANSWERS]


def _axis(values: Sequence[float]) -> tuple[Any, list[tuple[float, str]]]:
    """The place of a ratio in per cent of the axis, and the ticks; the axis always has 1."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    if not known:
        return (lambda _: 0.0), []
    low, high = min([*known, 1]), max([*known, 1.5])
    span = math.log(high / low)
    start = math.log(low) - 0.05 * span
    width = 1.32 * span  # with room for labels

    def place(value: float) -> float:
        return round(100 * (math.log(value) - start) / width, 2)

    ticks: list[tuple[float, str]] = []
    for tick in (*(_FINE_TICKS if high / low < 4 else ()), *TICKS):
        at = place(tick)
        if 0 <= at <= 97 and all(abs(at - other) > 9 for other, _ in ticks):
            ticks.append((at, f"{tick:,g}×"))
    return place, sorted(ticks)


def _bars(looks: Mapping[str, Look], bars: Sequence[Bar], place: Any) -> list[dict[str, Any]]:
    """Bars on an axis, in per cent of its width; `side` is where the label stands, and `label_at` the place of it."""
    drawn = []
    for i, bar in enumerate(bars):
        look, at = looks.get(bar.gpu, Look()), place(bar.value)
        low, high = (place(end) if math.isfinite(end) and end > 0 else None for end in (bar.low, bar.high))
        right = at if high is None else high
        side = "right" if right < 76 else "left"
        drawn.append(
            {
                **{"value": at, "low": low, "high": high, "label": bar.label, "side": side},
                **{"colour": NAMED_COLOURS[look.colour][0], "hollow": bar.hollow, "square": look.marker == "s"},
                "label_at": right if side == "right" else low or at,
                "up": 0 if len(bars) == 1 else 8 * (2 * i - 1),
            }
        )
    return drawn


def _title(report: Report, answers: Sequence[Answer]) -> str:
    """The study's title, or one of its devices and its strongest answers."""
    if report.study.title:
        return report.study.title
    devices = report.tables.devices
    names = device_names(report.tables)
    start = ", ".join(shortened(names[gpu], _MOST_NAME) for gpu in devices[:MOST_DEVICES])
    start += f" and {len(devices) - MOST_DEVICES} more" if len(devices) > MOST_DEVICES else ""
    title = start
    decided = [answer for answer in answers if answer.gain and answer.verdict in (YES, NO, PARTLY)]
    for i, answer in enumerate(sorted(decided, key=_size, reverse=True)[:2]):
        longer = f"{title}{', ' if i else ': '}{answer.gain}"
        if len(longer.split()) <= MOST_WORDS:
            title = longer
    if title == start:
        measured = int(report.grid["outcome"].eq("ok").sum())
        title = f"{start}: {measured} of {plural(len(report.grid), 'cell')} measured"
    return title


def _size(answer: Answer) -> float:
    return max((abs(math.log(bar.value)) for bar in answer.bars if bar.value > 0), default=0.0)


def _sub(report: Report) -> Iterator[str]:
    """One line: models, versions, cells, when; and one clause if the numbers cannot be trusted."""
    cells, outcomes = report.tables.rows, report.grid["outcome"]
    models = resolved_models(report.study)
    random = any(model.load_format == "dummy" for model in models.values())
    names = list(report.grid["model"].value_counts().index)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    yield f"{shortened(names[0], _MOST_NAME)}{more}{', random weights' * random}"
    versions = cells.dropna(subset="engine_version").drop_duplicates("engine")
    for engine, version in list(zip(versions["engine"], versions["engine_version"], strict=True))[:1]:
        yield f"{'vLLM' if engine == VLLM.name else engine} {str(version).split()[-1]}"
    yield f"{int(outcomes.eq('ok').sum()):,} of {plural(len(outcomes), 'cell')}"
    if cells["source"].eq("imported").any():
        yield f"{cells.loc[cells['source'].eq('imported'), 'cell_id'].nunique()} imported"
    if len(started := cells["started_at"].dropna().astype(str)):
        yield started.max()[:10]
    failed = int((~outcomes.isin(["ok", "infeasible", "missing"])).sum())
    load = host_load(cells)
    if noisy := int(is_noisy(load).sum()):
        yield f"others used over {NOISY_PCT:g} % of the CPU in {noisy} of {len(load)}"
    elif failed:
        yield f"{failed} failed"


def _pictures(report: Report) -> list[tuple[str, Figure]]:
    """The figures of the first subjects that the question asks for and that could be drawn, with their sections."""
    end = len(report.study.question)

    def rank(subject: Subject) -> float:
        at = subject.asked_at(report.study.question)
        return end + 2 if subject.id == "trust" else end + 1 if at is None else at

    found: list[tuple[str, Figure]] = []
    for subject in (*sorted(SECTIONS, key=rank), CELLS):
        figures = subject.figures if subject is CELLS else subject.figures[:1]
        for draw in figures if subject.is_in(report.study) else ():
            figure = figure_of(draw, report)
            if isinstance(figure, Figure) and len(found) < MOST_PICTURES:
                # Its section has it too, and no two elements have one id.
                column = figure.drawn["column"].replace(f"{figure.name}-column", f"first-{figure.name}-column")
                found.append((subject.id, replace(figure, drawn={**figure.drawn, "column": column})))
    return found


def _fastest(report: Report) -> dict[str, Any]:
    """The fastest cell of each model, workload, device and engine, the one with the highest rate first, with links that
    open the cells; and the headings."""
    tables, best = report.tables, _best(report)
    values = best[["cell_id"]].join(tables.values.reindex(columns=list(BESIDE)), on="cell_id")
    beside = [name for name in BESIDE if values[name].notna().any()]
    most = float(best[["value", "high"]].max().max())
    names, looks = device_names(tables), device_looks(tables)
    fastest = []
    for row, of_cell in zip(records(best), records(values), strict=True):
        bars = [Bar(row["value"], row["low"], row["high"], gpu=row["gpu"])]
        fastest.append(
            {
                "href": report.cell_link(row["cell_id"]).href,
                "device": names[row["gpu"]],
                "work": _work(report, row),
                "rate": rounded(row["value"], row["low"], row["high"]),
                "bar": _bars(looks, bars, lambda value: round(float(90 * value / most), 2))[0],
                "others": [rounded(float(column(name).scaled(of_cell[name]))) for name in beside],
            }
        )
    return {"headings": ["Work", "tokens/s", "", *(BESIDE[name] for name in beside)], "fastest": fastest}


def _best(report: Report) -> pd.DataFrame:
    """For each model, workload, device and engine the recommended cell, or the one with the highest rate, with its
    `value` and the `metric` that it is of."""
    tables, place = report.tables, [*PLACES, "engine"]
    found = tables.get("recommendations", "cell_id", "metric", "role")
    recommended = found[found["role"].eq("best_throughput")].drop_duplicates("cell_id").set_index("cell_id")["metric"]
    cells = report.grid[(report.grid["outcome"] == "ok") & report.grid["comparable"].eq(True)]
    cells = cells[~under_load(cells)].join(recommended, on="cell_id")
    metric = cells.groupby(place)["metric"].transform("first").fillna(RATE).astype(object)
    cells = cells.assign(chosen=cells["metric"].notna(), metric=metric)
    known = pd.concat({rate: tables.intervals_of(rate) for rate in (STEADY, RATE)}, names=["metric"])
    cells = cells.join(known, on=["metric", "cell_id"]).dropna(subset="value")
    cells = cells.sort_values(["chosen", "value"], ascending=False, kind="stable").drop_duplicates(place)
    return cells.sort_values("value", ascending=False, kind="stable").head(MOST_FASTEST)


def _work(report: Report, row: dict[str, Any]) -> str:
    parts = [row["workload"]]
    if row["engine"] != VLLM.name:
        parts.append("HuggingFace" if str(row["engine"]).startswith("hf") else row["engine"])
    if row["model"] != report.grid["model"].value_counts().index[0]:
        parts.append(row["model"])
    settings = report.labels[row["cell_id"]]
    few = len(settings) <= MOST_SETTINGS or pd.isna(row["max_concurrency_allowed"])
    parts.append(settings if few else plural(int(row["max_concurrency_allowed"]), "sequence"))
    return f"{shortened(', '.join(parts), MOST_WORK)}, {'while full' if row['metric'] == STEADY else 'whole runs'}"

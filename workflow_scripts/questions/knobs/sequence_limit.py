"""Throughput by max-num-seqs, the number of sequences that may run at once, or by what matters more."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.page.answers import LIKELY_YES, NO, YES, Answer, bars_of, factor, question_on, verdict_on
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.digits import rounded
from workflow_scripts.page.kit import Plot
from workflow_scripts.page.main_line import line_of, main_line, rate_words, values_along
from workflow_scripts.page.parts import claims_on, compared, four_metrics
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.page.series import device_names
from workflow_scripts.page.style import PUBLISHED_LINE
from workflow_scripts.statistics.comparisons import FLAT
from workflow_scripts.study.setting_words import knob_name, shortly
from workflow_scripts.tables.results import RATE, STEADY, Tables, records

_SEQUENCES = "max_num_seqs"
# What the flat question becomes if it is likely, but not shown, that throughput grows.
FLAT_QUESTION, GROWS_QUESTION = "Flat in {}?", "Grows with {}?"


def throughput(tables: Tables) -> Plot:
    """Mean rate of each cell with its 95 % interval, along the setting that matters most. Where requests differ, the
    rate is that while the engine is full. A dotted line is what others published, of requests that are not known;
    hollow marks tell lines of one device apart."""
    line = main_line(tables)
    title, published = f"Throughput by {knob_name(line.knob)}", published_along(tables)
    if published.empty:
        return line_of(tables, line.rate, title, rate_words(line.rate))
    more = {"sources": ("measured", "published"), "named": {published["series"].iloc[0]: PUBLISHED_LINE}}
    return line_of(tables, line.rate, title, rate_words(line.rate), further=published, **more)


def published_along(tables: Tables) -> pd.DataFrame:
    """What others published for the cells of the first line, as a series."""
    line = main_line(tables)
    predictions = tables.get("predictions", "cell_id", "quantity", "published")
    predictions = predictions[(predictions["quantity"] == RATE) & predictions["published"].notna()]
    known = predictions.set_index("cell_id")["published"]
    rows: pd.DataFrame = line.rows[["cell_id", "gpu", "x"]].drop_duplicates().join(known.rename("y"), on="cell_id")
    rows = rows[rows["gpu"] == rows["gpu"].iloc[0]].dropna(subset="y").sort_values("x")
    return rows.assign(
        series=rows["gpu"].map(device_names(tables)).map(f"published, {{}} {rounded(rows['y'].max())}".format),
        low=float("nan"),
        high=float("nan"),
        cell_id=None,
    )


def _compared(tables: Tables) -> pd.DataFrame:
    """The comparisons along the lines of the study."""
    line = main_line(tables)
    rows = comparisons(tables, "knob", line.knob)
    return rows[rows["b"].isin(set(line.rows["cell_id"])) & rows["metric"].eq(line.rate)]


def answers(report: Report) -> Iterator[Answer]:
    tables, knob = report.tables, main_line(report.tables).knob
    rows = _compared(tables)
    if rows.empty:
        return
    row = records(rows)[0]
    verdict = verdict_on(row)
    question = (GROWS_QUESTION if verdict == LIKELY_YES else FLAT_QUESTION).format(knob_name(knob))
    verdict = {YES: NO, NO: YES}.get(verdict, verdict)
    pair = row["value_a"], row["value_b"]
    ends = " to ".join(shortly(knob, value, other) for value, other in (pair, pair[::-1]))
    unit = " sequences" * (knob == _SEQUENCES)
    size = f"within {row['margin_pct']:g} %" if row["verdict"] == FLAT else factor(tables, row)
    named = rows["gpu"].nunique() > 1 and row["verdict"] != FLAT
    said = f"{size}{' on the ' + device_names(tables)[row['gpu']] if named else ''}, {ends}{unit}"
    gain = f"{knob_name(knob)} {factor(tables, row)}"
    yield Answer(verdict, question_on(question, row["metric"]), said, bars_of(tables, rows), gain)


def sentence(report: Report) -> str:
    line = main_line(report.tables)
    values = values_along(report.tables, line, line.rate)
    top = records(values.sort_values("y", ascending=False))[0]
    name, rate = device_names(report.tables)[top["gpu"]], rounded(top["y"], top["low"], top["high"])
    while_full = " while full" * (line.rate == STEADY)
    return f"The {name} reaches {rate} tokens/s{while_full}, with {knob_name(line.knob)} {top['x']:g}."


SUBJECT = Subject(
    id="max-num-seqs",
    title="Throughput",
    asked="max-num-seqs|throughput|number of sequences",
    sentence=sentence,
    figures=[throughput],
    answers=answers,
    tables=[four_metrics(_SEQUENCES), compared("knob", _SEQUENCES), claims_on("max-num-seqs")],
)

"""Every other setting that was varied, the model and the environment: each has an answer, and tables have all
comparisons."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import sentence as capital
from workflow_scripts.page.answers import Answer, is_hollow, setting_answer, times
from workflow_scripts.page.comparisons import comparisons, every_knob_compared
from workflow_scripts.page.kit import Plot, ratio
from workflow_scripts.page.main_line import OF_ARRIVALS, main_line, rate_words
from workflow_scripts.page.parts import compared, held_in_words
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.page.series import coloured, told_apart, without_shared
from workflow_scripts.page.style import INK
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import instead_of, knob_name, setting_phrase, shortly
from workflow_scripts.tables.results import RATE, MissingError, Tables, records, require

# Settings that have a section.
OWN_SECTION = ("block_size", "enable_prefix_caching")
_ENVIRONMENT = "environment"
# What cells differ in beside a setting.
_KINDS = ("model", _ENVIRONMENT)
_MOST_ANSWERS = 3


def ratio_rows(tables: Tables, rows: pd.DataFrame, title: str) -> Plot:
    """Comparisons, one row per pair, named by what differs between them; hollow: not decided."""
    rows = rows.assign(held=without_shared(rows["held"].fillna("").astype(str)).map(held_in_words))
    names = told_apart(rows, [*COORDINATES[1:], "held"])
    words = [
        f"{shortly(knob, b, a)} over {shortly(knob, a, b)}" if rows["name"].nunique() == 1 else instead_of(knob, b, a)
        for knob, a, b in zip(rows["name"], rows["value_a"], rows["value_b"], strict=True)
    ]
    places = rows[names].agg(" · ".join, axis=1) if names else pd.Series("", index=rows.index)
    drawn = rows.assign(
        name=[" · ".join(filter(None, pair)) for pair in zip(words, places, strict=True)],
        value=rows["ratio"],
        hollow=[is_hollow(row) for row in records(rows)],
        cell_id=rows["b"],
    )
    drawn = coloured(tables, drawn).fillna({"colour": INK}).drop_duplicates("name")
    label = f"ratio of {rate_words(rows['metric'].iloc[0])}"
    return ratio(drawn, title, label, measure="ratio")


def other_settings(tables: Tables) -> Plot:
    """The clearest comparison of each other setting, with its 95 % interval; hollow: not decided."""
    rows = [_others(tables, name).head(1) for name in _names(tables)]
    require(rows, "no other setting was varied")
    return ratio_rows(tables, pd.concat(rows), "Other settings")


def _names(tables: Tables) -> list[str]:
    try:
        main = main_line(tables).knob
    except MissingError:
        main = ""
    names = [name for name in every_knob_compared(tables) if name not in (*OWN_SECTION, *OF_ARRIVALS, main)]
    kinds = set(tables.get("comparisons", "kind")["kind"])
    return [*names, *(kind for kind in _KINDS if kind in kinds)]


def _others(tables: Tables, name: str) -> pd.DataFrame:
    return comparisons(tables, name if name in _KINDS else "knob", name)


def answers(report: Report) -> Iterator[Answer]:
    names = sorted(_names(report.tables), key=lambda name: name != _ENVIRONMENT)
    for name in names[:_MOST_ANSWERS]:
        rows, what = _others(report.tables, name), knob_name(name)
        yield from setting_answer(report.tables, rows, f"{capital(what)} matters?", what, helps=False)


def sentence(report: Report) -> str:
    names = require(_names(report.tables), "no other setting was varied")
    row = records(_others(report.tables, names[0]))[0]
    return f"The clearest is {setting_phrase(row['name'], row['value_b'])}: {times(row)} the rate."


SUBJECT = Subject(
    id="knobs",
    title="Other settings",
    asked="another model|experts|8-bit|parallel|settings|draft|versions|environment",
    sentence=sentence,
    figures=[other_settings],
    answers=answers,
    tables=[
        compared("knob", caption=f"Every comparison of a setting by {column(RATE).in_words}"),
        *map(compared, _KINDS),
    ],
)

"""Answers of the first screen: a verdict, a question, an answer of a few words, and bars on one axis of ratios."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import shortened
from workflow_scripts.page.digits import agreeing, rounded, rounded_ratio
from workflow_scripts.page.series import device_names
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, LIKELY
from workflow_scripts.study.setting_words import shortly
from workflow_scripts.tables.results import STEADY, Tables, records

YES, NO, PARTLY, LIKELY_YES, OPEN = "Yes", "No", "Partly", "Likely", "Open"
# Verdict -> its sign, and the class of its colour.
VERDICTS: Mapping[str, tuple[str, str]] = {
    YES: ("▲", "yes"),
    NO: ("✕", "no"),
    PARTLY: ("◐", "part"),
    LIKELY_YES: ("△", "part"),
    OPEN: ("○", "open"),
}
# Bars of an answer.
MOST_BARS = 2
# Letters of an answer, which has one line, and the least of a value in it.
_MOST_LETTERS, LEAST_LETTERS = 36, 8


@dataclass(frozen=True)
class Bar:
    """A ratio with its interval; hollow if it is not decided. Its colour is that of its device."""

    value: float
    low: float
    high: float
    label: str = ""
    gpu: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class Answer:
    """One row of the first screen. `gain` is what the page's title may say of it."""

    verdict: str
    question: str
    answer: str
    bars: tuple[Bar, ...] = ()
    gain: str = ""

    @property
    def sign(self) -> str:
        return VERDICTS[self.verdict][0]

    @property
    def colour(self) -> str:
        return VERDICTS[self.verdict][1]


def verdict_on(row: Mapping[str, Any], *, helps: bool = False) -> str:
    """The verdict on a comparison: whether it matters or, with `helps`, whether its second cell is faster.

    >>> verdict_on({"verdict": "changes", "ratio": 0.5}), verdict_on({"verdict": "changes", "ratio": 0.5}, helps=True)
    ('Yes', 'No')
    """
    if row["verdict"] == FLAT:
        return NO
    if row["verdict"] not in (CHANGES, LIKELY):
        return OPEN
    if helps and row["ratio"] < 1:
        return NO if row["verdict"] == CHANGES else OPEN
    return YES if row["verdict"] == CHANGES else LIKELY_YES


def times(row: Mapping[str, Any]) -> str:
    """A ratio with the digits of its interval.

    >>> times({"ratio": 5.3, "low": 2.06, "high": 13.6})
    '5×'
    """
    return f"{rounded_ratio(row['ratio'], row['low'], row['high'])}×"


def factor(tables: Tables, row: Mapping[str, Any]) -> str:
    """A ratio that a reader finds too if he divides the two values that a figure shows."""
    ends = tables.intervals_of(row["metric"]).reindex([row["b"], row["a"]])
    b, a = (float(rounded(*row).replace(",", "").replace("–", "nan")) for row in ends.to_numpy())
    return f"{agreeing(row['ratio'], row['low'], row['high'], b / a)}×" if a * b > 0 else times(row)


def bars_of(tables: Tables, rows: pd.DataFrame) -> tuple[Bar, ...]:
    """A bar for the first row of each device, labelled if the study has several."""
    names = device_names(tables) if len(tables.devices) > 1 else {}
    return tuple(
        Bar(row["ratio"], row["low"], row["high"], names.get(row["gpu"], ""), row["gpu"], is_hollow(row))
        for row in records(rows.drop_duplicates("gpu").head(MOST_BARS))
    )


def is_hollow(row: Mapping[str, Any]) -> bool:
    """Whether a ratio's mark is hollow: it is not decided.

    >>> is_hollow({"verdict": "likely"})
    True
    """
    return row["verdict"] not in (CHANGES, FLAT)


def setting_answer(tables: Tables, rows: pd.DataFrame, question: str, what: str, *, helps: bool) -> Iterator[Answer]:
    """The answer on a setting, from its comparisons, the clearest first; of a ratio below 1 its inverse is told."""
    # If only the size is asked for, ratios above 1 are told and drawn.
    told = rows if helps else upwards(rows)
    row, turned = records(told)[0], told["ratio"].iloc[0] != rows["ratio"].iloc[0]
    values = [row[name] for name in (("value_a", "value_b") if turned else ("value_b", "value_a"))]
    if row["verdict"] == FLAT:
        said = f"within {row['margin_pct']:g} %"
    elif {"true", "false"} & set(map(str, values)):
        said = fitting(f"{factor(tables, row)} on {{}}", row["workload"])
    else:
        pair = (shortly(row["name"], value, other) for value, other in (values, values[::-1]))
        said = fitting(f"{times(row)}, {{}} over {{}}", *pair)
    asked = question_on(question, row["metric"])
    yield Answer(verdict_on(row, helps=helps), asked, said, bars_of(tables, told), f"{what} {times(row)}")


def fitting(template: str, *values: str) -> str:
    """An answer with values, the longest of which are shortened if it has more than `_MOST_LETTERS`.

    >>> fitting("1.25×, {} over {}", "qwen2-7b", "llama-3.1-8b-instruct")
    '1.25×, qwen2-7b over llama-3…nstruct'
    """
    for most in range(_MOST_LETTERS, LEAST_LETTERS - 1, -1):
        said = template.format(*(shortened(value, most) for value in values))
        if len(said) <= _MOST_LETTERS:
            break
    return said


def question_on(question: str, metric: str) -> str:
    """A question that is answered for the time while the engine is full, if that is so; else it is for whole runs.

    >>> question_on("Flat in max-num-seqs?", STEADY), question_on("Flat in max-num-seqs?", "wall_s")
    ('Flat in max-num-seqs while full?', 'Flat in max-num-seqs?')
    """
    return question.replace("?", " while full?") if metric == STEADY else question


def upwards(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with ratios of the faster cell over the slower one."""
    down = rows["ratio"] < 1
    return rows.assign(
        ratio=rows["ratio"].where(~down, 1 / rows["ratio"]),
        low=rows["low"].where(~down, 1 / rows["high"]),
        high=rows["high"].where(~down, 1 / rows["low"]),
    )

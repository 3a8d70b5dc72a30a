"""Verdicts, times, ranges and settings of tables in words."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import listed, number
from workflow_scripts.study.setting_words import setting_phrase

# Verdicts by which a difference is shown, the one by which there is none, and the one by which it is not known.
DECIDED, FLAT, NOT_DECIDED = ("changes", "faster", "slower"), "flat", "not decided"


def duration(seconds: float, high: float | None = None) -> str:
    """A time, or a range of times, with its unit.

    >>> duration(0.018293), duration(2.5), duration(0.01, 0.02), duration(0.5, 2.0)
    ('18.3 ms', '2.5 s', '10 to 20 ms', '0.5 to 2 s')
    """
    high = seconds if high is None else high
    factor, unit = (1000, "ms") if high < 1 else (1, "s")
    return f"{span([factor * seconds, factor * high])} {unit}"


def span(values: Iterable[float]) -> str:
    """The range of some numbers; one number if they look equal, empty if none is known.

    >>> span([3.0, 1.0, 2.0]), span([5.0001, 5.0]), span([float("nan")])
    ('1 to 3', '5', '')
    """
    known = [value for value in values if not math.isnan(value)]
    return " to ".join(dict.fromkeys([number(min(known)), number(max(known))])) if known else ""


def counted(values: "pd.Series[Any]") -> str:
    """Each value with its count, the most frequent first.

    >>> counted(pd.Series(["engine_error", "ok", "ok"]))
    '2 ok, 1 engine error'
    """
    return ", ".join(f"{count} {str(value).replace('_', ' ')}" for value, count in values.value_counts().items())


# What may explain the ratio of two devices.
_EXPLAINS = {
    "bandwidth": "memory bandwidth",
    "flop": "arithmetic",
    "measured_bandwidth": "measured memory bandwidth",
    "measured_flop": "measured arithmetic",
    "measured_cache": "measured rate of reading from cache",
    "kv_capacity": "size of the KV cache",
    "expected": "rates that the step model expects",
    "none": "no known ratio",
}


def explained(names: str) -> str:
    """What explains the ratio of two devices, given the names in the table `ratios`.

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

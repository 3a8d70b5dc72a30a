"""Numbers and settings as a reader says them: at most three digits, a unit with every number, no short codes."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from workflow_scripts.engines.registry import every_knob
from workflow_scripts.present.series import knobs_that_differ, setting

_SWITCHED = {"true": True, "false": False}


def number(value: float) -> str:
    """A number with at most three significant digits.

    >>> number(12345.6), number(0.018293), number(2.0), number(-999.9)
    ('12,300', '0.0183', '2', '-1,000')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


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


def said(knob: str, value: Any) -> str:
    """A setting as the report says it; `knob` is its name or its column, and `value` may be the text in a table.

    >>> said("max_num_seqs", 16.0), said("max_num_seqs", "1"), said("knob_enable_prefix_caching", "true")
    ('at most 16 sequences', 'at most 1 sequence', 'prefix caching on')
    >>> said("block_size", 32), said("gpu_memory_utilization", 0.9), said("enforce_eager", True)
    ('block size 32', '90 % of the memory', 'no compiled graphs')
    """
    if isinstance(value, str):
        value = _SWITCHED.get(value, _number_in(value))
    described = every_knob().get(knob.removeprefix("knob_"))
    words = described.said if described else None
    if described is None or words is None or isinstance(value, str) or pd.isna(value):
        return setting(knob, value)
    if isinstance(words, tuple):
        return words[0 if value else 1]
    phrase = words.format(f"{100 * value:g} %" if described.reserves == "share" else f"{value:,.10g}")
    return phrase.removesuffix("s") if value == 1 and "/" not in phrase else phrase


def _number_in(text: str) -> float | str:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


def sentence(text: str) -> str:
    """The text with a capital first letter.

    >>> sentence("at most 16 sequences")
    'At most 16 sequences'
    """
    return text[:1].upper() + text[1:]


# What may explain the ratio of two devices.
_EXPLAINS = {
    "bandwidth": "memory bandwidth",
    "flop": "arithmetic",
    "measured_bandwidth": "measured memory bandwidth",
    "measured_flop": "measured arithmetic",
    "measured_cache": "measured rate of reading from cache",
    "kv_capacity": "size of the KV cache",
    "none": "no known ratio",
}


def explained(names: str) -> str:
    """What explains the ratio of two devices, given the names in the table `ratios`.

    >>> explained("measured_bandwidth, measured_flop"), explained("none")
    ('measured memory bandwidth or measured arithmetic', 'no known ratio')
    """
    return listed((_EXPLAINS.get(name, name) for name in names.split(", ")), "or")


def listed(texts: Iterable[str], last: str = "and") -> str:
    """Texts in one phrase.

    >>> listed(["16", "32", "64"], "or"), listed(["one"])
    ('16, 32 or 64', 'one')
    """
    *others, end = texts
    return f"{', '.join(others)} {last} {end}" if others else end


def settings_in_words(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    """For each row its settings in words, without those that are left to the engine.

    >>> rows = pd.DataFrame({"knob_block_size": [32, None], "knob_batch_size": [None, 8]})
    >>> settings_in_words(rows, list(rows)), settings_in_words(rows, [])
    (['block size 32', 'batches of 8'], ["engine's defaults", "engine's defaults"])
    """
    cells = rows[list(knobs)].to_numpy(dtype=object)  # `itertuples` gives no row where there is no column
    words = [[said(*of_knob) for of_knob in zip(knobs, row, strict=True) if pd.notna(of_knob[1])] for row in cells]
    return [", ".join(of_cell) or "engine's defaults" for of_cell in words]


def labels(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    """For each row the settings in words that differ among the cells of an engine; all of them if none differs.

    >>> knobs = {"knob_block_size": [16, 32, None], "knob_batch_size": [None, None, 8]}
    >>> labels(pd.DataFrame({"engine": ["a", "a", "b"], **knobs}), list(knobs))
    ['block size 16', 'block size 32', 'batches of 8']
    """
    differing = knobs_that_differ(rows, knobs)
    tells = rows[differing].notna().any(axis=1)
    short, whole = settings_in_words(rows, differing), settings_in_words(rows, knobs)
    return [one if is_told else other for one, other, is_told in zip(short, whole, tells, strict=True)]

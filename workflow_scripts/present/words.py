"""Numbers and settings as a reader says them: at most three digits, a unit with every number, no short codes."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.present.series import setting

# What is said of a knob's value; other knobs are said by their names.
_SAID: Mapping[str, str] = {
    "max_num_seqs": "at most {} sequences",
    "block_size": "block size {}",
    "batch_size": "batches of {}",
    "num_speculative_tokens": "{} drafted tokens",
    "request_rate_per_s": "{} requests per second",
    "users": "{} users",
}
_ONE: Mapping[str, str] = {"max_num_seqs": "one sequence at a time", "batch_size": "one request at a time"}
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
    """A setting as it is said; `value` may be the text that tables hold.

    >>> said("max_num_seqs", 16.0), said("max_num_seqs", "1"), said("enable_prefix_caching", "true")
    ('at most 16 sequences', 'one sequence at a time', 'prefix caching on')
    >>> said("block_size", 32), said("attention_backend", "FLASH_ATTN")
    ('block size 32', 'attention backend FLASH_ATTN')
    """
    if isinstance(value, str):
        value = _SWITCHED.get(value, _number_in(value))
    if knob not in _SAID or value is None or isinstance(value, str | bool | np.bool_) or pd.isna(value):
        return setting(knob, value)
    return _ONE[knob] if value == 1 and knob in _ONE else _SAID[knob].format(f"{value:,g}")


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


def listed(texts: Iterable[str], last: str = "and") -> str:
    """Texts in one phrase.

    >>> listed(["16", "32", "64"], "or"), listed(["one"])
    ('16, 32 or 64', 'one')
    """
    *others, end = texts
    return f"{', '.join(others)} {last} {end}" if others else end

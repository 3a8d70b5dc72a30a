"""Numbers, counts and lists as text for readers."""

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any


def number(value: float, digits: int = 3) -> str:
    """A number with at most this many significant digits, one more if it would look like 1.

    >>> number(12345.6), number(0.018293), number(2.0), number(-999.9)
    ('12,300', '0.0183', '2', '-1,000')
    >>> number(1.001), number(0.9996), number(1.0)
    ('1.001', '0.9996', '1')
    """
    rounded = float(f"{value:.{digits}g}")
    if rounded == 1:
        rounded = float(f"{value:.{digits + 1}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def finite(value: Any) -> float | None:
    """A number, or None if it is infinite or not known.

    >>> finite(1), finite(math.inf), finite(None)
    (1.0, None, None)
    """
    return float(value) if isinstance(value, numbers.Real) and math.isfinite(value) else None


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "repeat"), plural(3000, "token")
    ('1 repeat', '3,000 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sentence(text: str) -> str:
    """The text with a capital first letter.

    >>> sentence("at most 16 sequences")
    'At most 16 sequences'
    """
    return text[:1].upper() + text[1:]


def shortened(text: str, most: int) -> str:
    """A text of at most this many letters; of a longer one its beginning and its end.

    >>> shortened("h200", 9), shortened("a-very-long-name", 9)
    ('h200', 'a-ve…name')
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[len(text) - half :]}"


def interval_text(value: float, low: float, high: float, unit: str = "", scope: str | None = None) -> str:
    """A value with its unit, its interval, and what the interval covers, in words.

    >>> interval_text(2.9541, 2.93, 2.98, " times the rate", "between cards")
    '2.95 times the rate (95 % interval 2.93 to 2.98, between cards)'
    >>> interval_text(2.9541, math.nan, math.nan)
    '2.95 (no interval)'
    """
    ends = "no interval" if math.isnan(low) else f"95 % interval {number(low)} to {number(high)}"
    holds = f", {scope}" if isinstance(scope, str) and not math.isnan(low) else ""
    return f"{number(value)}{unit} ({ends}{holds})"


def listed(texts: Iterable[str], last: str = "and") -> str:
    """Texts in one phrase.

    >>> listed(["16", "32", "64"], "or"), listed(["one"])
    ('16, 32 or 64', 'one')
    """
    *others, end = texts
    return f"{', '.join(others)} {last} {end}" if others else end


def allowed_names(given: object, names: Iterable[str]) -> str:
    """The names that are allowed instead of the given one, and those that were probably meant: up to three that begin
    with it, or the one that is most like it.

    >>> allowed_names("model_len", ["max_model_len", "seed"]), allowed_names("x", ["max_model_len", "seed"])
    ("allowed: max_model_len, seed; did you mean 'max_model_len'?", 'allowed: max_model_len, seed')
    >>> allowed_names("H100", ["h100-nvl", "h100-sxm", "h200"])
    "allowed: h100-nvl, h100-sxm, h200; did you mean 'h100-nvl' or 'h100-sxm'?"
    """
    names, start = list(names), str(given).lower()
    meant = [name for name in names if start and name.startswith(start)][:3]
    meant = meant or difflib.get_close_matches(start, names, n=1, cutoff=0.8)
    asked = f"; did you mean {listed(map(repr, meant), 'or')}?" if meant else ""
    return f"allowed: {', '.join(names)}{asked}"

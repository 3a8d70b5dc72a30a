"""Every regular expression of the package takes time in proportion to the length of a text, whatever the text holds."""

import math
import re
import signal
import time
from typing import Any

import pytest

from tests.hostile.grammar import patterns, texts

# A pattern is slow if the long text takes it some time, and much longer than the short text: in quadratic time 256
# times as long, in linear time 16 times.
SHORT, LONG, QUICK_S, MOST_GROWTH = 2**10, 2**14, 0.05, 64
# Only texts that take more than 5 times as long at four times this length are tried in the long form: what is above
# `MOST_GROWTH` there, as a n + b n^2 or worse, is above 5 here.
FIRST, FIRST_GROWTH = 2**9, 5
MOST_S = 1
# It reads the package's own code.
OWN = {r"^\s*from (workflow_scripts[\w.]*) import (?:\(([^)]*)\)|(.*))"}

# They read the package's own drawings. By how they begin.
DRAWINGS = ("<!--", "<[^>]*>", "<title>", r"(?:(\w+) )?([\d.]+px)")


def too_long(*_: Any) -> None:
    raise TimeoutError


def seconds(pattern: re.Pattern[str], at_start: bool, text: str) -> float:
    """What a search takes; infinite above `MOST_S`."""
    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S)
    began_s = time.thread_time()
    try:
        for _ in [pattern.match(text)] if at_start else pattern.finditer(text):
            pass
    except TimeoutError:
        return math.inf
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.thread_time() - began_s


def slow(pattern: re.Pattern[str], at_start: bool) -> str | None:
    """A text for which the pattern takes more than linear time."""
    lengths = (FIRST, 4 * FIRST, SHORT, LONG)
    for first, further, short, long in zip(*(texts(pattern, length) for length in lengths), strict=True):
        quick = seconds(pattern, at_start, first)
        if seconds(pattern, at_start, further) < FIRST_GROWTH * quick < math.inf:
            continue
        taken = seconds(pattern, at_start, long)
        if QUICK_S < taken < math.inf:
            # A loaded machine stretches one search: the least of several counts, of both lengths.
            taken = min(taken, *(seconds(pattern, at_start, long) for _ in range(3)))
            least = min(seconds(pattern, at_start, short) for _ in range(4))
            taken = taken if taken > MOST_GROWTH * max(least, 1e-4) else 0
        if taken > QUICK_S:
            return short
    return None


def test_no_pattern_is_slow_for_a_text_of_its_own_alphabet():
    tried = {text: pattern for text, pattern in patterns().items() if text not in OWN}
    tried = {text: pattern for text, pattern in tried.items() if not text.startswith(DRAWINGS)}
    assert len(tried) > 100
    assert {text: found[:80] for text, pattern in tried.items() if (found := slow(*pattern))} == {}


@pytest.mark.parametrize("bad", [r"(?<=\})\s*\n\s*(?=\{)", r"(\w+\.)+x", r"(\w+)+:", r"Run: \d+ .*ing: .*z"])
def test_a_pattern_that_grows_is_found(bad):
    assert slow(re.compile(bad), at_start=False)

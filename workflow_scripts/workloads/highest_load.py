"""The highest load that meets latency limits, searched by bisection with passes whose results vary near it.

The highest load is the one at which four of five passes meet the limits: late requests come in bursts, so half of the
short passes meet them where too many requests are late on average. The probability that a pass meets them falls along
a logistic curve over the logarithm of the load, of unknown width, and a few passes are wrong at any load. The next load
is the median of what is then known about the highest one, or a quantile on one of its sides, so that passes also show
the width. [Kontsevich] Measuring imports this, so it needs no library but numpy.

Source: [Kontsevich] Kontsevich and Tyler, Bayesian adaptive estimation of psychometric slope and threshold, Vision
Research 39, 1999.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Of the 95 % interval.
_ENDS = (0.025, 0.975)
# The search ends when the interval is this narrow, upper over lower end, or after so many passes.
NARROW, MOST_PASSES = 1.25, 24
# A load lies beyond the loads of the search only by so many passes at their end.
PASSES_AT_AN_END = 3
# The share of passes that meet the limits at the highest load, and of those that are wrong at any load, such as in a
# hiccup of the host.
MEET, LAPSES = 0.8, 0.01
# A queue grows if requests wait longer by more than this in each second, beyond chance.
MOST_GROWTH = 0.02
_QUANTILES = (0.5, 0.15, 0.85)
# Of the prior of the logarithm, a Cauchy distribution: while all passes agree, each goes farther than the last one.
_SCALE = math.log(2)
# Of the logistic curves; finer ones would not be seen in an interval that is narrow enough.
_WIDTHS = np.geomspace(0.02, 0.5, 8)
_POINTS = 800


class Highest(NamedTuple):
    """The highest load and its 95 % interval; all but one end is None if it lies beyond the loads of the search."""

    load: float | None
    low: float | None
    high: float | None


def highest_load(passes: Iterable[tuple[float, bool]], least: float, most: float, whole: bool = False) -> Highest:
    """What the passes of a search show, each with its load and whether it met the limits, in their order.

    >>> passes = [(8.0, True), (16.0, False), (12.0, True), (13.0, False), (12.0, True), (13.0, False)]
    >>> highest_load(passes, 1, 64, whole=True)
    Highest(load=10, low=4, high=13)
    """
    passes = list(passes)
    search = Search(passes[0][0], least, most, whole)
    for load, met in passes:
        search.add(load, met)
    return search.highest()


class Search:
    """A search from the load `first` on, between two others; users are `whole` numbers."""

    def __init__(self, first: float, least: float, most: float, whole: bool = False) -> None:
        self._first, self._whole, self._loads = first, whole, list[float]()
        self._results = set[bool]()
        self._least, self._most = least, most
        self._log = np.linspace(math.log(self._least) - 1, math.log(self._most) + 1, _POINTS)
        prior = -np.log1p(((self._log - math.log(first)) / _SCALE) ** 2)
        self._log_posterior: npt.NDArray[np.float64] = np.tile(prior[:, None], len(_WIDTHS))

    def add(self, load: float, met: bool) -> None:
        """Take note of a pass: whether it met the limits."""
        above = np.clip((math.log(load) - self._log[:, None]) / _WIDTHS - math.log(MEET / (1 - MEET)), -500, 500)
        meets = LAPSES + (1 - 2 * LAPSES) / (1 + np.exp(above))
        self._log_posterior = self._log_posterior + np.log(meets if met else 1 - meets)
        self._loads.append(load)
        self._results.add(met)

    def _quantiles(self, *shares: float) -> list[float]:
        weight = np.exp(self._log_posterior - self._log_posterior.max()).sum(axis=1)
        below = np.cumsum(weight) - weight / 2
        return [math.exp(at) for at in np.interp(shares, below / weight.sum(), self._log)]

    def next(self) -> float | None:
        """The load of the next pass; None if there is none."""
        if not self._loads:
            return self._inside(round(self._first) if self._whole else self._first)
        low, high = self._quantiles(*_ENDS)
        narrow = math.floor(high) == math.floor(low) if self._whole else high <= NARROW * low
        is_inside = self._least <= low and high <= self._most
        if len(self._loads) == MOST_PASSES or (narrow and is_inside) or self.highest().load is None:
            return None
        share = _QUANTILES[len(self._loads) % len(_QUANTILES)] if len(self._results) > 1 else 0.5
        (at,) = self._quantiles(share)
        return self._inside(round(at) if self._whole else at)

    def _inside(self, load: float) -> float:
        return min(max(load, self._least), self._most)

    def highest(self) -> Highest:
        """What is known so far."""
        median, low, high = self._quantiles(0.5, *_ENDS)
        if median < self._least and self._loads.count(self._least) >= PASSES_AT_AN_END:
            return Highest(None, None, self._least)
        if median > self._most and self._loads.count(self._most) >= PASSES_AT_AN_END:
            return Highest(None, self._most, None)
        ends = [self._inside(load) for load in (median, low, high)]
        return Highest(*map(math.floor, ends)) if self._whole else Highest(*ends)


def queue_grows(arrived_s: Sequence[float], waited_s: Sequence[float]) -> bool:
    """Whether requests of the second half of a pass, by their arrivals, wait the longer the later they arrive: then the
    load is more than the server sustains, even if the pass ends before they are late.

    >>> arrived_s = [i / 50 for i in range(100)]
    >>> queue_grows(arrived_s, [0.1 + 0.05 * s for s in arrived_s]), queue_grows(arrived_s, [0.1, 0.2] * 50)
    (True, False)
    """
    order = np.argsort(arrived_s)[len(arrived_s) // 2 :]
    arrived, waited = (np.asarray(of, dtype=float)[order] for of in (arrived_s, waited_s))
    arrived, waited = arrived - arrived.mean(), waited - waited.mean()
    squares = float((arrived**2).sum())
    if len(order) < 3 or squares == 0:
        return False
    growth = float((arrived * waited).sum()) / squares
    left = float(((waited - growth * arrived) ** 2).sum()) / (len(order) - 2)
    return growth > max(MOST_GROWTH, 2 * math.sqrt(left / squares))

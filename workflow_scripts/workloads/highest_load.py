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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

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
# The first is the median.
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


@dataclass
class Search:
    """A search from the load `first` on, between two others. `passes` are those so far, each with its load and whether
    it met the limits.

    >>> passes = [(8.0, True), (16.0, False), (12.0, True), (13.0, False), (12.0, True), (13.0, False)]
    >>> [round(load, 1) for load in Search(8.0, 1, 64, passes).highest()]
    [11.0, 4.7, 13.0]
    """

    first: float
    least: float
    most: float
    passes: list[tuple[float, bool]] = field(default_factory=list)

    def _quantiles(self, *shares: float) -> list[float]:
        log = np.linspace(math.log(self.least) - 1, math.log(self.most) + 1, _POINTS)[:, None]
        log_posterior = -np.log1p(((log - math.log(self.first)) / _SCALE) ** 2) + np.zeros(len(_WIDTHS))
        for load, met in self.passes:
            above = np.clip((math.log(load) - log) / _WIDTHS - math.log(MEET / (1 - MEET)), -500, 500)
            meets = LAPSES + (1 - 2 * LAPSES) / (1 + np.exp(above))
            log_posterior += np.log(meets if met else 1 - meets)
        weight = np.exp(log_posterior - log_posterior.max()).sum(axis=1)
        below = np.cumsum(weight) - weight / 2
        return [math.exp(at) for at in np.interp(shares, below / weight.sum(), log[:, 0])]

    def next(self) -> float | None:
        """The load of the next pass; None if there is none."""
        if not self.passes:
            return self._inside(self.first)
        low, high, *quantiles = self._quantiles(*_ENDS, *_QUANTILES)
        is_narrow = high <= NARROW * low and self.least <= low and high <= self.most
        if len(self.passes) == MOST_PASSES or is_narrow or self._known(quantiles[0], low, high).load is None:
            return None
        differ = len({met for _, met in self.passes}) > 1
        return self._inside(quantiles[len(self.passes) % len(_QUANTILES) if differ else 0])

    def _inside(self, load: float) -> float:
        return min(max(load, self.least), self.most)

    def highest(self) -> Highest:
        """What is known so far."""
        return self._known(*self._quantiles(0.5, *_ENDS))

    def _known(self, median: float, low: float, high: float) -> Highest:
        loads = [load for load, _ in self.passes]
        if median < self.least and loads.count(self.least) >= PASSES_AT_AN_END:
            return Highest(None, None, self.least)
        if median > self.most and loads.count(self.most) >= PASSES_AT_AN_END:
            return Highest(None, self.most, None)
        return Highest(*map(self._inside, (median, low, high)))


def queue_grows(arrived_s: Sequence[float], waited_s: Sequence[float]) -> bool:
    """Whether requests of the second half of a pass, by their arrivals, wait the longer the later they arrive: then the
    load is more than the server sustains, even if the pass ends before they are late.

    >>> arrived_s = [i / 50 for i in range(100)]
    >>> queue_grows(arrived_s, [0.1 + 0.05 * s for s in arrived_s]), queue_grows(arrived_s, [0.1, 0.2] * 50)
    (True, False)
    """
    order = np.argsort(arrived_s)[len(arrived_s) // 2 :]
    arrived, waited = (np.asarray(times_s, dtype=float)[order] for times_s in (arrived_s, waited_s))
    if len(order) < 3 or np.ptp(arrived) == 0:
        return False
    (growth, _), errors = np.polyfit(arrived - arrived.mean(), waited, 1, cov=True)
    return bool(growth > max(MOST_GROWTH, 2 * math.sqrt(errors[0, 0])))

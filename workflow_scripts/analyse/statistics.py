"""Ratios of cells with their intervals, what they decide, and what they cover: the statistics of all tables.

Rates and times are compared as logarithms, where a ratio of two cells and a margin in per cent are differences. The
unit is the start of an engine. A ratio is taken within each round and averaged over rounds, so the effect of a round on
both cells cancels. An interval is that of another run with the same number of starts: it contains the ratio of 95 % of
such runs. Verdicts are about the ratio itself. Several independent studies can be computed at once, along leading axes.

Sources: [Schuirmann] A comparison of the two one-sided tests procedure and the power approach, J. Pharmacokinet.
Biopharm. 15, 1987; [Berger] Berger and Hsu, Bioequivalence trials, intersection-union tests and equivalence confidence
sets, Statistical Science 11, 1996; [Holm] A simple sequentially rejective multiple test procedure, Scand. J. Statist.
6, 1979; [Welch] The generalization of Student's problem, Biometrika 34, 1947; [Satterthwaite] An approximate
distribution of estimates of variance components, Biometrics Bulletin 2, 1946.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from workflow_scripts.analyse.start_spread import BoolArray, FloatArray, Spread, spread
from workflow_scripts.common.wording import number

IntArray = npt.NDArray[np.int_]
Rows = Sequence[int] | IntArray

CONFIDENCE = 0.95
# Size of each of the two one-sided tests; together they are one test of this size. [Berger]
EQUIVALENCE_ALPHA = 0.05
# Standard deviation of logarithms between starts, if nothing is known about it: the maximum seen on one machine at
# different times. A decision from one start must hold also if starts vary this much.
ASSUMED_SD = 0.15
# Standard deviation between occasions of one cell on a shared machine, apart from the effect on all of its cells: the
# maximum of what was seen, 2 to 6 %. Rounds within minutes of each other do not show it.
OCCASION_SD = 0.06
# Another run has the same error as this one, so the two differ by twice its square.
_OF_BOTH_RUNS = 2
# With fewer starts, all starts of a cell with two equal modes are in the same mode too often: in 1 of 8 cells or more.
STARTS_TO_SEE_MODES = 5
# A pair that varies more than the pooled cells suggest is not pooled; size of the test.
_OWN_VARIANCE_ALPHA = 0.1

FLAT, CHANGES, NOT_DECIDED = "flat", "changes", "not decided"
FASTER, SLOWER = "faster", "slower"
WITHIN_START, BETWEEN_STARTS, BETWEEN_CARDS = "within one start", "between starts on this device", "between cards"

SCOPE_MEANING = (
    "what the row's intervals cover: `within one start` (only what varies between repeats, so nothing about another "
    "start), `between starts on this device` or `between cards`"
)


class Interval(NamedTuple):
    """A value with its interval; `low` and `high` are NaN if there is none."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class Samples:
    """Measurements of many cells, as natural logarithms.

    Attributes:
        log: mean of each start, shape (..., cells, rounds); NaN if the cell was not started in the round. If cells were
            measured on several cards, a column is a card, because that is then the highest level that varies.
        within: variance of the repeats within a start; NaN if no start has two.
        repeats: mean number of repeats per start.
        group: a number for each cell, the same for all cells of one device and engine.
        between_cards: for each cell whether columns are cards.
        shared: for each cell whether its machine is shared, so that it varies by OCCASION_SD between occasions.
    """

    log: FloatArray
    within: FloatArray
    repeats: FloatArray
    group: IntArray
    between_cards: BoolArray
    shared: BoolArray | None = None

    @cached_property
    def spread(self) -> Spread:
        """How much starts vary."""
        return spread(self.log, self.group)

    @cached_property
    def starts(self) -> IntArray:
        """How many starts each cell has."""
        counted: IntArray = (~np.isnan(self.log)).sum(axis=-1)
        return counted

    @cached_property
    def rounds(self) -> IntArray:
        """How many rounds the device and engine of each cell have had."""
        most = np.zeros_like(self.starts)
        for group in np.unique(self.group):
            of = self.group == group
            most[..., of] = self.starts[..., of].max(axis=-1, keepdims=True)
        return most


def _scope(half: FloatArray, several: BoolArray, between_cards: BoolArray) -> npt.NDArray[np.object_]:
    """What an interval of one or of several starts covers; None if its width is not known."""
    scope = np.where(several, np.where(between_cards, BETWEEN_CARDS, BETWEEN_STARTS), WITHIN_START).astype(object)
    scope[np.isnan(half)] = None
    return scope


def mean_interval(samples: Samples) -> tuple[Interval, npt.NDArray[np.object_]]:
    """Geometric means of cells over their starts with the intervals of another run, and the scope of each.

    An interval from several starts covers the effect of rounds on the cell. That from one start covers only the
    variation of its repeats. A cell whose starts fall into two groups has none, and then no scope.

    Three starts with a standard deviation of 2 %, and one start with three repeats that vary by 1 %:

    >>> log = np.log([[98.0, 100.0, 102.04], [50.0, np.nan, np.nan]])
    >>> nothing = np.zeros(2, dtype=int)
    >>> cells = Samples(log, np.array([np.nan, 0.0001]), np.array([1.0, 3.0]), nothing, nothing > 0)
    >>> interval, scope = mean_interval(cells)
    >>> [end.round(1).tolist() for end in interval], scope.tolist()
    ([[100.0, 50.0], [93.1, 48.3], [107.4, 51.8]], ['between starts on this device', 'within one start'])
    """
    mean, squared, df = mean_errors(samples)
    half = _half_width(_OF_BOTH_RUNS * squared, df, CONFIDENCE)
    interval = Interval(np.exp(mean), np.exp(mean - half), np.exp(mean + half))
    return interval, _scope(half, samples.starts > 1, samples.between_cards)


def mean_errors(samples: Samples) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means of the logarithms of cells over their starts, with squared standard errors and degrees of freedom.

    The error of a single start is that of its repeats. The error is NaN if the variation is not known, or if the starts
    of the cell fall into two groups.
    """
    n = samples.starts.astype(float)
    mean, variance = _moments(samples.log)
    one = n == 1
    squared = np.where(one, samples.within / samples.repeats, variance / np.where(n > 1, n, np.nan))
    return mean, np.where(samples.spread.bimodal, np.nan, squared), np.where(one, samples.repeats - 1, n - 1)


@dataclass(frozen=True)
class Comparisons:
    """Pairs of cells `a` and `b`, compared.

    Attributes:
        difference: mean of the differences of logarithms within rounds.
        variance, df: variance of the difference of one start of each, with its degrees of freedom; NaN if not known.
        starts: starts in common, over which the mean is taken.
        shown: squared error and degrees of freedom of the interval that is shown, for `compare` that of another run. If
            both cells have one start, it covers only their repeats; if these share no round, there is none.
        scope: what that interval covers; None if there is none.
        pooled: whether the variance is that of all cells of the device and engine, or of both devices or engines.
        bimodal: whether the starts of one of the two fall into two groups; then there is no interval and no verdict.
        occasions: variance that another occasion adds to the interval that is shown.
    """

    difference: FloatArray
    variance: FloatArray
    df: FloatArray
    starts: IntArray
    shown: tuple[FloatArray, FloatArray]
    scope: npt.NDArray[np.object_]
    pooled: BoolArray
    bimodal: BoolArray
    occasions: FloatArray | float = 0.0

    def interval(self, confidence: float | FloatArray = CONFIDENCE) -> Interval:
        """Ratios of `a` over `b` with the intervals that are shown."""
        half = self._shown_half(confidence)
        return Interval(*(np.exp(self.difference + end) for end in (0.0, -half, half)))

    def p_beyond(self, margin_pct: float) -> FloatArray:
        """P values of the tests whether ratios are beyond the margin.

        They are 1 if another run may show the other direction. They are also 1 for a change in few starts that two
        modes of a cell, ASSUMED_SD apart, may cause: all starts of one cell may have been in one mode.
        """
        distance = np.abs(self.difference)
        beyond = distance - log_margin(margin_pct)
        by_modes = (self.starts < STARTS_TO_SEE_MODES) & (beyond <= ASSUMED_SD)
        either_way = distance <= self._shown_half(CONFIDENCE)
        return np.where(by_modes | either_way, 1.0, np.minimum(self._p(beyond), 1.0))

    def p_higher(self) -> FloatArray:
        """P values of the one-sided tests whether `a` is higher than `b`."""
        return np.minimum(self._p(self.difference) / 2, 1.0)

    def is_within(self, margin_pct: float, alpha: float | FloatArray = EQUIVALENCE_ALPHA) -> BoolArray:
        """Whether two one-sided t tests of size `alpha` show that the ratio is within the margin. [Schuirmann]"""
        within: BoolArray = np.abs(self.difference) + self._half(1 - 2 * np.asarray(alpha)) <= log_margin(margin_pct)
        return within

    def is_not_below(self, margin_pct: float) -> BoolArray:
        """Whether a one-sided t test of 5 % shows that `a` is not below `b` by more than the margin."""
        not_below: BoolArray = self.difference - self._half(1 - 2 * EQUIVALENCE_ALPHA) >= -log_margin(margin_pct)
        return not_below

    def after(self, further: FloatArray | float) -> "Comparisons":
        """The comparisons as they would be with this number of further starts, with the same means and variances."""
        n = self.starts + further
        df = np.where(self.pooled, self.df * np.maximum(n - 1, 1) / np.maximum(self.starts - 1, 1), n - 1)
        variance = np.where((self.starts > 1) | self.pooled, self.variance, np.nan)
        counted = (n * np.ones_like(self.difference)).astype(int)
        shown = _OF_BOTH_RUNS * variance / n, df
        return replace(self, variance=variance, df=df, starts=counted, shown=shown)

    def _shown_half(self, confidence: float | FloatArray) -> FloatArray:
        squared_error, df = self.shown
        total = squared_error + self.occasions
        with np.errstate(divide="ignore", invalid="ignore"):  # the degrees of freedom are those of [Satterthwaite]
            return _half_width(
                total, np.where(squared_error > 0, df * (total / squared_error) ** 2, np.inf), confidence
            )

    def _half(self, confidence: float | FloatArray) -> FloatArray:
        return _half_width(self.variance / np.maximum(self.starts, 1), self.df, confidence)

    def _p(self, distance: FloatArray) -> FloatArray:
        error = np.sqrt(self.variance / np.maximum(self.starts, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            exact = np.where(distance > 0, 0.0, 2.0)
            p = np.where(error == 0, exact, 2 * stats.t.sf(distance / error, self.df))
        return np.where(np.isnan(error), np.nan, np.minimum(p, 2))


def compare(samples: Samples, a: Rows, b: Rows) -> Comparisons:
    """Compare cells `a` with cells `b`, both as positions: paired t tests over the rounds that both were measured in.

    Within a device and engine the variance is pooled over cells with similar variances. For two devices or engines it
    is composed of the variation of the cells of each and the effects of rounds on the two. A pair that varies more than
    the pooled cells suggest has its own variance. If both share only one round, or none, the tests allow for ASSUMED_SD
    between starts. Two devices with several cards each share none, because their cards are different ones.

    Two cells in three rounds, of which the second is 10 % slower:

    >>> rounds, nothing = np.log([1.0, 0.9, 1.0]), np.zeros(2, dtype=int)
    >>> cells = Samples(
    ...     np.stack([np.log([200, 202, 198]), np.log([100, 100, 100])]) + rounds,
    ...     np.full(2, np.nan), np.ones(2), nothing, nothing > 0
    ... )
    >>> found = compare(cells, [0], [1])
    >>> [round(float(end[0]), 2) for end in found.interval()], str(found.scope[0])
    ([2.0, 1.93, 2.07], 'between starts on this device')
    """
    a, b = np.asarray(a, dtype=int), np.asarray(b, dtype=int)
    log_a, log_b = samples.log[..., a, :], samples.log[..., b, :]
    found = samples.spread
    mean, own = _moments(log_a - log_b)
    n = (~np.isnan(log_a - log_b)).sum(axis=-1)
    (mean_a, _), (mean_b, _) = _moments(log_a), _moments(log_b)

    together, together_df = _pooled(samples, a, b)
    pooled = (together_df > 0) & (n > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        pooled &= ~(stats.f.sf(own / together, n - 1, together_df) < _OWN_VARIANCE_ALPHA)
    bimodal = found.bimodal[..., a] | found.bimodal[..., b]
    single = (n < 2) & ~pooled
    of_cards = (n == 0) & (samples.between_cards[a] | samples.between_cards[b])
    of_cards &= np.minimum(samples.starts[..., a], samples.starts[..., b]) > 1
    apart, apart_df = _welch(samples, a, b, over_starts=n == 0)
    variance = np.where(pooled, together, np.where(single, apart + 2 * ASSUMED_SD**2, own))
    variance = np.where(bimodal, np.nan, np.where(of_cards, apart, variance))
    df = np.where(pooled, together_df, np.where(of_cards, apart_df, np.where(single, np.inf, np.maximum(n - 1, 1))))
    error = np.where(single, np.where((n > 0) | of_cards, apart, np.nan), variance / np.maximum(n, 1))
    error = np.where(bimodal, np.nan, error)
    # One of two devices may have been measured on one card only.
    scope = _scope(error, ~single | (n == 0), samples.between_cards[a] & samples.between_cards[b])
    difference = np.where(n > 0, mean, mean_a - mean_b)
    shown = _OF_BOTH_RUNS * error, np.where(single, apart_df, df)
    occasions = np.zeros(df.shape)
    if samples.shared is not None:
        cells = samples.shared[a].astype(float) + samples.shared[b]
        occasions = np.where(single, 0.0, _OF_BOTH_RUNS * OCCASION_SD**2 * cells)
    return Comparisons(difference, variance, df, n, shown, scope, pooled, bimodal, occasions)


def _pooled(samples: Samples, a: IntArray, b: IntArray) -> tuple[FloatArray, FloatArray]:
    """Variance of the difference of one start of each within a round, from all cells that are pooled with them, and its
    degrees of freedom, which are 0 if neither is pooled.

    For cells that are not pooled together it is a sum: how the difference between the pooled cells of one and of the
    other varies between rounds, and for each how the cell varies around the mean of those cells. [Satterthwaite]
    """
    found = samples.spread
    both, either = (how(found.pooled[..., a], found.pooled[..., b]) for how in (np.logical_and, np.logical_or))
    apart = found.rounds[..., a, :] - found.rounds[..., b, :]
    rounds, rounds_df = _moments(apart)[1], (~np.isnan(apart)).sum(axis=-1) - 1.0
    own = [np.where(found.pooled[..., c], (1 - found.share[..., c]) * found.variance[..., c], 0.0) for c in (a, b)]
    total = rounds + own[0] + own[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(part > 0, part**2 / found.df[..., c], 0.0) for part, c in zip(own, (a, b), strict=True)]
        df = total**2 / (rounds**2 / rounds_df + parts[0] + parts[1])
    alike = both & (samples.group[a] == samples.group[b])
    df = np.where(either & (rounds_df > 0), df, 0.0)
    return np.where(alike, 2 * found.variance[..., a], total), np.where(alike, found.df[..., a], df)


def _welch(samples: Samples, a: IntArray, b: IntArray, over_starts: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Squared error of the difference of two means over repeats, or over starts, and its degrees of freedom. [Welch]"""
    squared, df = [], []
    for rows in (a, b):
        several = over_starts & (samples.starts[..., rows] > 1)
        counted = np.where(several, samples.starts[..., rows], samples.repeats[..., rows])
        variance = np.where(several, _moments(samples.log[..., rows, :])[1], samples.within[..., rows])
        squared.append(variance / counted)
        df.append(counted - 1)
    total = squared[0] + squared[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return total, total**2 / (squared[0] ** 2 / df[0] + squared[1] ** 2 / df[1])


def _moments(log: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance over the last axis without missing values; NaN without a value, the variance also with one."""
    known = ~np.isnan(log)
    n = known.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(known, log, 0).sum(axis=-1) / n
        variance = (np.where(known, log - mean[..., None], 0) ** 2).sum(axis=-1) / np.where(n > 1, n - 1, np.nan)
    return np.where(n > 0, mean, np.nan), variance


def _half_width(squared_error: FloatArray, df: FloatArray, confidence: float | FloatArray) -> FloatArray:
    # If starts agree to the last digit, the interval has no width, and Welch's degrees of freedom are 0/0.
    df = np.where(squared_error == 0, 1.0, df)
    half: FloatArray = stats.t.ppf((1 + np.asarray(confidence)) / 2, df) * np.sqrt(squared_error)
    return half


def log_margin(margin_pct: float) -> float:
    """The margin as a difference of logarithms: ratios from 1/(1 + m) to 1 + m are within it.

    >>> math.exp(log_margin(2.0)), round(math.exp(-log_margin(2.0)), 5)
    (1.02, 0.98039)
    """
    return math.log1p(margin_pct / 100)


def holm(p: FloatArray) -> FloatArray:
    """P values adjusted for all comparisons along the last axis; an unknown one counts as one of them. [Holm]

    >>> holm(np.array([0.01, 0.04, np.nan, 0.001])).tolist()
    [0.03, 0.08, nan, 0.004]
    """
    order = np.argsort(p, axis=-1)  # unknown values come last
    ordered = np.take_along_axis(p, order, axis=-1) * np.arange(p.shape[-1], 0, -1)
    ordered = np.minimum(np.maximum.accumulate(ordered, axis=-1), 1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, ordered, axis=-1)
    return adjusted


def verdicts(found: Comparisons, margin_pct: float, share: float | FloatArray = 1.0) -> npt.NDArray[np.str_]:
    """`flat` if a ratio is shown to be within the margin, `changes` if beyond it, else `not decided`.

    `found` are all comparisons of a study: in at most 5 % of studies any change is false (Holm's method). A comparison
    is falsely flat in at most 5 % of cases. `share` is the part of these errors that this look at the data may use.
    """
    changes = holm(np.minimum(found.p_beyond(margin_pct) / share, 1)) <= 1 - CONFIDENCE
    flat = found.is_within(margin_pct, EQUIVALENCE_ALPHA * np.asarray(share))
    return np.select([flat, changes], [FLAT, CHANGES], NOT_DECIDED)


def is_higher(found: Comparisons) -> BoolArray:
    """Whether `a` is shown to be higher than `b`, falsely in at most 2.5 % of cases over all of these comparisons."""
    higher: BoolArray = holm(found.p_higher()) <= (1 - CONFIDENCE) / 2
    return higher


def directions(found: Comparisons) -> npt.NDArray[np.str_]:
    """`faster` or `slower` where `a` is shown to be that, with an error of at most 5 % over all of the comparisons."""
    shown = holm(found.p_beyond(0.0)) <= 1 - CONFIDENCE
    return np.where(shown, np.where(found.difference > 0, FASTER, SLOWER), NOT_DECIDED)


def decisive_ends(low: float, high: float, scope: Any) -> tuple[float, float]:
    """The ends of an interval that a conclusion must allow for: those of one start are widened by ASSUMED_SD of each.

    >>> [round(end, 2) for end in decisive_ends(2.0, 2.1, WITHIN_START)], decisive_ends(2.0, 2.1, BETWEEN_STARTS)
    ([1.32, 3.18], (2.0, 2.1))
    """
    if scope != WITHIN_START:
        return low, high
    factor = math.exp(float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * math.sqrt(2) * ASSUMED_SD)
    return low / factor, high * factor


def quantile_interval(values: Sequence[float] | FloatArray, share: float) -> tuple[float, float, float]:
    """A quantile of independent values with its exact 95 % interval, whose ends are two of the values.

    The number of values below the quantile is binomial, so no distribution is assumed. All three are NaN if there are
    too few values for an interval: a 99th percentile needs 368.

    >>> [round(float(x)) for x in quantile_interval(np.arange(1, 1001), 0.99)]
    [990, 983, 997]
    >>> quantile_interval(np.arange(300), 0.99)
    (nan, nan, nan)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    if n == 0:
        return math.nan, math.nan, math.nan
    low = int(stats.binom.ppf((1 - CONFIDENCE) / 2, n, share))
    high = int(stats.binom.ppf((1 + CONFIDENCE) / 2, n, share)) + 1
    if low < 1 or high > n:
        return math.nan, math.nan, math.nan
    return float(np.quantile(ordered, share)), float(ordered[low - 1]), float(ordered[high - 1])


def interval_text(value: float, low: float, high: float, unit: str = "", scope: Any = None) -> str:
    """A value with its unit, its interval, and what the interval covers, in words.

    >>> interval_text(2.9541, 2.93, 2.98, " times the rate", WITHIN_START)
    '2.95 times the rate (95 % interval 2.93 to 2.98, within one start)'
    >>> interval_text(2.9541, math.nan, math.nan)
    '2.95 (no interval)'
    """
    ends = "no interval" if math.isnan(low) else f"95 % interval {number(low)} to {number(high)}"
    holds = f", {scope}" if isinstance(scope, str) and not math.isnan(low) else ""
    return f"{number(value)}{unit} ({ends}{holds})"

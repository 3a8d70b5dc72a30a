"""Ratios of cells with their intervals, what they decide, and what they cover: the statistics of all tables.

Rates and times are compared as logarithms, where a ratio of two cells and a margin in per cent are differences.
docs/statistics.md has the model and its sources. Leading axes, if any, are independent studies.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workflow_scripts.statistics.errors import (
    BoolArray,
    Error,
    FloatArray,
    IntArray,
    added,
    from_moments,
    half_width,
    p_of,
)
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.statistics.variation import Variation, around_mean, known_elsewhere, mean_of

Rows = Sequence[int] | IntArray

CONFIDENCE = 0.95
# From so many starts on they show alone what they vary.
LEAST_STARTS = 3
# Size of each of the two one-sided tests; together they are one test of this size (Berger and Hsu, Statistical Science
# 11, 1996).
EQUIVALENCE_ALPHA = 0.05
# Another run has the same error as this one, so the two differ by twice its square.
_OF_BOTH_RUNS = 2

# `LIKELY`: the interval excludes 1, but no verdict is reached.
FLAT, CHANGES, LIKELY, NOT_DECIDED = "flat", "changes", "likely", "not decided"
ONE_START, BETWEEN_STARTS, BETWEEN_CARDS = (
    "one start, with the spread of other starts",
    "between starts on this device",
    "between cards",
)

SCOPE_MEANING = (
    "what the interval covers: `between starts on this device`, `between cards`, or `one start, with the spread of"
    " other starts`"
)
WORSE_ALPHA = 0.1
ANOTHER_RUN = "95 % of further runs with as many starts, on another occasion, measure a ratio between them"


class Interval(NamedTuple):
    """A value with its interval."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


def interval_of(mean: FloatArray, error: Error) -> Interval:
    """Values, by the means of their logarithms, with their intervals."""
    half = half_width(error, CONFIDENCE)
    return Interval(*(np.exp(mean + end) for end in (0.0, -half, half)))


def own_interval(log: FloatArray) -> Interval:
    """Geometric means of starts, shape (cells, starts), with intervals by these alone (Student's t), which need
    LEAST_STARTS."""
    from scipy import special

    mean, (squares, df) = mean_of(log), around_mean(log)
    df = np.where(df + 1 >= LEAST_STARTS, df, np.nan)
    half = special.stdtrit(df, (1 + CONFIDENCE) / 2) * np.sqrt(squares / df / (df + 1))
    return Interval(*(np.exp(mean + end) for end in (0.0, -half, half)))


def _scope(starts: IntArray, between_cards: BoolArray) -> npt.NDArray[np.object_]:
    """What an interval covers; None without a start."""
    scopes = np.array([BETWEEN_STARTS, BETWEEN_CARDS, ONE_START, None])
    return np.asarray(scopes[np.select([starts == 0, starts == 1], [3, 2], between_cards)])


def mean_interval(samples: Samples) -> tuple[Interval, npt.NDArray[np.object_]]:
    """Geometric means of cells over their starts with their intervals, and the scope of each.

    An interval covers the variation between starts and the effect of rounds on the cell.
    """
    return interval_of(*mean_errors(samples)), _scope(samples.starts, samples.between_cards)


def mean_errors(samples: Samples) -> tuple[FloatArray, Error]:
    """Means of the logarithms of cells over their starts, with their errors."""
    of_one = added(samples.one_start.starts, samples.of_sessions, samples.variation.rounds)
    with np.errstate(divide="ignore"):
        return mean_of(samples.log), Error(of_one.variance / samples.starts, of_one.df)


class Comparisons(NamedTuple):
    """Pairs of cells `a` and `b`, compared.

    Attributes:
        difference: difference of the means of logarithms over all starts of each.
        error: that of the difference on this occasion.
        scope: what the interval covers; None if there is none, or if it is of two occasions.
        starts: starts in common; for cells without a common round the smaller number.
        occasions, in_verdicts: what an occasion adds to the difference of the two settings, and how much of it verdicts
            allow for.
    """

    difference: FloatArray
    error: Error
    scope: npt.NDArray[np.object_] = np.array(None)
    starts: IntArray = np.array(1)
    occasions: Error = Error(np.zeros(()))
    in_verdicts: Error = Error(np.zeros(()))

    def interval(self) -> Interval:
        """Ratios of `a` over `b` with their intervals."""
        return interval_of(self.difference, self.error)

    def another_run(self) -> tuple[FloatArray, FloatArray]:
        """The ends between which 95 % of further runs with as many starts measure the ratio."""
        return interval_of(self.difference, added(self.error, self.occasions).times(_OF_BOTH_RUNS))[1:]

    @property
    def of_settings(self) -> Error:
        """The error of the difference as that of two settings on any occasion."""
        return added(self.error, self.in_verdicts)

    def at_least(self) -> FloatArray:
        """The least size of each ratio in its direction, right in 95 % of cases; below 1 if the direction is open."""
        return np.exp(np.abs(self.difference) - half_width(self.of_settings, 2 * CONFIDENCE - 1))

    def p_beyond(self, margin_pct: float) -> FloatArray:
        """P values of the tests whether ratios are beyond the margin."""
        beyond = np.abs(self.difference) - log_margin(margin_pct)
        return np.where(beyond <= 0, 1.0, p_of(beyond, self.of_settings))

    def p_within(self, margin_pct: float) -> FloatArray:
        """P values of the two one-sided tests whether the ratio is within the margin, as one test (Schuirmann).

        They are 1 if the interval exceeds the margin, so that nothing is `flat` beside an interval that is not.
        """
        p = p_of(log_margin(margin_pct) - np.abs(self.difference), self.error)
        return np.where(p > 1 - CONFIDENCE, 1.0, p / 2)

    def p_above(self, margin_pct: float, sign: FloatArray | float = 1.0) -> FloatArray:
        """P values of the one-sided tests whether `a` is above `b` by more than the margin, or below (`sign` -1)."""
        return np.minimum(p_of(sign * self.difference - log_margin(margin_pct), self.of_settings) / 2, 1.0)

    def after(self, further: FloatArray | float) -> "Comparisons":
        """The comparisons as they would be with this number of further starts, with the same means and variances.

        Two cells alone gain one degree of freedom from a further start of each; beside others they gain more.
        """
        n = self.starts + further
        error = Error(self.error.variance * self.starts / np.maximum(n, 1), self.error.df + further)
        return self._replace(error=error)


@np.errstate(divide="ignore", invalid="ignore")
def compare(samples: Samples, a: Rows, b: Rows) -> Comparisons:
    """Compare cells `a` with cells `b`, both as positions; one side may be a single cell.

    Two cells in three rounds, of which the second is 10 % slower:

    >>> nothing = np.zeros(2, dtype=int)
    >>> cells = Samples(
    ...     np.stack([np.log([200, 202, 198]), np.log([100, 100, 100])]) + np.log([1.0, 0.9, 1.0]),
    ...     np.full(2, np.nan), nothing, np.ones(2), nothing, nothing > 0, nothing > 0, nothing, nothing,
    ... )
    >>> found = compare(cells, [0], [1])
    >>> [round(float(end[0]), 1) for end in found.interval()], str(found.scope[0])
    ([2.0, 1.9, 2.1], 'between starts on this device')
    """
    a, b = np.broadcast_arrays(np.asarray(a, dtype=int), np.asarray(b, dtype=int))
    log, device = samples.log, samples.device
    # If starts are missing, each start of a cell counts for less.
    of_a, of_b = (1 / samples.starts[..., c] for c in (a, b))

    def left(part: Error, in_common: IntArray) -> list[Error]:
        """Of errors that both have in some of their starts, what does not cancel."""
        return [part.of(c).times(each - in_common * of_a * of_b) for c, each in ((a, of_a), (b, of_b))]

    same = samples.group[a] == samples.group[b]
    one_host = (device[a] == device[b]) | (samples.shared[a] & samples.shared[b])
    together = np.where(same | one_host, (~np.isnan(log[..., a, :] - log[..., b, :])).sum(axis=-1), 0)
    starts = np.where(together > 0, together, np.minimum(samples.starts[..., a], samples.starts[..., b]))
    moved = samples.apart_in_a_round(a, b).times(np.where(same, 0.0, together * of_a * of_b))
    parts = [_of_starts(samples.one_start, a, b, of_a, of_b), *left(samples.variation.rounds, together), moved]
    if samples.sessions:
        group, column, _ = samples.sessions
        served, numbers = ~np.isnan(log), range(log.shape[-1])
        common = sum(
            served[..., a, r] & served[..., b, s] & (column[a, r] == column[b, s]) for r in numbers for s in numbers
        )
        in_common = np.where((group[a] == group[b]) & samples.in_session[a], common, 0)
        parts += left(samples.of_sessions, in_common)
        starts = np.where(in_common > 0, in_common, starts)
    difference = mean_of(log[..., a, :]) - mean_of(log[..., b, :])
    error = added(*parts)
    error = Error(np.where(np.isnan(difference), np.nan, error.variance), error.df)
    # One of two devices may have been measured on one card only.
    scope = _scope(np.where(np.isnan(difference), 0, starts), samples.between_cards[a] & samples.between_cards[b])
    of_cells = samples.known.occasions, samples.known.occasions_in_verdicts
    return Comparisons(difference, error, scope, starts, *(_occasions(samples, a, b, each) for each in of_cells))


def _of_starts(spread: Variation, a: IntArray, b: IntArray, of_a: FloatArray, of_b: FloatArray) -> Error:
    """The error by the starts of both, whose standard deviations are known together as those of one study."""
    (mean_a, square_a), (mean_b, square_b) = (
        (spread.mean[..., c, :] * each[..., None], spread.square[..., c, :] * each[..., None] ** 2)
        for c, each in ((a, of_a), (b, of_b))
    )
    weight, square = spread.weight[..., a, :], square_a + square_b + 2 * mean_a * mean_b
    return from_moments((weight * (mean_a + mean_b)).sum(axis=-1), (weight * square).sum(axis=-1))


def _occasions(samples: Samples, a: IntArray, b: IntArray, of_cells: FloatArray) -> Error:
    """What one occasion adds to the difference of two cells; several cards of a device are several occasions."""
    cards = np.where(samples.between_cards, 0.0, samples.known.cards**2)
    of_cards = np.where(samples.device[a] == samples.device[b], 0.0, cards[a] + cards[b])
    df = 2 / np.expm1(samples.known.others_differ[a] ** 2)
    return Error(of_cells[a] ** 2 + of_cells[b] ** 2 + of_cards, df)


def log_margin(margin_pct: float) -> float:
    """The margin as a difference of logarithms: ratios from 1/(1 + m) to 1 + m are within it.

    >>> math.exp(log_margin(2.0)), round(math.exp(-log_margin(2.0)), 5)
    (1.02, 0.98039)
    """
    return math.log1p(margin_pct / 100)


def holm(p: FloatArray) -> FloatArray:
    """P values adjusted for all comparisons along the last axis; an unknown one counts as one of them (Holm).

    statsmodels' `multipletests` knows neither unknown values nor several studies, and takes 145 s for 2,000 studies of
    25 comparisons, and 1.6 s to import; this takes 2 ms.

    >>> holm(np.array([0.01, 0.04, np.nan, 0.001])).tolist()
    [0.03, 0.08, nan, 0.004]
    """
    order = np.argsort(p, axis=-1)  # unknown values come last
    ordered = np.take_along_axis(p, order, axis=-1) * np.arange(p.shape[-1], 0, -1)
    ordered = np.minimum(np.maximum.accumulate(ordered, axis=-1), 1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, ordered, axis=-1)
    return adjusted


def verdicts(comparisons: Comparisons, margin_pct: float, share: float | FloatArray = 1.0) -> npt.NDArray[np.str_]:
    """`flat` if a ratio is shown to be within the margin, `changes` if beyond it, else `not decided`.

    `comparisons` are all of a study: in at most 5 % of studies any change is false, and in at most 5 % any flat
    is (Holm's method for each). `share` is the part of these errors that this look at the data may use.
    """
    changes = holm(np.minimum(comparisons.p_beyond(margin_pct) / share, 1)) <= 1 - CONFIDENCE
    flat = holm(np.minimum(comparisons.p_within(margin_pct) / share, 1)) <= EQUIVALENCE_ALPHA
    return np.select([flat, changes], [FLAT, CHANGES], NOT_DECIDED)


class Means(NamedTuple):
    """Cells measured on one or more `occasions`: means of logarithms as `mean_errors` gives them. The starts of one
    occasion do not show its effect on a cell."""

    log_mean: FloatArray
    error: Error
    occasions: IntArray | int = 1


def compare_occasions(
    a: Means, b: Means, vary_pct: float | None = None, is_cpu: BoolArray | bool = True
) -> Comparisons:
    """Compare each cell of `b` with the same cell of `a`; ratios are of `b` over `a`.

    The error has a standard deviation of `vary_pct` per cent between occasions, or if it is not given, that of new
    hosts of the kind of device. This includes the risk that the few starts of a cell with two modes are all in one.

    Two starts of each, with standard errors of 1 %, and a cell that became 3 times as fast:

    >>> of_a, of_b = (Means(np.log([x]), Error(np.array([1e-4]), np.array([1.0]))) for x in (100.0, 300.0))
    >>> found = compare_occasions(of_a, of_b)
    >>> [round(float(end[0]), 2) for end in found.interval()]
    [3.0, 1.98, 4.55]
    >>> bool(found.p_beyond(2.0)[0] < 0.05), bool(compare_occasions(of_a, of_a).p_within(2.0)[0] < 0.05)
    (True, False)
    """
    vary = known_elsewhere(is_cpu).new_hosts if vary_pct is None else vary_pct / 100
    error = added(a.error, b.error, Error(vary**2 * (1 / np.asarray(a.occasions) + 1 / np.asarray(b.occasions))))
    return Comparisons(b.log_mean - a.log_mean, error)


def worse(comparisons: Comparisons, more_is_better: BoolArray | bool, margin_pct: float) -> BoolArray:
    """Which ratios are shown to be worse by more than the margin, falsely in at most 10 % of cases if all lie on it.

    The test is one-sided, for nobody asks here what became better, and sees more than a verdict of `changes`.
    """
    p = comparisons.p_above(margin_pct, np.where(more_is_better, -1.0, 1.0))
    return np.asarray(holm(p) <= WORSE_ALPHA)

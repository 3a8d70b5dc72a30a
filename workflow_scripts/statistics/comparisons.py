"""Ratios of cells with their intervals, what they decide, and what they cover: the statistics of all tables.

Rates and times are compared as logarithms, where a ratio of two cells and a margin in per cent are differences. The
unit is the start of an engine. A ratio is the quotient of the means of two cells. The effects of rounds that both were
measured in cancel in it, and its interval allows for the others. The interval of a ratio is about the ratio itself, and
verdicts follow from it; a second interval holds the ratio that another run with the same number of starts measures, in
95 % of such runs. Several independent
studies can be computed at once, along leading axes.

Sources: [Schuirmann] A comparison of the two one-sided tests procedure and the power approach, J. Pharmacokinet.
Biopharm. 15, 1987; [Berger] Berger and Hsu, Bioequivalence trials, intersection-union tests and equivalence confidence
sets, Statistical Science 11, 1996; [Holm] A simple sequentially rejective multiple test procedure, Scand. J. Statist.
6, 1979.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workflow_scripts.statistics.samples import IntArray, Samples
from workflow_scripts.statistics.start_spread import BoolArray, FloatArray, around_mean, mean_of
from workflow_scripts.statistics.variation import beside_rounds, dependent, satterthwaite

Rows = Sequence[int] | IntArray

CONFIDENCE = 0.95
# Size of each of the two one-sided tests; together they are one test of this size. [Berger]
EQUIVALENCE_ALPHA = 0.05
# Two modes of a cell are assumed to be at most this far apart, as a difference of logarithms.
MODES_APART = 0.15
# Standard deviation between occasions of one cell on a shared machine, apart from the effect on all of its cells: the
# maximum of what was seen, 2 to 6 %. Rounds within minutes of each other do not show it.
OCCASION_SD = 0.06
# The same of one cell on a GPU, where each GPU has its own occasion: between 0.87 %, which the GPU's own part of the
# time of four cells shows on two occasions and cards, and 2 % of the rates of five, which has starts and rounds in it.
GPU_OCCASION_SD, GPU_OCCASION_DF = 0.015, 5.0
# Another run has the same error as this one, so the two differ by twice its square.
_OF_BOTH_RUNS = 2
# With fewer starts, all starts of a cell with two equal modes are in the same mode too often: in 1 of 8 cells or more.
STARTS_TO_SEE_MODES = 5
# Two engines on one device, or on two CPUs of one host, are measured in the same rounds: of the effect of a round, this
# part of the variance is taken for what moves them apart, until rounds show it.
_APART_IN_A_ROUND = 0.25

FLAT, CHANGES, NOT_DECIDED = "flat", "changes", "not decided"
FASTER, SLOWER = "faster", "slower"
ONE_START, BETWEEN_STARTS, BETWEEN_CARDS = (
    "one start, with the spread of other starts",
    "between starts on this device",
    "between cards",
)

SCOPE_MEANING = (
    "what the interval covers: `between starts on this device`, `between cards`, or `one start, with the spread of"
    " other starts`"
)
ANOTHER_RUN = "95 % of further runs with as many starts measure a ratio between them; not used for verdicts"


class Interval(NamedTuple):
    """A value with its interval; `low` and `high` are NaN if there is none."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


def _scope(error: FloatArray, starts: IntArray, between_cards: BoolArray) -> npt.NDArray[np.object_]:
    """What an interval covers; None if its width is not known."""
    scope = np.where(starts == 1, ONE_START, np.where(between_cards, BETWEEN_CARDS, BETWEEN_STARTS)).astype(object)
    scope[np.isnan(error)] = None
    return scope


def mean_interval(samples: Samples) -> tuple[Interval, npt.NDArray[np.object_]]:
    """Geometric means of cells over their starts with their intervals, and the scope of each.

    An interval covers the variation between starts and the effect of rounds on the cell.
    """
    mean, squared, df = mean_errors(samples)
    half = half_width(squared, df, CONFIDENCE)
    interval = Interval(np.exp(mean), np.exp(mean - half), np.exp(mean + half))
    return interval, _scope(half, samples.starts, samples.between_cards)


def mean_errors(samples: Samples) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means of the logarithms of cells over their starts, with squared standard errors and degrees of freedom.

    The error is NaN if the variation is not known.
    """
    noise = samples.variation
    squared = noise.total / np.maximum(samples.starts, 1)
    return mean_of(samples.log), squared, noise.total_df


@dataclass(frozen=True)
class Comparisons:
    """Pairs of cells `a` and `b`, compared.

    Attributes:
        difference: difference of the means of logarithms over all starts of each.
        variance, df: variance of the difference of one start of each, with its degrees of freedom; NaN if not known.
        starts: starts in common; for cells without a common round the smaller number.
        scope: what the interval covers; None if there is none.
        modes: whether the cells may have two modes that few starts do not show, as on a shared machine.
        occasions: variance that another occasion adds to the error of another run; None if no other run is asked for.
    """

    difference: FloatArray
    variance: FloatArray
    df: FloatArray
    starts: IntArray
    scope: npt.NDArray[np.object_]
    modes: BoolArray
    occasions: FloatArray | None = None

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of a table of comparisons: ratios with their intervals, those of another run, what they cover."""
        names = ("ratio", "ratio_low", "ratio_high", "ratio_again_low", "ratio_again_high", "scope", "starts")
        return dict(zip(names, (*self.interval(), *self.another_run(), self.scope, self.starts), strict=True))

    def interval(self, confidence: float | FloatArray = CONFIDENCE) -> Interval:
        """Ratios of `a` over `b` with their intervals."""
        half = half_width(self.variance / np.maximum(self.starts, 1), self.df, confidence)
        return Interval(*(np.exp(self.difference + end) for end in (0.0, -half, half)))

    def another_run(self) -> tuple[FloatArray, FloatArray]:
        """The ends between which 95 % of further runs with as many starts measure the ratio."""
        half = half_width(*self._of_another_run(), CONFIDENCE)
        return np.exp(self.difference - half), np.exp(self.difference + half)

    def p_beyond(self, margin_pct: float) -> FloatArray:
        """P values of the tests whether ratios are beyond the margin.

        They are 1 if another run may show the other direction. If cells may have two modes, they are also 1 for
        a change in few starts that modes MODES_APART may cause: all starts of one cell may have been in one mode.
        """
        beyond = np.abs(self.difference) - log_margin(margin_pct)
        by_modes = self.modes & (self.starts < STARTS_TO_SEE_MODES) & (beyond <= MODES_APART)
        p_again = 0.0 if self.occasions is None else _p(np.abs(self.difference), *self._of_another_run())
        return np.where(by_modes | (beyond <= 0) | (p_again >= 1 - CONFIDENCE), 1.0, self._p(beyond))

    def p_within(self, margin_pct: float) -> FloatArray:
        """P values of the two one-sided t tests whether the ratio is within the margin, as one test. [Schuirmann]

        They are 1 if the interval exceeds the margin, so that nothing is `flat` beside an interval that is not.
        """
        p = self._p(log_margin(margin_pct) - np.abs(self.difference))
        return np.where(p > 1 - CONFIDENCE, 1.0, p / 2)

    def p_not_below(self, margin_pct: float) -> FloatArray:
        """P values of the one-sided tests whether `a` is not below `b` by more than the margin."""
        return np.minimum(self._p(self.difference + log_margin(margin_pct)) / 2, 1.0)

    def where(self, chosen: BoolArray) -> "Comparisons":
        """The chosen comparisons, of all studies along one axis."""
        of = {name: np.broadcast_to(v, chosen.shape)[chosen] for name, v in vars(self).items() if v is not None}
        return replace(self, **of)

    def after(self, further: FloatArray | float) -> "Comparisons":
        """The comparisons as they would be with this number of further starts, with the same means and variances."""
        n = self.starts + further
        counted = (n * np.ones_like(self.difference)).astype(int)
        # Two cells alone gain one degree of freedom from a further start of each; beside others they gain more.
        return replace(self, df=self.df + further, starts=counted)

    def _of_another_run(self) -> tuple[FloatArray, FloatArray]:
        """Squared error of the difference between two runs, with its degrees of freedom."""
        error = _OF_BOTH_RUNS * self.variance / np.maximum(self.starts, 1)
        occasions = np.zeros(error.shape) if self.occasions is None else self.occasions
        return satterthwaite((error, self.df), (occasions, np.full(error.shape, np.inf)))

    def _p(self, distance: FloatArray) -> FloatArray:
        return _p(distance, self.variance / np.maximum(self.starts, 1), self.df)


@np.errstate(divide="ignore", invalid="ignore")
def compare(samples: Samples, a: Rows, b: Rows) -> Comparisons:
    """Compare cells `a` with cells `b`, both as positions; one side may be a single cell.

    The variance is that of `variation`. The effects of the rounds that both were measured in cancel, those of further
    rounds of one cell do not; the same holds for sessions that served both. Nothing cancels between two GPUs, because
    the rounds or cards of each are different ones.

    Two cells in three rounds, of which the second is 10 % slower:

    >>> from workflow_scripts.statistics.variation import UNKNOWN
    >>> nothing = np.zeros(2, dtype=int)
    >>> cells = Samples(
    ...     np.stack([np.log([200, 202, 198]), np.log([100, 100, 100])]) + np.log([1.0, 0.9, 1.0]),
    ...     np.full(2, np.nan), np.ones(2), nothing, nothing > 0, nothing > 0, nothing, nothing, UNKNOWN.of_cells(2)
    ... )
    >>> found = compare(cells, [0], [1])
    >>> [round(float(end[0]), 2) for end in found.interval()], str(found.scope[0])
    ([2.0, 1.95, 2.05], 'between starts on this device')
    """
    a, b = np.broadcast_arrays(np.asarray(a, dtype=int), np.asarray(b, dtype=int))
    within = samples.log[..., a, :] - samples.log[..., b, :]
    together = (~np.isnan(within)).sum(axis=-1)
    same = samples.group[a] == samples.group[b]
    one_host = (samples.device[a] == samples.device[b]) | (samples.shared[a] & samples.shared[b])
    paired = (together > 0) & (same | one_host)
    starts = np.where(paired, together, np.minimum(samples.starts[..., a], samples.starts[..., b]))
    variance, df = (
        np.where(paired & same, of_group, np.where(paired, of_rounds, apart))
        for of_group, of_rounds, apart in zip(
            _in_a_group(samples, a, b, starts),
            _in_rounds(samples, a, b, starts),
            _apart(samples, a, b, starts),
            strict=True,
        )
    )
    if of := samples.within_sessions:
        common = (~np.isnan(of.log[..., a, :] - of.log[..., b, :])).sum(axis=-1)
        in_sessions = (common > 0) & (of.group[a] == of.group[b])
        starts = np.where(in_sessions, common, starts)
        paired_variance, paired_df = _in_a_group(of, a, b, starts)
        variance, df = np.where(in_sessions, paired_variance, variance), np.where(in_sessions, paired_df, df)
    difference = mean_of(samples.log[..., a, :]) - mean_of(samples.log[..., b, :])
    variance = np.where(starts == 0, np.nan, variance)
    modes = np.broadcast_to(samples.shared[a] | samples.shared[b], difference.shape)
    # One of two devices may have been measured on one card only.
    scope = _scope(variance, starts, samples.between_cards[a] & samples.between_cards[b])
    return Comparisons(difference, variance, df, starts, scope, modes, _OF_BOTH_RUNS * _occasions(samples, a, b))


def _occasions(samples: Samples, a: IntArray, b: IntArray) -> FloatArray:
    """Variance that one occasion adds to the difference of two cells."""
    return OCCASION_SD**2 * (samples.shared[a].astype(float) + samples.shared[b])


def _apart(samples: Samples, a: IntArray, b: IntArray, starts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Variance of the difference of one start of each, for cells that were measured in different rounds."""
    noise = samples.variation
    squared = noise.total / np.maximum(samples.starts, 1)
    total, df = dependent(*((starts * squared[..., c], noise.total_df[..., c]) for c in (a, b)))
    # Several cards of a device are several occasions.
    own = np.where(samples.shared | samples.between_cards, 0.0, GPU_OCCASION_SD**2)
    of_gpus = np.where(samples.device[a] == samples.device[b], 0.0, own[a] + own[b])
    return satterthwaite(
        (total, df),
        (starts * of_gpus, np.full(total.shape, GPU_OCCASION_DF)),
        (starts * _occasions(samples, a, b), np.full(total.shape, np.inf)),
    )


def _in_a_group(samples: Samples, a: IntArray, b: IntArray, starts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Variance of the difference of one start of each, for cells of one device and engine with rounds in common."""
    noise, weights = samples.variation, _weights(samples, a, b, starts)
    of_cells = ((noise.variance[..., c] * weight, noise.df[..., c]) for c, weight in zip((a, b), weights, strict=True))
    return satterthwaite(dependent(*of_cells), *_further_rounds(samples, a, b, starts))


def _in_rounds(samples: Samples, a: IntArray, b: IntArray, starts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Variance of the difference of one start of each, for cells of two devices or engines with rounds in common.

    Three variances add up: of the difference of the means of both groups from round to round, and of each cell around
    the mean of its own group. A group is all cells of a device and engine.
    """
    noise, spread = samples.variation, samples.spread
    apart = spread.rounds[..., a, :] - spread.rounds[..., b, :]
    squares, n = around_mean(apart)
    # A single round in common does not show how rounds move the two apart; then the effects of all rounds count.
    record = samples.record
    (of_a, df_a), (of_b, df_b) = (
        (np.where(n > 1, record[2, c], noise.rounds[..., c]), np.where(n > 1, record[3, c], noise.rounds_df[..., c]))
        for c in (a, b)
    )
    expected, expected_df = _APART_IN_A_ROUND * (of_a + of_b), np.minimum(np.minimum(df_a, df_b), record[5, a])
    df = np.maximum(n - 1, 0) + expected_df
    rounds, shown = (squares + expected * expected_df) / df, np.maximum(n - 1, 0) / df
    weights = _weights(samples, a, b, starts)
    of_cells = (
        (weight * beside_rounds(noise.weight[..., c], noise.variance[..., c], shown), noise.df[..., c])
        for c, weight in zip((a, b), weights, strict=True)
    )
    return satterthwaite(
        (rounds * weights[0] * weights[1], df), dependent(*of_cells), *_further_rounds(samples, a, b, starts)
    )


def _weights(samples: Samples, a: IntArray, b: IntArray, starts: IntArray) -> tuple[FloatArray, FloatArray]:
    """The starts in common over all starts of each: what one start adds to the variance of a mean of all."""
    of_a, of_b = (starts / np.maximum(samples.starts[..., c], 1) for c in (a, b))
    return of_a, of_b


def _further_rounds(
    samples: Samples, a: IntArray, b: IntArray, starts: IntArray
) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """The variances that the rounds of only one of two cells add, with their degrees of freedom; NaN if not known."""
    noise, (weight_a, weight_b) = samples.variation, _weights(samples, a, b, starts)
    further = ((a, weight_a * (1 - weight_b)), (b, weight_b * (1 - weight_a)))
    parts = ((noise.rounds[..., c], noise.rounds_df[..., c], weight) for c, weight in further)
    return tuple((np.where((df == 0) & (weight > 0), np.nan, rounds * weight), df) for rounds, df, weight in parts)


def _p(distance: FloatArray, squared_error: FloatArray, df: FloatArray) -> FloatArray:
    """P values of two-sided t tests whether a distance is 0; above 1 if it is negative."""
    from scipy import special  # takes as long to import as a small table

    error = np.sqrt(squared_error)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, np.where(distance > 0, 0.0, 2.0), 2 * special.stdtr(df, -distance / error))


def half_width(squared_error: FloatArray, df: FloatArray, confidence: float | FloatArray) -> FloatArray:
    from scipy import special

    # If starts agree to the last digit, the interval has no width, and Welch's degrees of freedom are 0/0.
    df = np.where(squared_error == 0, 1.0, df)
    half: FloatArray = special.stdtrit(df, (1 + np.asarray(confidence)) / 2) * np.sqrt(squared_error)
    return half


def log_margin(margin_pct: float) -> float:
    """The margin as a difference of logarithms: ratios from 1/(1 + m) to 1 + m are within it.

    >>> math.exp(log_margin(2.0)), round(math.exp(-log_margin(2.0)), 5)
    (1.02, 0.98039)
    """
    return math.log1p(margin_pct / 100)


def holm(p: FloatArray) -> FloatArray:
    """P values adjusted for all comparisons along the last axis; an unknown one counts as one of them. [Holm]

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


def is_higher(comparisons: Comparisons) -> BoolArray:
    """Whether `a` is shown to be higher than `b`, falsely in at most 2.5 % of cases over all of these comparisons."""
    higher: BoolArray = holm(comparisons.p_not_below(0.0)) <= (1 - CONFIDENCE) / 2
    return higher


def directions(comparisons: Comparisons, share: float = 1.0) -> npt.NDArray[np.str_]:
    """`faster` or `slower` where `a` is shown to be that, with an error of at most 5 % over all of the comparisons.

    `share` is the part of this error that the present plan of a study has.
    """
    shown = holm(np.minimum(comparisons.p_beyond(0.0) / share, 1)) <= 1 - CONFIDENCE
    return np.where(shown, np.where(comparisons.difference > 0, FASTER, SLOWER), NOT_DECIDED)

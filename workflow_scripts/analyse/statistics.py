"""Means and ratios of repeats with their intervals, and what they decide; all on arrays of many cells at once.

Rates and times of repeats are compared as logarithms: there a ratio of two cells is a difference, and so is a margin
in per cent. Repeats of a cell are assumed to be independent draws from a lognormal distribution. Variances of two cells
need not be equal. A cell with one repeat has a value but no interval.

Sources: [Welch] The generalization of Student's problem when several different population variances are involved,
Biometrika 34, 1947; [Schuirmann] A comparison of the two one-sided tests procedure and the power approach,
J. Pharmacokinet. Biopharm. 15, 1987; [Berger] Berger and Hsu, Bioequivalence trials, intersection-union tests and
equivalence confidence sets, Statistical Science 11, 1996.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

CONFIDENCE = 0.95
# Size of each of the two one-sided tests; together they are one test of this size. [Berger]
EQUIVALENCE_ALPHA = 0.05
# If more further repeats than this are needed, they are not worth asking for.
MOST_FURTHER_REPEATS = 100

FLAT, CHANGES, NOT_DECIDED = "flat", "changes", "not decided"


@dataclass(frozen=True)
class LogSamples:
    """Repeats of many cells, summarised by their logarithms; arrays of one shape.

    `n` counts the repeats, `mean` and `variance` are of the natural logarithms; `variance` is that of the sample
    (divided by n - 1) and NaN where n < 2.
    """

    n: FloatArray
    mean: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, summary: pd.DataFrame, suffix: str = "") -> "LogSamples":
        """From the columns of `summarise`, whose names end in `suffix`."""
        return cls(*(summary[f"{name}{suffix}"].to_numpy(dtype=float, na_value=np.nan) for name in SUMMARY))

    def at(self, rows: Sequence[int] | npt.NDArray[np.int_] | pd.Series) -> "LogSamples":
        """The cells at these positions, which may repeat."""
        i = np.asarray(rows, dtype=int)
        return LogSamples(self.n[i], self.mean[i], self.variance[i])

    def with_further(self, repeats: FloatArray) -> "LogSamples":
        """The same cells with more repeats of the same mean and variance."""
        return LogSamples(self.n + repeats, self.mean, self.variance)


SUMMARY = ("repeats", "log_mean", "log_variance")


class Interval(NamedTuple):
    """A value with its interval; `low` and `high` are NaN if there are too few repeats for an interval."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


def summarise(rows: pd.DataFrame, by: Sequence[str], column: str) -> pd.DataFrame:
    """Sum up repeats: one row per group, with the columns `by`, then `repeats`, `log_mean`, `log_variance`.

    A value that is null or not above zero has no logarithm and does not count as a repeat.

    >>> rows = pd.DataFrame({"cell": ["a", "a", "a", "b"], "rate": [math.e, math.e**3, 0.0, 1.0]})
    >>> summarise(rows, ["cell"], "rate").values.tolist()
    [['a', 2, 2.0, 2.0], ['b', 1, 0.0, nan]]
    """
    values = rows[column].astype(float)
    logs = rows[list(by)].assign(log=np.log(values.where(values > 0)))
    groups = logs.groupby(list(by), dropna=False, sort=False)["log"]
    return groups.agg(repeats="count", log_mean="mean", log_variance="var").reset_index()


def mean_interval(samples: LogSamples, confidence: float = CONFIDENCE) -> Interval:
    """Geometric means with t intervals.

    Three repeats with a standard deviation of 2 %, and a single one:

    >>> cells = LogSamples(np.array([3.0, 1.0]), np.log([100.0, 50.0]), np.array([0.0004, np.nan]))
    >>> [end.round(2).tolist() for end in mean_interval(cells)]
    [[100.0, 50.0], [95.15, nan], [105.09, nan]]
    """
    half = _half_width(samples.variance / samples.n, samples.n - 1, confidence)
    return Interval(np.exp(samples.mean), np.exp(samples.mean - half), np.exp(samples.mean + half))


def ratio_interval(a: LogSamples, b: LogSamples, confidence: float | FloatArray = CONFIDENCE) -> Interval:
    """Ratios of the geometric means of `a` and `b` with Welch's t intervals. [Welch]

    >>> three = np.array([3.0])
    >>> fast = LogSamples(three, np.log([200.0]), np.array([0.0004]))
    >>> slow = LogSamples(three, np.log([100.0]), np.array([0.0001]))
    >>> [round(float(end[0]), 3) for end in ratio_interval(fast, slow)]
    [2.0, 1.919, 2.085]
    """
    difference, half = _welch(a, b, confidence)
    return Interval(np.exp(difference), np.exp(difference - half), np.exp(difference + half))


def _welch(a: LogSamples, b: LogSamples, confidence: float | FloatArray) -> tuple[FloatArray, FloatArray]:
    """Difference of the means of logarithms, and half the width of its interval."""
    of_a, of_b = a.variance / a.n, b.variance / b.n
    with np.errstate(divide="ignore", invalid="ignore"):
        df = (of_a + of_b) ** 2 / (of_a**2 / (a.n - 1) + of_b**2 / (b.n - 1))
    return a.mean - b.mean, _half_width(of_a + of_b, df, confidence)


def _half_width(squared_standard_error: FloatArray, df: FloatArray, confidence: float | FloatArray) -> FloatArray:
    # If repeats agree to the last digit, the interval has no width and Welch's degrees of freedom are 0/0.
    df = np.where(squared_standard_error == 0, 1.0, df)
    half: FloatArray = stats.t.ppf((1 + confidence) / 2, df) * np.sqrt(squared_standard_error)
    return half


def log_margin(margin_pct: float) -> float:
    """The margin as a difference of logarithms: ratios from 1/(1 + m) to 1 + m are within it.

    >>> math.exp(log_margin(2.0)), round(math.exp(-log_margin(2.0)), 5)
    (1.02, 0.98039)
    """
    return math.log1p(margin_pct / 100)


def is_equivalent(a: LogSamples, b: LogSamples, margin_pct: float) -> BoolArray:
    """Whether two one-sided t tests show that two means differ by no more than the margin.

    This is the same as requiring that the 90 % interval of the ratio lies within the margin. [Schuirmann]

    Two cells of 3 repeats with a standard deviation of 0.5 %: half of that interval is 2.132 * 0.5 % * sqrt(2/3), which
    is 0.87 %. Means that are 1 % apart are shown to be within 2 %, and means that are 1.5 % apart are not:

    >>> a = LogSamples(np.full(2, 3.0), np.log([101.0, 101.5]), np.full(2, 0.005**2))
    >>> is_equivalent(a, LogSamples(a.n, np.log([100.0, 100.0]), a.variance), 2.0).tolist()
    [True, False]
    """
    difference, half = _welch(a, b, 1 - 2 * EQUIVALENCE_ALPHA)
    within: BoolArray = np.abs(difference) + half <= log_margin(margin_pct)
    return within


def is_not_below(a: LogSamples, b: LogSamples, margin_pct: float) -> BoolArray:
    """Whether a one-sided t test shows that the mean of `a` is not below that of `b` by more than the margin.

    Cells as in `is_equivalent`, also compared in the other direction:

    >>> a = LogSamples(np.full(2, 3.0), np.log([101.5, 98.5]), np.full(2, 0.005**2))
    >>> is_not_below(a, LogSamples(a.n, np.log([100.0, 100.0]), a.variance), 2.0).tolist()
    [True, False]
    """
    difference, half = _welch(a, b, 1 - 2 * EQUIVALENCE_ALPHA)
    not_below: BoolArray = difference - half >= -log_margin(margin_pct)
    return not_below


def is_beyond(a: LogSamples, b: LogSamples, margin_pct: float, comparisons: float | FloatArray = 1) -> BoolArray:
    """Whether the 95 % interval of the ratio lies wholly outside the margin.

    If any of several `comparisons` is enough, each of them uses its part of the 5 % (Bonferroni).

    Two cells of 3 repeats with a standard deviation of 0.5 %: half of the interval is 2.776 * 0.5 % * sqrt(2/3), or
    1.13 %. So means must be 3.2 % apart to be beyond 2 %, and more if they are one pair of ten:

    >>> a = LogSamples(np.full(2, 3.0), np.log([103.1, 103.2]), np.full(2, 0.005**2))
    >>> b = LogSamples(a.n, np.log([100.0, 100.0]), a.variance)
    >>> is_beyond(a, b, 2.0).tolist(), is_beyond(a, b, 2.0, comparisons=10).tolist()
    ([False, True], [False, False])
    """
    difference, half = _welch(a, b, 1 - (1 - CONFIDENCE) / comparisons)
    beyond: BoolArray = np.abs(difference) - half > log_margin(margin_pct)
    return beyond


def verdicts(
    a: LogSamples, b: LogSamples, margin_pct: float, comparisons: float | FloatArray = 1
) -> npt.NDArray[np.str_]:
    """`flat` if the means are equivalent within the margin, `changes` if they differ by more, else `not decided`.

    A cell without an interval decides nothing.

    >>> a = LogSamples(np.full(3, 3.0), np.log([101.0, 102.0, 104.0]), np.full(3, 0.005**2))
    >>> verdicts(a, LogSamples(a.n, np.log([100.0] * 3), a.variance), 2.0).tolist()
    ['flat', 'not decided', 'changes']
    """
    return np.select(
        [is_equivalent(a, b, margin_pct), is_beyond(a, b, margin_pct, comparisons)], [FLAT, CHANGES], NOT_DECIDED
    )


def further_repeats(a: LogSamples, b: LogSamples, margin_pct: float, comparisons: float | FloatArray = 1) -> FloatArray:
    """Minimum number of further repeats of both cells that would decide, if means and variances stay as observed.

    The number is 0 if they decide already. It is NaN if the variance is unknown, or if MOST_FURTHER_REPEATS are not
    enough (the ratio is close to the margin). Means move as repeats are added, so the number may not be enough.

    Means 1.5 % apart with a standard deviation of 0.5 % are within 2 % from 7 repeats on: half of the interval is then
    1.782 * 0.5 % * sqrt(2/7), which is 0.48 %. Means 2 % apart never are:

    >>> a = LogSamples(np.full(3, 3.0), np.log([101.0, 101.5, 102.0]), np.full(3, 0.005**2))
    >>> further_repeats(a, LogSamples(a.n, np.log([100.0] * 3), a.variance), 2.0).tolist()
    [0.0, 4.0, nan]
    """

    def decided(repeats: FloatArray) -> BoolArray:
        a_then, b_then = a.with_further(repeats), b.with_further(repeats)
        return is_equivalent(a_then, b_then, margin_pct) | is_beyond(a_then, b_then, margin_pct, comparisons)

    # Intervals shrink with every repeat, so deciding is monotone and can be bisected.
    too_few, enough = np.full(a.n.shape, -1.0), np.full(a.n.shape, float(MOST_FURTHER_REPEATS))
    hopeless = ~decided(enough)
    while (enough - too_few > 1).any():
        middle = np.ceil((too_few + enough) / 2)
        does = decided(middle)
        too_few, enough = np.where(does, too_few, middle), np.where(does, middle, enough)
    return np.where(hopeless, np.nan, enough)


def number_text(value: float) -> str:
    """A number with four significant digits, or without decimals if more digits precede the point.

    >>> number_text(2.9541), number_text(11976.6), number_text(0.98765)
    ('2.954', '11,977', '0.9877')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def interval_text(value: float, low: float, high: float, unit: str = "") -> str:
    """A value with its interval in words.

    >>> interval_text(2.9541, 2.93, 2.98, "x")
    '2.954x (95 % interval 2.93x to 2.98x)'
    >>> interval_text(2.9541, math.nan, math.nan, "x")
    '2.954x (too few repeats for an interval)'
    """
    if math.isnan(low):
        return f"{number_text(value)}{unit} (too few repeats for an interval)"
    return f"{number_text(value)}{unit} (95 % interval {number_text(low)}{unit} to {number_text(high)}{unit})"

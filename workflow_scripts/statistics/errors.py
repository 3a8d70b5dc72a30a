"""Errors whose variance is uncertain: probabilities and intervals from a mixture of normal distributions.

An error is normal, given its variance, and the logarithm of the variance is normal. The variance has a mean and, as a
measure of how well it is known, degrees of freedom: twice its squared mean over its own variance. So those of a sum are
Satterthwaite's, and with many the error is normal; but few of them give no tail as heavy as Student's, which says that
one variance in ten is a hundred times as large as expected.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int_]
Parts = TypeVar("Parts", bound=tuple[Any, ...])

# Nodes for the logarithm of a variance, by Gauss and Hermite, and the standard deviations for which half widths are
# tabulated.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(25)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_SPREADS = np.linspace(0.0, 2.5, 126)


class Error(NamedTuple):
    """The mean of a squared error, and the degrees of freedom that say how well it is known."""

    variance: FloatArray
    df: FloatArray = np.array(np.inf)

    def of(self, cells: Any) -> "Error":
        """Those of chosen cells, along the last axis."""
        return each(self, lambda part: part[..., cells])

    def times(self, factor: npt.NDArray[Any] | float) -> "Error":
        """With the variance times a factor."""
        return Error(self.variance * factor, self.df)


def each(parts: Parts, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Parts:
    """A named tuple with each of its arrays changed, also those of the errors in it."""
    return type(parts)(*(each(part, change) if isinstance(part, tuple) else change(part) for part in parts))


@np.errstate(divide="ignore", invalid="ignore")
def added(*parts: Error) -> Error:
    """The sum of errors whose variances are known independently of each other."""
    total, uncertain = np.zeros(()), np.zeros(())
    for part in parts:
        total = total + part.variance
        uncertain = uncertain + np.where(part.variance > 0, part.variance**2 / part.df, 0.0)
    return Error(total, np.where(uncertain > 0, total**2 / uncertain, np.inf))


@np.errstate(divide="ignore", invalid="ignore")
def from_moments(mean: FloatArray, mean_square: FloatArray) -> Error:
    """The error whose variance has this mean, and this mean of its square."""
    return Error(mean, np.where(mean_square > mean**2, 2 * mean**2 / (mean_square - mean**2), np.inf))


def _spread(df: FloatArray | float) -> FloatArray:
    """The standard deviation of the logarithm of a variance."""
    return np.asarray(np.minimum(np.sqrt(np.log1p(2 / np.asarray(df, dtype=float))), _SPREADS[-1]))


@np.errstate(divide="ignore", invalid="ignore")
def p_of(distance: FloatArray, error: Error) -> FloatArray:
    """How often an error is farther from 0 than a distance, to either side; above 1 if the distance is negative.

    >>> known, guessed = (Error(np.array([1.0]), np.array([df])) for df in (np.inf, 2.0))
    >>> [round(float(p_of(np.array([1.96]), of)[0]), 3) for of in (known, guessed)]
    [0.05, 0.057]
    """
    from scipy import special  # takes as long to import as a small table

    spread = _spread(error.df)
    scaled = np.where(error.variance == 0, np.sign(distance) * np.inf, distance / np.sqrt(error.variance))
    tails = sum(
        weight * special.ndtr(-scaled / np.exp((spread * node - spread**2 / 2) / 2))
        for node, weight in zip(_NODES, _WEIGHTS, strict=True)
    )
    return np.asarray(np.where((error.variance == 0) & (distance == 0), 1.0, 2 * tails))


@cache
def _half_widths(confidence: float) -> FloatArray:
    """Half the widths of intervals of errors with a variance of 1, for each of _SPREADS, by bisection."""
    df = 2 / np.expm1(np.maximum(_SPREADS, 1e-6) ** 2)
    low, high = np.zeros(len(df)), np.full(len(df), 50.0)
    for _ in range(50):
        middle = (low + high) / 2
        beyond = p_of(middle, Error(np.array(1.0), df)) > 1 - confidence
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return high


def half_width(error: Error, confidence: float) -> FloatArray:
    """Half the width of the two-sided interval; NaN where the variance is not known."""
    width = np.interp(_spread(error.df), _SPREADS, _half_widths(confidence))
    return np.asarray(width * np.sqrt(error.variance))

"""Means of starts, and whether the starts of a cell fall into two groups: a note, which no interval depends on.

Arrays have the shape (..., cells, rounds); leading axes, if any, are independent studies.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int_]

# Starts fall into two groups if each has this many, and normal starts split as clearly in 1 of 1,000 cells only.
LEAST_OF_A_MODE, BIMODAL_ALPHA = 2, 0.001


def bimodal(left: FloatArray) -> BoolArray:
    """Cells whose starts, without the effects of rounds, fall into two groups: more clearly than normal starts do, and
    not by a single step in time, which may be drift.

    >>> rng = np.random.default_rng(24)
    >>> left = rng.normal(0, 0.03, (3, 6))
    >>> left[2] += [0, 0.8, 0, 0.8, 0.8, 0]
    >>> bimodal(left).tolist(), bimodal(np.sort(left)).tolist()
    ([False, False, True], [False, False, False])
    """
    absent = np.isnan(left)
    starts = (~absent).sum(axis=-1)
    in_order = np.take_along_axis(left, np.argsort(absent, axis=-1, kind="stable"), axis=-1)  # missing starts come last
    found = np.zeros(starts.shape, dtype=bool)
    for n in range(2 * LEAST_OF_A_MODE, left.shape[-1] + 1):
        total, within, upper = _two_groups(in_order[..., :n])
        with np.errstate(divide="ignore", invalid="ignore"):
            clear = (1 - within / total > _explained_by_chance(n)) & (np.diff(upper, axis=-1).sum(axis=-1) > 1)
        found |= (starts == n) & clear
    return found


def _two_groups(values: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Sum of squares around the mean, and around the means of the two groups that minimise it; and the upper group."""
    n = values.shape[-1]
    ordered = np.sort(values, axis=-1)
    x = ordered - ordered.mean(axis=-1, keepdims=True)
    below = np.arange(LEAST_OF_A_MODE, n - LEAST_OF_A_MODE + 1)
    between = x.cumsum(axis=-1)[..., below - 1] ** 2 * (1 / below + 1 / (n - below))
    total = (x**2).sum(axis=-1)
    lowest = np.take_along_axis(ordered, below[between.argmax(axis=-1)][..., None], axis=-1)
    return total, np.maximum(total - between.max(axis=-1), 0), values >= lowest


@cache
def _explained_by_chance(n: int) -> float:
    """The part of the sum of squares that two groups explain in 1 of 1,000 normal samples of n."""
    total, within, _ = _two_groups(np.random.default_rng(n).normal(size=(50_000, n)))
    return float(np.quantile(1 - within / total, 1 - BIMODAL_ALPHA))


def mean_of(values: FloatArray, axis: int = -1) -> FloatArray:
    """The mean over an axis without missing values; NaN without a value."""
    measured = ~np.isnan(values)
    n = measured.sum(axis=axis)
    return np.where(n > 0, np.where(measured, values, 0).sum(axis=axis) / np.maximum(n, 1), np.nan)


def around_mean(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The sum of squares around the mean over the last axis, without missing values, and how many values there are."""
    n: FloatArray = (~np.isnan(values)).sum(axis=-1).astype(np.float64)
    return np.nansum((values - mean_of(values)[..., None]) ** 2, axis=-1), n

"""Means of starts, and their squares around them.

Arrays have the shape (..., cells, rounds); leading axes, if any, are independent studies.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int_]


def mean_of(values: FloatArray, axis: int = -1) -> FloatArray:
    """The mean over an axis without missing values; NaN without a value."""
    measured = ~np.isnan(values)
    n = measured.sum(axis=axis)
    return np.where(n > 0, np.where(measured, values, 0).sum(axis=axis) / np.maximum(n, 1), np.nan)


def around_mean(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The sum of squares around the mean over the last axis, without missing values, and how many values there are."""
    n: FloatArray = (~np.isnan(values)).sum(axis=-1).astype(np.float64)
    return np.nansum((values - mean_of(values)[..., None]) ** 2, axis=-1), n

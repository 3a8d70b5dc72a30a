"""How much starts of an engine vary, cell by cell, and whether they fall into two groups.

Arrays have the shape (..., cells, rounds); leading axes, if any, are independent studies. A round's effect on all cells
of a device and engine is removed first, so what remains is the difference between starts of one cell.

Source: [Cochran] The distribution of the largest of a set of estimated variances, Annals of Eugenics 11, 1941.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Size of the test that excludes outliers from what is pooled.
OUTLIER_ALPHA = 0.01
# With fewer cells, a cell that stands out cannot be told from the others.
LEAST_POOLED = 3
# Starts fall into two groups if each group has this many, and normal starts split as clearly in 1 of 1,000 cells only.
LEAST_OF_A_MODE, BIMODAL_ALPHA = 2, 0.001
# Sweeps over cells and rounds that remove their effects, also if a round lacks cells.
_SWEEPS = 25


class Spread(NamedTuple):
    """How the logarithms of starts vary, for each cell.

    `own` is the variance between the cell's starts without the effects of rounds, with its `df`; `alike` says that it
    does not stand out above that of the other cells. `bimodal` says that the starts fall into two groups, a note for
    the reader. `overlap` is the correlation between the variances of two cells of the group: two cells show only one
    difference. `rounds` has one more axis: the effect of each round on the cells that are alike, or on the cell if it
    is alone; `weight` is the cell's weight in this effect.
    """

    own: FloatArray
    df: FloatArray
    alike: BoolArray
    bimodal: BoolArray
    overlap: FloatArray
    rounds: FloatArray
    weight: FloatArray


@np.errstate(divide="ignore", invalid="ignore")
def spread(log: FloatArray, group: npt.NDArray[np.int_]) -> Spread:
    """The spread of the starts of cells; cells of one device and engine have the same number in `group`.

    >>> rng = np.random.default_rng(24)
    >>> log = rng.normal(0, 0.03, (6, 6)) + rng.normal(0, 0.2, 6)  # each round is another occasion
    >>> log[2] += [0, 0.8, 0, 0.8, 0.8, 0]
    >>> found = spread(log, np.zeros(6, dtype=int))
    >>> found.alike.tolist(), found.bimodal.tolist()
    ([True, True, False, True, True, True], [False, False, True, False, False, False])
    >>> round(float(found.own[found.alike].mean() ** 0.5), 2)
    0.03
    """
    parts = [_of_group(log[..., group == number, :]) for number in np.unique(group)] or [_of_group(log)]
    back = np.argsort(np.argsort(group, kind="stable"))
    of_cells = log.ndim - 2
    return Spread(*(np.concatenate(of, axis=of_cells).take(back, axis=of_cells) for of in zip(*parts, strict=True)))


def _of_group(log: FloatArray) -> Spread:
    # A round in which only one cell was measured says nothing about its effect on others.
    shared = np.where((~np.isnan(log)).sum(axis=-2, keepdims=True) > 1, log, np.nan)
    alike = _alike(*_own(shared)[:2])
    # Once more without the cells that stand out, because they affected the effects of rounds.
    together = np.where(alike[..., None], shared, np.nan)
    own, df, lost, rounds = _own(together)
    total_df, cells = df.sum(axis=-1, keepdims=True), (df > 0).sum(axis=-1, keepdims=True)
    # The effects are those on the cells that do not stand out, so one with two levels does not change them.
    bimodal = _bimodal(shared - rounds[..., None, :] if log.shape[-2] >= LEAST_POOLED else log)
    # What a round did to a cell that was measured alone belongs to the variation of its mean.
    of_alike = np.where(alike[..., None], log, np.nan)
    every_round = _without_rounds(of_alike)[1] if np.isnan(shared[~np.isnan(log)]).any() else rounds
    several = (~np.isnan(together)).any(axis=-1).sum(axis=-1, keepdims=True) > 1
    beside = shared - rounds[..., None, :]
    left = np.where(total_df > 0, (total_df - lost) / total_df, 0.0)
    overlap = np.where(cells > 1, 1.0 / (cells - 1.0) ** 2, 0.0)
    # If rounds lack cells, the mean over rounds is a good approximation.
    weight = mean_of(1 / np.where(np.isnan(every_round), np.nan, (~np.isnan(of_alike)).sum(axis=-2)))[..., None]
    squares, n = around_mean(beside)
    return Spread(
        np.nan_to_num(np.where(alike, own, squares / np.maximum(n - 1, 1))),
        np.where(alike, df * left, np.maximum(n - 1, 0)),
        alike,
        bimodal,
        np.broadcast_to(overlap, alike.shape),
        np.where(several[..., None], every_round[..., None, :], log - mean_of(log)[..., None]),
        np.where(several, np.where(alike, weight, 0.0), 1.0),
    )


def _own(log: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Each cell's variance without the effects of rounds, its degrees of freedom, how many of these all effects
    use, and the effects.
    """
    measured = ~np.isnan(log)
    df = np.maximum(measured.sum(axis=-1) - 1, 0).astype(float)
    lost = np.maximum(measured.any(axis=-2).sum(axis=-1) - 1, 0)[..., None].astype(float)
    total = df.sum(axis=-1, keepdims=True)
    left, rounds = _without_rounds(log)
    unbiased = total / np.maximum(total - lost, 1)  # the effects use as many from each cell
    own = np.where(df > 0, np.nansum(left**2, axis=-1) / df * unbiased, np.nan)
    return own, df, lost, rounds


def _without_rounds(log: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What is left of each start without the effects of its cell and its round, by least squares; and the effects of
    the rounds.
    """
    left, rounds = log, np.zeros((*log.shape[:-2], log.shape[-1]))
    for _ in range(_SWEEPS):
        left = left - mean_of(left)[..., None]
        moved = mean_of(left, axis=-2)
        left, rounds = left - moved[..., None, :], rounds + moved
    return left, rounds


def cell_means(log: FloatArray, group: npt.NDArray[np.int_]) -> FloatArray:
    """Means of cells without the effects of the rounds that they were measured in, to rank cells of one group.

    The first cell is the faster one, but missed the fast round:

    >>> log = np.log([[10.0, np.nan], [9.0, 18.0], [5.0, 10.0]])
    >>> cell_means(log, np.zeros(3, dtype=int)).argmax(), np.nanmean(log, axis=1).argmax()
    (np.int64(0), np.int64(1))
    """
    means = np.full(log.shape[:-1], np.nan)
    for number in np.unique(group):
        of = group == number
        means[..., of] = mean_of(log[..., of, :] - _without_rounds(log[..., of, :])[1][..., None, :])
    return means


def mean_of(values: FloatArray, axis: int = -1) -> FloatArray:
    """The mean over an axis without missing values; NaN without a value."""
    measured = ~np.isnan(values)
    n = measured.sum(axis=axis)
    return np.where(n > 0, np.where(measured, values, 0).sum(axis=axis) / np.maximum(n, 1), np.nan)


def around_mean(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The sum of squares around the mean over the last axis, without missing values, and how many values there are."""
    n: FloatArray = (~np.isnan(values)).sum(axis=-1).astype(np.float64)
    return np.nansum((values - mean_of(values)[..., None]) ** 2, axis=-1), n


def _alike(own: FloatArray, df: FloatArray) -> BoolArray:
    """Cells whose variance does not stand out above that of the others, found one after another. [Cochran]"""
    from scipy import special  # takes as long to import as a small table

    alike = ~(np.isnan(own) & (df > 0))
    cells = own.shape[-1]
    value = np.nan_to_num(own)
    for _ in range(cells // LEAST_POOLED):
        weight = np.where(alike, df, 0)
        rest_df = weight.sum(axis=-1, keepdims=True) - weight
        rest = ((weight * value).sum(axis=-1, keepdims=True) - weight * value) / rest_df
        p = special.fdtrc(df, rest_df, value / rest)
        p = np.where(alike & (df > 0) & (rest_df > 0) & ~np.isnan(p), p, 1.0)
        first = p.argmin(axis=-1)[..., None]
        stands_out = np.take_along_axis(p, first, axis=-1) * (weight > 0).sum(axis=-1, keepdims=True) < OUTLIER_ALPHA
        if not stands_out.any():
            break
        alike &= ~(stands_out & (np.arange(cells) == first))
    return alike


def _bimodal(left: FloatArray) -> BoolArray:
    """Cells whose starts fall into two groups: more clearly than normal starts do, and not by a single step in time,
    which may be drift.
    """
    absent = np.isnan(left)
    starts = (~absent).sum(axis=-1)
    in_order = np.take_along_axis(left, np.argsort(absent, axis=-1, kind="stable"), axis=-1)  # missing starts come last
    bimodal = np.zeros(starts.shape, dtype=bool)
    for n in range(2 * LEAST_OF_A_MODE, left.shape[-1] + 1):
        total, within, upper = _two_groups(in_order[..., :n])
        clear = (1 - within / total > _explained_by_chance(n)) & (np.diff(upper, axis=-1).sum(axis=-1) > 1)
        bimodal |= (starts == n) & clear
    return bimodal


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

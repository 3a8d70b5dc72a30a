"""How much starts of an engine vary: pooled over cells with similar variances, without cells that stand out.

Arrays have the shape (..., cells, rounds); leading axes, if any, are independent studies. A round's effect on all cells
of a device and engine is removed first, so what remains is the difference between starts of one cell.

Sources: [Bartlett] Properties of sufficiency and statistical tests, Proc. R. Soc. A 160, 1937; [Cochran] The
distribution of the largest of a set of estimated variances, Annals of Eugenics 11, 1941.
"""

import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Sizes of the tests: cells are pooled unless the first shows that their variances differ; the second excludes outliers.
HOMOGENEITY_ALPHA, OUTLIER_ALPHA = 0.05, 0.01
# With fewer cells, a cell that stands out cannot be told from the others.
LEAST_POOLED = 3
# Starts fall into two groups if each group has this many, and chance splits starts as clearly in 1 of 1,000 cells only.
LEAST_OF_A_MODE, BIMODAL_ALPHA = 2, 0.001
# Sweeps over cells and rounds that remove their effects, also if a round lacks cells.
_SWEEPS = 25
_LEAST_VARIANCE = 1e-12


class Spread(NamedTuple):
    """Variance of logarithms between starts, for each cell.

    `variance` and `df` are those of the pooled cells (NaN and 0 if there are none); `pooled` says whether the cell is
    one of them, and `bimodal` whether its starts fall into two groups. `rounds` has one more axis: the effect of each
    round on the pooled cells together, or on the cell alone if it is not pooled; `share` is the cell's share in it.
    """

    variance: FloatArray
    df: FloatArray
    pooled: BoolArray
    bimodal: BoolArray
    rounds: FloatArray
    share: FloatArray


def spread(log: FloatArray, group: npt.NDArray[np.int_]) -> Spread:
    """The spread of the starts of cells; cells of one device and engine have the same number in `group`.

    >>> rng = np.random.default_rng(24)
    >>> log = rng.normal(0, 0.03, (6, 6)) + rng.normal(0, 0.2, 6)  # each round is another occasion
    >>> log[2] += [0, 0.5, 0, 0.5, 0.5, 0]
    >>> found = spread(log, np.zeros(6, dtype=int))
    >>> found.pooled.tolist(), found.bimodal.tolist()
    ([True, True, False, True, True, True], [False, False, True, False, False, False])
    >>> round(float(found.variance[0] ** 0.5), 2)
    0.03
    """
    shape = log.shape[:-1]
    variance, df = np.full(shape, np.nan), np.zeros(shape)
    pooled, bimodal = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    rounds, share = np.full(log.shape, np.nan), np.ones(shape)
    for number in np.unique(group):
        of = group == number
        found = _of_group(log[..., of, :])
        for whole, part in zip((variance, df, pooled, bimodal, share), (*found[:4], found.share), strict=True):
            whole[..., of] = part
        rounds[..., of, :] = found.rounds
    return Spread(variance, df, pooled, bimodal, rounds, share)


def _of_group(log: FloatArray) -> Spread:
    # A round in which only one cell was measured says nothing about its effect on others.
    shared = np.where((~np.isnan(log)).sum(axis=-2, keepdims=True) > 1, log, np.nan)
    alike = _alike(*_own(shared)[:2])
    # Once more without the cells that stand out, because they affected the effects of rounds.
    together = np.where(alike[..., None], shared, np.nan)
    own, df, lost, rounds = _own(together)
    total = df.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.nansum(own * df, axis=-1, keepdims=True) / total
    pooled = ((df > 0).sum(axis=-1, keepdims=True) >= LEAST_POOLED) & (total > lost) & ~_differ(own, df, variance)
    variance, total = np.where(pooled, variance, np.nan), np.where(pooled, total - lost, 0.0)
    bimodal = _bimodal(_without_medians(shared) if log.shape[-2] >= LEAST_POOLED else log, variance, total)
    wide = alike.shape
    of_all = np.broadcast_to(variance, wide), np.broadcast_to(total, wide)
    is_pooled = alike & pooled & ~bimodal
    # If rounds lack cells, the mean over rounds is a good approximation.
    share = _mean(1 / np.where(np.isnan(rounds), np.nan, (~np.isnan(together)).sum(axis=-2)))
    alone = log - _mean(log)[..., None]
    return Spread(
        *of_all,
        is_pooled,
        bimodal,
        np.where(is_pooled[..., None], rounds[..., None, :], alone),
        np.where(is_pooled, share[..., None], 1.0),
    )


def _own(log: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Each cell's variance without the effects of rounds, its degrees of freedom, how many of these all effects
    use, and the effects.
    """
    known = ~np.isnan(log)
    df = np.maximum(known.sum(axis=-1) - 1, 0).astype(float)
    lost = np.maximum(known.any(axis=-2).sum(axis=-1) - 1, 0)[..., None].astype(float)
    total = df.sum(axis=-1, keepdims=True)
    left, rounds = _without_rounds(log)
    with np.errstate(divide="ignore", invalid="ignore"):
        unbiased = total / np.maximum(total - lost, 1)  # the effects use as many from each cell
        own = np.where(df > 0, np.nansum(left**2, axis=-1) / df * unbiased, np.nan)
    return own, df, lost, rounds


def _without_rounds(log: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What is left of each start without the effects of its cell and its round, by least squares; and the effects of
    the rounds.
    """
    left, rounds = log, np.zeros((*log.shape[:-2], log.shape[-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rounds and cells without a start
        for _ in range(_SWEEPS):
            left = left - np.nanmean(left, axis=-1, keepdims=True)
            moved = np.nanmean(left, axis=-2)
            left, rounds = left - moved[..., None, :], rounds + moved
    return left, rounds


def _mean(values: FloatArray) -> FloatArray:
    """The mean over the last axis without missing values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rows without a value
        mean: FloatArray = np.nanmean(values, axis=-1)
    return mean


def _without_medians(log: FloatArray) -> FloatArray:
    """Starts without the effects of rounds, by medians, so that a cell with two levels does not change the effects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        left = log - np.nanmedian(log, axis=-1, keepdims=True)
        rounds = np.nanmedian(left, axis=-2, keepdims=True)
    without: FloatArray = log - rounds
    return without


def _alike(own: FloatArray, df: FloatArray) -> BoolArray:
    """Cells whose variance does not stand out above that of the others, found one after another. [Cochran]"""
    alike = ~(np.isnan(own) & (df > 0))
    cells = own.shape[-1]
    value = np.nan_to_num(own)
    for _ in range(cells // LEAST_POOLED):
        weight = np.where(alike, df, 0)
        rest_df = weight.sum(axis=-1, keepdims=True) - weight
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = ((weight * value).sum(axis=-1, keepdims=True) - weight * value) / rest_df
            p = stats.f.sf(value / rest, df, rest_df)
        p = np.where(alike & (df > 0) & (rest_df > 0) & ~np.isnan(p), p, 1.0)
        first = p.argmin(axis=-1)[..., None]
        stands_out = np.take_along_axis(p, first, axis=-1) * (weight > 0).sum(axis=-1, keepdims=True) < OUTLIER_ALPHA
        alike &= ~(stands_out & (np.arange(cells) == first))
    return alike


def _differ(own: FloatArray, df: FloatArray, pooled: FloatArray) -> BoolArray:
    """Whether the variances of the cells with `df` above 0 differ. [Bartlett]"""
    cells = (df > 0).sum(axis=-1, keepdims=True)
    total = df.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(df > 0, df * np.log(np.maximum(own, _LEAST_VARIANCE)), 0).sum(axis=-1, keepdims=True)
        inverse = np.where(df > 0, 1 / df, 0).sum(axis=-1, keepdims=True)
        statistic = total * np.log(np.maximum(pooled, _LEAST_VARIANCE)) - logs
        statistic /= 1 + (inverse - 1 / total) / (3 * (cells - 1))
        differ: BoolArray = stats.chi2.sf(statistic, cells - 1) < HOMOGENEITY_ALPHA
    return differ


def _bimodal(left: FloatArray, variance: FloatArray, df: FloatArray) -> BoolArray:
    """Cells whose starts fall into two groups.

    If other cells have a pooled variance, the cell must vary more than they do, and not more within the two groups. If
    not, the split must be clearer than chance makes it.
    """
    starts = (~np.isnan(left)).sum(axis=-1)
    ordered = np.sort(left, axis=-1)  # missing starts come last
    found = np.zeros(starts.shape, dtype=bool)
    for n in range(2 * LEAST_OF_A_MODE, left.shape[-1] + 1):
        total, within = _two_groups(ordered[..., :n])
        with np.errstate(divide="ignore", invalid="ignore"):
            varies_more = stats.f.sf(total / (n - 1) / variance, n - 1, df) < BIMODAL_ALPHA
            as_others = stats.f.sf(within / (n - 2) / variance, n - 2, df) > OUTLIER_ALPHA
            clear = 1 - within / total > _share_by_chance(n)
        found |= (starts == n) & np.where(np.isnan(variance), clear, varies_more & as_others)
    return found


def _two_groups(ordered: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sum of squares around the mean, and around the means of the two groups that minimise it; last axis sorted."""
    n = ordered.shape[-1]
    x = ordered - ordered.mean(axis=-1, keepdims=True)
    below = np.arange(LEAST_OF_A_MODE, n - LEAST_OF_A_MODE + 1)
    between = x.cumsum(axis=-1)[..., below - 1] ** 2 * (1 / below + 1 / (n - below))
    total = (x**2).sum(axis=-1)
    return total, np.maximum(total - between.max(axis=-1), 0)


@cache
def _share_by_chance(n: int) -> float:
    """The share of the sum of squares that two groups explain in 1 of 1,000 normal samples of n."""
    total, within = _two_groups(np.sort(np.random.default_rng(n).normal(size=(50_000, n)), axis=-1))
    return float(np.quantile(1 - within / total, 1 - BIMODAL_ALPHA))

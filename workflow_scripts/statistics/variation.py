"""How much starts of each cell vary: what a study has measured, together with what others have.

The logarithm of a rate is the sum of a card's, an occasion's, a cell's, a round's, a start's and a repeat's effect. The
logarithm of the standard deviation of a cell's starts is normal around that of its study, and this is around what other
studies show (config/variation.yaml). The variance of repeats within a start has a chi-square distribution, and so have
the squares of starts without the effects of their rounds. Posteriors are sums over a grid.

Arrays have the shape (..., cells, rounds); leading axes, if any, are independent studies.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import read_yaml
from workflow_scripts.statistics.errors import BoolArray, Error, FloatArray, IntArray, from_moments

RECORD = CHECKOUT / "config" / "variation.yaml"
# Standard deviations that posteriors are summed over, in standard deviations of their prior.
_GRID = np.linspace(-6.0, 6.0, 97)
_OF_STUDY, _OF_REPEATS = np.linspace(-2.5, 2.5, 7), np.polynomial.hermite_e.hermegauss(5)
# Sweeps over cells and rounds that remove their effects, also if a round lacks cells; and how often cells are weighed
# by what they then vary.
_SWEEPS, _PASSES = 25, 2


class Known(NamedTuple):
    """What other studies show, for each cell, as standard deviations of logarithms: of starts, repeats and rounds
    (medians), of a cell and of a card between occasions, of a cell as far as verdicts allow for it, and of one that may
    be on another host; and of logarithms of standard deviations: of a cell's starts around its study's, of a study's
    around others, of repeats, and of all others."""

    starts: FloatArray
    repeats: FloatArray
    rounds: FloatArray
    occasions: FloatArray
    cards: FloatArray
    occasions_in_verdicts: FloatArray
    new_hosts: FloatArray
    cells_differ: FloatArray
    studies_differ: FloatArray
    repeats_differ: FloatArray
    others_differ: FloatArray


def known_elsewhere(is_cpu: BoolArray | bool) -> Known:
    """What other studies show about cells on CPUs and on GPUs.

    >>> known_elsewhere(np.array([True, False])).new_hosts.tolist()
    [0.15, 0.017]
    """
    return Known(*(np.where(is_cpu, *both) for both in zip(_recorded("cpu"), _recorded("gpu"), strict=True)))


@cache
def _recorded(kind: str) -> list[float]:
    record = read_yaml(RECORD, InputError)[kind]
    return [record[f"{name}_pct"] / 100 if f"{name}_pct" in record else record[name] for name in Known._fields]


def mean_of(values: FloatArray, axis: int = -1) -> FloatArray:
    """The mean over an axis without missing values; NaN without a value."""
    measured = ~np.isnan(values)
    n = measured.sum(axis=axis)
    return np.where(n > 0, np.where(measured, values, 0).sum(axis=axis) / np.maximum(n, 1), np.nan)


def around_mean(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The sum of squares around the mean over the last axis, without missing values, and its degrees of freedom."""
    n: FloatArray = (~np.isnan(values)).sum(axis=-1).astype(np.float64)
    return np.nansum((values - mean_of(values)[..., None]) ** 2, axis=-1), np.maximum(n - 1, 0)


class Variation(NamedTuple):
    """How much one start of each cell varies without the effect of its round, given each of several standard deviations
    of its study: means of the variance and of its square, shape (..., cells, len(_OF_STUDY)), with their `weight`; and
    the variance of the effects of rounds on each cell, with the effects and their own error beside it."""

    mean: FloatArray
    square: FloatArray
    weight: FloatArray
    rounds: Error
    effects: FloatArray
    effects_error: FloatArray

    @property
    def starts(self) -> Error:
        """The variance of one start of each cell without the effect of its round."""
        return from_moments((self.mean * self.weight).sum(axis=-1), (self.square * self.weight).sum(axis=-1))


def variation(log: FloatArray, group: IntArray, kind: IntArray, known: Known, repeats: Error) -> Variation:
    """What starts show, shape (..., cells, rounds); cells of a `group` share the effects of rounds, those of a `kind`
    how much their study varies. `repeats` is the error of a start's mean by its repeats."""
    weigh = np.ones(log.shape[:-1])
    for last in range(_PASSES - 1, -1, -1):
        effects, error, left, in_effect = _of_rounds(log, weigh, group)
        df = np.maximum((~np.isnan(log)).sum(axis=-1) - 1, 0) * (1 - in_effect)
        df = np.where(df > 1e-9, df, 0.0)
        own = np.divide(np.nansum(left**2, axis=-1), df, out=np.zeros(df.shape), where=df > 0)
        moments = _of_starts(own, df, kind, known, repeats)
        weigh = 1 / (moments[0] * moments[2]).sum(axis=-1) if last else weigh
    _, first, of_group = np.unique(group, return_index=True, return_inverse=True)  # which share all of this
    squares, df = around_mean(effects[..., first, :])
    of_rounds = posterior(known.rounds[first], known.others_differ[first], squares, df, error[..., first])
    return Variation(*moments, of_rounds.of(of_group), effects, error)


def posterior(
    median: FloatArray, differ: FloatArray, squares: FloatArray, df: FloatArray, beside: FloatArray | float = 0.0
) -> Error:
    """The posterior of a variance, whose root is lognormal around a median; the sum of squares is chi-square with `df`
    times the variance and what is `beside` it."""
    variance = np.square(median[..., None] * np.exp(differ[..., None] * _GRID))
    total = variance + np.asarray(beside)[..., None]
    log = -(df[..., None] * np.log(total) + squares[..., None] / total) / 2 - _GRID**2 / 2
    weight = np.exp(log - log.max(axis=-1, keepdims=True))
    weight = weight / weight.sum(axis=-1, keepdims=True)
    return from_moments((weight * variance).sum(axis=-1), (weight * variance**2).sum(axis=-1))


def _of_starts(
    own: FloatArray, df: FloatArray, kind: IntArray, known: Known, repeats: Error
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The first three fields of `Variation`, by the variance of each cell's own starts with its degrees of freedom."""
    mean, square, weight = np.empty((3, *own.shape, len(_OF_STUDY)))
    nodes, node_weights = _OF_REPEATS
    spread = np.sqrt(np.log1p(2 / repeats.df))[..., None]
    of_repeats = repeats.variance[..., None] * np.exp(spread * nodes - spread**2 / 2)
    for number in np.unique(kind):
        cells = kind == number
        here = Known(*(part[cells][0] for part in known))
        sd = here.starts * np.exp(np.hypot(here.cells_differ, here.studies_differ) * _GRID)
        around = np.log(sd / here.starts)[:, None] - here.studies_differ * _OF_STUDY
        prior = np.exp(-((around / here.cells_differ) ** 2) / 2)
        prior = prior / prior.sum(axis=0)
        if not df[..., cells].any():  # starts show nothing, so what is known elsewhere remains
            (one, two), (beside, beside_two) = (
                ([values @ weights / weights.sum(axis=0) for values in (part, part**2)])
                for part, weights in ((sd**2, prior), (of_repeats[..., cells, :], node_weights))
            )
            mean[..., cells, :] = one + beside[..., None]
            square[..., cells, :] = two + 2 * one * beside[..., None] + beside_two[..., None]
            of_study = np.exp(-(_OF_STUDY**2) / 2)
            weight[..., cells, :] = of_study / of_study.sum()
            continue
        variance = sd[:, None] ** 2 + of_repeats[..., cells, None, :]  # (..., cells, grid, nodes)
        log = -df[..., cells, None, None] / 2 * (np.log(variance) + own[..., cells, None, None] / variance)
        likelihood = np.exp(log - log.max(axis=(-2, -1), keepdims=True)) * node_weights
        of_cell = likelihood.sum(axis=-1) @ prior + 1e-300
        mean[..., cells, :] = ((likelihood * variance).sum(axis=-1) @ prior) / of_cell
        square[..., cells, :] = ((likelihood * variance**2).sum(axis=-1) @ prior) / of_cell
        of_study = np.log(of_cell).sum(axis=-2) - _OF_STUDY**2 / 2
        of_study = np.exp(of_study - of_study.max(axis=-1, keepdims=True))
        weight[..., cells, :] = (of_study / of_study.sum(axis=-1, keepdims=True))[..., None, :]
    return mean, square, weight


def _of_rounds(
    log: FloatArray, weigh: FloatArray, group: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The effects of rounds on the cells of each group, by weighted least squares, NaN if none of them was measured,
    and their error, which is that of a weighted mean; what is left of each start without these; and each cell's part in
    the effects."""
    (effects, left), (error, part) = np.empty((2, *log.shape)), np.empty((2, *log.shape[:-1]))
    sweeps = _SWEEPS if np.isnan(log).any() else 2
    for number in np.unique(group):
        cells = group == number
        of_group = log[..., cells, :]
        weights = np.where(np.isnan(of_group), 0.0, weigh[..., cells, None])
        in_round = weights.sum(axis=-2, keepdims=True)
        weights = weights / np.where(in_round > 0, in_round, 1.0)
        rest, of_rounds = of_group, np.zeros(in_round.shape)
        for _ in range(sweeps):
            rest = rest - mean_of(rest)[..., None]
            moved = (weights * np.nan_to_num(rest)).sum(axis=-2, keepdims=True)
            rest, of_rounds = rest - moved, of_rounds + moved
        left[..., cells, :] = rest
        effects[..., cells, :] = np.where(in_round > 0, of_rounds, np.nan)
        error[..., cells] = mean_of(1 / np.where(in_round > 0, in_round, np.nan))
        part[..., cells] = mean_of(np.where(np.isnan(of_group), np.nan, weights))
    return effects, np.nan_to_num(error), left, np.nan_to_num(part)


def cell_means(log: FloatArray, group: IntArray) -> FloatArray:
    """Means of cells without the effects of the rounds that they were measured in, to rank cells of one group.

    The first cell is the faster one, but missed the fast round:

    >>> log = np.log([[10.0, np.nan], [9.0, 18.0], [5.0, 10.0]])
    >>> cell_means(log, np.zeros(3, dtype=int)).argmax(), np.nanmean(log, axis=1).argmax()
    (np.int64(0), np.int64(1))
    """
    return mean_of(log - _of_rounds(log, np.ones(log.shape[:-1]), group)[0])

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
from workflow_scripts.statistics.errors import Error, from_moments
from workflow_scripts.statistics.start_spread import BoolArray, FloatArray, IntArray, around_mean, mean_of

RECORD = CHECKOUT / "config" / "variation.yaml"
# Standard deviations that posteriors are summed over, in standard deviations of their prior.
_GRID = np.linspace(-6.0, 6.0, 97)
_OF_STUDY, _OF_REPEATS = np.linspace(-2.5, 2.5, 7), np.polynomial.hermite_e.hermegauss(5)
# Sweeps over cells and rounds that remove their effects, also if a round lacks cells; and how often cells are weighed
# by what they then vary.
_SWEEPS, _PASSES = 25, 2
# Two engines on one device, or on two CPUs of one host, share half of the variance of the effects of their rounds.
_APART_IN_A_ROUND = 0.5


class Known(NamedTuple):
    """What other studies show, as standard deviations of logarithms: of starts, repeats and rounds (medians), of a cell
    and of a card between occasions, and of a cell as far as verdicts allow for it; and of logarithms of standard
    deviations: of a cell's starts around its study's, of a study's around others, of repeats, and of all others."""

    starts: float
    repeats: float
    rounds: float
    occasions: float
    cards: float
    occasions_in_verdicts: float
    cells_differ: float
    studies_differ: float
    repeats_differ: float
    others_differ: float

    def of_cells(self, count: int) -> FloatArray:
        """The fields along the first axis, the same for each cell."""
        return np.repeat(np.array(self)[:, None], count, axis=1)


@cache
def known_elsewhere(is_cpu: bool) -> Known:
    """What other studies show about starts on CPUs or on GPUs.

    >>> known_elsewhere(True).repeats_differ
    0.6
    """
    record = read_yaml(RECORD, InputError)["cpu" if is_cpu else "gpu"]
    return Known(*(record[f"{name}_pct"] / 100 if f"{name}_pct" in record else record[name] for name in Known._fields))


@cache
def of_occasions(is_cpu: bool) -> float:
    """Standard deviation of a cell from one day, host or version to another on CPUs or on GPUs, in per cent.

    >>> of_occasions(True), of_occasions(False)
    (15.0, 1.7)
    """
    return float(read_yaml(RECORD, InputError)["cpu" if is_cpu else "gpu"]["new_hosts_pct"])


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

    def of_cells(self, cells: IntArray, axis: int) -> "Variation":
        """The same for chosen cells, which are along this axis."""
        rounds = Error(*(part[..., cells] for part in self.rounds))
        mean, square, weight, _, effects, error = self
        mean, square, weight, effects, error = (
            of.take(cells, axis=axis) for of in (mean, square, weight, effects, error)
        )
        return Variation(mean, square, weight, rounds, effects, error)

    def where(self, chosen: BoolArray, other: "Variation") -> "Variation":
        """The same, with that of `other` for the cells that are not chosen, but for the effects of rounds."""
        mean, square, weight = (np.where(chosen[:, None], own, of) for own, of in zip(self[:3], other[:3], strict=True))
        return self._replace(mean=mean, square=square, weight=weight)


def variation(log: FloatArray, group: IntArray, kind: IntArray, known: FloatArray, repeats: Error) -> Variation:
    """What starts show, shape (..., cells, rounds); cells of a `group` share the effects of rounds, those of a `kind`
    how much their study varies. `known` has the fields of `Known` along the first axis, `repeats` is the error of a
    start's mean by its repeats."""
    measured = ~np.isnan(log)
    weigh = np.ones(log.shape[:-1])
    for last in range(_PASSES - 1, -1, -1):
        effects, left, in_effect = _of_rounds(log, weigh, group)
        starts = np.maximum(measured.sum(axis=-1) - 1, 0)
        df = starts * (1 - in_effect)
        with np.errstate(divide="ignore", invalid="ignore"):
            own = np.where(df > 1e-9, np.nansum(left**2, axis=-1) / df, 0.0)
        moments = _of_starts(own, np.where(df > 1e-9, df, 0.0), kind, known, repeats)
        weigh = 1 / (moments[0] * moments[2]).sum(axis=-1) if last else weigh
    # The error of a round's effect is that of the weighted mean of its cells.
    error = np.empty(weigh.shape)
    for number in np.unique(group):
        cells = group == number
        present = np.where(measured[..., cells, :], weigh[..., cells, None], 0.0).sum(axis=-2)
        error[..., cells] = mean_of(1 / np.where(present > 0, present, np.nan))[..., None]
    squares, count = around_mean(effects)
    of_rounds = _scaled(known[2], known[9], squares, np.maximum(count - 1, 0), np.nan_to_num(error))
    return Variation(*moments, of_rounds, effects, np.nan_to_num(error))


def of_repeats(within: FloatArray, df: FloatArray, known: FloatArray, repeats: FloatArray) -> Error:
    """The error of the mean of as many `repeats`, by their variance within starts, which has `df`."""
    variance, of_variance = _scaled(known[1], known[8], np.nan_to_num(within) * df, df, 0.0)
    return Error(variance / np.nan_to_num(repeats, nan=1.0), of_variance)


def apart(effects: FloatArray, error: FloatArray, known: FloatArray) -> Error:
    """The variance of the difference of the effects of a round on two groups, by the differences that were seen."""
    squares, count = around_mean(effects)
    return _scaled(known[2] * np.sqrt(_APART_IN_A_ROUND), known[9], squares, np.maximum(count - 1, 0), error)


def _scaled(
    median: FloatArray, differ: FloatArray, squares: FloatArray, df: FloatArray, beside: FloatArray | float
) -> Error:
    """The posterior of a variance, whose root is lognormal around a median; the sum of squares is chi-square with `df`
    times the variance and what is `beside` it."""
    variance = np.square(np.asarray(median)[..., None] * np.exp(np.asarray(differ)[..., None] * _GRID))
    total = variance + np.asarray(beside)[..., None]
    log = -(df[..., None] * np.log(total) + squares[..., None] / total) / 2 - _GRID**2 / 2
    weight = np.exp(log - log.max(axis=-1, keepdims=True))
    weight = weight / weight.sum(axis=-1, keepdims=True)
    return from_moments((weight * variance).sum(axis=-1), (weight * variance**2).sum(axis=-1))


def _of_starts(
    own: FloatArray, df: FloatArray, kind: IntArray, known: FloatArray, repeats: Error
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The first three fields of `Variation`, by the variance of each cell's own starts with its degrees of freedom."""
    shape = (*own.shape, len(_OF_STUDY))
    mean, square, weight = np.empty(shape), np.empty(shape), np.empty(shape)
    nodes, node_weights = _OF_REPEATS
    spread = np.sqrt(np.log1p(2 / repeats.df))[..., None]
    of_repeats = repeats.variance[..., None] * np.exp(spread * nodes - spread**2 / 2)
    for number in np.unique(kind):
        cells = kind == number
        starts, cells_differ, studies_differ = known[[0, 6, 7], np.flatnonzero(cells)[0]]
        sd = starts * np.exp(np.hypot(cells_differ, studies_differ) * _GRID)
        around = np.log(sd / starts)[:, None] - studies_differ * _OF_STUDY
        prior = np.exp(-((around / cells_differ) ** 2) / 2)
        prior = prior / prior.sum(axis=0)
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


def _of_rounds(log: FloatArray, weigh: FloatArray, group: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The effects of rounds on the cells of each group, by weighted least squares, NaN if none of them was measured;
    what is left of each start without these; and each cell's part in the effects."""
    effects, left, part = np.empty(log.shape), np.empty(log.shape), np.empty(log.shape[:-1])
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
        part[..., cells] = mean_of(np.where(np.isnan(of_group), np.nan, weights))
    return effects, left, np.nan_to_num(part)


def cell_means(log: FloatArray, group: IntArray) -> FloatArray:
    """Means of cells without the effects of the rounds that they were measured in, to rank cells of one group.

    The first cell is the faster one, but missed the fast round:

    >>> log = np.log([[10.0, np.nan], [9.0, 18.0], [5.0, 10.0]])
    >>> cell_means(log, np.zeros(3, dtype=int)).argmax(), np.nanmean(log, axis=1).argmax()
    (np.int64(0), np.int64(1))
    """
    return mean_of(log - _of_rounds(log, np.ones(log.shape[:-1]), group)[0])

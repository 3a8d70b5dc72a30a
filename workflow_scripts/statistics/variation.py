"""How much starts of each cell vary, also if the cell has few: moderated variances.

The variance of a cell's own starts is averaged with what else is known, each weighted by its degrees of freedom: the
other cells of the device and engine, the other devices and engines of the study that are of the same kind (CPUs or
GPUs), and other studies (config/variation.yaml). So every further start adds to what is known. A cell that varies much
more than the others is believed more than they are. [Smyth] [Phipson]

Sources: [Smyth] Linear models and empirical Bayes methods for assessing differential expression, Statistical
Applications in Genetics and Molecular Biology 3, 2004; [Phipson] Robust hyperparameter estimation protects against
hypervariable genes, Annals of Applied Statistics 10, 2016; [Satterthwaite] An approximate distribution of estimates of
variance components, Biometrics Bulletin 2, 1946.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import read_yaml
from workflow_scripts.statistics.repeats import RECORD
from workflow_scripts.statistics.start_spread import BoolArray, FloatArray, Spread, around_mean, mean_of

# With this many cells of a device and engine, they show themselves how far their variances differ. They have at most as
# many degrees of freedom as if standard deviations differed by a fifth.
_SHOW_ALIKE, _MOST_ALIKE_DF = 10, 12.0
_HALF_DF = np.geomspace(0.25, _MOST_ALIKE_DF / 2, 200)
# A variance that fewer than one in this many cells exceed by chance stands out.
_STANDS_OUT = 5.0


class Known(NamedTuple):
    """What other studies show: variances between starts and of the effects of rounds, with degrees of freedom.

    `cells_df` says how far the variances of few cells of a device and engine differ. What other engines, devices and
    studies tell of a cell counts at most as `studies_df`.
    """

    starts: float = 0.0
    starts_df: float = 0.0
    rounds: float = 0.0
    rounds_df: float = 0.0
    cells_df: float = 12.0
    studies_df: float = 3.0

    def of_cells(self, count: int) -> FloatArray:
        """The fields along the first axis, the same for each cell."""
        return np.repeat(np.array(self)[:, None], count, axis=1)


UNKNOWN = Known()


@cache
def known_elsewhere(is_cpu: bool, study: str) -> Known:
    """What studies other than this one show about starts on CPUs or on GPUs.

    >>> round(known_elsewhere(False, "my-study").starts ** 0.5, 4), known_elsewhere(False, "two_gpus").starts_df
    (0.0197, 0.0)
    """
    of = read_yaml(RECORD, InputError)["cpu" if is_cpu else "gpu"]
    alike = {name: of[name] for name in ("cells_df", "studies_df")}
    of = of.get("without", {}).get(study, of)
    variances = {name: (of[f"{name}_pct"] / 100) ** 2 for name in ("starts", "rounds") if f"{name}_pct" in of}
    return Known(**variances, **{f"{name}_df": of[f"{name}_df"] for name in variances}, **alike)


@cache
def of_occasions(is_cpu: bool) -> tuple[float, float]:
    """Standard deviation of a cell between occasions on CPUs or on GPUs, in per cent, with its degrees of freedom.

    >>> of_occasions(True), of_occasions(False)
    ((15.0, inf), (2.0, 5))
    """
    of = read_yaml(RECORD, InputError)["cpu" if is_cpu else "gpu"]
    return of["occasions_pct"], of["occasions_df"]


class Variation(NamedTuple):
    """Variance of one start of each cell, without the effect of its round, with degrees of freedom.

    `rounds` is the variance of the effect of a round, with `rounds_df`. `total` and `total_df` are the variance of one
    start with the effect of its round. `weight` is the part of `variance` that is also in the effects of rounds.
    """

    variance: FloatArray
    df: FloatArray
    rounds: FloatArray
    rounds_df: FloatArray
    total: FloatArray
    total_df: FloatArray
    weight: FloatArray


def variation(
    spread: Spread, group: npt.NDArray[np.int_], kind: npt.NDArray[np.int_], record: FloatArray, repeats: FloatArray
) -> Variation:
    """Moderate the variances of `spread`.

    Args:
        spread: the spread of the starts.
        group, kind: numbers of each cell's device and engine, and of its kind of device.
        record: the fields of `Known` for each cell, along the first axis.
        repeats: the squared error of the mean of a start's repeats; a start varies at least as much. NaN if not known.
    """
    from scipy import special  # takes as long to import as a small table

    ms, ms_df = of_rounds(spread)
    shape = spread.own.shape
    s0, s0_df, rounds, rounds_df = (np.zeros(shape) for _ in range(4))
    squares = np.where(spread.alike, spread.own * spread.df, 0.0)
    counted = np.where(spread.alike, spread.df, 0.0)
    round_squares = ms * ms_df
    for number in np.unique(group):
        of = group == number
        others = (kind == kind[of][0]) & ~of
        firsts = np.flatnonzero(others)[np.unique(group[others], return_index=True)[1]]
        starts, starts_df, effects, effects_df, _, most_df = record[:, of][:, :1]
        elsewhere, elsewhere_df = _together(squares[..., others], counted[..., others], starts, starts_df, most_df)
        rounds[..., of], rounds_df[..., of] = _together(
            round_squares[..., firsts], ms_df[..., firsts], effects, effects_df, most_df
        )
        rest = counted[..., of].sum(axis=-1, keepdims=True) - counted[..., of]
        rest_squares = squares[..., of].sum(axis=-1, keepdims=True) - squares[..., of]
        apart = 1 - spread.overlap[..., of]
        s0_df[..., of] = elsewhere_df + rest * apart
        s0[..., of] = _over(elsewhere * elsewhere_df + np.maximum(rest_squares, 0) * apart, s0_df[..., of])
    own, own_df = spread.own, spread.df * (1 + spread.overlap)
    s0 = np.fmax(s0, np.where(s0_df > 0, repeats, 0.0))
    alike_df = np.empty(shape)
    for number in np.unique(group):
        of = group == number
        alike_df[..., of] = _alike_df(spread.own[..., of], spread.df[..., of], spread.alike[..., of], record[4, of])
    prior_df = _over(1.0, 1 / alike_df + _over(1.0, s0_df)) * (s0_df > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where((own_df > 0) & (prior_df > 0) & (own > s0), special.fdtrc(own_df, prior_df, own / s0), 1.0)
    prior_df = prior_df * np.minimum(1.0, _STANDS_OUT * p)
    df = own_df + prior_df
    variance = np.where(df > 0, _over(own * own_df + s0 * prior_df, df), np.nan)
    effects_df = ms_df + rounds_df
    effects = _over(ms * ms_df + rounds * rounds_df, effects_df)
    cells = beside_rounds(spread.weight, variance, _over(ms_df, effects_df))
    total, total_df = satterthwaite((np.where(effects_df > 0, effects, np.nan), effects_df), (cells, df))
    return Variation(variance, df, effects, effects_df, total, total_df, spread.weight)


def _alike_df(own: FloatArray, df: FloatArray, alike: BoolArray, of_few: FloatArray) -> FloatArray:
    """Degrees of freedom of the true variances of cells: those that make the logarithms of the variances `own` differ
    as much as they do, at most _MOST_ALIKE_DF [Smyth]; `of_few` if the cells are too few to show it."""
    from scipy import special

    # A single cell that stands out says nothing about the others.
    shown = (alike | ((~alike).sum(axis=-1, keepdims=True) > 1)) & (df > 0) & (own > 0)
    half = np.where(shown, df / 2, np.nan)
    squares, cells = around_mean(np.log(np.where(shown, own, np.nan)) - special.digamma(half) + np.log(half))
    differ = (squares / np.maximum(cells - 1, 1) - mean_of(special.polygamma(1, half)))[..., None]
    found = np.interp(differ, special.polygamma(1, _HALF_DF)[::-1], _HALF_DF[::-1])
    return np.where(cells[..., None] >= _SHOW_ALIKE, 2 * found, of_few)


def beside_rounds(weight: FloatArray, variance: FloatArray, shown: FloatArray) -> FloatArray:
    """The part of cells' variance that the variance of their rounds does not have; 0 if it is not known.

    The latter has a `weight` of it, as far as these cells have shown it: `shown` is this part of what is known of it.
    """
    return np.nan_to_num((1 - weight * shown) * variance)


def of_rounds(spread: Spread) -> tuple[FloatArray, FloatArray]:
    """Variance of the effects of rounds on each cell's group, and its degrees of freedom."""
    squares, n = around_mean(spread.rounds)
    return _over(squares, n - 1), np.maximum(n - 1, 0)


def _together(
    squares: FloatArray, df: FloatArray, ms: FloatArray, ms_df: FloatArray, most_df: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The mean square of other groups and other studies, and its degrees of freedom, at most `most_df`."""
    ms_df = np.minimum(ms_df, most_df)
    total = df.sum(axis=-1, keepdims=True) + ms_df
    return _over(squares.sum(axis=-1, keepdims=True) + ms * ms_df, total), np.minimum(total, most_df)


def _over(a: FloatArray | float, b: FloatArray | float) -> FloatArray:
    """The quotient; 0 where the divisor is not above 0."""
    divisor = np.asarray(b, dtype=float)
    quotient: FloatArray = np.where(divisor > 0, a, 0.0) / np.where(divisor > 0, divisor, 1.0)
    return quotient


def satterthwaite(*parts: tuple[FloatArray, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """The sum of independent variances and its degrees of freedom; each part is a variance with its own."""
    total = sum((part for part, _ in parts), start=np.zeros(()))
    squares = sum((np.where(part > 0, _over(part**2, df), 0.0) for part, df in parts), start=np.zeros(()))
    return total, np.where(squares > 0, _over(total**2, squares), np.inf)


def dependent(*parts: tuple[FloatArray, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Like `satterthwaite` for variances that rest on the same evidence: their relative errors add up as one.

    The degrees of freedom are also too few rather than too many if only one of two variances is as large as it seems.
    """
    total = sum((part for part, _ in parts), start=np.zeros(()))
    errors = sum((np.where(part > 0, part / np.sqrt(df), 0.0) for part, df in parts), start=np.zeros(()))
    return total, np.where(errors > 0, _over(total, errors) ** 2, np.inf)

"""Estimates of the output rates of all cells of a study, from its plan and the cells that were measured.

The logarithm of measured over predicted is a Gaussian process over the settings [Rasmussen]. Its covariance is a sum of
components, as in an analysis of variance: one for each factor that varies (device, engine, model, workload, knobs),
each pair of factors if these are few, each knob in each place, and all together. So the error of a prediction on one
device or with one value of a knob is learned from few cells. Without measurements a component has a part of the
variance that the plan's band stands for; measurements give its size, but never less than a floor, so what was never
measured keeps a band.

A place (device, engine, model, workload) may surprise where others do not. How far its measured cells are from what all
other places predict, and its check cells from their estimates, scales the components of that place, as in a process of
Student's t [Shah]. So a surprise that was only seen with some settings of a place is not taken for all of its settings.

Bands are widened by the errors with which the model predicts each measured cell without it [Vovk], and by those of the
check cells, which no estimate uses.

Sources: [Rasmussen] Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2, 5.4.1 and
5.4.2; [Shah] Shah, Wilson and Ghahramani, Student-t processes as alternatives to Gaussian processes, AISTATS 2014;
[Vovk] Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.
"""

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import linalg, special

from workflow_scripts.statistics.comparisons import CONFIDENCE
from workflow_scripts.statistics.samples import IntArray
from workflow_scripts.statistics.start_spread import BoolArray, FloatArray
from workflow_scripts.statistics.summary import RATE, cell_summary, knob_columns, numbers
from workflow_scripts.study.grid import COORDINATES

MEASURED, PREDICTED, CHECK, INFEASIBLE, UNKNOWN = "measured", "predicted", "check", "infeasible", "unknown"
# Columns that place a cell, beside its knobs.
LEAST_CHECKED = 3
DRAWS = 2000
# Standard deviation of log(measured / predicted) by a data sheet alone, and of a rate that nothing predicts.
_UNCALIBRATED_SD, _UNPREDICTED_SD = 0.35, 1.0
# Of the logarithm of a cell's mean, if starts do not show how much they vary.
_USUAL_SD = 0.01
# Part of the plan's variance that each component has before anything is measured, and has at least.
_FLOOR = 0.02
# Distance, in octaves of a number, at which errors hardly resemble each other; equal names alone resemble each other.
_OCTAVES, _NAMES_APART = 3.0, 0.4
# With more factors, pairs are too many components to fit.
_MOST_IN_PAIRS = 5
# With fewer cells per component their sizes are not fitted; with more cells, this many at random give them.
_LEAST_PER_COMPONENT, _MOST_FITTED = 1.5, 150
# Degrees of freedom of the sizes of surprises.
_TAIL_DF = 4
# Standard deviations from the middle to the end of a band.
_ENDS = float(special.ndtri((1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class Estimates:
    """What is known of all cells of a study.

    Attributes:
        table: by `cell_id` in the order of the plan: `state` (`measured`, `predicted`, `check`, `infeasible`,
            `unknown`); `log_rate`, natural logarithm of the output tokens/s, of a check cell as predicted without it;
            its `sd`; `low` and `high`, the 95 % band in tokens/s, for the measured mean of a cell that the model does
            not use; `log_measured`, NaN if not measured; `cost_s`, device seconds of one start, from the plan.
        draws: joint posterior of the logarithms of the rates, shape (draws, cells). Check cells that were measured have
            their own values, from which nothing is learned about others.
        noise: variance of the logarithm of the rate of one start.
    """

    table: pd.DataFrame
    draws: FloatArray
    noise: float


def check_cells(plan: pd.DataFrame, check_pct: float, seed: str) -> tuple[str, ...]:
    """The cells that are always measured and never used to predict or choose: a random share of the feasible ones.

    A cell that is added to a study changes few of them. At least LEAST_CHECKED, if there are as many.

    >>> plan = pd.DataFrame({"cell_id": list("abcdefgh"), "infeasible": [None] * 7 + ["too large"]})
    >>> len(check_cells(plan, 10, "study")), "h" in check_cells(plan, 100, "study")
    (3, False)
    """
    feasible = plan.loc[plan["infeasible"].isna(), "cell_id"]
    count = max(LEAST_CHECKED, round(len(feasible) * check_pct / 100))
    return tuple(sorted(feasible, key=lambda cell: hashlib.sha256(f"{seed}\n{cell}".encode()).digest())[:count])


def estimate(plan: pd.DataFrame, cells: pd.DataFrame, check: Collection[str], seed: int = 0) -> Estimates:
    """Estimate the rates of all cells of a plan; the model does not use the cells `check`.

    `cells` is the cells table of one study, with a row of every cell of the plan: `missing` if not measured.
    """
    plan = plan.set_index("cell_id")
    first = cells.drop_duplicates("cell_id").set_index("cell_id").reindex(plan.index)
    measured, error_cov, starts = _measured(cells, plan.index)
    squared_error = np.diag(error_cov)
    has_value = ~np.isnan(measured)
    is_check = plan.index.isin(list(check))
    used = has_value & ~is_check
    mean, prior_sd, is_unknown = _prior(plan, measured, used)
    noise = float(np.median((squared_error * starts)[has_value])) if has_value.any() else _USUAL_SD**2
    usual_starts = float(np.median(starts[has_value])) if has_value.any() else 1.0
    process = _process(first, (measured - mean) / prior_sd, error_cov / np.outer(prior_sd, prior_sd), used)
    log_rate = mean + prior_sd * process.mean
    cov = process.cov * np.outer(prior_sd, prior_sd)
    sd = np.sqrt(np.maximum(np.diag(cov), 1e-12))
    # Errors in standard deviations if each measured cell is predicted from the others. [Rasmussen]
    widened = _widened_by(process.weights / np.sqrt(np.diag(process.inverse))) if used.any() else 1.0
    of_check = has_value & is_check
    beside = (measured - log_rate)[of_check] / np.sqrt((widened * sd[of_check]) ** 2 + squared_error[of_check])
    from scipy import stats  # takes longer to import than the page

    outside = int((np.abs(beside) > _ENDS).sum())
    # Chance alone puts some check cells outside of the band.
    if outside and stats.binomtest(outside, len(beside), 1 - CONFIDENCE, "greater").pvalue <= 1 - CONFIDENCE:
        widened *= _widened_by(beside)

    rng = np.random.default_rng(seed)
    jitter = 1e-9 * max(float(np.diag(cov).max()), 1e-12) * np.eye(len(cov))
    away = rng.multivariate_normal(np.zeros(len(cov)), cov + jitter, DRAWS, method="cholesky")
    draws = log_rate + away * np.where(used, 1.0, widened)
    if of_check.any():
        of_checks = error_cov[np.ix_(of_check, of_check)]
        draws[:, of_check] = rng.multivariate_normal(measured[of_check], of_checks, DRAWS)
    sd = np.where(used, sd, widened * sd)
    refused = first["outcome"].eq("infeasible").fillna(False).to_numpy(dtype=bool)
    tried = (~first["outcome"].fillna("missing").isin(["missing", "infeasible"])).to_numpy(dtype=bool)
    infeasible = ~has_value & (refused | (plan["infeasible"].notna().to_numpy() & ~tried))
    half = _ENDS * np.where(is_unknown & ~has_value, np.nan, np.sqrt(sd**2 + np.where(used, 0.0, noise / usual_starts)))
    # Where the plan has no cost, a usual cell of the device has.
    cost_s = plan["cell_s"].astype(float) * plan["gpus"].astype(float).fillna(1.0)
    cost_s = cost_s.fillna(cost_s.groupby(plan["gpu"]).transform("median")).fillna(cost_s.median()).fillna(1.0)
    table = pd.DataFrame(
        {
            "state": np.select(
                [infeasible, of_check, has_value, is_unknown], [INFEASIBLE, CHECK, MEASURED, UNKNOWN], PREDICTED
            ),
            "log_rate": log_rate,
            "sd": sd,
            "low": np.exp(log_rate - half),
            "high": np.exp(log_rate + half),
            "log_measured": measured,
            "cost_s": cost_s,
        },
        index=plan.index,
    )
    return Estimates(table, draws, noise)


def _measured(cells: pd.DataFrame, ids: pd.Index) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means of the logarithms of measured rates, the covariance of their errors (0 if not measured) and numbers of
    starts, in the order of `ids`; NaN if not known.
    """
    summary, samples = cell_summary(cells, RATE)
    of_cells = summary.drop_duplicates("cell_id", keep="last").set_index("cell_id").reindex(ids)
    has_value = of_cells["sample"].notna().to_numpy()
    at = of_cells["sample"][has_value].to_numpy(dtype=int)
    # No mean over cells makes up for few rounds, and draws are normal: they have the ends of Student's t.
    wider = special.stdtrit(np.maximum(samples.variation.rounds_df, 1.0), (1 + CONFIDENCE) / 2) / _ENDS
    found = samples.covariance(wider)[np.ix_(at, at)]
    usual = np.diag(_USUAL_SD**2 / samples.starts[at])
    cov = np.zeros((len(ids), len(ids)))
    cov[np.ix_(has_value, has_value)] = np.where(np.isnan(found), usual, found)
    return numbers(of_cells["log_mean"]), cov, numbers(of_cells["starts"])


def _prior(plan: pd.DataFrame, measured: FloatArray, used: BoolArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """The logarithm of each rate before the model, its standard deviation, and whether it is a mere guess."""
    rate, low, high = (numbers(plan[f"output_tokens_per_s{end}"]) for end in ("", "_low", "_high"))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, band = np.log(rate), np.log(high / low) / (2 * _ENDS)
    sd = np.where(np.isnan(band), _UNCALIBRATED_SD, np.maximum(band, _USUAL_SD))
    unpredicted = ~np.isfinite(mean)
    of_used = pd.Series(np.where(used, measured, np.nan), index=plan.index)
    of_place = numbers(of_used.groupby([plan[name] for name in COORDINATES], dropna=False).transform("mean"))
    overall = float(of_used.mean()) if used.any() else 0.0
    mean = np.where(unpredicted, np.where(np.isnan(of_place), overall, of_place), mean)
    return mean, np.where(unpredicted, _UNPREDICTED_SD, sd), unpredicted & np.isnan(of_place)


def _parts(first: pd.DataFrame) -> tuple[list[FloatArray], list[bool]]:
    """The components: for each the points of all cells, shape (cells, columns), whose distance says how alike they are,
    and whether it tells all places apart."""
    factors = {name: _factor(first[name]) for name in (*COORDINATES, *knob_columns(first))}
    factors = {name: factor for name, factor in factors.items() if np.ptp(factor, axis=0).any()}
    place, knobs = ([name for name in factors if (name in COORDINATES) == is_place] for is_place in (True, False))
    pairs = combinations(factors, 2) if len(factors) <= _MOST_IN_PAIRS else ()
    parts = dict.fromkeys([(), *combinations(factors, 1), *pairs, *((*place, knob) for knob in knobs), tuple(factors)])
    points = [np.hstack([np.zeros((len(first), 1)), *(factors[name] for name in part)]) for part in parts]
    return points, [{*place} <= {*part} for part in parts]


def _factor(values: pd.Series) -> FloatArray:
    """A number in units of _OCTAVES, anything else as one column per value; unit distances are far apart."""
    as_numbers = numbers(pd.to_numeric(values, errors="coerce"))
    is_flag = pd.api.types.is_bool_dtype(values.dropna().convert_dtypes())
    if not is_flag and (as_numbers > 0).all():
        return np.log2(as_numbers)[:, None] / _OCTAVES
    return pd.get_dummies(values.astype("string").fillna("")).to_numpy(dtype=float) / _NAMES_APART


class _Process(NamedTuple):
    """A Gaussian process given measured cells: mean (cells) and covariance (cells, cells) of all cells; the inverse
    covariance of the measured ones, and its product with their values."""

    mean: FloatArray
    cov: FloatArray
    inverse: FloatArray
    weights: FloatArray


def _process(first: pd.DataFrame, y: FloatArray, noise: FloatArray, used: BoolArray) -> _Process:
    """The process given the values `y` of the cells `used`, whose errors have the covariance `noise`; the values of
    other cells only check it."""
    points, tells_places = _parts(first)
    sizes = np.full(len(points), max(_FLOOR, 1 / len(points)))
    if used.sum() >= _LEAST_PER_COMPONENT * len(points):
        some = np.random.default_rng(used.sum()).permutation(np.flatnonzero(used))[:_MOST_FITTED]
        sizes = _sizes(np.stack([_alike(part[some]) for part in points]), y[some], noise[np.ix_(some, some)], sizes)
    prior = np.zeros((2, len(first), len(first)))
    for size, part, of_place in zip(sizes, points, tells_places, strict=True):
        prior[int(of_place)] += size * _alike(part)

    def given(wide: FloatArray) -> _Process:
        return _given(prior[0] + prior[1] * np.outer(wide, wide), y, noise, used)

    place = first.groupby(COORDINATES, dropna=False, sort=False).ngroup().to_numpy().astype(int)
    by_used, by_all = _surprises(given(np.ones(len(first))), y, noise, used, place)
    # What check cells show widens bands, and moves no estimate.
    return given(by_used)._replace(cov=given(by_all).cov)


def _given(prior: FloatArray, y: FloatArray, noise: FloatArray, used: BoolArray) -> _Process:
    root = linalg.cholesky((prior + noise)[np.ix_(used, used)], lower=True)
    inverse = linalg.cho_solve((root, True), np.eye(used.sum()))
    weights = inverse @ y[used]
    explained = linalg.solve_triangular(root, prior[used], lower=True)
    return _Process(prior[:, used] @ weights, prior - explained.T @ explained, inverse, weights)


def _surprises(of: _Process, y: FloatArray, noise: FloatArray, used: BoolArray, place: IntArray) -> FloatArray:
    """How many times as far from its estimates as expected each cell's place is, shape (2, cells): its measured cells
    alone, and with its check cells; at least 1. [Shah]"""
    is_check = ~used & ~np.isnan(y)
    squares = (y - of.mean) ** 2 / (np.diag(of.cov) + np.diag(noise))
    wide = np.ones((2, len(y)))
    for number in np.unique(place):
        here, at = place == number, place[used] == number
        own, check = of.weights[at], squares[here & is_check]
        total = float(own @ linalg.solve(of.inverse[np.ix_(at, at)], own)) if at.any() else 0.0
        for row, (squared, count) in enumerate([(total, at.sum()), (total + check.sum(), at.sum() + len(check))]):
            wide[row, here] = (_TAIL_DF + squared) / (_TAIL_DF + count)
    wide[1] = np.maximum(wide[0], wide[1])
    return np.asarray(np.sqrt(np.maximum(wide, 1.0)))


def _alike(points: FloatArray) -> FloatArray:
    """How alike the errors of cells are, shape (cells, cells); rough, so that a step between values is possible."""
    from scipy.spatial import distance

    return np.asarray(np.exp(-distance.cdist(points, points)))


def _sizes(alike: FloatArray, y: FloatArray, noise: FloatArray, first: FloatArray) -> FloatArray:
    """The sizes of components under which the values `y` are likeliest [Rasmussen]; `alike` has the shape (components,
    cells, cells)."""
    from scipy import optimize

    def unlikely(log_sizes: FloatArray) -> tuple[float, FloatArray]:
        sizes = np.exp(log_sizes)
        root = linalg.cholesky(np.tensordot(sizes, alike, 1) + noise, lower=True)
        inverse = linalg.cho_solve((root, True), np.eye(len(y)))
        weights = inverse @ y
        gradient = sizes * np.tensordot(alike, inverse - np.outer(weights, weights), 2) / 2
        # Two devices show next to nothing of how far devices differ from the plan; then the first size remains.
        away = log_sizes - np.log(first)
        return float(y @ weights / 2 + np.log(np.diag(root)).sum() + away @ away / 2), gradient + away

    bounds = [(np.log(_FLOOR), np.log(100.0))] * len(first)
    optimum = optimize.minimize(unlikely, np.log(first), jac=True, method="L-BFGS-B", bounds=bounds)
    return np.asarray(np.exp(optimum.x))


def _widened_by(errors: FloatArray) -> float:
    """The factor by which a band must be widened to hold its share of such errors, at least 1. [Vovk]

    >>> _widened_by(np.full(100, 0.5)), round(_widened_by(np.full(100, 3.92)), 2)
    (1.0, 2.0)
    """
    share = min(1.0, math.ceil((len(errors) + 1) * CONFIDENCE) / len(errors))
    return max(1.0, float(np.quantile(np.abs(errors), share, method="higher")) / _ENDS)

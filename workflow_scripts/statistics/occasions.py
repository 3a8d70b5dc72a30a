"""Statistics of two occasions: the same cells measured at different times, on other hosts or by other versions.

The starts of one occasion do not show the effect of an occasion on a cell, so their interval does not cover it. The
interval of two occasions covers the variation within each and between them.
"""

from typing import NamedTuple

import numpy as np

from workflow_scripts.statistics.comparisons import Comparisons, holm
from workflow_scripts.statistics.errors import BoolArray, Error, FloatArray, IntArray, added
from workflow_scripts.statistics.variation import known_elsewhere

WORSE_ALPHA = 0.1
BETWEEN_OCCASIONS = "between occasions"


class Means(NamedTuple):
    """Cells measured on one or more `occasions`: means of logarithms as `comparisons.mean_errors` gives them."""

    log_mean: FloatArray
    error: Error
    occasions: IntArray | int = 1


def compare_occasions(
    a: Means, b: Means, vary_pct: float | None = None, is_cpu: BoolArray | bool = True
) -> Comparisons:
    """Compare each cell of `b` with the same cell of `a`; ratios are of `b` over `a`.

    The error has a standard deviation of `vary_pct` per cent between occasions, or if it is not given, that of new
    hosts of the kind of device. This includes the risk that the few starts of a cell with two modes are all in one.

    Two starts of each, with standard errors of 1 %, and a cell that became 3 times as fast:

    >>> of_a, of_b = (Means(np.log([x]), Error(np.array([1e-4]), np.array([1.0]))) for x in (100.0, 300.0))
    >>> found = compare_occasions(of_a, of_b)
    >>> [round(float(end[0]), 2) for end in found.interval()], str(found.scope[0])
    ([3.0, 1.98, 4.55], 'between occasions')
    >>> bool(found.p_beyond(2.0)[0] < 0.05), bool(compare_occasions(of_a, of_a).p_within(2.0)[0] < 0.05)
    (True, False)
    """
    vary = known_elsewhere(is_cpu).new_hosts if vary_pct is None else vary_pct / 100
    error = added(a.error, b.error, Error(vary**2 * (1 / np.asarray(a.occasions) + 1 / np.asarray(b.occasions))))
    scope = np.array([BETWEEN_OCCASIONS, None])[np.isnan(error.variance).astype(int)]
    return Comparisons(b.log_mean - a.log_mean, error, scope)


def worse(comparisons: Comparisons, more_is_better: BoolArray | bool, margin_pct: float) -> BoolArray:
    """Which ratios are shown to be worse by more than the margin, falsely in at most 10 % of cases if all lie on it.

    The test is one-sided, for nobody asks here what became better, and sees more than a verdict of `changes`.
    """
    p = comparisons.p_above(margin_pct, np.where(more_is_better, -1.0, 1.0))
    return np.asarray(holm(p) <= WORSE_ALPHA)

"""Starts of cells made up for tests, as arrays."""

import numpy as np

from workflow_scripts.analyse.statistics import Samples, compare


def samples(log, *, within=np.nan, repeats=1.0, group=None, cards=False, shared=False):
    """Cells with a row of logarithms each, one for a round."""
    log = np.asarray(log, dtype=float)
    shape = log.shape[:-1]
    return Samples(
        log,
        np.broadcast_to(np.asarray(within, dtype=float), shape),
        np.broadcast_to(np.asarray(repeats, dtype=float), shape),
        np.zeros(shape[-1], dtype=int) if group is None else np.asarray(group),
        np.full(shape[-1], cards),
        np.full(shape[-1], shared),
    )


def pair(log_a, log_b, **options):
    """The comparison of two cells."""
    return compare(samples([log_a, log_b], **options), [0], [1])


def ends(interval):
    return [float(end[0]) for end in interval]


def another_run(expected):
    """The interval that holds the mean of another run, from that of the mean: two means differ by twice the square."""
    middle, half = (expected.low + expected.high) / 2, (expected.high - expected.low) / 2
    return np.exp(middle - np.sqrt(2) * half), np.exp(middle + np.sqrt(2) * half)

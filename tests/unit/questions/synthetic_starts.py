"""Starts of cells made up for tests, as arrays."""

import numpy as np

from workflow_scripts.statistics.comparisons import compare
from workflow_scripts.statistics.samples import Samples


def samples(
    log, *, within=np.nan, within_df=0, repeats=1.0, group=None, cards=False, shared=False, device=None, session=None
):
    """Cells with a row of logarithms each, one for a round."""
    log = np.asarray(log, dtype=float)
    shape = log.shape[:-1]
    return Samples(
        log,
        np.broadcast_to(np.asarray(within, dtype=float), shape),
        np.broadcast_to(np.asarray(within_df), shape),
        np.broadcast_to(np.asarray(repeats, dtype=float), shape),
        np.zeros(shape[-1], dtype=int) if group is None else np.asarray(group),
        np.full(shape[-1], cards),
        np.full(shape[-1], shared),
        np.zeros(shape[-1], dtype=int) if device is None else np.asarray(device),
        np.zeros(shape[-1], dtype=int),
        None if session is None else np.asarray(session),
    )


def pair(log_a, log_b, **options):
    """The comparison of two cells."""
    return compare(samples([log_a, log_b], **options), [0], [1])


def ends(interval):
    return [float(end[0]) for end in interval]

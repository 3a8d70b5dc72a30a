"""How many starts, and how many repeats in each, show that two cells are alike; what is cheapest."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import special

from workflow_scripts.statistics.comparisons import CONFIDENCE, log_margin
from workflow_scripts.statistics.further_starts import MOST_FURTHER_STARTS
from workflow_scripts.statistics.start_spread import FloatArray

# Two cells that are equally fast are shown to be flat in this share of studies.
POWER = 0.9
MOST_REPEATS = 30


@dataclass(frozen=True)
class Costs:
    """Seconds of the device per start, without its repeats, and per repeat; and standard deviations of logarithms: of a
    start beyond the error of its repeats, and of a repeat. Arrays have one value for each cell."""

    start_s: FloatArray | float
    repeat_s: FloatArray | float
    start_sd: FloatArray | float
    repeat_sd: FloatArray | float

    def starts_to_be_flat(self, margin_pct: float, repeats: FloatArray | int) -> FloatArray:
        """Starts of each of two equal cells that show a ratio within the margin in POWER of studies; NaN if more than
        MOST_FURTHER_STARTS. The two cells are alone: others of the study make it fewer, more comparisons more.

        >>> Costs(60.0, 10.0, 0.003, 0.028).starts_to_be_flat(2.0, np.array([3, 5])).tolist()
        [21.0, 14.0]
        """
        variance = np.square(self.start_sd) + np.square(self.repeat_sd) / repeats
        least = 2 + np.searchsorted(_most_variance(), 2 * variance / log_margin(margin_pct) ** 2)
        return np.where(least > MOST_FURTHER_STARTS, np.nan, least)

    def cheapest_flat(self, margin_pct: float, at_least: int, at_most: int) -> tuple[FloatArray, ...]:
        """Starts and repeats of each of two equal cells that show a ratio within the margin, as `starts_to_be_flat`, in
        the shortest time; and this time for both cells in seconds. NaN if none does."""
        repeats = np.arange(at_least, at_most + 1, dtype=float)
        one = Costs(*(of[..., None] for of in np.broadcast_arrays(*vars(self).values())))
        starts = one.starts_to_be_flat(margin_pct, repeats)
        both_s = 2 * starts * (one.start_s + repeats * one.repeat_s)
        best = np.where(np.isnan(both_s), np.inf, both_s).argmin(axis=-1)[..., None]
        starts, both_s = (np.take_along_axis(of, best, axis=-1)[..., 0] for of in (starts, both_s))
        return starts, np.where(np.isnan(starts), np.nan, repeats[best[..., 0]]), both_s


@cache
def _most_variance() -> FloatArray:
    """With 2, 3, ... starts, the largest variance of the difference of one start of each, over the squared margin.

    The 95 % interval must lie within the margin, which is stricter than the two one-sided tests.
    """
    starts = np.arange(2, MOST_FURTHER_STARTS + 1)
    errors = sum(special.stdtrit(starts - 1, (1 + share) / 2) for share in (CONFIDENCE, POWER))
    return np.asarray(starts / errors**2)

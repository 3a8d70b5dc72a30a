"""What one further start of an engine is expected to do, from the starts that a study measured."""

from dataclasses import dataclass

import numpy as np
from scipy import special

from workflow_scripts.analyse.intervals.start_spread import FloatArray
from workflow_scripts.analyse.intervals.statistics import (
    BETWEEN_CARDS,
    BETWEEN_STARTS,
    CONFIDENCE,
    OCCASION_SD,
    ONE_START,
    Samples,
    mean_errors,
)
from workflow_scripts.analyse.intervals.variation import satterthwaite


@dataclass(frozen=True)
class AnotherStart:
    """Logarithms of what a further start is expected to measure: means, squared standard errors, degrees of freedom.

    The errors cover the mean of the study and the further start itself. They are NaN if the variation is not known.
    """

    mean: FloatArray
    squared: FloatArray
    df: FloatArray
    scope: str | None

    def half(self, confidence: float = CONFIDENCE) -> FloatArray:
        """Half the width of the two-sided interval."""
        half: FloatArray = special.stdtrit(self.df, (1 + confidence) / 2) * np.sqrt(self.squared)
        return half


def another_start(samples: Samples) -> AnotherStart:
    """What one further start of each cell, on another occasion, is expected to measure; `samples` are of one cell each.

    A cell of a shared machine differs by OCCASION_SD on each occasion.

    Three starts with a standard deviation of 2 %, on a machine that is not shared:

    >>> none = np.zeros(1, dtype=int)
    >>> log, no, nothing = np.log([[98.0, 100.0, 102.04]]), none > 0, np.zeros((4, 1))
    >>> cell = Samples(log, np.array([np.nan]), np.array([1.0]), none, no, no, none, none, nothing)
    >>> found = another_start(cell)
    >>> [round(float(np.exp(found.mean + end)[0]), 1) for end in (-found.half(), found.half())]
    [90.5, 110.6]
    """
    mean, squared, df = mean_errors(samples)
    n = samples.starts
    start = squared * (n + 1)  # the squared error of a mean of n starts is the variance of one over n
    occasions = 2 * OCCASION_SD**2 * samples.shared.astype(float)
    total, df = satterthwaite((start, df), (occasions, np.full_like(occasions, np.inf)))
    scope = (BETWEEN_CARDS if samples.between_cards.all() else BETWEEN_STARTS) if (n > 1).all() else ONE_START
    return AnotherStart(mean, total, df, None if np.isnan(total).any() else scope)

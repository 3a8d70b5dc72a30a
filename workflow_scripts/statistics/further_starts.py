"""What further starts do: how many would decide a comparison.

The data of a study are looked at after each round. Its error is split over its looks, so it holds whenever measuring
ends (union bound, valid for any dependence between the looks). A study may be measured further with more starts than it
first asked for; each such plan has a part of what the plans before it left.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from workflow_scripts.statistics.comparisons import (
    CONFIDENCE,
    EQUIVALENCE_ALPHA,
    NOT_DECIDED,
    Comparisons,
    Rows,
    compare,
    verdicts,
)
from workflow_scripts.statistics.errors import BoolArray, FloatArray, each
from workflow_scripts.statistics.samples import Samples

# If more further starts than this are needed, they are not worth asking for.
MOST_FURTHER_STARTS = 100
# The share of the error for the last look. The earlier looks share the rest: they decide only clear cases.
_OF_LAST_LOOK = 0.8
# A comparison is worth measuring if it would be decided this many standard errors from what was observed. Twice as many
# take up to 0.7 starts more of each cell and decide 1 % more.
_WORTH_SE = 0.5
# The share of the error for a plan, of what earlier plans left.
_OF_PLAN = 0.75


@dataclass(frozen=True)
class Looks:
    """The looks at a study: after each round from `at_least` to `at_most`, so only one if the two are the same.

    `earlier_plans`: how many plans with other numbers of starts were looked at before.
    """

    at_least: int = 1
    at_most: int = 1
    earlier_plans: int = 0

    @property
    def of_plan(self) -> float:
        """The share of the error for all looks of this plan."""
        return _OF_PLAN * (1 - _OF_PLAN) ** self.earlier_plans

    def share(self, rounds: FloatArray | int) -> FloatArray:
        """The share of the error that belongs to the look after this number of rounds.

        >>> Looks(2, 5).share(np.array([2, 4, 5, 6])).round(3).tolist(), Looks(3, 3, earlier_plans=1).share(3).tolist()
        ([0.05, 0.05, 0.6, 0.6], 0.1875)
        """
        earlier = self.at_most - self.at_least
        if earlier <= 0:
            return np.full_like(rounds, self.of_plan, dtype=float)
        return self.of_plan * np.where(np.asarray(rounds) < self.at_most, (1 - _OF_LAST_LOOK) / earlier, _OF_LAST_LOOK)


ONE_LOOK = Looks()


@dataclass(frozen=True)
class Decisions:
    """What the comparisons of a study show after a look; `rounds` is of each."""

    found: Comparisons
    verdict: npt.NDArray[np.str_]
    margin_pct: float
    looks: Looks
    rounds: FloatArray

    @cached_property
    def needed(self) -> FloatArray:
        """Minimum number of further starts of both cells that would decide, if means and variances stay as observed; 0
        if decided, NaN if MOST_FURTHER_STARTS are not enough. Means move as starts are added, so it may not be enough.
        """
        return self._needed(np.abs(self.found.difference))

    @cached_property
    def least(self) -> FloatArray:
        """Like `needed`, if the ratio lies _WORTH_SE away from the observed one, on the side where fewer starts decide.

        A comparison that needs more starts than are left even then is not worth measuring.
        """
        distance = np.abs(self.found.difference)
        error = _WORTH_SE * np.sqrt(self.found.error.variance)
        return np.fmin(self._needed(np.maximum(distance - error, 0)), self._needed(distance + error))

    def _needed(self, distance: FloatArray) -> FloatArray:
        undecided, needed = self.verdict == NOT_DECIDED, np.zeros(self.verdict.shape)

        def chosen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.asarray(np.broadcast_to(values, undecided.shape)[undecided])

        # By Holm's method, what is shown no longer counts.
        family, rounds = chosen(undecided.sum(axis=-1, keepdims=True)), chosen(self.rounds)
        found = each(self.found._replace(difference=distance), chosen)
        # What this plan does not decide takes another one.
        next_plan = replace(self.looks, earlier_plans=self.looks.earlier_plans + 1)

        def decided(further: FloatArray) -> BoolArray:
            then, n = found.after(further), rounds + further
            share = np.where(rounds < self.looks.at_most, self.looks.share(n), next_plan.share(n))
            beyond = then.p_beyond(self.margin_pct) * family <= (1 - CONFIDENCE) * share
            return np.asarray((then.p_within(self.margin_pct) * family <= EQUIVALENCE_ALPHA * share) | beyond)

        # Intervals shrink with every start, and no later look of a plan has a smaller share, so bisection works.
        too_few, enough = np.full(rounds.shape, -1.0), np.full(rounds.shape, float(MOST_FURTHER_STARTS))
        hopeless = ~decided(enough)
        while (enough - too_few > 1).any():
            middle = np.ceil((too_few + enough) / 2)
            does = decided(middle)
            too_few, enough = np.where(does, too_few, middle), np.where(does, middle, enough)
        needed[undecided] = np.where(hopeless, np.nan, np.maximum(enough, 1))
        return needed


def decide(samples: Samples, a: Rows, b: Rows, margin_pct: float, looks: Looks = ONE_LOOK) -> Decisions:
    """Compare cells `a` with cells `b`, which are all comparisons of a study, after the rounds that were measured."""
    found = compare(samples, a, b)
    rounds = np.maximum(samples.rounds[..., a], samples.rounds[..., b]).astype(float)
    return Decisions(found, verdicts(found, margin_pct, looks.share(rounds)), margin_pct, looks, rounds)

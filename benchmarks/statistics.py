"""Test the project's error rates and intervals on simulated studies with known true values.

    make bench-statistics         (or: python -m benchmarks.statistics [--studies 2000] [--seed 1])

The starts of each study vary like measured ones: within a start by 1 to 3 %, between starts by 2 to 15 %, from round to
round by 10 % for all cells together. Some cells have two modes, some starts are outliers, some rounds affect one engine
more than another, and on a shared machine each cell also varies between occasions. The project's own functions compare
the cells. The output has: the share of 95 % intervals that contain the ratio of another run, the share of studies with
a false `changes`, `flat`, `faster` or `slower`, and the number of starts that the adaptive rule takes compared with a
fixed number that decides as many comparisons. The exit code is 1 if a goal is missed.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track
from rich.table import Table

from workflow_scripts.analyse.further_starts import ONE_LOOK, Looks, decide
from workflow_scripts.analyse.start_spread import FloatArray
from workflow_scripts.analyse.statistics import (
    CHANGES,
    FASTER,
    FLAT,
    NOT_DECIDED,
    OCCASION_SD,
    SLOWER,
    Comparisons,
    Samples,
    compare,
    directions,
    log_margin,
)
from workflow_scripts.common.command import run_command

COVERAGE, MOST_FALSE, MOST_STARTS = (0.93, 0.97), 0.05, 0.6
# How much repeats vary, and the cost of a start in repeats, on the CPUs that run the demo.
WITHIN_SD, START_COSTS_REPEATS = 0.05, 8.0
REPEATS, MARGIN_PCT, LOOKS = 3, 5.0, Looks(2, 8)
FIXED = (2, 3, 4, 5, 6, 8, 10)
# The cells of a study like the demo: groups that differ in one knob, with the logarithms of their true rates. Four
# groups change, one is flat; of the last two, one differs by the margin and one by a quarter of it.
MARGIN = log_margin(MARGIN_PCT)
GROUPS = (
    *((0.0, 0.5, 1.3), (0.1, 0.6, 1.4), (0.3, 1.1), (0.0, 2.3)),
    *((0.7, 0.7, 0.7), (0.2, 0.2 + 1.0001 * MARGIN), (0.4, 0.4 + MARGIN / 4)),
)
SETTINGS = sum(map(len, GROUPS))
# The cells of two further engines; two are as fast as cells of the first one.
OTHER_ENGINES = ((0.0, 0.6, 2.0), (1.3,))
TRUTH = np.concatenate([*GROUPS, *OTHER_ENGINES])
ENGINE = np.repeat([0, 1, 2], [SETTINGS, *map(len, OTHER_ENGINES)])
ENDS = np.cumsum([0, *map(len, GROUPS)])
PAIRS = [(a, b) for low, high in pairwise(ENDS.tolist()) for a in range(low, high) for b in range(low, a)]
A, B = (np.array(side) for side in zip(*PAIRS, strict=True))
# As many cells of the first engine as the demo has, each compared with every cell of the others.
ENGINE_A, ENGINE_B = (side.ravel() for side in np.meshgrid(np.arange(5), np.flatnonzero(ENGINE), indexing="ij"))


@dataclass(frozen=True)
class Kind:
    """The variation in a study, as standard deviations of logarithms.

    Attributes:
        between: lower and upper bound of the variation between the starts of a cell; drawn for each engine and study.
        uneven: how much cells differ in this variation, as the standard deviation of its logarithm.
        two_modes: share of studies in which one cell has two modes, 10 to 25 % apart.
        outliers: share of starts that are 20 % slower.
        shared: whether the machine is shared, so that each cell differs from occasion to occasion by OCCASION_SD.
        apart: effect of a round on the cells of one engine, in addition to its effect on all cells.
    """

    name: str
    between: tuple[float, float] = (0.02, 0.15)
    uneven: float = 0.0
    two_modes: float = 0.0
    outliers: float = 0.0
    shared: bool = False
    apart: float = 0.0


KINDS = (
    Kind("all cells alike"),
    Kind("cells differ", uneven=0.35),
    Kind("one cell with two modes", two_modes=1.0),
    Kind("outliers", outliers=0.01),
    Kind("on a shared machine", shared=True),
    Kind("rounds move engines apart", apart=0.05),
)


class Run(NamedTuple):
    """One occasion: the measured samples, and the true logarithms of the rates on this occasion."""

    samples: Samples
    truth: FloatArray


@dataclass(frozen=True)
class Studies:
    """The properties of studies that are equal in all runs: the variation of each cell's starts, and its modes."""

    kind: Kind
    between: FloatArray
    modes: FloatArray

    def run(self, starts: int, rng: np.random.Generator) -> "Run":
        """Measure all studies once, with this number of starts of each cell."""
        studies, cells = self.between.shape
        shape = (studies, cells, starts)
        drift = rng.normal(0, 0.1, (studies, 1, starts)) + 0.02 * np.arange(starts)
        drift = drift + rng.normal(0, self.kind.apart, (studies, ENGINE[-1] + 1, starts))[:, ENGINE]
        repeats = rng.normal(0, 1, (*shape, REPEATS)) * rng.uniform(0.01, 0.03, (studies, cells, 1, 1))
        occasion = rng.normal(0, OCCASION_SD * self.kind.shared, (studies, cells))
        log = (
            (TRUTH + occasion)[..., None]
            + drift
            + rng.normal(0, 1, shape) * self.between[..., None]
            + repeats.mean(axis=-1)
        )
        log += self.modes[..., None] * (rng.integers(0, 2, shape) - 0.5)
        log += np.where(rng.random(shape) < self.kind.outliers, np.log(0.8), 0.0)
        within, counts = repeats.var(axis=-1, ddof=1).mean(axis=-1), np.full((studies, cells), float(REPEATS))
        nothing = np.zeros(cells, dtype=bool)
        return Run(Samples(log, within, counts, ENGINE, nothing, ~nothing & self.kind.shared), TRUTH + occasion)


def made_up(kind: Kind, studies: int, rng: np.random.Generator) -> Studies:
    """Studies of one kind."""
    cells = len(TRUTH)
    low, high = np.log(kind.between)
    of_engine = rng.uniform(low, high, (studies, ENGINE[-1] + 1))
    between = np.exp(of_engine[:, ENGINE] + rng.normal(0, kind.uneven, (studies, cells)))
    one = np.arange(cells) == rng.integers(cells, size=(studies, 1))
    with_modes = (rng.random((studies, 1)) < kind.two_modes) & one
    return Studies(kind, between, np.where(with_modes, rng.uniform(0.1, 0.25, (studies, 1)), 0.0))


@dataclass(frozen=True)
class Kept:
    """Shares of intervals that contain the ratio of another run, of comparisons without an interval, of studies with
    false verdicts (changes and flat of settings, directions of engines), and of decided comparisons."""

    coverage: float
    without_interval: float
    false: tuple[float, ...]
    decided: float

    def fits(self) -> bool:
        """Whether the goals are reached."""
        return COVERAGE[0] <= self.coverage <= COVERAGE[1] and max(self.false) <= MOST_FALSE

    def row(self) -> list[str]:
        """The shares in per cent, and whether a goal is missed."""
        shares = (self.coverage, self.without_interval, *self.false, self.decided)
        return [*map(_pct, shares), "" if self.fits() else "missed"]


def false_verdicts(verdict: npt.NDArray[np.str_], truth: FloatArray) -> tuple[float, float]:
    """Shares of studies with a false change and with a false flat."""
    within = np.abs(truth[..., A] - truth[..., B]) <= MARGIN
    changes, flat = (verdict == CHANGES) & within, (verdict == FLAT) & ~within
    return float(changes.any(axis=-1).mean()), float(flat.any(axis=-1).mean())


def false_directions(verdict: npt.NDArray[np.str_], truth: FloatArray) -> float:
    """Share of studies in which an engine is falsely faster or slower."""
    difference = truth[..., ENGINE_A] - truth[..., ENGINE_B]
    false = ((verdict == FASTER) & (difference <= 0)) | ((verdict == SLOWER) & (difference >= 0))
    return float(false.any(axis=-1).mean())


def kept(studies: Studies, starts: int, rng: np.random.Generator) -> tuple[Kept, Kept]:
    """Measure studies twice with a fixed number of starts: the shares for settings, and for pairs of engines."""
    (one, truth), (other, _) = studies.run(starts, rng), studies.run(starts, rng)
    decisions, engines = decide(one, A, B, MARGIN_PCT, ONE_LOOK), compare(one, ENGINE_A, ENGINE_B)
    direction = directions(engines)
    return (
        _kept(decisions.found, compare(other, A, B), decisions.verdict, false_verdicts(decisions.verdict, truth)),
        _kept(engines, compare(other, ENGINE_A, ENGINE_B), direction, (false_directions(direction, truth),)),
    )


def _kept(one: Comparisons, other: Comparisons, verdict: npt.NDArray[np.str_], false: tuple[float, ...]) -> Kept:
    _, low, high = one.interval()
    again = other.interval().value
    known = ~np.isnan(low)
    inside = (low <= again) & (again <= high)
    return Kept(float(inside[known].mean()), float(1 - known.mean()), false, float((verdict != NOT_DECIDED).mean()))


@dataclass(frozen=True)
class Adaptive:
    """Results of the adaptive rule: starts per cell, the share of decided comparisons, and the shares of studies with a
    false change, a false flat or a false direction."""

    starts: float
    decided: float
    false: tuple[float, ...]


def adaptive(studies: Studies, rng: np.random.Generator) -> Adaptive:
    """Measure cells again as long as one of their comparisons may be decided."""
    whole, truth = studies.run(LOOKS.at_most, rng)
    log = whole.log.copy()
    log[..., LOOKS.at_least :] = np.nan
    for rounds in range(LOOKS.at_least, LOOKS.at_most + 1):
        samples = replace(whole, log=log[..., :rounds].copy())
        found, verdict, _, least = decide(samples, A, B, MARGIN_PCT, LOOKS)
        if rounds < LOOKS.at_most:
            starts = np.maximum(samples.starts[..., A], samples.starts[..., B])
            goes_on = (verdict == NOT_DECIDED) & ~found.bimodal & (starts + least <= LOOKS.at_most)
            again = np.zeros(log.shape[:-1], dtype=bool)
            for cell in range(again.shape[-1]):
                again[..., cell] = (goes_on & ((cell == A) | (cell == B))).any(axis=-1)
            log[..., rounds] = np.where(again, whole.log[..., rounds], np.nan)
    direction = false_directions(directions(compare(samples, ENGINE_A, ENGINE_B)), truth)
    return Adaptive(
        float(samples.starts[..., :SETTINGS].mean()),
        float((verdict != NOT_DECIDED).mean()),
        (*false_verdicts(verdict, truth), direction),
    )


def starts_of_same_power(decided: float, by_starts: Mapping[int, float]) -> float:
    """The fixed count of starts that decides this share of comparisons; the largest simulated if none does."""
    return float(np.interp(decided, list(by_starts.values()), list(by_starts)))


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print, and compare with the goals."""
    parser = argparse.ArgumentParser(description="Test the statistics on simulated studies with known true values.")
    parser.add_argument("--studies", type=int, default=2000, help="of each kind (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default: %(default)s)")
    args = parser.parse_args(argv)
    rng = np.random.default_rng(args.seed)
    false = ("false changes", "false flat")
    fixed = Table("studies", "starts", "coverage", "no interval", *false, "decided", box=None)
    engines = Table("studies", "starts", "coverage", "no interval", "false directions", "decided", box=None)
    rule = Table("studies", *false, "false directions", "decided", "starts", "fixed count", "ratio", box=None)
    fits, taken = [], []
    for kind in track(KINDS, description="simulating", console=Console(stderr=True)):
        studies = made_up(kind, args.studies, rng)
        by_starts = {starts: kept(studies, starts, rng) for starts in FIXED}
        for starts, both in by_starts.items():
            for table, found in zip((fixed, engines), both, strict=True):
                fits.append(found.fits())
                table.add_row(kind.name, str(starts), *found.row())
        rule_found = adaptive(studies, rng)
        same = starts_of_same_power(
            rule_found.decided, {starts: found.decided for starts, (found, _) in by_starts.items()}
        )
        ratio = rule_found.starts / same
        taken.append((rule_found.starts, same))
        fits.append(max(rule_found.false) <= MOST_FALSE)
        shares = (*rule_found.false, rule_found.decided)
        numbers = f"{rule_found.starts:.2f}", f"{same:.2f}", f"{ratio:.2f}", "" if fits[-1] else "missed"
        rule.add_row(kind.name, *map(_pct, shares), *numbers)
    starts, same = np.mean(taken, axis=0)
    fits.append(bool(starts / same <= MOST_STARTS))
    flag = "" if fits[-1] else "missed"
    rule.add_row("all together", *[""] * 4, f"{starts:.2f}", f"{same:.2f}", f"{starts / same:.2f}", flag)
    console = Console(width=120)
    console.print(f"{args.studies} studies of each kind; margin {MARGIN_PCT:g} %")
    console.print("settings of one engine")
    console.print(fixed)
    console.print("pairs of engines")
    console.print(engines)
    console.print(f"adaptive, {LOOKS.at_least} to {LOOKS.at_most} starts, and a fixed number that decides as many")
    console.print(rule)
    # Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013.
    repeats = {sd: math.ceil(math.sqrt(START_COSTS_REPEATS) * WITHIN_SD / sd) for sd in (0.02, 0.04, 0.08)}
    told = ", ".join(f"{count} if starts vary by {100 * sd:g} %" for sd, count in repeats.items())
    console.print(
        f"repeats per start that give the narrowest intervals, if repeats vary by {100 * WITHIN_SD:g} % and a start"
        f" takes as long as {START_COSTS_REPEATS:g} of them: {told}"
    )
    return 0 if all(fits) else 1


def _pct(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    run_command(main)

"""Test the project's error rates and intervals on simulated studies with known true values.

    make bench-statistics         (or: python -m benchmarks.statistics [--studies 2000] [--seed 1])

The starts of each study vary like measured ones: within a start by 1 to 3 %, between starts by 2 to 15 % (on GPUs by
0.3 to 3 %), from round to round by 10 % for all cells together (on each GPU by 2.5 %). Some cells have two modes, some
starts are outliers, some rounds affect one engine more than another, and each GPU, or on a shared machine each cell,
also varies between occasions. The project's own functions compare the cells. The output has: the share of 95 %
intervals that contain the ratio of another run, the share of studies with a false `changes`, `flat`, `faster` or
`slower`, and the number of starts that the adaptive rule takes compared with a fixed number that decides as many
comparisons. The exit code is 1 if a goal is missed.
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

from benchmarks import coverage
from workflow_scripts.common.command import run_command
from workflow_scripts.statistics.comparisons import (
    CHANGES,
    FASTER,
    FLAT,
    GPU_OCCASION_SD,
    NOT_DECIDED,
    OCCASION_SD,
    SLOWER,
    Comparisons,
    compare,
    directions,
    log_margin,
    verdicts,
)
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks, decide
from workflow_scripts.statistics.samples import IntArray, Samples
from workflow_scripts.statistics.start_spread import FloatArray, spread
from workflow_scripts.statistics.variation import UNKNOWN, Known, known_elsewhere

# With few starts intervals are wide, so that those of a cell that varies more than the others are wide enough. A single
# start shows nothing of how a cell varies.
COVERAGE, LEAST_OF_WORST, LEAST_OF_ONE_START, MOST_FALSE, MOST_STARTS = (0.93, 0.99), 0.85, 0.9, 0.05, 0.6
# How much repeats vary, and the cost of a start in repeats, on the CPUs that run the demo.
WITHIN_SD, START_COSTS_REPEATS = 0.05, 8.0
REPEATS, MARGIN_PCT, LOOKS = 3, 5.0, Looks(2, 8)
FIXED = (1, 2, 3, 4, 5, 6, 8, 10)
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
        shared: whether the machine is shared.
        occasion: how much each cell differs from occasion to occasion, or each GPU.
        apart: effect of a round on the cells of one engine, in addition to its effect on all cells.
        noisy: how many times as much as the others the first cell varies.
        rounds: effect of a round on all cells.
        gpus: whether each engine is instead a GPU of its own, in its own rounds.
    """

    name: str
    between: tuple[float, float] = (0.02, 0.15)
    uneven: float = 0.0
    two_modes: float = 0.0
    outliers: float = 0.0
    shared: bool = False
    occasion: float = 0.0
    apart: float = 0.0
    noisy: float = 1.0
    rounds: float = 0.1
    gpus: bool = False


GPUS = Kind("three GPUs", between=(0.003, 0.03), occasion=GPU_OCCASION_SD, rounds=0.0, apart=0.025, gpus=True)
KINDS = (
    Kind("all cells alike"),
    Kind("cells differ", uneven=0.35),
    Kind("one cell with two modes", two_modes=1.0, shared=True, occasion=OCCASION_SD),
    Kind("outliers", outliers=0.01),
    Kind("on a shared machine", shared=True, occasion=OCCASION_SD),
    Kind("rounds move engines apart", apart=0.05),
    Kind("one cell 3 times as noisy", noisy=3.0),
    GPUS,
    replace(GPUS, name="three GPUs, one noisy cell", noisy=3.0),
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
        drift = self.kind.rounds * (rng.normal(0, 1, (studies, 1, starts)) + 0.2 * np.arange(starts))
        drift = drift + rng.normal(0, self.kind.apart, (studies, ENGINE[-1] + 1, starts))[:, ENGINE]
        repeats = rng.normal(0, 1, (*shape, REPEATS)) * rng.uniform(0.01, 0.03, (studies, cells, 1, 1))
        # A comparison of GPUs is about all occasions, any other about this one.
        occasion = rng.normal(0, self.kind.occasion, (studies, cells))
        truth = np.broadcast_to(TRUTH, occasion.shape) if self.kind.gpus else TRUTH + occasion
        drift = drift + occasion[:, ENGINE, None] if self.kind.gpus else drift
        log = truth[..., None] + drift + rng.normal(0, 1, shape) * self.between[..., None] + repeats.mean(axis=-1)
        log += self.modes[..., None] * (rng.integers(0, 2, shape) - 0.5)
        log += np.where(rng.random(shape) < self.kind.outliers, np.log(0.8), 0.0)
        within, counts = repeats.var(axis=-1, ddof=1).mean(axis=-1), np.full((studies, cells), float(REPEATS))
        none, zero = np.zeros(cells, dtype=bool), np.zeros(cells, dtype=int)
        known = known_elsewhere(not self.kind.gpus, "").of_cells(cells)
        device = ENGINE if self.kind.gpus else zero
        samples = Samples(log, within, counts, ENGINE, none, ~none & self.kind.shared, device, zero, known)
        return Run(samples, truth)


def made_up(kind: Kind, studies: int, rng: np.random.Generator) -> Studies:
    cells = len(TRUTH)
    low, high = np.log(kind.between)
    of_engine = rng.uniform(low, high, (studies, ENGINE[-1] + 1))
    between = np.exp(of_engine[:, ENGINE] + rng.normal(0, kind.uneven, (studies, cells)))
    between[:, 0] *= kind.noisy
    one = np.arange(cells) == rng.integers(cells, size=(studies, 1))
    with_modes = (rng.random((studies, 1)) < kind.two_modes) & one
    return Studies(kind, between, np.where(with_modes, rng.uniform(0.1, 0.25, (studies, 1)), 0.0))


@dataclass(frozen=True)
class Kept:
    """Shares of intervals that contain the ratio of another run (of all comparisons, and of those of the cell with the
    fewest), of comparisons without an interval, of studies with false verdicts (changes and flat of settings,
    directions of engines), and of decided comparisons; and the median of the intervals' half widths."""

    starts: int
    coverage: float
    worst: float
    without_interval: float
    false: tuple[float, ...]
    decided: float
    width: float

    def fits(self) -> bool:
        if self.starts == 1:
            covers = self.coverage >= LEAST_OF_ONE_START
        else:
            covers = COVERAGE[0] <= self.coverage <= COVERAGE[1] and self.worst >= LEAST_OF_WORST
        return covers and max(self.false) <= MOST_FALSE

    def row(self) -> list[str]:
        shares = (self.coverage, self.worst, self.without_interval, *self.false, self.decided, self.width)
        return [str(self.starts), *map(_pct, shares)]


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
    direction = directions(engines, ONE_LOOK.of_plan)
    return (
        _kept(starts, decisions.found, other, (A, B), decisions.verdict, false_verdicts(decisions.verdict, truth)),
        _kept(starts, engines, other, (ENGINE_A, ENGINE_B), direction, (false_directions(direction, truth),)),
    )


def _kept(
    starts: int,
    one: Comparisons,
    another: Samples,
    pairs: tuple[IntArray, IntArray],
    verdict: npt.NDArray[np.str_],
    false: tuple[float, ...],
) -> Kept:
    low, high = one.another_run()
    again = np.exp(compare(another, *pairs).difference)
    known = ~np.isnan(low)
    inside = (low <= again) & (again <= high)
    of_pairs = np.where(known, inside, False).sum(axis=0) / known.sum(axis=0)
    worst = min(float(of_pairs[(pairs[0] == cell) | (pairs[1] == cell)].mean()) for cell in np.unique(pairs))
    decided = float((verdict != NOT_DECIDED).mean())
    width = float(np.median((one.interval().high / one.interval().value)[known])) - 1
    return Kept(starts, float(inside[known].mean()), worst, float(1 - known.mean()), false, decided, width)


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
        found = decide(samples, A, B, MARGIN_PCT, LOOKS)
        if rounds < LOOKS.at_most:
            starts = np.maximum(samples.starts[..., A], samples.starts[..., B])
            goes_on = (found.verdict == NOT_DECIDED) & (starts + found.least <= LOOKS.at_most)
            again = np.zeros(log.shape[:-1], dtype=bool)
            for cell in range(again.shape[-1]):
                again[..., cell] = (goes_on & ((cell == A) | (cell == B))).any(axis=-1)
            log[..., rounds] = np.where(again, whole.log[..., rounds], np.nan)
    direction = false_directions(directions(compare(samples, ENGINE_A, ENGINE_B), LOOKS.of_plan), truth)
    return Adaptive(
        float(samples.starts[..., :SETTINGS].mean()),
        float((found.verdict != NOT_DECIDED).mean()),
        (*false_verdicts(found.verdict, truth), direction),
    )


def starts_of_same_power(decided: float, by_starts: Mapping[int, float]) -> float:
    """The fixed count of starts that decides this share of comparisons; the largest simulated if none does."""
    return float(np.interp(decided, list(by_starts.values()), list(by_starts)))


class Check:
    """A table of shares, and whether all of them reach their goal."""

    def __init__(self, title: str, *headings: str) -> None:
        self.title, self.table, self.fits = title, Table(*headings, "", box=None), True

    def add(self, fits: bool, *row: str) -> None:
        self.fits &= fits
        self.table.add_row(*row, "" if fits else "missed")


def drift_taken_for_modes(studies: int, rng: np.random.Generator) -> Check:
    """Shares of studies with a cell that is falsely bimodal. The adaptive rule measures each cell in another number of
    the eight rounds."""
    headings = ("starts vary by", "starts", "studies with a falsely bimodal cell")
    check = Check("all cells become faster by 9 % after round 4", *headings)
    shape = (studies, SETTINGS, LOOKS.at_most)
    step = np.log(1.09) * (np.arange(LOOKS.at_most) >= 4)
    for sd in (0.003, 0.01, 0.03):
        log = TRUTH[:SETTINGS, None] + step + rng.normal(0, sd, shape)
        some = np.arange(LOOKS.at_most) < rng.integers(LOOKS.at_least, LOOKS.at_most + 1, (*shape[:-1], 1))
        for starts, measured in (("8", log), ("2 to 8", np.where(some, log, np.nan))):
            share = float(spread(measured, ENGINE[:SETTINGS]).bimodal.any(axis=-1).mean())
            check.add(share <= MOST_FALSE, _pct(sd), starts, _pct(share))
    return check


def plain(log: FloatArray, group: IntArray, known: Known = UNKNOWN, shared: bool = False) -> Samples:
    """Cells of one device, whose repeats are not looked at."""
    unknown, device = np.full(log.shape[:-1], np.nan), np.zeros_like(group)
    of_cells = known.of_cells(len(group))
    return Samples(log, unknown, unknown, group, device > 0, np.full(len(group), shared), device, group, of_cells)


def smallest_setting(studies: int, rng: np.random.Generator) -> Check:
    """Shares of studies in which any of nine settings is recommended as one that is not slower."""
    title = f"nine settings are slower than the fastest by just more than {MARGIN_PCT:g} %"
    check = Check(title, "starts", "starts vary by", "wrong")
    truth = np.where(np.arange(10) < 9, -1.0001 * MARGIN, 0.0)
    for starts, sd in ((3, 0.01), (3, 0.03), (8, 0.01), (8, 0.03)):
        log = truth[:, None] + rng.normal(0, sd, (studies, len(truth), starts))
        found = compare(plain(log, np.zeros(len(truth), dtype=int)), np.arange(9), np.full(9, 9))
        share = float((verdicts(found, MARGIN_PCT, ONE_LOOK.of_plan) == FLAT).any(axis=-1).mean())
        check.add(share <= MOST_FALSE, str(starts), _pct(sd), _pct(share))
    return check


def raised_starts(studies: int, rng: np.random.Generator) -> Check:
    """Shares of studies in which any of five ratios is ever called flat, while `starts` is raised one at a time."""
    title = "of five ratios just beyond the margin, any is once called flat while starts are raised from 2 to 8"
    check = Check(title, "starts vary by", "each with the whole error", "as a plan")
    truth = np.repeat([0.0, 1.0001 * MARGIN], 5)
    a, b = np.arange(5), np.arange(5, 10)
    for sd in (0.01, 0.02, 0.03):
        log = truth[:, None] + rng.normal(0, sd, (studies, len(truth), LOOKS.at_most))
        false = np.zeros((2, studies), dtype=bool)
        for earlier, starts in enumerate(range(LOOKS.at_least, LOOKS.at_most + 1)):
            found = compare(plain(log[..., :starts], np.zeros(len(truth), dtype=int)), a, b)
            shares = 1.0, Looks(starts, starts, earlier).share(starts)
            false |= [(verdicts(found, MARGIN_PCT, share) == FLAT).any(axis=-1) for share in shares]
        whole, spent = false.mean(axis=-1)
        check.add(spent <= MOST_FALSE, _pct(sd), _pct(whole), _pct(spent))
    return check


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Test the statistics on simulated studies with known true values.")
    parser.add_argument("--studies", type=int, default=2000, help="of each kind (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default: %(default)s)")
    args = parser.parse_args(argv)
    rng = np.random.default_rng(args.seed)
    false, shares = ("false changes", "false flat"), ("studies", "starts", "coverage", "of worst cell", "no interval")
    settings = Check("settings of one engine", *shares, *false, "decided", "±")
    engines = Check("pairs of engines, or of GPUs", *shares, "false directions", "decided", "±")
    rule = Check(
        f"adaptive, {LOOKS.at_least} to {LOOKS.at_most} starts, and a fixed number that decides as many",
        *("studies", *false, "false directions", "decided", "starts", "fixed count", "ratio"),
    )
    taken = []
    for kind in track(KINDS, description="simulating", console=Console(stderr=True)):
        studies = made_up(kind, args.studies, rng)
        by_starts = {starts: kept(studies, starts, rng) for starts in FIXED}
        for both in by_starts.values():
            for check, found in zip((settings, engines), both, strict=True):
                check.add(found.fits(), kind.name, *found.row())
        rule_found = adaptive(studies, rng)
        decided = {starts: found.decided for starts, (found, _) in by_starts.items()}
        same = starts_of_same_power(rule_found.decided, decided)
        taken.append((rule_found.starts, same))
        found_shares = map(_pct, (*rule_found.false, rule_found.decided))
        rule.add(max(rule_found.false) <= MOST_FALSE, kind.name, *found_shares, *_both(rule_found.starts, same))
    starts, same = np.mean(taken, axis=0)
    rule.add(starts / same <= MOST_STARTS, "all together", *[""] * 4, *_both(starts, same))
    checks = [settings, engines, rule]
    checks += [of(args.studies, rng) for of in (drift_taken_for_modes, smallest_setting)]
    checks.append(raised_starts(args.studies, rng))
    console = Console(width=120)
    console.print(f"{args.studies} studies of each kind; margin {MARGIN_PCT:g} %")
    for check in checks:
        console.print(check.title, check.table)
    fits = coverage.check(list(coverage.ROWS), args.seed, console)
    # Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013.
    repeats = {sd: math.ceil(math.sqrt(START_COSTS_REPEATS) * WITHIN_SD / sd) for sd in (0.02, 0.04, 0.08)}
    told = ", ".join(f"{count} if starts vary by {100 * sd:g} %" for sd, count in repeats.items())
    console.print(
        f"repeats per start that give the narrowest intervals, if repeats vary by {100 * WITHIN_SD:g} % and a start"
        f" takes as long as {START_COSTS_REPEATS:g} of them: {told}"
    )
    return 0 if fits and all(check.fits for check in checks) else 1


def _both(starts: float, same: float) -> tuple[str, str, str]:
    return f"{starts:.2f}", f"{same:.2f}", f"{starts / same:.2f}"


def _pct(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    run_command(main)

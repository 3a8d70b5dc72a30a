"""Rows of `make bench-statistics` under hard conditions, by a generator of their own.

    python -m benchmarks.coverage [--rows gpus noisy ...] [--seed 1]

The logarithm of the rate of a start is a sum of independent normal parts: of the cell on this occasion, of the
round on the device (1 %), and of the start. The cells of a study have a common standard deviation of starts, drawn
between two bounds, from which each differs by a lognormal factor. The truth is the mean of all occasions.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from workflow_scripts.common.command import run_command
from workflow_scripts.questions.devices.table import NEAR_PCT, p_near
from workflow_scripts.questions.serving.table import tail
from workflow_scripts.statistics.comparisons import (
    CHANGES,
    CONFIDENCE,
    EQUIVALENCE_ALPHA,
    NOT_DECIDED,
    Comparisons,
    compare,
    directions,
    half_width,
    log_margin,
    verdicts,
)
from workflow_scripts.statistics.samples import IntArray, Samples
from workflow_scripts.statistics.start_spread import FloatArray, mean_of
from workflow_scripts.statistics.variation import known_elsewhere

LEAST_COVERED, MOST_FALSE, ROUND_SD, MARGIN_PCT = 0.93, 0.05, 0.01, 5.0
# Half widths of ratios of two GPUs that intervals should not exceed, by starts: the smallest that is the same in every
# study and covers 93 % if occasions vary by 2 %.
NARROW = {2: 0.072, 3: 0.066}
STUDIES, LARGE_STUDIES = 2000, 200
# Cells of one device, and of two.
ONE, TWO = np.zeros(5, dtype=int), np.repeat([0, 1], 5)


class Row(NamedTuple):
    """A share (or a half width) that was observed beside its goal, and in how many simulated studies."""

    name: str
    studies: int
    goal: str
    observed: float
    fits: bool


def covered(name: str, studies: int, share: float) -> Row:
    return Row(name, studies, f">= {LEAST_COVERED:.0%}", share, share >= LEAST_COVERED)


def false(name: str, studies: int, share: float) -> Row:
    return Row(name, studies, f"<= {MOST_FALSE:.0%}", share, share <= MOST_FALSE)


def measured(
    rng: np.random.Generator,
    truth: FloatArray,
    device: IntArray,
    starts: int,
    sd: tuple[float, float] = (0.002, 0.06),
    differ: float = 0.4,
    occasion: float = 0.0,
    noisy: float = 1.0,
    studies: int = STUDIES,
) -> Samples:
    """Cells with these true logarithms, in many studies. Their starts vary by `sd`, which `differ`s between cells; the
    first one is `noisy` times as noisy."""
    shape = (studies, len(truth))
    of_cells = np.exp(rng.uniform(np.log(sd[0]), np.log(sd[1]), (studies, 1)) + rng.normal(0, differ, shape))
    of_cells[:, 0] *= noisy
    rounds = rng.normal(0, ROUND_SD, (studies, device.max() + 1, starts))[:, device]
    means = truth + rng.normal(0, occasion, shape)
    log = means[..., None] + rounds + of_cells[..., None] * rng.normal(0, 1, (*shape, starts))
    unknown, none = np.full(shape, np.nan), np.zeros(len(truth), dtype=bool)
    known = known_elsewhere(False, "").of_cells(len(truth))
    return Samples(log, unknown, np.ones(shape), device, none, none, device, np.zeros_like(device), known)


def holds(found: Comparisons, truth: FloatArray | float = 0.0) -> tuple[float, float]:
    """The share of intervals with the true ratio in them, and their median half width."""
    known = ~np.isnan(found.variance)
    value, low, high = (np.log(end[known]) for end in found.interval())
    truth = np.broadcast_to(truth, known.shape)[known]
    return float(((low <= truth) & (truth <= high)).mean()), float(np.median(np.expm1(high - value)))


def gpus(rng: np.random.Generator) -> Iterator[Row]:
    for occasion in (0.0, 0.009, 0.02):
        for starts in (1, 2, 3, 5):
            found = compare(measured(rng, np.zeros(10), TWO, starts, occasion=occasion), np.arange(5), np.arange(5, 10))
            share, half = holds(found)
            name = f"two GPUs, occasions vary by {100 * occasion:g} %, {starts} starts"
            yield covered(name, STUDIES, share)
            if starts in NARROW and not occasion:
                most = NARROW[starts]
                yield Row(f"half width of {name}", STUDIES, f"<= {100 * most:g} %", half, half <= most)


def one_device(rng: np.random.Generator) -> Iterator[Row]:
    a, b = np.triu_indices(5, 1)
    for starts in (1, 2, 3, 5):
        share, _ = holds(compare(measured(rng, np.zeros(5), ONE, starts), a, b))
        yield covered(f"one GPU, {starts} starts", STUDIES, share)
    share, _ = holds(compare(measured(rng, np.zeros(5), ONE, 1, sd=(0.04, 0.06)), a, b))
    yield covered("one GPU, 1 start that varies by 4 to 6 %", STUDIES, share)


def measured_in_sessions(
    rng: np.random.Generator,
    truth: FloatArray,
    device: IntArray,
    setting: IntArray,
    starts: int,
    sd: tuple[float, float] = (0.002, 0.06),
    occasion: float = 0.0,
) -> Samples:
    """The same if one start of an engine serves all cells of a `setting`: starts vary by `sd`, and what they serve by
    0.1 to 2 % around them."""
    shape = (STUDIES, len(truth))
    parts = []
    for (low, high), count in ((sd, setting.max() + 1), ((0.001, 0.02), len(truth))):
        typical = rng.uniform(np.log(low), np.log(high), (STUDIES, 1))
        of_each = np.exp(typical + rng.normal(0, 0.4, (STUDIES, count)))
        parts.append(of_each[..., None] * rng.normal(0, 1, (STUDIES, count, starts)))
    rounds = rng.normal(0, ROUND_SD, (STUDIES, device.max() + 1, starts))[:, device]
    log = (truth + rng.normal(0, occasion, shape))[..., None] + rounds + parts[0][:, setting] + parts[1]
    unknown, none = np.full(shape, np.nan), np.zeros(len(truth), dtype=bool)
    known = known_elsewhere(False, "").of_cells(len(truth))
    session = setting[:, None] * starts + np.arange(starts)
    return Samples(log, unknown, np.ones(shape), device, none, none, device, np.zeros_like(device), known, session)


def sessions(rng: np.random.Generator) -> Iterator[Row]:
    """Settings of four workloads each, every other one slower by just less than the margin; and two devices, each with
    the same five workloads in its sessions."""
    for settings, starts, sd in (
        *((2, starts, (0.002, 0.06)) for starts in (1, 2, 3, 5)),
        *((4, starts, (0.02, 0.06)) for starts in (2, 3, 5)),
    ):
        setting = np.repeat(np.arange(settings), 4)
        a, b = np.triu_indices(len(setting), 1)
        same = setting[a] == setting[b]
        truth = np.arange(len(setting)) % 2 * 0.9999 * log_margin(MARGIN_PCT)
        cells = measured_in_sessions(rng, truth, np.zeros_like(setting), setting, starts, sd)
        of_cells = f"{settings} settings in {starts} sessions that vary by {100 * sd[0]:g} to {100 * sd[1]:g} %"
        for name, some in (("within sessions", same), ("of settings", ~same)):
            share, half = holds(compare(cells, a[some], b[some]), (truth[a] - truth[b])[some])
            yield covered(f"ratio {name} (±{100 * half:.1f} %), {of_cells}", STUDIES, share)
        changes = (verdicts(compare(cells, a, b), MARGIN_PCT) == CHANGES).any(axis=-1)
        yield false(f"false changes, {of_cells}", STUDIES, float(changes.mean()))
        squared = cells.covariance()[:, :4, :4].mean(axis=(-2, -1))
        half_widths = half_width(squared, cells.variation.total_df[:, :4].min(axis=-1), CONFIDENCE)
        error = (mean_of(cells.log) - truth)[:, :4].mean(axis=-1)
        yield covered(f"mean of four cells, {of_cells}", STUDIES, float((np.abs(error) <= half_widths).mean()))
    for occasion in (0.0, 0.02):
        for starts in (1, 2, 3, 5):
            cells = measured_in_sessions(rng, np.zeros(10), TWO, TWO, starts, occasion=occasion)
            found = compare(cells, np.arange(5), np.arange(5, 10))
            name = f"two GPUs in {starts} sessions, occasions vary by {100 * occasion:g} %"
            yield covered(name, STUDIES, holds(found)[0])
            shown = (directions(found) != NOT_DECIDED).any(axis=-1)
            yield false(f"false directions, {name}", STUDIES, float(shown.mean()))


def noisy(rng: np.random.Generator) -> Iterator[Row]:
    for starts in (1, 2, 3, 5):
        cells = measured(rng, np.zeros(5), ONE, starts, noisy=4.0)
        share, _ = holds(compare(cells, np.zeros(4, dtype=int), np.arange(1, 5)))
        yield covered(f"a cell of one GPU that varies 4 times as much, {starts} starts", STUDIES, share)


def many(rng: np.random.Generator) -> Iterator[Row]:
    """False changes of settings in groups of five, of which two are slower by just less than the margin; and false
    directions of two engines that are alike."""
    wide = {"differ": 0.8}
    for cells, starts, studies, name, how in (
        (25, 1, STUDIES, "differ by 0.8", wide),
        (25, 1, STUDIES, "of 4 to 6 %", {"sd": (0.04, 0.06)}),
        (700, 2, LARGE_STUDIES, "differ by 0.8", wide),
        (700, 3, LARGE_STUDIES, "differ by 0.8", wide),
    ):
        group, zero = np.arange(cells) // 5, np.zeros(cells, dtype=int)
        a, b = np.nonzero(np.triu(group[:, None] == group, 1))
        truth = np.tile([0, 1, 0, 1, 0], cells // 5) * 0.9999 * log_margin(MARGIN_PCT)
        found = compare(measured(rng, truth, zero, starts, studies=studies, **how), a, b)
        share = float((verdicts(found, MARGIN_PCT) == CHANGES).any(axis=-1).mean())
        yield false(f"false changes, {cells} cells with {starts} starts, SDs {name}", studies, share)
        half = cells // 2
        of_engines = measured(rng, np.zeros(2 * half), zero[: 2 * half], starts, studies=studies, **how)
        of_engines = replace(of_engines, group=np.repeat([0, 1], half))
        shown = directions(compare(of_engines, np.arange(half), np.arange(half, 2 * half))) != NOT_DECIDED
        yield false(
            f"false directions, {cells} cells with {starts} starts, SDs {name}",
            studies,
            float(shown.any(axis=-1).mean()),
        )


def explained(rng: np.random.Generator) -> Iterator[Row]:
    """False explanations of ratios of two GPUs by three candidates that are just too far from them."""
    for pairs, studies in ((25, STUDIES), (700, LARGE_STUDIES)):
        device = np.repeat([0, 1], pairs)
        cells = measured(rng, np.zeros(2 * pairs), device, 3, studies=studies)
        found = compare(cells, np.arange(pairs), np.arange(pairs, 2 * pairs))
        away = np.full((*found.difference.shape, 3), 1.0001 + NEAR_PCT / 100) ** [1, -1, 1]
        share = float((p_near(found, away) <= EQUIVALENCE_ALPHA).any(axis=(-2, -1)).mean())
        yield false(f"a false explanation of {pairs} ratios, 3 starts", studies, share)


def tails(rng: np.random.Generator) -> Iterator[Row]:
    """The median 99th percentile of the times to the first token of 240 requests, for a server with 16 slots."""
    for load in (0.5, 0.8, 0.95):
        p99_s = first_tokens_p99_s(rng, (1000, 12), load)
        for starts in (2, 3, 5, 6, 8, 12):
            _, low, high, is_interval = tail(np.log(p99_s[:, :starts]))
            name = f"p99 TTFT, load {load:g}, {starts} starts"
            if is_interval.all():
                median = np.median(p99_s)
                yield covered(name, 1000, float(((low <= median) & (median <= high)).mean()))
            else:
                yield Row(name, 1000, "range", float("nan"), not is_interval.any())


def first_tokens_p99_s(
    rng: np.random.Generator, shape: tuple[int, int], load: float, slots: int = 16, requests: int = 240
) -> FloatArray:
    free_s, now_s, ttft_s = np.zeros((*shape, slots)), np.zeros(shape), []
    for _ in range(requests):
        now_s = now_s + rng.exponential(1 / (load * slots), shape)
        first = free_s.argmin(axis=-1)[..., None]
        begin_s = np.maximum(np.take_along_axis(free_s, first, axis=-1)[..., 0], now_s)
        np.put_along_axis(free_s, first, (begin_s + rng.exponential(1.0, shape))[..., None], axis=-1)
        ttft_s.append(begin_s - now_s + 0.02 * np.exp(rng.normal(0, 0.2, shape)))
    return np.asarray(np.quantile(ttft_s, 0.99, axis=0))


ROWS: dict[str, Callable[[np.random.Generator], Iterator[Row]]] = {
    of.__name__: of for of in (gpus, one_device, sessions, noisy, many, explained, tails)
}


def check(names: Sequence[str], seed: int, console: Console) -> bool:
    """Print the rows; whether all reach their goals. Each kind of rows has random numbers of its own."""
    table = Table("row", "studies", "goal", "observed", "", box=None)
    rows = [row for name in names for row in ROWS[name](np.random.default_rng(seed))]
    for row in rows:
        observed = "" if np.isnan(row.observed) else f"{100 * row.observed:.1f} %"
        table.add_row(row.name, str(row.studies), row.goal, observed, "" if row.fits else "missed")
    console.print(f"hard conditions, seed {seed}", table)
    return all(row.fits for row in rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Test intervals and verdicts under hard conditions.")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="kinds of rows (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default: %(default)s)")
    args = parser.parse_args(argv)
    return 0 if check(args.rows, args.seed, Console(width=120)) else 1


if __name__ == "__main__":
    run_command(main)

"""What became worse than in one or several earlier runs of a study: the verdict of `kvsweep compare --fail-if-worse`.

A regression is a rate that is shown to be lower, or a latency that is shown to be higher, than the mean of the earlier
runs by more than the study's margin, by one-sided tests; a cell with fewer KV tokens by more than the margin; or a cell
that ended `ok` earlier and now has another outcome but `invalid`. If the starts do not decide a cell, or it is not
compared, the verdict is `not decided`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import number, plural
from workflow_scripts.questions.compare.comparison import CellRatio, Comparison, cell_ratios, ratio_text
from workflow_scripts.questions.compare.digest import Digest, DigestCell, Mean
from workflow_scripts.statistics.comparisons import NOT_DECIDED
from workflow_scripts.tables.summary import RATE

JUDGED_BY = ("ttft_s_p50", "tpot_s_p50")
OK, PASSED, REGRESSED = "ok", "passed", "regressed"
KV_TOKENS, OUTCOME = "kv_cache_tokens", "outcome"


class Regression(NamedTuple):
    """What became worse, as text: a measure of a cell, its values, and their ratio, now over the earlier runs, with its
    95 % interval. KV tokens are counted, so they have no interval; outcomes have no ratio either."""

    cell: str
    measure: str
    baseline: str
    now: str
    ratio: str = ""


def judged(run: Digest) -> Digest:
    """The run with the measures by which it is judged: a cell's rate, or its latencies if requests arrive at a rate."""

    def by(cell: DigestCell) -> DigestCell:
        rate = [mean for mean in cell.means if mean.measure == RATE]
        latencies = [mean for mean in cell.means if mean.measure in JUDGED_BY]
        return cell.model_copy(update={"means": rate or latencies})

    return run.model_copy(update={"cells": [by(cell) for cell in run.cells]})


def against_all(baselines: Sequence[Digest], now: Digest, results: Sequence[Comparison]) -> list[CellRatio]:
    """The ratios of the present run over the mean of the earlier ones in which a cell may be compared with it.

    `results` compare each of the earlier runs, in the same order, with the present one.
    """
    earlier: dict[tuple[str, str], list[Mean]] = {}
    for baseline, result in zip(baselines, results, strict=True):
        means = _means(baseline)
        for c in result.cells:
            earlier.setdefault((c.cell, c.measure), []).append(means[c.cell, c.measure])
    of_now, latest = _means(now), results[-1]
    measured = [(key, means, [of_now[key]]) for key, means in earlier.items()]
    return cell_ratios(measured, latest.margin_pct, latest.occasions_vary_pct)


def _means(run: Digest) -> dict[tuple[str, str], Mean]:
    return {(cell.id, mean.measure): mean for cell in run.cells for mean in cell.means}


def regressions(
    baselines: Sequence[Digest], now: Digest, results: Sequence[Comparison], ratios: Sequence[CellRatio]
) -> list[Regression]:
    """Everything that became worse, the largest change of a measure first. KV tokens and outcomes are compared with
    every earlier run, the latest first."""
    worse = [
        Regression(c.cell, c.measure, column(c.measure).text(c.a), column(c.measure).text(c.b), ratio_text(c))
        for c in sorted(ratios, key=lambda c: -c.size)
        if c.worse
    ]
    others: dict[tuple[str, str], Regression] = {}
    for baseline, result in zip(reversed(baselines), reversed(results), strict=True):
        ended = (Regression(o.cell, OUTCOME, o.a, o.b) for o in result.outcomes if o.a == OK and o.b != "invalid")
        for regression in (*_fewer_tokens(baseline, now, result), *ended):
            others.setdefault((regression.cell, regression.measure), regression)
    return [*worse, *others.values()]


def undecided(baseline: Digest, ratios: Sequence[CellRatio], worse: Sequence[Regression]) -> list[str]:
    """Cells that ended `ok` in the latest earlier run and are not compared, or of which a measure is not decided."""
    open_cells = {c.cell for c in ratios if c.verdict == NOT_DECIDED}
    decided = {c.cell for c in ratios} - open_cells | {regression.cell for regression in worse}
    return [cell.id for cell in baseline.cells if cell.outcome == OK and cell.id not in decided]


def verdict(worse: Sequence[Regression], undecided: Sequence[str]) -> str:
    return REGRESSED if worse else NOT_DECIDED if undecided else PASSED


def verdict_in_words(
    margin_pct: float, ratios: Sequence[CellRatio], worse: Sequence[Regression], undecided: Sequence[str]
) -> str:
    """The verdict, what it rests on, and what would decide what is open."""
    margin, compared = f"{margin_pct:g} %", plural(len({c.cell for c in ratios}), "compared cell")
    words = f"nothing became worse by more than {margin} in {compared}"
    if worse:
        words = f"{plural(len(worse), 'measure')} became worse by more than {margin} in {compared}"
    elif undecided:
        words = (
            f"nothing is shown to be worse by more than {margin} in {compared}, but {plural(len(undecided), 'cell')} "
            "may be, or cannot be compared; more starts decide, or less load on the machine"
        )
    return f"{verdict(worse, undecided)}: {words}."


def _fewer_tokens(baseline: Digest, now: Digest, result: Comparison) -> Iterator[Regression]:
    before, after = ({cell.id: _kv_tokens(cell) for cell in run.cells} for run in (baseline, now))
    for name in dict.fromkeys(c.cell for c in result.cells):
        a, b = before[name], after[name]
        if a and b and b < a / (1 + result.margin_pct / 100):
            yield Regression(name, KV_TOKENS, number(a), number(b), number(b / a))


def _kv_tokens(cell: DigestCell) -> float | None:
    blocks, size = cell.effective.get("num_gpu_blocks"), cell.effective.get("block_size")
    return float(blocks) * size if isinstance(blocks, int | float) and isinstance(size, int | float) else None

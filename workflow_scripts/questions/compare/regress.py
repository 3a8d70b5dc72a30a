"""Fail if a cell became slower or holds fewer KV tokens than in one or several baselines.

    kvsweep regress baseline/results/demo results/demo --markdown regression.md

A regression is a rate that is shown to be lower, or a latency that is shown to be higher, by more than the study's
margin; a cell with fewer KV tokens by more than the margin; or a cell that ended `ok` in a baseline and now has
another outcome but `invalid`. If the starts do not decide a cell, or it is not compared, the verdict is `not decided`.
As in `kvsweep compare`, a change must exceed the variation between occasions.

Several baselines are ordered by when they were measured. Then a regression is a cell whose last step over time is for
the worse.

Exit codes: 0: `passed` or `not decided`; 1: `regressed`; 2: bad input, another study, or no cell can be compared;
3: a fault of the infrastructure.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from workflow_scripts.common.columns import column
from workflow_scripts.common.command import command, option
from workflow_scripts.common.files import write_text
from workflow_scripts.common.markdown import cell, rows_of
from workflow_scripts.common.wording import number, plural
from workflow_scripts.questions.compare.compare import (
    CELLS,
    DIFFERENT,
    MOST_ROWS,
    OCCASIONS,
    Section,
    in_markdown,
    ratio_text,
    sections,
    starts_in_words,
    wide_terminal,
)
from workflow_scripts.questions.compare.comparison import CellRatio, Comparison, comparison
from workflow_scripts.questions.compare.digest import Digest, DigestCell, DigestError, read_digest
from workflow_scripts.questions.compare.steps_over_time import Series, StepsOverTime, steps_over_time
from workflow_scripts.statistics.comparisons import CHANGES, NOT_DECIDED
from workflow_scripts.statistics.summary import RATE

LATENCIES = ("ttft_s_p50", "tpot_s_p50")
OK, PASSED, REGRESSED = "ok", "passed", "regressed"
KV_TOKENS, OUTCOME = "kv_cache_tokens", "outcome"
# Of a cell over time, at most so many values are written; JSON has all.
MOST_VALUES = 10


class Regression(NamedTuple):
    """What became worse, as text: a measure of a cell, its values, and their ratio, now over baseline, with its 95 %
    interval. KV tokens are counted, so they have no interval; outcomes have no ratio either."""

    cell: str
    measure: str
    baseline: str
    now: str
    ratio: str = ""


def regressions(runs: Sequence[Digest], results: Sequence[Comparison], cells: Sequence[CellRatio]) -> list[Regression]:
    """Everything that became worse, the largest change of a measure first.

    `results` compare each of the earlier runs with the last one; `cells` are the ratios that say what became slower. KV
    tokens and outcomes are compared with every earlier run, the latest first.
    """
    worse = [
        Regression(c.cell, c.measure, column(c.measure).text(c.a), column(c.measure).text(c.b), ratio_text(c))
        for c in sorted(cells, key=lambda c: -c.size)
        if c.verdict == CHANGES and (c.ratio < 1) == bool(column(c.measure).more)
    ]
    others: dict[tuple[str, str], Regression] = {}
    for baseline, each in zip(reversed(runs[:-1]), reversed(results), strict=True):
        ended = (Regression(o.cell, OUTCOME, o.a, o.b) for o in each.outcomes if o.a == OK and o.b != "invalid")
        for regression in (*_fewer_tokens(baseline, runs[-1], each), *ended):
            others.setdefault((regression.cell, regression.measure), regression)
    return [*worse, *others.values()]


def undecided(baseline: Digest, result: Comparison) -> list[str]:
    """Cells that ended `ok` in the baseline and are not compared, or of which a measure is not decided."""
    open_cells = {c.cell for c in result.cells if c.verdict == NOT_DECIDED}
    decided = {c.cell for c in result.cells} - open_cells
    return [cell.id for cell in baseline.cells if cell.outcome == OK and cell.id not in decided]


def verdict(worse: list[Regression], undecided: list[str]) -> str:
    return REGRESSED if worse else NOT_DECIDED if undecided else PASSED


def _fewer_tokens(baseline: Digest, now: Digest, result: Comparison) -> Iterator[Regression]:
    before, after = ({cell.id: _kv_tokens(cell) for cell in of.cells} for of in (baseline, now))
    for name in dict.fromkeys(c.cell for c in result.cells):
        a, b = before[name], after[name]
        if a and b and b < a / (1 + result.margin_pct / 100):
            yield Regression(name, KV_TOKENS, number(a), number(b), number(b / a))


def _kv_tokens(cell: DigestCell) -> float | None:
    blocks, size = cell.effective.get("num_gpu_blocks"), cell.effective.get("block_size")
    return float(blocks) * size if isinstance(blocks, int | float) and isinstance(size, int | float) else None


def verdict_in_words(result: Comparison, worse: list[Regression], undecided: list[str]) -> str:
    """The verdict, what it rests on, and what would decide what is open."""
    margin, compared = f"{result.margin_pct:g} %", plural(len({c.cell for c in result.cells}), "compared cell")
    if worse:
        return f"{plural(len(worse), 'measure')} became worse by more than {margin} in {compared}"
    if undecided:
        return (
            f"nothing is shown to be worse by more than {margin} in {compared}, but {plural(len(undecided), 'cell')} "
            "may be, or cannot be compared; more starts decide, or less load on the machine"
        )
    return f"nothing became worse by more than {margin} in {compared}"


def markdown(result: Comparison, worse: list[Regression], undecided: list[str], over: StepsOverTime) -> str:
    lines = [
        f"**{verdict(worse, undecided)}**: {cell(result.study_b)}: {verdict_in_words(result, worse, undecided)}.",
        *starts_in_words(result),
    ]
    if worse:
        headings = ("cell", "measure", "baseline", "now", "now / baseline (95 % interval)")
        lines += ["", *rows_of(headings, worse[:MOST_ROWS])]
    shown = [section for section in sections(result) if section.part in (CELLS, DIFFERENT)]
    if len(over.runs) > 2:
        runs = (f"{number}: {name}" for number, name in enumerate(over.runs, 1))
        lines += ["", f"Runs: {'; '.join(runs)}. Below, A is the latest baseline and B the present run."]
        rows = [
            (of.cell, of.measure, _values(of), _steps(of))
            for of in sorted(over.series, key=lambda of: -max((step.found.size for step in of.steps), default=0))
        ]
        shown = [
            Section(CELLS, "Over time, the largest step first", ("cell", "measure", "last runs", "steps"), rows),
            *shown,
        ]
    return "\n".join([*lines, *in_markdown(shown)]) + "\n"


def _values(of: Series) -> str:
    measure = column(of.measure)
    values = [number(measure.scaled(value)) for value in of.values[-MOST_VALUES:]]
    return f"{' → '.join(values)} {measure.unit}"


def _steps(of: Series) -> str:
    return "; ".join(f"{ratio_text(step.found)} from run {step.run + 1} on" for step in of.steps) or "none shown"


def judged(run: Digest) -> Digest:
    """The run with the measures by which it is judged: a cell's rate, or its latencies if requests arrive at a rate."""

    def by(cell: DigestCell) -> DigestCell:
        rate = [mean for mean in cell.means if mean.measure == RATE]
        latencies = [mean for mean in cell.means if mean.measure in LATENCIES]
        return cell.model_copy(update={"means": rate or latencies})

    return run.model_copy(update={"cells": [by(cell) for cell in run.cells]})


@command(
    "regress",
    option("baseline", type=Path, nargs="+", help="earlier runs: a study's folder, an archive, or a report"),
    option("now", type=Path, help="the present run of the same study"),
    OCCASIONS,
    option("--markdown", type=Path, metavar="FILE", help="write the result as Markdown"),
    option("--json", type=Path, metavar="FILE", help="write each cell over time as JSON, for `kvsweep figure-steps`"),
    fault=3,
)
def main(args: Namespace) -> int:
    now = judged(read_digest(args.now))
    baselines = {str(place): judged(read_digest(place)) for place in args.baseline}
    for place, baseline in baselines.items():
        if baseline.study != now.study:
            raise DigestError(f"{place}: of study {baseline.study!r}; allowed: earlier runs of {now.study!r}")
        if baseline == now:
            raise DigestError(f"{place}, {args.now}: the same run twice; allowed: an earlier run")
    places = [*sorted(baselines, key=lambda place: baselines[place].began or ""), str(args.now)]
    runs = [*(baselines[place] for place in places[:-1]), now]
    results = [comparison(run, now, args.occasions_vary) for run in runs[:-1]]
    if not any(each.cells or each.outcomes for each in results):
        raise DigestError(f"{', '.join(places)}: no cell can be compared; allowed: runs with cells in common")
    over = steps_over_time(places, runs, results)
    worse = regressions(runs, results, [of.last for of in over.series])
    latest = results[-1].model_copy(update={"cells": [of.now for of in over.series]})
    open_cells = [cell for cell in undecided(runs[-2], latest) if cell not in {of.cell for of in worse}]
    text = markdown(latest, worse, open_cells, over)
    if args.markdown:
        write_text(args.markdown, text)
    if args.json:
        over.write(args.json)
    wide_terminal().print(text.rstrip("\n"))
    return int(bool(worse))

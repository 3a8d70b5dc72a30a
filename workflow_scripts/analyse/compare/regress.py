"""Fail if a cell became slower or holds fewer KV tokens than in a baseline.

    kvsweep regress baseline/results/demo results/demo --markdown regression.md

A regression is a rate that is shown to be lower, or a latency that is shown to be higher, by more than the study's
margin; a cell with fewer KV tokens by more than the margin; or a cell that ended `ok` in the baseline and now has
another outcome but `invalid`. If the starts do not decide a cell, or it is not compared, the verdict is `not decided`.
As in `kvsweep compare`, a change must exceed the variation between occasions.

Exit codes: 0: `passed` or `not decided`; 1: `regressed`; 2: bad input, another study, or no cell can be compared.
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from workflow_scripts.analyse.compare.compare import MOST_ROWS, OCCASIONS, plain, wide_console
from workflow_scripts.analyse.compare.comparison import Comparison, comparison
from workflow_scripts.analyse.compare.digest import Digest, DigestCell, DigestError, read_digest
from workflow_scripts.analyse.intervals.statistics import CHANGES, NOT_DECIDED
from workflow_scripts.common.command import command, option
from workflow_scripts.common.files import write_text
from workflow_scripts.common.markdown import cell, rows_of
from workflow_scripts.common.wording import number

OK, PASSED, REGRESSED = "ok", "passed", "regressed"
KV_TOKENS, OUTCOME = "kv_cache_tokens", "outcome"


class Regression(NamedTuple):
    """What became worse: a measure of a cell, its values, and their ratio, now over baseline, with its 95 % interval.
    KV tokens are counted, so they have no interval; outcomes have no ratio either."""

    cell: str
    measure: str
    baseline: float | str
    now: float | str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def regressions(baseline: Digest, now: Digest, found: Comparison) -> list[Regression]:
    """Everything that became worse, the largest change of a measure first; `found` compares the two."""
    worse = [
        Regression(c.cell, c.measure, c.a, c.b, c.ratio, c.low, c.high)
        for c in found.cells
        if c.verdict == CHANGES and (c.ratio > 1) == _is_latency(c.measure)
    ]
    worse.sort(key=lambda of: max(of.ratio or 1, 1 / (of.ratio or 1)), reverse=True)
    ended = [Regression(o.cell, OUTCOME, o.a, o.b) for o in found.outcomes if o.a == OK and o.b != "invalid"]
    return [*worse, *_fewer_tokens(baseline, now, found), *ended]


def undecided(baseline: Digest, found: Comparison) -> list[str]:
    """Cells that ended `ok` in the baseline and are not compared, or of which a measure is not decided."""
    open_cells = {c.cell for c in found.cells if c.verdict == NOT_DECIDED}
    decided = {c.cell for c in found.cells} - open_cells
    return [cell.id for cell in baseline.cells if cell.outcome == OK and cell.id not in decided]


def verdict(worse: list[Regression], undecided: list[str]) -> str:
    """`regressed`, `not decided` if a cell may have become worse, or `passed`."""
    return REGRESSED if worse else NOT_DECIDED if undecided else PASSED


def _is_latency(measure: str) -> bool:
    return not measure.endswith("_per_s")


def _fewer_tokens(baseline: Digest, now: Digest, found: Comparison) -> Iterator[Regression]:
    before, after = ({cell.id: _kv_tokens(of, cell) for cell in of.cells} for of in (baseline, now))
    for name in dict.fromkeys(c.cell for c in found.cells):
        a, b = before[name], after[name]
        if a and b and b < a / (1 + found.margin_pct / 100):
            yield Regression(name, KV_TOKENS, a, b, b / a)


def _kv_tokens(digest: Digest, of: DigestCell) -> float | None:
    effective = digest.effective[of.effective] if of.effective >= 0 else {}
    blocks, size = effective.get("num_gpu_blocks"), effective.get("block_size")
    return blocks * size if isinstance(blocks, int | float) and isinstance(size, int | float) else None


def markdown(found: Comparison, worse: list[Regression], undecided: list[str]) -> str:
    """The verdict, what became worse and what else differs, as for a pull request."""
    lines = [
        f"**{verdict(worse, undecided)}**: {cell(found.study_b)}, {len({c.cell for c in found.cells})} cells compared "
        f"within {found.margin_pct:g} %, {len(undecided)} not decided or not compared",
    ]
    rows = [(w.cell, w.measure, _value(w.baseline), _value(w.now), _ratio(w)) for w in worse]
    if rows:
        lines += [
            "",
            *rows_of(("cell", "measure", "baseline", "now", "now / baseline (95 % interval)"), rows[:MOST_ROWS]),
        ]
    if found.differences:
        differs = [(d.what, str(d.a), str(d.b), str(d.cells or "")) for d in found.differences]
        lines += ["", *rows_of(("what differs", "baseline", "now", "cells"), differs)]
    return "\n".join(lines) + "\n"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def _ratio(of: Regression) -> str:
    if of.ratio is None:
        return ""
    return number(of.ratio) + ("" if of.low is None or of.high is None else f" ({number(of.low)} to {number(of.high)})")


@command(
    "regress",
    option("baseline", type=Path, help="the earlier run: a study's folder, an unpacked archive, or a report"),
    option("now", type=Path, help="the present run of the same study"),
    OCCASIONS,
    option("--markdown", type=Path, metavar="FILE", help="write the result as Markdown"),
)
def main(args: Namespace) -> int:
    """Compare a study with its baseline; the exit code says whether anything became worse."""
    baseline, now = read_digest(args.baseline), read_digest(args.now)
    if baseline.study != now.study:
        raise DigestError(f"{args.baseline}: of study {baseline.study!r}; allowed: an earlier run of {now.study!r}")
    found = comparison(baseline, now, args.occasions_vary)
    if not found.cells and not found.outcomes:
        raise DigestError(f"{args.baseline}, {args.now}: no cell can be compared; allowed: runs with cells in common")
    worse = regressions(baseline, now, found)
    text = markdown(found, worse, undecided(baseline, found))
    if args.markdown:
        write_text(args.markdown, text)
    console = wide_console()
    for line in text.splitlines():
        console.print(plain(line))
    return int(bool(worse))

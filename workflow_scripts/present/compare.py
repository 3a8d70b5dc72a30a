"""Compare two studies, cell by cell: two versions of an engine, two clusters or two days.

    kvsweep compare results/demo other/results/demo --html comparison.html

Each run is the folder of a study or an unpacked archive. A is the run that began earlier, or the first
one if that is not known; ratios are of B over A. If two cells cannot be compared, the output says why. Starts of one
occasion do not show how much a cell varies between occasions, so a cell counts as changed only if the change exceeds
that variation too.

With `--fail-if-worse` the last run is the present one, those before it are earlier runs of the same study, and the exit
code is 1 only if something became worse: a rate or latency beside the mean of the earlier runs, KV tokens, or a cell
that is not `ok` any more.

Exit codes: 0: nothing changed; 1: a cell changed or has another outcome;
2: bad input, or no cell can be compared; 3: a fault of the infrastructure.
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import rich.table

from workflow_scripts.common.columns import COLUMNS, column
from workflow_scripts.common.command import above_zero, command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.common.terminal import Terminal
from workflow_scripts.common.wording import listed, number, plural
from workflow_scripts.questions.compare.comparison import Comparison, comparison, in_order, in_words, ratio_text
from workflow_scripts.questions.compare.run import Run, read_run
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, NOT_DECIDED
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.differences import value_text

CHANGED = 1
PASSED, REGRESSED = "passed", "regressed"
# Parts of the comparison, which are sections of its page.
_CELLS, DIFFERENT, NOT_COMPARED = "Cells", "What differs", "Not compared"
# What may change a cell's result besides the settings of the study.
_ENVIRONMENT = {
    "device_name": "device",
    "device_uuid": "card",
    "host": "host",
    "processor": "processor",
    "engine_version": "version of the engine",
    "lock_sha256": "set of installed packages",
    "git_commit": "commit of kvsweep",
}
# Maximum number of rows of a table in the terminal; JSON has all.
_MOST_ROWS = 40


class Printed(NamedTuple):
    """A table of the comparison, as the terminal and the page show it."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def summary(result: Comparison) -> Iterator[str]:
    runs = (("A", result.study_a, result.began_a), ("B", result.study_b, result.began_b))
    known = (f"{name}: {study}, {f'begun {began}' if began else 'of an unknown time'}" for name, study, began in runs)
    yield f"{'. '.join(known)}. Ratios are of B over A."
    differing = {d.what for d in result.differences}
    if others := [words for name, words in _ENVIRONMENT.items() if name in differing]:
        yield f"B was measured with another {listed(others)} than A. A change may come from any such difference."
    counts = Counter(c.verdict for c in result.cells)
    yield (
        f"{plural(len(result.cells), 'measure')} of {plural(len(result.compared), 'cell')} compared: "
        f"{counts[CHANGES]} changed, {counts[FLAT]} flat within {result.margin_pct:g} %, "
        f"{counts[NOT_DECIDED]} not decided."
    )
    if shared := in_words(result.compared)[0]:
        yield f"All compared cells are of {shared}."
    if result.cells:
        vary = "of config/variation.yaml" if (pct := result.occasions_vary_pct) is None else f"of {pct:g} %"
        yield f"Intervals also allow for the standard deviation {vary} between days and machines."


def guarded(result: Comparison) -> Iterator[str]:
    """The verdict of `--fail-if-worse`, with what it rests on."""
    within = f"by more than {result.margin_pct:g} % in {plural(len(result.compared), 'compared cell')}"
    words = f"{PASSED}: nothing became worse {within}."
    if result.worse:
        words = f"{REGRESSED}: {plural(len(result.worse), 'measure')} became worse {within}."
    elif result.undecided:
        unknown = plural(len(result.undecided), "cell")
        words = f"{NOT_DECIDED}: nothing is shown to be worse {within}, but {unknown} may be, or cannot be compared."
    yield f"{result.study_b}: {words}"
    yield "A is the mean of the earlier runs, B the present one."


def tables(result: Comparison) -> dict[str, list[Printed]]:
    """The tables of each part of the comparison; those without rows are left out."""
    (_, names), (_, all_names) = in_words(result.compared), in_words(result.labels)
    of_measures: dict[str, list[tuple[str, ...]]] = {c.measure: [] for c in result.cells}
    for c in sorted(result.cells, key=lambda c: (c.verdict != CHANGES, -c.size)):
        values = (number(column(c.measure).scaled(value)) for value in (c.a, c.b))
        of_measures[c.measure].append((names[c.cell], ratio_text(c), c.verdict, *values))
    differing = [
        (_in_words(d.what), value_text(d.a), value_text(d.b), str(d.cells or ""), str(d.others or ""))
        for d in result.differences
    ]
    outcomes = [(all_names[o.cell], o.a, o.b, o.reason or "") for o in result.outcomes]
    refused = [(all_names[r.cell], "; ".join(r.why)) for r in result.refused]
    found = {
        DIFFERENT: [Printed("What differs between A and B", ("What", "A", "B", "Cells", "Other pairs"), differing)],
        _CELLS: [
            Printed(
                f"{column(measure).axis}, the largest change first",
                ("Cell", "B/A (95 % interval)", "Verdict", "A", "B"),
                rows,
            )
            for measure, rows in of_measures.items()
        ],
        NOT_COMPARED: [
            Printed("Other outcomes", ("Cell", "A", "B", "Reason"), outcomes),
            Printed("Not compared", ("Cell", "Why"), refused),
            Printed("Only in A", ("Cell",), [(all_names[cell],) for cell in result.only_a]),
            Printed("Only in B", ("Cell",), [(all_names[cell],) for cell in result.only_b]),
        ],
    }
    kept = {part: [table for table in of_part if table.rows] for part, of_part in found.items()}
    return {part: of_part for part, of_part in kept.items() if of_part}


def _in_words(what: str) -> str:
    """A setting or a part of the environment that differs, by its key.

    >>> _in_words("max_model_len"), _in_words("lock_sha256"), _in_words("num_gpu_blocks")
    ('max-model-len', 'set of installed packages', 'KV blocks')
    """
    if what in _ENVIRONMENT:
        return _ENVIRONMENT[what]
    return column(what).in_words if what in COLUMNS else knob_name(what).replace(".", " ")


def wide_terminal() -> Terminal:
    """A terminal that does not wrap the lines of a table: a wrapped name cannot be copied."""
    return Terminal(width=1000, soft_wrap=True)


def print_comparison(result: Comparison, guard: bool = False) -> None:
    """Print the sentences and tables of a comparison; with `guard` the verdict of `--fail-if-worse` instead, what
    became worse, and what may explain it."""
    terminal, found = wide_terminal(), tables(result)
    shown = [table for part in found.values() for table in part]
    if guard:
        rows = [(w.cell, w.measure, w.a, w.b, w.ratio) for w in result.worse]
        headings = ("Cell", "Measure", "Earlier", "Now", "Now / earlier (95 % interval)")
        shown = [Printed("Worse", headings, rows)] * bool(rows) + found.get(_CELLS, []) + found.get(DIFFERENT, [])
    terminal.print(*(guarded if guard else summary)(result), sep="\n")
    for table in shown:
        of_table = rich.table.Table(
            *table.headings, title=table.caption, title_justify="left", box=None, pad_edge=False
        )
        for row in table.rows[:_MOST_ROWS]:
            of_table.add_row(*row)
        terminal.print()
        terminal.print(of_table)
        if len(table.rows) > _MOST_ROWS:
            terminal.print(f"{_MOST_ROWS} of {len(table.rows)} rows; --json writes all")


def against(places: Sequence[Path], now: Run, vary_pct: float | None) -> Comparison:
    """The present run beside the mean of earlier ones, each cell by its rate or latencies."""
    earlier = {place: read_run(place).judged() for place in places}
    now = now.judged()
    for place, run in earlier.items():
        if run.study != now.study:
            raise InputError(f"{place}: of study {run.study!r}; allowed: earlier runs of {now.study!r}")
        if run == now:
            raise InputError(f"{place}: the present run twice; allowed: an earlier run")
    return comparison(list(earlier.values()), now, vary_pct)


@command(
    "compare",
    option("runs", type=Path, nargs="+", help="two runs: each the folder of a study or an unpacked archive"),
    option("--fail-if-worse", action="store_true", help="fail only if the last run is worse than those before it"),
    option(
        "--occasions-vary",
        type=above_zero(99.9),
        metavar="PCT",
        help="standard deviation of a cell's rate between occasions, in per cent (default: that of "
        "config/variation.yaml, by kind of device)",
    ),
    option("--html", type=Path, metavar="FILE", help="draw the comparison as a page"),
    option("--json", type=Path, metavar="FILE", help="write the comparison as JSON, with every row"),
    fault=3,
)
def main(args: Namespace) -> int:
    *earlier, last = args.runs
    if not earlier or (len(earlier) > 1 and not args.fail_if_worse):
        raise InputError(f"{len(args.runs)} runs; allowed: two, or with --fail-if-worse several")
    now = read_run(last)
    if args.fail_if_worse:
        result = against(earlier, now, args.occasions_vary)
        failed = bool(result.worse)
    else:
        a, b = in_order(read_run(earlier[0]), now)
        if a == b:
            raise InputError(f"{earlier[0]}, {last}: the same run twice; allowed: two runs")
        result = comparison([a], b, args.occasions_vary)
        failed = result.changed
    if args.json:
        result.write(args.json)
    if args.html:
        from workflow_scripts.present.comparison_page import page  # the libraries that draw take long to import

        write_text(args.html, page(result))
    print_comparison(result, args.fail_if_worse)
    if not failed and not result.cells and not result.outcomes:
        raise InputError(f"{', '.join(map(str, earlier))}: no cell can be compared; allowed: runs with cells in common")
    return CHANGED if failed else 0

"""Compare two studies, cell by cell: two versions of an engine, two clusters or two days.

    kvsweep compare results/demo other/results/demo --html comparison.html --markdown comparison.md

Each run is the folder of a study, an unpacked archive or a digest.json. A is the run that began earlier, or the first
one if that is not known; ratios are of B over A. If two cells cannot be compared, the output says why. Starts of one
occasion do not show how much a cell varies between occasions, so a cell counts as changed only if the change exceeds
that variation too.

With `--fail-if-worse` the last run is the present one, those before it are earlier runs of the same study, and the exit
code is 1 only if something became worse: a rate or latency beside the mean of the earlier runs, KV tokens, or a cell
that is not `ok` any more.

Exit codes: 0: nothing changed; 1: a cell changed or has another outcome;
2: bad input, or no cell can be compared; 3: a fault of the infrastructure.
"""

import math
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from workflow_scripts.__main__ import main as kvsweep
from workflow_scripts.common.columns import COLUMNS, column, heading
from workflow_scripts.common.command import command, option
from workflow_scripts.common.files import write_json, write_text
from workflow_scripts.common.markdown import cell, rows_of
from workflow_scripts.common.terminal import Terminal
from workflow_scripts.common.wording import listed, number, plural
from workflow_scripts.questions.compare.comparison import (
    Comparison,
    comparison,
    in_order,
    in_words,
    on_cpu,
    ratio_text,
)
from workflow_scripts.questions.compare.digest import Digest, DigestError, read_digest
from workflow_scripts.questions.compare.worse import (
    against_all,
    judged,
    regressions,
    undecided,
    verdict_in_words,
)
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, NOT_DECIDED
from workflow_scripts.statistics.variation import known_elsewhere
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.differences import Different, value_text

CHANGED = 1
# Parts of the comparison, which are sections of its page.
CELLS, DIFFERENT, NOT_COMPARED = "Cells", "What differs", "Not compared"
# What may change a cell's result besides the settings of the study.
ENVIRONMENT = {
    "device_name": "device",
    "device_uuid": "card",
    "host": "host",
    "processor": "processor",
    "engine_version": "version of the engine",
    "lock_sha256": "set of installed packages",
    "git_commit": "commit of kvsweep",
}
_SETTINGS = {
    "cell_time_limit_s": heading("cell_time_limit_s", "time limit of a cell"),
    "equivalence_margin_pct": heading("equivalence_margin_pct", "margin of verdicts"),
    "starts.at_least": "fewest starts of a cell",
    "starts.at_most": "most starts of a cell",
}
# Maximum number of rows of a table in the terminal and in Markdown; JSON has all.
MOST_ROWS = 40


class Section(NamedTuple):
    """A table of the comparison, with what it shows, and the part of the comparison in which it is."""

    part: str
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def summary(result: Comparison) -> Iterator[str]:
    runs = (("A", result.study_a, result.began_a), ("B", result.study_b, result.began_b))
    known = (f"{name}: {study}, {f'begun {began}' if began else 'of an unknown time'}" for name, study, began in runs)
    yield f"{'. '.join(known)}. Ratios are of B over A."
    differing = {d.what for d in result.differences}
    if others := [words for name, words in ENVIRONMENT.items() if name in differing]:
        yield f"B was measured with another {listed(others)} than A. A change may come from any such difference."
    counts = Counter(c.verdict for c in result.cells)
    yield (
        f"{plural(len(result.cells), 'measure')} of {plural(len({c.cell for c in result.cells}), 'cell')} compared: "
        f"{counts[CHANGES]} changed, {counts[FLAT]} flat within {result.margin_pct:g} %, "
        f"{counts[NOT_DECIDED]} not decided."
    )
    if result.open_without_1:
        yield (
            f"{result.open_without_1} of those not decided have an interval that excludes 1. An interval is of one "
            "measure; a verdict requires a change beyond the margin and allows for the number of measures tested."
        )
    if shared := result.compared_in_words[0]:
        yield f"All compared cells are of {shared}."
    if result.cells:
        kinds = {on_cpu(c.cell): "CPUs" if on_cpu(c.cell) else "GPUs" for c in result.cells}
        usual = listed(f"{100 * known_elsewhere(is_cpu).new_hosts:g} % on {kind}" for is_cpu, kind in kinds.items())
        vary = usual if result.occasions_vary_pct is None else f"{result.occasions_vary_pct:g} %"
        yield (
            "Starts of one occasion do not show how much a cell varies from one day or machine to another. So the "
            f"intervals also allow for a standard deviation of {vary} between occasions."
        )
    if result.refused:
        yield f"{plural(len(result.refused), 'cell')} cannot be compared; the reasons are below."
    if result.outcomes:
        yield f"{plural(len(result.outcomes), 'cell')} ended with another outcome."
    if result.only_a or result.only_b:
        yield f"Only in A: {plural(len(result.only_a), 'cell')}; only in B: {len(result.only_b)}."


def sections(result: Comparison) -> list[Section]:
    """The tables of the comparison; those without rows are left out."""
    (_, names), (_, all_names) = result.compared_in_words, in_words(result.labels)
    of_measures: dict[str, list[tuple[str, ...]]] = {c.measure: [] for c in result.cells}
    for c in sorted(result.cells, key=lambda c: (c.verdict != CHANGES, -c.size)):
        values = (number(column(c.measure).scaled(value)) for value in (c.a, c.b))
        of_measures[c.measure].append((names[c.cell], ratio_text(c), c.verdict, *values, c.scope or ""))
    outcomes = [(all_names[o.cell], o.a, o.b, o.reason or "") for o in result.outcomes]
    refused = [(all_names[r.cell], "; ".join(r.why)) for r in result.refused]
    of_cell = ("cell", "B/A (95 % interval)", "verdict", "A", "B", "interval covers")
    tables = [
        Section(
            DIFFERENT,
            "What changed by itself",
            ("setting that took effect", "A", "B", "cells"),
            _differing(result.by_itself),
        ),
        *(
            Section(CELLS, f"{column(measure).axis}, the largest change first", of_cell, rows)
            for measure, rows in of_measures.items()
        ),
        Section(NOT_COMPARED, "Other outcomes", ("cell", "A", "B", "reason"), outcomes),
        Section(NOT_COMPARED, "Not compared", ("cell", "why"), refused),
        Section(
            DIFFERENT, "What else differs between A and B", ("what", "A", "B", "cells"), _differing(result.differences)
        ),
        Section(NOT_COMPARED, "Only in A", ("cell",), [(all_names[cell],) for cell in result.only_a]),
        Section(NOT_COMPARED, "Only in B", ("cell",), [(all_names[cell],) for cell in result.only_b]),
    ]
    return [table for table in tables if table.rows]


def _differing(differences: Sequence[Different]) -> list[tuple[str, ...]]:
    others = {d.what: f", and {plural(d.others, 'other pair')}" if d.others else "" for d in differences}
    return [
        (_in_words(d.what), value_text(d.a), value_text(d.b) + others[d.what], str(d.cells or "")) for d in differences
    ]


def _in_words(what: str) -> str:
    """A setting or a part of the environment that differs, by its key.

    >>> _in_words("study: starts.at_most"), _in_words("lock_sha256"), _in_words("num_gpu_blocks")
    ('study: most starts of a cell', 'set of installed packages', 'KV blocks')
    """
    key = what.removeprefix("study: ")
    label = column(key).in_words if key in COLUMNS else knob_name(key).replace(".", " ")
    words = (ENVIRONMENT | _SETTINGS).get(key, label)
    return f"study: {words}" if what != key else words


def wide_terminal() -> Terminal:
    """A terminal that does not wrap the lines of a table: a wrapped name cannot be copied."""
    return Terminal(width=1000, soft_wrap=True)


def print_comparison(result: Comparison) -> None:
    terminal = wide_terminal()
    for sentence in summary(result):
        terminal.print(sentence)
    for section in sections(result):
        table = Table(*section.headings, title=section.title, title_justify="left", box=None, pad_edge=False)
        for row in section.rows[:MOST_ROWS]:
            table.add_row(*row)
        terminal.print()
        terminal.print(table)
        if len(section.rows) > MOST_ROWS:
            terminal.print(f"{MOST_ROWS} of {len(section.rows)} rows; --json writes all")


def markdown(result: Comparison) -> str:
    lines = [f"# {cell(result.study_a)} (A) and {cell(result.study_b)} (B)", "", *map(cell, summary(result))]
    return "\n".join([*lines, *in_markdown(sections(result))]) + "\n"


def in_markdown(tables: Iterable[Section]) -> Iterator[str]:
    for section in tables:
        yield from ("", f"## {section.title}", "", *rows_of(section.headings, section.rows[:MOST_ROWS]))
        if len(section.rows) > MOST_ROWS:
            yield from ("", f"{MOST_ROWS} of {len(section.rows)} rows; the JSON of `kvsweep compare` has all.")


def draw(result: Comparison, out: Path) -> None:
    """Draw the page of a comparison, by the command that makes pages."""
    content = {
        "summary": list(summary(result)),
        "sections": [section._asdict() for section in sections(result)],
        "comparison": result.model_dump(mode="json", exclude={"differences"}),
        "names": result.compared_in_words[1],
        "measures": {measure: column(measure).axis for measure in dict.fromkeys(c.measure for c in result.cells)},
    }
    with tempfile.TemporaryDirectory() as scratch:
        write_json(path := Path(scratch) / "comparison.json", content)
        if kvsweep(["draw-comparison", "--comparison", str(path), "--out", str(out)]):
            raise DigestError(f"{out}: the page was not drawn")


def per_cent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 100:
        raise ArgumentTypeError(f"{text!r} is not a percentage from 0 to below 100")
    return value


def what_is_worse(places: Sequence[Path], now: Digest, vary_pct: float | None) -> tuple[Comparison, list[str], bool]:
    """The present run beside the mean of earlier ones, what became worse in Markdown, and whether something did."""
    now = judged(now)
    earlier = {place: judged(read_digest(place)) for place in places}
    for place, run in earlier.items():
        if run.study != now.study:
            raise DigestError(f"{place}: of study {run.study!r}; allowed: earlier runs of {now.study!r}")
        if run == now:
            raise DigestError(f"{place}: the present run twice; allowed: an earlier run")
    baselines = sorted(earlier.values(), key=lambda run: run.began or "")
    results = [comparison(run, now, vary_pct) for run in baselines]
    if not any(each.cells or each.outcomes for each in results):
        raise DigestError(f"{', '.join(map(str, places))}: no cell can be compared; allowed: runs with cells in common")
    ratios = against_all(baselines, now, results)
    worse = regressions(baselines, now, results, ratios)
    verdict = verdict_in_words(results[-1].margin_pct, ratios, worse, undecided(baselines[-1], ratios, worse))
    lines = [cell(f"{now.study}: {verdict}")]
    if worse:
        headings = ("cell", "measure", "earlier", "now", "now / earlier (95 % interval)")
        lines += ["", *rows_of(headings, worse[:MOST_ROWS])]
    latest = results[-1].model_copy(update={"cells": ratios})
    shown = [section for section in sections(latest) if section.part in (CELLS, DIFFERENT)]
    lines += ["", "A is the mean of the earlier runs, B the present one.", *in_markdown(shown)]
    return latest, lines, bool(worse)


@command(
    "compare",
    option(
        "runs", type=Path, nargs="+", help="two runs: each the folder of a study, an unpacked archive or a digest.json"
    ),
    option("--fail-if-worse", action="store_true", help="fail only if the last run is worse than those before it"),
    option(
        "--occasions-vary",
        type=per_cent,
        metavar="PCT",
        help="standard deviation of a cell's rate between occasions, in per cent (default: that of "
        "config/variation.yaml, by kind of device)",
    ),
    option("--html", type=Path, metavar="FILE", help="draw the comparison as a page"),
    option("--markdown", type=Path, metavar="FILE", help="write the comparison as Markdown"),
    option("--json", type=Path, metavar="FILE", help="write the comparison as JSON, with every row"),
    fault=3,
)
def main(args: Namespace) -> int:
    *earlier, last = args.runs
    if not earlier or (len(earlier) > 1 and not args.fail_if_worse):
        raise DigestError(f"{len(args.runs)} runs; allowed: two, or with --fail-if-worse several")
    now = read_digest(last)
    if args.fail_if_worse:
        result, lines, failed = what_is_worse(earlier, now, args.occasions_vary)
        text = "\n".join(lines) + "\n"
    else:
        a, b = in_order(read_digest(earlier[0]), now)
        if a == b:
            raise DigestError(f"{earlier[0]}, {last}: the same run twice; allowed: two runs")
        result = comparison(a, b, args.occasions_vary)
        text, failed = markdown(result), result.changed
    if args.markdown:
        write_text(args.markdown, text)
    if args.json:
        result.write(args.json)
    if args.html:
        draw(result, args.html)
    if args.fail_if_worse:
        wide_terminal().print(text.rstrip("\n"))
    else:
        print_comparison(result)
    if not failed and not args.fail_if_worse and not result.cells:
        raise DigestError(f"{earlier[0]}, {last}: no cell can be compared; allowed: studies that have cells in common")
    return CHANGED if failed else 0

"""Compare a run of a study with an earlier one, or with the mean of several, cell by cell.

docs/report.md explains the result. What became worse is a rate that is shown to be lower, or a latency that is shown
to be higher, by more than the study's margin, by one-sided tests; a cell with fewer KV tokens by more than the margin;
or a cell that ended `ok` earlier and now has another outcome but `invalid`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.columns import column
from workflow_scripts.common.records import Record
from workflow_scripts.common.wording import finite, number
from workflow_scripts.questions.compare.run import Mean, Run, RunCell
from workflow_scripts.questions.comparisons.pairs import RUN, pairs
from workflow_scripts.statistics.comparisons import CHANGES, NOT_DECIDED, Means, compare_occasions, verdicts, worse
from workflow_scripts.statistics.errors import Error, added
from workflow_scripts.tables.differences import Different, counted, differences, value_text

OK, MISSING, INVALID = "ok", "missing", "invalid"
KV_TOKENS, OF_OUTCOME = "kv_cache_tokens", "outcome"
# Maximum number of differing weights or requests that a sentence names.
_MOST_NAMED = 3


class CellRatio(Record):
    """A cell that both measured: the ratio of B over A, and what it shows.

    `worse`: whether B is shown to be worse by more than the margin, by a one-sided test.
    """

    cell: str
    measure: str
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None
    verdict: str
    worse: bool

    @property
    def size(self) -> float:
        """The absolute logarithm of the ratio."""
        return abs(math.log(self.ratio))


class Refused(Record):
    """A cell that cannot be compared, with all reasons."""

    cell: str
    why: list[str]


class OutcomeChange(Record):
    """A cell that has another outcome in B than in A."""

    cell: str
    a: str
    b: str
    reason: str | None


class Worse(Record):
    """What became worse in B, as text: a measure of a cell, its values, and their ratio with its 95 % interval. KV
    tokens are counted, so they have no interval; outcomes have no ratio either."""

    cell: str
    measure: str
    a: str
    b: str
    ratio: str = ""


class Comparison(Record):
    """What run B and earlier ones, A, have in common, and how they differ. Of several earlier runs the ratios are over
    their mean, and what else differs is what differs from the latest one.

    `began_a` and `began_b`: when the first repeat of each began, None if not known; `differences`: settings that took
    effect and differ although a cell asks for the same in both, and differences of what the cells ran on;
    `labels`: each cell's settings in words, by its id; `undecided`: cells that ended `ok` in the latest earlier run and
    are not compared, or have a measure not decided.
    """

    study_a: str
    study_b: str
    began_a: str | None
    began_b: str | None
    margin_pct: float
    occasions_vary_pct: float | None
    cells: list[CellRatio]
    worse: list[Worse]
    undecided: list[str]
    refused: list[Refused]
    outcomes: list[OutcomeChange]
    only_a: list[str]
    only_b: list[str]
    differences: list[Different]
    labels: dict[str, str]

    @property
    def compared(self) -> dict[str, str]:
        """The labels of the compared cells."""
        return {c.cell: self.labels[c.cell] for c in self.cells}

    @property
    def changed(self) -> bool:
        return CHANGES in {c.verdict for c in self.cells} or bool(self.outcomes)


def in_words(labels: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """What all cells share of device, engine, model, workload and settings; and for each cell, by its id, the rest.

    >>> in_words({"l4/hf/opt/chat/a": "batches of 8, cache offloaded", "l4/hf/opt/chat/b": "batches of 8"})
    ('l4, hf, opt, chat, batches of 8', {'l4/hf/opt/chat/a': 'cache offloaded', 'l4/hf/opt/chat/b': 'batches of 8'})
    """
    parts = {name: [*name.split("/", 4)[:4], *label.split(", ")] for name, label in labels.items()}
    cells_with = Counter(part for texts in parts.values() for part in dict.fromkeys(texts))
    shared = [part for part in cells_with if cells_with[part] == len(parts)]
    return ", ".join(shared), {
        name: ", ".join(part for part in texts if part not in shared) or labels[name] for name, texts in parts.items()
    }


def in_order(one: Run, other: Run) -> tuple[Run, Run]:
    """The two runs, the earlier one first; as given if it is not known when one began."""
    later = one.began is not None and other.began is not None and other.began < one.began
    return (other, one) if later else (one, other)


def why_not(a: RunCell, b: RunCell) -> list[str]:
    """Every reason not to compare two cells, or only their outcomes if these differ; empty if they may be compared.

    They may differ in what a comparison examines: host, device, processor, versions, and the settings that an engine
    chooses because of these; not in what the study specifies: weights, requests, protocol.
    """
    reasons = [f"its numbers are {a.source} in A and {b.source} in B"] * (a.source != b.source)
    content = [
        f"{d.path} is {value_text(d.a)} in A and {value_text(d.b)} in B" for d in differences(a.content, b.content)
    ]
    if content:
        more = [f"and {len(content) - _MOST_NAMED} more"] * (len(content) > _MOST_NAMED)
        reasons.append(f"weights or requests differ: {'; '.join(content[:_MOST_NAMED] + more)}")
    if a.outcome != b.outcome:
        return reasons
    sides = {"A": a, "B": b}
    if undefined := [name for name, cell in sides.items() if not cell.comparable]:
        reasons.append(f"in {' and '.join(undefined)} it was measured with another definition than the study's")
    for name, words in (("protocol", "measured by protocol"), ("dtype", "computed in")):
        of_a, of_b = (", ".join(cell.environment.get(name, ["an unknown one"])) for cell in sides.values())
        if of_a != of_b:
            reasons.append(f"it was {words} {of_a} in A and {of_b} in B")
    for (name, cell), (key, words) in product(sides.items(), (("lock_sha256", "locks"), ("processor", "processors"))):
        if len(cell.environment.get(key, [])) > 1:
            reasons.append(f"in {name} its starts were measured with several {words}")
    if a.began is not None and (a.began, a.environment.get("host")) == (b.began, b.environment.get("host")):
        reasons.append("A and B hold the same measurement of it")
    return reasons


def comparison(earlier: Sequence[Run], now: Run, occasions_vary_pct: float | None = None) -> Comparison:
    """Compare a run with the mean of earlier ones in which a cell may be compared with it, by the margin of the latest
    of them; `occasions_vary_pct` is the standard deviation between occasions, or None for that of each kind of device.
    """
    runs = [*sorted(earlier, key=lambda run: run.began or ""), now]
    latest, found = runs[-2], list(_ended_pairs(runs))
    ended = [(x, y, why) for run, x, y, why in found if run is latest]
    allowed = [(x, y) for _, x, y, why in found if not why]
    measured: dict[tuple[str, str], list[tuple[Mean, Mean]]] = defaultdict(list)
    for x, y in allowed:
        of_now = {mean.measure: mean for mean in y.means} if x.outcome == y.outcome == OK else {}
        for mean in x.means:
            if mean.measure in of_now:
                measured[x.id, mean.measure].append((mean, of_now[mean.measure]))
    cells = _cell_ratios(measured, latest.margin_pct, occasions_vary_pct)
    worse_ones = list(_worse(cells, allowed, latest.margin_pct))
    decided = {c.cell for c in cells} - {c.cell for c in cells if c.verdict == NOT_DECIDED}
    decided |= {w.cell for w in worse_ones}
    names, names_now = (dict.fromkeys(cell.id for cell in run.cells) for run in (latest, now))
    return Comparison(
        study_a=latest.study,
        study_b=now.study,
        began_a=latest.began,
        began_b=now.began,
        margin_pct=latest.margin_pct,
        occasions_vary_pct=occasions_vary_pct,
        cells=cells,
        worse=worse_ones,
        undecided=[cell.id for cell in latest.cells if cell.outcome == OK and cell.id not in decided],
        refused=[
            Refused(cell=x.id, why=why) for x, y, why in ended if why and (x.outcome != y.outcome or x.outcome == OK)
        ],
        outcomes=[
            OutcomeChange(cell=x.id, a=x.outcome, b=y.outcome, reason=y.reason or x.reason)
            for x, y, why in ended
            if x.outcome != y.outcome and not why
        ],
        only_a=[name for name in names if name not in names_now],
        only_b=[name for name in names_now if name not in names],
        differences=[
            *counted(d for x, y, _ in ended for d in differences(x.effective, y.effective) if None not in (d.a, d.b)),
            *counted(d for x, y, _ in ended for d in differences(_environment(x), _environment(y))),
        ],
        labels={cell.id: cell.label for cell in (*now.cells, *latest.cells)},
    )


def _ended_pairs(runs: Sequence[Run]) -> Iterator[tuple[Run, RunCell, RunCell, list[str]]]:
    """Each cell of an earlier run, the same cell of the last one, and why they may not be compared; the latest earlier
    run comes first."""
    cells = [(number, cell) for number, run in enumerate(runs) for cell in run.cells]
    table = pd.DataFrame([(cell.id, number) for number, cell in cells], columns=["cell_id", RUN])
    _, found = pairs(table.assign(sample=range(len(cells))), RUN)
    for a, b in sorted(zip(found["sample_a"], found["sample_b"], strict=True), key=lambda pair: -cells[pair[0]][0]):
        (number, x), (_, y) = cells[a], cells[b]
        if MISSING not in (x.outcome, y.outcome):
            yield runs[number], x, y, why_not(x, y)


def _worse(cells: Iterable[CellRatio], pairs: Iterable[tuple[RunCell, RunCell]], margin_pct: float) -> Iterator[Worse]:
    """Everything that became worse, the largest change of a measure first. KV tokens and outcomes are compared with
    every earlier run, the latest first."""
    for c in sorted(cells, key=lambda c: -c.size):
        if c.worse:
            a, b = (column(c.measure).text(value) for value in (c.a, c.b))
            yield Worse(cell=c.cell, measure=c.measure, a=a, b=b, ratio=ratio_text(c))
    others: dict[tuple[str, str], Worse] = {}
    for x, y in pairs:
        tokens, now = map(_kv_tokens, (x, y))
        if x.outcome == y.outcome == OK and tokens and now and now < tokens / (1 + margin_pct / 100):
            words = {"a": number(tokens), "b": number(now), "ratio": number(now / tokens)}
            others.setdefault((x.id, KV_TOKENS), Worse(cell=x.id, measure=KV_TOKENS, **words))
        if x.outcome == OK and y.outcome not in (OK, INVALID):
            others.setdefault((x.id, OF_OUTCOME), Worse(cell=x.id, measure=OF_OUTCOME, a=x.outcome, b=y.outcome))
    yield from others.values()


def _kv_tokens(cell: RunCell) -> float | None:
    blocks, size = cell.effective.get("num_gpu_blocks"), cell.effective.get("block_size")
    return float(blocks) * size if isinstance(blocks, int | float) and isinstance(size, int | float) else None


def _environment(cell: RunCell) -> dict[str, str]:
    return {name: ", ".join(values) for name, values in cell.environment.items()}


def _cell_ratios(
    measured: Mapping[tuple[str, str], Sequence[tuple[Mean, Mean]]], margin_pct: float, vary_pct: float | None
) -> list[CellRatio]:
    """The ratios of B over A of each cell and measure, from its means in each earlier run and now; the error of the
    verdicts is that of all of them together."""
    if not measured:
        return []
    a = _mean_of([[earlier for earlier, _ in means] for means in measured.values()])
    b = _mean_of([[means[0][1]] for means in measured.values()])
    names = list(measured)
    comparisons = compare_occasions(a, b, vary_pct, np.array([on_cpu(cell) for cell, _ in names]))
    ratio, low, high = comparisons.interval()
    verdict = verdicts(comparisons, margin_pct)
    is_worse = worse(comparisons, np.array([bool(column(measure).more) for _, measure in names]), margin_pct)
    return [
        CellRatio(
            cell=cell,
            measure=measure,
            a=math.exp(a.log_mean[i]),
            b=math.exp(b.log_mean[i]),
            ratio=float(ratio[i]),
            low=finite(low[i]),
            high=finite(high[i]),
            verdict=str(verdict[i]),
            worse=bool(is_worse[i]),
        )
        for i, (cell, measure) in enumerate(names)
    ]


def ratio_text(row: CellRatio) -> str:
    ends = "no interval" if row.low is None or row.high is None else f"{number(row.low)} to {number(row.high)}"
    return f"{number(row.ratio)} ({ends})"


def on_cpu(cell: str) -> bool:
    """Whether a cell, by its id, is on a CPU. A device that is not in the catalog counts as one."""
    device = load_gpus().get(cell.split("/")[0])
    return device is None or device.kind == "cpu"


def _mean_of(parts: Iterable[Sequence[Mean]]) -> Means:
    rows = []
    for part in parts:
        log, squared, df = np.array([(mean.log_mean, mean.squared_error, mean.df) for mean in part], dtype=float).T
        rows.append((log.mean(), *added(*map(Error, squared / len(part) ** 2, df)), len(part)))
    mean, variance, df, occasions = (np.array(column) for column in zip(*rows, strict=True))
    return Means(mean, Error(variance, df), occasions)

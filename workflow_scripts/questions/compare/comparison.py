"""Compare two studies by their digests, cell by cell.

docs/report.md explains the result.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.columns import column
from workflow_scripts.common.records import Record
from workflow_scripts.common.wording import finite, number
from workflow_scripts.questions.compare.digest import Digest, DigestCell, Mean
from workflow_scripts.statistics.comparisons import CHANGES, NOT_DECIDED, verdicts
from workflow_scripts.statistics.errors import Error, added
from workflow_scripts.statistics.occasions import Means, compare_occasions, worse
from workflow_scripts.tables.differences import Difference, Different, by_itself, counted, differences, value_text
from workflow_scripts.tables.measurements import SIMULATED

MISSING = "missing"
# Maximum number of differing weights or requests that a sentence names.
MOST_NAMED = 3


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
    scope: str | None
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


class Comparison(Record):
    """What two studies have in common, and how they differ.

    `began_a` and `began_b`: when the first repeat of each began, None if not known; `by_itself`: settings that took
    effect and differ, although a cell asks for the same in both; `labels`: each cell's settings in words, by its id.
    """

    study_a: str
    study_b: str
    began_a: str | None
    began_b: str | None
    margin_pct: float
    occasions_vary_pct: float | None
    cells: list[CellRatio]
    refused: list[Refused]
    outcomes: list[OutcomeChange]
    only_a: list[str]
    only_b: list[str]
    by_itself: list[Different]
    differences: list[Different]
    labels: dict[str, str]

    @property
    def open_without_1(self) -> int:
        """How many measures are not decided although their intervals exclude 1."""
        open_ones = (c for c in self.cells if c.verdict == NOT_DECIDED)
        return sum(c.low is not None and c.high is not None and not c.low <= 1 <= c.high for c in open_ones)

    @property
    def compared_in_words(self) -> tuple[str, dict[str, str]]:
        """The compared cells, as `in_words` gives them."""
        return in_words({c.cell: self.labels[c.cell] for c in self.cells})

    @property
    def changed(self) -> bool:
        return CHANGES in {c.verdict for c in self.cells} or bool(self.outcomes)


def in_words(labels: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """What all cells share of device, engine, model, workload and settings; and for each cell, by its id, the rest.

    >>> in_words({"l4/hf/opt/chat/a": "batches of 8, cache offloaded", "l4/hf/opt/chat/b": "batches of 8"})
    ('l4, hf, opt, chat, batches of 8', {'l4/hf/opt/chat/a': 'cache offloaded', 'l4/hf/opt/chat/b': 'batches of 8'})
    """
    parts = {name: [*name.split("/", 4)[:4], *label.split(", ")] for name, label in labels.items()}
    cells_with = Counter(part for of in parts.values() for part in dict.fromkeys(of))
    shared = [part for part in cells_with if cells_with[part] == len(parts)]
    return ", ".join(shared), {
        name: ", ".join(part for part in of if part not in shared) or labels[name] for name, of in parts.items()
    }


def in_order(one: Digest, other: Digest) -> tuple[Digest, Digest]:
    """The two runs, the earlier one first; as given if it is not known when one began."""
    later = one.began is not None and other.began is not None and other.began < one.began
    return (other, one) if later else (one, other)


def why_not(a: DigestCell, b: DigestCell) -> list[str]:
    """Every reason not to compare two cells, or only their outcomes if these differ; empty if they may be compared.

    They may differ in what a comparison examines: host, device, processor, versions, and the settings that an engine
    chooses because of these; not in what the study specifies: weights, requests, protocol.
    """
    reasons = _reasons(a, b) if a.outcome == b.outcome else (_source(a, b), _content(a, b))
    return [why for why in reasons if why]


def _reasons(a: DigestCell, b: DigestCell) -> Iterator[str | None]:
    sides = (("A", a), ("B", b))
    if undefined := [name for name, of in sides if not of.comparable]:
        yield f"in {' and '.join(undefined)} it was measured with another definition than the study's"
    yield _source(a, b)
    yield _unlike("protocol", "it was measured by protocol {} in A and {} in B", a, b)
    yield _content(a, b)
    yield _unlike("dtype", "it was computed in {} in A and in {} in B", a, b)
    kinds = (("lock_sha256", "locks"), ("processor", "processors"))
    several = [(name, words) for key, words in kinds for name, of in sides if len(of.environment.get(key, [])) > 1]
    if several:
        yield "in {} its starts were measured with several {}".format(*several[0])
    if a.began is not None and (a.began, a.environment.get("host")) == (b.began, b.environment.get("host")):
        yield "A and B hold the same measurement of it"


def _source(a: DigestCell, b: DigestCell) -> str | None:
    if a.source != b.source:
        return f"its numbers are {a.source} in A and {b.source} in B"
    return "its numbers are simulated and say nothing about a GPU" if a.source == SIMULATED else None


def _unlike(name: str, words: str, *cells: DigestCell) -> str | None:
    values_a, values_b = (", ".join(of.environment.get(name, ["an unknown one"])) for of in cells)
    return words.format(values_a, values_b) if values_a != values_b else None


def _content(a: DigestCell, b: DigestCell) -> str | None:
    clauses = [
        f"{d.path} is {value_text(d.a)} in A and {value_text(d.b)} in B" for d in differences(a.content, b.content)
    ]
    more = [f"and {len(clauses) - MOST_NAMED} more"] if len(clauses) > MOST_NAMED else []
    return f"weights or requests differ: {'; '.join(clauses[:MOST_NAMED] + more)}" if clauses else None


def comparison(a: Digest, b: Digest, occasions_vary_pct: float | None = None) -> Comparison:
    """Compare study B with study A, by A's margin; `occasions_vary_pct` is the standard deviation between occasions, or
    None for that of each kind of device.
    """
    of_a, of_b = ({cell.id: cell for cell in digest.cells} for digest in (a, b))
    common = [(cell, of_b[name], why_not(cell, of_b[name])) for name, cell in of_a.items() if name in of_b]
    ended = [(x, y, why) for x, y, why in common if MISSING not in (x.outcome, y.outcome)]
    alike = [(x, y, why) for x, y, why in ended if x.outcome == y.outcome == "ok"]
    otherwise = [(x, y, why) for x, y, why in ended if x.outcome != y.outcome]
    compared = [(x, y) for x, y, why in alike if not why]
    measured = [
        ((x.id, mean.measure), [mean], [other])
        for x, y in compared
        for mean in x.means
        for other in y.means
        if mean.measure == other.measure
    ]
    of_study = differences(a.settings, b.settings)
    return Comparison(
        study_a=a.study,
        study_b=b.study,
        began_a=a.began,
        began_b=b.began,
        margin_pct=a.margin_pct,
        occasions_vary_pct=occasions_vary_pct,
        cells=cell_ratios(measured, a.margin_pct, occasions_vary_pct),
        refused=[Refused(cell=x.id, why=why) for x, _, why in [*alike, *otherwise] if why],
        outcomes=[
            OutcomeChange(cell=x.id, a=x.outcome, b=y.outcome, reason=y.reason or x.reason)
            for x, y, why in otherwise
            if not why
        ],
        only_a=[name for name in of_a if name not in of_b],
        only_b=[name for name in of_b if name not in of_a],
        by_itself=by_itself((x.effective, y.effective) for x, y, _ in ended),
        differences=[
            *(Different(what=f"study: {d.path}", a=d.a, b=d.b, cells=0, others=0) for d in of_study),
            *counted(difference for x, y, _ in ended for difference in _of_cell(x, y)),
        ],
        labels={name: cell.label or name.split("/", 4)[-1] for name, cell in (of_b | of_a).items()},
    )


# A cell and its measure, with the means of each occasion of A and of B, each of which counts as much.
Measured = tuple[tuple[str, str], Sequence[Mean], Sequence[Mean]]


def cell_ratios(measured: Sequence[Measured], margin_pct: float, vary_pct: float | None) -> list[CellRatio]:
    """The ratios of B over A; the error of the verdicts is that of all of them together."""
    if not measured:
        return []
    names, *sides = zip(*measured, strict=True)
    a, b = map(_means, sides)
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
            scope=comparisons.scope[i],
            verdict=str(verdict[i]),
            worse=bool(is_worse[i]),
        )
        for i, (cell, measure) in enumerate(names)
    ]


def ratio_text(of: CellRatio) -> str:
    ends = "no interval" if of.low is None or of.high is None else f"{number(of.low)} to {number(of.high)}"
    return f"{number(of.ratio)} ({ends})"


def on_cpu(cell: str) -> bool:
    """Whether a cell, by its id, is on a CPU. A device that is not in the catalog counts as one."""
    device = load_gpus().get(cell.split("/")[0])
    return device is None or device.kind == "cpu"


def _means(parts: Iterable[Sequence[Mean]]) -> Means:
    rows = []
    for part in parts:
        log, squared, df = np.array([(mean.log_mean, mean.squared_error, mean.df) for mean in part], dtype=float).T
        rows.append((log.mean(), *added(*map(Error, squared / len(part) ** 2, df)), len(part)))
    mean, variance, df, occasions = (np.array(column) for column in zip(*rows, strict=True))
    return Means(mean, Error(variance, df), occasions)


def _of_cell(x: DigestCell, y: DigestCell) -> Iterator[Difference]:
    fields_a, fields_b = ({name: ", ".join(values) for name, values in of.environment.items()} for of in (x, y))
    return differences(fields_a, fields_b)

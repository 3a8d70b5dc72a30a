"""What checks of claims read: the tables of a study as rows whose attributes are the columns, and published tables."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd

from workflow_scripts.catalog.published import Published
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.questions.comparisons import table as comparisons
from workflow_scripts.questions.comparisons.pairs import ENGINE, overall
from workflow_scripts.questions.devices import table as devices
from workflow_scripts.questions.memory import fragmentation
from workflow_scripts.tables import cell_intervals
from workflow_scripts.tables.summary import IDENTITY, PLACE, RATE, STEADY, comparable_rows, numbers, reduced

# The tables that checks read, beside what was measured.
TABLES_READ = [str(part.SCHEMA.name) for part in (cell_intervals, comparisons, devices, fragmentation)]

LENGTHS = ("prompt_tokens", "output_tokens")
# A row of a table: a number that is not known is NaN, a text or flag None.
ClaimRow = Any


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float
    scope: str = ""

    def __truediv__(self, other: "Estimate") -> "Estimate":
        """The quotient with the widest interval that the two allow."""
        return Estimate(self.value / other.value, self.low / other.high, self.high / other.low)

    def ends(self) -> str:
        return f"95 % interval {self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class StudyTables:
    """The tables of a study by name, and the published data; `cells` is the frame of `tables.measurements`."""

    frames: Mapping[str, pd.DataFrame]
    published: Published

    @cached_property
    def cells(self) -> list[ClaimRow]:
        """One row per cell that counts, with every knob: the values of its measures, means of what else was measured,
        and its first text; `prompt_tokens_mean` and `output_tokens_mean` are of all requests of its workload."""
        return _rows(self._cells)

    @cached_property
    def _cells(self) -> pd.DataFrame:
        cells = reduced(comparable_rows(self.frames["cells"]), IDENTITY, "mean")
        values = self.frames["intervals"].pivot(index="cell_id", columns="measure", values="value")
        stated = {str(name): values[name].reindex(cells["cell_id"]).array for name in values}
        served = cells.groupby(["study", "workload"])[["num_requests", *LENGTHS]].transform("sum")
        means = {f"{length}_mean": served[length] / served["num_requests"] for length in LENGTHS}
        return cells.assign(
            **stated, **means, **{name: nan for knob in every_knob() if (name := f"knob_{knob}") not in cells}
        )

    def intervals(self, measure: str) -> dict[str, Estimate]:
        """The mean of a measure of each cell that has one with its interval, by the cell's id."""
        rows = self.frames["intervals"].dropna(subset="low").query("measure == @measure")
        return {row.cell_id: Estimate(row.value, row.low, row.high, row.scope) for row in _rows(rows)}

    def with_cells(self, rows: Iterable[ClaimRow]) -> Iterator[tuple[ClaimRow, ClaimRow]]:
        """Each row with its cell, if it counts."""
        return pairs(rows, self.cells, "cell_id")

    def _compared(self, **equal: Any) -> pd.DataFrame:
        """Comparisons that have a verdict by their rate, with the cell `b` also as `cell_id`."""
        rows = self.frames["comparisons"]
        rows = rows[rows["verdict"].notna() & rows["metric"].isin([RATE, STEADY])]
        for name, value in equal.items():
            rows = rows[rows[name].eq(value)]
        return rows.assign(cell_id=rows["b"])

    def effects(self, setting: str) -> list[ClaimRow]:
        """Comparisons of values of a setting with the first one."""
        return _rows(self._compared(name=setting, from_first=True))

    def overall(self, setting: str) -> list[ClaimRow]:
        """What all values of a setting show together, as `comparisons.pairs.overall` says."""
        return _rows(overall(self.frames["comparisons"], setting).assign(cell_id=lambda rows: rows["b"]))

    def device_ratios(self) -> list[ClaimRow]:
        """Ratios of output tokens/s of two devices, with what explains them."""
        return _rows(self._compared(kind=comparisons.DEVICE, metric=RATE).merge(self.frames["devices"], on=["a", "b"]))

    def engine_gains(self, batched: bool) -> list[ClaimRow]:
        """vLLM over HuggingFace with single requests, or in static batches, where the two are comparable; with
        `sequences` of vLLM and the `batch_size` of HuggingFace."""
        rows, cells = self._compared(kind=ENGINE, engine=VLLM.name), self._cells.set_index("cell_id")
        rows = rows.assign(
            sequences=rows["cell_id"].map(cells["max_concurrency_allowed"]),
            batch_size=rows["a"].map(cells["knob_batch_size"]),
        )
        return _rows(rows[rows["batch_size"].gt(1) if batched else rows["batch_size"].eq(1)])

    def fastest_gains(self, batched: bool) -> list[ClaimRow]:
        """Of these the one of the fastest cells of each place."""
        return highest(
            self.engine_gains(batched), lambda gain: (gain.mean_b, gain.mean_a), lambda gain: _key(gain, PLACE)
        )

    def waste(self, layout: str, by: Sequence[str] = PLACE, block_size: int | None = None) -> list[ClaimRow]:
        """What a layout of the whole cache wastes, and columns of the cells: as on the page, medians of rows alike in
        `by`."""
        waste = self.frames["fragmentation"]
        waste = waste[waste["layout"].eq(layout)]
        if block_size is not None:
            waste = waste[waste["block_size"].eq(block_size)]
        return _rows(reduced(waste.merge(self._cells, on="cell_id", suffixes=("", "_of_cell")), by, "median"))


def pairs(rows: Iterable[ClaimRow], others: Iterable[ClaimRow], same: str) -> Iterator[tuple[ClaimRow, ClaimRow]]:
    """Each row beside each of the others that has equal values in these columns."""
    beside = defaultdict(list)
    for other in others:
        beside[_key(other, same.split())].append(other)
    return ((row, other) for row in rows for other in beside[_key(row, same.split())])


def highest(found: Sequence[Any], by: Callable[[Any], Any], per: Callable[[Any], object]) -> list[Any]:
    """For each value of `per` the one with the highest `by`, in the order of `found`."""
    best: dict[object, Any] = {}
    for each in sorted(found, key=by, reverse=True):
        best.setdefault(per(each), each)
    return [each for each in found if each is best[per(each)]]


def _key(row: ClaimRow, columns: Iterable[str]) -> tuple[object, ...]:
    values = (getattr(row, name) for name in columns)
    return tuple(None if value != value else value for value in values)  # NaN is not equal to itself


def _rows(frame: pd.DataFrame) -> list[ClaimRow]:
    numeric = set(frame.select_dtypes("number").columns)
    columns = [
        numbers(column).tolist() if name in numeric else column.astype(object).where(column.notna(), None)
        for name, column in frame.items()
    ]
    names = [str(name) for name in frame]
    return [SimpleNamespace(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]

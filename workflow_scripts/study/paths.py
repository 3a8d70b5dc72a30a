"""Where everything of a study is below `results/{study}/`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workflow_scripts.study.grid import Cell

CELL_PATTERN = "{gpu}/{engine}/{model}/{workload}/{knobs}"


@dataclass(frozen=True)
class StudyPaths:
    """Paths of one study; `results` is the folder that holds all studies."""

    results: Path
    study: str

    @cached_property
    def root(self) -> Path:
        """The study's own folder."""
        return self.results / self.study

    def cell(self, cell: Cell | str) -> Path:
        """Folder of a cell (given as a cell, as its id, or as the pattern of all cells)."""
        return self.root / "cells" / (cell.id if isinstance(cell, Cell) else cell)

    def log(self, cell: Cell | str) -> Path:
        """Log of the measuring command."""
        return self.cell(cell) / "measure.log"

    def outcome(self, cell: Cell | str) -> Path:
        """The outcome record of a cell; it exists only when the cell has ended."""
        return self.cell(cell) / "outcome.json"

    def model(self, model: str, key: str) -> Path:
        """Folder with a model's `config.json` and tokenizer; `key` is the `model_key` of its definition."""
        return self.root / "prepared" / "models" / f"{model}-{key}"

    def workload(self, model: str, workload: str, key: str) -> Path:
        """Requests of a workload, tokenised for a model; `key` is the `workload_key` of the cell's definition.

        The warm-up requests are beside it.
        """
        return self.root / "prepared" / "workloads" / model / workload / key / "workload.jsonl"

    def device(self, gpu: str) -> Path:
        """Record of the rates at which a device copies, reads and multiplies."""
        return self.root / "prepared" / "devices" / f"{gpu}.json"

    def batch(self, gpu: str, key: str) -> Path:
        """Which cells share a cluster job."""
        return self.root / "batches" / gpu / f"{key}.json"

    def ended(self, gpu: str) -> Path:
        """Which cells have ended on a GPU."""
        return self.root / "batches" / gpu / "ended.json"

    def lock(self, cell: Cell | str) -> Path:
        """Lock held by the process that measures a cell."""
        return self.root / "locks" / f"{(cell.id if isinstance(cell, Cell) else cell).replace('/', '--')}.lock"

    def wrong_nodes(self, gpu: str) -> Path:
        """Folder with one file per cluster node that did not have the GPU type asked for."""
        return self.root / "wrong_nodes" / gpu

    def parsed(self, gpu: str) -> Path:
        """Folder with the tables of facts of one GPU's cells."""
        return self.root / "parsed" / gpu

    @property
    def capacity(self) -> Path:
        """Predicted KV capacity, one record per cell."""
        return self.root / "prepared" / "capacity.jsonl"

    @property
    def plan(self) -> Path:
        """Folder of the plan: what every cell should do, what knobs can change and what it costs."""
        return self.root / "plan"

    @property
    def tables(self) -> Path:
        """Tidy tables and verdicts."""
        return self.root / "tables"

    @property
    def figures(self) -> Path:
        """Figures of the report."""
        return self.root / "figures"

    @property
    def report(self) -> Path:
        """The one-page report."""
        return self.root / "report.html"

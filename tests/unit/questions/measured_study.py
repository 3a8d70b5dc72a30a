"""A study made up for tests, whose starts end when they are asked to."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import pandas as pd

from tests.unit.made_studies import end_cell, fixed, write_study
from tests.unit.questions.synthetic_cells import cell, starts_table
from workflow_scripts.questions.knobs.decide_round import decide_round
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.rounds import RoundPlan
from workflow_scripts.study.study_file import load_study

# Device seconds of a start.
SECONDS = 90.0


class MeasuredStudy:
    """A study of one workload; `rate` gives the output tokens/s of a cell in its start of this number."""

    def __init__(
        self,
        folder: Path,
        knobs: Mapping[str, list[int]],
        rate: Callable[[Cell, int], float],
        gpu: str | list[str] = "h200",
        **changes: object,
    ) -> None:
        sweep = {"gpu": gpu, "model": "llama-3.1-8b-instruct", "knobs": knobs}
        self.file = write_study(folder, sweep, workloads={"chat": fixed()}, **changes)
        self.study, self.paths = load_study(self.file), StudyPaths(folder / "results", "try")
        self.cells = {one.id: one for one in expand(self.study)}
        self.rate = rate

    def end(self, starts: Iterable[tuple[str, int]], number: int | None = None) -> None:
        """Let starts end, in the round `number`, or each in that of its own number."""
        for name, start in starts:
            at, phases_s = {"start": start, "round": number or start}, {"start": SECONDS - 30, "measure": 30.0}
            end_cell(self.study, self.paths, self.cells[name], start, start=at, phases_s=phases_s)

    def table(self) -> pd.DataFrame:
        rows = []
        for one in self.cells.values():
            rates = [self.rate(one, start) for start in self.paths.outcomes(one)]
            state = {} if rates else {"outcome": "missing", "start": None, "round": None}
            rows.append(cell(one.knobs.set_values(), rates or [math.nan], gpu=one.gpu, **state))
        return starts_table(*rows)

    def decide(self, number: int, gpus: Collection[str] = ("h200",)) -> RoundPlan:
        return decide_round(self.study, self.paths, self.table(), number, gpus)

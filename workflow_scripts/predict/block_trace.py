"""Trace which KV blocks each request of a cell gets, shares and gives back, step by step.

    kvsweep trace-blocks --study config/studies/kv_pressure.yaml --out blocks.csv \\
        --cell h100-sxm/vllm/llama-3.1-8b-instruct/chat/bs16-seqs256-len2048-pool513

One row per event. The trace is computed from the lengths of the requests with the rules of vLLM's scheduler and block
manager; no engine runs. docs/schedule.md describes the events.
"""

from argparse import Namespace
from dataclasses import replace

import pandas as pd

from workflow_scripts.common.command import RESULTS, STUDY, command, option, out
from workflow_scripts.common.csv_rows import with_texts
from workflow_scripts.common.files import write_text
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.predict.kv_pool import BlockEvent
from workflow_scripts.predict.predictions import tasks_of
from workflow_scripts.predict.schedule import ScheduleError
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.speed import CellTask, Task, step_time_of
from workflow_scripts.study.grid import COORDINATES, find_cell
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import StudyError
from workflow_scripts.study.study_file import load_study

OF_CELL = ("cell_id", *COORDINATES, "knobs")
COLUMNS = (*OF_CELL, "block_size", "num_blocks", *BlockEvent._fields, "source")


def trace_of_cell(task: Task, cell: CellTask) -> pd.DataFrame:
    """The events of a cell. Raises ScheduleError if it has no schedule of blocks."""
    if not isinstance(task.decides, SchedulerSettings):
        raise ScheduleError(f"{cell.record.engine}: static batches have no KV blocks")
    settings = replace(task.decides, num_blocks=cell.record.num_blocks)
    events: list[BlockEvent] = []
    make_schedule(task.requests, settings, step_time_of(cell, task.requests), events=events)
    of_cell = {name: getattr(cell.record, name) for name in OF_CELL}
    of_cell |= {"block_size": settings.block_size, "num_blocks": settings.num_blocks}
    rows = [of_cell | event._asdict() | {"source": "predicted"} for event in events]
    texts = (*OF_CELL, "event", "source")
    kinds = {name: "string" if name in texts else "Int64" for name in COLUMNS}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(kinds)


@command(
    "trace-blocks",
    STUDY,
    RESULTS,
    option("--cell", required=True, help="the cell's ID, as in plan.csv"),
    out("CSV file to write"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    cell = find_cell(study, args.cell)
    tasks, untraced = tasks_of(study, [cell], StudyPaths(args.results, study.name).prepared)
    if untraced:
        raise StudyError(f"cell {args.cell}: {untraced[0].infeasible or untraced[0].unknown}")
    try:
        table = trace_of_cell(tasks[0], tasks[0].cells[0])
    except ScheduleError as e:
        raise StudyError(f"cell {args.cell}: {e}") from None
    write_text(args.out, with_texts(table).to_csv(index=False))

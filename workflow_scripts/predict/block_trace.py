"""Trace which KV blocks each request of a cell gets, shares and gives back, step by step.

    kvsweep trace-blocks --study config/studies/kv_pressure.yaml --out blocks.csv \\
        --cell h100-sxm/vllm/llama-3.1-8b-instruct/chat/bs16-seqs256-len2048-pool513

One row per event. The trace is computed from the lengths of the requests with the rules of vLLM's scheduler and block
manager; no engine runs. docs/schedule.md describes the events.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from workflow_scripts.common.command import RESULTS, STUDY, command, option, out
from workflow_scripts.common.csv_text import with_texts
from workflow_scripts.common.files import write_text
from workflow_scripts.engines.steps import SchedulerSettings
from workflow_scripts.predict.kv_pool import BlockEvent
from workflow_scripts.predict.predictions import tasks_of
from workflow_scripts.predict.schedule import RequestLengths, ScheduleError, StepTime
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.speed import CellTask, Task, step_time_of
from workflow_scripts.study.grid import COORDINATES, Cell, find_cell
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study, StudyError
from workflow_scripts.study.study_file import load_study

# Requests of each workload that the report shows: enough to fill small pools, traced in well under a second.
MOST_REQUESTS = 64
OF_CELL = ("cell_id", *COORDINATES, "knobs")
COLUMNS = (*OF_CELL, "block_size", "num_blocks", *BlockEvent._fields, "source")


def trace_blocks(
    requests: RequestLengths, settings: SchedulerSettings, step_time: StepTime | None = None
) -> list[BlockEvent]:
    """Everything that happens to KV blocks until all requests end; arguments and errors as in `make_schedule`."""
    events: list[BlockEvent] = []
    make_schedule(requests, settings, step_time, events=events)
    return events


def trace_of_study(study: Study, cells: Sequence[Cell], plan: pd.DataFrame, prepared: Path | None) -> pd.DataFrame:
    """The events of the first requests of each workload, in the cell whose KV cache holds the fewest tokens. Of cells
    with equal caches it is the one with the most tokens found in its prefix cache. `plan` has the predictions of the
    cells. A workload without a cell whose scheduler and cache are known has no rows."""
    predicted = plan[plan["kv_cache_tokens"].notna() & plan["steps"].notna()]
    order = predicted.sort_values(["kv_cache_tokens", "cached_tokens"], ascending=[True, False], kind="stable")
    chosen = set(order.drop_duplicates("workload")["cell_id"])
    tasks, _ = tasks_of(study, [cell for cell in cells if cell.id in chosen], prepared)
    parts = []
    for task in tasks:
        for cell in task.cells:
            try:
                parts.append(trace_of_cell(task, cell, MOST_REQUESTS))
            except ScheduleError:
                continue  # the plan says why
    return pd.concat([_table([]), *parts], ignore_index=True) if parts else _table([])


def trace_of_cell(task: Task, cell: CellTask, most: int | None = None) -> pd.DataFrame:
    """The events of a cell, or of its first `most` requests. Raises ScheduleError if it has no schedule of blocks."""
    if not isinstance(task.decides, SchedulerSettings):
        raise ScheduleError(f"{cell.record.engine}: static batches have no KV blocks")
    requests = task.requests[:most]
    settings = replace(task.decides, num_blocks=cell.record.num_blocks)
    events = trace_blocks(requests, settings, step_time_of(cell, requests))
    of_cell = {name: getattr(cell.record, name) for name in OF_CELL}
    sizes = {"block_size": settings.block_size, "num_blocks": settings.num_blocks}
    return _table([of_cell | sizes | event._asdict() | {"source": "predicted"} for event in events])


def _table(rows: list[dict[str, object]]) -> pd.DataFrame:
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

"""Write what the steps of cells read and compute: the data to which a calibration is fitted.

    kvsweep step-work --study config/studies/demo.yaml --out work.parquet
    kvsweep step-work --published config/published/concurrency_sweeps.csv --out work.parquet

One row per segment of a cell's schedule: `steps`, and bytes and operations of its first step with their growth, as in
`step_time.StepWork`; each row also has the cell's `cell_id`, `gpu`, `engine`, `model`, `dtype` and
`output_tokens`.
"""

import csv
import io
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import models_by_repo, resolve
from workflow_scripts.common.command import command, one_of, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_bytes
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.engines.vllm_engines import VLLM
from workflow_scripts.physics.model_facts import read_model_facts
from workflow_scripts.physics.step_time import StepWork
from workflow_scripts.predict.forecast import tasks_of
from workflow_scripts.predict.schedule import RequestLengths, Schedule, ScheduleError, SchedulerSettings
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.speed import Record, schedule_for, work_of
from workflow_scripts.predict.timing import step_work
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import load_study

# vLLM's defaults for a server, and the number of prompts per client for sweeps that do not give one.
SERVER_TOKENS, BLOCK_SIZE, PROMPTS_PER_CLIENT = 2048, 16, 20


class SweepError(InputError):
    """A published sweep that cannot be read; the message says which row and why."""


def of_study(study_file: Path) -> Iterator[pd.DataFrame]:
    """The work of each cell of a study that has a schedule.

    Raises:
        StudyError, CatalogError: the study cannot be read.
    """
    study = load_study(study_file)
    tasks, _ = tasks_of(study, expand(study))
    for task in tasks:
        made: list[Schedule] = []
        for cell in task.cells:
            try:
                found = schedule_for(cell, task, made)
            except ScheduleError:
                continue
            yield _rows(work_of(found, cell, task), cell.record, cell.facts.dtype)


def of_published(path: Path) -> Iterator[pd.DataFrame]:
    """The work of each point of published sweeps: a number of clients, each with one request at a time, all equal.

    Raises:
        SweepError: a row lacks a column, or has a value that is not a number, or an unknown device or model.
    """
    models = models_by_repo()
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=1):
            try:
                model, (gpu, *others) = models[row["model"]], resolve(row["gpu"])
                clients, prompt, output = (int(row[n]) for n in ("concurrency", "prompt_tokens", "output_tokens"))
                prompts = int(row["num_prompts"] or PROMPTS_PER_CLIENT * clients)
            except KeyError as e:
                raise SweepError(f"{path}: row {number}: no column or model {e}") from None
            except ValueError as e:
                raise SweepError(f"{path}: row {number}: {e}") from None
            if others:
                raise SweepError(f"{path}: row {number}: {row['gpu']} may be {gpu.name} or {others[0].name}")
            facts = read_model_facts(model.config, dtype_on(model.dtype, gpu, {}))
            requests = RequestLengths(np.full(prompts, prompt), np.full(prompts, output))
            # A client sends its next request when it has the answer: like a waiting request that gets a free place.
            settings = SchedulerSettings(
                clients, SERVER_TOKENS, BLOCK_SIZE, facts.max_positions, async_scheduling=False
            )
            work = step_work(make_schedule(requests, settings).segments, facts)
            record = {
                "cell_id": f"published/{path.stem}/{number}",
                "gpu": gpu.name,
                "engine": VLLM.name,
                "model": model.name,
            }
            yield _rows(work, record | {"output_tokens": prompts * output}, facts.dtype)


def _rows(work: StepWork, record: Record, dtype: str) -> pd.DataFrame:
    names = ("cell_id", "gpu", "engine", "model", "output_tokens")
    return pd.DataFrame(vars(work)).assign(**{name: record[name] for name in names}, dtype=dtype)


@command(
    "step-work",
    one_of(
        option("--study", type=Path, help="a study's YAML file"),
        option("--published", type=Path, help="a CSV file such as config/published/concurrency_sweeps.csv"),
        required=True,
    ),
    out("the Parquet file to write"),
)
def main(args: Namespace) -> None:
    """Write the work of a study's cells, or of published sweeps."""
    parts = list(of_study(args.study) if args.study else of_published(args.published))
    if not parts:
        raise SweepError(f"{args.study or args.published}: no cell has a schedule")
    buffer = io.BytesIO()
    pd.concat(parts, ignore_index=True).to_parquet(buffer, index=False)
    write_bytes(args.out, buffer.getvalue())

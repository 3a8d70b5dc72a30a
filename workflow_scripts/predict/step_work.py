"""What the steps of cells read and compute: the data to which a calibration is fitted.

    python -m workflow_scripts.predict.step_work --study config/studies/demo.yaml --out work.parquet
    python -m workflow_scripts.predict.step_work --published config/published/concurrency_sweeps.csv --out work.parquet

One row per segment of a cell's schedule: `steps`, and bytes and operations of its first step with their growth, as in
`step_time.StepWork`; each row also has the cell's `cell_id`, `gpu`, `engine`, `model`, `dtype` and
`output_tokens`.
"""

import argparse
import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import CatalogError, models_by_repo, resolve
from workflow_scripts.common.command import run_command
from workflow_scripts.common.files import write_bytes
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.physics.model_facts import ModelFactsError, read_model_facts
from workflow_scripts.physics.step_time import StepWork
from workflow_scripts.predict.forecast import tasks_of
from workflow_scripts.predict.schedule import RequestLengths, Schedule, ScheduleError, SchedulerSettings
from workflow_scripts.predict.scheduler import make_schedule
from workflow_scripts.predict.speed import Record, schedule_for, work_of
from workflow_scripts.predict.timing import step_work
from workflow_scripts.study.grid import expand
from workflow_scripts.study.study_file import StudyError, load_study

# vLLM's defaults for a server, and the number of prompts per client for sweeps that do not give one.
SERVER_TOKENS, BLOCK_SIZE, PROMPTS_PER_CLIENT = 2048, 16, 20


class SweepError(ValueError):
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
                "engine": "vllm",
                "model": model.name,
            }
            yield _rows(work, record | {"output_tokens": prompts * output}, facts.dtype)


def _rows(work: StepWork, record: Record, dtype: str) -> pd.DataFrame:
    names = ("cell_id", "gpu", "engine", "model", "output_tokens")
    return pd.DataFrame(vars(work)).assign(**{name: record[name] for name in names}, dtype=dtype)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the work of a study's cells, or of published sweeps."""
    parser = argparse.ArgumentParser(
        description="Write what the steps of each cell read and compute, for `analyse.fit_calibration` to fit to.",
        epilog="example: python -m workflow_scripts.predict.step_work --study config/studies/demo.yaml --out w.parquet",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--study", type=Path, help="a YAML file under config/studies/")
    what.add_argument("--published", type=Path, help="a CSV file such as config/published/concurrency_sweeps.csv")
    parser.add_argument("--out", type=Path, required=True, help="the Parquet file to write")
    args = parser.parse_args(argv)
    try:
        parts = list(of_study(args.study) if args.study else of_published(args.published))
    except (StudyError, CatalogError, ModelFactsError, SweepError) as e:
        print(f"predict.step_work: {e}", file=sys.stderr)
        return 2
    except OSError as e:
        print(f"predict.step_work: {e.filename}: {e.strerror}", file=sys.stderr)
        return 2
    if not parts:
        print("predict.step_work: no cell has a schedule", file=sys.stderr)
        return 2
    buffer = io.BytesIO()
    pd.concat(parts, ignore_index=True).to_parquet(buffer, index=False)
    write_bytes(args.out, buffer.getvalue())
    return 0


if __name__ == "__main__":
    run_command(main)

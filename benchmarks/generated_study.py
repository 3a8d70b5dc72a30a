"""A study of any size with made-up results, to time analysis and drawing.

Nothing in it was measured: the rates follow a simple law with seeded noise, and the study's name and question say so.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.unit.made_studies import write_study
from workflow_scripts.study.definition import cell_definition, definition_sha256, resolved_models
from workflow_scripts.study.grid import Cell, expand
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.parsed_columns import table_columns
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

REPEATS = 3
REQUESTS = 24
STEPS = 40
SAMPLES = 20
MADE_UP = {"kind": "fixed", "num_prompts": REQUESTS, "prompt_tokens": 64, "output_tokens": 32}
GPUS = ("h200", "h100-sxm", "a100-pcie-80gb", "l40s")
SPEED = {"h200": 4.8, "h100-sxm": 3.35, "a100-pcie-80gb": 1.94, "l40s": 0.864}
CELLS_A_POINT = len(GPUS) * 5 * 5  # GPUs x block sizes x max-num-seqs, for each memory utilization


def write_study_file(folder: Path, cells: int, workload: Mapping[str, Any] = MADE_UP) -> Path:
    """Write a study file of about `cells` cells (a multiple of 100) on one workload; return its path."""
    steps = max(1, cells // CELLS_A_POINT)
    utilizations = [round(0.5 + 0.45 * i / steps, 4) for i in range(steps)]
    knobs = {"block_size": [8, 16, 32, 64, 128], "max_num_seqs": [1, 4, 16, 64, 256]}
    return write_study(
        folder,
        {
            "gpu": list(GPUS),
            "model": "llama-3.1-8b-instruct",
            "knobs": {**knobs, "gpu_memory_utilization": utilizations},
        },
        name=f"generated-{cells}",
        question="None: every number here is made up by a generator, to try analysis at scale.",
        repeats=REPEATS,
        workloads={"made-up": dict(workload)},
        engine_defaults={"vllm": {"max_model_len": 4096}},
    )


def write_generated_study(folder: Path, cells: int, starts: int = 1) -> Path:
    """Write such a study file with its parsed tables, of so many starts of each cell; return its path."""
    path = write_study_file(folder, cells)
    study = load_study(path)
    by_gpu: dict[str, list[Cell]] = {gpu: [] for gpu in GPUS}
    for cell in expand(study):
        by_gpu[cell.gpu].append(cell)
    for i, (gpu, of_gpu) in enumerate(by_gpu.items()):
        rng, out = np.random.default_rng(i), folder / "results" / study.name / "parsed" / gpu
        of_starts = [_frames(study, of_gpu, rng, start) for start in range(1, starts + 1)]
        out.mkdir(parents=True)
        for name, columns in table_columns().items():
            frame = pd.concat([frames[name].assign(start=start) for start, frames in enumerate(of_starts, 1)])
            frame = frame.reindex(columns=list(columns)).astype(columns)
            frame.sort_values("cell_id", kind="stable").to_parquet(out / f"{name}.parquet", index=False)
    return path


def write_outcomes(study_file: Path, results: Path, starts: int = 1) -> None:
    """Write the records of so many starts of each cell of a study, as if they had just ended."""
    study = load_study(study_file)
    paths, models = StudyPaths(results, study.name), resolved_models(study)
    at = datetime.now(UTC).isoformat()
    for cell in expand(study):
        definition = cell_definition(study, cell, models)
        outcome = Outcome(
            cell_id=cell.id,
            outcome="ok",
            definition=definition.as_json(),
            definition_sha256=definition_sha256(definition),
            phases_s={"start": 40.0, "warmup": 2.0, "measure": 10.0},
            provenance={"host": "nowhere", "ended_at": at},
        )
        for start in range(1, starts + 1):
            path = paths.outcome(cell, start)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(outcome.model_dump_json(indent=2), encoding="utf-8")


def _frames(study: Study, cells: list[Cell], rng: np.random.Generator, start: int) -> dict[str, pd.DataFrame]:
    """The parsed tables of one start of each cell, by name."""
    ids = np.array([cell.id for cell in cells])
    seqs = np.array([cell.knobs.max_concurrency for cell in cells])
    running = np.minimum(seqs, REQUESTS)
    step_s = (16.06 + 0.02 * running) / (900 * SPEED[cells[0].gpu])  # weights and some KV over the bandwidth
    step_s = step_s[:, None] * rng.normal(1, 0.004, (len(cells), REPEATS))  # (cells, repeats)
    requests = _requests(ids, running, step_s)
    return {
        "requests": requests,
        "starts": _starts(study, cells, rng, start),
        "repeats": _repeats(requests),
        "steps": _steps(ids, running, step_s),
        "trace": _trace(ids, rng),
    }


def _requests(ids: np.ndarray, running: np.ndarray, step_s: np.ndarray) -> pd.DataFrame:
    cell, repeat, request = (a.ravel() for a in np.indices((len(ids), REPEATS, REQUESTS)))
    batch, step = request // running[cell], step_s[cell, repeat]
    scheduled_s = batch * 33 * step
    return pd.DataFrame(
        {
            "cell_id": ids[cell],
            "repeat": repeat,
            "request_id": request.astype(str),
            "prompt_tokens": 64,
            "output_tokens": 32,
            "queued_s": 0.0,
            "scheduled_s": scheduled_s,
            "first_token_s": scheduled_s + 2 * step,
            "last_token_s": scheduled_s + 33 * step,
            "preemptions": 0,
            "cached_prompt_tokens": 0,
        }
    )


def _starts(study: Study, cells: list[Cell], rng: np.random.Generator, start: int) -> pd.DataFrame:
    models = resolved_models(study)
    rows = []
    for cell in cells:
        knobs = cell.knobs.set_values()
        blocks = round(40e9 * knobs["gpu_memory_utilization"] / (131072 * knobs["block_size"]))
        tokens = blocks * knobs["block_size"]
        rows.append(
            {
                "cell_id": cell.id,
                "outcome": "ok",
                "definition_sha256": definition_sha256(cell_definition(study, cell, models)),
                "attention_backend": "FLASH_ATTN",
                "host": "nowhere",
                "engine_version": "made up",
                "device_name": cell.gpu,
                "protocol": 1,
                "round": start,
                "block_size_effective": knobs["block_size"],
                "num_gpu_blocks": blocks,
                "max_num_seqs_effective": knobs["max_num_seqs"],
                "max_model_len_effective": knobs["max_model_len"],
                "effective": json.dumps({**knobs, "num_gpu_blocks": blocks}),
                "kv_cache_tokens": tokens,
                "max_concurrency": tokens / knobs["max_model_len"],
                "start_s": 40.0,
                "warmup_s": 2.0,
                "measure_s": 10.0,
                "cpu_steal_pct": 0.0,
                "cpu_others_pct": rng.uniform(0, 2),
            }
        )
    return pd.DataFrame(rows)


def _repeats(requests: pd.DataFrame) -> pd.DataFrame:
    wall_s = requests.groupby(["cell_id", "repeat"], sort=False)["last_token_s"].max() * 1.001
    return wall_s.rename("wall_s").reset_index().assign(start_unix_s=1.7e9)


def _steps(ids: np.ndarray, running: np.ndarray, step_s: np.ndarray) -> pd.DataFrame:
    cell, repeat, step = (a.ravel() for a in np.indices((len(ids), REPEATS, STEPS)))
    return pd.DataFrame(
        {
            "cell_id": ids[cell],
            "repeat": repeat,
            "time_s": (step + 1) * step_s[cell, repeat],
            "running": running[cell],
            "waiting": REQUESTS - running[cell],
            "kv_cache_usage": running[cell] / 1000,
            "prompt_tokens": np.where(step == 0, 64 * running[cell], 0),
            "generation_tokens": running[cell],
            "preempted": 0,
            "prefix_hits": 0,
        }
    )


def _trace(ids: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    cell, repeat, sample = (a.ravel() for a in np.indices((len(ids), REPEATS, SAMPLES)))
    power_w = rng.normal(500, 10, len(cell))
    return pd.DataFrame(
        {
            "cell_id": ids[cell],
            "repeat": repeat,
            "time_s": sample * 0.1,
            "memory_used_bytes": 60e9,
            "utilization_pct": 97.0,
            "power_w": power_w,
            "energy_j": sample * 50.0,
            "throttle_reasons": "",
        }
    )

"""A small grid with a plan and made-up results: two devices, four limits of sequences, three block sizes."""

import math
from itertools import product

import numpy as np
import pandas as pd

from tests.unit.questions.synthetic_cells import cell, starts_table
from workflow_scripts.predict.prediction_record import FIELDS

GPUS, SEQS, BLOCKS = ("h200", "l40s"), (1, 4, 16, 64), (8, 16, 32)
POINTS = tuple(product(GPUS, SEQS, BLOCKS))
STARTS = 5


def cell_id(point):
    gpu, seqs, block = point
    return f"{gpu}/vllm/llama-3.1-8b-instruct/chat/bs{block}-seqs{seqs}"


IDS = {point: cell_id(point) for point in POINTS}


def law(point):
    """Output tokens/s by the plan."""
    gpu, seqs, _ = point
    return {"h200": 400.0, "l40s": 100.0}[gpu] * seqs / (1 + seqs / 40)


def plan(band_pct=10.0, **columns):
    """The plan of all cells; `columns` are functions of a point, or values."""
    rows = []
    for point in POINTS:
        rate, band = law(point), 1 + band_pct / 100
        row = {
            **{"cell_id": IDS[point], "gpu": point[0], "engine": "vllm", "model": "llama-3.1-8b-instruct"},
            **{"workload": "chat", "output_tokens_per_s": rate, "error_pct": band_pct, "gpus": 1.0},
            **{"output_tokens_per_s_low": rate / band, "output_tokens_per_s_high": rate * band},
            **{"cell_s": 60 + 40_000 / rate, "preemptions": 0.0},
        }
        rows.append(row | {name: value(point) if callable(value) else value for name, value in columns.items()})
    return pd.DataFrame(rows).reindex(columns=list(FIELDS))


def cells(measured, rate=law, sd=0.004, **columns):
    """The cells table if only the points `measured` were measured; `columns` are functions of a point, or values."""
    rng = np.random.default_rng(20261123)
    noise = {point: sd * rng.normal(size=STARTS) for point in POINTS}
    rows = []
    for point in POINTS:
        gpu, seqs, block = point
        further = {name: value(point) if callable(value) else value for name, value in columns.items()}
        further = {"outcome": "ok", "preemptions": 0} | further if point in measured else {"outcome": "missing"}
        rates = rate(point) * np.exp(noise[point]) if further["outcome"] == "ok" else [math.nan]
        rows.append(cell({"max_num_seqs": seqs, "block_size": block}, rates, gpu=gpu, **further))
    return starts_table(*rows)

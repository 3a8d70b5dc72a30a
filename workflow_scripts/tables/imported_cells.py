"""Runs that were measured elsewhere, as rows of the cells table with the source `imported`.

A rate above what the data sheet allows makes a row `invalid`, as for measured cells.
"""

from collections.abc import Iterable, Iterator

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import get_model
from workflow_scripts.engines.knobs import flat
from workflow_scripts.engines.registry import every_knob, get_engine
from workflow_scripts.physics.rate_ceiling import MeanLengths, judge_rate
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.tables.parsed_facts import known_facts
from workflow_scripts.tables.summary import RAN, RATE, Row, stacked

IMPORTED = "imported"
# Statuses of a log that mean that the engine cannot do what was asked.
_INFEASIBLE = ("kv_too_small", "oom", "unsupported_block_size")
# Facts of a log that are columns of the cells table too.
_OF_LOG = (
    *("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "num_gpu_blocks", "kv_cache_tokens"),
    *("max_concurrency", "available_kv_cache_gib", "model_weights_gib", "peak_activation_gib", "cuda_graph_gib"),
    *("attention_backend", "engine_version", "preemptions"),
)
# Column <- fact of a log in another unit, and how many of these are one.
_CONVERTED = {"prefix_cache_hit_rate": ("prefix_cache_hit_rate_pct", 100)} | {
    f"{name}_s_{quantile}": (f"{name}_ms_{theirs}", 1000)
    for name in ("ttft", "tpot", "e2e")
    for quantile, theirs in {"p50": "median", "p99": "p99"}.items()
}
# With other values than the neutral ones, the ceiling does not hold: it is that of one device, which gives one token to
# each sequence in a step.
_ONE_DEVICE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "num_speculative_tokens")


def with_imported(cells: pd.DataFrame, runs: Iterable[Row], study: str) -> pd.DataFrame:
    """The cells table, followed by one row per run that was measured elsewhere."""
    return stacked([cells, imported_cells(runs, study).convert_dtypes()])


def imported_cells(runs: Iterable[Row], study: str) -> pd.DataFrame:
    """One row per result of a run; runs of the same GPU, engine, model, workload and settings are starts of one cell,
    and several results of a run are repeats of one start."""
    rows = pd.DataFrame([row for run in runs for row in _rows(run, study)])
    start = rows["repeat"].eq(0).groupby(rows["cell_id"]).cumsum().astype("int64")
    return rows.assign(start=start, repeat=rows["repeat"].where(rows["outcome"].isin(RAN)))


def _rows(run: Row, study: str) -> Iterator[Row]:
    log = run["log"] or {}
    for repeat, result in enumerate(log.get("results") or [{}]):
        yield _row(run | {"log": log | result}, study) | {"repeat": repeat}


def _row(run: Row, study: str) -> Row:
    log, trace = run["log"] or {}, run["trace"] or {}
    coordinates = {name: run[name] for name in COORDINATES}
    row: Row = {
        "cell_id": "/".join((IMPORTED, *coordinates.values(), run["slug"])),
        "study": study,
        "sweeps": IMPORTED,
        **coordinates,
        "environment": "",
        "knobs": run["slug"],
        **{f"knob_{name}": value for name, value in flat(run["knobs"]).items()},
        "max_concurrency_allowed": _allowed(run),
        "round": 1,
        "comparable": True,
        "source": IMPORTED,
        **{fact: log.get(fact) for fact in _OF_LOG},
        "block_size_effective": log.get("block_size"),
        **{column: log[fact] / unit for column, (fact, unit) in _CONVERTED.items() if log.get(fact) is not None},
        **trace,
    }
    return row | _outcome(run, row)


def _allowed(run: Row) -> int | None:
    try:
        return get_engine(run["engine"]).knobs.model_validate(run["knobs"]).max_concurrency
    except ValueError:  # a setting that the engine needs is not known
        return None


def _outcome(run: Row, row: Row) -> Row:
    log = run["log"] or {}
    status, error = log.get("status"), log.get("error")
    rates = [name for name in (RATE, "total_tokens_per_s") if row[name] is not None]
    if not rates and status in _INFEASIBLE:
        return {"outcome": "infeasible", "reason": error}
    # A benchmark's result says itself whether its numbers count.
    if not rates or log.get("results") or log.get("failed_requests"):
        if status == "error":
            return {"outcome": "engine_error", "reason": error}
        if status is None and error is not None:
            return {"outcome": "unknown", "reason": error}
    if not log and not any(value is not None for value in (run["trace"] or {}).values()):
        return {"outcome": "unknown", "reason": "no value of the trace was recognised"}
    above = _above_ceiling(run, row, rates)
    return {"outcome": "invalid" if above else "ok", "reason": above}


def _above_ceiling(run: Row, row: Row, rates: Iterable[str]) -> str | None:
    """Which rate is above what the data sheet allows; None if none is, or if too little is known to say."""
    knobs = run["knobs"]
    several = any(knobs.get(name) not in (None, *(every_knob()[name].neutral or ())) for name in _ONE_DEVICE)
    facts = known_facts(run["model"], get_model(run["model"]).fixed_dtype, knobs.get("quantization"))
    if several or run["tokens_per_request"] is None or facts is None:
        return None
    workload, kv_cache_dtype = MeanLengths(*run["tokens_per_request"]), knobs.get("kv_cache_dtype") or "auto"
    for rate in rates:
        judged = judge_rate(
            row["gpu"],
            row[rate],
            row["max_concurrency_allowed"],
            facts,
            workload,
            output_only=rate == RATE,
            kv_cache_dtype=kv_cache_dtype,
        )
        if judged.verdict == "impossible":
            return f"{rate} {row[rate]:,.0f} is {judged.reason}"
    return None

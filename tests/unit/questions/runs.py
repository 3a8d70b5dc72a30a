"""Runs made up for tests of comparisons; nothing in them was measured."""

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.questions import synthetic_cells
from workflow_scripts.questions.compare.run import Mean, Run, RunCell

CONTENT = {
    "model": {"name": "tiny", "dtype": "bfloat16", "load_format": "dummy"},
    "workload": {"name": "chat", "kind": "fixed", "output_tokens": 8},
    "num_prompts": 32,
}
ENVIRONMENT = {"host": ["node-1"], "engine_version": ["vllm 0.11"], "lock_sha256": ["a" * 64], "protocol": ["3"]}


def mean(rate: float, error_pct: float | None = 1.0, *, measure: str = "output_tokens_per_s", starts: int = 3) -> Mean:
    """A rate with a standard error in per cent."""
    squared, df = (None, None) if error_pct is None else ((error_pct / 100) ** 2, max(starts - 1.0, 2.0))
    return Mean(measure=measure, log_mean=math.log(rate), squared_error=squared, df=df)


def cell(name: str, *means: Mean, **changes: Any) -> RunCell:
    """A cell that ended ok; `changes` are fields of it."""
    fields: dict[str, Any] = {"id": f"cpu-all/vllm/tiny/chat/{name}", "outcome": "ok", "reason": None, "began": None}
    fields |= {"comparable": True, "source": "measured", "content": CONTENT, "environment": ENVIRONMENT}
    return RunCell(**(fields | {"effective": {}, "means": list(means), "label": name} | changes))


def run(*cells: RunCell, study: str = "try") -> Run:
    """A run of a study of these cells."""
    return Run(study, 2.0, list(cells))


def written(folder: Path, rates: Mapping[int, float], began: str = "2026-01-01", study: str = "try") -> Path:
    """The folder of a study with its tables: one cell per `max_num_seqs`, of six starts around its rate."""
    definition = json.dumps(CONTENT | {"gpu": "cpu-all", "repeats": 1})
    rows = [
        synthetic_cells.cell(
            {"block_size": 16, "max_num_seqs": seqs},
            [rate * math.exp(0.002 * (start % 3 - 1)) for start in range(6)],
            gpu="cpu-all",
            study=study,
            started_at=[f"{began}T00:0{start}:00Z" for start in range(6)],
            definition=definition,
            equivalence_margin_pct=2.0,
            host="node-1",
            protocol="3",
        )
        for seqs, rate in rates.items()
    ]
    synthetic_cells.write_measurements(synthetic_cells.starts_table(*rows), folder / "tables")
    return folder


def random_run(chance: random.Random) -> Run:
    """A run with some of everything that a comparison tells apart."""

    def often(usual: Any, *others: Any) -> Any:
        return usual if chance.random() < 0.8 else chance.choice(others)

    def some_mean(measure: str) -> Mean:
        error = often(chance.choice([0.0, 0.2, 3.0, 10.0]), None)
        rate = 100 * math.exp(chance.choice([0.0, chance.gauss(0, 0.5)]))
        return mean(rate, error, measure=measure, starts=chance.choice([1, 2, 3, 6]))

    engine = {"max_num_seqs": 16, "enforce_eager": True, "backend": "CPU_ATTN"}
    draft = {"draft_model": {"name": "small", "ratio": 0.25}}
    elsewhere = {"host": ["node-2"], "engine_version": ["vllm 0.12"]}
    others = (elsewhere, {"protocol": ["2"], "dtype": ["float32"]}, {"lock_sha256": ["a" * 64, "b" * 64]})
    cells = [
        cell(
            f"bs{name}",
            *(some_mean(measure) for measure in often(["output_tokens_per_s"], ["ttft_s_p50", "tpot_s_p50"], [])),
            outcome=often("ok", "infeasible", "missing"),
            reason=often(None, "too small"),
            comparable=often(True, False),
            source=often("measured", "measured elsewhere"),
            began=often(None, "2026-01-02T03:04:05Z"),
            content=often(CONTENT, {**CONTENT, "num_prompts": 64}, {**CONTENT, **draft}, {}),
            environment=often(ENVIRONMENT, *({**ENVIRONMENT, **of} for of in others)),
            effective=chance.choice([engine, {"max_num_seqs": 32, "enforce_eager": False, "share": 0.9}, {}]),
        )
        for name in range(30)
        if chance.random() < 0.9
    ]
    return run(*cells)

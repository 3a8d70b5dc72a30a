"""Digests made up for tests of comparisons; nothing in them was measured."""

import math
from typing import Any

from workflow_scripts.questions.compare.digest import Digest, DigestCell, Mean

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


def cell(name: str, *means: Mean, **changes: Any) -> DigestCell:
    """A cell that ended ok; `changes` are fields of it."""
    fields: dict[str, Any] = {"id": f"cpu-all/vllm/tiny/chat/{name}", "outcome": "ok", "reason": None, "began": None}
    fields |= {"comparable": True, "source": "measured", "content": CONTENT, "environment": ENVIRONMENT}
    return DigestCell(**(fields | {"effective": {}, "means": list(means)} | changes))


def digest(*cells: DigestCell, **changes: Any) -> Digest:
    """A study of these cells."""
    fields: dict[str, Any] = {"study": "try", "cells": list(cells)}
    return Digest(**(fields | {"settings": {"repeats": 3, "equivalence_margin_pct": 2.0}} | changes))

"""Studies that differ from what most studies are: some by hand, the others drawn from a seed, whose numbers are made up
too."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from tests.unit.made_studies import fixed, study_content
from tests.unit.present.synthetic import MEASURED_BY, NAMES, SETTING, draw_results
from workflow_scripts.page import plot

Change = Callable[[pd.DataFrame], pd.DataFrame]


def _ended(outcome: str, reason: str, of: Callable[[pd.DataFrame], "pd.Series[bool]"]) -> Change:
    """A change by which some cells have no rate."""

    def change(cells: pd.DataFrame) -> pd.DataFrame:
        some = of(cells)
        failed = cells[some].drop_duplicates("cell_id").copy()
        kept = [name for name in failed if name.startswith("knob_") or name in ASKED]
        failed.loc[:, [name for name in failed if name not in kept]] = pd.NA
        failed = failed.assign(outcome=outcome, reason=reason, comparable=outcome != "missing")
        return pd.concat([cells[~some], failed.astype(cells.dtypes)], ignore_index=True)

    return change


ASKED = ("cell_id", "study", "sweeps", "knobs", "max_concurrency_allowed", *NAMES, *MEASURED_BY, "environment", "start")
LONG = "a-workload-of-somebody-who-writes-everything-into-its-name-and-more"
LADDER = {"model": "llama-3.1-8b-instruct", "knobs": {"max_num_seqs": [1, 16, 256]}}
SIX = ["h200", "h100-sxm", "a100-sxm-80gb", "l40s", "h100-pcie", "a100-pcie-80gb"]
MANY = {"block_size": [16, 32, 64, 128], "max_num_seqs": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]}
# Studies that differ from what most studies are -> sweeps, other content, and a change of their cells.
GENERATED: Mapping[str, tuple[list[dict[str, Any]], dict[str, Any], Change]] = {
    "one-cell": ([{}], {}, lambda cells: cells),
    "failures-alone": ([LADDER], {}, _ended("engine_error", "CUDA out of memory", lambda cells: cells["gpu"].notna())),
    "many-cells": (
        [
            {
                "model": "llama-3.1-8b-instruct",
                "gpu": ["h200", "l40s"],
                "knobs": {**MANY, "enforce_eager": [True, False]},
            }
        ],
        {"question": "Does max-num-seqs, the block size, or an eager engine matter?"},
        lambda cells: cells,
    ),
    "six-devices": ([{**LADDER, "gpu": SIX}], {"question": "How do GPUs compare?"}, lambda cells: cells),
    "long-names": (
        [LADDER, {**LADDER, "name": "two", "workload": f"{LONG}-2"}],
        {"workloads": {LONG: fixed(64), f"{LONG}-2": fixed(32)}},
        lambda cells: cells,
    ),
    "server": (
        [{"engine": "vllm-serve", "knobs": {**SETTING, "request_rate_per_s": [1, 4, 16]}}],
        {"question": "Which request rate does a server keep up with?"},
        lambda cells: cells,
    ),
    "imported": ([LADDER], {}, lambda cells: cells.assign(source="imported")),
    "unfinished": ([LADDER], {}, _ended("missing", "", lambda cells: cells["knob_max_num_seqs"].ne(1))),
}

# Of which the sweeps of a study that is drawn have some: knobs with their values, and words of the question.
KNOBS: Mapping[str, list[Any]] = {
    "max_num_seqs": [1, 4, 16, 64, 256, 1024],
    "block_size": [16, 32, 64, 128],
    "enable_prefix_caching": [True, False],
    "enforce_eager": [True, False],
    "gpu_memory_utilization": [0.5, 0.7, 0.9],
    "max_num_batched_tokens": [512, 2048, 8192],
    "kv_cache_dtype": ["auto", "fp8"],
    "num_gpu_blocks_override": [257, 513, 2049],
}
ENGINES: Mapping[str, dict[str, Any]] = {
    "hf-static": {"knobs": {"batch_size": [1, 16]}},
    "hf-continuous": {"knobs": {"max_batch_tokens": [512, 2048], "page_size": 256, "num_blocks": 64}},
    "vllm-serve": {"knobs": {"request_rate_per_s": [1, 4, 16], "max_num_seqs": 64}},
    "sglang-serve": {"knobs": {"request_rate_per_s": [1, 16]}, "environment": "sglang-0.5.23", "gpu": "h200"},
}
DEVICES = [*SIX, "b200", "rtx-pro-6000-blackwell", "mi300x", "cpu-all"]
MODELS = ["llama-3.1-8b-instruct", "opt-125m", "qwen2-7b", "llama-3.1-70b-instruct-awq"]
WORDS = ["GPUs compare", "max-num-seqs", "block size", "prefix caching", "HuggingFace", "predictions"]
WORDS += ["memory", "energy", "request rate", "limits", "environments"]
WORKLOADS: Mapping[str, dict[str, Any]] = {
    "chat": fixed(64),
    "system-prompt": fixed(64, 64, 32, kind="shared_prefix", prefix_tokens=512),
    LONG: fixed(16),
}
ENDS = [
    ("infeasible", "blocks of that size"),
    ("timeout", "after 1800 s"),
    ("engine_error", "died"),
    ("missing", ""),
]


SEEDS = range(1, 23)


def drawn_at_random(seed: int) -> tuple[list[dict[str, Any]], dict[str, Any], Change]:
    """A study with some devices, models, workloads, knobs, engines, environments and starts, of which some fail."""
    rng = np.random.default_rng(seed)

    def some(of: Any, most: int, least: int = 1) -> list[Any]:
        return [list(of)[i] for i in sorted(rng.permutation(len(of))[: rng.integers(least, most + 1)])]

    workloads = some(WORKLOADS, 2)
    shared = {"gpu": some(DEVICES, 3), "model": some(MODELS, 2), "workload": workloads}
    knobs = {name: some(KNOBS[name], 2 + (name == "max_num_seqs"), 2) for name in some(KNOBS, 2, 0)}
    sweeps = [{"knobs": {**SETTING, **knobs}, **shared}]
    one = {name: values[0] for name, values in shared.items()}
    sweeps += [{"name": engine, "engine": engine, **one, **ENGINES[engine]} for engine in some(ENGINES, 2, 0)]
    if rng.random() < 0.3 and not {"mi300x", "cpu-all"} & {*shared["gpu"]}:
        sweeps[0]["environment"] = ["default", "vllm-0.25.1"]
    content = {"workloads": {name: WORKLOADS[name] for name in workloads}, "repeats": int(rng.integers(1, 4))}
    content["question"] = f"What of {', '.join(some(WORDS, 5))}?"
    starts, source = int(rng.integers(1, 3)), rng.choice(["measured", "measured", "imported", "measured"])
    fails = [(*ENDS[rng.integers(len(ENDS))], rng.random() < 0.5, rng.random() / 2)]

    def change(cells: pd.DataFrame) -> pd.DataFrame:
        chosen = np.random.default_rng(seed)
        for outcome, reason, happens, share in fails:
            lost = {cell for cell in cells["cell_id"].unique() if happens and chosen.random() < share}
            cells = _ended(outcome, reason, lambda of, lost=lost: of["cell_id"].isin(lost))(cells)
        measured = cells[cells["repeat"].notna()]
        further = []
        for start in range(2, starts + 1):
            factor = chosen.normal(1, 0.03)
            rates = {name: measured[name] * factor for name in measured if name.endswith("tokens_per_s")}
            further.append(measured.assign(start=start, **rates))
        return pd.concat([cells, *further], ignore_index=True).assign(source=source)

    return sweeps, content, change


def draw_generated(folder: Path, name: str) -> Path:
    """Draw the page of one of the `GENERATED` studies, or of that which a seed gives."""
    sweeps, content, change = drawn_at_random(int(name)) if name.isdigit() else GENERATED[name]
    content = {"name": f"study-{name}", "repeats": 3, **content}
    # The page shows no PNG.
    with mock.patch.object(plot.FigureCanvasAgg, "print_png"):
        return draw_results(folder / name, study_content(*sweeps, **content), change)

"""Compare all pairs of cells that differ in one thing: a knob, the model, the environment, the device or the engine.

docs/tables.md documents every column, docs/statistics.md the tests. What explains a ratio is in other tables, which
have the same pairs.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.knob import Knob
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.questions.devices.table import METRICS, device_pairs
from workflow_scripts.questions.engines.table import engine_tables, with_cell_ids
from workflow_scripts.questions.knobs.pairs import ALIKE, AT, MODEL, STEADY, WORK, compared_pairs, looks_at
from workflow_scripts.questions.serving.table import is_served
from workflow_scripts.questions.waiting.table import with_device_ratio
from workflow_scripts.statistics.comparisons import ANOTHER_RUN, CHANGES, NOT_DECIDED, SCOPE_MEANING
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks
from workflow_scripts.statistics.summary import RATE, cell_ids, knob_columns, knob_text, records
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, NUMBER, TEXT, table_schema
from workflow_scripts.workloads.arrivals import Load

KNOB, LOAD, DEVICE, ENGINE = "knob", "load", "device", "engine"
# The interval excludes 1, but no verdict is reached.
LIKELY = "likely"
EQUAL, DIFFERS = "equal", "differs"
# Of servers, by the load that they get; their throughput follows from it.
LATENCIES = ("ttft_s_p50", "tpot_s_p50", "e2e_s_p50")
# The rate without waiting for the host, as in the table `waiting`.
WITHOUT_WAITING = "output_tokens_per_device_s"

SCHEMA = table_schema(
    "comparisons",
    "One row per pair of cells that differ in one thing, and per metric. Every ratio is of `b` over `a`. Of more than "
    "16 values of a knob, each is compared with the first and with its neighbours.",
    TEXT("kind", "`knob`, `load` (of a server), `model`, `environment`, `device` or `engine`"),
    TEXT("name", "the knob; else as `kind`"),
    TEXT("a b", "`cell_id` of both"),
    TEXT("value_a value_b", "what differs; of engines with their knobs"),
    FLAG("from_first", "`a` has the first value: `default`, `false` or the smallest; null for devices and engines"),
    TEXT("values", "of a knob: all values of the group, in order"),
    TEXT("study source gpu engine model workload", "of `b`; shared by both but for what differs"),
    TEXT("held", "the other knobs, e.g. `block_size=32`; of devices all"),
    TEXT("metric", f"column of `repeats`; `{WITHOUT_WAITING}`: the output rate without waiting for the host"),
    NUMBER("mean_a mean_b", "of the metric, geometric means over the starts"),
    NUMBER("ratio low high", "with its 95 % interval, on this occasion"),
    NUMBER("again_low again_high", ANOTHER_RUN),
    NUMBER("at_least", "the ratio, or its inverse if below 1, is at least this (95 %); null if 1 is not excluded"),
    TEXT("scope", SCOPE_MEANING),
    INTEGER("starts", "starts in common; of two devices the smaller number"),
    TEXT(
        "verdict",
        "`changes`: shown to be beyond the margin, of engines beyond 1; `flat`: within it on the day of measurement; "
        "`likely`: only the interval excludes 1; `not decided`; null for what is not tested",
    ),
    NUMBER("margin_pct", "the study's `equivalence_margin_pct`; null for engines"),
    INTEGER("starts_needed", "further starts per cell that would decide; null above 100"),
    TEXT("work", "`equal` (requests, prompt tokens and output tokens) or `differs`"),
    FLAG("took_effect", "whether the column that shows the knob differs, e.g. `running_peak`"),
    TEXT("moved_with_it", "other settings that differ; set them to compare only the knob"),
    TEXT(
        "bound_by_a bound_by_b",
        "what kept more sequences from running: `sequences` (the settings), `prompts` (all requests ran), "
        "`kv_blocks` (preemptions, or requests waited with 95 % of the blocks in use), `token_budget`",
    ),
)

# The model and the environment count as knobs.
_OTHERS = {MODEL: Knob(MODEL, settles=("dtype", "quantization")), AT: Knob(AT)}
# Settings that follow from many others and have their own column or table.
_FOLLOWS = {"num_gpu_blocks", "kv_cache_bytes", "client_cores", "client_shares_cores"}
_INTERVAL = {"low": "ratio_low", "high": "ratio_high", "again_low": "ratio_again_low", "again_high": "ratio_again_high"}


def comparisons_table(
    cells: pd.DataFrame, margin_pct: float, waiting: pd.DataFrame | None = None, looks: Looks = ONE_LOOK
) -> pd.DataFrame:
    """The table of comparisons; `waiting` is that table, `margin_pct` the study's margin."""
    parts = list(_of_knobs(cells, margin_pct, looks, RATE))
    served = cells[is_served(cells)]
    if len(served):
        parts += [part for metric in LATENCIES for part in _of_knobs(served, margin_pct, looks, metric)]
    parts += [_of_devices(cells, metric, margin_pct, looks) for metric in METRICS]
    parts.append(_of_engines(cells, looks))
    table = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    table = table.rename(columns={name: end for end, name in _INTERVAL.items()})
    table["margin_pct"] = np.where(table["kind"] == ENGINE, np.nan, margin_pct)
    undecided = table["verdict"].eq(NOT_DECIDED) & ((table["low"] > 1) | (table["high"] < 1))
    table["verdict"] = table["verdict"].mask(undecided, LIKELY)
    further = [_not_tested(table, STEADY, "steady_ratio"), _not_tested(table, RATE, "whole_ratio")]
    if waiting is not None:
        rates = table[table["metric"].isin([RATE, STEADY])]
        without = with_device_ratio(rates, rates["b"], rates["a"], waiting, margin_pct)
        further.append(_not_tested(without, WITHOUT_WAITING, "device_ratio"))
    table = pd.concat([table, *(part for part in further if len(part))], ignore_index=True)
    return table.reindex(columns=list(SCHEMA.columns))


def _not_tested(table: pd.DataFrame, metric: str, column: str) -> pd.DataFrame:
    """Rows of a further metric, whose ratio of the same pairs is in this column, with its interval beside it."""
    if column not in table:
        return table.head(0)
    rows = table[table["metric"].ne(metric) & table["metric"].isin([RATE, STEADY]) & table[column].notna()]
    ends: dict[str, Any] = {"ratio": rows[column]}
    ends |= {end: rows.get(f"{column}_{end}", np.nan) for end in ("low", "high")}
    nothing = dict.fromkeys(("verdict", "scope"), None) | dict.fromkeys(
        ("mean_a", "mean_b", "again_low", "again_high", "at_least", "starts_needed"), np.nan
    )
    return rows.assign(metric=metric, **ends, **nothing)


# --- a knob, the model, the environment ------------------------------------------------------------------------------


def _of_knobs(cells: pd.DataFrame, margin_pct: float, looks: Looks, metric: str) -> Iterator[pd.DataFrame]:
    knobs = knob_columns(cells)
    for column, rows, pairs in compared_pairs(cells, margin_pct, looks, metric):
        yield _of_knob(rows, pairs, column, [other for other in knobs if other != column])


def _of_knob(rows: pd.DataFrame, pairs: pd.DataFrame, column: str, others: list[str]) -> pd.DataFrame:
    name = column.removeprefix("knob_")
    described = every_knob().get(name) or _OTHERS[name]
    held = [
        ", ".join(f"{other.removeprefix('knob_')}={knob_text(of[other])}" for other in others if not pd.isna(of[other]))
        for of in records(rows)
    ]
    rows = rows.assign(held=held, values=rows.groupby("group")["value"].transform(", ".join))
    a, b = (rows.iloc[pairs[side]].reset_index(drop=True) for side in ("b", "a"))
    shown = described.shown_in
    took_effect: Any = a[shown].convert_dtypes().ne(b[shown].convert_dtypes()) if shown else pd.NA
    left_out = {name, *described.settles} | _FOLLOWS
    compared = name != AT  # what differs between environments is a table of its own
    moved = [_moved(*of, left_out) if compared else None for of in zip(a["effective"], b["effective"], strict=True)]
    kind = LOAD if name in Load.model_fields else name if column in (MODEL, AT) else KNOB
    return pairs.rename(columns={"baseline_rate": "mean_a", "rate": "mean_b"}).assign(
        **{of: b[of] for of in (*ALIKE, "held", "values")},
        **{f"{of}_{side}": cell[to] for side, cell in (("a", a), ("b", b)) for of, to in _OF_SIDES.items()},
        kind=kind,
        name=name,
        a=a["cell_id"],
        b=b["cell_id"],
        from_first=pairs["first"],
        work=_work(a[list(WORK)], b[list(WORK)]),
        took_effect=took_effect,
        moved_with_it=pd.array(moved, "string"),
    )


_OF_SIDES = {"value": "value", "bound_by": "bound_by"}


def _work(a: pd.DataFrame, b: pd.DataFrame) -> pd.Series:
    """Whether pairs of cells served the same requests; null if it is not known of one of them."""
    a, b = a.astype(float), b.astype(float)
    same = pd.Series(np.where((a == b).all(axis=1), EQUAL, DIFFERS), a.index, dtype="string")
    return same.mask((a.isna() | b.isna()).any(axis=1))


def _moved(a: str | None, b: str | None, left_out: set[str]) -> str | None:
    """Settings that differ between two cells, except those left out, e.g. `max_num_batched_tokens 512 -> 4,096`; or
    None.

    `a` and `b` are their column `effective`. A setting that one cell does not report is ignored.
    """
    if pd.isna(a) or pd.isna(b) or a == b:
        return None
    here, there = _settings(str(a)), _settings(str(b))
    names = sorted((here.keys() & there.keys()) - left_out)
    return "; ".join(f"{name} {here[name]} -> {there[name]}" for name in names if here[name] != there[name]) or None


@lru_cache(maxsize=10_000)
def _settings(effective: str) -> dict[str, str]:
    return {name: _text(of) for name, of in json.loads(effective).items()}


def _text(setting: Any) -> str:
    if type(setting) in (int, float):
        return f"{setting:,.10g}"
    return setting if isinstance(setting, str) else json.dumps(setting)


# --- devices and engines ---------------------------------------------------------------------------------------------


def _of_devices(cells: pd.DataFrame, metric: str, margin_pct: float, looks: Looks) -> pd.DataFrame:
    """The faster of two devices is `b`, so sides turn round."""
    pairs, _ = device_pairs(cells, metric, margin_pct, looks)
    a, b = (
        pairs[["study", "source", "engine", "model", "workload", "knobs"]].assign(gpu=pairs[f"gpu_{side}"])
        for side in ("b", "a")
    )
    return pairs.assign(
        kind=DEVICE,
        name="gpu",
        a=cell_ids(a),
        b=cell_ids(b),
        value_a=a["gpu"],
        value_b=b["gpu"],
        gpu=b["gpu"],
        held=pairs["knobs"],
        mean_a=np.exp(pairs["log_mean_b"]),
        mean_b=np.exp(pairs["log_mean_a"]),
        bound_by_a=pairs["bound_by_b"],
        bound_by_b=pairs["bound_by_a"],
    )


def _of_engines(cells: pd.DataFrame, looks: Looks) -> pd.DataFrame:
    """vLLM is `b`. Only pairs that did equal work in one environment are compared."""
    engines, _ = engine_tables(cells, looks)
    pairs = with_cell_ids(engines[engines["comparable"].eq(True)])
    pairs = pairs.rename(columns=lambda name: name.removeprefix("improvement_"))
    return pairs.assign(
        kind=ENGINE,
        name="engine",
        engine=VLLM.name,
        a=pairs["baseline_cell_id"],
        b=pairs["cell_id"],
        value_a=pairs["hf_engine"] + "/" + pairs["hf_knobs"],
        value_b=f"{VLLM.name}/" + pairs["vllm_knobs"],
        metric=RATE,
        mean_a=pairs["hf_output_tokens_per_s"],
        mean_b=pairs["vllm_output_tokens_per_s"],
        verdict=pairs["verdict"].where(pairs["verdict"].eq(NOT_DECIDED), CHANGES),
        work=EQUAL,
    )


@makes(SCHEMA)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    study, cells = inputs.study, inputs.cells
    looks = looks_at(study.starts, cells)
    return comparisons_table(cells, study.equivalence_margin_pct, inputs.table("waiting"), looks)

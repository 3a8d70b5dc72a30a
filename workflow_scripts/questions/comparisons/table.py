"""Compare all pairs of cells that differ in one thing: a knob, the model, the environment, the device or the engine.

docs/tables.md documents every column, docs/statistics.md the tests.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.knob import Knob
from workflow_scripts.device.device_record import DeviceRates
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.questions.comparisons.pairs import (
    ALIKE,
    AT,
    ENGINE,
    GPU,
    MODEL,
    SERVER,
    columns_of,
    compared_pairs,
    looks_at,
    pairs,
    shown_by,
)
from workflow_scripts.questions.devices.table import SCHEMA as EXPLANATIONS
from workflow_scripts.questions.devices.table import device_records, explanations
from workflow_scripts.statistics.comparisons import (
    ANOTHER_RUN,
    LIKELY,
    NOT_DECIDED,
    SCOPE_MEANING,
    Comparisons,
    compare,
    verdicts,
)
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks
from workflow_scripts.tables.summary import (
    RATE,
    STEADY,
    WORK,
    Row,
    Summaries,
    is_served,
    knob_columns,
    knob_text,
    records,
    stacked,
)
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, NUMBER, TEXT, table_schema
from workflow_scripts.workloads.arrivals import Load

_KNOB, _LOAD, DEVICE = "knob", "load", "device"
EQUAL, DIFFERS = "equal", "differs"
# Of servers by the load that they get; their throughput follows from it.
SERVER_LATENCIES = ("ttft_s_p50", "tpot_s_p50", "e2e_s_p50")

SCHEMA = table_schema(
    "comparisons",
    "One row per pair of cells that differ in one thing, and per metric. Every ratio is of `b` over `a`. Of more than "
    "16 values of a knob, each is compared with the first and with its neighbours.",
    TEXT(
        "kind",
        "`knob`, `load` (of a server), `model`, `environment`, `device`, `engine` or `server` (with as many users)",
    ),
    TEXT("name", "the knob; else as `kind`"),
    INTEGER("group", "number of the group of cells that differ in `name` alone; null for devices and engines"),
    TEXT("a b", "`cell_id` of both; of two devices `b` is the faster one over all that both measured"),
    TEXT("value_a value_b", "what differs; of engines with their knobs"),
    FLAG("from_first", "`a` has the first value: `default`, `false` or the smallest; null for devices and engines"),
    TEXT("values", "of a knob: all values of the group, in order"),
    TEXT("study source gpu engine model workload", "of `b`; shared by both but for what differs"),
    TEXT("held", "the other knobs, e.g. `block_size=32`; null for engines"),
    TEXT("metric", "column of `repeats`"),
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
    TEXT("why_not", "of two engines: why they have no ratio, such as unequal work"),
    TEXT(
        "moved_with_it",
        "other settings that differ; set them to compare only the knob; of environments all that took effect otherwise",
    ),
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
# Knobs that change what is computed, in how many steps or on how many devices, with their neutral values.
_UNEQUAL = {f"knob_{name}": knob.neutral for name, knob in every_knob().items() if knob.neutral is not None}
_NOTHING = dict.fromkeys(("verdict", "scope"), None) | dict.fromkeys(
    ("mean_a", "mean_b", "low", "high", "again_low", "again_high", "at_least", "starts_needed"), np.nan
)


def comparison_tables(
    known: Summaries,
    margin_pct: float,
    looks: Looks = ONE_LOOK,
    rates: Mapping[str, DeviceRates] | None = None,
    predictions: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table of comparisons, and that of what explains the ratios of devices.

    `margin_pct` is the study's margin, `predictions` is that table, `rates` those of measured devices.
    """
    parts = list(_of_settings(known, margin_pct, looks, RATE))
    served = known.cells[is_served(known.cells)]
    if len(served):
        of_servers = Summaries(served)
        parts += [part for name in SERVER_LATENCIES for part in _of_settings(of_servers, margin_pct, looks, name)]
    explained = pd.DataFrame(columns=list(EXPLANATIONS.columns))
    summary, samples = known(RATE)
    rows, found = pairs(summary, GPU)
    shown = shown_by(samples, found, margin_pct, looks)
    parts.append(_rows(rows, shown.assign(metric=RATE, margin_pct=margin_pct), DEVICE, GPU))
    if len(found):
        by_rate = compare(samples, *(found[f"sample_{side}"].to_numpy() for side in "ba"))
        explained = explanations(rows, shown, by_rate, rates or {}, predictions)
    parts += [_of_engines(known, looks, kind) for kind in (ENGINE, SERVER)]
    table = stacked(parts)
    undecided = table["verdict"].eq(NOT_DECIDED) & ((table["low"] > 1) | (table["high"] < 1))
    table["verdict"] = table["verdict"].mask(undecided, LIKELY)
    table = stacked([table, *(_not_tested(table, known, *metrics) for metrics in ((RATE, STEADY), (STEADY, RATE)))])
    return table.reindex(columns=list(SCHEMA.columns)), explained


def _not_tested(table: pd.DataFrame, cells: Summaries, metric: str, other: str) -> pd.DataFrame:
    """The pairs that were compared by a metric with their ratio by another one; no interval of the rates of whole
    repeats, in which cells served other requests."""
    rows = table[table["metric"].eq(metric) & table["ratio"].notna()]
    a, b = (rows[f"sample_{side}"].to_numpy(dtype=int) for side in "ab")
    found = compare(cells(other)[1], b, a).interval()
    ends = {"low": found.low, "high": found.high} if other == STEADY else {}
    return rows.assign(**{**_NOTHING, **ends}, metric=other, ratio=found.value).dropna(subset="ratio")


def _of_settings(cells: Summaries, margin_pct: float, looks: Looks, metric: str) -> Iterator[pd.DataFrame]:
    """The comparisons of each knob, the model and the environment."""
    for column, rows, shown in compared_pairs(cells, margin_pct, looks, metric):
        name = column.removeprefix("knob_")
        kind = _LOAD if name in Load.model_fields else name if column in _OTHERS else _KNOB
        yield _with_effect(rows, _rows(rows, shown.assign(margin_pct=margin_pct), kind, name, column), shown, name)


def _rows(rows: pd.DataFrame, shown: pd.DataFrame, kind: str, name: str, column: str = "") -> pd.DataFrame:
    """The pairs of rows with what their comparison showed, as rows of the table."""
    others = [knob for knob in knob_columns(rows) if knob != column]
    rows = rows.assign(held=_held(rows, others))
    a, b = (rows.iloc[shown[side]].reset_index(drop=True) for side in "ab")
    return shown.assign(
        **{part: b[part] for part in (*ALIKE, "held")},
        **{f"{part}_{side}": cell[part] for side, cell in (("a", a), ("b", b)) for part in ("value", "bound_by")},
        kind=kind,
        name=name,
        a=a["cell_id"],
        b=b["cell_id"],
        group=np.where(bool(column), shown["group"], np.nan),
        work=_work(a[list(WORK)], b[list(WORK)]),
    )


def _held(rows: pd.DataFrame, others: list[str]) -> list[str]:
    names = [other.removeprefix("knob_") for other in others]
    texts = [rows[other].map(knob_text, na_action="ignore") for other in others]
    return [
        ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True) if not pd.isna(value))
        for values in (zip(*texts, strict=True) if texts else [()] * len(rows))
    ]


def _with_effect(rows: pd.DataFrame, table: pd.DataFrame, shown: pd.DataFrame, name: str) -> pd.DataFrame:
    """The comparisons of a setting with all its values, and what an engine changed with it."""
    rows = rows.assign(values=rows["group"].map(rows.groupby("group")["value"].agg(", ".join)))
    described = every_knob().get(name) or _OTHERS.get(name, Knob(name))
    a, b = (rows.iloc[shown[side]].reset_index(drop=True) for side in "ab")
    left_out = set() if name == AT else {name, *described.settles} | _FOLLOWS
    moved = [_moved(*pair, left_out) for pair in zip(a["effective"], b["effective"], strict=True)]
    return table.assign(from_first=shown["first"], values=b["values"], moved_with_it=pd.array(moved, "string"))


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
    return {name: _text(value) for name, value in json.loads(effective).items()}


def _text(setting: Any) -> str:
    if type(setting) in (int, float):
        return f"{setting:,.10g}"
    return setting if isinstance(setting, str) else json.dumps(setting)


def why_unequal(rows: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """For each of the `pairs` of rows what makes their work or their environment unequal; None if nothing does."""
    cells = dict(zip(rows.index, records(rows), strict=True))
    faults = {row: list(_faults(cells[row])) for row in {*pairs["a"], *pairs["b"]}}
    each = zip(pairs["a"], pairs["b"], strict=True)
    reasons = [[*_apart(cells[a], cells[b]), *faults[b], *faults[a], *_amounts(cells[a], cells[b])] for a, b in each]
    return pd.Series(["; ".join(dict.fromkeys(why)) or None for why in reasons], pairs.index, dtype="string")


def _faults(cell: Row) -> Iterator[str]:
    """What forbids to compare a cell with one of another engine."""
    for name in WORK:
        if not cell[f"{name}_values"]:
            yield f"{name} is not known"
        elif cell[f"{name}_values"] > 1:
            yield f"{name} differs between repeats"
    for knob, equal in _UNEQUAL.items():
        if not pd.isna(cell.get(knob)) and cell[knob] not in equal:
            yield f"{knob.removeprefix('knob_')} {cell[knob]} on one side"


def _apart(a: Row, b: Row) -> Iterator[str]:
    for name, words in (("lock_sha256", "environments differ: lock"), ("processor", "processors differ:")):
        values = {str(cell[name])[:12] if name == "lock_sha256" else str(cell[name]) for cell in (a, b)}
        if len(values) > 1:
            yield f"the {words} {' against '.join(sorted(values))}"


def _amounts(a: Row, b: Row) -> Iterator[str]:
    for name in WORK:
        if a[f"{name}_values"] == b[f"{name}_values"] == 1 and a[name] != b[name]:
            yield f"{name} differs: {b[name]:g} against {a[name]:g}"


def _of_engines(cells: Summaries, looks: Looks, kind: str) -> pd.DataFrame:
    """Pairs of engines that did equal work in one environment are compared; others have `why_not` instead. Servers are
    compared with others under as many users."""
    summary, samples = cells(RATE)
    rows, found = pairs(summary, kind)
    found = found.assign(why_not=why_unequal(rows, found) if kind == ENGINE else None)
    alike = found[found["why_not"].isna()]
    by_rate: Comparisons = compare(samples, *(alike[f"sample_{side}"].to_numpy() for side in "ba"))
    shown = alike.assign(**columns_of(by_rate, samples, alike), verdict=verdicts(by_rate, 0.0, looks.of_plan))
    shown = pd.concat([shown, found[found["why_not"].notna()]]).sort_index().reset_index(drop=True)
    return _rows(rows, shown.assign(metric=RATE), kind, kind).assign(held=None)


@makes(SCHEMA, EXPLANATIONS)
def make_tables(inputs: TableInputs) -> tuple[pd.DataFrame, pd.DataFrame]:
    study = inputs.study
    looks, rates = looks_at(study.starts, inputs.cells), device_records(inputs.devices)
    return comparison_tables(inputs.summed, study.equivalence_margin_pct, looks, rates, inputs.table("predictions"))

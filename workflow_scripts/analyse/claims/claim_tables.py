"""The tables that checks of claims read: those of the study, as needed here, and some that are made of what is known.

Made here are `numbers` (the claim's own), `published` (its table), `models` (sizes of models and GPUs), `block_sizes`
and `ceilings`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import pandas as pd

from workflow_scripts.analyse.cells.cell_intervals import cell_intervals
from workflow_scripts.analyse.cells.cells import SCHEMA as CELLS
from workflow_scripts.analyse.claims.audit import ADDED, cards, find_columns, judge
from workflow_scripts.analyse.intervals.repeats import IDENTITY, Row, counted, records
from workflow_scripts.analyse.limits import predictions, ratios
from workflow_scripts.analyse.memory import capacity, fragmentation
from workflow_scripts.analyse.settings import effects
from workflow_scripts.analyse.settings import engine_gain as engines
from workflow_scripts.analyse.tables import KNOBS, read_table
from workflow_scripts.catalog.gpus_and_models import get_model, resolve
from workflow_scripts.catalog.published import Check, Claim, Published, Rows
from workflow_scripts.engines.vllm_engines import why_block_size_is_refused
from workflow_scripts.physics.model_facts import ModelFacts, read_model_facts
from workflow_scripts.physics.rate_ceiling import USUAL_LENGTHS as LENGTHS
from workflow_scripts.study.study import Study

SCHEMAS = (CELLS, *(of.SCHEMA for of in (capacity, effects, engines, fragmentation, predictions, ratios)))


@dataclass(frozen=True)
class Evidence:
    """What checks may use: the study, its tables by name, and the published data."""

    study: Study
    tables: Mapping[str, pd.DataFrame]
    published: Published

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell that counts: means over its starts and repeats, and its first text."""
        return means(counted(self.tables["cells"]), IDENTITY)


def read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables that checks use; a table that was not made has no rows.

    Raises:
        TableError: a table does not fit its schema.
    """
    tables = {}
    for schema in SCHEMAS:
        path = folder / f"{schema.name}.parquet"
        empty = pd.DataFrame(columns=[column for column in schema.columns if column != KNOBS])
        tables[schema.name] = read_table(path) if path.exists() else schema.validate(empty)
    return tables


def means(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """One row per combination of `by`: means of numbers, and the first value of everything else."""
    numeric = set(rows.select_dtypes("number").columns)
    groups = rows.groupby(list(by), dropna=False, sort=False)
    how = {name: "mean" if name in numeric else "first" for name in rows.columns if name not in by}
    return groups.agg(how).reset_index()


def table_of(claim: Claim, check: Check, rows: Rows, evidence: Evidence) -> pd.DataFrame:
    """The rows of a table before any condition.

    Raises:
        PublishedError: the claim has no such table.
    """
    if rows.table in _MADE:
        return _MADE[rows.table](claim, check, evidence)
    if rows.table != "cells":
        table = evidence.tables[rows.table]
        return engines.with_cell_ids(table) if rows.table == "engines" else table
    cells = evidence.cells
    for measure in rows.intervals:
        names = {"value": measure} | {name: f"{measure}_{name}" for name in ("low", "high", "scope")}
        ends = cell_intervals(evidence.tables["cells"], [measure])[["cell_id", *names]].rename(columns=names)
        cells = cells.drop(columns=measure).merge(ends, on="cell_id")
    return cells


def _numbers(claim: Claim, check: Check, evidence: Evidence) -> pd.DataFrame:
    """The claim's numbers in columns; several values of one are rows."""
    values = {quantity.name: quantity.values or (quantity.value,) for quantity in reversed(claim.quantities)}
    return pd.DataFrame(product(*values.values()), columns=list(values)).convert_dtypes()


def _published(claim: Claim, check: Check, evidence: Evidence) -> pd.DataFrame:
    """The claim's table, with one row per device (`card`) that a name may mean; of metrics, one row per engine."""
    table = predictions.published_table(evidence.published, claim)
    if "metric" in table:
        rates = table.set_index("metric").drop(columns="unit", errors="ignore").T.astype(float)
        return rates.rename_axis("engine").reset_index().assign(gpu=check.gpus[0])
    return table.assign(card=table["gpu"].map(cards)).explode("card")


def _models(claim: Claim, check: Check, evidence: Evidence) -> pd.DataFrame:
    """Sizes of each model of the check on each device that its names may mean."""
    gpus: list[Row] = [
        {
            "gpu": gpu.name,
            "memory_bytes": gpu.usable_memory_bytes or gpu.memory_bytes,
            "bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        }
        for label in check.gpus
        for gpu in resolve(label)
    ]
    names = ("parameters", "weight_bytes", "decode_weight_bytes", "layers")
    models: list[Row] = []
    for model in check.models:
        facts = facts_of(model)
        sizes = {name: getattr(facts, name) for name in names} | {"bytes_per_token": facts.bytes_per_token()}
        models.append(sizes | {"heads": facts.attention.heads, "kv_heads": facts.attention.kv_heads, "model": model})
    return pd.DataFrame([model | gpu for model in models for gpu in gpus or [{}]])


@cache
def facts_of(model: str) -> ModelFacts:
    entry = get_model(model)
    return read_model_facts(entry.config, entry.fixed_dtype)


def _block_sizes(claim: Claim, check: Check, evidence: Evidence) -> pd.DataFrame:
    """The claim's block sizes, and why GPUs refuse them (null if they do not)."""
    sizes = [int(size) for q in claim.quantities if q.unit == "tokens" for size in q.values or (q.value,) if size]
    why = [why_block_size_is_refused("cuda", size) for size in sizes]
    return pd.DataFrame({"block_size": sizes, "why": why, "accepted": [float(reason is None) for reason in why]})


def _ceilings(claim: Claim, check: Check, evidence: Evidence) -> pd.DataFrame:
    """The claim's rates over the ceilings of their devices, of its table or of its numbers (`analyse.claims.audit`)."""
    rates = _published(claim, check, evidence) if claim.table else _numbers(claim, check, evidence)
    rates = rates.drop(columns="card", errors="ignore").drop_duplicates()
    if "gpu" not in rates:
        rates = rates.assign(gpu=check.gpus[0])
    names = rates.columns.intersection(["gpu", "engine", "throughput", "throughput_tok_s", "tokens_per_s", *_SEQUENCES])
    rates, columns, facts = rates[names].reset_index(drop=True), find_columns(list(names)), facts_of(check.models[0])
    verdicts = [asdict(judge(row, columns, facts, LENGTHS)) for row in records(rates)]
    audited = rates.join(pd.DataFrame(verdicts, columns=list(ADDED)))
    lengths = f"{LENGTHS.prompt_tokens:g} + {LENGTHS.output_tokens:g} tokens per request"
    possible = [_possible_with(row) for row in records(audited)]
    return audited.assign(model=check.models[0], workload=lengths, possible=possible).dropna(subset="times_ceiling")


_SEQUENCES = ("max_num_seqs", "batch_size", "max_batch_size")


def _possible_with(row: Row) -> str:
    """What would make an impossible rate possible.

    A ceiling rises at most in proportion to sequences; that of output tokens falls as prompts get longer.
    """
    stated = next((name for name in _SEQUENCES if name in row), None)
    if stated is None or not row["times_ceiling"] > 1:
        return ""
    least = math.ceil(row["times_ceiling"] * row[stated])
    # A ceiling counts all tokens, of which outputs are a share.
    longer = row["times_ceiling"] * (1 + LENGTHS.prompt_tokens / LENGTHS.output_tokens) - 1
    return (
        f" It would be possible with at least {least} sequences at once, or with prompts that are at least {longer:.3g}"
        " times as long as outputs."
    )


_MADE = {
    "numbers": _numbers,
    "published": _published,
    "models": _models,
    "block_sizes": _block_sizes,
    "ceilings": _ceilings,
}

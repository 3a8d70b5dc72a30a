"""A start of a cell as a row of the table `starts`, and each of its timed passes as a row of `repeats`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StrictFloat, StrictInt

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import validated
from workflow_scripts.engines.engine import CLIENT_CPU_S
from workflow_scripts.engines.registry import load_engines, metrics_of_columns
from workflow_scripts.parse.engine_log import EngineLogFacts
from workflow_scripts.statistics.highest_load import highest_load
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.study.parsed_columns import RECORDED
from workflow_scripts.study.paths import OUTCOME
from workflow_scripts.workloads.warmup import is_warm

INTEGER = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
# What evidence may hold, by the type of its column.
TYPES: dict[str, Any] = {
    "Int64": INTEGER,
    "Float64": Annotated[float, Field(strict=True)],
    "string": Annotated[str, Field(strict=True)],
    "boolean": Annotated[bool, Field(strict=True)],
    "object": list[StrictInt | StrictFloat],
}


def start_row(outcome: Outcome, log: EngineLogFacts | None) -> tuple[dict[str, Any], list[str]]:
    """The columns of a start that its record and its engine's log give, and faults of values of a wrong type."""
    warmup = outcome.warmup
    repeats_s = [repeat.end_monotonic_s - repeat.start_monotonic_s for repeat in outcome.repeats]
    known: dict[str, Any] = {
        "steady": is_warm(repeats_s) if len(repeats_s) > 1 else warmup and warmup.steady,
        "outcome": outcome.outcome,
        "reason": outcome.reason,
        "definition_sha256": outcome.definition_sha256,
        "protocol": outcome.definition.get("protocol"),
        **outcome.start.model_dump(),
    }
    groups: dict[str, Mapping[str, Any]] = {
        "effective": outcome.effective,
        "log": log.model_dump() if log else {},
        "phase_s": outcome.phases_s,
        "device": outcome.device,
        "host_load": outcome.host_load,
        "provenance": outcome.provenance,
    }
    if warmup:
        groups["warmup"] = warmup.model_dump() | {"passes": len(warmup.passes_s)}
        groups["experts"] = {f"experts_touched_{name}": value for name, value in warmup.experts or ()}
    if (search := outcome.search) and (passes := search.passes):
        found = highest_load([(one.load, one.met) for one in passes], search.least, search.most, search.users)
        ends = zip(("load", "load_low", "load_high"), found, strict=True)
        sent = {"passes": len(passes), "requests": sum(one.requests for one in passes)}
        groups["search"] = {**dict(ends), **sent}
    known |= {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    row: dict[str, Any] = {}
    faults = []
    for column, (dtype, places) in RECORDED.items():
        for place in places:
            if known.get(place) is not None:
                try:
                    row[column] = validated(TYPES[dtype], known[place], f"{place} in {OUTCOME}")
                except InputError as e:
                    faults.append(str(e))
                break
    effective = {name: value for name, value in outcome.effective.items() if value is not None}
    if "attention_backend" in row:
        effective["attention_backend"] = row["attention_backend"]
    cores = outcome.device.get("cores")
    row["device_cores"] = len(cores) if cores else None
    row["effective"] = json.dumps(effective, sort_keys=True) if effective else None
    return row, faults


def counts(record: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What the engine counted in a repeat, by column: counters as their growth, and peaks as their value at its end."""
    before, after = record["before"], record["after"]
    # If a server's page of metrics could not be read before the repeat, its growth in the repeat is unknown.
    is_unread = not (before.keys() & after.keys()) - {CLIENT_CPU_S}
    found = {}
    for column, metrics in {CLIENT_CPU_S: [CLIENT_CPU_S], **metrics_of_columns()}.items():
        values = (_growth(before, after, metric, is_unread) for metric in metrics)
        found[column] = next((value for value in values if value is not None), None)
    return {column: value for column, value in found.items() if value is not None}


def _growth(before: Mapping[str, Any], after: Mapping[str, Any], metric: str, is_unread: bool) -> float | None:
    now = _number(after.get(metric))
    if now is None or metric in _peaks():
        return now
    # Some counters appear when they count for the first time.
    earlier = _number(before[metric]) if metric in before else None if is_unread else 0.0
    return None if earlier is None else now - earlier


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _peaks() -> set[str]:
    return {metric for engine in load_engines().values() for metric in engine.peaks.values()}

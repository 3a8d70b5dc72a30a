"""An overview of what was run: counts, devices, models, engines, workloads, every cell, and provenance."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus, readable_models
from workflow_scripts.common.files import read_json
from workflow_scripts.device.device_check import FAULTS
from workflow_scripts.present.blocks import (
    Absent,
    Block,
    Definitions,
    Finding,
    Findings,
    Fold,
    Table,
    Text,
    shown,
    table_of,
)
from workflow_scripts.present.report import MOST_ROWS, Report
from workflow_scripts.present.report_tables import MissingError, records
from workflow_scripts.present.style import OUTCOMES
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.workloads.warmup import TOLERANCE
from workflow_scripts.workloads.workload_kinds import LengthDistribution

NOISY_PCT = 5.0
# Maximum number of cells in a sentence; a table has all of them.
MOST_NAMED = 3


def counts(report: Report) -> Iterator[Block]:
    """How many cells were asked for, and how many had each outcome."""
    grid, study = report.grid, report.study
    outcomes = grid["outcome"].value_counts()
    became = ", ".join(f"{outcomes[o]} {_words(o)}" for o in OUTCOMES if o in outcomes)
    yield Text(
        f"{len(grid)} cells: {became}. A cell is one point of the grid of device, engine, model, workload and engine "
        f"settings; each was to be timed {study.repeats} time{'s' if study.repeats > 1 else ''} after a warm-up."
    )
    names = {
        "Devices": "gpu",
        "Engines": "engine",
        "Models": "model",
        "Workloads": "workload",
    }
    rows = [[heading, ", ".join(dict.fromkeys(grid[column]))] for heading, column in names.items()]
    rows += [[knob.removeprefix("knob_"), ", ".join(sorted_values(grid[knob]))] for knob in report.tables.knobs]
    yield Table("What the study crosses", ["Axis", "Values"], rows, [False, False])


def sorted_values(column: pd.Series) -> list[str]:
    """Each value of a knob once, in order."""
    return [shown(value).replace(",", "") for value in sorted(column.dropna().unique())]


def devices(report: Report) -> Iterator[Block]:
    """The devices with the values from their data sheets."""
    catalogue = load_gpus()
    named = [(str(gpu), cells) for gpu, cells in report.grid.groupby("gpu", sort=False) if gpu in catalogue]
    measured = _measured_rates(report)
    rows = []
    for gpu, cells in named:
        entry = catalogue[gpu]
        flop = max((entry.dense_flop_per_s or {}).items(), key=lambda item: item[0] == "bf16", default=(None, None))
        rows.append(
            {
                "gpu": gpu,
                "title": entry.title,
                "cells": len(cells),
                "found": _all_of(report.tables.cells, gpu, "device_name"),
                "memory_gb": entry.memory_bytes and entry.memory_bytes / 1e9,
                "bandwidth_gb_per_s": entry.memory_bandwidth_bytes_per_s and entry.memory_bandwidth_bytes_per_s / 1e9,
                "tflop_per_s": flop[1] and flop[1] / 1e12,
                "flop_dtype": flop[0],
                "tdp_w": entry.tdp_w,
                "measured_gb_per_s": measured["memory_bandwidth_bytes_per_s"].get(gpu, np.nan) / 1e9,
                "measured_tflop_per_s": measured["flop_per_s"].get(gpu, np.nan) / 1e12,
            }
        )
    columns = {
        "gpu": "Device",
        "title": "What it is",
        "cells": "Cells",
        "found": "Name found",
        "memory_gb": "Memory (GB)",
        "bandwidth_gb_per_s": "Memory bandwidth (GB/s)",
        "tflop_per_s": "Dense matrix rate (TFLOP/s)",
        "flop_dtype": "of type",
        "tdp_w": "Power (W)",
        "measured_gb_per_s": "Bandwidth measured (GB/s)",
        "measured_tflop_per_s": "Matrix rate measured (TFLOP/s)",
    }
    yield table_of(pd.DataFrame(rows), columns, "Devices; numbers are published ones, except those measured here")
    sources = [(gpu, "; ".join(dict.fromkeys(catalogue[gpu].sources.values()))) for gpu, _ in named]
    yield Fold("Sources of the devices' numbers", [Definitions([(g, s or "no data sheet") for g, s in sources])])


def _measured_rates(report: Report) -> pd.DataFrame:
    """Rates of each device as this study measured them, by device."""
    columns = ["memory_bandwidth_bytes_per_s", "flop_per_s"]
    limits = report.tables.get("limits")
    if limits is None:
        return pd.DataFrame(columns=columns)
    of_cells = limits[limits["rates"] == "measured"].merge(report.grid[["cell_id", "gpu"]], on="cell_id")
    return of_cells.groupby("gpu")[columns].first()


def _all_of(cells: pd.DataFrame, gpu: Any, column: str) -> str:
    return ", ".join(cells.loc[cells["gpu"] == gpu, column].dropna().unique())


def engines(report: Report) -> Iterator[Block]:
    """Engines with their versions."""
    cells = report.tables.cells
    found = cells.groupby("engine", sort=False).agg(
        versions=("engine_version", _each_once),
        backends=("attention_backend", _each_once),
        cells=("cell_id", "nunique"),
    )
    yield table_of(
        found.reset_index(),
        {"engine": "Engine", "versions": "Version", "backends": "Attention backend", "cells": "Cells"},
        "Engines as they ran",
    )


def _each_once(values: pd.Series) -> str | None:
    return ", ".join(sorted(map(str, values.dropna().unique()))) or None


def workloads(report: Report) -> Iterator[Block]:
    """Workloads: what the study asks for, and the real requests."""
    rows = []
    made = list(_manifests(report))
    for name, workload in report.study.workloads.items():
        manifest = next((m for m in made if m["workload"] == name), None)
        rows.append(
            {
                "workload": name,
                "asked": workload.kind,
                "kind": manifest and manifest["kind"],
                "source": manifest and manifest.get("source"),
                "requests": workload.num_prompts if manifest is None else manifest["num_requests"],
                "alike": manifest and manifest["requests_with_prefix"],
                "prompt": _length(manifest, "prompt_tokens", getattr(workload, "prompt_tokens", None)),
                "output": _length(manifest, "output_tokens", getattr(workload, "output_tokens", None)),
            }
        )
    columns = {
        "workload": "Workload",
        "asked": "Kind asked for",
        "kind": "Kind it really was",
        "source": "Made from",
        "requests": "Requests (most in a cell)",
        "alike": "of them sharing text",
        "prompt": "Prompt tokens",
        "output": "Output tokens",
    }
    yield table_of(pd.DataFrame(rows), columns, "Workloads with the lengths of their requests")
    if not made:
        yield Absent(
            "requests as made", "there is no workload.json below prepared/workloads, so lengths are as asked for"
        )


def _manifests(report: Report) -> Iterator[dict[str, Any]]:
    for path in sorted(report.prepared.glob("workloads/**/workload.json")):
        yield read_json(path)


def _length(manifest: dict[str, Any] | None, field: str, asked: Any) -> str | None:
    if manifest is not None:
        found = manifest[field]
        return f"{shown(found['min'])} to {shown(found['max'])}, median {shown(found['median'])}"
    if isinstance(asked, LengthDistribution):
        return f"{asked.minimum} to {asked.maximum}, median about {asked.median:g}"
    return None if asked is None else str(asked)


def reasons(report: Report) -> Iterator[Block]:
    """Why cells are not ok: each reason with its number of cells, the most frequent first."""
    troubled = report.grid[report.grid["outcome"] != "ok"]
    if troubled.empty:
        return
    of_one = troubled.assign(reason=troubled["reason"].fillna("not run yet")).groupby(["outcome", "reason"], sort=False)
    rows = of_one["cell_id"].agg(["size", "first"]).reset_index().sort_values("size", ascending=False, kind="stable")
    rows["outcome"] = rows["outcome"].map(_words)
    columns = {"outcome": "Outcome", "reason": "Reason", "size": "Cells", "first": "For example"}
    note = f"{MOST_ROWS} of {len(rows)} reasons." if len(rows) > MOST_ROWS else ""
    yield table_of(rows.head(MOST_ROWS), columns, "Cells that are not ok, by reason", note)


def unsuccessful(report: Report) -> Iterator[Block]:
    """How many cells did not end ok, with the most frequent reason."""
    troubled = report.grid[~report.grid["outcome"].isin(["ok", "missing"])]
    findings = []
    for outcome, cells in troubled.groupby("outcome", sort=False):
        reasons = cells["reason"].dropna().value_counts()
        sentence = f"{len(cells)} of {len(report.grid)} cells ended as {_words(outcome)}."
        if len(reasons):
            example = cells.loc[cells["reason"] == reasons.index[0], "cell_id"].iloc[0]
            of_some = "" if reasons.iloc[0] == len(cells) else f"In {reasons.iloc[0]} of them: "
            sentence += f" {of_some}{reasons.index[0]} ({example})"
        findings.append(Finding(_words(outcome), sentence, "bad"))
    if findings:
        yield Findings(findings, "All reasons are under Every cell.")


def not_as_asked(report: Report) -> Iterator[Block]:
    """Cells that ran with other settings than the study asks for, grouped by the difference."""
    replaced = report.grid[report.grid["not_as_asked"].notna()] if "not_as_asked" in report.grid else pd.DataFrame()
    if replaced.empty:
        return
    of_one = replaced.groupby("not_as_asked", sort=False)["cell_id"].agg(["size", "first"]).reset_index()
    columns = {"not_as_asked": "What took effect", "size": "Cells", "first": "For example"}
    note = f"{MOST_ROWS} of {len(of_one)} replacements." if len(of_one) > MOST_ROWS else ""
    yield table_of(of_one.head(MOST_ROWS), columns, "Settings that the engine replaced without refusing them", note)


def every_cell(report: Report) -> Iterator[Block]:
    """Every cell with its outcome, its reason and its log, folded by device, engine, model and workload."""
    rates = report.tables.cells.groupby("cell_id")["output_tokens_per_s"].median()
    for names, part in report.grid.groupby(["gpu", "engine", "model", "workload"], sort=False):
        tally = ", ".join(f"{count} {_words(outcome)}" for outcome, count in part["outcome"].value_counts().items())
        yield Fold(f"{' · '.join(map(str, names))}: {tally}", [_cell_lines(report, part, rates)])


def _words(outcome: object) -> str:
    return str(outcome).replace("_", " ")


def _cell_lines(report: Report, part: pd.DataFrame, rates: "pd.Series[float]") -> Table:
    rows = []
    for cell in records(part):
        log = report.link(report.cells / cell["cell_id"] / "raw" / "engine.log", "log")
        log = log or report.link(report.log(cell["cell_id"]), "log")
        ended = cell["outcome"] != "missing"
        outcome = _words(cell["outcome"]) + (", not comparable" if ended and cell["comparable"] is False else "")
        rate = shown(rates.get(cell["cell_id"]))
        rows.append([cell["knobs"], outcome, rate, shown(cell["reason"]), log or "no log"])
    headings = ["Settings", "Outcome", "Output tokens per s (median)", "Reason", "Engine log"]
    return Table("Cells", headings, rows, [False, False, True, False, False])


def remote_code(report: Report) -> Iterator[Block]:
    """Which models ran Python code from their repositories, if the study allows it."""
    models = resolved_models(report.study)
    trusted = {name: model for name, model in models.items() if model.trust_remote_code}
    if trusted:
        named = ", ".join(f"{name} ({m.hub_repo} at {m.revision})" for name, m in trusted.items())
        sentence = (
            f"The study sets trust_remote_code: engines ran Python code that comes with the model, of {named}. "
            "Nobody of this pipeline has checked that code, and it may do anything that the measuring account may."
        )
        yield Findings([Finding("remote code", sentence, "bad")])


def simulated(report: Report) -> Iterator[Block]:
    """Which devices were simulated, so that nobody mistakes their numbers for those of a GPU."""
    cells = report.tables.need("cells", "source")
    pretended = cells.loc[cells["source"] == "simulated", "gpu"].unique()
    if len(pretended):
        sentence = (
            f"No number of {', '.join(pretended)} is a measurement of a GPU: the engine ran on a CPU, and power, "
            "energy, clocks, temperature and memory are made up. They are here to test this pipeline."
        )
        yield Findings([Finding("simulated", sentence, "bad")])


def slowed_gpus(report: Report) -> Iterator[Block]:
    """Whether heat or power limits slowed GPUs down while cells were timed."""
    cells = report.tables.need("cells", "cell_id", "throttle_reasons")
    known, slowed = cells[cells["throttle_reasons"].notna()], _slowed(cells)
    if len(slowed):
        sentence = (
            f"In {slowed['cell_id'].nunique()} of {known['cell_id'].nunique()} cells that tell it, heat or the power "
            "supply slowed a GPU down while it was timed; their rates are too low. They are named under Provenance."
        )
        yield Findings([Finding("slowed GPU", sentence, "bad")])


def slowed_cells(report: Report) -> Iterator[Block]:
    """Repeats in which a GPU was slowed down, with the reasons."""
    slowed = _slowed(report.tables.need("cells", "cell_id", "repeat", "throttle_reasons"))
    columns = {"cell_id": "Cell", "repeat": "Repeat", "throttle_reasons": "Reasons (NVML)"}
    if len(slowed):
        repeats = table_of(slowed.head(MOST_ROWS), columns, "Why the clocks of a GPU were below their highest")
        yield Fold(f"Repeats with a GPU slowed down: {len(slowed)}", [repeats])


def _slowed(cells: pd.DataFrame) -> pd.DataFrame:
    reasons = cells["throttle_reasons"].fillna("").str.split(",")
    return cells[[not set(FAULTS).isdisjoint(named) for named in reasons]]


def native_types(report: Report) -> Iterator[Block]:
    """The type in which models were computed if the device decides it."""
    cells = report.tables.cells
    if not {"dtype", "device_name"} <= set(cells):
        return
    native = [name for name, model in readable_models().items() if model.dtype == "native"]
    known = cells[cells["model"].isin(native)].dropna(subset=["dtype", "device_name"])
    findings = []
    for (device, dtype), rows in known.groupby(["device_name", "dtype"], sort=False):
        models = " and ".join(rows["model"].unique())
        why = (
            "this processor would have to emulate smaller types"
            if dtype == "float32"
            else "this processor does that natively"
        )
        findings.append(Finding(str(dtype), f"On {device}, {models} was computed in {dtype}: {why}."))
    if findings:
        yield Findings(findings)


def load_warning(report: Report) -> Iterator[Block]:
    """Whether other processes used the host while cells were timed."""
    load, noisy = _host_load(report)
    if noisy.empty:
        finding = Finding("quiet host", f"In no cell did others take more than {NOISY_PCT:g} % of the CPU.", "good")
    else:
        sentence = (
            f"In {len(noisy)} of {len(load)} measured cells the hypervisor or other processes took more than "
            f"{NOISY_PCT:g} % of the CPU; their rates may be too low, and intervals are wide. They are named under "
            "Provenance."
        )
        finding = Finding("loaded host", sentence, "bad")
    yield Findings([finding])


def unsteady_cells(report: Report) -> Iterator[Block]:
    """Cells that were timed although no two consecutive warm-up passes had taken equally long."""
    report.tables.need("cells", "warmup_steady")
    cells = report.tables.cells.drop_duplicates("cell_id")
    cells = cells[cells["warmup_steady"].notna()]
    unsteady = cells[~cells["warmup_steady"].astype(bool)]
    if len(unsteady):
        some = ", ".join(unsteady["cell_id"].head(MOST_NAMED)) + (", ..." if len(unsteady) > MOST_NAMED else "")
        sentence = (
            f"In {len(unsteady)} of {len(cells)} measured cells the last two passes of the warm-up differed by more "
            f"than {100 * TOLERANCE:g} %: their first repeats may be slower than the rest, and intervals are wide. "
            f"They are {some}; warmup_steady in the table cells names all."
        )
        yield Findings([Finding("not steady", sentence, "bad")])


def loaded_cells(report: Report) -> Iterator[Block]:
    """Cells during which other processes used the host."""
    _, noisy = _host_load(report)
    columns = {"cell_id": "Cell", "cpu_steal_pct": "By the hypervisor (%)", "cpu_others_pct": "By others (%)"}
    if len(noisy):
        cells = table_of(noisy.head(MOST_ROWS), columns, "CPU taken by others while the cell was timed")
        yield Fold(f"Cells with a loaded host: {len(noisy)}", [cells])


def _host_load(report: Report) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The highest load by other processes in each measured cell, and the cells where it was above `NOISY_PCT`."""
    load = report.tables.cells.groupby("cell_id", sort=False)[["cpu_steal_pct", "cpu_others_pct"]].max()
    load = load.dropna(how="all").reset_index()
    if load.empty:
        raise MissingError("no cell tells how busy its host was")
    noisy = (load[["cpu_steal_pct", "cpu_others_pct"]] > NOISY_PCT).any(axis=1)
    return load, load[noisy]


def provenance(report: Report) -> Iterator[Block]:
    """Hosts, devices, commits, locks, protocol and times of the measurements; versions as the cells recorded them."""
    cells = report.tables.cells
    started = cells["started_at"].dropna() if "started_at" in cells else pd.Series(dtype=object)
    rows = [
        [heading, ", ".join(map(str, cells[column].dropna().unique()))]
        for column, heading in {
            "host": "Hosts",
            "device_uuid": "Devices (UUID)",
            "git_commit": "Commits that measured",
            "protocol": "Protocol versions",
            "source": "Source of the numbers",
        }.items()
        if column in cells and cells[column].notna().any()
    ]
    if len(started):
        rows.append(["First and last repeat began", f"{started.min()} and {started.max()}"])
    yield Table("Where the numbers come from", ["What", "Values"], rows, [False, False])
    yield _measured_where(cells)
    records = report.outcome_records
    if not records:
        yield Absent("versions", "no outcome.json of a cell was found")
    for record in records:
        yield Fold(f"Recorded with {record['cell_id']}", [_flat_table(record["provenance"])])


def _measured_where(cells: pd.DataFrame) -> Table:
    """Cells by device, host, engine, protocol and lock: shows what was merged from clusters or measured again."""
    places = {
        "gpu": "Device",
        "host": "Host",
        "processor": "Processor",
        "engine_version": "Engine",
        "protocol": "Protocol version",
        "lock_sha256": "Lock (SHA-256)",
    }
    measured = cells[cells["outcome"] != "missing"].reindex(columns=[*places, "cell_id"])
    counts = measured.groupby(list(places), dropna=False, sort=False)["cell_id"].nunique()
    rows = [
        [*map(shown, place), shown(lock)[:12], str(count)]
        for *place, lock, count in counts.reset_index().itertuples(index=False, name=None)
    ]
    note = "Cells of different locks or processors, or of another protocol version than the study's, are not compared."
    return Table("Cells by where they were measured", [*places.values(), "Cells"], rows, [False] * 6 + [True], note)


def _flat_table(record: dict[str, Any]) -> Table:
    rows: list[list[str]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            rows += [[f"{name}: {part}", str(item)] for part, item in value.items()]
        else:
            rows.append([name, shown(value)])
    return Table("Provenance", ["What", "Value"], rows, [False, False])

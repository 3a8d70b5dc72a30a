"""Tables with made-up numbers, in the form that docs/tables.md gives; nothing here was measured.

Numbers of cells are made up here. Tables that follow from them are made by the analysis itself. Tables that need more
evidence than cells are made up too, and checked with their schema.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from tests.unit.made_studies import fixed, study_content
from tests.unit.questions.synthetic_cells import plan_of, write_measurements
from workflow_scripts.present import figures, page
from workflow_scripts.questions.comparisons.table import comparison_tables
from workflow_scripts.questions.predictions.table import QUANTITIES, predictions_table
from workflow_scripts.questions.recommendations.table import recommendations
from workflow_scripts.questions.sections import SUBJECTS
from workflow_scripts.questions.table_docs import schemas
from workflow_scripts.questions.trust.provenance import provenance_table
from workflow_scripts.study.definition import cell_definition, resolved_models
from workflow_scripts.study.grid import expand
from workflow_scripts.study.parsed_columns import table_columns
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.cell_intervals import cell_intervals, with_waste
from workflow_scripts.tables.measurements import FRAME_COLUMNS, read_measurements
from workflow_scripts.tables.summary import Summaries
from workflow_scripts.tables.typed_tables import TABLE_SCHEMAS, read_table, write_table

schemas()  # imports every module that makes a table, so that each table has its schema here

# Text that a log, a prompt or a study file may hold, and that must never reach a browser as markup.
SCRIPT = "<script>alert('from a log')</script>"
# Of keys and values, of an 8B model in 16 bits.
BYTES_PER_TOKEN = 131_072
SPEED = {"h200": 4.8, "a100-sxm-80gb": 2.0, "l40s": 0.86}
NAMES = ("gpu", "engine", "model", "workload")
MEASURED_BY = {
    **{"comparable": True, "source": "measured", "host": "node-1", "git_commit": "0" * 40, "protocol": "1"},
    **{"engine_version": "0.32.0", "attention_backend": "FLASH_ATTN"},
}
LATENCIES = {"ttft_s_p50": 0.2, "queue_s_p50": 0.15, "prefill_s_p50": 0.05, "ttft_s_p99": 0.4, "tpot_s_p50": 0.02}

SETTING = {"block_size": 16, "max_num_seqs": 64}
SWEEPS = {
    "grid": {"gpu": list(SPEED), "knobs": {"block_size": [8, 16, 32, 64], "max_num_seqs": [1, 4, 16, 64, 256]}},
    "prefix-caching": {
        **{"gpu": ["h200", "l40s"], "workload": ["chat", "system-prompt"]},
        "knobs": SETTING | {"enable_prefix_caching": [True, False]},
    },
    "hf": {"gpu": ["h200", "l40s"], "engine": "hf-static", "knobs": {"batch_size": [1, 16, 64]}},
    "served": {"engine": "vllm-serve", "knobs": SETTING | {"request_rate_per_s": [1, 4, 16]}},
    "pressure": {"workload": "system-prompt", "knobs": SETTING | {"num_gpu_blocks_override": [257, 513]}},
    "pressure-contiguous": {
        "workload": "system-prompt",
        "knobs": SETTING | {"block_size": 4096, "num_gpu_blocks_override": 3},
    },
}
STUDY = study_content(
    *({"name": name, "model": "llama-3.1-8b-instruct"} | sweep for name, sweep in SWEEPS.items()),
    name="synthetic",
    question=f"Are made-up numbers drawn as they are? {SCRIPT}",
    repeats=3,
    claims=["h200-over-l40s"],
    workloads={
        "chat": {
            "kind": "synthetic",
            "num_prompts": 64,
            "prompt_tokens": {"median": 200, "sigma": 0.6, "maximum": 1024},
            "output_tokens": {"median": 120, "sigma": 0.6, "maximum": 512},
        },
        "system-prompt": fixed(64, 64, 32, kind="shared_prefix", prefix_tokens=512, keep_answers=True),
    },
    engine_defaults={"vllm": {"max_model_len": 4096}},
)


# The figures of the sections that the study has.
DRAWN = [draw.__name__ for of in SUBJECTS if of.is_in(Study.model_validate(STUDY)) for draw in of.figures]


def write_study(folder: Path, content: Mapping[str, Any] = STUDY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{content['name']}.yaml"
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return path


def outcome_of(row: dict[str, object]) -> tuple[str, str | None]:
    """Block size 8 is refused, and a few cells end in other ways."""
    if row.get("knob_block_size") == 8:
        return "infeasible", f"ValueError: block size 8 is refused {SCRIPT}"
    place = (row["gpu"], row.get("knob_block_size"), row.get("knob_max_num_seqs"))
    return {
        ("l40s", 64, 256): ("timeout", "not done after 1800 s"),
        ("l40s", 64, 64): ("engine_error", "EngineDeadError: the engine died"),
        ("a100-sxm-80gb", 64, 256): ("missing", None),
        ("a100-sxm-80gb", 32, 1): ("invalid", "output_tokens_per_s above its ceiling"),
    }.get(place, ("ok", None))


def cells_table(study: Study) -> pd.DataFrame:
    rng, models = np.random.default_rng(7), resolved_models(study)
    rows: list[dict[str, object]] = []
    for cell in expand(study):
        asked: dict[str, object] = {"cell_id": cell.id, "study": study.name, "sweeps": ",".join(cell.sweeps)}
        definition = json.dumps(cell_definition(study, cell, models).as_json())
        asked |= {"definition": definition, "equivalence_margin_pct": study.equivalence_margin_pct}
        asked |= {"knobs": cell.knobs.slug(), "max_concurrency_allowed": cell.knobs.max_concurrency, **MEASURED_BY}
        asked |= {name: getattr(cell, name) for name in NAMES}
        asked |= {"engine": cell.engine_at, "environment": cell.environment or None}
        asked |= {f"knob_{name}": value for name, value in cell.knobs.set_values().items()}
        asked |= {"device_name": f"Made-up {cell.gpu}", "steady": cell.gpu != "l40s"}
        asked |= {"not_as_asked": "max_model_len 2048, not 4096" if cell.gpu == "h200" else None}
        asked |= {"lock_sha256": ("a" if cell.gpu == "h200" else "b") * 64}
        outcome, reason = outcome_of(asked)
        asked |= {"outcome": outcome, "reason": reason, "start": None if outcome == "missing" else 1}
        asked |= {"comparable": outcome != "missing"}
        if outcome in ("ok", "invalid"):
            rows += [asked | measured_of(asked, repeat, rng) for repeat in range(study.repeats)]
        else:
            rows.append(asked)
    table = pd.DataFrame(rows)
    knobs = [column for column in table if column.startswith("knob_")]
    return table.reindex(columns=[*FRAME_COLUMNS, *knobs]).convert_dtypes()


def measured_of(cell: dict[str, object], repeat: int, rng: np.random.Generator) -> dict[str, object]:
    """One repeat's numbers: they rise with the sequences that may run at once and with the device's speed."""
    blocks, is_vllm = cell.get("knob_num_gpu_blocks_override"), str(cell["engine"]).partition("@")[0] == "vllm"
    shares_prefix, cached = cell["workload"] == "system-prompt", cell.get("knob_enable_prefix_caching") is True
    seqs = 2 if blocks == 3 else min(int(str(cell["max_concurrency_allowed"])), 64)
    speed = SPEED.get(str(cell["gpu"]), 1.0)
    output_rate = 55 * speed * seqs**0.8 * (1.0 if is_vllm else 0.45) * rng.normal(1, 0.02)
    output_rate *= 1.4 if cached and shares_prefix else 1
    output_tokens, prompt_tokens = 8_000, 14_000
    wall_s, watts, kv_cache_tokens = output_tokens / output_rate, 300 * speed, 30_000 * speed * 16
    row: dict[str, object] = {"start": 1, "repeat": repeat, "num_requests": 64, "wall_s": wall_s, **LATENCIES}
    row |= {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "output_tokens_per_s": output_rate}
    row |= {"total_tokens_per_s": (prompt_tokens + output_tokens) / wall_s, "requests_per_s": 64 / wall_s}
    row |= {"running_peak": seqs, "kv_cache_usage_peak": 0.02 * seqs / 64, "preemptions": 0}
    row |= {"block_size_effective": cell.get("knob_block_size"), "num_gpu_blocks": blocks or 30_000 * speed}
    row |= {"max_model_len_effective": 4096 if blocks else None, "running_while_others_wait": seqs if blocks else None}
    row |= {"kv_cache_tokens": kv_cache_tokens, "max_concurrency": kv_cache_tokens / 4096}
    row |= {"power_w_mean": watts, "energy_j": watts * wall_s, "energy_j_per_output_token": watts / output_rate}
    row |= {"memory_used_bytes_max": 60e9, "power_cap_share": 0.5, "sm_clock_mhz_min": 1200}
    slowed = cell["gpu"] == "l40s" and repeat == 1
    row["throttle_reasons"] = "HwThermalSlowdown,SwPowerCap" if slowed else "SwPowerCap"
    row |= {"kv_tokens_live_mean": 100 * seqs, "kv_bytes_used_mean": 100 * seqs * BYTES_PER_TOKEN}
    reserved_bytes = (kv_cache_tokens if is_vllm else 400 * seqs) * BYTES_PER_TOKEN
    row |= {"kv_bytes_reserved_mean": reserved_bytes, "kv_bytes_reserved_peak": reserved_bytes}
    row |= {"prefix_cache_queries": 14_000 if cached else 0, "prefix_cache_hit_rate": 0.8 if shares_prefix else 0.0}
    busy_pct = 9.5 if cell["gpu"] == "l40s" and repeat == 0 else 0.1
    row |= {"cpu_steal_pct": busy_pct, "cpu_others_pct": 0.3}
    return row | {"started_at": f"2026-01-02T03:0{repeat}:00+00:00"}


def trace_of(row: Any) -> Mapping[str, object]:
    time_s = np.linspace(0, 10, 40)
    used = 40e9 + 4e9 * np.minimum(time_s, 4) + 1e8 * row.repeat
    return {"time_s": time_s, "memory_used_bytes": used, "process_memory_bytes": np.nan}


def steps_of(row: Any) -> Mapping[str, object]:
    time_s, seqs = np.linspace(0, 10, 60), min(row.max_concurrency_allowed, 64)
    running = np.round(seqs * np.clip((10 - time_s) / 3, 0, 1))
    waiting = np.round(np.clip((64 - seqs) * (1 - time_s / 7), 0, None))
    return {"time_s": time_s, "running": running, "waiting": waiting, "kv_cache_usage": 0.001 * running}


def requests_of(row: Any) -> Mapping[str, object]:
    """All at once, but on the L40S one every tenth of a second."""
    numbers = np.arange(64)
    queued_s = (0.1 if row.gpu == "l40s" else 0.0) * numbers
    prompt_tokens = 576 if row.workload == "system-prompt" else 20 + 10 * numbers
    times_s = {"queued_s": queued_s, "scheduled_s": queued_s, "first_token_s": queued_s + 0.2}
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": 32}
    return {"request_id": numbers.astype(str), **lengths, **times_s, "last_token_s": queued_s + 2}


FACTS = {"trace": trace_of, "steps": steps_of, "requests": requests_of}


def facts_table(cells: pd.DataFrame, gpu: str, name: str) -> pd.DataFrame:
    """The table `parsed/{gpu}/{name}.parquet` of measured repeats; only vLLM tells its steps."""
    told = cells["repeat"].notna() & (cells["engine"].eq("vllm") | (name != "steps"))
    parts = [
        pd.DataFrame({"cell_id": row.cell_id, "start": row.start, "repeat": row.repeat, **FACTS[name](row)})
        for row in cells[told & (cells["gpu"] == gpu)].itertuples()
    ]
    types = table_columns()[name]
    return pd.concat([pd.DataFrame(), *parts]).reindex(columns=list(types)).astype(types)


def columns_of(table: str) -> list[str]:
    """The columns that every table of this name has."""
    return [name for name in TABLE_SCHEMAS[table].columns if not name.startswith("^")]


def limits_table(cells: pd.DataFrame) -> pd.DataFrame:
    """The table `limits`: a ceiling twice as high as what was measured, and half as high for cells that are invalid."""
    rows = cells[cells["repeat"].notna()].copy()
    factor = rows["outcome"].map({"invalid": 2.0}).fillna(0.5).astype(float)
    output, total = (rows[f"{of}_tokens_per_s"].astype(float) for of in ("output", "total"))
    of_device = {"rates": "datasheet", "read_bytes_per_s": 4e12, "flop_per_s": 8e14, "read_bytes": 1e12}
    bounds = {"steps_bound_by": "max_num_seqs", "decode_bound_by": "memory bandwidth", "tolerance": 0.0}
    broken = np.where(factor > 1, "output_tokens_per_s: memory bandwidth of the data sheet", None)
    rows = rows.assign(output_tokens_per_s_ceiling=output / factor, total_tokens_per_s_ceiling=total / factor)
    rows = rows.assign(mbu=factor, mfu=factor / 10, factor=factor, exceeds=factor > 1, ceiling_broken=broken)
    rows = rows.assign(flops=output * 1e10, source="predicted", **of_device, **bounds)
    return rows.reindex(columns=columns_of("limits"))


def waste_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Half a block a sequence of 100 tokens is empty, and three quarters of a contiguous layout."""
    known = ["cell_id", "start", "repeat", "engine", "block_size_effective", "kv_tokens_live_mean"]
    rows = cells.loc[cells["repeat"].notna(), known]
    paged = rows[rows["engine"] == "vllm"].assign(layout="paged", source="measured")
    paged["block_size"] = paged["block_size_effective"]
    other = [paged.assign(layout="block_size_whatif", block_size=size, source="predicted") for size in (1, 8, 16, 64)]
    contiguous = rows.assign(layout="contiguous_max_model_len", waste_pct=75.0, source="predicted")
    caches = rows[rows["engine"] != "vllm"].assign(layout="hf_dynamic_cache", waste_pct=40.0, source="measured")
    table = pd.concat([paged, *other, contiguous, caches])
    empty = (table["block_size"].astype(float) - 1) / 2
    table["waste_pct"] = table["waste_pct"].fillna(100 * empty / (100 + empty))
    table["tokens_held_mean"] = table["kv_tokens_live_mean"].astype(float)
    table["slots_held_mean"] = table["tokens_held_mean"] / (1 - table["waste_pct"] / 100)
    return table.reindex(columns=columns_of("fragmentation"))


def capacity_table(cells: pd.DataFrame) -> pd.DataFrame:
    """The table `memory`: predictions are 2 % too high."""
    rows = cells[(cells["engine"] == "vllm") & cells["num_gpu_blocks"].notna()].drop_duplicates("cell_id")
    table, factor = rows.reset_index(drop=True), 1.02
    for name in ("num_blocks", "kv_cache_tokens", "max_concurrency"):
        table[f"observed_{name}"] = table[name.replace("num_", "num_gpu_")].astype(float)
        table[f"predicted_{name}"] = table[f"observed_{name}"] * factor
        table[f"{name}_error_pct"] = 100 * (factor - 1)
    return table.reindex(columns=columns_of("memory"))


def plan_table(cells: pd.DataFrame) -> pd.DataFrame:
    """A plan that is 5 % too fast on vLLM and half as fast as HuggingFace really is, with a band of 20 %."""
    rows = cells.groupby("cell_id", sort=False).first().reset_index()
    factor = np.where(rows["engine"] == "vllm", 1.05, 0.5)
    predicted: dict[str, object] = {"running_peak": rows["running_peak"], "evicted_blocks": 0}
    predicted["infeasible"] = np.where(rows["outcome"] == "infeasible", "blocks of that size", None)
    for name in QUANTITIES:
        value = rows[name].astype(float) * factor
        predicted |= {name: value, f"{name}_low": value / 1.2, f"{name}_high": value * 1.2}
    return plan_of(rows, error_pct=20.0, ttft_error_pct=30.0, **predicted)


def claims_table() -> pd.DataFrame:
    """The table `claims`: one of each verdict."""
    verdicts = ["supported", "contradicted", "not testable here"]
    rows = pd.DataFrame({"verdict": verdicts, "published_by": "a made-up blog", "published_value": "2 x"}).assign(
        claim=[f"A made-up claim that is {verdict}." for verdict in verdicts],
        evidence=["[limits] It is possible.", f"[limits] It is not. {SCRIPT}", None],
        would_test=[None, None, "snakemake --cores all"],
        section="block-size",
    )
    return rows.reindex(columns=columns_of("claims"))


def serving_tables(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `serving` and `serving_summary`: the server answers at most ten requests a second."""
    rows = cells[cells["engine"].str.contains("-serve") & cells["repeat"].notna()]
    rate = rows.get("knob_request_rate_per_s", pd.Series(dtype=float)).astype(float)
    answered, saturated = np.minimum(rate, 10), rate > 10
    table = rows.assign(load="open loop", request_rate_per_s=rate, arrivals_per_s=rate, requests_per_s=answered)
    table = table.assign(goodput_requests_per_s=answered * np.where(saturated, 0.2, 1.0), saturated=saturated)
    table = table.assign(ttft_s_p50=0.1 * rate, ttft_s_p99=0.3 * rate, tpot_s_p50=0.02)
    limited_by = np.where(saturated, "server", "load")
    table = table.assign(limited_by=limited_by, queue_growth_per_s=np.maximum(rate - 10, 0))
    rates = table["output_tokens_per_s"].astype(float).map(np.log).groupby(table["cell_id"]).mean().map(np.exp)
    summary = table.drop_duplicates("cell_id").assign(repeats=3)
    summary["output_tokens_per_s"] = summary["cell_id"].map(rates)
    return table.reindex(columns=columns_of("serving")), summary.reindex(columns=columns_of("serving_summary"))


def write_tables(cells: pd.DataFrame, tables: Path) -> None:
    def write(**of: pd.DataFrame) -> None:
        for name, table in of.items():
            write_table(table, tables / f"{name}.parquet")

    write_measurements(cells, tables)
    cells = read_measurements(tables)
    serving, summary = serving_tables(cells)
    waste = waste_table(cells)
    intervals = with_waste(cell_intervals(Summaries(cells)), cells, waste)
    write(intervals=intervals, serving=serving, serving_summary=summary)
    write(limits=limits_table(cells))
    write(fragmentation=waste, memory=capacity_table(cells))
    # A flat line that someone published for the first device.
    place = ("vllm", str(cells["model"].iloc[0]), next(iter(SPEED)))
    published = {(*place, seqs): 1e5 for seqs in (1.0, 4.0, 16.0, 64.0, 256.0)}
    write(predictions=predictions_table(cells, intervals, plan_table(cells), published), claims=claims_table())
    predictions = read_table(tables / "predictions.parquet")
    comparisons, devices = comparison_tables(Summaries(cells), 2.0, predictions=predictions)
    write(comparisons=comparisons, devices=devices)
    recommended = recommendations(Summaries(cells), comparisons, 2.0, {})
    write(recommendations=recommended.assign(command=f"vllm serve {SCRIPT}"))


def arguments(**options: Path) -> list[str]:
    """The options of a command, each with its path."""
    return [word for name, path in options.items() for word in (f"--{name}", str(path))]


def write_results(
    folder: Path,
    content: Mapping[str, Any] = STUDY,
    change: Callable[[pd.DataFrame], pd.DataFrame] = lambda cells: cells,
) -> Path:
    """Write a study's whole results with made-up numbers below `folder`; return the study file. `change` may change its
    cells."""
    path = write_study(folder, content)
    study = load_study(path)
    cells = change(cells_table(study))
    write_tables(cells, folder / "tables")
    for gpu in dict.fromkeys(cells.loc[cells["repeat"].notna(), "gpu"]):
        parsed = folder / "parsed" / gpu
        parsed.mkdir(parents=True, exist_ok=True)
        for name in FACTS:
            facts_table(cells, gpu, name).to_parquet(parsed / f"{name}.parquet")
    for cell_id, outcome in cells[["cell_id", "outcome"]].drop_duplicates().itertuples(index=False):
        if outcome != "missing":
            log = folder / "cells" / cell_id / "raw" / "engine.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"a made-up log\n{SCRIPT}\n")
    known = provenance_table(cells, StudyPaths(folder.parent, folder.name))
    write_table(known, folder / "tables/provenance.parquet")
    return path


def draw_results(
    folder: Path,
    content: Mapping[str, Any] = STUDY,
    change: Callable[[pd.DataFrame], pd.DataFrame] = lambda cells: cells,
) -> Path:
    """Write the results of `write_results`, and draw their figures and their page, which is returned."""
    study = write_results(folder, content, change)
    drawn = {name: folder / name for name in ("tables", "figures", "cells")}
    assert figures.main(arguments(study=study, out=folder / "figures", tables=folder / "tables")) == 0
    assert page.main(arguments(study=study, out=folder / "report.html", **drawn)) == 0
    return folder / "report.html"

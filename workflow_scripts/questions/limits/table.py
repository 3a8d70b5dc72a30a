"""Compare each repeat with the maximum that the hardware allows, and mark impossible ones.

One row per repeat and source of rates: the device's data sheet, and its measured rates. docs/limits.md says how the
numbers are made.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts
from workflow_scripts.questions.limits.ceilings import (
    CACHE,
    MEMORY,
    KnownRates,
    binding,
    devices_of,
    least_steps,
    phase_flops,
    phase_times,
    rates_of,
)
from workflow_scripts.statistics.errors import FloatArray
from workflow_scripts.study.study import Study
from workflow_scripts.tables.measurements import MEASURED
from workflow_scripts.tables.parsed_facts import REPEAT
from workflow_scripts.tables.summary import as_applied, dtypes, numbers, usable_blocks
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, NUMBER, TEXT, declared, table_schema
from workflow_scripts.tables.work import read_work

# A measured rate holds for one moment: on a shared host, one core was observed to read at 10 and at 24 GB/s.
_TOLERANCE = {"datasheet": 0.0, "measured": 0.25}

TOKEN_RATES = ("output_tokens_per_s", "total_tokens_per_s")
_LABELS = {"datasheet": "data sheet", "measured": "device as measured"}

SCHEMA = table_schema(
    "limits",
    "The highest rate that the hardware allows: one row per repeat and source of rates ([how](limits.md)).",
    TEXT("cell_id", "as in `cells`"),
    INTEGER("start repeat", "as in `repeats`"),
    TEXT("rates", "source of the device's rates: `datasheet` or `measured`"),
    NUMBER("memory_bandwidth_bytes_per_s flop_per_s", "rates of one device"),
    FLAG("weights_fit_cache", "all weights fit in the last-level cache, whose rate replaces that of memory"),
    NUMBER("read_bytes_per_s", "highest rate of reading a step's bytes, from memory or cache"),
    NUMBER("sequences_max", "the smaller of `max_concurrency_allowed` and the number of requests"),
    NUMBER("steps_min", "minimum number of steps for all output tokens"),
    NUMBER("output_tokens_per_step_max", "output tokens over `steps_min`"),
    TEXT("steps_bound_by", "what prevents fewer steps: `max_num_seqs`, `requests`, `longest_request` or `kv_blocks`"),
    NUMBER(
        "prefill_memory_s prefill_arithmetic_s decode_memory_s decode_arithmetic_s",
        "minimum time of each phase by each resource",
    ),
    TEXT("decode_bound_by bound_by", "the resource that takes longer"),
    NUMBER("wall_s_min", "minimum time of the repeat"),
    NUMBER([f"{rate}_ceiling" for rate in TOKEN_RATES], "tokens over `wall_s_min`"),
    NUMBER("steps", "scheduler steps"),
    NUMBER("read_bytes flops", "bytes to read and operations of these steps, on all devices"),
    declared("mbu mfu", "`read_bytes` and `flops` over `wall_s`, as a share of the device's rate"),
    NUMBER("factor", "measured rate over its ceiling, the higher of output and total tokens"),
    NUMBER("tolerance", "how far `factor` may exceed 1; infinite if other programs disturbed the measured rates"),
    FLAG("exceeds", "`factor` is above 1 + `tolerance`"),
    TEXT("ceiling_broken", "the rate and the exceeded ceiling"),
    TEXT("source", "`predicted`"),
)


def limits_table(work: pd.DataFrame, devices: Path) -> tuple[pd.DataFrame, list[str]]:
    """The table of `read_work`, with the records in `devices`, and the reasons why some repeats have no rows."""
    if work.empty:
        return pd.DataFrame(columns=list(SCHEMA.columns)), []
    settings = {name: as_applied(work, name) for name, knob in every_knob().items() if knob.neutral is not None}
    work = work.assign(**settings, dtype=dtypes)
    work["num_gpu_blocks"] = usable_blocks(work)
    work = work.join(least_steps(work))
    parts: list[pd.DataFrame] = []
    reasons: list[str] = []
    keys = ["gpu", "model", "dtype", "quantization", "kv_cache_dtype", "mamba_ssm_cache_dtype", "tensor_parallel_size"]
    for key, rows in work.groupby(keys):
        gpu, model, dtype, quantization, kv_cache_dtype, states_in, _ = map(str, key)
        try:
            facts = read_model_facts(get_model(model).config, dtype, quantization or None).with_states_in(states_in)
        except ModelFactsError as e:
            reasons.append(f"no limits of {model}: {e}")
            continue
        rates_found = rates_of(get_gpu(gpu), devices)
        if not rates_found:
            reasons.append(f"no limits on {gpu}: it has no data sheet, and {devices} has no record of it")
        parts += [_limits(rows, facts, rates, kv_cache_dtype) for rates in rates_found]
    table = pd.concat(parts) if parts else pd.DataFrame(columns=list(SCHEMA.columns))
    return table.sort_values([*REPEAT, "rates"])[list(SCHEMA.columns)], list(dict.fromkeys(reasons))


def _limits(work: pd.DataFrame, facts: ModelFacts, rates: KnownRates, kv_cache_dtype: str) -> pd.DataFrame:
    times = phase_times(work, facts, rates, kv_cache_dtype)
    cache_bytes_per_s, memory_bytes_per_s = rates.cache_bytes_per_s(facts), rates.memory_bandwidth_bytes_per_s
    from_cache = times["weights_fit_cache"] & np.isfinite(cache_bytes_per_s)
    memory = np.where(from_cache, CACHE, MEMORY)
    bound_by = {
        f"{phase}bound_by": binding(times[f"{phase}memory_s"], times[f"{phase}arithmetic_s"], memory)
        for phase in ("decode_", "")
    }
    table = work.join(times).assign(
        read_bytes_per_s=np.where(from_cache, cache_bytes_per_s, memory_bytes_per_s),
        rates=rates.source,
        # The rates of a disturbed device are too low to call anything impossible.
        tolerance=np.inf if rates.measured and rates.measured.disturbed else _TOLERANCE[rates.source],
        memory_bandwidth_bytes_per_s=memory_bytes_per_s,
        flop_per_s=rates.flop_per_s(facts),
        source="predicted",
        **bound_by,
    )
    counts = table["output_tokens"], table["output_tokens"] + table["prompt_tokens"]
    for rate, count in zip(TOKEN_RATES, counts, strict=True):
        table[f"{rate}_ceiling"] = count / times["wall_s_min"].where(times["wall_s_min"] > 0)
    return _verdict(_utilization(table, facts, rates, kv_cache_dtype))


def _utilization(table: pd.DataFrame, facts: ModelFacts, rates: KnownRates, kv_cache_dtype: str) -> pd.DataFrame:
    """Add what the repeat had to read and compute, as a share of what the device could do in the same time."""
    wall_s, steps = numbers(table["wall_s"]), numbers(table["steps"])
    devices = numbers(devices_of(table, rates.gpu))
    bytes_per_s = numbers(table["read_bytes_per_s"]) * devices
    flop_per_s = rates.flop_per_s(facts) * devices
    tokens = numbers(table["computed_prompt_tokens"] + table["decode_tokens"])
    read_bytes = steps * facts.step_weight_bytes(tokens / steps) + _kv_bytes(table, facts, kv_cache_dtype)
    flops = np.add(*phase_flops(table, facts))
    return table.assign(
        read_bytes=read_bytes,
        flops=flops,
        mbu=read_bytes / wall_s / bytes_per_s,
        mfu=flops / wall_s / flop_per_s,
    )


def _kv_bytes(table: pd.DataFrame, facts: ModelFacts, kv_cache_dtype: str) -> FloatArray:
    """Bytes of keys, values and states that decode steps had to move on all ranks: a state is read and written, and a
    shared prefix is read once for all sequences, as in the ceilings."""
    ranks = int(table["tensor_parallel_size"].iloc[0])  # that of all rows
    read = 2 * ranks * facts.state_bytes(ranks) * numbers(table["decode_tokens"])
    for reach in facts.reaches_on(ranks):
        bytes_of_token = reach.kv_elements * facts.kv_dtype_bytes(kv_cache_dtype)
        tokens = numbers(table[f"kv_tokens_read{reach.suffix}"])
        shared = np.minimum(numbers(table["kv_tokens_shared"]), tokens)
        read = read + bytes_of_token * (tokens - shared * (1 - 1 / numbers(table["sequences_max"])))
    # The cache is read once per output token, or less often if a step also accepts drafted tokens.
    unread = numbers(table["accepted_draft_tokens"].where(table["num_speculative_tokens"] > 0, 0.0))
    return read * (1 - unread / numbers(table["output_tokens"]))


def _verdict(table: pd.DataFrame) -> pd.DataFrame:
    output, total = (table[rate].astype(float) / table[f"{rate}_ceiling"] for rate in TOKEN_RATES)
    highest = 1 + table["tolerance"]
    exceeds = (output > highest) | (total > highest)
    which = pd.Series(np.where(output > highest, *TOKEN_RATES), index=table.index, dtype="string")
    broken = which + ": " + table["bound_by"] + " of the " + table["rates"].map(_LABELS)
    return table.assign(
        factor=np.fmax(output, total), exceeds=exceeds, ceiling_broken=broken.where(exceeds).astype("string")
    )


def mark_invalid(cells: pd.DataFrame, limits: pd.DataFrame) -> pd.DataFrame:
    """Mark every cell with a repeat above a ceiling as `invalid`; `reason` names the ceiling.

    One impossible repeat makes the clock or the counts of all repeats of its cell unreliable. The values are kept.
    """
    worst = {
        row.cell_id: f"repeat {row.repeat} of start {row.start} is {row.factor:.3g} times its ceiling on "
        f"{row.ceiling_broken}"
        for row in limits[limits["exceeds"].eq(True)].sort_values("factor").itertuples()
    }
    reason = cells["cell_id"].map(worst).where(cells["outcome"].eq("ok") & cells["source"].eq(MEASURED))
    return cells.assign(
        outcome=cells["outcome"].mask(reason.notna(), "invalid"), reason=cells["reason"].mask(reason.notna(), reason)
    )


def checked(
    cells: pd.DataFrame, study: Study, parsed: Path, devices: Path
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """The cells with those above a ceiling marked `invalid`, their limits, and why some repeats have none."""
    # A table may also hold cells of other studies and published data; only the study's own have evidence here.
    own = cells[cells["study"].eq(study.name) & cells["source"].eq(MEASURED)]
    table, reasons = limits_table(read_work(own, parsed), devices)
    return mark_invalid(cells, table), table, reasons

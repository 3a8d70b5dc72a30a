"""Divide the time of each repeat on a GPU into the work of the GPU and waiting for its host.

An engine launches its next step while the GPU computes the present one, so the time from the end of one decode step to
the end of the next is the work of the GPU. A step with prompts takes longer to launch than a decode step takes to
compute, and the GPU waits. docs/gpus.md says how well this agrees with what the driver reports.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import get_gpu, load_gpus
from workflow_scripts.questions.limits.ceilings import Rates, rates_of
from workflow_scripts.statistics.comparisons import CONFIDENCE, mean_errors
from workflow_scripts.statistics.errors import Error, added, half_width
from workflow_scripts.statistics.start_spread import BoolArray, FloatArray
from workflow_scripts.statistics.summary import as_applied, comparable_rows, dtypes, numbers, summarise
from workflow_scripts.tables.imported_cells import IMPORTED
from workflow_scripts.tables.parsed_facts import REPEAT, known_facts, read_parsed
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, table_schema

# Prompts are computed at this share of the measured rate of large matrix products: steps of more than 3,000 tokens ran
# at 0.84 to 0.98 of it on an H200 and an H100, the lower end where the power limit lowered the clocks.
PROMPT_SHARE_OF_RATE = 0.85
# The standard deviation of that rate, as a logarithm; and the part of its time for which the host makes a GPU wait in
# decode steps, if the driver was not sampled.
PROMPT_RATE_SD, HIDDEN = 0.04, 0.012
# Measured rates of operations and of reading over those of the data sheet, on both: for GPUs that were not measured.
OF_DATA_SHEET = 0.79, 0.88
# A step whose work takes longer hides every launch; launches of steps without graphs took up to 40 ms.
LONGEST_LAUNCH_S = 0.05
# The driver reports its utilization for the last fraction of a second; with fewer samples a repeat has no mean of it.
LEAST_SAMPLES = 10
# How much the rate without waiting differs between occasions of a GPU, as logarithms: four cells of two H200. Starts on
# one GPU differ by 0.06 % or less.
OCCASION_SD, OCCASION_DF = 0.0087, 4.0
# Squared standard errors of means and their degrees of freedom.
Errors = tuple[FloatArray, FloatArray]
# The first request starts a step alone; the others arrive during it.
_FIRST_STEPS = 2
# What the steps of a repeat tell.
_OF_STEPS = ("decode_step_s", "prompt_steps", "device_s", "prompts_s", "launch_s", "arrival_s", "other_s", "last_s")

SCHEMA = table_schema(
    "waiting",
    "Time of each repeat on a GPU: work of the GPU and waiting for its host. One row per repeat of "
    "an `ok` cell. `device_s`, `launch_s`, `arrival_s` and `other_s` add up to `wall_s`.",
    TEXT("cell_id study source gpu engine model workload knobs", "as in `cells`"),
    INTEGER("start repeat", "as in `repeats`"),
    TEXT("session", "as in `starts`"),
    NUMBER("wall_s", "as in `repeats`"),
    NUMBER("decode_step_s", "median time between the ends of two decode steps without a step with prompts next"),
    INTEGER("prompt_steps", "steps with prompts"),
    NUMBER(
        "device_s",
        "expected work of the GPU; null if the time of a step is not known. A decode step counts as the median of "
        "those with as many sequences; a step with prompts as that or, if longer, as its operations at "
        f"{PROMPT_SHARE_OF_RATE:g} of the measured rate, or of {OF_DATA_SHEET[0]:g} of the data sheet's. A step of "
        f"more than {1000 * LONGEST_LAUNCH_S:g} ms counts whole",
    ),
    NUMBER(
        "device_error",
        f"standard error of the logarithm of `device_s`: of the prompts' rate ({PROMPT_RATE_SD:.0%}), and of waits in "
        f"decode steps that the driver saw and `waiting_share` lacks (mean of the cell; {HIDDEN:.1%} if not sampled)",
    ),
    NUMBER("launch_s", "waiting before and in steps with prompts"),
    NUMBER("arrival_s", "waiting in the first two steps, while requests arrive"),
    NUMBER("other_s", "other waiting: slow decode steps, and after the last step"),
    NUMBER("waiting_share", "`1 - device_s / wall_s`"),
    NUMBER("output_tokens_per_device_s", "output tokens over `device_s`"),
    NUMBER(
        "driver_idle_share",
        f"share of time without a running kernel, by the driver's utilization; null with fewer than {LEAST_SAMPLES} "
        "samples. If much larger than `waiting_share`, the host also limits decode steps",
    ),
)


def waiting(cells: pd.DataFrame, parsed: Path, devices: Path) -> pd.DataFrame:
    """The table for all GPUs of a study; `parsed` holds a folder for each GPU, `devices` rates that were measured."""
    gpus = {name for name, gpu in load_gpus().items() if gpu.kind != "cpu"}
    rows = comparable_rows(cells)
    rows = rows[rows["gpu"].isin(gpus) & rows["repeat"].notna() & rows["source"].ne(IMPORTED)]
    rows = rows.assign(dtype=dtypes(rows), quantization=as_applied(rows, "quantization"))
    parts = [part.join(_of_gpu(part, parsed, str(gpu), devices), on=REPEAT) for gpu, part in rows.groupby("gpu")]
    table = pd.concat(parts) if parts else rows.reindex(columns=[*rows.columns, *_OF_STEPS])
    table = table.assign(
        other_s=table["other_s"] + table["wall_s"] - table["last_s"],
        waiting_share=1 - table["device_s"] / table["wall_s"],
        output_tokens_per_device_s=table["output_tokens"] / table["device_s"],
        driver_idle_share=(1 - table["utilization_pct_mean"] / 100).where(
            table["wall_s"] >= LEAST_SAMPLES * table["trace_gap_s_max"]
        ),
    )
    return table.assign(device_error=estimate_error(table))[list(SCHEMA.columns)]


def estimate_error(table: pd.DataFrame) -> pd.Series:
    """The column `device_error`. Steps show neither how fast prompts are computed nor that the host delays each one."""
    hidden = (table["driver_idle_share"] - table["waiting_share"]).astype(float).groupby(table["cell_id"])
    of_prompts = PROMPT_RATE_SD * (table["prompts_s"] / table["device_s"]).astype(float)
    return pd.Series(np.hypot(of_prompts, hidden.transform("mean").clip(lower=0).fillna(HIDDEN)), table.index)


def _of_gpu(rows: pd.DataFrame, parsed: Path, gpu: str, devices: Path) -> pd.DataFrame:
    """The columns `_OF_STEPS` of all repeats on a GPU whose rates are known and whose engine reports its steps."""
    costs = _prompt_costs(rows.drop_duplicates("cell_id").set_index("cell_id"), rates_of(get_gpu(gpu), devices))
    steps = read_parsed(parsed, gpu, "steps", [*REPEAT, "time_s", "prompt_tokens", "generation_tokens", "prefix_hits"])
    # Records without tokens are of the scheduler only; readings of a server's queues have no tokens either.
    of_work = steps["prompt_tokens"].notna() & ((steps["prompt_tokens"] > 0) | (steps["generation_tokens"] > 0))
    return divided(steps[of_work & steps["cell_id"].isin(costs.index)].join(costs, on="cell_id"))


def _prompt_costs(cells: pd.DataFrame, rates: Sequence[Rates]) -> pd.DataFrame:
    """By cell, the time of a prompt's token (`token_s`) and of reading all weights (`weights_s`), at measured rates or,
    without them, at shares of the data sheet's."""
    best = rates[-1] if rates else None
    of_operations, of_reading = OF_DATA_SHEET if best and best.source == "datasheet" else (1.0, 1.0)
    costs = pd.DataFrame(index=cells.index, columns=["token_s", "weights_s"], dtype=float)
    # How fast quantized models compute prompts is not known: at the data sheet's rate of FP8, an H100 with such weights
    # would have waited for 13 % and 14 % of the time, in which its driver saw it idle for 5 % and 8 %.
    for names, part in cells[cells["quantization"] == ""].groupby(["model", "dtype"]):
        model, dtype = map(str, names)
        if best and (facts := known_facts(model, dtype)):
            # Each data-parallel engine computes its own prompts.
            ranks = as_applied(part, "tensor_parallel_size") * as_applied(part, "pipeline_parallel_size")
            flop_per_s = PROMPT_SHARE_OF_RATE * of_operations * best.flop_per_s(facts) * ranks
            costs.loc[part.index, "token_s"] = 2 * facts.layer_matmul_parameters / flop_per_s
            bytes_per_s = of_reading * best.memory_bandwidth_bytes_per_s * ranks
            costs.loc[part.index, "weights_s"] = facts.decode_weight_bytes / bytes_per_s
    return costs.dropna()


def divided(steps: pd.DataFrame) -> pd.DataFrame:
    """The columns `_OF_STEPS` for each repeat of which all steps are known; `steps` has the costs `token_s` and
    `weights_s` of prompts."""
    s = steps.sort_values([*REPEAT, "time_s"], kind="stable").reset_index(drop=True)
    of_repeat = s.groupby(REPEAT, sort=False)
    took_s = of_repeat["time_s"].diff().fillna(s["time_s"])
    hits, prompts = of_repeat["prefix_hits"].transform("sum").fillna(0), of_repeat["prompt_tokens"].transform("sum")
    computed = s["prompt_tokens"] * (1 - hits / prompts.where(prompts > 0)).fillna(0)
    has_prompt = s["prompt_tokens"] > 0
    is_first = of_repeat.cumcount() < _FIRST_STEPS
    launches_prompt = has_prompt.groupby([s[name] for name in REPEAT], sort=False).shift(-1, fill_value=False)
    is_plain = ~is_first & ~has_prompt & ~launches_prompt
    decode_s = _of_decode_step(s, took_s.where(is_plain))
    tokens = computed + s["generation_tokens"]
    prompts_s = (tokens * s["token_s"] - s["weights_s"]).clip(lower=0).where(has_prompt, 0)
    device_s = decode_s + prompts_s
    is_whole = has_prompt & ~is_first & (device_s > LONGEST_LAUNCH_S)
    device_s = device_s.mask(is_whole, took_s)
    waited_s = (took_s - device_s).astype(float)
    table = s[REPEAT].assign(
        decode_step_s=took_s.where(is_plain),
        prompt_steps=has_prompt,
        device_s=device_s,
        prompts_s=prompts_s.mask(is_whole, 0.0),
        launch_s=waited_s.where(~is_first & ~is_plain, 0.0),
        arrival_s=waited_s.where(is_first, 0.0),
        other_s=waited_s.where(is_plain, 0.0),
        last_s=s["time_s"],
    )
    how = dict.fromkeys(_OF_STEPS, "sum") | {"decode_step_s": "median", "last_s": "max"}
    of_repeat = table.groupby(REPEAT)
    found = of_repeat.agg(how)[of_repeat["device_s"].count() == of_repeat.size()]
    # A late step may be followed by a short one, but all together they take no less than their work.
    too_much_s = (-found["launch_s"]).clip(lower=0)
    return found.assign(launch_s=found["launch_s"] + too_much_s, device_s=found["device_s"] - too_much_s)


def _of_decode_step(steps: pd.DataFrame, took_s: pd.Series) -> pd.Series:
    """The median time of the cell's decode steps with as many sequences, interpolated where the cell has none."""
    keys = [steps["cell_id"], steps["generation_tokens"].astype(float).rename("sequences")]
    median_s = took_s.astype(float).groupby(keys).median().dropna()
    decode_s, sequences = np.full(len(steps), np.nan), numbers(steps["generation_tokens"])
    rows_of = steps.groupby("cell_id", sort=False).indices
    for cell, medians in median_s.groupby(level=0):
        rows = rows_of[cell]
        decode_s[rows] = np.interp(sequences[rows], medians.index.get_level_values("sequences"), medians)
    return pd.Series(decode_s, index=steps.index)


def means_without_waiting(rows: pd.DataFrame) -> pd.DataFrame:
    """By cell, from rows of the table: `gpu`, median `tokens` of a repeat, and of the logarithms of
    `output_tokens_per_device_s` the `mean` over starts with its `squared` error, also of the estimate, and `df`."""
    rows = rows.assign(round=rows["start"], tokens=rows["output_tokens_per_device_s"] * rows["device_s"])
    cells, samples = summarise(rows, ("study", "source", "gpu", "engine", "cell_id"), "output_tokens_per_device_s")
    mean, squared, df = mean_errors(samples)
    of_cell = rows.groupby("cell_id", sort=False)
    estimate = numbers(of_cell["device_error"].mean().reindex(cells["cell_id"])) ** 2
    squared, df = added(Error(squared, df), Error(estimate, np.full(estimate.shape, np.inf)))
    cells = cells.assign(mean=mean, squared=squared, df=df).set_index("cell_id")
    return cells[["gpu", "mean", "squared", "df"]].assign(tokens=of_cell["tokens"].median())


def half_without_waiting(a: Errors, b: Errors, devices_differ: BoolArray | bool) -> FloatArray:
    """Half the width of the interval of the logarithm of a ratio without waiting, from squared errors and degrees of
    freedom of both means; two devices, or a device on two days, have an occasion each."""
    occasions = np.where(devices_differ, 2 * OCCASION_SD**2, 0.0)
    return half_width(added(Error(*a), Error(*b), Error(occasions, np.full(occasions.shape, OCCASION_DF))), CONFIDENCE)


def ratios_without_waiting(a: "pd.Series[str]", b: "pd.Series[str]", table: pd.DataFrame) -> pd.DataFrame:
    """For each pair of cells (ids) the `ratio` of the rates of `b` over `a` without waiting, with `low` and `high`; NaN
    if a cell has no such rate, or the two do other work. `table` is the table `waiting`."""
    cells = means_without_waiting(table)
    of_a, of_b = (cells.reindex(side) for side in (a, b))
    same_work = np.isclose(of_a["tokens"], of_b["tokens"])
    log_ratio = np.where(same_work, numbers(of_b["mean"]) - numbers(of_a["mean"]), np.nan)
    apart = (of_a["gpu"].array.fillna("") != of_b["gpu"].array.fillna("")).astype(bool)
    errors_a, errors_b = ((numbers(of["squared"]), numbers(of["df"])) for of in (of_a, of_b))
    half = half_without_waiting(errors_a, errors_b, np.asarray(apart))
    ends = {"ratio": log_ratio, "low": log_ratio - half, "high": log_ratio + half}
    return pd.DataFrame({name: np.exp(of) for name, of in ends.items()}, index=a.index)


@makes(SCHEMA)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    own = inputs.cells[inputs.cells["study"].eq(inputs.study.name)]
    return waiting(own, inputs.parsed, inputs.devices)

"""Compare devices: the observed speed-ups, beside the ratios of what the devices can do.

Two devices are compared on the same engine, model, workload and settings. docs/tables.md documents every column.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.common.columns import column
from workflow_scripts.device.device_rates import DeviceRates
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.questions.knobs.pairs import WHILE_FULL, shown_columns, steady_ratios
from workflow_scripts.questions.limits.ceilings import as_measured
from workflow_scripts.questions.predictions.table import SHARES
from workflow_scripts.questions.waiting.table import WITHOUT_WAITING, with_device_ratio
from workflow_scripts.statistics.comparisons import (
    ANOTHER_RUN,
    EQUIVALENCE_ALPHA,
    SCOPE_MEANING,
    Comparisons,
    holm,
)
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks, decide
from workflow_scripts.statistics.start_spread import FloatArray
from workflow_scripts.statistics.summary import (
    BOUND_BY_NEEDS,
    ENVIRONMENT,
    RATE,
    Row,
    as_applied,
    bound_by,
    cell_ids,
    cell_summary,
    dtypes,
    numbers,
    records,
)
from workflow_scripts.tables.expected_ratios import NEAR_PCT, capability_ratios, quotient
from workflow_scripts.tables.parsed_facts import known_facts
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, table_schema

METRICS = ("output_tokens_per_s", "total_tokens_per_s")
# Ratios that follow from rates that were measured on the devices.
_MEASURED_RATIOS = ("measured_bandwidth_ratio", "measured_flop_ratio", "measured_cache_ratio", "predicted_ratio")
_ALIKE = 0.1  # with bandwidths that differ by less, a speed-up cannot be attributed to them
SHOWN, COMPATIBLE, NEAR, NONE = "shown", "compatible", "near", "none"
# The explanation that is not one resource of the devices, but all that the step model knows of them.
PREDICTED = "predicted"
# What may explain a speed-up: the column with its ratio -> the name of the explanation.
CANDIDATES = {
    "bandwidth_ratio": "bandwidth",
    "flop_ratio": "flop",
    "measured_bandwidth_ratio": "measured_bandwidth",
    "measured_flop_ratio": "measured_flop",
    "measured_cache_ratio": "measured_cache",
    "kv_tokens_ratio": "kv_capacity",
    "predicted_ratio": PREDICTED,
}
# Ratios that are held against the observed one.
EXPECTED = ("predicted_ratio", "measured_bandwidth_ratio", "own_predicted_ratio")
# Columns of the cells table, and how their values over the repeats are reduced, as in the table `intervals`.
CLOCKS = {name: column(name).summary for name in ("sm_clock_mhz_median", "sm_clock_mhz_min", "power_cap_share")}
SCHEMA = table_schema(
    "devices",
    "Speed-up of one device over another with the same setting, beside the ratios that may explain it. "
    "`gpu_a` is the faster one by the geometric mean over all settings.",
    TEXT("study source", "as in `cells`"),
    TEXT("gpu_a gpu_b", "every ratio is of `a` over `b`"),
    TEXT("engine model workload knobs", "as in `cells`"),
    TEXT("metric", "`output_tokens_per_s` or `total_tokens_per_s`"),
    INTEGER("repeats_a repeats_b", "valid repeats of all starts"),
    INTEGER("starts", "starts in common; on two GPUs the smaller number"),
    NUMBER("ratio", "of the geometric means over the starts"),
    NUMBER("ratio_low ratio_high", "its 95 % interval"),
    NUMBER("ratio_again_low ratio_again_high", ANOTHER_RUN),
    TEXT("scope", SCOPE_MEANING),
    WHILE_FULL,
    WITHOUT_WAITING,
    INTEGER("sequences", "`max_concurrency_allowed` of both"),
    NUMBER(
        "predicted_ratio",
        "predicted from the calibration of one device, scaled to the other by the measured rates; geometric mean of"
        " both ways",
    ),
    NUMBER("own_predicted_ratio", "ratio of the rates predicted for each device by itself, both in the same way"),
    NUMBER(
        "predicted_ratio_low predicted_ratio_high",
        "range of the ratios predicted from `gpu_a`, from `gpu_b` and from both; not an interval",
    ),
    NUMBER([f"{of}_error_pct" for of in EXPECTED], "this ratio over the measured one, minus 1"),
    NUMBER([f"{share}_{side}" for share in SHARES for side in "ab"], "as in `predictions`"),
    NUMBER([f"{name}_{side}" for name in CLOCKS for side in "ab"], "as in `repeats`"),
    NUMBER("bandwidth_ratio", "of the data sheets' memory bandwidths"),
    NUMBER("flop_ratio", "of the data sheets' dense rates for the dtype; null for quantised weights"),
    NUMBER(
        "measured_bandwidth_ratio measured_flop_ratio", "of the rates measured on the devices (`prepared/devices/`)"
    ),
    NUMBER("measured_cache_ratio", "of the measured rates of reading the weights, if they fit both caches"),
    NUMBER("kv_tokens_ratio", "of the tokens in the KV caches"),
    NUMBER("decode_share_a decode_share_b", "`decode_s_mean / (prefill_s_mean + decode_s_mean)`, mean over repeats"),
    TEXT("bound_by_a bound_by_b", "as in `knobs`"),
    TEXT(
        "explanation",
        "the ratios within 10 % of the whole interval: `bandwidth`, `flop`, `measured_bandwidth`, "
        "`measured_flop`, `measured_cache`, `kv_capacity`, `predicted` (comma-separated), or `none`",
    ),
    TEXT("compatible_with", "further ratios inside the interval, which is too wide to show more"),
    TEXT("support", "`shown`: explained; `compatible`: only ratios inside the interval; `near`: no interval; `none`"),
    TEXT("nearest", "nearest of these ratios"),
    NUMBER("nearest_difference_pct", "the nearest over the observed ratio, minus 1"),
    TEXT(
        "cannot_show",
        "why decoding cannot be shown to follow memory bandwidth: `disturbed` (others used a CPU while its rates were "
        "measured), `cached weights` or `equal bandwidths` (within 10 %)",
    ),
    notes="`kv_capacity` explains a ratio only if full KV blocks limited one of the two devices.",
)


def device_ratios(
    cells: pd.DataFrame, rates: Mapping[str, DeviceRates] | None = None, predictions: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The ratios table; `rates` are the records of measured devices, `predictions` is that table."""
    parts, comparisons = zip(*(device_pairs(cells, metric, NEAR_PCT) for metric in METRICS), strict=True)
    pairs = pd.concat(parts, ignore_index=True)
    if pairs.empty:
        return pd.DataFrame(columns=list(SCHEMA.columns))
    pairs["kv_tokens_ratio"] = numbers(pairs["kv_cache_tokens_a"]) / numbers(pairs["kv_cache_tokens_b"])
    facts_of = cache(known_facts)  # many rows are of few models
    rows, candidates = zip(
        *(_with_candidates(row, rates or {}, facts_of) for row in records(_with_expectation(pairs, predictions))),
        strict=True,
    )
    # The metrics are of the same starts, so each has the whole error.
    of_metrics = np.split(pd.DataFrame(candidates).to_numpy(dtype=float), [len(parts[0])])
    p = np.concatenate([p_near(*of) for of in zip(comparisons, of_metrics, strict=True)])
    explained = [
        row | explain(row["ratio"], row["ratio_low"], row["ratio_high"], of, dict(zip(of, p_of, strict=True)))
        for row, of, p_of in zip(rows, candidates, p.tolist(), strict=True)
    ]
    table = pd.DataFrame(explained)
    errors = {f"{of}_error_pct": 100 * (table[of] / table["ratio"] - 1) for of in EXPECTED}
    return table.assign(**errors).reindex(columns=list(SCHEMA.columns))


def device_pairs(
    cells: pd.DataFrame, metric: str, margin_pct: float, looks: Looks = ONE_LOOK
) -> tuple[pd.DataFrame, Comparisons]:
    """Cells of two devices with all else equal, side by side in columns `_a` and `_b`, the faster device first; and
    their comparisons."""
    observed = BOUND_BY_NEEDS | CLOCKS | {"prefill_s_mean": "mean", "decode_s_mean": "mean"}
    observed |= dict.fromkeys(("kv_cache_tokens", "dtype", "quantization"), "first")
    named = cells.assign(dtype=dtypes, quantization=lambda of: as_applied(of, "quantization"))
    summary, samples = cell_summary(named, metric, observed)
    summary["bound_by"] = bound_by(summary)
    summary["decode_share"] = summary["decode_s_mean"] / (summary["prefill_s_mean"] + summary["decode_s_mean"])
    alike = ["study", "source", *ENVIRONMENT, "engine", "model", "dtype", "workload", "knobs"]
    alike += ["quantization", "max_concurrency_allowed"]
    sides = ["gpu", "repeats", "log_mean", "sample", "kv_cache_tokens", "decode_share", "bound_by", *CLOCKS]
    side = summary[[*alike, *sides]]
    pairs = side.merge(side, on=alike, suffixes=("_a", "_b")).rename(columns={"max_concurrency_allowed": "sequences"})
    pairs = pairs[pairs["gpu_a"] != pairs["gpu_b"]]
    lead = (
        (pairs["log_mean_a"] - pairs["log_mean_b"])
        .groupby([pairs[name] for name in ("study", "source", "gpu_a", "gpu_b")])
        .transform("mean")
    )
    pairs = pairs[(lead > 0) | ((lead == 0) & (pairs["gpu_a"] < pairs["gpu_b"]))]
    decided = decide(samples, pairs["sample_a"].to_numpy(), pairs["sample_b"].to_numpy(), margin_pct, looks)
    steady = steady_ratios(cells, pairs) if metric == RATE else {}
    return pairs.assign(metric=metric, **shown_columns(decided), **steady), decided.found


def p_near(observed: Comparisons, candidates: FloatArray) -> FloatArray:
    """P values of the tests whether ratios are within NEAR_PCT of their candidates (TOST), adjusted for all ratios and
    known candidates of a study by Holm's method.

    `candidates` has one more axis than the ratios, the last; an unknown one is NaN.
    """
    # Two devices are compared for any day, each of which has an effect on both.
    observed = replace(observed, error=observed.of_settings)
    away = (replace(observed, difference=observed.difference - of) for of in np.moveaxis(np.log(candidates), -1, 0))
    p = np.stack([of.p_within(NEAR_PCT) for of in away], axis=-1)
    known = ~np.isnan(p).all(axis=tuple(range(p.ndim - 2)))
    p[..., known] = holm(p[..., known])
    return p


def _with_candidates(
    row: Row, rates: Mapping[str, DeviceRates], facts_of: Callable[..., ModelFacts | None]
) -> tuple[Row, dict[str, float]]:
    """A pair with the ratios of what its devices can do, and those that may explain the observed one; NaN if one may
    not, or is not known."""
    a, b, method = row["gpu_a"], row["gpu_b"], row["quantization"] or None
    # Quantised weights may be multiplied in another type than the model's; then it is unknown which rate applies.
    dtype = None if method else row["dtype"]
    gpus = load_gpus()
    measured = {name: as_measured(gpus[name], rates[name]) for name in (a, b) if name in rates}
    for prefix, of in (("", gpus), ("measured_", measured)):
        row[f"{prefix}bandwidth_ratio"], row[f"{prefix}flop_ratio"] = capability_ratios(of.get(a), of.get(b), dtype)
    facts = facts_of(row["model"], row["dtype"], method)
    step_bytes = facts.decode_weight_bytes if facts else math.inf
    row["measured_cache_ratio"], row["cannot_show"], hidden = _what_cannot_be_shown(a, b, step_bytes, rates)
    # Room for more tokens makes a device faster only if a full KV cache limited one of the two. Memory bandwidth does
    # not limit weights that stay in a cache.
    if "kv_blocks" not in (row["bound_by_a"], row["bound_by_b"]):
        hidden = (*hidden, "kv_tokens_ratio")
    return row, {name: math.nan if column in hidden else row[column] for column, name in CANDIDATES.items()}


def _what_cannot_be_shown(
    a: str, b: str, step_bytes: float, rates: Mapping[str, DeviceRates]
) -> tuple[float, str | None, tuple[str, ...]]:
    """The ratio of the cache rates if the weights fit into both caches, why a pair cannot show that decoding follows
    memory bandwidth, and which ratios then explain nothing."""
    if not {a, b} <= rates.keys():
        return math.nan, None, ()
    if rates[a].disturbed or rates[b].disturbed:
        return math.nan, "disturbed", _MEASURED_RATIOS
    if step_bytes <= min(rates[name].last_level_cache_bytes or 0 for name in (a, b)):
        of_a, of_b = (rates[name].rereading_bytes_per_s(step_bytes) for name in (a, b))
        return quotient(of_a, of_b), "cached weights", ("bandwidth_ratio", "measured_bandwidth_ratio")
    bandwidth = rates[a].memory_bytes_per_s / rates[b].memory_bytes_per_s
    return math.nan, "equal bandwidths" if abs(math.log(bandwidth)) < math.log1p(_ALIKE) else None, ()


def explain(
    ratio: float, low: float, high: float, candidates: Mapping[str, float], p: Mapping[str, float] | None = None
) -> Row:
    """The columns that say which known ratios explain an observed one; its interval is NaN if there is none.

    `explanation` are those that the whole interval is within NEAR_PCT of, and whose `p` shows this beside all other
    rows and candidates; without `p` the row is the only one. `compatible_with` are the others in the interval, which
    explain nothing: a wide interval has any ratio in it. `support` says which of these there are, or `near` if only the
    interval is missing. All are None if no ratio is known.

    >>> row = explain(1.33, 1.17, 1.52, {"bandwidth": 1.43, "flop": 1.0})
    >>> row["explanation"], row["compatible_with"], row["support"], round(row["nearest_difference_pct"], 1)
    ('none', 'bandwidth', 'compatible', 7.5)
    """
    ratios = {name: value for name, value in candidates.items() if not math.isnan(value)}
    within = 1 + NEAR_PCT / 100
    shown = [name for name, value in ratios.items() if value / within <= low and high <= value * within]
    shown = [name for name in shown if p is None or p[name] <= EQUIVALENCE_ALPHA]
    compatible = [name for name, value in ratios.items() if low <= value <= high and name not in shown]
    difference_pct = {name: 100 * (ratio / value - 1) for name, value in ratios.items()}
    nearest = min(shown or compatible or ratios, key=lambda name: abs(difference_pct[name]), default=None)
    support = SHOWN if shown else COMPATIBLE if compatible else NONE
    if math.isnan(low) and nearest and abs(difference_pct[nearest]) <= NEAR_PCT:
        support = NEAR
    return {
        "explanation": ", ".join(shown) or (NONE if ratios else None),
        "compatible_with": ", ".join(compatible) or None,
        "support": support if ratios else None,
        "nearest": nearest,
        "nearest_difference_pct": 100 * (ratios[nearest] / ratio - 1) if nearest else math.nan,
    }


def device_records(folder: Path) -> dict[str, DeviceRates]:
    """The records NAME.json of devices in `folder`; raises InputError if one is not readable."""
    files = {name: folder / f"{name}.json" for name in load_gpus()}
    return {name: DeviceRates.read(file) for name, file in files.items() if file.is_file()}


@makes(SCHEMA)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    ratios = device_ratios(inputs.cells, device_records(inputs.devices), inputs.table("predictions"))
    a, b = (cell_ids(ratios, f"gpu_{side}") for side in "ab")
    return with_device_ratio(ratios, a, b, inputs.table("waiting"), inputs.study.equivalence_margin_pct)


def _with_expectation(pairs: pd.DataFrame, predictions: pd.DataFrame | None) -> pd.DataFrame:
    """The pairs with what their ratio was predicted to be, and where their time goes."""
    rates = ["predicted", "scaled_output_tokens_per_s"]
    predicted = pd.DataFrame(columns=[*rates, *SHARES, "speed_source"], dtype=float)
    if predictions is not None:
        predicted = predictions[predictions["quantity"] == RATE].set_index("cell_id")[list(predicted)]
    sides = {side: predicted.reindex(cell_ids(pairs, f"gpu_{side}")) for side in "ab"}
    (own_a, scaled_a), (own_b, scaled_b) = (of[rates].to_numpy(dtype=float).T for of in sides.values())
    from_each = np.array([own_a / scaled_b, scaled_a / own_b])
    # Errors of one way to predict cancel in a ratio, those of two do not.
    source_a, source_b = (of["speed_source"].fillna("").to_numpy(dtype=str) for of in sides.values())
    own = np.where(source_a == source_b, own_a / own_b, np.nan)
    ratios = np.vstack([from_each, own])
    return pairs.assign(
        predicted_ratio=np.sqrt(from_each.prod(axis=0)),
        own_predicted_ratio=own,
        predicted_ratio_low=ratios.min(axis=0),
        predicted_ratio_high=ratios.max(axis=0),
        **{f"{name}_{side}": numbers(of[name]) for side, of in sides.items() for name in SHARES},
    )

"""What explains the ratios of devices: the ratios of what the devices can do, and of what is predicted for them.

Two devices are compared on the same engine, model, workload and settings. docs/tables.md documents every column.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.device.device_record import DeviceRates
from workflow_scripts.questions.limits.ceilings import as_measured
from workflow_scripts.statistics.comparisons import EQUIVALENCE_ALPHA, Comparisons, holm
from workflow_scripts.statistics.errors import FloatArray
from workflow_scripts.tables.expected_ratios import NEAR_PCT, capability_ratios, quotient
from workflow_scripts.tables.parsed_facts import known_facts
from workflow_scripts.tables.summary import RATE, Row, numbers, records
from workflow_scripts.tables.typed_tables import NUMBER, TEXT, table_schema

# Ratios that follow from rates that were measured on the devices.
_MEASURED_RATIOS = ("measured_bandwidth_ratio", "measured_flop_ratio", "measured_cache_ratio", "predicted_ratio")
_ALIKE = 0.1  # with bandwidths that differ by less, a speed-up cannot be attributed to them
_NONE = "none"
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
SCHEMA = table_schema(
    "devices",
    "What may explain the ratio of output tokens/s of two devices. One row per comparison of kind `device`; ratios are "
    "of `b` over `a`.",
    TEXT("a b", "as in `comparisons`"),
    NUMBER(
        "predicted_ratio",
        "predicted from the calibration of one device, scaled to the other by the measured rates; geometric mean of"
        " both ways",
    ),
    NUMBER("bandwidth_ratio", "of the data sheets' memory bandwidths"),
    NUMBER("flop_ratio", "of the data sheets' dense rates for the dtype; null for quantised weights"),
    NUMBER(
        "measured_bandwidth_ratio measured_flop_ratio", "of the rates measured on the devices (`prepared/devices/`)"
    ),
    NUMBER("measured_cache_ratio", "of the measured rates of reading the weights, if they fit both caches"),
    NUMBER("kv_tokens_ratio", "of the tokens in the KV caches"),
    TEXT(
        "explanation",
        "the ratios within 10 % of the whole interval: `bandwidth`, `flop`, `measured_bandwidth`, "
        "`measured_flop`, `measured_cache`, `kv_capacity`, `predicted` (comma-separated), or `none`",
    ),
    TEXT("compatible_with", "further ratios inside the interval, which is too wide to show more"),
    TEXT("nearest", "nearest of these ratios"),
    NUMBER("nearest_difference_pct", "the nearest over the observed ratio, minus 1"),
    TEXT(
        "cannot_show",
        "why decoding cannot be shown to follow memory bandwidth: `disturbed` (others used a CPU while its rates were "
        "measured), `cached weights` or `equal bandwidths` (within 10 %)",
    ),
    notes="`kv_capacity` explains a ratio only if full KV blocks limited one of the two devices.",
)


def explanations(
    cells: pd.DataFrame,
    pairs: pd.DataFrame,
    found: Comparisons,
    rates: Mapping[str, DeviceRates],
    predictions: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """What explains the ratio of each pair of cells on two devices, of which `found` is the comparison.

    `rates` are the records of measured devices, `predictions` is that table.
    """
    named = ["cell_id", "gpu", "kv_cache_tokens", "bound_by"]
    of_sides = [cells.iloc[pairs[side]].reset_index(drop=True) for side in "ab"]
    sides = pd.concat([each[named].add_suffix(f"_{side}") for side, each in zip("ab", of_sides, strict=True)], axis=1)
    rows = sides.join(of_sides[1][["model", "dtype", "quantization"]]).join(pairs[["ratio", "low", "high"]])
    rows = rows.rename(columns={"cell_id_a": "a", "cell_id_b": "b"})
    rows["kv_tokens_ratio"] = numbers(rows["kv_cache_tokens_b"]) / numbers(rows["kv_cache_tokens_a"])
    alike = ["gpu_a", "gpu_b", "model", "dtype", "quantization"]
    devices = [row | _capabilities(row, rates) for row in records(rows[alike].drop_duplicates())]
    rows = _with_expectation(rows.merge(pd.DataFrame(devices), on=alike, how="left"), predictions)
    # Room for more tokens makes a device faster only if a full KV cache limited one of the two.
    had_room = ~(rows["bound_by_a"].eq("kv_blocks") | rows["bound_by_b"].eq("kv_blocks")).fillna(False).to_numpy(bool)
    candidates = pd.DataFrame(
        {
            name: rows[column].astype(float).mask(rows["hidden"].map(lambda hidden, column=column: column in hidden))
            for column, name in CANDIDATES.items()
        }
    )
    candidates["kv_capacity"] = candidates["kv_capacity"].mask(had_room)
    p = p_near(found, candidates.to_numpy())
    observed = zip(rows["ratio"], rows["low"], rows["high"], strict=True)
    explained = [
        explain(ratio, low, high, may, dict(zip(may, p_of, strict=True)))
        for (ratio, low, high), may, p_of in zip(observed, records(candidates), p.tolist(), strict=True)
    ]
    return rows.join(pd.DataFrame(explained)).reindex(columns=list(SCHEMA.columns))


def p_near(observed: Comparisons, candidates: FloatArray) -> FloatArray:
    """P values of the tests whether ratios are within NEAR_PCT of their candidates (TOST), adjusted for all ratios and
    known candidates of a study by Holm's method.

    `candidates` has one more axis than the ratios, the last; an unknown one is NaN.
    """
    # Two devices are compared for any day, each of which has an effect on both.
    observed = observed._replace(error=observed.of_settings)
    away = (
        observed._replace(difference=observed.difference - ratio) for ratio in np.moveaxis(np.log(candidates), -1, 0)
    )
    p = np.stack([each.p_within(NEAR_PCT) for each in away], axis=-1)
    known = ~np.isnan(p).all(axis=tuple(range(p.ndim - 2)))
    p[..., known] = holm(p[..., known])
    return p


def _capabilities(pair: Row, rates: Mapping[str, DeviceRates]) -> Row:
    """The ratios of what two devices can do with a model, what they cannot show, and which ratios are `hidden`: those
    that then explain nothing."""
    a, b, method, gpus = pair["gpu_b"], pair["gpu_a"], pair["quantization"] or None, load_gpus()
    # Quantised weights may be multiplied in another type than the model's; then it is unknown which rate applies.
    dtype = None if method else pair["dtype"]
    measured = {name: as_measured(gpus[name], rates[name]) for name in (a, b) if name in rates}
    found: Row = {}
    for prefix, each in (("", gpus), ("measured_", measured)):
        found[f"{prefix}bandwidth_ratio"], found[f"{prefix}flop_ratio"] = capability_ratios(
            each.get(a), each.get(b), dtype
        )
    facts = known_facts(pair["model"], pair["dtype"], method)
    step_bytes = facts.decode_weight_bytes if facts else math.inf
    names = "measured_cache_ratio", "cannot_show", "hidden"
    return found | dict(zip(names, _what_cannot_be_shown(a, b, step_bytes, rates), strict=True))


def _what_cannot_be_shown(
    a: str, b: str, step_bytes: float, rates: Mapping[str, DeviceRates]
) -> tuple[float, str | None, tuple[str, ...]]:
    """The ratio of the cache rates if the weights fit into both caches, why a pair cannot show that decoding follows
    memory bandwidth, which does not limit weights that stay in a cache, and which ratios then explain nothing."""
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
    explain nothing: a wide interval has any ratio in it. All are None if no ratio is known.

    >>> row = explain(1.33, 1.17, 1.52, {"bandwidth": 1.43, "flop": 1.0})
    >>> row["explanation"], row["compatible_with"], round(row["nearest_difference_pct"], 1)
    ('none', 'bandwidth', 7.5)
    """
    ratios = {name: value for name, value in candidates.items() if not math.isnan(value)}
    within = 1 + NEAR_PCT / 100
    shown = [name for name, value in ratios.items() if value / within <= low and high <= value * within]
    shown = [name for name in shown if p is None or p[name] <= EQUIVALENCE_ALPHA]
    compatible = [name for name, value in ratios.items() if low <= value <= high and name not in shown]
    difference_pct = {name: 100 * (ratio / value - 1) for name, value in ratios.items()}
    nearest = min(shown or compatible or ratios, key=lambda name: abs(difference_pct[name]), default=None)
    return {
        "explanation": ", ".join(shown) or (_NONE if ratios else None),
        "compatible_with": ", ".join(compatible) or None,
        "nearest": nearest,
        "nearest_difference_pct": 100 * (ratios[nearest] / ratio - 1) if nearest else math.nan,
    }


def device_records(folder: Path) -> dict[str, DeviceRates]:
    """The records NAME.json of devices in `folder`; raises InputError if one is not readable."""
    files = {name: folder / f"{name}.json" for name in load_gpus()}
    return {name: DeviceRates.read(file) for name, file in files.items() if file.is_file()}


def _with_expectation(pairs: pd.DataFrame, predictions: pd.DataFrame | None) -> pd.DataFrame:
    """The pairs with what their ratio was predicted to be."""
    rates = ["predicted", "scaled_output_tokens_per_s"]
    predicted = pd.DataFrame(columns=rates, dtype=float)
    if predictions is not None:
        predicted = predictions[predictions["quantity"] == RATE].set_index("cell_id")[rates]
    (own_a, scaled_a), (own_b, scaled_b) = (predicted.reindex(pairs[side]).to_numpy(dtype=float).T for side in "ab")
    return pairs.assign(predicted_ratio=np.sqrt(own_b / scaled_a * scaled_b / own_a))

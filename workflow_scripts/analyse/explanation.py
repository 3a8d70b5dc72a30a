"""What explains a speed-up of one device over another: a comparison with ratios of what the devices can do."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workflow_scripts.analyse.repeats import Row
from workflow_scripts.analyse.statistics import ASSUMED_SD, WITHIN_START, decisive_ends
from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.physics.formulas import relative_difference, speedup_bounds

# A ratio of the devices explains nothing if it differs from the observed one by more than this.
NEAR_PCT = 10.0

INSIDE, NEAR, NONE = "inside", "near", "none"

# What may explain a speed-up: the column with its ratio, the name of the explanation, and what it is a ratio of.
CANDIDATES = {
    "bandwidth_ratio": ("bandwidth", "memory bandwidths"),
    "flop_ratio": ("flop", "FLOP rates"),
    "measured_bandwidth_ratio": ("measured_bandwidth", "measured memory bandwidths"),
    "measured_flop_ratio": ("measured_flop", "measured matrix-product rates"),
    "measured_cache_ratio": ("measured_cache", "measured rates of reading the weights from cache"),
    "kv_tokens_ratio": ("kv_capacity", "KV-cache capacities"),
}
_WORDS = dict(CANDIDATES.values())
EXPLANATION_COLUMNS = ("explanation", "support", "nearest", "nearest_difference_pct", "verdict_text")


def capability_ratios(a: Gpu | None, b: Gpu | None, dtype: str | None) -> tuple[float, float]:
    """Ratio of the memory bandwidths of two devices, and of their rates of matrix products; NaN where one is unknown.

    >>> from workflow_scripts.catalog.gpus_and_models import get_gpu
    >>> [round(ratio, 2) for ratio in capability_ratios(get_gpu("h200"), get_gpu("l40s"), "bfloat16")]
    [5.56, 2.73]
    """
    if a is None or b is None:
        return math.nan, math.nan
    bandwidth = _quotient(a.memory_bandwidth_bytes_per_s, b.memory_bandwidth_bytes_per_s)
    return bandwidth, _quotient(a.peak_flop_per_s(dtype), b.peak_flop_per_s(dtype)) if dtype else math.nan


def _quotient(a: float | None, b: float | None) -> float:
    return math.nan if a is None or b is None else a / b


@dataclass(frozen=True)
class Explanation:
    """The known ratios of two devices that an observed one supports.

    `supported` are those in the interval, or else the nearest one if it is within NEAR_PCT. `support` says which of
    these: `inside`, `near`, `none`, or None if no ratio is known. The observed ratio lies `difference_pct` above
    `nearest`.
    """

    supported: tuple[str, ...]
    support: str | None
    nearest: str | None
    difference_pct: float


def explain(ratio: float, low: float, high: float, candidates: Mapping[str, float]) -> Explanation:
    """Compare an observed ratio, and the ends of its interval (NaN if none), with the ratios that may explain it.

    >>> explain(3.0, math.nan, math.nan, {"bandwidth": 5.56, "flop": 2.75})
    Explanation(supported=('flop',), support='near', nearest='flop', difference_pct=9.090909090909083)
    """
    known = {name: value for name, value in candidates.items() if not math.isnan(value)}
    if not known:
        return Explanation((), None, None, math.nan)
    inside = tuple(name for name, value in known.items() if low <= value <= high)
    difference_pct = {name: 100 * relative_difference(ratio, known[name]) for name in inside or known}
    nearest = min(difference_pct, key=lambda name: abs(difference_pct[name]))
    if inside:
        return Explanation(inside, INSIDE, nearest, difference_pct[nearest])
    if abs(difference_pct[nearest]) <= NEAR_PCT:
        return Explanation((nearest,), NEAR, nearest, difference_pct[nearest])
    return Explanation((), NONE, nearest, difference_pct[nearest])


def explanation_of(row: Row, columns: Sequence[str]) -> tuple[Row, str]:
    """Columns that say which of the ratios in `columns` explain the observed one, and the same in words.

    >>> row = {"ratio": 2.95, "bandwidth_ratio": 5.56, "flop_ratio": 2.73}
    >>> row |= {"ratio_low": math.nan, "ratio_high": math.nan}
    >>> known, text = explanation_of(row, ["bandwidth_ratio", "flop_ratio"])
    >>> known["explanation"], known["support"], round(known["nearest_difference_pct"], 1)
    ('flop', 'near', 8.1)
    """
    candidates = {CANDIDATES[column][0]: row[column] for column in columns}
    found = explain(row["ratio"], *decisive_ends(row["ratio_low"], row["ratio_high"], row.get("scope")), candidates)
    known = {
        "explanation": ", ".join(found.supported) or (found.support and NONE),
        "support": found.support,
        "nearest": found.nearest,
        "nearest_difference_pct": found.difference_pct,
    }
    return known, _in_words(row, candidates, found)


def _in_words(row: Row, candidates: Mapping[str, float], found: Explanation) -> str:
    def named(names: Sequence[str]) -> str:
        return " and ".join(f"{_WORDS[name]} ({candidates[name]:.3g})" for name in names)

    if found.nearest is None:
        return "No known ratio of the two devices could explain it."
    direction = "above" if found.difference_pct > 0 else "below"
    distance = f"{named([found.nearest])}: the observed ratio lies {abs(found.difference_pct):.1f} % {direction} it"
    interval = "its interval"
    if row.get("scope") == WITHIN_START:
        interval = f"if starts vary by {100 * ASSUMED_SD:g} %, which one start cannot show, its interval"
    if found.support == INSIDE:
        several = len(found.supported) > 1
        text = f"{interval[0].upper()}{interval[1:]} contains the ratio{'s' * several} of {named(found.supported)}"
        text += ", and cannot tell them apart." if several else "."
    elif found.support == NEAR:
        outside = "" if math.isnan(row["ratio_low"]) else f", and {interval} excludes it"
        text = f"The nearest ratio is that of {distance}{outside}."
    else:
        text = f"No known ratio is within {NEAR_PCT:g} %. The nearest is that of {distance}."
    rejected = [n for n, value in candidates.items() if not math.isnan(value) and n not in found.supported]
    if rejected and found.support != NONE:
        text += f" It does not support {named(rejected)}."
    if found.support != INSIDE and _is_between(row):
        text += (
            " The observed ratio lies between those of FLOP rates and of bandwidths, as for a mix of steps bound by "
            "each."
        )
    return text


def _is_between(row: Row) -> bool:
    """Whether the ratio lies between the ratios of bandwidths and of FLOP rates, from data sheets or measured."""
    bounds = [
        speedup_bounds(row.get(f"{prefix}bandwidth_ratio", math.nan), row.get(f"{prefix}flop_ratio", math.nan))
        for prefix in ("", "measured_")
    ]
    return any(low < row["ratio"] < high for low, high in bounds)

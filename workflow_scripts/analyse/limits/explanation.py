"""What explains a speed-up of one device over another: a comparison with ratios of what the devices can do."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workflow_scripts.analyse.intervals.repeats import Row
from workflow_scripts.catalog.gpus_and_models import Gpu

# A ratio of the devices explains an observed one if the two are shown to differ by at most this.
NEAR_PCT = 10.0

# The explanation that is not one resource of the devices, but all that the step model knows of them.
EXPECTED = "expected"
SHOWN, COMPATIBLE, NEAR, NONE = "shown", "compatible", "near", "none"

# What may explain a speed-up: the column with its ratio -> the name of the explanation.
CANDIDATES = {
    "bandwidth_ratio": "bandwidth",
    "flop_ratio": "flop",
    "measured_bandwidth_ratio": "measured_bandwidth",
    "measured_flop_ratio": "measured_flop",
    "measured_cache_ratio": "measured_cache",
    "kv_tokens_ratio": "kv_capacity",
    "expected_ratio": EXPECTED,
}
EXPLANATION_COLUMNS = ("explanation", "compatible_with", "support", "nearest", "nearest_difference_pct")


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
    """What an observed ratio says about the known ratios of two devices.

    `shown` are those that the whole interval is within NEAR_PCT of; without an interval, the nearest one if it is that
    near. `compatible` are the others in the interval, which explain nothing: a wide interval has any ratio in it.
    `support` says which of these there are: `shown`, `near` (without an interval), `compatible`, `none`, or None if no
    ratio is known. The observed ratio lies `difference_pct` above `nearest`.
    """

    shown: tuple[str, ...]
    compatible: tuple[str, ...]
    support: str | None
    nearest: str | None
    difference_pct: float


def explain(ratio: float, low: float, high: float, candidates: Mapping[str, float]) -> Explanation:
    """Compare an observed ratio, and the ends of its interval (NaN if none), with the ratios that may explain it.

    >>> found = explain(1.33, 1.17, 1.52, {"bandwidth": 1.43, "flop": 1.0})
    >>> found.shown, found.compatible, found.support
    ((), ('bandwidth',), 'compatible')
    """
    known = {name: value for name, value in candidates.items() if not math.isnan(value)}
    if not known:
        return Explanation((), (), None, None, math.nan)
    within = 1 + NEAR_PCT / 100
    shown = tuple(name for name, value in known.items() if value / within <= low and high <= value * within)
    compatible = tuple(name for name, value in known.items() if low <= value <= high and name not in shown)
    difference_pct = {name: 100 * (ratio / value - 1) for name, value in known.items()}
    nearest = min(shown or compatible or known, key=lambda name: abs(difference_pct[name]))
    support = SHOWN if shown else COMPATIBLE if compatible else NONE
    if math.isnan(low) and abs(difference_pct[nearest]) <= NEAR_PCT:
        shown, support = (nearest,), NEAR
    return Explanation(shown, compatible, support, nearest, difference_pct[nearest])


def explanation_of(row: Row, columns: Sequence[str]) -> Row:
    """Columns that say which of the ratios in `columns` explain the observed one.

    >>> row = {"ratio": 2.95, "bandwidth_ratio": 5.56, "flop_ratio": 2.73}
    >>> row |= {"ratio_low": math.nan, "ratio_high": math.nan}
    >>> known = explanation_of(row, ["bandwidth_ratio", "flop_ratio"])
    >>> known["explanation"], known["support"], round(known["nearest_difference_pct"], 1)
    ('flop', 'near', 8.1)
    """
    candidates = {CANDIDATES[column]: row[column] for column in columns}
    found = explain(row["ratio"], row["ratio_low"], row["ratio_high"], candidates)
    return {
        "explanation": ", ".join(found.shown) or (found.support and NONE),
        "compatible_with": ", ".join(found.compatible) or None,
        "support": found.support,
        "nearest": found.nearest,
        "nearest_difference_pct": found.difference_pct,
    }

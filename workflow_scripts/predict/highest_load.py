"""The highest load within a study's limits by the plan: the highest at which enough requests of the schedule keep them.

The band is that of the share of requests within the limits, so its ends are loads at which the slow end or the fast end
of every latency keeps them. docs/plan.md has the rest.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from workflow_scripts.predict.prediction_record import Band, Prediction
from workflow_scripts.study.grid import Cell
from workflow_scripts.study.study import WITHIN_SHARE
from workflow_scripts.workloads.arrivals import Load

# A rate is found within this factor, and searched up to this part and multiple of what all requests at once reach.
PRECISION, RANGE = 1.02, 32.0


def search_load(cell: Cell, predict: Callable[[Cell], Prediction]) -> Prediction:
    """The record of a cell that searches the highest load, at that load; `predict` is for cells with a given load. The
    load is None if it lies beyond what a search tries."""
    knobs = cell.knobs
    assert isinstance(knobs, Load)
    assert knobs.searched
    searched, whole = knobs.searched, knobs.searched == "users"

    @cache
    def at(load: float | None) -> Prediction:
        value = int(load) if load and whole else load
        return predict(replace(cell, knobs=knobs.model_copy(update={"find": None, searched: value})))

    def highest(start: float, share: Callable[[Band], float | None]) -> float | None:
        def meets(load: float) -> bool:
            attained = at(load).slo_attainment
            return attained is not None and (share(attained) or 0.0) >= WITHIN_SHARE

        low = high = start
        while not meets(low):
            if low == least:
                return None
            low, high = max(least, low // 2 if whole else low / 2), low
        while low == high or meets(high):
            if high == most:
                return None
            low, high = high, min(most, 2 * high)
        while high - low > 1 if whole else high > PRECISION * low:
            middle = (low + high) // 2 if whole else (low * high) ** 0.5
            low, high = (middle, high) if meets(middle) else (low, middle)
        return low

    record, found = at(None), None
    if record.wall_s and record.num_requests:
        rate = record.num_requests / record.wall_s.value
        least, most = (1.0, float(record.num_requests)) if whole else (rate / RANGE, rate * RANGE)
        start = min(most, float(record.max_num_seqs or 1)) if whole else rate
        if (value := highest(start, lambda band: band.value)) is not None:
            found = Band(value, highest(value, lambda band: band.low), highest(value, lambda band: band.high))
            record = at(value)
    return replace(record, cell_id=cell.id, knobs=cell.knobs.slug(), highest_load=found)

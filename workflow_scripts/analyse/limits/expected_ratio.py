"""What a ratio of two devices was expected to be, where their time goes, and at which clocks they ran."""

from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.analyse.intervals.repeats import RATE, counted, numbers
from workflow_scripts.analyse.limits.predictions import SCHEMA as PREDICTIONS
from workflow_scripts.analyse.limits.predictions import SHARES
from workflow_scripts.analyse.tables import INTEGER, NUMBER, read_table

# Columns of the cells table, and how their values over the repeats are reduced.
CLOCKS = {"sm_clock_mhz_median": "mean", "sm_clock_mhz_min": "min", "power_cap_share": "mean", "power_w_mean": "mean"}
SIDES = ("a", "b")

# Columns of `with_expectation`.
EXPECTATION = {
    **INTEGER("sequences", "`max_concurrency_allowed` of both"),
    **NUMBER(
        "expected_ratio",
        "predicted from the calibration of one device, scaled to the other by the measured rates; geometric mean of"
        " both ways",
    ),
    **NUMBER("own_expected_ratio", "ratio of the rates predicted from each device's own calibration"),
    **NUMBER(
        "expected_ratio_low expected_ratio_high",
        "range of the ratios predicted from `gpu_a`, from `gpu_b` and from both; not an interval",
    ),
    **NUMBER([f"{share}_{side}" for share in SHARES for side in SIDES], "as in `predictions`"),
    **NUMBER([f"{name}_{side}" for name in CLOCKS for side in SIDES], "as in `cells`, mean or minimum of repeats"),
}


def with_expectation(
    pairs: pd.DataFrame, a: pd.Series, b: pd.Series, cells: pd.DataFrame, predictions: Path | None
) -> pd.DataFrame:
    """The pairs of cells `a` and `b` (ids) with the columns `EXPECTATION`."""
    columns = ["predicted", "scaled_output_tokens_per_s", *SHARES]
    predicted = pd.DataFrame(columns=columns, dtype=float)
    if predictions is not None:
        table = read_table(predictions, PREDICTIONS.name)
        predicted = table[table["quantity"] == RATE].set_index("cell_id")[columns]
    rows = counted(cells)
    measured = rows.groupby("cell_id").agg(CLOCKS)
    allowed = rows.groupby("cell_id")["max_concurrency_allowed"].first()
    of_a, of_b = (predicted.join(measured, how="outer").reindex(ids) for ids in (a, b))
    own_a, own_b = (numbers(of["predicted"]) for of in (of_a, of_b))
    scaled_a, scaled_b = (numbers(of["scaled_output_tokens_per_s"]) for of in (of_a, of_b))
    from_each = np.array([own_a / scaled_b, scaled_a / own_b])
    ratios = np.vstack([from_each, own_a / own_b])
    sides = zip(SIDES, (of_a, of_b), strict=True)
    found = {f"{name}_{side}": numbers(of[name]) for side, of in sides for name in (*SHARES, *CLOCKS)}
    return pairs.assign(
        sequences=a.map(allowed).astype("Int64"),
        expected_ratio=np.sqrt(from_each.prod(axis=0)),
        own_expected_ratio=own_a / own_b,
        expected_ratio_low=ratios.min(axis=0),
        expected_ratio_high=ratios.max(axis=0),
        **found,
    )

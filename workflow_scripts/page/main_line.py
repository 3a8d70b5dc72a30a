"""The lines of a study: the cells along which the setting that matters most was varied, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.page import kit
from workflow_scripts.page.comparisons import every_knob_compared
from workflow_scripts.page.digits import rounded
from workflow_scripts.page.kit import Plot
from workflow_scripts.page.series import device_looks, device_names, environments_in_words, telling
from workflow_scripts.page.style import Look
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import knob_axis, knob_name
from workflow_scripts.tables.results import RAN_IN, RATE, STEADY, MissingError, Tables, records, require
from workflow_scripts.tables.summary import WORK

OF_ARRIVALS = ("request_rate_per_s", "burstiness", "users")


@dataclass(frozen=True)
class MainLine:
    """A setting, and one line of cells per `series` along it: of each device or, of one device, of other settings.

    `rate` is the measure that compares equal work: if the requests of a line differ, the rate while the engine is full.
    """

    knob: str
    rate: str
    rows: pd.DataFrame
    looks: Mapping[str, Look]


def rate_words(measure: str) -> str:
    """A rate in words, with the time that it is of: no number of one stands beside one of the other without them."""
    return f"output tokens/s, {'while full' if measure == STEADY else 'whole runs'}"


@cache
def main_line(tables: Tables) -> MainLine:
    """The lines with the most cells along the setting that matters most. Measured cells of several environments are on
    several lines.

    Raises:
        MissingError: no two measured cells differ in one number alone.
    """
    measured = tables.measured
    knob = _knob(tables, measured)
    others = [name for name in tables.knobs if name != f"knob_{knob}"]
    rows = measured.assign(x=measured[f"knob_{knob}"]).dropna(subset="x")
    values = rows.groupby([*COORDINATES, *others, RAN_IN], dropna=False, sort=False)["x"].transform("nunique")
    rows = require(rows[values >= 2], f"no two measured cells differ only in {knob_name(knob)}")
    places = rows.groupby(COORDINATES[1:], sort=False)
    rows = places.get_group(places["cell_id"].nunique().idxmax())
    rows = rows.assign(series=telling(rows, others) + environments_in_words(rows))
    # One line of each device: that with the most values. So nothing but the setting differs along it.
    longest = rows.groupby(["gpu", "series"], sort=False)["x"].nunique().groupby(level="gpu", sort=False).idxmax()
    one = rows[pd.MultiIndex.from_frame(rows[["gpu", "series"]]).isin(longest)]
    looks, names = device_looks(tables), device_names(tables)
    if one["gpu"].nunique() > 1:
        rows = one.assign(series=one["gpu"].map(names))
        named = {name: looks[gpu] for gpu, name in names.items()}
    else:
        rows = rows[rows["gpu"] == one["gpu"].iloc[0]]
        named = dict.fromkeys(rows["series"], looks[rows["gpu"].iloc[0]])
    differ = (rows.groupby("series")[list(WORK)].nunique() > 1).any(axis=None)
    rate = STEADY if differ and rows[STEADY].notna().all() else RATE
    return MainLine(knob, rate, rows, named)


def _knob(tables: Tables, measured: pd.DataFrame) -> str:
    """The setting with numbers whose effect is largest; max-num-seqs if it is one of those without a known effect."""
    numeric = [name for name in tables.knobs if pd.api.types.is_numeric_dtype(measured[name])]
    names = [name.removeprefix("knob_") for name in numeric if measured[name].nunique() > 1]
    names = [name for name in names if name not in OF_ARRIVALS]
    if "max_num_seqs" in names:
        return "max_num_seqs"
    known = [name for name in every_knob_compared(tables) if name in names]
    if not (known or names):
        raise MissingError("no two measured cells differ in one number")
    return (known or names)[0]


def ends_of(tables: Tables, measure: str) -> tuple[str, str, str]:
    """The device of the first line, and a measure at its two ends as text."""
    rows = values_along(tables, main_line(tables), measure)
    rows = rows[rows["series"] == rows["series"].iloc[0]]
    first, last = (rounded(row["y"], row["low"], row["high"]) for row in records(rows.iloc[[0, -1]]))
    return device_names(tables)[rows["gpu"].iloc[0]], first, last


def line_of(tables: Tables, measure: str, title: str, label: str = "", **more: Any) -> Plot:
    """A measure along the lines, with the interval of each cell; `further` rows are those of series with other
    looks."""
    line = main_line(tables)
    further, named = more.pop("further", None), {**line.looks, **more.pop("named", {})}
    rows = values_along(tables, line, measure)
    if further is not None:
        rows = pd.concat([rows, further])
    shown = column(measure)
    return kit.line(rows, named, title, label or shown.axis, knob_axis(line.knob), measure=measure, **more)


def values_along(tables: Tables, line: MainLine, measure: str) -> pd.DataFrame:
    """The cells of the lines from the lowest value of the setting, with `y`, `low` and `high` in the unit shown. Of
    lines of one device, every other one is hollow."""
    ends = column(measure).scaled(tables.intervals_of(measure))
    rows = line.rows[["cell_id", "gpu", "x", "series"]].drop_duplicates()
    rows = rows.assign(hollow=(rows["series"].factorize()[0] % 2 == 1) & (rows["gpu"].nunique() == 1))
    rows = rows.join(ends.rename(columns={"value": "y"}), on="cell_id").dropna(subset="y")
    return require(rows.sort_values("x", kind="stable"), f"no cell has a {column(measure).in_words}")

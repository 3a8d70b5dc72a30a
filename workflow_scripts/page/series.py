"""Cells side by side: lines along which only one knob changes, and the panels that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import shortened
from workflow_scripts.page.style import Look, looks
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import knob_name, labels, setting
from workflow_scripts.tables.results import RAN_IN, MissingError, Tables, require

# Where cells of several engines are compared.
PLACES = ["gpu", "model", "workload"]


# Letters of a device's name in a figure.
MOST_LETTERS = 16


def device_names(tables: Tables) -> dict[str, str]:
    """Short names of the devices, with and without the source of their numbers: those of cards without their form, if
    that tells them apart."""
    names = short_names(tables.devices)
    return {**{gpu.partition(" (")[0]: name for gpu, name in names.items()}, **names}


def device_looks(tables: Tables) -> dict[str, Look]:
    """How each device is drawn, in every figure."""
    own = looks(tables.devices)
    return {**{gpu.partition(" (")[0]: look for gpu, look in own.items()}, **own}


def coloured(tables: Tables, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `colour`, that of their device, whose name begins their `name` if the study has several."""
    looks, devices = device_looks(tables), rows["gpu"].map(device_names(tables)).fillna("")
    several = len(tables.devices) > 1
    told = [
        f"{device} · {name}" if several and device not in name else name
        for device, name in zip(devices, rows["name"], strict=True)
    ]
    return rows.assign(colour=rows["gpu"].map({gpu: look.colour for gpu, look in looks.items()}), name=told)


def short_names(devices: Sequence[str]) -> dict[str, str]:
    """Short names of devices.

    >>> short_names(["h200", "h100-sxm"]), short_names(["h100-sxm", "h100-pcie"])
    ({'h200': 'H200', 'h100-sxm': 'H100'}, {'h100-sxm': 'H100-SXM', 'h100-pcie': 'H100-PCIE'})
    """
    cards = [device.partition("-")[0] for device in devices]
    alone = [
        device if cards.count(card) > 1 or not any(map(str.isdigit, card)) else card
        for device, card in zip(devices, cards, strict=True)
    ]
    is_plain = [len(name) <= MOST_LETTERS and " " not in name for name in alone]
    short = [
        name.upper() if plain else shortened(name, MOST_LETTERS) for name, plain in zip(alone, is_plain, strict=True)
    ]
    names = short if len({*short}) == len(short) else list(devices)
    return dict(zip(devices, names, strict=True))


@dataclass(frozen=True)
class Group:
    """The cells of one panel.

    `rows` holds one row per cell and repeat, with the knob's value as `x` and, as `series`, a label of the other
    settings that differ within the panel.
    """

    title: str
    rows: pd.DataFrame


def groups_varying(rows: pd.DataFrame, knob: str, knobs: Sequence[str], panel_keys: Sequence[str]) -> list[Group]:
    """Groups of rows in which `knob` takes at least two values while nothing else changes, the largest first.

    Measured cells of several environments are not compared, so they are on several lines.
    """
    name = knob.removeprefix("knob_")
    if knob not in rows.columns:
        raise MissingError(f"no cell of the study sets {name}")
    rows = rows[rows[knob].notna()]
    others = [column for column in knobs if column != knob]
    rows = rows.assign(x=rows[knob])
    # What is not measured has no environment.
    alike = [*COORDINATES, *others, *{RAN_IN} & {*rows}]
    rows = rows[rows.groupby(alike, dropna=False, sort=False)["x"].transform("nunique") >= 2]
    require(rows, f"no two measured cells differ only in {knob_name(name)}")
    names = told_apart(rows, panel_keys)
    groups = [
        Group(
            " · ".join(first[names]),
            part.assign(series=series_labels(part, others) + environments_in_words(part)),
        )
        for _, part in rows.groupby(list(panel_keys), sort=False)
        for _, first in part.head(1).iterrows()
    ]
    return sorted(groups, key=lambda group: -group.rows["cell_id"].nunique())


def environments_in_words(rows: pd.DataFrame) -> "pd.Series[str]":
    """What tells the environments of rows apart, if those of one device and engine have several."""
    if RAN_IN not in rows:
        return pd.Series("", index=rows.index)
    several = rows.groupby(["gpu", "engine"], sort=False)[RAN_IN].transform("nunique") > 1
    numbers = rows[RAN_IN].astype("Int64")
    return (", environment " + numbers.astype(str)).where(several & numbers.notna(), "")


def one_line(group: Group) -> Group:
    """One line of each device: that with the most values of the knob, and the first of several. So nothing but the knob
    differs between the values of a sentence; the title says which settings all of them have."""
    lines = group.rows.groupby(["gpu", "series"], sort=False)["x"].nunique()
    longest = lines.groupby(level="gpu", sort=False).idxmax()
    rows = group.rows[pd.MultiIndex.from_frame(group.rows[["gpu", "series"]]).isin(longest)]
    names = [group.title, *dict.fromkeys(rows["series"])]
    return replace(group, title=" · ".join(filter(None, names)), rows=rows)


def told_apart(rows: pd.DataFrame, names: Sequence[str], otherwise: Sequence[str] = ("model", "workload")) -> list[str]:
    """Those of the names that differ between rows."""
    return [name for name in names if rows[name].nunique() > 1] or list(otherwise)


def series_labels(rows: pd.DataFrame, knobs: Sequence[str]) -> pd.Series:
    """For each row the settings of the knobs that differ between rows; defaults only if there is no other setting.

    >>> rows = pd.DataFrame({"knob_a": [1, 2, None], "knob_b": [5, 5, 5], "knob_c": [None, 3, None]})
    >>> list(series_labels(rows, ["knob_a", "knob_b", "knob_c"]))
    ['a 1', 'a 2, c 3', 'a default, c default']
    """
    varied = [knob for knob in knobs if rows[knob].nunique(dropna=False) > 1]

    @cache
    def label(*values: Any) -> str:
        named = list(zip(varied, values, strict=True))
        return ", ".join(setting(*of_one) for of_one in [n for n in named if pd.notna(n[1])] or named)

    labels = [label(*values) for _, *values in rows[varied].itertuples(name=None)]
    return pd.Series(labels, index=rows.index, dtype=object)


def cell_names(tables: Tables) -> dict[str, str]:
    """A short name of each cell: the device, and what else tells it from others."""
    cells = tables.cells
    # What most cells have is not named; an engine's settings tell which it is.
    most = {name: cells[name].value_counts().index[0] for name in ("model", "workload")}
    others = [cells[name].where(cells[name] != most[name], "") for name in most if cells[name].nunique() > 1]
    parts = [cells["gpu"].map(device_names(tables)), *others, labels(cells, tables.knobs)]
    words = [" · ".join(filter(None, map(str, of_one))) for of_one in zip(*parts, strict=True)]
    return dict(zip(cells["cell_id"], words, strict=True))


def without_shared(settings: "pd.Series[str]") -> "pd.Series[str]":
    """Each text of settings ("a=1, b=2") without the settings that all of them share.

    >>> list(without_shared(pd.Series(["a=1, b=2", "a=1, b=3"])))
    ['b=2', 'b=3']
    """
    parts = settings.str.split(", ")
    shared = set.intersection(*map(set, parts)) if len(parts) else set()
    return parts.map(lambda of_one: ", ".join(part for part in of_one if part not in shared))

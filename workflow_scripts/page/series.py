"""Names and looks of cells side by side: of their devices, and of the settings that tell them apart."""

from collections.abc import Sequence

import pandas as pd

from workflow_scripts.common.wording import shortened
from workflow_scripts.page.style import Look, looks
from workflow_scripts.study.setting_words import labels, settings_in_words
from workflow_scripts.tables.results import RAN_IN, Tables

# Where cells of several engines are compared.
PLACES = ["gpu", "model", "workload"]


# Letters of a device's name in a figure.
_MOST_LETTERS = 16


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
    short = [
        name.upper() if len(name) <= _MOST_LETTERS and " " not in name else shortened(name, _MOST_LETTERS)
        for name in alone
    ]
    names = short if len({*short}) == len(short) else list(devices)
    return dict(zip(devices, names, strict=True))


def environments_in_words(rows: pd.DataFrame) -> "pd.Series[str]":
    """What tells the environments of rows apart, if those of one device and engine have several."""
    several = rows.groupby(["gpu", "engine"], sort=False)[RAN_IN].transform("nunique") > 1
    numbers = rows[RAN_IN].astype("Int64")
    return (", environment " + numbers.astype(str)).where(several & numbers.notna(), "")


def told_apart(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Those of the names that differ between rows."""
    return [name for name in names if rows[name].nunique() > 1]


def telling(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    """For each row the settings in words that differ between the rows; nothing if none does.

    >>> rows = pd.DataFrame({"knob_a": [1, 2, None], "knob_b": [5, 5, 5]})
    >>> telling(rows, ["knob_a", "knob_b"]), telling(rows, ["knob_b"])
    (['a 1', 'a 2', "engine's defaults"], ['', '', ''])
    """
    varied = [knob for knob in knobs if rows[knob].nunique(dropna=False) > 1]
    return settings_in_words(rows, varied) if varied else [""] * len(rows)


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

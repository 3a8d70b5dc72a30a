"""Samples from the output of `nvidia-smi --query-gpu=... --format=csv -l`.

A header names the columns. Without a header the caller names them; units alone do not say what a column holds. A value
that the GPU does not report (`[N/A]`, `ERR!`, ...) is null.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from workflow_scripts.device.device_check import reasons_of

Value = float | str | list[str]
Sample = dict[str, Value]

# Field of nvidia-smi -> column of the trace. If several fields give one column, the first of them here that has values
# counts. On GPUs since Ampere `power.draw` is the average over the last second, like
# `power.draw.average`.
_FIELDS = {
    "timestamp": "time_unix_s",
    "index": "gpu",
    "uuid": "gpu",
    "gpu_bus_id": "gpu",
    "name": "gpu",
    "memory.used": "memory_used_bytes",
    "memory.free": "memory_free_bytes",
    "memory.total": "memory_total_bytes",
    "utilization.gpu": "utilization_pct",
    "power.draw": "power_w",
    "power.draw.average": "power_w",
    "power.draw.instant": "power_w",
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "temperature.gpu": "temperature_c",
    "clocks_event_reasons.active": "throttle_reasons",
    "clocks_throttle_reasons.active": "throttle_reasons",
}
# Other common names -> field of nvidia-smi.
_ALIASES = {
    "time": "timestamp",
    "gpu": "index",
    "gpu_uuid": "uuid",
    "pci.bus_id": "gpu_bus_id",
    "gpu_name": "name",
    "memory": "memory.used",
    "mem": "memory.used",
    "mem.used": "memory.used",
    "mem.free": "memory.free",
    "mem.total": "memory.total",
    "util": "utilization.gpu",
    "utilization": "utilization.gpu",
    "gpu.util": "utilization.gpu",
    "gpu.utilization": "utilization.gpu",
    "power": "power.draw",
    "clocks.current.sm": "clocks.sm",
    "sm_clock": "clocks.sm",
    "clocks.current.memory": "clocks.mem",
    "memory_clock": "clocks.mem",
    "temperature": "temperature.gpu",
    "temp": "temperature.gpu",
}
FIELD_NAMES = tuple(_FIELDS)

# By the first letter of the unit; a value with another unit is null. Sizes are powers of 1024, even if an old driver
# wrote MB.
_SCALE: dict[str, dict[str, float]] = {
    "memory_used_bytes": {"": 2**20, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
    "power_w": {"": 1, "m": 1e-3, "W": 1, "k": 1e3},
    "sm_clock_mhz": {"": 1, "M": 1, "G": 1e3},
}
_SCALE["memory_free_bytes"] = _SCALE["memory_total_bytes"] = _SCALE["memory_used_bytes"]
_SCALE["memory_clock_mhz"] = _SCALE["sm_clock_mhz"]

_NUMBER = re.compile(r"([-+]?\d+(?:\.\d*)?)\s*([A-Za-z%]*)")
_DATE = re.compile(r"\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d")
_MASK = re.compile(r"0x[0-9a-fA-F]{1,16}")
_HEADER_UNIT = re.compile(r"\[([A-Za-z%]*)\]$")


@dataclass(frozen=True)
class _Column:
    field: str | None  # of nvidia-smi; None: it is not read
    unit: str = ""  # from the header, for values without a unit


def parse_csv(text: str, columns: Sequence[str] | None = None) -> tuple[list[Sample], int, list[str]]:
    r"""The samples of a text in its order, the number of lines without one, and notes for the reader. `columns` names
    the fields of a text without a header.

    >>> parse_csv("memory.used [MiB], power.draw [W]\n1 MiB, 61.5 W\n[N/A], 60.5 W\n")
    ([{'memory_used_bytes': 1048576.0, 'power_w': 61.5}, {'power_w': 60.5}], 0, [])

    Raises ValueError if `columns` does not fit the lines.
    """
    # nvidia-smi does not quote values, and none of them contains a comma.
    table = [[cell.strip(' "') for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    header = next((names for row in table if (names := _header(row))), None)
    current = header or (_named(table, columns) if columns else [])
    # Below the header of another query, for example of processes, there are no samples of a device.
    readable = header is None or _names_a_field(header)
    rows: list[Sample] = []
    bad_lines = 0
    for number, row in enumerate(table, start=1):
        has_data = any(_NUMBER.fullmatch(cell) or _DATE.match(cell) or _is_null(cell) for cell in row)
        cut = number == len(table) and not text.endswith("\n") and _is_cut(row, current, table[:-1])
        if names := _header(row):
            current, readable = names, _names_a_field(names)
        elif readable and len(row) == len(current) and has_data and not cut:
            rows.append(_sample(row, current))
        else:
            bad_lines += 1
    lacking = bool(rows or bad_lines) and header is None and columns is None
    return rows, bad_lines, ["there is no header: name the fields with --columns"] if lacking else []


def _names_a_field(columns: Sequence[_Column]) -> bool:
    return any(column.field for column in columns)


def _field(name: str) -> str | None:
    """The field that a name means.

    >>> _field("memory.used [MiB]"), _field("Mem_Used"), _field("utilization_pct"), _field("fan.speed [%]")
    ('memory.used', 'memory.used', 'utilization.gpu', None)
    """
    plain = _HEADER_UNIT.sub("", name.strip().lower()).strip()
    for candidate in (plain, re.sub(r"_(?:mib|pct|w|mhz|c)$", "", plain)):
        for spelling in (candidate, candidate.replace("_", "."), candidate.replace(" ", "_")):
            field = _ALIASES.get(spelling, spelling)
            if field in _FIELDS:
                return field
    return None


def _header(row: Sequence[str]) -> list[_Column] | None:
    """The columns that a line names; None for a line of values."""
    units = [_HEADER_UNIT.search(cell) for cell in row]
    named = [_field(cell) for cell in row]
    if not any(unit and cell[: unit.start()] for unit, cell in zip(units, row, strict=True)) and not any(named):
        return None
    if any(_NUMBER.fullmatch(cell) or _DATE.match(cell) for cell in row):
        return None
    return [_Column(field, unit[1] if unit else "") for field, unit in zip(named, units, strict=True)]


def _named(table: Sequence[Sequence[str]], names: Sequence[str]) -> list[_Column]:
    data = [row for row in table if any(_NUMBER.fullmatch(cell) for cell in row)]
    if data and not any(len(row) == len(names) for row in data):
        raise ValueError(f"--columns names {len(names)} fields, but the lines have {len(data[0])}")
    columns = [_Column(_field(name)) for name in names]
    if not _names_a_field(columns):
        raise ValueError(f"--columns {','.join(names)}: none is known; allowed are {', '.join(FIELD_NAMES)}")
    return columns


def _is_null(cell: str) -> bool:
    """Whether nvidia-smi says that there is no value."""
    return cell in ("", "-", "N/A", "ERR!", "Not Supported", "Unknown Error") or cell.startswith("[")


def _is_cut(row: Sequence[str], columns: Sequence[_Column], before: Sequence[Sequence[str]]) -> bool:
    """Whether the last value of the last line lacks the unit of its column or of the line's other values."""
    found = _NUMBER.fullmatch(row[-1])
    if not found or found[2]:
        return False
    above = [_NUMBER.fullmatch(other[-1]) for other in before if len(other) == len(row)]
    beside = [_NUMBER.fullmatch(cell) for cell in row[:-1]] if columns and columns[-1].unit else []
    return any(value and value[2] for value in (*above, *beside))


def _sample(row: Sequence[str], columns: Sequence[_Column]) -> Sample:
    sample: Sample = {}
    cells = {column.field: (cell, column.unit) for cell, column in zip(row, columns, strict=True) if column.field}
    for field, column in _FIELDS.items():
        cell, unit = cells.get(field, ("", ""))
        value = None if column in sample or _is_null(cell) else _value(column, cell, unit)
        if value is not None:
            sample[column] = value
    return sample


def _value(column: str, cell: str, unit: str) -> Value | None:
    if column == "gpu":
        return cell
    if column == "time_unix_s":
        return _unix_seconds(cell)
    if column == "throttle_reasons":
        return reasons_of(int(cell, 16)) if _MASK.fullmatch(cell) else None
    found = _NUMBER.fullmatch(cell)
    if not found:
        return None
    scales, letter = _SCALE.get(column), (found[2] or unit)[:1]
    scale = scales.get(letter, scales.get(letter.upper())) if scales else 1
    return None if scale is None else float(found[1]) * scale


def _unix_seconds(cell: str) -> float | None:
    """Seconds since the epoch. nvidia-smi prints local time without its zone, which is read as UTC.

    >>> _unix_seconds("1970/01/01 00:00:01.500")
    1.5
    """
    try:
        when = datetime.fromisoformat(cell.replace("/", "-"))
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()

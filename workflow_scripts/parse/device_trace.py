"""Print the extremes of the trace of a tool that watches GPUs, as JSON.

    kvsweep trace gpu.csv

prints one JSON object with the extremes and the mean power; a value is null if the trace does not give it. FILE is what
`nvidia-smi --query-gpu=... --format=csv` prints, with or without units, the CSV of `amd-smi` or `rocm-smi`, the table
of `nvidia-smi dmon` or `dcgmi dmon`, or the metrics of dcgm-exporter. A table that has no header, or one with
other names, needs a first line with nvidia-smi's, perhaps with units: `memory.used [GiB],power.draw`. Other modules
take the samples from `read_trace`.
"""

import json
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from workflow_scripts.common.command import command, option
from workflow_scripts.logs.engine_log_text import read_log_text

TraceSample = dict[str, float]

# Column of the trace -> what nvidia-smi, its dmon, dcgmi dmon (DCGM 4.5), dcgm-exporter, amd-smi and rocm-smi (ROCm 7)
# call it. Of several that have a value, the first here counts. On GPUs since Ampere `power.draw` is the average of the
# last second, like `power.draw.average`. Names without a column belong to a header too.
_NAMES = {
    "memory_used_bytes": "memory.used, fb, fbusd, fb_used, vram_used, used_vram, vram total used memory",
    "utilization_pct": "utilization.gpu, sm, gputl, gpu_util, gfx, gfx_activity, gfx_util, gfx_utilization, gpu use",
    "power_w": "power.draw, pwr, power, power_usage, socket_power, average_socket_power, current_socket_power, "
    "average graphics package power, current socket graphics package power, power.draw.average, power.draw.instant",
    "": "timestamp, date time, index, gpu, entity, device, uuid, gpu_uuid, gpu_bus_id, pci.bus_id, name, gpu_name",
}
_COLUMN_OF = {name: column for column, names in _NAMES.items() for name in names.split(", ")}
_DCGM_LINE = re.compile(r"DCGM_FI_(?:DEV_)?(\w{1,60})\{[^{}]{0,2000}\}\s+(\S{1,40})(?:\s+\d{10,16})?\s*$")

# By the first letter of the unit; a value with another unit is null. Sizes are powers of 1024, even if an old driver
# wrote MB.
_SCALE: dict[str, dict[str, float]] = {
    "bytes": {"": 2**20, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
    "w": {"": 1, "m": 1e-3, "W": 1, "k": 1e3},
}

# All fields that nvidia-smi knows give a line of 4,000 characters.
MOST_CSV_LINE = 20_000
_MOST_NAMES = 20  # of a header, in a message

_NUMBER = re.compile(r"([-+]?\d{1,20}(?:\.\d{0,20})?(?:e[-+]?\d\d?)?)\s*([A-Za-z%]*)")
_DATE = re.compile(r"\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d")
_NULL = re.compile(r"-?|N/A|ERR!|Not Supported|Unknown Error|\[.*")  # of nvidia-smi
_HEADER_UNIT = re.compile(r"(?:\[([A-Za-z%]*)\]|(?<=\s)\(([A-Za-z%]*)\))$")
# The header of `nvidia-smi dmon`, perhaps with date and time, or of `dcgmi dmon`; a line of units may follow.
_TABLE = re.compile(r"\s*#\s*(?:date\s+)?(?:time\s+)?(?:gpu|entity)\b(?!,)", re.IGNORECASE)
_UNITS_OF_A_TABLE = re.compile(r"\s*(?:#\s*(?:YYYY\W?MM\W?DD[\s,]+)?(?:HH:MM:SS[\s,]+)?Idx|I[Dd])(?![\w.])")

# What to do about a text without a sample.
_NAME_THEM = "name the fields in a first line as nvidia-smi does: memory.used [MiB],utilization.gpu,power.draw"
_IS_READ = (
    "no sample was recognised: this reads `nvidia-smi --query-gpu=... --format=csv`, `nvidia-smi dmon`, `dcgmi dmon`,"
    f" amd-smi and rocm-smi with --csv, and dcgm-exporter; {_NAME_THEM}"
)

# What `kvsweep trace` prints: of which column, and what of its values; sizes in MiB. Memory is that of one device, not
# the sum over several; the mean is over the samples with a value.
_SUMMARY: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "memory_used_mib_max": ("memory_used_bytes", max),
    "memory_used_mib_min": ("memory_used_bytes", min),
    "utilization_pct_max": ("utilization_pct", max),
    "power_w_mean": ("power_w", fmean),
}


@dataclass(frozen=True)
class Trace:
    """The samples of a trace, in its order: bytes, `utilization_pct` and `power_w`. `reason` holds the notes for the
    reader, if there are any."""

    samples: Sequence[TraceSample]
    reason: str | None

    def known(self, name: str) -> list[float]:
        """The values of a column, in the order of the samples."""
        return [sample[name] for sample in self.samples if name in sample]


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises OSError or InputError if the file cannot be read."""
    return parse_trace(read_log_text(path))


def parse_trace(text: str) -> Trace:
    note: str | None = None
    if "DCGM_FI_" in text:  # each value in pages of dcgm-exporter is a sample of its own
        values = filter(None, map(_DCGM_LINE.match, text.split("\n")))
        rows, bad_lines = [*filter(None, (_sample([v[2]], [(v[1].lower(), "")]) for v in values))], 0
    else:
        rows, bad_lines, note = _parse_table(text)
    if not rows and note is None:
        note = _IS_READ if text.strip() else "the trace is empty"
    bad = f"{bad_lines} line{'s' if bad_lines > 1 else ''} without a readable sample" if bad_lines else None
    return Trace(rows, "; ".join(filter(None, (note, bad))) or None)


def summarise(trace: Trace) -> dict[str, float | str | None]:
    """Extremes over all samples of all devices in a trace, None where it does not give the value; `reason` says what
    could not be read and what was assumed."""
    extremes: dict[str, float | str | None] = {"rows": len(trace.samples)}
    for name, (column, reduce) in _SUMMARY.items():
        numbers = trace.known(column)
        value = round(reduce(numbers) / (2**20 if "_mib_" in name else 1), 6) if numbers else None
        extremes[name] = int(value) if value is not None and value.is_integer() else value
    return extremes | {"reason": trace.reason}


# The name of a field, and the header's unit for values without one.
_Column = tuple[str, str]


def _parse_table(text: str) -> tuple[list[TraceSample], int, str | None]:
    r"""The samples of a text in its order, the number of lines without one, and a note for the reader.

    >>> _parse_table("memory.used [MiB], power.draw [W]\n1 MiB, 61.5 W\n[N/A], 60.5 W\n")
    ([{'memory_used_bytes': 1048576.0, 'power_w': 61.5}, {'power_w': 60.5}], 0, None)
    """
    lines = [line for line in text.splitlines() if line.strip() and not _UNITS_OF_A_TABLE.match(line)]
    spaced = any(map(_TABLE.match, lines))
    table = [(_words if spaced else _cells)(line) for line in lines]
    header = next(filter(None, map(_header, table)), None)
    rows: list[TraceSample] = []
    bad_lines, current, before = 0, header or [], [""]
    for row in table:
        # Below the header of another query, for example of processes, there are no samples of a device.
        if names := _header(row):
            current = names
        elif _is_data(row) and len(row) == len(current) and any(name in _COLUMN_OF for name, _ in current):
            rows.append(_sample(row, current))
        else:
            bad_lines += 1
            continue
        # The last value of the last line may lack the unit of those above.
        if row is table[-1] and not text.endswith("\n") and not names and bool(_unit(before)) > bool(_unit(row)):
            rows, bad_lines = rows[:-1], bad_lines + 1
        before = row
    unknown = [name for name, _ in header or [] if name not in _COLUMN_OF][:_MOST_NAMES]
    if not rows or any(rows):
        return rows, bad_lines, None
    return rows, bad_lines, f"no field with a value is known ({', '.join(unknown)}): {_NAME_THEM}"


def _is_data(row: Sequence[str]) -> bool:
    return any(_NUMBER.fullmatch(cell) or _DATE.match(cell) or _NULL.fullmatch(cell) for cell in row)


def _unit(row: Sequence[str]) -> str:
    """The unit of the last value of a line; empty for none."""
    return match[2] if (match := _NUMBER.fullmatch(row[-1])) else ""


def _cells(line: str) -> list[str]:
    """The values of a line of CSV; a longer one than any of nvidia-smi is cut. None of them contains a separator."""
    return [cell.strip(' "#') for cell in re.split("[,;\t]", line[:MOST_CSV_LINE])]


def _words(line: str) -> list[str]:
    """The values of a line that white space separates; date and time are one.

    >>> _words("#Date       Time        gpu    pwr"), _words("20260301   10:00:00      0     64"), _words("GPU 0  64.5")
    (['date time', 'gpu', 'pwr'], ['2026-03-01 10:00:00', '0', '64'], ['0', '64.5'])
    """
    line = re.sub(r"^\s*#\s*", "", re.sub(r"^\s*GPU\s+(?=\d)", "", line[:MOST_CSV_LINE]))
    dated = re.match(r"\s*(?:(Date\s+Time)|(\d{4})[/-]?(\d\d)[/-]?(\d\d)\s+(\d\d:\d\d:\d\d))\s+", line)
    if dated is None:
        return line.split()
    when = "date time" if dated[1] else f"{dated[2]}-{dated[3]}-{dated[4]} {dated[5]}"
    return [when, *line[dated.end() :].split()]


def _column(heading: str) -> _Column:
    """The name and the unit in a heading.

    >>> _column("memory.used [MiB]"), _column("VRAM Total Memory (B)"), _column("GPU_Name")
    (('memory.used', 'MiB'), ('vram total memory', 'B'), ('gpu_name', ''))
    """
    unit = _HEADER_UNIT.search(heading.strip())
    return _HEADER_UNIT.sub("", heading.strip().lower()).strip(), (unit[1] or unit[2] or "") if unit else ""


def _header(row: Sequence[str]) -> list[_Column] | None:
    """The columns that a line names; None for a line of values."""
    named = [_column(cell) for cell in row]
    if not any(
        name in _COLUMN_OF or (name and name != cell.strip().lower())
        for cell, (name, _) in zip(row, named, strict=True)
    ):
        return None
    if any(_NUMBER.fullmatch(cell) or _DATE.match(cell) for cell in row):
        return None
    return [("", "")] * len(row) if "pid" in row else named  # values of processes are not read


def _sample(row: Sequence[str], columns: Sequence[_Column]) -> TraceSample:
    sample: TraceSample = {}
    cells = {name: (cell, unit) for cell, (name, unit) in zip(row, columns, strict=True)}
    for name, column in _COLUMN_OF.items():
        if column and name in cells and column not in sample and (value := _value(column, *cells[name])) is not None:
            sample[column] = value
    return sample


def _value(column: str, cell: str, unit: str) -> float | None:
    match = _NUMBER.fullmatch(cell.strip("()"))
    if not match:
        return None
    scales, letter = _SCALE.get(column.rpartition("_")[2]), (match[2] or unit)[:1]
    scale = scales.get(letter, scales.get(letter.upper())) if scales else 1
    return None if scale is None else float(match[1]) * scale


@command("trace", option("file", type=Path, metavar="FILE", help="the trace"))
def main(args: Namespace) -> None:
    print(json.dumps(summarise(read_trace(args.file)), indent=2))

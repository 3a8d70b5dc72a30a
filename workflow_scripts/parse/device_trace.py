"""Print the extremes of a device trace, of nvidia-smi or a cell, as JSON.

    kvsweep trace gpu.csv

prints one JSON object with the extremes and the mean power; values are null if the trace does not say. FILE is what
`nvidia-smi --query-gpu=... --format=csv` prints, with or without units, or JSON Lines of a cell. If a CSV has no
header, `--columns` names its fields. Other modules take the samples from `read_trace`.
"""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflow_scripts.common.command import command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.records import Record
from workflow_scripts.logs.engine_log_text import decode
from workflow_scripts.parse.nvidia_smi import FIELD_NAMES, parse_csv

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = (
    "time_unix_s",
    "time_monotonic_s",
    "memory_used_bytes",
    "memory_free_bytes",
    "memory_total_bytes",
    "utilization_pct",
    "power_w",
    "energy_j",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "process_memory_bytes",
    "process_cpu_pct",
)
COLUMNS = ("gpu", *NUMBERS, "throttle_reasons")


class TraceSummary(Record):
    """Extremes over all samples of all devices in a trace; None: the trace does not say.

    Memory is that of one device, not the sum over several. `power_w_mean` is the mean over the samples with a value
    for power. `reason` says what could not be read and what was assumed.
    """

    rows: int
    memory_used_mib_max: int | float | None
    memory_used_mib_min: int | float | None
    memory_free_mib_min: int | float | None
    memory_total_mib_max: int | float | None
    utilization_pct_max: int | float | None
    power_w_mean: int | float | None
    reason: str | None


def read_trace(path: Path, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """Read a trace of either format as a table, one row per sample.

    The columns are those of `COLUMNS` that the trace has, with the same names for both formats: `time_unix_s` (from
    nvidia-smi its local time, read as UTC), `time_monotonic_s`, sizes in bytes, `power_w`, `energy_j` (a counter),
    clocks in MHz, `throttle_reasons` (list of names), and `gpu`, the label of the device if nvidia-smi gave one.
    A value that the trace does not have is NaN. `attrs` holds `format`, `header` (of the pipeline's trace),
    `bad_lines` (the number of lines without a sample) and `reason` (what a reader should know, or None).

    Args:
        path: JSON Lines of the pipeline, or CSV of nvidia-smi.
        columns: nvidia-smi's fields, for a CSV without a header.

    Raises:
        OSError: the file cannot be read.
        ValueError: `columns` does not fit the file.
    """
    return parse_trace(decode(path.read_bytes()), columns)


def parse_trace(text: str, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """Read the text of a trace; see `read_trace`."""
    import pandas as pd  # takes longer than the rest of the command, and its help does not need it

    header: dict[str, Any] = {}
    if text.lstrip().startswith("{"):
        rows, bad_lines, header = _json_lines(text)
        notes, kind = [], "json lines"
    else:
        samples = parse_csv(text, columns)
        rows, bad_lines, notes, kind = samples.rows, samples.bad_lines, samples.notes, "nvidia-smi"
    present = {name for row in rows for name in row}
    trace = pd.DataFrame(rows, columns=[name for name in COLUMNS if name in present])
    for name in NUMBERS:
        if name in trace:
            trace[name] = pd.to_numeric(trace[name], errors="coerce")
    if bad_lines:
        notes.append(f"{bad_lines} line{'s' if bad_lines > 1 else ''} without a readable sample")
    if not rows:
        notes.append("no sample was recognised" if text.strip() else "the trace is empty")
    trace.attrs = {"format": kind, "header": header, "bad_lines": bad_lines, "reason": "; ".join(notes) or None}
    return trace


def _json_lines(text: str) -> tuple[list[dict[str, Any]], int, dict[str, Any]]:
    """The samples, the number of lines without a sample, and the header."""

    def fits(name: str, value: Any) -> bool:
        return isinstance(value, list) if name == "throttle_reasons" else isinstance(value, int | float | str)

    rows: list[dict[str, Any]] = []
    header: dict[str, Any] = {}
    bad_lines = 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and "schema" in record:
            header = header or record
        elif isinstance(record, dict) and any(name in record for name in COLUMNS):
            rows.append({name: value for name, value in record.items() if fits(name, value)})
        else:
            bad_lines += 1
    return rows, bad_lines, header


def summarise(trace: "pd.DataFrame") -> TraceSummary:
    """Reduce the samples from `read_trace` to their extremes and the mean power."""

    def mib(name: str, how: str) -> int | float | None:
        return _reduced(trace, name, how, 2.0**-20)

    return TraceSummary(
        rows=len(trace),
        memory_used_mib_max=mib("memory_used_bytes", "max"),
        memory_used_mib_min=mib("memory_used_bytes", "min"),
        memory_free_mib_min=mib("memory_free_bytes", "min"),
        memory_total_mib_max=mib("memory_total_bytes", "max"),
        utilization_pct_max=_reduced(trace, "utilization_pct", "max"),
        power_w_mean=_reduced(trace, "power_w", "mean"),
        reason=trace.attrs["reason"],
    )


def _reduced(trace: "pd.DataFrame", name: str, how: str, scale: float = 1.0) -> int | float | None:
    if name not in trace or trace[name].isna().all():
        return None
    value = round(float(trace[name].agg(how)) * scale, 6)
    return int(value) if value.is_integer() else value


@command(
    "trace",
    option("file", type=Path, metavar="FILE", help="the trace"),
    option(
        "--columns",
        metavar="A,B,C",
        help="the fields of a CSV without a header, in its order; these are read: " + ", ".join(FIELD_NAMES),
    ),
)
def main(args: Namespace) -> None:
    """Print the extremes of one trace."""
    columns = [name.strip() for name in args.columns.split(",")] if args.columns else None
    try:
        summary = summarise(read_trace(args.file, columns))
    except ValueError as error:
        raise InputError(f"{args.file}: {error}") from None
    print(summary.model_dump_json(indent=2))

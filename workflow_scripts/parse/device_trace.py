"""Print the extremes of a device trace, of nvidia-smi or a cell, as JSON.

    kvsweep trace gpu.csv

prints one JSON object with the extremes and the mean power; a value is null if the trace does not give it. FILE is what
`nvidia-smi --query-gpu=... --format=csv` prints, with or without units, or JSON Lines of a cell. If a CSV has no
header, `--columns` names its fields. Other modules take the samples from `read_trace`.
"""

import contextlib
import json
import math
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflow_scripts.common.command import command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.logs.engine_log_text import decode
from workflow_scripts.parse.nvidia_smi import FIELD_NAMES, Sample, parse_csv

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = (
    *("time_unix_s", "time_monotonic_s", "memory_used_bytes", "memory_free_bytes", "memory_total_bytes"),
    *("utilization_pct", "power_w", "energy_j", "sm_clock_mhz", "memory_clock_mhz"),
    *("temperature_c", "process_memory_bytes", "process_cpu_pct"),
)
COLUMNS = ("gpu", *NUMBERS, "throttle_reasons")


# What `kvsweep trace` prints: of which column, and what of its values. Memory is that of one device, not the sum over
# several; the mean is over the samples with a value.
_SUMMARY: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "memory_used_mib_max": ("memory_used_bytes", lambda sizes: max(sizes) / 2**20),
    "memory_used_mib_min": ("memory_used_bytes", lambda sizes: min(sizes) / 2**20),
    "memory_free_mib_min": ("memory_free_bytes", lambda sizes: min(sizes) / 2**20),
    "memory_total_mib_max": ("memory_total_bytes", lambda sizes: max(sizes) / 2**20),
    "utilization_pct_max": ("utilization_pct", max),
    "power_w_mean": ("power_w", lambda powers: sum(powers) / len(powers)),
}


@dataclass(frozen=True)
class Trace:
    """The samples of a trace, in its order.

    A sample has those of `COLUMNS` that the trace gives, with the same names for both formats: `time_unix_s` (from
    nvidia-smi its local time, read as UTC), `time_monotonic_s`, sizes in bytes, `power_w`, `energy_j` (a counter),
    clocks in MHz, `throttle_reasons` (list of names), and `gpu`, the label of the device if nvidia-smi gave one.
    `reason` holds the notes for the reader, if there are any.
    """

    samples: Sequence[Sample]
    reason: str | None

    def known(self, name: str) -> list[float]:
        """The finite numbers of a column, in the order of the samples."""
        numbers = []
        for sample in self.samples:
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                numbers.append(float(sample.get(name)))  # type: ignore[arg-type]  # what is no number is left out
        return [number for number in numbers if math.isfinite(number)]

    def table(self) -> "pd.DataFrame":
        """One row per sample, with the columns that any of them has; a value that the trace does not give is NaN."""
        import pandas as pd  # takes longer than the whole command, which does not need it

        present = {name for sample in self.samples for name in sample}
        table = pd.DataFrame(self.samples, columns=[name for name in COLUMNS if name in present])
        return table.assign(**{name: pd.to_numeric(table[name], errors="coerce") for name in NUMBERS if name in table})


def read_trace(path: Path, columns: Sequence[str] | None = None) -> Trace:
    """Read a trace: JSON Lines of the pipeline, or CSV of nvidia-smi, whose fields `columns` names if it has no header.
    Raises OSError if the file cannot be read, and ValueError if `columns` does not fit the file."""
    return parse_trace(decode(path.read_bytes()), columns)


def parse_trace(text: str, columns: Sequence[str] | None = None) -> Trace:
    notes: list[str] = []
    if text.lstrip().startswith("{"):
        rows, bad_lines = _json_lines(text)
    else:
        rows, bad_lines, notes = parse_csv(text, columns)
    if bad_lines:
        notes = [*notes, f"{bad_lines} line{'s' if bad_lines > 1 else ''} without a readable sample"]
    if not rows:
        notes = [*notes, "no sample was recognised" if text.strip() else "the trace is empty"]
    return Trace(rows, "; ".join(notes) or None)


def _json_lines(text: str) -> tuple[list[Sample], int]:
    """The samples, and the number of lines without one; the header is none."""

    def fits(name: str, value: Any) -> bool:
        return isinstance(value, list) if name == "throttle_reasons" else isinstance(value, int | float | str)

    rows: list[Sample] = []
    bad_lines = 0
    for line in filter(str.strip, text.split("\n")):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and "schema" in record:
            continue
        if isinstance(record, dict) and any(name in record for name in COLUMNS):
            rows.append({name: value for name, value in record.items() if fits(name, value)})
        else:
            bad_lines += 1
    return rows, bad_lines


def summarise(trace: Trace) -> dict[str, float | str | None]:
    """Extremes over all samples of all devices in a trace, None where it does not give the value; `reason` says what
    could not be read and what was assumed."""
    found: dict[str, float | str | None] = {"rows": len(trace.samples)}
    for name, (column, of) in _SUMMARY.items():
        known = trace.known(column)
        value = round(of(known), 6) if known else None
        found[name] = int(value) if value is not None and value.is_integer() else value
    return found | {"reason": trace.reason}


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
    columns = [name.strip() for name in args.columns.split(",")] if args.columns else None
    try:
        summary = summarise(read_trace(args.file, columns))
    except ValueError as error:
        raise InputError(f"{args.file}: {error}") from None
    print(json.dumps(summary, indent=2))

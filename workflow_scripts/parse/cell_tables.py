"""Parse all cells of one GPU into five tables.

    kvsweep parse-cells --cells results/demo/cells \\
        --gpu cpu-all --out results/demo/parsed/cpu-all

reads every `{engine}/{model}/{workload}/{knobs}/outcome.json` below `cells/{gpu}`, and those of further starts in
`start-{n}/` beside it. It writes `starts.parquet`, `repeats.parquet`, `requests.parquet`, `steps.parquet` and
`trace.parquet`.
"""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, StrictFloat, StrictInt

from workflow_scripts.common.command import PROCESSES, command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import last_line, read_json, read_jsonl, write_bytes
from workflow_scripts.common.parquet import to_parquet
from workflow_scripts.common.records import mapping_of, validated
from workflow_scripts.common.wording import listed
from workflow_scripts.engines.engine import CLIENT_CPU_S
from workflow_scripts.engines.registry import load_engines, metrics_of_columns
from workflow_scripts.parse.engine_log import EngineLogFacts, read_engine_log
from workflow_scripts.study import parsed_columns, paths
from workflow_scripts.study.outcome import Outcome
from workflow_scripts.workloads.highest_load import Search
from workflow_scripts.workloads.warmup import is_warm

# Columns of times, which the evidence has on the monotonic clock.
_TIMES = ("time_s", "queued_s", "scheduled_s", "first_token_s", "last_token_s", "sent_s", "first_answer_s")

# Readings of a counter between which its growth counts as even.
_MOST_APART_S = 1.0

_INTEGER = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
# What evidence may hold, by the type of its column.
_TYPES: dict[str, Any] = {
    "Int64": _INTEGER,
    "Float64": Annotated[float, Field(strict=True)],
    "string": Annotated[str, Field(strict=True)],
    "boolean": Annotated[bool, Field(strict=True)],
    "object": list[StrictInt | StrictFloat],
}


def _line_of(columns: Mapping[str, str], required: Mapping[str, Any] | None = None, **others: Any) -> Any:
    """The type of a line of evidence with these columns; what other versions recorded beside them is left out."""
    fields = {name: _TYPES[dtype] for name, dtype in columns.items() if name not in parsed_columns.ROW}
    return mapping_of(fields | others, required or {"repeat": _INTEGER})


_REQUEST = _line_of(parsed_columns.REQUEST_COLUMNS, request_id=Annotated[str, Field(pattern=r"^[0-9]{1,9}$")])
_STEP = _line_of(parsed_columns.STEP_COLUMNS)
_SAMPLE = _line_of(parsed_columns.TRACE_COLUMNS, {"time_monotonic_s": _TYPES["Float64"]}, throttle_reasons=list[str])
_COUNTERS = mapping_of({}, {"repeat": _INTEGER, "before": dict[str, Any], "after": dict[str, Any]})


# A study has at most 100 of a cell, and some may have failed.
MOST_STARTS = 10_000
_MOST_NAMED = 10  # faults of a start

Start = tuple[str, int]  # a cell's id, and the number of its start


@dataclass
class CellFacts:
    """Rows of one start of a cell for each table, those of repeats by repeat; times in seconds since the start of the
    row's repeat. `damage`: what could not be read."""

    of_start: dict[str, Any] = field(default_factory=dict)
    repeats: dict[int, dict[str, Any]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    trace: list[dict[Hashable, Any]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def tables(self) -> dict[str, Sequence[Mapping[Any, Any]]]:
        repeats = [{"repeat": repeat, **row} for repeat, row in self.repeats.items()]
        of_one = {"starts": [self.of_start], "repeats": repeats}
        return {**of_one, "requests": self.requests, "steps": self.steps, "trace": self.trace}

    @contextmanager
    def noting(self, folder: Path) -> Iterator[None]:
        """Note what cannot be read in the folder of a start, and go on."""
        try:
            yield
        except InputError as e:
            self.damage.append(str(e).partition("\n")[0].removeprefix(f"{folder}/"))


def start_row(outcome: Outcome, log: EngineLogFacts | None) -> tuple[dict[str, Any], list[str]]:
    """The columns of a start that its record and its engine's log give, and faults of values of a wrong type."""
    repeats_s = [repeat.end_monotonic_s - repeat.start_monotonic_s for repeat in outcome.repeats]
    known: dict[str, Any] = {
        "steady": is_warm(repeats_s) if len(repeats_s) > 1 else outcome.warmup and outcome.warmup.steady,
        **{name: getattr(outcome, name) for name in ("outcome", "reason", "definition_sha256")},
        "protocol": outcome.definition.get("protocol"),
        **outcome.start.model_dump(),
    }
    groups: dict[str, Mapping[str, Any]] = {
        **{name: getattr(outcome, name) for name in ("effective", "device", "host_load", "provenance")},
        "log": log.model_dump() if log else {},
        "phase_s": outcome.phases_s,
    }
    if (search := outcome.search) and (passes := search.passes):
        tried = [(one.load, one.met) for one in passes]
        found = Search(passes[0].load, search.least, search.most, tried).highest()
        sent = {"passes": len(passes), "requests": sum(one.requests for one in passes)}
        groups["search"] = dict(zip(("load", "load_low", "load_high"), found, strict=True)) | sent
    known |= {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    row: dict[str, Any] = {}
    faults = []
    for column, (dtype, places) in parsed_columns.RECORDED.items():
        if place := next((place for place in places if known.get(place) is not None), None):
            try:
                row[column] = validated(_TYPES[dtype], known[place], f"{place} in {paths.OUTCOME}")
            except InputError as e:
                faults.append(str(e))
    effective = {name: value for name, value in outcome.effective.items() if value is not None}
    if "attention_backend" in row:
        effective["attention_backend"] = row["attention_backend"]
    cores = outcome.device.get("cores")
    row["device_cores"] = len(cores) if cores else None
    row["effective"] = json.dumps(effective, sort_keys=True) if effective else None
    return row, faults


def counts(record: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What the engine counted in a repeat, by column: counters as their growth, and peaks as their value at its end."""
    before, after = record["before"], record["after"]
    # If a server's page of metrics could not be read before the repeat, its growth in the repeat is unknown; some
    # counters appear when they count for the first time.
    unread = None if not (before.keys() & after.keys()) - {CLIENT_CPU_S} else 0
    peaks = {metric for engine in load_engines().values() for metric in engine.peaks.values()}
    found: dict[str, float] = {}
    for column, metrics in {CLIENT_CPU_S: [CLIENT_CPU_S], **metrics_of_columns()}.items():
        ends = ((0 if metric in peaks else before.get(metric, unread), after.get(metric)) for metric in metrics)
        for start, end in ends:
            if isinstance(start, int | float) and isinstance(end, int | float):
                found.setdefault(column, float(end - start))
    return found


def parse_cell(folder: Path) -> CellFacts:
    """Read everything in the folder of a cell's start; damaged parts are left out, and `damaged` names them."""
    rows = CellFacts()
    with rows.noting(folder):
        _read_start(folder, Outcome.read(folder / paths.OUTCOME), rows)
    damage = "; ".join(rows.damage[:_MOST_NAMED]) + ("; ..." if len(rows.damage) > _MOST_NAMED else "")
    rows.of_start["damaged"] = damage or None
    return rows


def _read_start(folder: Path, outcome: Outcome, rows: CellFacts) -> None:
    log, raw = None, folder / paths.RAW
    with rows.noting(folder):
        log = read_engine_log(raw / paths.ENGINE_LOG) if (raw / paths.ENGINE_LOG).exists() else None
    rows.of_start, faults = start_row(outcome, log)
    rows.damage += faults
    starts_s = {r.repeat: r.start_monotonic_s for r in outcome.repeats}
    for r in outcome.repeats:
        rows.repeats[r.repeat] = {"wall_s": r.end_monotonic_s - r.start_monotonic_s, "start_unix_s": r.start_unix_s}
    counted: set[int] = set()
    with rows.noting(folder):
        for record in _lines(raw / paths.METRICS, _COUNTERS, starts_s):
            if (repeat := record["repeat"]) in counted:
                raise InputError(f"{raw / paths.METRICS}: two records of repeat {repeat}")
            counted.add(repeat)
            rows.repeats[repeat] |= counts(record)
    for name, kind, table in (("requests", _REQUEST, rows.requests), ("steps", _STEP, rows.steps)):
        with rows.noting(folder):
            for record in _lines(raw / f"{name}.jsonl", kind, starts_s):
                start_s = starts_s[record["repeat"]]
                table.append({k: v - start_s if k in _TIMES and v is not None else v for k, v in record.items()})
    with rows.noting(folder):
        _trace_rows(raw / paths.TRACE, outcome, rows)
    served = Counter(request["repeat"] for request in rows.requests)
    if len(served_by := [served[repeat] for repeat in starts_s]) and min(served_by) != max(served_by):
        rows.damage.append(f"requests.jsonl has {listed(map(str, served_by))} requests of the repeats")


def _trace_rows(trace: Path, outcome: Outcome, rows: CellFacts) -> None:
    records = enumerate(read_jsonl(trace), 1) if trace.exists() else ()
    lines = (validated(_SAMPLE, r, f"{trace}: record {n}") for n, r in records if "schema" not in r)
    if (samples := pd.DataFrame(lines)).empty:
        return
    for memory in samples.reindex(columns=["process_memory_bytes"]).dropna().head(1).to_numpy(float):
        # The first sample is taken before the engine is started.
        rows.of_start["process_memory_bytes_before"] = memory.item()
    if "throttle_reasons" in samples:
        samples["throttle_reasons"] = samples["throttle_reasons"].map(",".join, na_action="ignore")
    for repeat in outcome.repeats:
        start_s, end_s = repeat.start_monotonic_s, repeat.end_monotonic_s
        rows.repeats[repeat.repeat]["counted_j"] = _counted_j(samples, start_s, end_s)
        inside = samples[samples["time_monotonic_s"].between(start_s, end_s)]
        timed = inside.assign(repeat=repeat.repeat, time_s=inside["time_monotonic_s"] - start_s)
        rows.trace += timed.to_dict("records")


def _counted_j(samples: pd.DataFrame, start_s: float, end_s: float) -> float | None:
    """Growth of the energy counter between two times; None if it was not read within a second around each."""
    if "energy_j" not in samples:
        return None
    times_s, energy_j = (counted := samples[["time_monotonic_s", "energy_j"]].dropna().astype(float)).to_numpy().T
    after = np.searchsorted(times_s, [start_s, end_s])
    if after[0] == 0 or after[1] == len(counted) or max(times_s[after] - times_s[after - 1]) > _MOST_APART_S:
        return None
    return float(np.diff(np.interp([start_s, end_s], times_s, energy_j)).item())


def _lines(path: Path, kind: Any, repeats: Container[int]) -> Iterator[dict[str, Any]]:
    """The lines of evidence of these repeats; none if there is no such file. Raises InputError at the first one that
    cannot be read."""
    if path.exists():
        for number, record in enumerate(read_jsonl(path), 1):
            line = validated(kind, record, f"{path}: record {number}")
            if line["repeat"] in repeats:
                yield line


def frame(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    """Rows as a table with exactly these columns and types; a column that no row has is all null."""
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def find_starts(cells: Path, gpu: str) -> dict[Start, Path]:
    """Folders of the starts that have ended, in the order of cells and starts."""
    folders = {}
    for path in (cells / gpu).glob(f"*/*/*/*/{paths.OUTCOME}"):
        folders[path.parent.relative_to(cells).as_posix(), 1] = path.parent
    for path in (cells / gpu).glob(f"*/*/*/*/{paths.START_FOLDER}*/{paths.OUTCOME}"):
        number = paths.start_number(path.parent)
        # Not a copy, such as `start-2.old`.
        if 1 < number <= MOST_STARTS and path.parent.name == paths.start_folder(number):
            folders[path.parents[1].relative_to(cells).as_posix(), number] = path.parent
    # No study has a cell with another name.
    return {start: folders[start] for start in sorted(folders) if start[0].isprintable()}


def parse_cells(cells: Path, gpu: str, out: Path, processes: int) -> int:
    """Write the tables of a GPU; return how many starts were read. Raises InputError if their evidence has a link to
    elsewhere."""
    folders = find_starts(cells, gpu)
    for folder in folders.values():
        paths.within(folder, cells, [folder / paths.OUTCOME, *(folder / paths.RAW).glob("*")])
    with ProcessPoolExecutor(max_workers=max(1, min(processes, len(folders)))) as pool:
        parsed = list(pool.map(parse_cell, folders.values(), chunksize=8))
    tables = [
        ({"cell_id": cell, "start": start}, facts.tables())
        for (cell, start), facts in zip(folders, parsed, strict=True)
    ]
    for name, columns in parsed_columns.table_columns().items():
        rows = [{**place, **row} for place, rows_of in tables for row in rows_of[name]]
        write_bytes(out / f"{name}.parquet", to_parquet(frame(rows, columns)))
    return len(folders)


@command(
    "parse-cells",
    option("--cells", type=Path, required=True, help="folder of all cells, results/{study}/cells"),
    option("--gpu", required=True, help="the GPU's folder below it"),
    out("folder for the tables"),
    option("--measured", type=Path, nargs="*", default=[], metavar="LIST", help="of rounds; fail if a start was lost"),
    PROCESSES,
)
def main(args: Namespace) -> None:
    if lost := [start for rounds in args.measured for start, outcome in read_json(rounds).items() if not outcome]:
        log = args.cells / lost[0] / paths.MEASURE_LOG
        why = (log.exists() and last_line(log)) or "not tried"
        raise InputError(f"{len(lost)} starts have no outcome, and the next call tries them again; {log}: {why}")
    if not args.cells.is_dir():
        raise InputError(f"{args.cells}: there is no such folder of cells")
    count = parse_cells(args.cells, args.gpu, args.out, args.processes)
    print(f"{args.gpu}: {count} starts of cells read")

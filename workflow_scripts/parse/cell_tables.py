"""Parse all cells of one GPU into four tables.

    kvsweep parse-cells --cells results/demo/cells \\
        --gpu cpu-all --out results/demo/parsed/cpu-all

reads every `{engine}/{model}/{workload}/{knobs}/outcome.json` below `cells/{gpu}`, and those of further starts in
`start-{n}/` beside it. It writes `facts.parquet`, `requests.parquet`, `steps.parquet` and `trace.parquet`. A start is
read again only if its evidence or the parser has changed since the last time.
"""

import hashlib
import json
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd

from workflow_scripts.common.checkout import CHECKOUT
from workflow_scripts.common.command import PROCESSES, command, option, out
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json, write_bytes, write_json
from workflow_scripts.common.sources import sources
from workflow_scripts.parse.cell_facts import TABLES, frame, parse_cell
from workflow_scripts.study.paths import OUTCOME, RAW, START_FOLDER, start_folder, start_number

STAMPS = "stamps.json"
START = ["cell_id", "start"]

Start = tuple[str, int]  # a cell's id, and the number of its start


def find_starts(cells: Path, gpu: str) -> dict[Start, Path]:
    """Folders of the starts that have ended, in the order of cells and starts."""
    found = {}
    for path in (cells / gpu).glob(f"*/*/*/*/{OUTCOME}"):
        found[path.parent.relative_to(cells).as_posix(), 1] = path.parent
    for path in (cells / gpu).glob(f"*/*/*/*/{START_FOLDER}*/{OUTCOME}"):
        number = start_number(path.parent)
        if number > 1 and path.parent.name == start_folder(number):  # not a copy, such as `start-2.old`
            found[path.parents[1].relative_to(cells).as_posix(), number] = path.parent
    return dict(sorted(found.items()))


def stamp(folder: Path) -> str:
    """A text that changes when a file of the start's evidence changes."""
    files = [folder / OUTCOME, *sorted((folder / RAW).glob("*"))]
    state = [(f.name, (s := f.stat()).st_size, s.st_mtime_ns) for f in files if f.is_file()]
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def parser_version() -> str:
    """A text that changes when a module on which parsing depends changes."""
    digest = hashlib.sha256()
    for source in sources("parse.cell_tables"):
        digest.update((CHECKOUT / source).read_bytes())
    return digest.hexdigest()


def parse_cells(cells: Path, gpu: str, out: Path, processes: int) -> tuple[int, int]:
    """Write the tables of a GPU; return how many starts were read and how many were kept from the last call."""
    folders = find_starts(cells, gpu)
    version = parser_version()
    names = {start: folder.relative_to(cells).as_posix() for start, folder in folders.items()}
    stamps = {names[start]: f"{version[:16]}-{stamp(folder)}" for start, folder in folders.items()}
    known = read_json(out / STAMPS) if (out / STAMPS).exists() else {}
    changed = [start for start in folders if known.get(names[start]) != stamps[names[start]]]
    kept = sorted(folders.keys() - set(changed))
    with ProcessPoolExecutor(max_workers=max(1, min(processes, len(changed)))) as pool:
        parsed = list(pool.map(parse_cell, [folders[start] for start in changed], [c for c, _ in changed], chunksize=8))
    (out / STAMPS).unlink(missing_ok=True)  # so that after an interruption the next call reads everything again
    for name, columns in TABLES.items():
        rows = [{"cell_id": cell.cell_id, "start": cell.start, **row} for cell in parsed for row in getattr(cell, name)]
        table = frame(rows, columns)
        if kept:
            old = pd.read_parquet(out / f"{name}.parquet")
            before = old[pd.MultiIndex.from_frame(old[START]).isin(kept)]
            table = pd.concat([before, table], ignore_index=True).astype(columns)
        write_bytes(out / f"{name}.parquet", table.sort_values(START, kind="stable").to_parquet(index=False))
    write_json(out / STAMPS, stamps)
    return len(changed), len(kept)


@command(
    "parse-cells",
    option("--cells", type=Path, required=True, help="folder of all cells, results/{study}/cells"),
    option("--gpu", required=True, help="the GPU's folder below it"),
    out("folder for the tables"),
    PROCESSES,
)
def main(args: Namespace) -> None:
    if not args.cells.is_dir():
        raise InputError(f"{args.cells}: there is no such folder of cells")
    read, kept = parse_cells(args.cells, args.gpu, args.out, args.processes)
    print(f"{args.gpu}: {read} starts of cells read, {kept} unchanged")

"""Keep what records and logs say besides numbers, so that the page reads tables alone."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workflow_scripts.common.files import read_end
from workflow_scripts.page.blocks import shown
from workflow_scripts.study.outcome import outcome_in
from workflow_scripts.study.paths import ENGINE_LOG, MEASURE_LOG, RAW, StudyPaths, within
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, TEXT, table_schema

_NAMES = {
    "git_dirty": "code differs from the commit",
    "lock": "file of the lock",
    "lock_sha256": "sha256 of the lock or, without its file, of the installed packages",
}
RECORD, LOG = "record", "log"
# Lines of a log that are kept, and bytes of its end in which they are looked for.
LOG_LINES, LOG_BYTES = 12, 4096

SCHEMA = table_schema(
    "provenance",
    "What is known of starts besides numbers: one row per fact.",
    TEXT("cell_id", "as in `cells`"),
    INTEGER("start", "as in `cells`"),
    TEXT("kind", "`record`: of the first cell of each device and engine, as `outcome.json` has it; `log`: a log's end"),
    TEXT("what", "the name of the fact, or the place of the log in the cell's folder"),
    TEXT("value", "the fact, or the last lines of the log"),
)


def provenance_table(cells: pd.DataFrame, paths: StudyPaths) -> pd.DataFrame:
    starts = cells[["cell_id", "gpu", "engine", "outcome", "start"]].fillna({"start": 1}).drop_duplicates()
    ended = starts[starts["outcome"].ne("missing")].drop_duplicates(["gpu", "engine"])
    rows = [row for cell_id in ended["cell_id"] for row in _recorded(cell_id, paths)]
    rows += [row for cell_id, start in starts[["cell_id", "start"]].to_numpy() for row in _logs(cell_id, start, paths)]
    return pd.DataFrame(rows, columns=list(SCHEMA.columns))


def _recorded(cell_id: str, paths: StudyPaths) -> Iterator[tuple[Any, ...]]:
    path = paths.outcome(cell_id)
    if path.exists() and (outcome := outcome_in(path)):
        for name, value in outcome.provenance.items():
            for part, item in value.items() if isinstance(value, dict) else [("", value)]:
                what, known = _NAMES.get(name, name.replace("_", " ")), "not known" if item is None else shown(item)
                yield cell_id, 1, RECORD, f"{what}: {part}" if part else what, known


def _logs(cell_id: str, start: int, paths: StudyPaths) -> Iterator[tuple[Any, ...]]:
    """The logs of the engine and of the measuring command that hold anything. Raises InputError if one is a link to
    elsewhere."""
    cell, folder = paths.cell(cell_id), paths.start(cell_id, start)
    logs = [path for path in (folder / RAW / ENGINE_LOG, folder / MEASURE_LOG) if path.exists()]
    for path in within(folder, paths.root, logs) if logs else ():
        if text := read_end(path, LOG_BYTES).strip():
            lines = "\n".join(text.splitlines()[-LOG_LINES:])
            yield cell_id, start, LOG, path.relative_to(cell).as_posix(), lines


@makes(SCHEMA, beside=True)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return provenance_table(inputs.cells, inputs.paths)

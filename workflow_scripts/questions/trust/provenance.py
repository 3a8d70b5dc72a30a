"""Keep the ends of logs, so that the page reads tables alone."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workflow_scripts.common.files import read_end
from workflow_scripts.study.paths import ENGINE_LOG, MEASURE_LOG, RAW, StudyPaths, within
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, TEXT, table_schema

# Lines of a log that are kept, and bytes of its end in which they are looked for.
LOG_LINES, LOG_BYTES = 12, 4096

SCHEMA = table_schema(
    "provenance",
    "The ends of logs: one row per log of a start.",
    TEXT("cell_id", "as in `cells`"),
    INTEGER("start", "as in `cells`"),
    TEXT("what", "the place of the log in the cell's folder"),
    TEXT("value", "its last lines"),
)


def provenance_table(cells: pd.DataFrame, paths: StudyPaths) -> pd.DataFrame:
    starts = cells[["cell_id", "start"]].fillna({"start": 1}).drop_duplicates()
    rows = [row for cell_id, start in starts.to_numpy() for row in _logs(cell_id, start, paths)]
    return pd.DataFrame(rows, columns=list(SCHEMA.columns))


def _logs(cell_id: str, start: int, paths: StudyPaths) -> Iterator[tuple[Any, ...]]:
    """The logs of the engine and of the measuring command that hold anything. Raises InputError if one is a link to
    elsewhere."""
    cell, folder = paths.cell(cell_id), paths.start(cell_id, start)
    logs = [path for path in (folder / RAW / ENGINE_LOG, folder / MEASURE_LOG) if path.exists()]
    for path in within(folder, paths.root, logs) if logs else ():
        if text := read_end(path, LOG_BYTES).strip():
            lines = "\n".join(text.splitlines()[-LOG_LINES:])
            yield cell_id, start, path.relative_to(cell).as_posix(), lines


@makes(SCHEMA, beside=True)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return provenance_table(inputs.cells, inputs.paths)

"""Tables of a study: how they are written and read, and the schemas with which they are checked.

A module that makes a table registers its schema here with `table_schema`: its columns with types and meanings.
`workflow_scripts.questions.table_docs` writes docs/tables.md from them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pandera.pandas as pa
import pyarrow as arrow
from pandera.errors import SchemaErrors
from pyarrow import csv

from workflow_scripts.common.columns import COLUMNS
from workflow_scripts.common.csv_rows import with_texts
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import is_json_object, write_bytes
from workflow_scripts.common.parquet import read_parquet, to_parquet


class Kind(NamedTuple):
    """A type of columns, each of which can hold a null; other values pass `check`."""

    dtype: str
    check: Callable[[str], bool] | None = None

    def __call__(self, names: str | Iterable[str], meaning: str) -> dict[str, pa.Column]:
        """Columns that share one meaning; `names` are separated by spaces.

        >>> {name: column.description for name, column in NUMBER("ratio_low ratio_high", "its interval").items()}
        {'ratio_low': 'its interval', 'ratio_high': 'its interval'}
        """
        listed = names.split() if isinstance(names, str) else names
        checks = [pa.Check(self.check, element_wise=True)] if self.check else None
        return {name: pa.Column(self.dtype, checks, nullable=True, description=meaning) for name in listed}


TEXT, INTEGER, NUMBER, FLAG = Kind("string"), Kind("Int64"), Kind("float64"), Kind("boolean")
OBJECT = Kind("string", is_json_object)
KNOBS = "^knob_.+$"
# Rows of a CSV that are in memory at once.
CSV_ROWS = 20_000


def declared(names: str, meaning: str = "") -> dict[str, pa.Column]:
    """Columns as `common.columns` declares them; `meaning` says how this table sums them up.

    >>> declared("preemptions", "sum over the repeats")["preemptions"].dtype
    DataType(Int64)
    """
    columns = [COLUMNS[name] for name in names.split()]
    return {column.name: Kind(column.dtype)(column.name, meaning or column.meaning)[column.name] for column in columns}


TABLE_SCHEMAS: dict[str, pa.DataFrameSchema] = {}


class TableError(InputError):
    """A table is missing, is not Parquet, or does not fit its schema."""


def table_schema(
    table: str,
    about: str,
    *parts: Mapping[str, pa.Column],
    key: Sequence[str] | None = None,
    notes: str = "",
    knobs: bool = False,
) -> pa.DataFrameSchema:
    """Register the schema of a table: its columns, and no others; with `knobs`, also `knob_*` of any type.

    No two rows have the same values in the columns `key`. `about` says what a row is, and `notes` follow the columns in
    the documentation, both in Markdown.
    """
    schema = {name: column for part in parts for name, column in part.items()}
    if knobs:
        about_knobs = "one column per knob that any cell sets, e.g. `knob_block_size`; null where not set"
        schema[KNOBS] = pa.Column(nullable=True, regex=True, required=False, description=about_knobs)
    TABLE_SCHEMAS[table] = pa.DataFrameSchema(
        schema, coerce=True, strict=True, unique=key, name=table, description=about, metadata={"notes": notes}
    )
    return TABLE_SCHEMAS[table]


def write_table(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Write a table as Parquet to `path` and as CSV beside it, and return it as `read_table` would.

    Each file is written completely or not at all.

    The schema is that of the file's name. Types are converted if no value is lost.

    Raises:
        TableError: the frame does not fit the schema.
    """
    checked = _checked(frame, path)
    write_bytes(path.with_suffix(".csv"), _in_csv(with_texts(checked)))
    write_bytes(path, to_parquet(checked))
    return checked


def _in_csv(table: pd.DataFrame) -> Iterator[memoryview]:
    """The parts of a CSV. Arrow writes it ten times as fast as pandas, but repeats each text in memory."""
    schema = arrow.Schema.from_pandas(table, preserve_index=False)
    for first in range(0, max(1, len(table)), CSV_ROWS):
        buffer = arrow.BufferOutputStream()
        part = arrow.Table.from_pandas(table[first : first + CSV_ROWS], schema, preserve_index=False)
        csv.write_csv(part, buffer, csv.WriteOptions(include_header=first == 0))
        yield memoryview(buffer.getvalue())


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that `write_table` wrote, and check it with its schema.

    Raises:
        TableError: there is no such file, it is not Parquet, or it does not fit the schema.
    """
    try:
        frame = read_parquet(path)
    except FileNotFoundError:
        raise TableError(f"{path}: there is no such table") from None
    except InputError as e:
        raise TableError(str(e)) from None
    return _checked(frame, path)


def _checked(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    schema = TABLE_SCHEMAS[path.stem]
    try:
        checked: pd.DataFrame = schema.validate(frame.reset_index(drop=True), lazy=True)
    except SchemaErrors as e:
        raise TableError(f"{path}: not a table {path.stem!r}: {_faults(e.failure_cases)}") from None
    order = {name: place for place, name in enumerate(schema.columns)}
    return checked[sorted(checked, key=lambda name: order.get(name, len(order)))]


def _faults(cases: pd.DataFrame) -> str:
    what = {
        "column_in_schema": "column {case.failure_case!r} is not allowed",
        "column_in_dataframe": "column {case.failure_case!r} is missing",
        "multiple_fields_uniqueness": "column {case.column!r} has {case.failure_case!r} in two rows",
        is_json_object.__name__: "column {case.column!r} is not a JSON object",
    }
    other = "column {case.column!r} is not of {type}"
    faults = (
        what.get(str(case.check), other).format(case=case, type=str(case.check).removeprefix("coerce_"))
        for case in cases.itertuples()
    )
    return "; ".join(dict.fromkeys(faults))

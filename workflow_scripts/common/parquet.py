"""Parquet files as tables in memory."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOENT
from os import strerror
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
from pyarrow import parquet

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import MOST_NUMBER

# As in pandas 3: columns are copied when they change, not whenever a table is derived; a fifth of the memory.
pd.options.mode.copy_on_write = True
# Columns that are not copied are not joined either, of which pandas warns from a hundred on.
warnings.filterwarnings("ignore", category=pd.errors.PerformanceWarning)


# Values of a table that is read, and bytes of its texts before they are packed: whatever the size of its file, and for
# each byte of it. Values take about 9 bytes each in memory. Tables of studies have up to 5 values in a byte; a damaged
# or hostile file may claim billions.
_MOST_VALUES, MOST_VALUES_PER_BYTE, MOST_TEXT, MOST_TEXT_PER_BYTE = 2**21, 8, 2**26, 16


def to_parquet(table: pd.DataFrame) -> bytes:
    """A table as a Parquet file, whose pages have checksums, so that damage is found."""
    content: bytes = table.to_parquet(index=False, write_page_checksum=True)
    return content


def read_parquet(path: Path, **options: Any) -> pd.DataFrame:
    """A table as pandas reads it, but with one object for each different text of a column: it is read and grouped in
    half the time, and takes half the memory. Raises FileNotFoundError, or InputError if the file cannot be read."""
    texts, stored = text_columns(path)
    with readable(path):
        table = pd.read_parquet(path, read_dictionary=texts, page_checksum_verification=True, **options)
        as_objects = {
            name: table[name].astype(object).where(table[name].notna(), None)
            for name in texts
            if name in table and name not in stored
        }
        table = table.assign(**as_objects).astype({name: dtype for name, dtype in stored.items() if name in table})
        for name, column in table.select_dtypes(["float", "Float32", "Float64"]).items():
            values = column.to_numpy(dtype=float, na_value=np.nan)
            if (np.abs(values[np.isfinite(values)]) > MOST_NUMBER).any():
                raise ValueError(f"a number beyond {MOST_NUMBER:g} in column {name}")
        return table


def text_columns(path: Path) -> tuple[list[str], dict[str, str]]:
    """The columns of texts, and the type of those that pandas wrote as one. Raises as `read_parquet` does, also if the
    table is too large."""
    if not path.exists():
        raise FileNotFoundError(ENOENT, strerror(ENOENT), str(path))
    with readable(path), parquet.ParquetFile(path) as file:
        size, groups = path.stat().st_size, map(file.metadata.row_group, range(file.metadata.num_row_groups))
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        values = sum(chunk.num_values for chunk in chunks)
        text = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.physical_type == "BYTE_ARRAY")
        if values > _MOST_VALUES + MOST_VALUES_PER_BYTE * size or text > MOST_TEXT + MOST_TEXT_PER_BYTE * size:
            raise ValueError(f"{values:,} values and {text:,} bytes of text in {size:,} bytes")
        for field in file.schema_arrow:
            kind = field.type.value_type if arrow.types.is_list(field.type) else field.type
            # Of other types a few bytes may become gigabytes, for each value is a copy.
            if not (arrow.types.is_string(field.type) or arrow.types.is_primitive(kind) or arrow.types.is_null(kind)):
                raise ValueError(f"column {field.name} has values of type {field.type}, not texts, numbers or times")
        texts = [field.name for field in file.schema_arrow if arrow.types.is_string(field.type)]
        written = file.schema_arrow.pandas_metadata or {"columns": []}
        types = {column["name"]: column["numpy_type"] for column in written["columns"]}
        return texts, {name: "string" for name in texts if types.get(name) == "string"}


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever Arrow and pandas raise for a damaged file, which is of many kinds, into an InputError."""
    try:
        yield
    except Exception as e:
        raise InputError(f"{path}: not readable as Parquet: {' '.join(str(e).split())[:200]}") from None

"""Parquet files as tables in memory."""

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow import parquet

# As in pandas 3: columns are copied when they change, not whenever a table is derived; a fifth of the memory.
pd.options.mode.copy_on_write = True
# Columns that are not copied are not joined either, of which pandas warns from a hundred on.
warnings.filterwarnings("ignore", category=pd.errors.PerformanceWarning)


def read_parquet(path: Path, **options: Any) -> pd.DataFrame:
    """A table as pandas reads it, but with one object for each different text of a column: it is read and grouped in
    half the time, and takes half the memory."""
    written = parquet.read_schema(path).pandas_metadata or {"columns": []}
    texts = [column["name"] for column in written["columns"] if column["numpy_type"] == "string"]
    table = pd.read_parquet(path, read_dictionary=texts, **options)
    return table.astype({name: "string" for name in texts if name in table})

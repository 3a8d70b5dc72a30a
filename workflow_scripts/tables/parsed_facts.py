"""The parsed facts of a study, as frames to compute with, and the facts of its models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.catalog.gpus_and_models import CatalogError, get_model
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import is_json_object
from workflow_scripts.common.parquet import read_parquet, readable
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts
from workflow_scripts.study.parsed_columns import table_columns

# A row belongs to one start of a cell's engine, or to one repeat in it.
START = ["cell_id", "start"]
REPEAT = [*START, "repeat"]
_KEYS = {"starts": START, "repeats": REPEAT, "requests": [*REPEAT, "request_id"]}


def read_parsed(
    parsed: Path, gpu: str, table: str, columns: Sequence[str] | None = None, **options: Any
) -> pd.DataFrame:
    """One parsed table of one GPU: `starts`, `repeats`, `requests`, `steps` or `trace`. Raises FileNotFoundError, or
    InputError if the file is no such table. `options` are those of `read_parquet`."""
    path, of_table = parsed / gpu / f"{table}.parquet", table_columns()[table]
    types = {name: of_table[name] for name in columns or of_table}
    rows = read_parquet(path, columns=list(types), **options)
    with readable(path):
        rows = rows.astype(types)
    key = [name for name in _KEYS.get(table, []) if name in rows]
    if key == _KEYS.get(table) and rows.duplicated(key).any():
        raise InputError(f"{path}: two rows have the same {', '.join(key)}")
    if "effective" in rows and not all(map(is_json_object, rows["effective"].dropna())):
        raise InputError(f"{path}: effective: not a JSON object")
    return rows


def of_repeats(table: pd.DataFrame, repeats: pd.DataFrame) -> pd.DataFrame:
    """The rows of these repeats, each with the `number` of its repeat, which is its place in `repeats`. Grouping by one
    number is several times as fast as by the three columns `REPEAT`."""
    return table.merge(repeats[REPEAT].assign(number=np.arange(len(repeats))), on=REPEAT)


def known_facts(model: str, dtype: str | None = None, quantization: str | None = None) -> ModelFacts | None:
    """The facts of a model; None if it is not in the catalogue, or not understood."""
    try:
        return read_model_facts(get_model(model).config, dtype, quantization)
    except (CatalogError, ModelFactsError):
        return None

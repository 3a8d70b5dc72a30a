"""The parsed facts of a study, as frames to compute with, and the facts of its models."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import CatalogError, get_model
from workflow_scripts.common.parquet import read_parquet
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts


def read_parsed(parsed: Path, gpu: str, table: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """One parsed table of one GPU: `starts`, `repeats`, `requests`, `steps` or `trace`."""
    return read_parquet(parsed / gpu / f"{table}.parquet", columns=list(columns) if columns else None)


# A row belongs to one start of a cell's engine, or to one repeat in it.
START = ["cell_id", "start"]
REPEAT = [*START, "repeat"]


def numbered(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.Index]:
    """The rows with the `number` of their repeat, and the repeats (by `REPEAT`) in this order.

    Grouping by one number is several times as fast as by three columns. A row of no repeat has none.
    """
    groups = table.groupby(REPEAT)
    return table.assign(number=groups.ngroup()), groups.size().index


def known_facts(model: str, dtype: str | None = None, quantization: str | None = None) -> ModelFacts | None:
    """The facts of a model; None if it is not in the catalogue, or not understood."""
    try:
        return read_model_facts(get_model(model).config, dtype, quantization)
    except (CatalogError, ModelFactsError):
        return None

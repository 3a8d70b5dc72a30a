"""The parsed facts of a study, as frames to compute with, and the facts of its models."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import CatalogError, get_model
from workflow_scripts.common.parquet import read_parquet
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts


def read_parsed(parsed: Path, gpu: str, table: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """One parsed table of one GPU: `facts`, `requests`, `steps` or `trace`."""
    return read_parquet(parsed / gpu / f"{table}.parquet", columns=list(columns) if columns else None)


# A row of facts belongs to one start of a cell's engine, or to one repeat in it.
START = ["cell_id", "start"]
REPEAT = [*START, "repeat"]


def numbered(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.Index]:
    """The rows with the `number` of their repeat, and the repeats (by `REPEAT`) in this order.

    Grouping by one number is several times as fast as by three columns. A row of no repeat has none.
    """
    groups = table.groupby(REPEAT)
    return table.assign(number=groups.ngroup()), groups.size().index


def wide(facts: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Facts with one column per name: those of a start (by `START`), and those of a repeat (by `REPEAT`).

    Numbers stay numbers, and texts stay texts.
    """
    value = facts["value"].astype(object).where(facts["value"].notna(), facts["text"])
    long = facts.assign(value=value)
    of_start = long[long["repeat"].isna()]
    of_repeat = long[long["repeat"].notna()]
    return (
        of_start.pivot(index=START, columns="name", values="value"),
        of_repeat.pivot(index=REPEAT, columns="name", values="value"),
    )


def known_facts(model: str, dtype: str | None = None, quantization: str | None = None) -> ModelFacts | None:
    """The facts of a model; None if it is not in the catalogue, or not understood."""
    try:
        return read_model_facts(get_model(model).config, dtype, quantization)
    except (CatalogError, ModelFactsError):
        return None

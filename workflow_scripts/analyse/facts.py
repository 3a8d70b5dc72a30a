"""The parsed facts of a study, as frames to compute with."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd


def read_parsed(parsed: Path, gpu: str, table: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """One parsed table of one GPU: `facts`, `requests`, `steps` or `trace`."""
    return pd.read_parquet(parsed / gpu / f"{table}.parquet", columns=list(columns) if columns else None)


def wide(facts: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Facts with one column per name: those of a cell (by `cell_id`), and those of a repeat (by `cell_id`, `repeat`).

    Numbers stay numbers, and texts stay texts.
    """
    value = facts["value"].astype(object).where(facts["value"].notna(), facts["text"])
    long = facts.assign(value=value)
    of_cell = long[long["repeat"].isna()]
    of_repeat = long[long["repeat"].notna()]
    return (
        of_cell.pivot(index="cell_id", columns="name", values="value"),
        of_repeat.pivot(index=["cell_id", "repeat"], columns="name", values="value"),
    )

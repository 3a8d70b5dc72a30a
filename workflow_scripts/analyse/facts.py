"""The parsed facts of a study, as frames to compute with."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd


def read_parsed(parsed: Path, gpu: str, table: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """One parsed table of one GPU: `facts`, `requests`, `steps` or `trace`."""
    path, columns = parsed / gpu / f"{table}.parquet", list(columns) if columns else None
    # Rows of a cell share one text, so that they are grouped twice as fast.
    return pd.read_parquet(path, columns=columns, read_dictionary=["cell_id"]).astype({"cell_id": "string"})


# A row of facts belongs to one start of a cell's engine, or to one repeat in it.
START = ["cell_id", "start"]
REPEAT = [*START, "repeat"]


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

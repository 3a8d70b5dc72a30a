"""The tables from which the figures and the page are made."""

from collections.abc import Iterable, Sized
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pandas as pd

from workflow_scripts.common.faults import InputError
from workflow_scripts.tables import summary
from workflow_scripts.tables.measurements import joined
from workflow_scripts.tables.parsed_facts import START, read_parsed
from workflow_scripts.tables.summary import RATE as RATE  # sections and figures have them from here
from workflow_scripts.tables.summary import STEADY as STEADY
from workflow_scripts.tables.summary import records as records
from workflow_scripts.tables.typed_tables import read_table
from workflow_scripts.workloads.arrivals import Load


class MissingError(InputError):
    """Something that a figure or a section needs is missing; the message says what, and the page shows it.

    Whatever reads tables raises it if it finds nothing to show.
    """


Rows = TypeVar("Rows", bound=Sized)
# Number of the environment among those of the study, from 1; of a cell without one, that of others on its device and
# engine. Cells of several are not compared.
RAN_IN = "environment_number"


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """The table with NumPy's types, which the drawing libraries know, instead of pandas' nullable types."""
    numbers = table.select_dtypes(["Int64", "Float64"]).columns
    others = table.select_dtypes(["string", "boolean"]).columns
    return table.astype(dict.fromkeys(numbers, float) | dict.fromkeys(others, object))


def require(rows: Rows, lacking: str) -> Rows:
    """The rows; a MissingError says what is lacking if there are none."""
    if not len(rows):
        raise MissingError(lacking)
    return rows


def under_load(cells: pd.DataFrame) -> "pd.Series[bool]":
    """Whether a client sends each cell's requests at a rate, or those of a number of users: this load is no setting of
    the server, and the output rate follows from it."""
    knobs = [f"knob_{name}" for name in Load.model_fields]
    return cells.reindex(columns=knobs).notna().any(axis=1)


def medians_by_cell(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """One row per cell and value of the other `keys`: the medians of numbers, and the first value of other columns.

    >>> rows = pd.DataFrame({"cell_id": "a", "start": [1, 2], "repeat": 0, "mbu": [0.2, 0.4], "bound_by": "memory"})
    >>> medians_by_cell(rows).to_dict("records")
    [{'cell_id': 'a', 'mbu': 0.30000000000000004, 'bound_by': 'memory'}]
    """
    return summary.reduced(rows.drop(columns=["start", "repeat"], errors="ignore"), ["cell_id", *keys], "median")


class Tables:
    """The folder `results/{study}/tables`, and the tables of facts below `results/{study}/parsed`."""

    def __init__(self, folder: Path, parsed: Path | None = None) -> None:
        self.folder = folder
        self.parsed = parsed
        self._read: dict[str, pd.DataFrame] = {}

    def need(self, name: str) -> pd.DataFrame:
        """The table with this name, with at least one row and the columns of its schema. `repeats` also have those of
        their starts and cells.

        Raises:
            MissingError: the table is absent or empty.
            TableError: it does not fit its schema.
        """
        table = self.repeats if name == "repeats" else self._table(name)
        if table.empty:
            raise MissingError(f"the table {name} has no rows")
        return table

    def _table(self, name: str) -> pd.DataFrame:
        if name not in self._read:
            path = self.folder / f"{name}.parquet"
            if not path.exists():
                raise MissingError(f"there is no table {name} ({path.name} was not made)")
            table = _plain(read_table(path))
            if {"source", "gpu"} <= set(table):
                # The source stands after the name of each device whose numbers this study did not measure.
                elsewhere = table["source"].notna() & ~table["source"].isin(["measured", "predicted"])
                table["gpu"] = table["gpu"].mask(elsewhere, table["gpu"] + " (" + table["source"] + ")")
            if "gpu" in table and name != "cells" and (self.folder / "cells.parquet").exists():
                known = self._table("cells")["gpu"].str.partition(" (")[0]
                if others := {gpu for gpu in table["gpu"].dropna() if " (" not in gpu} - {*known}:
                    raise InputError(f"{path}: no cell is of the device {min(others)!r}")
            self._read[name] = table
        return self._read[name]

    def get(self, name: str, *columns: str) -> pd.DataFrame:
        """The table with this name; if `need` would say that it is missing, one with these columns and no rows."""
        try:
            return self.need(name)
        except MissingError:
            return pd.DataFrame({key: pd.Series(dtype=object if key == "cell_id" else float) for key in columns})

    def facts(self, name: str, cell_ids: Iterable[str]) -> pd.DataFrame:
        """Rows of `parsed/{gpu}/{name}.parquet` of these cells, each of its first start that gave results.

        Only these are read: the traces of a large study do not fit in memory.

        Raises:
            MissingError: there is no such file, or none of the starts is in it.
        """
        wanted = pd.Series(list(cell_ids), dtype="string")
        if self.parsed is None or wanted.empty:
            raise MissingError("no cell was measured" if wanted.empty else "no folder of parsed facts was given")
        parts = []
        for gpu, ids in wanted.groupby(wanted.str.split("/").str[0]):
            with suppress(FileNotFoundError):
                parts.append(read_parsed(self.parsed, str(gpu), name, filters=[("cell_id", "in", list(ids))]))
        if not parts:
            raise MissingError(f"no {name}.parquet was parsed")
        rows = _plain(pd.concat(parts, ignore_index=True))
        first = self._table("repeats").groupby("cell_id")["start"].min()
        rows = rows[rows["start"] == rows["cell_id"].map(first)]
        return require(rows, f"{name}.parquet has no rows of the cells to be shown")

    @cached_property
    def rows(self) -> pd.DataFrame:
        """What was asked for and measured, as the one frame of `tables.measurements`; and `RAN_IN`."""
        rows = joined(self.need("cells"), self._table("starts"), self._table("repeats"))
        known = rows[[*summary.ENVIRONMENT]].astype("string").fillna("").agg(" ".join, axis=1)
        known = known.where(rows["start"].notna())
        number = pd.Series(known.factorize()[0], index=rows.index).where(known.notna())
        first = number.groupby([rows["gpu"], rows["engine"]], sort=False).transform("first")
        return pd.concat([rows, (1 + number.fillna(first).fillna(0).astype(int)).rename(RAN_IN)], axis=1)

    @cached_property
    def repeats(self) -> pd.DataFrame:
        return self.rows[self.rows["repeat"].notna()]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell, with the columns of the start that its outcome is of; and `RAN_IN` of its first start."""
        of_start = self._table("starts").drop(columns=["outcome", "reason", "comparable", "source"])
        cells = self.need("cells").merge(of_start, on=START, how="left")
        return cells.join(self.rows.groupby("cell_id")[RAN_IN].first(), on="cell_id")

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The repeats that may be compared: outcome `ok`, and measured as the study asks.

        Raises:
            MissingError: there are none.
        """
        return require(summary.comparable_rows(self.repeats), "no cell has been measured yet")

    @cached_property
    def measured_cells(self) -> pd.DataFrame:
        """One row per cell that may be compared, with the columns of its first repeat; errors as of `measured`."""
        return self.measured.drop_duplicates("cell_id")

    @cached_property
    def values(self) -> pd.DataFrame:
        """The value of each measure (column) of each measured cell (index), as the table `intervals` has it, and the
        shares of `limits`; where two rates of the device are known, those of the data sheet."""
        rows = self.get("intervals", "cell_id", "measure", "value").drop_duplicates(["cell_id", "measure"])
        shares = self.limits.groupby("cell_id")[["ceiling_share", "mbu", "mfu"]].first()
        return rows.pivot(index="cell_id", columns="measure", values="value").join(shares)

    def value(self, measure: str) -> "pd.Series[float]":
        """The value of a measure by `cell_id`; empty if no cell has one."""
        return self.values[measure] if measure in self.values else pd.Series(dtype=float)

    def intervals_of(self, measure: str) -> pd.DataFrame:
        """`value`, and `low` and `high` of its 95 % interval, of a measure by `cell_id`."""
        rows = self.get("intervals", "cell_id", "measure", "value", "low", "high")
        rows = rows[rows["measure"] == measure].drop_duplicates("cell_id").set_index("cell_id")
        return rows[["value", "low", "high"]]

    @cached_property
    def limits(self) -> pd.DataFrame:
        """One row per cell and source of the device's rates, that of the data sheet first: `ceiling_share` with its
        interval, as ceilings have no error, `mbu` and `mfu` at the cell's rate, and of all else the medians over the
        repeats. A rate that follows from a load is no share of the ceiling."""
        limits = self.get("limits", "cell_id", "rates", "factor", "mbu", "mfu", f"{RATE}_ceiling")
        rows = medians_by_cell(limits.sort_values("rates", kind="stable"), "rates")
        ends = self.intervals_of(RATE).reindex(rows["cell_id"]).set_index(rows.index)
        shares = ends.div(rows[f"{RATE}_ceiling"], axis="index")
        # A cell that failed a check has no rate; its repeats do.
        share = shares["value"].fillna(rows["factor"])
        at_rate = share / rows["factor"]
        loaded = rows["cell_id"].isin(self.cells.loc[under_load(self.cells), "cell_id"])
        of_ceiling = {"": share, "_low": shares["low"], "_high": shares["high"]}
        rows = rows.assign(**{f"ceiling_share{end}": part.mask(loaded) for end, part in of_ceiling.items()})
        return rows.assign(mbu=rows["mbu"] * at_rate, mfu=rows["mfu"] * at_rate)

    @cached_property
    def devices(self) -> list[str]:
        """The devices in the study's order, so that each looks the same in every figure."""
        return list(dict.fromkeys(self.cells["gpu"]))

    @property
    def knobs(self) -> list[str]:
        """Columns of `cells` that hold a knob; there is one for each knob that some cell sets."""
        return summary.knob_columns(self.cells)

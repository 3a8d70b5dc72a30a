"""Made-up results, drawn once for all tests of this room."""

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.present.synthetic import arguments, columns_of
from workflow_scripts.page.report import Report
from workflow_scripts.present import page
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import FRAME_COLUMNS, read_measurements, split
from workflow_scripts.tables.results import Tables
from workflow_scripts.tables.typed_tables import TABLE_SCHEMAS

DEMO = Path("config/studies/demo.yaml")


@dataclass(frozen=True)
class Results:
    """A study's results: its file, and the folders below `root`."""

    study: Path
    root: Path

    @property
    def html(self) -> str:
        return (self.root / "report.html").read_text(encoding="utf-8")

    @property
    def tables(self) -> Tables:
        return Tables(self.root / "tables", self.root / "parsed")

    @property
    def report(self) -> Report:
        places = (self.root / "figures", self.root / "cells", self.root / "report.html")
        return Report(load_study(self.study), Tables(self.root / "tables"), *places)

    def write_page(self, out: Path, **folders: Path) -> int:
        """Write the page; other folders than those of the results may be given."""
        own = {name: self.root / name for name in ("tables", "figures", "cells")}
        return page.main(arguments(study=self.study, out=out, **own | folders))


@pytest.fixture(scope="session")
def results(synthetic):
    return Results(synthetic / "synthetic.yaml", synthetic)


@pytest.fixture
def cells(results: Results) -> pd.DataFrame:
    return read_measurements(results.root / "tables")


def report_of(tables: Path, study: Path = DEMO) -> Report:
    """A report of tables without any other file."""
    return Report(load_study(study), Tables(tables), tables, tables, tables / "report.html")


@pytest.fixture
def report(results: Results) -> Report:
    return results.report


def write_cells(cells: pd.DataFrame, folder: Path) -> None:
    """Write what was measured of cells to a folder, and beside it the values of its measured cells."""
    absent = {name: column.dtype.type for name, column in FRAME_COLUMNS.items() if name not in cells}
    one = {name: 1 for name in ("start", "repeat") if name in absent}
    cells = cells.assign(**one).reindex(columns=[*cells, *absent]).astype(absent)
    for name, table in split(cells).items():
        table.to_parquet(folder / f"{name}.parquet")
    measured = cells[cells["outcome"].eq("ok") & cells["comparable"].eq(True)]
    medians = measured.groupby("cell_id", sort=False).median(numeric_only=True)
    rows = medians.melt(var_name="measure", ignore_index=False).dropna(subset="value").reset_index()
    whole("intervals", rows).to_parquet(folder / "intervals.parquet")


def changed(report: Report, folder: Path, **tables: pd.DataFrame) -> Report:
    """The report of the same study, with other tables, which are written to `folder`."""
    folder.mkdir(exist_ok=True)
    if "cells" in tables:
        write_cells(tables.pop("cells"), folder)
    for path in report.tables.folder.glob("*.parquet"):
        if path.stem not in tables and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet")
    return replace(report, tables=Tables(folder))


def whole(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table of this name, with nulls in all columns of its schema that are not given."""
    of_schema = TABLE_SCHEMAS[name].columns
    absent = {column: of_schema[column].dtype.type for column in columns_of(name) if column not in table}
    return table.reindex(columns=[*table, *absent]).astype(absent)


def written(report: Report, **tables: pd.DataFrame) -> Report:
    """The report with these tables, which are written to its folder with all columns of their schemas."""
    if "cells" in tables:
        write_cells(tables.pop("cells"), report.tables.folder)
    for name, table in tables.items():
        whole(name, table).to_parquet(report.tables.folder / f"{name}.parquet")
    return replace(report, tables=Tables(report.tables.folder))


def in_table(report: Report, name: str) -> pd.DataFrame:
    """A table of a report as it is in its file; `cells` are all that was measured of them, in one frame."""
    if name == "cells":
        return read_measurements(report.tables.folder)
    return pd.read_parquet(report.tables.folder / f"{name}.parquet")

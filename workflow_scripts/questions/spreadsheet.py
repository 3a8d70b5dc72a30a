"""Write the tables of a study as one spreadsheet, for Excel or LibreOffice.

    kvsweep tables results/demo --excel demo.xlsx

Each table has a sheet, with the values of its Parquet file. The first sheet says what each column means, and in which
unit the report shows it: the value times the factor. Needs openpyxl, which the installed package and the locks have.
"""

from argparse import Namespace
from io import BytesIO
from pathlib import Path

import pandas as pd

from workflow_scripts.common.columns import unit_of
from workflow_scripts.common.command import command, option
from workflow_scripts.common.csv_text import with_texts
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_bytes
from workflow_scripts.common.printable import printable_lines
from workflow_scripts.questions.table_docs import meanings, schemas
from workflow_scripts.tables.typed_tables import KNOBS, read_table

MOST_ROWS = 2**20 - 1  # of a sheet, below its header


def spreadsheet(tables: Path) -> bytes:
    """A workbook of the tables of a folder. Raises InputError if there are none, or one has more rows than a sheet."""
    known = [str(schema.name) for schema in schemas()]
    read = {name: read_table(path) for name in known if (path := tables / f"{name}.parquet").exists()}
    if not read:
        raise InputError(f"{tables}: no tables; `snakemake partial_report` makes them from the cells there are")
    for name, frame in read.items():
        if len(frame) > MOST_ROWS:
            raise InputError(f"{tables}/{name}.parquet has {len(frame):,} rows; a sheet has room for {MOST_ROWS:,}")
    about = [
        (name, column, meaning[column if column in meaning else KNOBS], *unit_of(column))
        for name, frame in read.items()
        for meaning in [meanings(name)]
        for column in map(str, frame)
    ]
    sheets = {"columns": pd.DataFrame(about, columns=["table", "column", "meaning", "shown_in", "factor"]), **read}
    buffer = BytesIO()
    with pd.ExcelWriter(buffer, engine="openpyxl") as book:
        for name, frame in sheets.items():
            texts = frame.select_dtypes(["object", "string"])
            shown = frame.assign(**{str(name): of.map(_shown, na_action="ignore") for name, of in texts.items()})
            with_texts(shown).to_excel(book, sheet_name=name, index=False, freeze_panes=(1, 0))
    return buffer.getvalue()


def _shown(value: object) -> object:
    return printable_lines(value) if isinstance(value, str) else value


@command(
    "tables",
    option("folder", type=Path, help="a study's folder of results, such as results/demo"),
    option("--excel", type=Path, required=True, help="the spreadsheet (.xlsx) to write"),
)
def main(args: Namespace) -> None:
    write_bytes(args.excel, spreadsheet(args.folder / "tables"))

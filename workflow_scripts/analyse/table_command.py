"""What all commands share that make tables from the cells table."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from workflow_scripts.analyse.cells import SCHEMA as CELLS
from workflow_scripts.analyse.cells import SIMULATED
from workflow_scripts.analyse.tables import TableError, read_table, write_table
from workflow_scripts.catalog.gpus_and_models import CatalogError
from workflow_scripts.study.study_file import Study, StudyError, load_study

# The file of a table, the name of its schema, and the table.
Output = tuple[Path, str, pd.DataFrame]
Make = Callable[[argparse.Namespace, Study, pd.DataFrame], Iterable[Output]]


def table_parser(module: str, description: str, table: str | None = None) -> argparse.ArgumentParser:
    """Options of all these commands: the study, its cells table, and the table to write.

    `table` is the name of that table, if it differs from the module's name.
    """
    table = table or module
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f"example: python -m workflow_scripts.analyse.{module} --study config/studies/demo.yaml"
        f" --cells results/demo/tables/cells.parquet --out results/demo/tables/{table}.parquet",
    )
    parser.add_argument("--study", type=Path, required=True, help="the study's YAML file")
    parser.add_argument("--cells", type=Path, required=True, help="its cells.parquet")
    parser.add_argument("--out", type=Path, required=True, help=f"{table}.parquet; {table}.csv is written beside it")
    return parser


def run(parser: argparse.ArgumentParser, argv: Sequence[str] | None, make: Make, simulated: bool = False) -> int:
    """Read the study and its cells, make the tables and write them; return 2 after one message if an input is bad.

    Cells on simulated GPUs are read only if `simulated` is set, because nothing may be concluded from them.
    """
    args = parser.parse_args(argv)
    try:
        study, cells = load_study(args.study), read_table(args.cells, CELLS.name)
        cells = cells if simulated else cells[cells["source"].ne(SIMULATED)]
        for path, table, frame in make(args, study, cells):
            write_table(frame, path, table)
    except (StudyError, TableError, CatalogError) as e:
        print(e, file=sys.stderr)
        return 2
    return 0

"""The common part of all commands that make tables from the cells table."""

import functools
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from workflow_scripts.analyse.cells.cells import SCHEMA as CELLS
from workflow_scripts.analyse.cells.cells import SIMULATED
from workflow_scripts.analyse.tables import read_table, write_table
from workflow_scripts.common.command import STUDY, AddOption, Command, command, option, out
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study

# The file of a table, the name of its schema, and the table.
Output = tuple[Path, str, pd.DataFrame]
Make = Callable[[Namespace, Study, pd.DataFrame], Iterable[Output]]


def table_command(table: str, *options: AddOption, simulated: bool = False) -> Callable[[Make], Command]:
    """Make a function the command `kvsweep table-NAME`: it gets the study and its cells, and the tables are written.

    Cells on simulated GPUs are read only if `simulated` is set, because nothing may be concluded from them.
    """

    def decorate(make: Make) -> Command:
        @command(
            f"table-{table}",
            STUDY,
            option("--cells", type=Path, required=True, help="the study's cells.parquet"),
            *options,
            out(f"{table}.parquet; {table}.csv is written beside it"),
        )
        @functools.wraps(make)
        def body(args: Namespace) -> None:
            study, cells = load_study(args.study), read_table(args.cells, CELLS.name)
            cells = cells if simulated else cells[cells["source"].ne(SIMULATED)]
            for path, name, frame in make(args, study, cells):
                write_table(frame, path, name)

        return body

    return decorate

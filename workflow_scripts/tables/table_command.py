"""The common part of all commands that make tables from what was measured."""

import functools
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from workflow_scripts.common.command import STUDY, TABLES, AddOption, Command, command, option
from workflow_scripts.study.study import Study
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.measurements import SIMULATED, read_measurements
from workflow_scripts.tables.typed_tables import write_table

Make = Callable[[Namespace, Study, pd.DataFrame], pd.DataFrame | Sequence[pd.DataFrame]]


def table_command(table: str, *options: AddOption, simulated: bool = False, **also: str) -> Callable[[Make], Command]:
    """Make a function the command `kvsweep table-NAME`: it gets the study and what was measured, as the one frame of
    `tables.measurements`, and returns the table.

    `also` names further tables that the function returns after it, by their option without `-out`. Cells on simulated
    GPUs are read only if `simulated` is set, because nothing may be concluded from them.
    """
    names = {"out": table, **{f"{name}_out": further for name, further in also.items()}}

    def decorate(make: Make) -> Command:
        @command(
            f"table-{table}",
            STUDY,
            TABLES,
            *options,
            *(
                option(
                    f"--{at.replace('_', '-')}",
                    type=Path,
                    required=True,
                    help=f"{name}.parquet; {name}.csv is beside it",
                )
                for at, name in names.items()
            ),
        )
        @functools.wraps(make)
        def body(args: Namespace) -> None:
            study, cells = load_study(args.study), read_measurements(args.tables)
            made = make(args, study, cells if simulated else cells[cells["source"].ne(SIMULATED)])
            frames = [made] if isinstance(made, pd.DataFrame) else made
            for (at, name), frame in zip(names.items(), frames, strict=True):
                write_table(frame, getattr(args, at), name)

        return body

    return decorate

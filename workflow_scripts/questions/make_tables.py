"""Write the tables of a study, from its parsed evidence and its plan.

    kvsweep tables --study config/studies/demo.yaml

docs/tables.md documents every column. A table that the study does not need has no rows.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from workflow_scripts.common.command import RESULTS, STUDY, command, option
from workflow_scripts.questions.all_tables import TABLES, makers
from workflow_scripts.study.paths import StudyPaths
from workflow_scripts.study.study_file import load_study
from workflow_scripts.tables.table_maker import TableInputs, TableMaker


@command(
    "tables",
    STUDY,
    RESULTS,
    option("--parsed", type=Path, help="folder with one folder of parsed tables per GPU (the study's own)"),
    option("--out", type=Path, help="folder to write (the study's own)"),
    option("--only", nargs="+", default=TABLES, choices=TABLES, metavar="TABLE", help="tables to write (all)"),
)
def main(args: Namespace) -> None:
    study = load_study(args.study)
    inputs = TableInputs(study, StudyPaths(args.results, study.name), args.parsed, args.out)
    chosen = makers(args.only)
    if any(schema.name == "cells" for schema in chosen[0].schemas):  # which all others read
        _make(chosen.pop(0), inputs)
    with ProcessPoolExecutor(1, get_context("fork"), _share, (chosen, inputs)) as other:
        if others := [maker for maker in chosen if maker.beside]:
            inputs.cells  # noqa: B018  read once, for both processes
        for maker in others:
            made = other.submit(_make_shared, chosen.index(maker))
            inputs.elsewhere |= {str(schema.name): made for schema in maker.schemas}
        for maker in chosen:
            if not maker.beside:
                _make(maker, inputs)
        for made in inputs.elsewhere.values():
            made.result()


def _make(maker: TableMaker, inputs: TableInputs) -> None:
    began = time.process_time()
    maker(inputs)
    names = ", ".join(str(schema.name) for schema in maker.schemas)
    print(f"{names}: {time.process_time() - began:.2f} s of CPU time", file=sys.stderr)


# --- of the process that makes the tables beside ----------------------------------------------------------------------

_shared: tuple[Sequence[TableMaker], TableInputs]


def _share(*shared: Any) -> None:
    global _shared
    _shared = shared


def _make_shared(number: int) -> None:
    chosen, inputs = _shared
    _make(chosen[number], inputs)

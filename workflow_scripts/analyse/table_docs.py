"""Write docs/tables.md from the schemas of the tables.

    kvsweep write-table-docs

Each schema holds the meaning and unit of its columns.
"""

import importlib
from argparse import Namespace
from itertools import groupby
from pathlib import Path

import pandera.pandas as pa

from workflow_scripts.__main__ import COMMANDS
from workflow_scripts.analyse.tables import FLAG, INTEGER, KNOBS, NUMBER, TEXT
from workflow_scripts.common.command import command, option
from workflow_scripts.common.files import write_text

TYPES = {TEXT.dtype: "string", INTEGER.dtype: "int", NUMBER.dtype: "float", FLAG.dtype: "bool"}
HEAD = """<!-- Written by `kvsweep write-table-docs` from the schemas of the tables. -->

# Tables

Every table lies in `results/{study}/tables/` as Parquet (types kept) and CSV (for people). Units are in the names.
A value that is not known is null, never zero. `source` says what kind of number a row holds: `measured`, `imported`
(measured elsewhere), `predicted`, `published` or `simulated`.
"""


def schemas() -> list[pa.DataFrameSchema]:
    """The schemas of all tables, in the order of the commands `table-NAME` that make them."""
    places = [place for name, place in COMMANDS.items() if name.startswith("table-")]
    modules = [importlib.import_module(f"workflow_scripts.{place}") for place in places]
    return [value for module in modules for value in vars(module).values() if isinstance(value, pa.DataFrameSchema)]


def documentation() -> str:
    """The text of docs/tables.md."""
    return "\n".join([HEAD, *map(_section, schemas())])


def _section(schema: pa.DataFrameSchema) -> str:
    rows = ["| column | type | meaning |", "|---|---|---|"]
    for (kind, meaning), same in groupby(
        schema.columns.items(), key=lambda item: (_type(item[1]), item[1].description)
    ):
        names = ", ".join(f"`{'knob_*' if name == KNOBS else name}`" for name, _ in same)
        rows.append(f"| {names} | {kind} | {meaning} |")
    notes = schema.metadata["notes"]
    return "\n".join([f"## {schema.name}\n", f"{schema.description}\n", *rows, *([f"\n{notes}"] if notes else []), ""])


def _type(column: pa.Column) -> str:
    """The type's name for readers; a knob's column has the type of the values that the study sets.

    >>> from workflow_scripts.analyse.cells import SCHEMA
    >>> _type(SCHEMA.columns["output_tokens_per_s"]), _type(SCHEMA.columns[KNOBS])
    ('float', 'as set')
    """
    return "as set" if column.dtype is None else TYPES[str(column.dtype).removesuffix("[python]")]


@command(
    "write-table-docs", option("--out", type=Path, default=Path("docs/tables.md"), help="file to write (%(default)s)")
)
def main(args: Namespace) -> None:
    """Write the documentation."""
    write_text(args.out, documentation())

"""Write docs/tables.md from the schemas of the tables.

    kvsweep write-table-docs

Each schema holds the meaning and unit of its columns.
"""

import importlib
from argparse import Namespace
from itertools import groupby
from operator import itemgetter
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
    first: dict[tuple[str, str, str], str] = {}  # a column with its type and meaning, and the first table that has it
    return "\n".join([HEAD, *(_section(schema, first) for schema in schemas())])


def _section(schema: pa.DataFrameSchema, first: dict[tuple[str, str, str], str]) -> str:
    rows = ["| column | type | meaning |", "|---|---|---|"]
    columns = [(_shown(name), _type(column), column.description) for name, column in schema.columns.items()]
    for (kind, meaning), new in groupby((column for column in columns if column not in first), key=itemgetter(1, 2)):
        rows.append(f"| {', '.join(name for name, _, _ in new)} | {kind} | {meaning} |")
    known = [column for column in columns if column in first]
    tables = [
        f"[{table}](#{table}): {', '.join(column[0] for column in known if first[column] == table)}"
        for table in dict.fromkeys(map(first.get, known))
    ]
    if tables:
        rows.append(f"\nAs in {'; in '.join(tables)}.")
    first |= {column: schema.name for column in columns if column not in first}
    notes = schema.metadata["notes"]
    return "\n".join([f"## {schema.name}\n", f"{schema.description}\n", *rows, *([f"\n{notes}"] if notes else []), ""])


def _shown(name: str) -> str:
    return f"`{'knob_*' if name == KNOBS else name}`"


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

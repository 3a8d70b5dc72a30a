"""Print what each column of a table means, from the tables' schemas.

    kvsweep columns repeats

Without a name, of all tables, as Markdown. `kvsweep columns --write-index` writes docs/tables.md, which has no columns.
"""

import re
from argparse import Namespace
from pathlib import Path

import pandera.pandas as pa

from workflow_scripts.common.command import command, option
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import write_text
from workflow_scripts.common.wording import allowed_names
from workflow_scripts.questions.all_tables import makers
from workflow_scripts.statistics.comparisons import ANOTHER_RUN
from workflow_scripts.tables.typed_tables import KNOBS

INTERVAL = "its 95 % interval"
HEAD = """<!-- Written by `kvsweep columns --write-index` from the schemas of the tables. -->

# Tables

Every table lies in `results/{study}/tables/` as Parquet and CSV; `kvsweep tables` writes them. Names end in their unit;
`_pct` is per cent, a share lies between 0 and 1. `_p50`, `_p90` and `_p99` are percentiles. An unknown value is null,
never zero. `source` is `measured`, `imported` (measured elsewhere), `predicted` or `published`. A table
that a study does not need has no rows.

`kvsweep columns TABLE` prints what each column means, and so does `results.meanings("TABLE")` in Python. Not listed
there, unless described otherwise: `{x}_low` and `{x}_high`, the 95 % interval of `{x}`; and `{x}_again_low` and
`{x}_again_high`, between which 95 % of further runs with as many starts measure `{x}`.
"""


def schemas() -> list[pa.DataFrameSchema]:
    """The schemas of all tables, in the order in which they are made."""
    return [schema for maker in makers() for schema in maker.schemas]


def meanings(table: str) -> dict[str, str]:
    """What each column of a table means, with its unit. Raises KeyError if no table has this name."""
    by_table = {schema.name: schema.columns for schema in schemas()}

    def meaning(table: str, column: str) -> str:
        columns = by_table[table]
        text = str(columns[column if column in columns else re.sub("_[ab]$", "", column)].description)
        elsewhere = re.fullmatch(r"as in `(\w+)`", text)
        return meaning(elsewhere[1], column) if elsewhere else text

    return {column: meaning(table, column) for column in by_table[table]}


def _columns(schema: pa.DataFrameSchema) -> list[tuple[str, str]]:
    """The columns with their meanings, without the ends of intervals that `HEAD` explains."""
    meanings = {name: column.description for name, column in schema.columns.items()}

    def is_end(name: str, meaning: str) -> bool:
        base = re.sub("(_again)?_(low|high)$", "", name)
        return base != name and (meaning in (meanings.get(base), INTERVAL) or meaning.endswith(ANOTHER_RUN))

    return [(name, meaning) for name, meaning in meanings.items() if not is_end(name, meaning)]


def _section(schema: pa.DataFrameSchema) -> str:
    named: dict[str, list[str]] = {}
    for name, meaning in _columns(schema):
        named.setdefault(meaning, []).append(f"`{'knob_*' if name == KNOBS else name}`")
    lines = [f"- {', '.join(names)}: {meaning}" for meaning, names in named.items()]
    notes = schema.metadata["notes"]
    return "\n".join([f"## {schema.name}\n", f"{schema.description}\n", *lines, *([f"\n{notes}"] if notes else []), ""])


def index() -> str:
    """The tables with the first sentence of what each holds, without their columns."""
    firsts = (re.split(r"(?<=\.)\s", str(schema.description), maxsplit=1)[0] for schema in schemas())
    return "\n".join(
        [HEAD, *(f"## {schema.name}\n\n{first}\n" for schema, first in zip(schemas(), firsts, strict=True))]
    )


@command(
    "columns",
    option("table", nargs="*", help="names of tables; all if none is given"),
    option("--write-index", action="store_true", help="write docs/tables.md instead"),
)
def main(args: Namespace) -> None:
    if args.write_index:
        return write_text(Path("docs/tables.md"), index())
    by_name = {schema.name: schema for schema in schemas()}
    for name in args.table or by_name:
        if name not in by_name:
            raise InputError(f"there is no table {name!r}; {allowed_names(name, by_name)}")
        print(_section(by_name[name]))
    return None

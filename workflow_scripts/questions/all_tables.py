"""Which module makes which tables, in an order in which each has what it reads. The Snakefile imports it."""

import importlib
from collections.abc import Container
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflow_scripts.tables.table_maker import TableMaker

_MAKERS = {
    "questions.cells.table": ("cells", "starts", "repeats", "limits"),
    "tables.expected_ratios": ("expected_ratios",),
    "questions.memory.fragmentation": ("fragmentation",),
    "questions.memory.capacity": ("memory",),
    "tables.cell_intervals": ("intervals",),
    "questions.predictions.table": ("predictions",),
    "questions.comparisons.table": ("comparisons", "devices"),
    "questions.serving.table": ("serving", "serving_summary"),
    "questions.serving.conversations": ("conversations",),
    "questions.serving.searches": ("searches",),
    "questions.recommendations.table": ("recommendations",),
    "questions.claims.claims": ("claims",),
    "questions.trust.provenance": ("provenance",),
}
TABLE_MODULES = tuple(_MAKERS)
TABLES = tuple(name for names in _MAKERS.values() for name in names)


def makers(only: Container[str] | None = None) -> "list[TableMaker]":
    """What makes these tables, or all: `make_tables` of each module."""
    modules = [m for m, names in _MAKERS.items() if only is None or any(name in only for name in names)]
    return [importlib.import_module(f"workflow_scripts.{module}").make_tables for module in modules]

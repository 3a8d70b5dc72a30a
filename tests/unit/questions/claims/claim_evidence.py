"""Tables made up for tests of claims, with only the columns that matter, and published data."""

import shutil

import pandas as pd

from tests.unit.made_studies import made_study
from tests.unit.questions.synthetic_cells import cell, starts_table
from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.catalog.published import Published
from workflow_scripts.questions.claims.claims import CHECKS
from workflow_scripts.questions.claims.evidence import verdict
from workflow_scripts.questions.claims.study_tables import TABLES_READ, StudyTables
from workflow_scripts.tables.cell_intervals import cell_intervals
from workflow_scripts.tables.summary import Summaries
from workflow_scripts.tables.typed_tables import TABLE_SCHEMAS

PUBLISHED = Published(CONFIG / "published")
LLAMA = "llama-3.1-8b-instruct"
PLACE = {"study": "try", "source": "measured", "gpu": "h200", "model": LLAMA, "workload": "chat"}
STUDY = made_study({"name": "one", "model": LLAMA}, claims=[claim.id for claim in PUBLISHED.claims])
NOTHING = {"cells": starts_table(cell({})).head(0)} | {
    name: TABLE_SCHEMAS[name].validate(pd.DataFrame(columns=list(TABLE_SCHEMAS[name].columns))) for name in TABLES_READ
}


def tables(published=PUBLISHED, **rows_of):
    """Tables of these rows; other columns are null."""
    found = {name: starts_table(*rows) if name == "cells" else _table(name, rows) for name, rows in rows_of.items()}
    found |= {"intervals": cell_intervals(Summaries(found["cells"]))} if "cells" in found else {}
    return StudyTables(NOTHING | found, published)


def _table(name, rows):
    schema = TABLE_SCHEMAS[name]
    return schema.validate(pd.DataFrame([PLACE | row for row in rows]).reindex(columns=list(schema.columns)))


def claim(claim_id, **numbers):
    """A published claim with other numbers: the value of a quantity, or its fields."""
    found = PUBLISHED.claim(claim_id)
    fields = {name: new if isinstance(new, dict) else {"value": new} for name, new in numbers.items()}
    quantities = tuple(quantity.model_copy(update=fields.get(quantity.name, {})) for quantity in found.quantities)
    return found.model_copy(update={"quantities": quantities})


def evidence(claim_id, of, **numbers):
    """What the claim's check finds."""
    return [each for each in CHECKS[claim_id](claim(claim_id, **numbers), of) if each is not None]


def judged(claim_id, of, **numbers):
    """The verdict that the claim's check comes to."""
    return verdict(evidence(claim_id, of, **numbers))


def republished(folder, tables=None):
    """The published data with other tables."""
    folder = folder / "published"
    shutil.copytree(PUBLISHED.folder, folder)
    for name, rows in (tables or {}).items():
        pd.DataFrame(rows).to_csv(folder / name, index=False)
    return Published(folder)

"""Evidence made up for tests of claims: a study's tables with only the columns that matter, and published data."""

import shutil
from pathlib import Path

import pandas as pd

from tests.unit.analyse.synthetic_cells import starts_table
from tests.unit.made_studies import fixed, made_study
from workflow_scripts.analyse.claims import claim_checks
from workflow_scripts.analyse.claims.claim_checks import verdict
from workflow_scripts.analyse.claims.claim_tables import Evidence, read_tables
from workflow_scripts.analyse.tables import TABLE_SCHEMAS
from workflow_scripts.catalog.gpus_and_models import CONFIG
from workflow_scripts.catalog.published import Published

PUBLISHED = Published(CONFIG / "published")
LLAMA = "llama-3.1-8b-instruct"
PLACE = {"study": "try", "source": "measured", "gpu": "h200", "model": LLAMA, "workload": "chat"}
STUDY = made_study(
    {"name": "one", "model": LLAMA},
    claims=[claim.id for claim in PUBLISHED.claims],
    workloads={
        "chat": fixed(4, 8, 8),
        "prefix": fixed(24, 16, 8, kind="shared_prefix", prefix_tokens=256),
        "half": fixed(24, 16, 8, kind="shared_prefix", prefix_tokens=256, share=0.5),
    },
)


NOTHING = read_tables(Path("no such folder"))


def evidence(published=PUBLISHED, study=STUDY, **tables):
    """Evidence with these tables, each a list of rows; other columns are null."""
    found = {name: starts_table(*rows) if name == "cells" else _table(name, rows) for name, rows in tables.items()}
    return Evidence(study, NOTHING | found, published)


def _table(name, rows):
    schema = TABLE_SCHEMAS[name]
    return schema.validate(pd.DataFrame([PLACE | row for row in rows]).reindex(columns=list(schema.columns)))


def claim(claim_id, **numbers):
    """A published claim with other numbers: the value of a quantity, or its fields."""
    found = PUBLISHED.claim(claim_id)
    fields = {name: new if isinstance(new, dict) else {"value": new} for name, new in numbers.items()}
    quantities = tuple(quantity.model_copy(update=fields.get(quantity.name, {})) for quantity in found.quantities)
    return found.model_copy(update={"quantities": quantities})


def findings(claim_id, of, **numbers):
    """What the claim's checks find."""
    return list(claim_checks.findings(claim(claim_id, **numbers), of))


def judged(claim_id, of, **numbers):
    """The verdict that the claim's checks come to."""
    return verdict(findings(claim_id, of, **numbers), claim_checks.parts(PUBLISHED.claim(claim_id)))


def republished(folder, tables=None):
    """The published data with other tables."""
    folder = folder / "published"
    shutil.copytree(PUBLISHED.folder, folder)
    for name, rows in (tables or {}).items():
        pd.DataFrame(rows).to_csv(folder / name, index=False)
    return Published(folder)

"""Judge the published claims that a study names, with the evidence for each verdict.

Evidence comes from formulas, from the published numbers themselves and from the study's tables. docs/claims.md explains
the verdicts, docs/tables.md documents every column.
"""

import pandas as pd

from workflow_scripts.catalog.published import CLAIMS, Claim, Published, PublishedError
from workflow_scripts.questions.claims import (
    on_memory,  # noqa: F401  # they register their checks
    on_rates,  # noqa: F401  # they register their checks
)
from workflow_scripts.questions.claims.evidence import CHECKS, NOT_TESTABLE, Evidence, verdict
from workflow_scripts.questions.claims.study_tables import TABLES_READ, StudyTables
from workflow_scripts.study.study import Study
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import TEXT, table_schema

# Most pieces of evidence of one kind that are written out. All further ones are counted.
MOST_WRITTEN = 4

SCHEMA = table_schema(
    "claims",
    "One row per published claim that the study names ([verdicts](claims.md)). Lists are separated by semicolons.",
    TEXT("study", "study of the tables"),
    TEXT("claim_id claim", "the claim, in this project's words"),
    TEXT("section", "address of the section of the report that shows it"),
    TEXT("published_by", "label in `config/published/README.md`"),
    TEXT("published_value", "its numbers, as published"),
    TEXT("verdict", "`supported`, `contradicted`, `not decided` or `not testable here`"),
    TEXT("evidence", "sentences with numbers and their source, such as `[measured here]`; deciding ones first"),
    TEXT("would_test", "command, study or argument that would give a verdict"),
    TEXT("source", "`published`"),
)


def claims_table(study: Study, tables: StudyTables) -> pd.DataFrame:
    """One row per claim that the study names, in the study's order.

    Raises:
        PublishedError: published data cannot be read, or lacks what a check reads, or no function checks a claim.
    """
    claims = [tables.published.claim(claim_id) for claim_id in dict.fromkeys(study.claims)]
    rows = pd.DataFrame([_row(claim, tables) for claim in claims], columns=list(SCHEMA.columns))
    return rows.assign(study=study.name)


def _row(claim: Claim, tables: StudyTables) -> dict[str, str | None]:
    if claim.id not in CHECKS and not claim.unstated:
        raise PublishedError(f"{CLAIMS}: {claim.id}: no function in questions/claims checks it (docs/claims.md)")
    try:
        found = [] if claim.unstated else [each for each in CHECKS[claim.id](claim, tables) if each is not None]
    except (LookupError, TypeError, ValueError) as e:
        raise PublishedError(f"{CLAIMS}: {claim.id}: {e}") from None
    claim_verdict, texts = verdict(found), list[str]()
    # By source and by what it says; what decides comes first.
    kinds: dict[tuple[str, str | None], list[Evidence]] = {}
    for each in sorted(found, key=lambda each: each.says is None):
        kinds.setdefault((each.label, each.says), []).append(each)
    for (label, _), kind in kinds.items():
        texts += [f"[{label}] {each.text}" for each in kind[:MOST_WRITTEN]]
        texts += [f"[{label}] {len(kind) - MOST_WRITTEN} more."] * (len(kind) > MOST_WRITTEN)
    return {
        "claim_id": claim.id,
        "section": claim.section,
        "claim": claim.text,
        "published_by": claim.source,
        "published_value": "; ".join(quantity.text() for quantity in claim.quantities),
        "verdict": claim_verdict,
        "evidence": " ".join(texts) or None,
        "would_test": claim.would_test if claim_verdict == NOT_TESTABLE else None,
        "source": "published",
    }


@makes(SCHEMA, needed=lambda inputs: bool(inputs.study.claims))
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    tables = {"cells": inputs.cells} | {name: inputs.table(name) for name in TABLES_READ}
    return claims_table(inputs.study, StudyTables(tables, Published(inputs.published)))

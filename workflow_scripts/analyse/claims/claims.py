"""Judge the published claims that a study names, with the evidence for each verdict.

    kvsweep table-claims --study config/studies/paged_attention.yaml \\
        --tables results/paged_attention/tables --out results/paged_attention/tables/claims.parquet

Evidence comes from formulas, from the published numbers themselves and from the study's tables; a missing table gives
no evidence. docs/claims.md explains the verdicts, docs/tables.md documents every column.
"""

from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from workflow_scripts.analyse.claims.claim_checks import NOT_TESTABLE, Finding, findings, parts, verdict
from workflow_scripts.analyse.claims.claim_tables import Evidence, read_tables
from workflow_scripts.analyse.tables import TEXT, table_schema, write_table
from workflow_scripts.catalog.published import PUBLISHED, Claim, Published
from workflow_scripts.common.command import STUDY, TABLES, command, option, out
from workflow_scripts.study.study_file import load_study

# Maximum number of findings of one kind that are written out: of those that bear on a claim, and of the others. The
# others are only counted.
MOST_WRITTEN = 4
MOST_SEEN_HERE = 2
# Maximum number of cells that are named for one finding.
MOST_IDS = 20

SCHEMA = table_schema(
    "claims",
    "One row per published claim that the study names ([verdicts](claims.md)). Lists are separated by semicolons.",
    TEXT("study", "study of the tables"),
    TEXT("claim_id claim", "the claim, in this project's words"),
    TEXT("published_by", "label in `config/published/README.md`"),
    TEXT("quantity published_value", "names and values of its numbers, as published"),
    TEXT("verdict", "`supported`, `contradicted` or `not testable here`"),
    TEXT("scope", "devices, models, workloads or formula of the deciding evidence"),
    TEXT("evidence", "sentences with numbers and their source, such as `[measured here]`; deciding ones first"),
    TEXT("evidence_sources", "the labels in `evidence`"),
    TEXT("seen_here", "like `evidence`, measured under other conditions than the source states; decides nothing"),
    TEXT("would_test", "command, study or argument that would give a verdict"),
    TEXT("evidence_ids", "cells (first 20), tables, files and formulas of the evidence"),
    TEXT("source", "`published`"),
)


def claims_table(evidence: Evidence) -> pd.DataFrame:
    """One row per claim that the study names, in the study's order.

    Raises:
        PublishedError: published data cannot be read, or a check names what does not exist.
    """
    claims = [evidence.published.claim(claim_id) for claim_id in dict.fromkeys(evidence.study.claims)]
    rows = pd.DataFrame([_row(claim, evidence) for claim in claims], columns=list(SCHEMA.columns))
    return rows.assign(study=evidence.study.name)


def _row(claim: Claim, evidence: Evidence) -> dict[str, str | None]:
    every = list(findings(claim, evidence))
    bearing, others = ([finding for finding in every if finding.bears == bears] for bears in (True, False))
    claim_verdict, decides, seen_here = verdict(bearing, parts(claim)), _kinds(bearing), _kinds(others)
    return {
        "claim_id": claim.id,
        "claim": claim.text,
        "published_by": claim.source,
        "quantity": "; ".join(quantity.name for quantity in claim.quantities),
        "published_value": "; ".join(quantity.text() for quantity in claim.quantities),
        "verdict": claim_verdict,
        "scope": _listed(finding.scope for finding in bearing if finding.says == claim_verdict),
        "evidence": _written(decides, MOST_WRITTEN),
        "evidence_sources": _listed(finding.label for finding in bearing),
        "seen_here": _written(seen_here, MOST_SEEN_HERE),
        "would_test": claim.would_test if claim_verdict == NOT_TESTABLE else None,
        "evidence_ids": _listed([*_ids(decides, MOST_WRITTEN), *_ids(seen_here, MOST_SEEN_HERE)]),
        "source": claim.label,
    }


def _listed(texts: Iterable[str]) -> str | None:
    return "; ".join(dict.fromkeys(texts)) or None


def _kinds(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings grouped by what they say and by source; deciding findings come first."""
    kinds: dict[tuple[str, str | None], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.says is None):
        kinds.setdefault((finding.label, finding.says), []).append(finding)
    return list(kinds.values())


def _written(kinds: Iterable[Sequence[Finding]], most: int) -> str | None:
    """Findings in words, each after the label of its source, and the number of further findings of each kind."""
    texts = []
    for kind in kinds:
        texts += [f"[{finding.label}] {finding.text}" for finding in kind[:most]]
        if len(kind) > most:
            texts.append(f"[{kind[0].label}] {len(kind) - most} more.")
    return " ".join(texts) or None


def _ids(kinds: Iterable[Sequence[Finding]], most: int) -> list[str]:
    return [name for kind in kinds for finding in kind[:most] for name in finding.ids[:MOST_IDS]]


@command(
    "table-claims",
    STUDY,
    TABLES,
    option("--published", type=Path, default=PUBLISHED, help="folder with claims.yaml and its tables (%(default)s)"),
    out("claims.parquet; claims.csv is written beside it"),
)
def main(args: Namespace) -> None:
    evidence = Evidence(load_study(args.study), read_tables(args.tables), Published(args.published))
    write_table(claims_table(evidence), args.out, "claims")

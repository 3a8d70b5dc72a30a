"""The published claims that the study names, with their verdicts."""

from collections.abc import Iterator

from workflow_scripts.present.blocks import Block, Finding, Findings, Fold, Text
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import records
from workflow_scripts.present.subject import Subject


def claims_counted(report: Report) -> Iterator[Block]:
    """The number of the study's published claims with each verdict."""
    if not report.study.claims:
        return
    rows = report.tables.need("claims", "verdict")
    counted = ", ".join(f"{count} {verdict}" for verdict, count in rows["verdict"].value_counts().items())
    sentence = f"Published claims re-tested: {len(rows)}, of which {counted}. The section Claims re-tested lists them."
    yield Findings([Finding("claims", sentence)])


def every_claim(report: Report) -> Iterator[Block]:
    """The published claims that the study names, with verdicts; below each its evidence, labelled by source."""
    rows = report.tables.need("claims", "claim", "published_by", "verdict", "evidence", "seen_here", "would_test")
    decided_first = rows.sort_values("verdict", key=lambda verdicts: verdicts.str.startswith("not "), kind="stable")
    for row in records(decided_first):
        paragraphs = {
            f"Published by {row['published_by']}": row["published_value"],
            "Evidence": row["evidence"],
            "Seen here, without influence on the verdict": row["seen_here"],
            "What would test it": row["would_test"],
        }
        told = [Text(f"{heading}: {text}") for heading, text in paragraphs.items() if text]
        yield Fold(f"{row['verdict']}: {row['claim']}", told)


SUBJECT = Subject(
    id="claims",
    title="Claims re-tested",
    lead="What others published, compared with the hardware's limits, with arithmetic and with this study.",
    parts=[every_claim],
    findings=[claims_counted],
    is_in=lambda study: bool(study.claims),
)

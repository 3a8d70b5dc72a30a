"""The published claims that the study names, with their verdicts, beside what they are about."""

import re
from collections.abc import Iterator, Mapping

from workflow_scripts.present.blocks import Block, Fold, Text
from workflow_scripts.present.report import Part, Report
from workflow_scripts.present.report_tables import records

# Address of a section -> the ids of claims that belong there; all others are about KV memory.
_ABOUT: Mapping[str, str] = {
    "max-num-seqs": "max-num-seqs|prompts-limit|gpu-utilisation|control-throughput|slots-are-never",
    "devices": "h200-over|h100-over|on-a100s|tensor-for",
    "engines": "hf-|-hf|engines-on|hundred-times|single-request",
    "prefix-caching": "prefix|system-prompt|eviction",
}


def claims_on(section: str) -> Part:
    """The claims about the subject of a section; below each its evidence, labelled by source."""

    def part(report: Report) -> Iterator[Block]:
        if not report.study.claims:
            return
        rows = report.tables.need("claims")
        for row in records(rows[rows["claim_id"].astype(str).map(_section) == section]):
            paragraphs = {
                f"Published by {row['published_by']}": row["published_value"],
                "Evidence": row["evidence"],
                "Seen here, without influence on the verdict": row["seen_here"],
                "What would test it": row["would_test"],
            }
            # A paragraph for each piece of evidence, which begins with its source in brackets.
            told = [
                Text(part)
                for heading, text in paragraphs.items()
                if text
                for part in re.split(r"(?<=\.) (?=\[)", f"{heading}: {text}")
            ]
            yield Fold(f"Published claim, {row['verdict']}: {row['claim']}", told)

    return part


def _section(claim_id: str) -> str:
    return next((section for section, ids in _ABOUT.items() if re.search(ids, claim_id)), "block-size")

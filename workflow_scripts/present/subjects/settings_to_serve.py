"""Recommended settings, as commands."""

from collections.abc import Iterator, Mapping

from workflow_scripts.present.blocks import Block, Command
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, records
from workflow_scripts.present.sentences import MOST_SENTENCES, place
from workflow_scripts.present.subject import Subject

ROLES: Mapping[str, str] = {
    "best_throughput": "Highest throughput",
    "best_within_latency": "Highest throughput within a latency",
    "smallest_within_margin": "Smallest setting within the margin of the fastest",
}


def commands(report: Report) -> Iterator[Block]:
    """Configurations to serve with, as command lines."""
    table = report.tables.need("recommendations")
    rows = table[table["role"].isin(ROLES)]
    if rows.empty:
        raise MissingError("no vLLM cell was measured that could be recommended")
    for row in records(rows.head(4 * MOST_SENTENCES)):
        yield Command(f"{ROLES[row['role']]}: {place(row)}", row["command"] or "", row["explanation"])


SUBJECT = Subject(
    id="recommendations",
    title="Recommendations",
    lead="Settings to serve with. If two settings are tied, neither has been shown to be slower.",
    parts=[commands],
)

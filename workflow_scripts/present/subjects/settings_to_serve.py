"""Recommended settings, as commands."""

from collections.abc import Iterator, Mapping

from workflow_scripts.common.wording import listed
from workflow_scripts.present.blocks import Block, Command, Text
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, records
from workflow_scripts.present.sentences import MOST_SENTENCES, place
from workflow_scripts.present.subject import Subject
from workflow_scripts.study.definition import resolved_models

ROLES: Mapping[str, str] = {
    "best_throughput": "highest throughput",
    "best_within_latency": "highest throughput within a latency",
    "smallest_within_margin": "smallest setting within the margin of the fastest",
}


def commands(report: Report) -> Iterator[Block]:
    """Configurations to serve with, as command lines; each is shown once, with all that it is recommended for."""
    table = report.tables.need("recommendations")
    rows = table[table["role"].isin(ROLES)]
    if rows.empty:
        raise MissingError("no vLLM cell was measured that could be recommended")
    models = resolved_models(report.study).items()
    if random := [name for name, model in models if model.hub_repo and model.load_format != "hub"]:
        yield Text(f"Measured with random weights of {listed(random)}; the commands load the published ones.")
    rows = rows.assign(place=[place(row) for row in records(rows)], key=rows["command"].fillna(rows["explanation"]))
    for _, alike in list(rows.groupby("key", sort=False))[: 2 * MOST_SENTENCES]:
        told = [f"{row['place']}, {ROLES[row['role']]}: {row['explanation']}" for row in records(alike)]
        yield Command("; ".join(alike["place"].unique()), alike["command"].fillna("").iloc[0], told)


SUBJECT = Subject(id="recommendations", title="Recommendations", parts=[commands])

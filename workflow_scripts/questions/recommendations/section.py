"""Recommended settings, as commands."""

from collections.abc import Iterator, Mapping
from typing import Any

from workflow_scripts.common.wording import interval_text, listed, sentence
from workflow_scripts.engines.vllm.knobs import VLLM
from workflow_scripts.page.blocks import Block, Command, Text
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.page.series import PLACES, environments_in_words
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.tables.results import RAN_IN, STEADY, records, require

# Commands that are shown.
MOST_COMMANDS = 12
# Maximum number of ties that are named.
MOST_TIES = 5
ROLES: Mapping[str, str] = {
    "best_throughput": "highest throughput",
    "best_within_latency": "highest throughput within a latency",
    "smallest_within_margin": "smallest setting within the margin of the fastest",
}


def commands(report: Report) -> Iterator[Block]:
    """Commands to serve with; each is shown once, with all that it is recommended for."""
    table = report.tables.need("recommendations")
    # Of one setting, to be the smallest says nothing.
    is_told = table["role"].isin(ROLES) & ~(table["role"].eq("smallest_within_margin") & table["eligible"].eq(1))
    rows = require(table[is_told], "no vLLM cell was measured that could be recommended")
    models = resolved_models(report.study).items()
    if random := [name for name, model in models if model.hub_repo and model.load_format != "hub"]:
        yield Text(f"Measured with random weights of {listed(random)}; the commands load the published ones.")
    ran_in = report.tables.cells.set_index("cell_id")[RAN_IN]
    known = rows.assign(engine=VLLM.name, **{RAN_IN: rows["cell_id"].map(ran_in)})
    rows = rows.assign(place=rows[PLACES].agg(", ".join, axis=1) + environments_in_words(known))
    rows = rows.assign(key=rows["command"].fillna(rows["place"]))
    for _, alike in list(rows.groupby("key", sort=False))[:MOST_COMMANDS]:
        places = alike["place"].unique()
        rows_of = records(alike)
        # One place stands in the title.
        named = [ROLES[row["role"]] if len(places) == 1 else f"{row['place']}, {ROLES[row['role']]}" for row in rows_of]
        reasons = [f"{name}: {_why(report, row)}" for name, row in zip(named, rows_of, strict=True)]
        yield Command("; ".join(places), alike["command"].fillna("").iloc[0], reasons)


def _why(report: Report, row: Mapping[str, Any]) -> str:
    """Among which settings it was chosen, its rate, and which are not shown to be slower."""
    bound = row["latency_bound"] if isinstance(row["latency_bound"], str) else ""
    if not row["eligible"]:
        return f"none of {row['compared']:g} measured settings keeps {bound or 'a latency, because none is known'}."
    full = " while full" * (row["metric"] == STEADY)
    rate = interval_text(row["rate"], row["rate_low"], row["rate_high"], f" output tokens/s{full}", row["scope"])
    if row["compared"] == 1:
        return f"{rate}, the only setting that was measured."
    settings = sentence(report.labels.get(row["cell_id"], row["knobs"]))
    words = f"{settings}: {rate}, of {row['compared']:g} measured settings"
    words += "" if row["equal_work"] else " (their requests differ)"
    if row["role"] == "smallest_within_margin":
        return f"{words} the smallest shown to be within {row['margin_pct']:g} % of the fastest."
    words += f", {row['eligible']:g} of which keep {bound}" * bool(bound)
    place = row["cell_id"].removesuffix(row["knobs"])
    slugs = row["ties"].split(", ") if isinstance(row["ties"], str) else []
    ties = [report.labels.get(f"{place}{slug}", slug) for slug in slugs]
    more = f"; and {len(ties) - MOST_TIES} more" if len(ties) > MOST_TIES else ""
    return f"{words}. Not shown to be slower: {'; '.join(ties[:MOST_TIES])}{more}." if ties else f"{words}."


SUBJECT = Subject(id="recommendations", title="Recommendations", tables=[commands])

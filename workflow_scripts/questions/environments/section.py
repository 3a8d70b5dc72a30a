"""What another environment, such as another version of the engine, did on the same cells."""

from collections.abc import Iterator

from workflow_scripts.catalog.environments import DEFAULT
from workflow_scripts.common.wording import shortened
from workflow_scripts.page.answers import Answer, bars_of, times, verdict_on
from workflow_scripts.page.blocks import Block, Text
from workflow_scripts.page.comparisons import FLAT, comparisons
from workflow_scripts.page.kit import Plot
from workflow_scripts.page.parts import compared
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.questions.knobs.section import ratios_of
from workflow_scripts.study.setting_words import knob_name
from workflow_scripts.tables.results import Tables, records

# Of what an environment changed by itself, so much is told; the table holds all.
MOST_CHANGES = 6


def environments(tables: Tables) -> Plot:
    """Rate of each cell in another environment over that in the first one, with its 95 % interval; hollow: not
    decided."""
    return ratios_of(tables, "environment", "environment", "Environments")


def changed_by_itself(report: Report) -> Iterator[Block]:
    rows = comparisons(report.tables, "environment")
    for (gpu, value, baseline), pairs in rows.groupby(["gpu", "value_b", "value_a"], sort=False):
        moved = pairs["moved_with_it"].dropna().str.split("; ").explode().value_counts(sort=False)
        changes = [
            _in_words(str(change)) + (f" in {count} of {len(pairs)} cells" if count < len(pairs) else "")
            for change, count in moved.items()
        ]
        if changes:
            more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
            heading = f"{gpu}: what {value} changed by itself, compared with {baseline}"
            yield Text(f"{heading}: {', '.join(changes[:MOST_CHANGES])}{more}.")


def _in_words(change: str) -> str:
    setting, _, values = change.partition(" ")
    return f"{knob_name(setting)} {values.replace('->', '→')}"


def answers(report: Report) -> Iterator[Answer]:
    rows = comparisons(report.tables, "environment")
    row = records(rows)[0]
    said = (
        f"within {row['margin_pct']:g} %"
        if row["verdict"] == FLAT
        else f"{times(row)} with {shortened(row['value_b'], 20)}"
    )
    yield Answer(
        verdict_on(row), "Environment matters?", said, bars_of(report.tables, rows), f"{row['value_b']} {times(row)}"
    )


def sentence(report: Report) -> str:
    rows = comparisons(report.tables, "environment")
    row = records(rows)[0]
    return f"With {row['value_b']}, a cell has {times(row)} the rate with {row['value_a']}."


SUBJECT = Subject(
    id="environments",
    title="Environments",
    asked="versions|environment",
    is_in=lambda study: any(name != DEFAULT for sweep in study.sweeps for name in sweep.environment),
    sentence=sentence,
    figures=[environments],
    answers=answers,
    why=[changed_by_itself],
    tables=[
        compared("environment"),
    ],
)

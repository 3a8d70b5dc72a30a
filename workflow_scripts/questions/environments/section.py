"""What another environment, such as another version of the engine, did on the same cells."""

from collections.abc import Iterator

from workflow_scripts.catalog.environments import DEFAULT
from workflow_scripts.page.answers import Answer, bars_of, fitting, times, verdict_on
from workflow_scripts.page.comparisons import FLAT, comparisons
from workflow_scripts.page.kit import Plot
from workflow_scripts.page.parts import compared
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.questions.knobs.section import ratio_rows
from workflow_scripts.tables.results import Tables, records


def environments(tables: Tables) -> Plot:
    """Rate of each cell in another environment over that in the first one, with its 95 % interval; hollow: not
    decided."""
    return ratio_rows(tables, comparisons(tables, "environment"), "Environments")


def answers(report: Report) -> Iterator[Answer]:
    rows = comparisons(report.tables, "environment")
    row = records(rows)[0]
    said = f"within {row['margin_pct']:g} %" if row["verdict"] == FLAT else f"{times(row)} with {{}}"
    yield Answer(verdict_on(row), "Environment matters?", fitting(said, row["value_b"]), bars_of(report.tables, rows))


def sentence(report: Report) -> str:
    row = records(comparisons(report.tables, "environment"))[0]
    return f"With {row['value_b']}, a cell has {times(row)} the rate with {row['value_a']}."


SUBJECT = Subject(
    id="environments",
    title="Environments",
    asked="versions|environment",
    is_in=lambda study: any(name != DEFAULT for sweep in study.sweeps for name in sweep.environment),
    sentence=sentence,
    figures=[environments],
    answers=answers,
    tables=[compared("environment")],
)

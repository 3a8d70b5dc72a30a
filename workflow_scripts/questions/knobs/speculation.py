"""Speculative decoding: what drafting tokens ahead changed, and how many drafts were accepted."""

from collections.abc import Iterator

from workflow_scripts.page.answers import Answer, setting_answer
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.kit import Plot
from workflow_scripts.page.parts import compared
from workflow_scripts.page.report import Report, Subject
from workflow_scripts.questions.knobs.section import ratio_rows
from workflow_scripts.tables.results import Tables, require

KNOB = "num_speculative_tokens"


def speculation(tables: Tables) -> Plot:
    """Ratio of the rates with drafted tokens to those without, with its 95 % interval."""
    return ratio_rows(tables, comparisons(tables, "knob", KNOB), "Speculative decoding")


def answers(report: Report) -> Iterator[Answer]:
    rows = comparisons(report.tables, "knob", KNOB)
    yield from setting_answer(report.tables, rows, "Drafting tokens helps?", "drafted tokens", helps=True)


def sentence(report: Report) -> str:
    drafted = require(report.tables.measured.dropna(subset="draft_acceptance_rate"), "no engine drafted tokens")
    share = drafted["draft_acceptance_rate"].median()
    return f"The engine accepted {100 * share:.0f} % of the drafted tokens."


SUBJECT = Subject(
    id="speculation",
    title="Speculative decoding",
    asked="draft",
    sentence=sentence,
    figures=[speculation],
    answers=answers,
    tables=[compared("knob", KNOB)],
)

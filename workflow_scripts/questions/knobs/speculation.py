"""Speculative decoding: what drafting tokens ahead changed, and how many drafts were accepted."""

from workflow_scripts.page.report import CELL, REPEAT_COLUMNS, Subject, TablePart, several_starts
from workflow_scripts.page.sentences import effects_of, pairs_that_differ_in

gains_and_drafts = pairs_that_differ_in(
    "num_speculative_tokens",
    "draft_acceptance_rate",
    lambda cell: (
        f"{100 * cell['draft_acceptance_rate']:.3g} % of the {cell['draft_tokens']:g} tokens drafted in a repeat were "
        f"accepted; a step with drafts gave a sequence {cell['tokens_per_draft_mean']:.3g} tokens on average."
    ),
)

SUBJECT = Subject(
    id="speculation",
    title="Speculative decoding",
    asked="draft",
    parts=[
        effects_of("num_speculative_tokens"),
        TablePart(
            "repeats",
            {
                **CELL,
                **REPEAT_COLUMNS,
                "draft_tokens": "Drafted tokens",
                "accepted_draft_tokens": "Accepted tokens",
                "draft_acceptance_rate": "",
                "tokens_per_draft_mean": "Tokens per sequence and step with drafts",
                "output_tokens_per_s": "",
            },
            "How many drafted tokens were accepted in each repeat",
            lambda cells: several_starts(cells[cells["draft_tokens"] > 0]),
        ),
    ],
    findings=[gains_and_drafts],
)

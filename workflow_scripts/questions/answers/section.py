"""Whether cells give the same answers: two engines, two settings, and the same cell again."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.page.blocks import Block, Finding, Text
from workflow_scripts.page.report import PLACE_HEADINGS, Report, Subject, TablePart
from workflow_scripts.page.sentences import some
from workflow_scripts.study.setting_words import instead_of
from workflow_scripts.tables.results import records


def same_answers(report: Report) -> Iterator[Block]:
    rows = _most_different_first(report.tables.need("answers"))
    yield from some([_finding(row, report.names) for row in records(rows)], "answers")


def _finding(row: Mapping[str, Any], names: Mapping[str, str]) -> Finding:
    verdict = "same answers" if row["same"] == row["requests"] else f"{100 * row['same_share']:.3g} % the same"
    what = "the same cell again"
    if row["differs_in"] == "engine":
        what = f"{row['value']} instead of {row['baseline']}"
    elif row["differs_in"] != "again":
        what = instead_of(row["differs_in"], row["value"] or None, row["baseline"] or None)
    unit = "greedy tokens" if row["compared_by"] == "tokens" else "text"
    words = f"{what}: {row['same']:g} of {row['requests']:g} answers have the same {unit}"
    if row["same"] < row["requests"]:
        words += f"; others differ from position {row['first_difference_min']:g} on at the earliest"
    return Finding(verdict, f"{names.get(row['cell_id'], row['cell_id'])}: {words}.")


def _most_different_first(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values("same_share", kind="stable")


SUBJECT = Subject(
    id="answers",
    title="Same answers",
    asked="same greedy tokens",
    parts=[
        lambda report: [
            Text(
                "Greedy decoding takes the most probable token. Another kernel, batch or number format rounds "
                "differently, so if two tokens are almost equally probable, the other one may win. From there on the "
                "two answers are different texts. The rows of a cell that was served again show how many answers "
                "change although no setting does. Random weights make close calls more frequent than the weights of "
                "a trained model."
            )
        ],
        TablePart(
            "answers",
            {
                **PLACE_HEADINGS,
                "differs_in": "Differs in",
                "value": "Value",
                "baseline": "Compared with",
                "cell_id": "Cell",
                "requests": "Requests",
                "same": "Same answers",
                "first_difference_min": "First difference, earliest",
                "first_difference_median": "First difference, median",
                "compared_by": "Compared by",
            },
            "Requests with the same answer in two cells",
            _most_different_first,
        ),
    ],
    findings=[same_answers],
    is_in=lambda study: any(workload.keep_answers for workload in study.workloads.values()),
)

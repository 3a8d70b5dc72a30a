"""The outcome of every cell, with the reasons of those that failed."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from workflow_scripts.common.wording import plural, shortened
from workflow_scripts.page.answers import NO, OPEN, PARTLY, YES, Answer
from workflow_scripts.page.blocks import Block, Fold, Table, outcome_words, table_of
from workflow_scripts.page.comparisons import every_knob_compared
from workflow_scripts.page.kit import Plot, bar
from workflow_scripts.page.report import SHOWN_ROWS, Report, Subject
from workflow_scripts.page.style import INK
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.outcome import WHAT_TO_DO
from workflow_scripts.tables.results import RATE, Tables

NO_FAULT = ("ok", "infeasible")
# Of a reason in an answer.
_MOST_REASON = 40


def grid_outcomes(tables: Tables) -> Plot:
    """Number of cells by how they ended."""
    counts = tables.cells["outcome"].map(outcome_words).value_counts()
    return _counts(counts, "How the cells ended")


def outcomes_by_place(tables: Tables) -> Plot:
    """Number of cells without a rate by device, engine and model, with how they ended."""
    cells = tables.cells
    troubled = cells[cells["outcome"] != "ok"]
    rows = troubled if len(troubled) else cells
    names = rows["outcome"].map(outcome_words) + " · " + rows[COORDINATES[:3]].agg(" · ".join, axis=1)
    return _counts(names.value_counts(), "Where cells have no rate" if len(troubled) else "Cells by place")


def _counts(counts: "pd.Series[int]", title: str) -> Plot:
    rows = pd.DataFrame({"name": list(counts.index), "value": counts.to_numpy(dtype=float)})
    rows = rows.assign(low=np.nan, high=np.nan, colour=INK, text=[f"{count:,}" for count in counts])
    return bar(rows, title, "cells")


def answers(report: Report) -> Iterator[Answer]:
    outcomes = report.grid["outcome"]
    ended = outcomes[outcomes != "missing"]
    failed = int((~ended.isin(NO_FAULT)).sum())
    measured = int(outcomes.eq("ok").sum())
    said = f"{measured} of {len(outcomes)} measured" + f", {failed} failed" * bool(failed)
    verdict = OPEN if len(ended) < len(outcomes) else YES if not failed else PARTLY if measured else NO
    yield Answer(verdict, "Did every cell run?", said)
    if failed:
        reasons_ = report.grid.loc[~outcomes.isin([*NO_FAULT, "missing"]), "reason"].fillna("unknown").value_counts()
        first = shortened(str(reasons_.index[0]), _MOST_REASON)
        yield Answer(YES if len(reasons_) == 1 else NO, "One reason for all?", first)
    if every_knob_compared(report.tables) == []:
        yield Answer(NO, "Settings compared?", "no two cells differ in one")


def sentence(report: Report) -> str:
    outcomes = report.grid["outcome"]
    return f"{int(outcomes.eq('ok').sum())} of {plural(len(outcomes), 'cell')} have a rate."


def _counted(report: Report, cells: pd.DataFrame, columns: Mapping[str, str], caption: str, what: str) -> Table:
    """A table of the different values of the columns, each with its number of cells and an example."""
    rows = cells.groupby(list(columns), sort=False)["cell_id"].agg(["size", "first"]).reset_index()
    rows = rows.assign(first=rows["first"].map(report.cell_link))
    rows = rows.sort_values("size", ascending=False, kind="stable")
    note = f"{SHOWN_ROWS} of {len(rows)} {what}." if len(rows) > SHOWN_ROWS else ""
    return table_of(rows.head(SHOWN_ROWS), {**columns, "size": "Cells", "first": "Example"}, caption, note)


def reasons(report: Report) -> Iterator[Block]:
    troubled = report.grid[report.grid["outcome"] != "ok"]
    if len(troubled):
        words = troubled.assign(
            outcome=troubled["outcome"].map(outcome_words),
            reason=troubled["reason"].fillna("not run yet"),
            to_do=troubled["outcome"].map(WHAT_TO_DO).fillna("the next call measures it"),
        )
        columns = {"outcome": "Outcome", "reason": "Reason", "to_do": "What you do"}
        yield _counted(report, words, columns, "Cells that failed or did not run, by reason", "reasons")


def not_as_asked(report: Report) -> Iterator[Block]:
    replaced = report.grid.dropna(subset="not_as_asked")
    if len(replaced):
        columns = {"not_as_asked": "What took effect"}
        yield _counted(report, replaced, columns, "Settings that the engine replaced silently", "replacements")


def every_cell(report: Report) -> Iterator[Block]:
    grid, rates = report.grid, report.tables.value(RATE)
    places = report.logs["what"]
    rows = grid.head(SHOWN_ROWS)
    logs = [report.link(report.cells / cell / places.get(cell, "no log"), "log") for cell in rows["cell_id"]]
    unlike = np.where(rows["comparable"].eq(False) & rows["outcome"].ne("missing"), ", not comparable", "")
    rows = rows.assign(
        outcome=rows["outcome"].map(outcome_words) + unlike,
        log=pd.Series(logs, index=rows.index, dtype=object),
        **{RATE: rows["cell_id"].map(rates)},
    )
    columns = {"cell_id": "Cell", "outcome": "Outcome", RATE: "", "reason": "Reason", "log": "Engine log"}
    note = f"The first {SHOWN_ROWS} of {len(grid):,}; Explore has all." if len(grid) > SHOWN_ROWS else ""
    counts = grid["outcome"].map(outcome_words).value_counts().items()
    ended = ", ".join(f"{count} {words}" for words, count in counts)
    yield Fold(f"Cells: {ended}", [table_of(report.named(rows), columns, "Cells", note)])


SUBJECT = Subject(
    id="cells",
    title="Cells and failures",
    asked="pipeline",
    sentence=sentence,
    figures=[grid_outcomes, outcomes_by_place],
    answers=answers,
    tables=[reasons, not_as_asked, every_cell],
)

"""Count the requests that get the same greedy tokens from two cells.

    kvsweep table-answers --study config/studies/answers.yaml \\
        --tables results/answers/tables --parsed results/answers/parsed \\
        --out results/answers/tables/answers.parquet

If two answers differ, the table says where the first difference lies. Only workloads that keep answers and do not
sample are compared. docs/tables.md documents every column.
"""

from argparse import Namespace
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, zip_longest
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pandas as pd

from workflow_scripts.common.command import PARSED
from workflow_scripts.engines.registry import every_knob, get_engine
from workflow_scripts.statistics.summary import Row, as_applied, comparable_rows, knob_columns, knob_text, records
from workflow_scripts.study.definition import resolved_models
from workflow_scripts.study.study import Study
from workflow_scripts.tables.parsed_facts import read_parsed
from workflow_scripts.tables.table_command import table_command
from workflow_scripts.tables.typed_tables import INTEGER, NUMBER, TEXT, table_schema

ENGINE, AGAIN = "engine", "again"
# With other values of these knobs, an engine may make other random weights.
_OF_WEIGHTS = ("quantization", "tensor_parallel_size", "pipeline_parallel_size", "endpoint")

SCHEMA = table_schema(
    "answers",
    "Requests with the same greedy tokens in two cells with the same weights: cells that differ in one knob, engines "
    "(each with its fewest sequences), and a cell that was served several times.",
    TEXT("study source gpu model workload", "as in `cells`"),
    TEXT("differs_in", "a knob, `engine`, or `again`: other passes and starts of the same cell"),
    TEXT("value baseline", "the two values; empty if the study leaves the knob out"),
    TEXT("cell_id baseline_cell_id", "the two cells"),
    TEXT("compared_by", "`tokens`, or `text` if a server reports no tokens"),
    INTEGER("requests", "requests served by both"),
    INTEGER("same", "requests with equal answers"),
    NUMBER("same_share", "`same` over `requests`"),
    NUMBER(
        "first_difference_min first_difference_median",
        "position of the first different token (of a text: character), from 1",
    ),
    notes="The first pass of the first start of each cell is compared.",
)


class Answer(NamedTuple):
    """An answer; `token_ids` is None if a server reported only the text."""

    token_ids: tuple[int, ...] | None
    text: str


Answers = Mapping[str, Answer]  # by request


def first_difference(a: Sequence[Hashable], b: Sequence[Hashable]) -> int | None:
    """The position of the first element that differs, from 1; None if there is none.

    >>> first_difference([5, 6, 7], [5, 8, 7]), first_difference("ab", "abc"), first_difference([5], [5])
    (2, 3, None)
    """
    return next((place for place, (x, y) in enumerate(zip_longest(a, b), 1) if x != y), None)


def compared(pairs: Iterable[tuple[Answer, Answer]]) -> Row:
    """The columns that say how many answers are the same, and where the others differ.

    >>> first, other, text = Answer((1, 2), "ab"), Answer((1, 3), "ac"), Answer(None, "ab")
    >>> {**compared([(first, other), (first, first)])}["first_difference_min"], compared([(first, text)])["compared_by"]
    (2, 'text')
    """
    both = list(pairs)
    by_tokens = all(answer.token_ids is not None for pair in both for answer in pair)
    differences = [
        first_difference(a.token_ids or (), b.token_ids or ()) if by_tokens else first_difference(a.text, b.text)
        for a, b in both
    ]
    places = [place for place in differences if place is not None]
    return {
        "compared_by": "tokens" if by_tokens else "text",
        "requests": len(differences),
        "same": len(differences) - len(places),
        "same_share": 1 - len(places) / len(differences),
        "first_difference_min": min(places, default=None),
        "first_difference_median": median(places) if places else None,
    }


def answers_table(study: Study, cells: pd.DataFrame, parsed: Path) -> pd.DataFrame:
    kept = [name for name, w in study.workloads.items() if w.keep_answers and (not w.sampling or w.sampling.is_greedy)]
    rows = comparable_rows(cells).drop_duplicates("cell_id")
    rows = rows[rows["workload"].isin(kept) & rows["study"].eq(study.name)]
    random_weights = {name for name, model in resolved_models(study).items() if model.load_format == "dummy"}
    comparisons: list[Row] = []
    for gpu, of_gpu in rows.groupby("gpu", sort=False):
        answers = _answers(parsed, str(gpu), of_gpu["cell_id"])
        for (model, _), group in of_gpu.groupby(["model", "workload"], sort=False):
            group = group[group["cell_id"].isin(answers)]
            comparisons += _of_group(group, answers, model in random_weights)
    return pd.DataFrame(comparisons, columns=list(SCHEMA.columns))


def _answers(parsed: Path, gpu: str, cell_ids: pd.Series) -> dict[str, list[Answers]]:
    """The answers of each cell in each of its passes, in order; cells whose answers were not recorded are left out."""
    names = ["cell_id", "start", "repeat", "request_id", "token_ids", "text"]
    rows = read_parsed(parsed, gpu, "requests", names)
    rows = rows[rows["cell_id"].isin(cell_ids) & rows["text"].notna()]
    passes: dict[str, list[Answers]] = {}
    for (cell, _, _), requests in rows.groupby(["cell_id", "start", "repeat"]):
        answers = zip(requests["request_id"], requests["token_ids"], requests["text"], strict=True)
        passes.setdefault(str(cell), []).append(
            {request: Answer(None if ids is None else tuple(ids), text) for request, ids, text in answers}
        )
    return passes


def _of_group(cells: pd.DataFrame, answers: Mapping[str, list[Answers]], random_weights: bool) -> Iterator[Row]:
    again = [(cell, cell, AGAIN, "", "") for cell in records(cells) if len(answers[cell["cell_id"]]) > 1]
    pairs = [*_knob_pairs(cells, _OF_WEIGHTS if random_weights else ()), *_engine_pairs(cells, random_weights)]
    for cell, baseline, differs_in, value, base in (*again, *pairs):
        first, *others = answers[cell["cell_id"]]
        compared_with = others if differs_in == AGAIN else answers[baseline["cell_id"]][:1]
        row = {name: cell[name] for name in ("study", "source", "gpu", "model", "workload", "cell_id")}
        row |= {"differs_in": differs_in, "value": value, "baseline": base, "baseline_cell_id": baseline["cell_id"]}
        yield row | compared((first[r], other[r]) for other in compared_with for r in first if r in other)


# Two cells, what they differ in, and the two values.
_Pair = tuple[Row, Row, str, str, str]


def _knob_pairs(cells: pd.DataFrame, left_out: Sequence[str]) -> Iterator[_Pair]:
    names = [column.removeprefix("knob_") for column in knob_columns(cells)]
    applied = cells.assign(**{name: as_applied(cells, name) for name in names}).drop_duplicates(["engine", *names])
    for name in names:
        neutral = every_knob()[name].neutral or ("",)
        others = [other for other in names if other != name]
        for _, group in applied.groupby(["engine", *others], sort=False) if name not in left_out else ():
            ordered = sorted(records(group), key=lambda cell: (cell[name] not in neutral, cell[name]))
            for cell in ordered[1:]:
                yield cell, ordered[0], name, knob_text(cell[name]), knob_text(ordered[0][name])


def _engine_pairs(cells: pd.DataFrame, random_weights: bool) -> Iterator[_Pair]:
    fewest = cells.sort_values("max_concurrency_allowed", kind="stable").drop_duplicates("engine")
    ordered = records(cells[cells["cell_id"].isin(fewest["cell_id"])])
    for baseline, other in combinations(ordered, 2):
        a, b = (get_engine(cell["engine"]).random_weights for cell in (other, baseline))
        if not random_weights or (a and a == b):
            yield other, baseline, ENGINE, other["engine"], baseline["engine"]


@table_command("answers", PARSED)
def main(args: Namespace, study: Study, cells: pd.DataFrame) -> pd.DataFrame:
    return answers_table(study, cells[cells["source"].eq("measured")], args.parsed)

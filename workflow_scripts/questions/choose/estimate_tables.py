"""Say which cells of a study are measured or predicted, and which questions are answered.

    kvsweep table-estimates --study config/studies/my-study.yaml --plan results/my-study/plan/plan.parquet \\
        --tables results/my-study/tables --out results/my-study/tables/estimates.parquet \\
        --questions-out results/my-study/tables/questions.parquet

`choose_round` decides by the same estimates and questions which cells a round measures.
"""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd

from workflow_scripts.common.command import option
from workflow_scripts.common.faults import InputError
from workflow_scripts.common.parquet import read_parquet
from workflow_scripts.questions.choose.choose_cells import estimates_and_questions
from workflow_scripts.questions.choose.estimates import CHECK, Estimates
from workflow_scripts.questions.choose.open_questions import Question
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.study import Study
from workflow_scripts.tables.table_command import table_command
from workflow_scripts.tables.typed_tables import FLAG, NUMBER, TEXT, table_schema

SCHEMA = table_schema(
    "estimates",
    "Every cell of a study with `measure`: what is known of its output tokens/s, and from what "
    "([how](measuring_what_matters.md)).",
    TEXT("cell_id gpu engine model workload knobs", "as in `cells`"),
    TEXT(
        "state",
        "`measured`; `predicted`; `check` (measured, and drawn at random to check predictions: no estimate uses it); "
        "`infeasible`; `unknown`",
    ),
    NUMBER("estimated low high", "output tokens/s by the predictions and by other measured cells, with a 95 % band"),
    NUMBER("measured", "output tokens/s, geometric mean over the starts"),
    NUMBER("predicted", "output tokens/s, predicted before anything was measured"),
    NUMBER("error_pct", "of a `check` cell: estimated over measured, minus 1"),
)
QUESTIONS_SCHEMA = table_schema(
    "questions",
    "The questions that a study with `measure` is to decide.",
    TEXT("kind", "`recommendation`, `knobs`, `devices` or `memory`"),
    TEXT("place subject", "where it is asked, and of what: a knob, two devices, a limit of memory"),
    TEXT("answer", "the likeliest answer"),
    NUMBER("probability", "of that answer"),
    FLAG("is_answered", "whether it is as sure as the error rate of the study demands"),
)


def estimates_table(plan: pd.DataFrame, estimates: Estimates) -> pd.DataFrame:
    """The estimates table; cells are in the order of the plan."""
    of_cells = estimates.table.reindex(plan["cell_id"]).reset_index(drop=True)
    table = plan.reset_index(drop=True)[["cell_id", *COORDINATES, "knobs"]].join(of_cells[["state", "low", "high"]])
    # Where there is no band, the rate is a mere guess.
    table["estimated"] = np.exp(of_cells["log_rate"]).where(of_cells["low"].notna())
    table["measured"] = np.exp(of_cells["log_measured"])
    table["predicted"] = plan["output_tokens_per_s"].to_numpy(dtype=float)
    error_pct = 100 * (table["estimated"] / table["measured"] - 1)
    table["error_pct"] = error_pct.where(table["state"] == CHECK)
    return table[list(SCHEMA.columns)]


def questions_table(questions: tuple[Question, ...]) -> pd.DataFrame:
    return pd.DataFrame([vars(question) for question in questions], columns=list(QUESTIONS_SCHEMA.columns))


@table_command(
    "estimates",
    option("--plan", type=Path, required=True, help="plan.parquet of `kvsweep plan`"),
    questions="questions",
)
def main(args: Namespace, study: Study, cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    if study.measure is None:
        raise InputError(f"{args.study}: without `measure` every cell is measured, and nothing is chosen")
    plan = read_parquet(args.plan)
    estimates, questions, _ = estimates_and_questions(study, study.measure, plan, cells)
    return estimates_table(plan, estimates), questions_table(questions)

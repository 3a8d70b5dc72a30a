"""What a study with `measure` measured and what it only predicts, and which of its questions are answered."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from workflow_scripts.common.columns import column, heading
from workflow_scripts.common.wording import number, plural
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.plot import Panel, Plot, key, log2_axis, plain_log_axis
from workflow_scripts.page.report import CELL, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.series import PLACES, groups_varying
from workflow_scripts.page.style import Mark, marks
from workflow_scripts.study.setting_words import knob_axis, knob_name
from workflow_scripts.tables.results import RATE, MissingError, Tables, records

# Only marks of measured cells are filled. A check cell has both: a square for the measurement, and its prediction.
HOLLOW: Mapping[str, Any] = {"linestyle": "none", "marker": "o", "markerfacecolor": "none"}
FILLED: Mapping[str, Mapping[str, Any]] = {
    "measured": {"linestyle": "none", "marker": "o"},
    "check": {"linestyle": "none", "marker": "s"},
}
# Open questions that a sentence names.
MOST_NAMED = 3
# Neighbouring series stand apart by this factor, so that bands do not cover each other.
APART = 1.05


def measured_or_predicted(tables: Tables) -> Plot:
    table = tables.need("estimates")
    rows = table.merge(tables.cells[["cell_id", *tables.knobs]], on="cell_id")
    rows = rows[rows["state"].isin([*FILLED, "predicted"])]
    numeric = rows[tables.knobs].select_dtypes("number")
    values = numeric.loc[:, numeric.min() > 0].nunique()
    if values.empty or values.max() < 2:
        raise MissingError("no setting with a number was varied")
    knob = str(values.idxmax())
    groups = groups_varying(rows, knob, tables.knobs, PLACES)
    looks = marks(label for group in groups for label in group.labels)
    return Plot(
        title=f"{column(RATE).label} against {knob_name(knob)}: measured or predicted",
        alt=f"{sum(rows['measured'].notna())} measured and {sum(rows['state'] == 'predicted')} predicted cells.",
        sources=["measured", "predicted"],
        panels=[Panel(group.title, partial(_draw, rows=group.rows, looks=looks)) for group in groups],
        panels_are="devices, models and workloads",
        x_label=knob_axis(knob),
        y_label=column(RATE).axis,
        handles=[
            key("measured", **FILLED["measured"]),
            key("measured only as a check", **FILLED["check"]),
            key("predicted, with its 95 % band", **HOLLOW),
            *(key(label, look.color) for label, look in looks.items() if label),
        ],
    )


def _draw(ax: Axes, rows: pd.DataFrame, looks: Mapping[str, Mark]) -> None:
    middle = (rows["series"].nunique() - 1) / 2
    for place, (label, line) in enumerate(rows.groupby("series", sort=False)):
        x, color = line["x"] * APART ** (place - middle), looks[str(label)].color
        for state, style in FILLED.items():
            of_state = line["state"] == state
            ax.plot(x[of_state], line.loc[of_state, "measured"], color=color, **style)
        open_ = line["state"].isin(["predicted", "check"]) & line["estimated"].notna()
        y, low, high = (line.loc[open_, name] for name in ("estimated", "low", "high"))
        ax.errorbar(x[open_], y, yerr=[y - low, high - y], color=color, elinewidth=1, **HOLLOW)
    log2_axis(ax, rows["x"].unique())
    ends = rows[["measured", "low", "high"]]
    plain_log_axis(ax, "y", ends.min().min() / 1.3, ends.max().max() * 1.3, most=6)


def predicted_in_words(estimates: pd.DataFrame) -> Iterator[str]:
    """What is said of the cells that were not measured, and of those that check the predictions.

    >>> cells = pd.DataFrame({"state": ["predicted", "check"], "low": 90.0, "high": 110.0, "measured": [None, 100.0]})
    >>> list(predicted_in_words(cells))
    ['1 predicted within 10.6 % (median)', 'checked on 1 held back at random, 1 within the band']
    """
    predicted = estimates[estimates["state"] == "predicted"]
    if len(predicted):
        within_pct = 100 * ((predicted["high"] / predicted["low"]) ** 0.5 - 1).median()
        within = f" within {number(within_pct)} % (median)" if pd.notna(within_pct) else ""
        yield f"{len(predicted)} predicted{within}"
    for state, words in (("infeasible", "predicted to be infeasible"), ("unknown", "neither measured nor predicted")):
        if count := (estimates["measured"].isna() & (estimates["state"] == state)).sum():
            yield f"{count} {words}"
    if len(check := estimates[(estimates["state"] == "check") & estimates["measured"].notna()]):
        inside = int(check["measured"].between(check["low"], check["high"]).sum())
        yield f"checked on {len(check)} held back at random, {inside} within the band"


def states(report: Report) -> Iterator[Block]:
    estimates, questions = report.tables.need("estimates"), report.tables.get("questions")
    measured = estimates["measured"].notna().sum()
    words = ", ".join([f"{measured} of {plural(len(estimates), 'cell')} measured", *predicted_in_words(estimates)])
    yield Finding(f"{measured} measured", f"{words}.")
    if len(questions):
        answered = questions["is_answered"].eq(True)
        tone = "good" if answered.all() else "bad"
        opened = [f"{row['kind']}, {row['place']}: {row['subject']}" for row in records(questions[~answered])]
        sentence = f"{answered.sum()} of {plural(len(questions), 'question')} answered"
        sentence += f"; open: {'; '.join(opened[:MOST_NAMED])}" if opened else ""
        yield Finding(f"{answered.sum()} answered", f"{sentence}.", tone)


SUBJECT = Subject(
    id="measured-or-predicted",
    title="What was measured, and what is predicted",
    parts=[
        FigurePart(measured_or_predicted),
        TablePart(
            "questions",
            {
                "state": "State",
                "kind": "Question",
                "place": "Where",
                "subject": "Of what",
                "answer": "Likeliest answer",
                "probability": "Probability",
            },
            "Questions of the study, open ones first",
            lambda questions: questions.assign(
                state=questions["is_answered"].map({True: "answered", False: "open"})
            ).sort_values("state", ascending=False, kind="stable"),
        ),
        TablePart(
            "estimates",
            {
                **CELL,
                "state": "State",
                "measured": heading(RATE, "Measured"),
                "estimated": "Predicted now",
                "low": "Band from",
                "high": "Band to",
                "predicted": "Predicted before anything was measured",
                "error_pct": "Error of a check",
            },
            f"{column(RATE).label} of every cell, measured or predicted",
        ),
    ],
    findings=[states],
    is_in=lambda study: study.measure is not None,
)

"""Which cells of a study differ only in one knob, the model or the environment, and what each comparison shows."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from workflow_scripts.catalog.environments import DEFAULT
from workflow_scripts.engines.registry import every_knob, metrics_of_columns, without_environment
from workflow_scripts.statistics.comparisons import CONFIDENCE, Comparisons, compare
from workflow_scripts.statistics.further_starts import ONE_LOOK, Decisions, Looks, decide
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.statistics.start_spread import FloatArray, mean_of
from workflow_scripts.statistics.summary import (
    BOUND_BY_NEEDS,
    ENVIRONMENT,
    RATE,
    bound_by,
    cell_summary,
    comparable_rows,
    knob_columns,
    knob_text,
)
from workflow_scripts.study.study import Starts
from workflow_scripts.tables.typed_tables import NUMBER
from workflow_scripts.workloads.arrivals import Load

STEADY = "steady_output_tokens_per_s"
# What a repeat served; two cells of which one had other requests did unequal work.
WORK = ("num_requests", "prompt_tokens", "output_tokens")
ALIKE = ("study", "source", "gpu", "engine", "model", "workload")
STEADY_RATIO = ("steady_ratio", "steady_ratio_low", "steady_ratio_high")
WHILE_FULL = NUMBER(
    [*STEADY_RATIO], "ratio of `steady_output_tokens_per_s`, with its 95 % interval; null if a cell has none"
)
# Of a knob with more values, each is compared with the first and with its neighbours: pairs grow with their square.
MOST_VALUES = 16
# Columns that count as knobs.
MODEL, AT = "model", "environment"


def looks_at(starts: Starts, cells: pd.DataFrame) -> Looks:
    """The looks at a study: at the starts that it asks for, and at those that it asked for when it had fewer.

    A plan that measured none of the counted starts was no look at them.
    """
    planned = comparable_rows(cells)["planned_starts"].dropna()
    return Looks(starts.at_least, starts.at_most, len(set(planned) - {starts.in_words}))


def compared_pairs(
    cells: pd.DataFrame, margin_pct: float, looks: Looks = ONE_LOOK, metric: str = RATE
) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """For each column that was varied, of a knob, the model or the environment: the cells in groups that differ in
    nothing else, and all pairs of these.

    Pairs are positions `a` and `b` of cells of one `group`, with what their comparison shows; `first` marks those with
    the baseline. Verdicts allow for all pairs of a knob. `metric` is the compared column of the cells table. Cells
    whose requests differ are compared by the steady rate instead of the output rate, if all of the group have one.
    """
    # Counts differ between repeats; everything else that an engine shows of a knob is a setting.
    counted = metrics_of_columns()
    shown_in = {knob.shown_in for knob in every_knob().values() if knob.shown_in}
    observed = {column: "mean" if column in counted else "first" for column in ("effective", *sorted(shown_in))}
    observed |= BOUND_BY_NEEDS | dict.fromkeys(WORK, "first") | {STEADY: "first"}
    summary, samples = cell_summary(cells, metric, observed)
    summary["bound_by"] = bound_by(summary)
    knobs = knob_columns(cells)
    groups = {column: knob_groups(summary, column, [k for k in knobs if k != column]) for column in (*knobs, MODEL)}
    groups[AT] = knob_groups(by_environment(summary), AT, knobs)
    groups = {column: rows for column, rows in groups.items() if len(rows)}
    if not groups:
        return []
    groups = {c: rows.assign(metric=_metric(rows) if metric == RATE else metric) for c, rows in groups.items()}
    paired = pd.concat(map(_pairs, groups.values()), ignore_index=True)
    # Of the pairs, of which there may be half a million, no further copies are kept.
    of_metrics = {
        name: samples if name == metric else cell_summary(cells, name)[1] for name in paired["metric"].unique()
    }
    decided = pd.concat(
        _decided(of_metrics[name], of_knob, margin_pct, looks)
        for (_, name), of_knob in paired.groupby(["knob", "metric"])
    ).sort_index()
    others = decided["metric"] != metric
    a, b = (decided.loc[others, name].to_numpy() for name in ("sample_a", "sample_b"))
    decided["whole_ratio"] = decided["ratio"]
    decided.loc[others, "whole_ratio"] = compare(samples, a, b).interval().value
    decided = decided.assign(
        **(steady_ratios(cells, decided) if metric == RATE else dict.fromkeys(STEADY_RATIO, np.nan))
    )
    of_columns = decided.groupby("knob")
    return [(column, rows, of_columns.get_group(column).reset_index(drop=True)) for column, rows in groups.items()]


def steady_ratios(cells: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, FloatArray]:
    """The columns of the ratio of the rates while both cells of each pair are full, with its interval."""
    a, b = (pairs[f"sample_{side}"].to_numpy() for side in "ab")
    return dict(zip(STEADY_RATIO, compare(cell_summary(cells, STEADY)[1], a, b).interval(), strict=True))


def _metric(rows: pd.DataFrame) -> pd.Series:
    """The rate by which each group is compared: the steady one if its cells had other requests and all have it."""
    groups = rows.groupby("group")
    differs = (groups[list(WORK)].nunique() > 1).any(axis=1)
    steady = groups[STEADY].count() == groups.size()
    return rows["group"].map((differs & steady).map({True: STEADY, False: RATE}))


def _decided(samples: Samples, pairs: pd.DataFrame, margin_pct: float, looks: Looks) -> pd.DataFrame:
    a, b = (pairs[name].to_numpy() for name in ("sample_a", "sample_b"))
    decided = decide(samples, a, b, margin_pct, looks)
    comparisons = decided.found
    rate, baseline_rate = (np.exp(mean_of(samples.log[c])) for c in (a, b))
    return pairs.assign(
        distance=np.abs(comparisons.difference),
        rate=rate,
        baseline_rate=baseline_rate,
        **shown_columns(decided),
        level_pct=100 * (1 - CONFIDENCE) * decided.share,
        # A study with a fixed number of starts gets no further ones.
        starts_needed_at_least=decided.least if looks.at_least < looks.at_most else np.nan,
    )


def shown_columns(decided: Decisions) -> dict[str, npt.NDArray[Any]]:
    """What pairs show, as columns: ratios with their intervals and verdicts."""
    return columns_of(decided.found) | {"verdict": decided.verdict, "starts_needed": decided.needed}


def columns_of(found: Comparisons) -> dict[str, npt.NDArray[Any]]:
    """The ratios of pairs with their intervals and the least size of each, `at_least`; NaN if 1 is not excluded."""
    at_least = found.at_least()
    return found.columns() | {"at_least": np.where(at_least > 1, at_least, np.nan)}


def knob_groups(summary: pd.DataFrame, column: str, others: list[str]) -> pd.DataFrame:
    """Cells that differ from other cells only in the knob, ordered by `group` and the knob's value. Cells that leave it
    to the engine are the first, `default`, if others set it; not of a switch, which is on or off, and not of a load."""
    alike = [name for name in (*ALIKE, *ENVIRONMENT, *others) if name != column]
    given = summary[column].notna()
    is_switch = pd.api.types.is_bool_dtype(summary.loc[given, column].infer_objects())
    if not is_switch and column.removeprefix("knob_") not in Load.model_fields:
        given = given.groupby([summary[name] for name in alike], dropna=False, sort=False).transform("any")
    rows = summary[given]
    group = rows.groupby(alike, dropna=False, sort=False).ngroup()
    value = [knob_text(value) if pd.notna(value) else DEFAULT for value in rows[column]]
    rows = rows.assign(group=group, knob=column, value=value)
    rows = rows.sort_values(["group", column], na_position="first")
    return rows[rows["group"].duplicated(keep=False)].reset_index(drop=True)


def by_environment(cells: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, with the environment as a knob: the plain name of the engine, and no lock.

    Environments are ordered as the study names them, after the default one.

    >>> cells = pd.DataFrame({"cell_id": list("abc"), "engine": ["vllm@b-1", "vllm@a-2", "vllm"]})
    >>> by_environment(cells).sort_values("environment")["environment"].tolist()
    ['default', 'b-1', 'a-2']
    """
    cells = cells.drop_duplicates("cell_id")
    names = [name.partition("@")[2] or DEFAULT for name in cells["engine"]]
    order = [name for name in dict.fromkeys([DEFAULT, *names]) if name in set(names)]
    engine = cells["engine"].map(without_environment)
    return cells.assign(environment=pd.Categorical(names, order, ordered=True), engine=engine, lock_sha256="")


def _pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """All pairs of rows of one group, `b` above `a`: the row numbers `a` and `b`, and the numbers of their samples."""
    numbered = rows[["group", "sample", "knob", "metric"]]
    numbered = numbered.assign(row=np.arange(len(rows)), first=~rows["group"].duplicated())
    pairs = numbered.merge(numbered.drop(columns=["knob", "first", "metric"]), on="group", suffixes=("_b", "_a"))
    pairs = pairs[pairs["row_a"] > pairs["row_b"]].rename(columns={"row_a": "a", "row_b": "b"})
    few = pairs["group"].map(rows["group"].value_counts()) <= MOST_VALUES
    return pairs[few | pairs["first"] | (pairs["a"] == pairs["b"] + 1)].reset_index(drop=True)

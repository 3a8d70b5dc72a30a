"""Which cells of a study differ only in one knob or only in the model, and what the comparison of each pair shows."""

import numpy as np
import pandas as pd

from workflow_scripts.analyse.further_starts import ONE_LOOK, Looks, decide
from workflow_scripts.analyse.repeats import (
    BOUND_BY_NEEDS,
    ENVIRONMENT,
    bound_by,
    cell_summary,
    knob_columns,
    knob_text,
    numbers,
)
from workflow_scripts.analyse.statistics import CONFIDENCE, Samples
from workflow_scripts.engines.registry import every_knob, metrics_of_columns

METRIC = "output_tokens_per_s"
PLACE = ("study", "source", "gpu", "engine", "model", "workload")
# The column that counts as a knob.
MODEL = "model"


def shown_in() -> dict[str, list[str]]:
    """Columns in which engines show knobs, with these knobs: if two cells agree there, the knob had no effect."""
    columns: dict[str, list[str]] = {}
    for name, knob in every_knob().items():
        if knob.shown_in:
            columns.setdefault(knob.shown_in, []).append(name)
    return columns


def compared_pairs(
    cells: pd.DataFrame, margin_pct: float, looks: Looks = ONE_LOOK, metric: str = METRIC
) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """For each knob's column that was varied: the cells in groups that differ in nothing else, and all pairs of these.

    Pairs are positions `a` and `b` of cells of one `group`, with what their comparison shows; `first` marks those with
    the baseline. Verdicts allow for all pairs of all knobs. `metric` is the compared column of the cells table.
    """
    # Counts differ between repeats; everything else that an engine shows of a knob is a setting.
    counted = metrics_of_columns()
    observed = {column: "mean" if column in counted else "first" for column in ("effective", *shown_in())}
    observed |= BOUND_BY_NEEDS
    known = list(dict.fromkeys([*cells.columns, *observed]))
    summary, samples = cell_summary(cells.reindex(columns=known), metric, observed)
    summary["bound_by"] = bound_by(summary)
    knobs = knob_columns(cells)
    groups = {column: _groups(summary, column, [k for k in knobs if k != column]) for column in (*knobs, MODEL)}
    groups = {column: rows for column, rows in groups.items() if len(rows)}
    if not groups:
        return []
    paired = {column: _pairs(rows) for column, rows in groups.items()}
    decided = _decided(samples, pd.concat(paired.values(), ignore_index=True), margin_pct, looks)
    ends = np.cumsum([len(pairs) for pairs in paired.values()])
    parts = np.split(np.arange(len(decided)), ends[:-1])
    return [
        (column, rows, decided.iloc[part].reset_index(drop=True))
        for (column, rows), part in zip(groups.items(), parts, strict=True)
    ]


def _decided(samples: Samples, pairs: pd.DataFrame, margin_pct: float, looks: Looks) -> pd.DataFrame:
    """What the comparison of each pair shows."""
    a, b = (pairs[name].to_numpy() for name in ("sample_a", "sample_b"))
    found, verdict, needed, least = decide(samples, a, b, margin_pct, looks)
    ratio, low, high = found.interval()
    values_of_group = numbers(pairs.groupby([pairs["knob"], pairs["group"]])["a"].transform("size"))
    _, low_of_all, high_of_all = found.interval(1 - (1 - CONFIDENCE) / values_of_group)
    return pairs.assign(
        distance=np.abs(found.difference),
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        low_of_all=low_of_all,
        high_of_all=high_of_all,
        scope=found.scope,
        starts=found.starts,
        verdict=verdict,
        starts_needed=needed,
        starts_needed_at_least=least,
        bimodal=found.bimodal,
    )


def _groups(summary: pd.DataFrame, column: str, others: list[str]) -> pd.DataFrame:
    """Cells that differ from other cells only in the knob, ordered by `group` and the knob's value."""
    alike = [name for name in (*PLACE, *ENVIRONMENT, *others) if name != column]
    rows = summary[summary[column].notna()]
    group = rows.groupby(alike, dropna=False, sort=False).ngroup()
    rows = rows.assign(group=group, knob=column, value=rows[column].map(knob_text)).sort_values(["group", column])
    return rows[rows["group"].duplicated(keep=False)].reset_index(drop=True)


def _pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """All pairs of rows of one group, `b` above `a`: the row numbers `a` and `b`, and the numbers of their samples."""
    numbered = rows[["group", "sample", "knob"]].assign(row=np.arange(len(rows)), first=~rows["group"].duplicated())
    pairs = numbered.merge(numbered.drop(columns=["knob", "first"]), on="group", suffixes=("_b", "_a"))
    pairs = pairs[pairs["row_a"] > pairs["row_b"]].rename(columns={"row_a": "a", "row_b": "b"})
    return pairs.reset_index(drop=True)

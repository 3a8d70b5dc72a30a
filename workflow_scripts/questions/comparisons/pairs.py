"""Which cells of a study differ in one thing alone, and what each pair of them shows.

`pairs` is the one place where pairs of cells are formed. What differs is a column of the cells: a knob, the model, the
environment, the device, the engine, or the run of the study.
"""

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from workflow_scripts.catalog.environments import DEFAULT
from workflow_scripts.engines.hf.knobs import HF_CONTINUOUS, HF_STATIC
from workflow_scripts.engines.registry import without_environment
from workflow_scripts.engines.vllm.knobs import VLLM, VLLM_SERVE
from workflow_scripts.statistics.comparisons import CHANGES, FLAT, NOT_DECIDED, Comparisons
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks, decide
from workflow_scripts.statistics.samples import Samples
from workflow_scripts.statistics.variation import mean_of
from workflow_scripts.study.study import Starts
from workflow_scripts.tables.summary import (
    ENVIRONMENT,
    PLACE,
    RATE,
    STEADY,
    WORK,
    Summaries,
    comparable_rows,
    knob_columns,
    knob_text,
)
from workflow_scripts.workloads.arrivals import Load

ALIKE = ("study", "source", "gpu", "engine", "model", "workload")
# Of a knob with more values, each is compared with the first and with its neighbours: pairs grow with their square.
MANY_VALUES = 16
# What cells may differ in, beside a knob.
MODEL, AT, GPU, ENGINE, SERVER, RUN = "model", "environment", "gpu", "engine", "server", "run"
# What cells on two devices share, and the engines that are compared; of two the later one is `b`.
_ON_DEVICES = ["study", "source", *ENVIRONMENT, "engine", "model", "dtype", "workload", "knobs", "quantization"]
_ENGINES = (HF_STATIC.name, HF_CONTINUOUS.name, VLLM.name)


def looks_at(starts: Starts, cells: pd.DataFrame) -> Looks:
    """The looks at a study: at the starts that it asks for, and at those that it asked for when it had fewer.

    A plan that measured none of the counted starts was no look at them.
    """
    planned = comparable_rows(cells)["planned_starts"].dropna()
    return Looks(starts.at_least, starts.at_most, len(set(planned) - {starts.in_words}))


def pairs(summary: pd.DataFrame, differ_in: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells in groups that differ in nothing but one column, and all pairs of one group.

    Cells are in the order of `group` and of the column, whose text is `value`. Pairs are row numbers `a` and `b`, with
    the numbers of their samples; `first` marks those with the first of their group. Of two devices `b` is the faster
    one over all that both measured; of runs it is the last one.
    """
    rows = grouped(summary, differ_in)
    numbered = rows[["group", "sample"]].assign(row=np.arange(len(rows)), first=~rows["group"].duplicated())
    sides = [(numbered, numbered)]
    if differ_in == ENGINE:
        sides = list(combinations((numbered[rows["engine"] == name] for name in _ENGINES), 2))
    elif differ_in == SERVER:
        is_vllm = rows["engine"] == VLLM_SERVE.name
        sides = [(numbered[~is_vllm], numbered[is_vllm])]
    elif differ_in == RUN:
        is_last = rows[RUN] == summary[RUN].max()
        sides = [(numbered[~is_last], numbered[is_last])]
    found = pd.concat(
        [a.merge(b.drop(columns="first"), on="group", suffixes=("_a", "_b")) for a, b in sides], ignore_index=True
    )
    if differ_in not in (ENGINE, SERVER, RUN):
        found = found[found["row_a"] < found["row_b"]]
        few = found["group"].map(rows["group"].value_counts()) <= MANY_VALUES
        found = found[few | found["first"] | (found["row_b"] == found["row_a"] + 1)]
    found = found.rename(columns={"row_a": "a", "row_b": "b"}).reset_index(drop=True)
    return rows, _faster_last(rows, found) if differ_in == GPU else found


def _faster_last(rows: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    a, b = (rows.iloc[found[side]].reset_index(drop=True) for side in "ab")
    devices = [a["study"], a["source"], a["gpu"], b["gpu"].rename("other")]
    falls = (b["log_mean"] - a["log_mean"]).groupby(devices).transform("mean") <= 0
    turned = {"a": found["b"], "b": found["a"], "sample_a": found["sample_b"], "sample_b": found["sample_a"]}
    return found.assign(**{name: column.where(falls, found[name]) for name, column in turned.items()})


def grouped(summary: pd.DataFrame, differ_in: str) -> pd.DataFrame:
    """Cells that differ from other cells only in one column, ordered by `group` and its value. Cells that leave a knob
    to the engine are the first, `default`, if others set it; not of a switch, which is on or off, and not of a load."""
    if differ_in == ENGINE:
        rows = summary[summary["engine"].isin(_ENGINES)]
        rows = rows.assign(value=rows["engine"] + "/" + rows["knobs"])
        return _numbered(rows, list(PLACE), [])
    if differ_in == SERVER:
        served = summary.reindex(columns=list(dict.fromkeys([*summary, "knob_users", "knob_endpoint"])))
        rows = served[served["knob_users"].notna()]
        rows = rows.assign(value=rows["knob_endpoint"].fillna(rows["engine"]))
        return _numbered(rows, [*PLACE, *ENVIRONMENT, "knob_users", *WORK], [])
    if differ_in == RUN:
        return _numbered(summary.assign(value=summary[RUN]), ["cell_id"], [RUN])
    if differ_in == GPU:
        return _numbered(summary.assign(value=summary["gpu"]), [*_ON_DEVICES, "max_concurrency_allowed"], ["gpu"])
    rows = by_environment(summary) if differ_in == AT else summary
    alike = [name for name in (*ALIKE, *ENVIRONMENT, *knob_columns(summary)) if name != differ_in]
    given = rows[differ_in].notna()
    is_switch = pd.api.types.is_bool_dtype(rows.loc[given, differ_in].infer_objects())
    if not is_switch and differ_in.removeprefix("knob_") not in Load.model_fields:
        given = given.groupby([rows[name] for name in alike], dropna=False, sort=False).transform("any")
    rows = rows[given]
    value = [knob_text(value) if pd.notna(value) else DEFAULT for value in rows[differ_in]]
    return _numbered(rows.assign(value=value), alike, [differ_in])


def _numbered(rows: pd.DataFrame, alike: list[str], by: list[str]) -> pd.DataFrame:
    rows = rows.assign(group=rows.groupby(alike, dropna=False, sort=False).ngroup())
    rows = rows.sort_values(["group", *by], na_position="first", kind="stable")
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


def compared_pairs(
    cells: Summaries, margin_pct: float, looks: Looks = ONE_LOOK, metric: str = RATE
) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """For each column that was varied, of a knob, the model or the environment: its cells and their `pairs`, with what
    the comparison of each shows.

    Verdicts allow for all pairs of a knob. Cells whose requests differ are compared by the steady rate instead of
    the output rate, if all of the group have one.
    """
    summary, _ = cells(metric)
    found = {column: pairs(summary, column) for column in (*knob_columns(summary), MODEL, AT)}
    found = {column: (rows, two) for column, (rows, two) in found.items() if len(two)}
    if not found:
        return []
    of_columns = [
        two.assign(column=column, metric=two["group"].map(_metric(rows)) if metric == RATE else metric)
        for column, (rows, two) in found.items()
    ]
    # Of the pairs, of which there may be half a million, no further copies are kept.
    decided = pd.concat(
        shown_by(cells(str(name))[1], of_column, margin_pct, looks)
        for (_, name), of_column in pd.concat(of_columns, ignore_index=True).groupby(["column", "metric"])
    ).sort_index()
    parts = decided.groupby("column")
    return [(column, rows, parts.get_group(column).reset_index(drop=True)) for column, (rows, _) in found.items()]


def _metric(rows: pd.DataFrame) -> pd.Series:
    """The rate by which each group is compared: the steady one if its cells had other requests and all have it."""
    groups = rows.groupby("group")
    differs = (groups[list(WORK)].nunique() > 1).any(axis=1)
    steady = groups[STEADY].count() == groups.size()
    return (differs & steady).map({True: STEADY, False: RATE})


def shown_by(samples: Samples, pairs: pd.DataFrame, margin_pct: float, looks: Looks) -> pd.DataFrame:
    """The pairs with what they show, which are all that one error is for."""
    a, b = (pairs[name].to_numpy() for name in ("sample_a", "sample_b"))
    decided = decide(samples, b, a, margin_pct, looks)
    return pairs.assign(
        **columns_of(decided.found, samples, pairs),
        **{"verdict": decided.verdict, "starts_needed": decided.needed},
        # A study with a fixed number of starts gets no further ones.
        starts_needed_at_least=decided.least if looks.at_least < looks.at_most else np.nan,
    )


def columns_of(found: Comparisons, samples: Samples, pairs: pd.DataFrame) -> dict[str, npt.NDArray[Any]]:
    """The means of pairs, their ratios with intervals, and the least size of each, NaN if 1 is not excluded."""
    means = {f"mean_{side}": np.exp(mean_of(samples.log[pairs[f"sample_{side}"].to_numpy()])) for side in "ab"}
    names, at_least = ("ratio", "low", "high", "again_low", "again_high"), found.at_least()
    ends = dict(zip(names, (*found.interval(), *found.another_run()), strict=True))
    at_least = np.where(at_least > 1, at_least, np.nan)
    return means | ends | {"scope": found.scope, "starts": found.starts, "at_least": at_least}


def overall(comparisons: pd.DataFrame, name: str) -> pd.DataFrame:
    """One row per group of cells that differ in the setting `name` alone, from the table of comparisons by their rate:
    the pair that is furthest apart, the faster in `b`.

    The `verdict` is `flat` if every pair is, and `changes` if any is; then the pair is the one of these that is
    furthest apart.
    """
    rows = comparisons[comparisons["name"].eq(name) & comparisons["metric"].isin([RATE, STEADY])]
    rows = rows[rows["verdict"].notna() & rows["group"].notna()].reset_index(drop=True)
    rows = rows.assign(beyond=rows["verdict"] == CHANGES, size=np.abs(np.log(rows["ratio"].astype(float))))
    flat = rows["verdict"].eq(FLAT).groupby(rows["group"]).all()
    ends = rows.sort_values(["group", "beyond", "size"], kind="stable").groupby("group").tail(1)
    ends = pd.concat([ends[ends["ratio"] >= 1], turned(ends[ends["ratio"] < 1])]).sort_values("group")
    is_flat, is_beyond = ends["group"].map(flat).to_numpy(bool), ends["beyond"].to_numpy(bool)
    return ends.assign(verdict=np.select([is_flat, is_beyond], [FLAT, CHANGES], NOT_DECIDED))


def turned(rows: pd.DataFrame) -> pd.DataFrame:
    """The comparisons with their sides turned round: every ratio is of `a` over `b`."""
    swapped = {
        name: f"{name[:-1]}{'b' if name[-1] == 'a' else 'a'}" for name in map(str, rows) if name[-2:] in ("_a", "_b")
    }
    found = rows.rename(columns=swapped | {"a": "b", "b": "a"})
    inverse = {"ratio": "ratio", "low": "high", "high": "low", "again_low": "again_high", "again_high": "again_low"}
    return found.assign(**{name: 1 / rows[other] for name, other in inverse.items()})

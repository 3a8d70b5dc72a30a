"""The fastest setting of each device, model and workload, as a table."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import listed, number, plural, sentence
from workflow_scripts.present.blocks import UNKNOWN, Fold, Table
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import RATE, Tables, records
from workflow_scripts.present.series import PLACES, means
from workflow_scripts.present.words import duration, span
from workflow_scripts.study.setting_words import settings_in_words

TIMES, WAIT = ("tpot_s_p50", "ttft_s_p50"), "queue_s_p50"
# A wait for a free place is told if it is more than this share of the time to the first token.
WORTH_SAYING = 0.05
HEADINGS = [
    "Model and workload",
    "Device",
    "Fastest setting",
    "Output tokens/s",
    "Per token",
    "First token",
    "Of ceiling",
]
MOST_OPEN = 10
NOTE = "Means over starts (95 % interval). Settings of a row are not shown to differ. First tokens include waiting."


def best_settings(report: Report) -> Table | Fold | None:
    """The table, the largest model with the most work first; None if no cell has a rate."""
    tables, recommended = report.tables, report.tables.get("recommendations")
    cells = report.grid[(report.grid["outcome"] == "ok") & report.grid["comparable"].eq(True)]
    known = [name for name in (RATE, *TIMES, WAIT) if name in tables.cells]
    means_of = means(tables.cells, known).reindex(columns=[RATE, *TIMES, WAIT])
    cells = cells[cells["cell_id"].isin(means_of.index[means_of[RATE].notna()])]
    if cells.empty:
        return None
    rows: list[list[str]] = []
    for names, of_place in cells.groupby(PLACES, sort=False):
        best = [] if recommended is None else records(recommended[(recommended[PLACES] == list(names)).all(axis=1)])
        rows.append(_row(tables, of_place, means_of, next((r for r in best if r["role"] == "best_throughput"), None)))
    order = _weight(tables, cells)
    rows.sort(key=lambda row: order[row[0], row[1]], reverse=True)
    table = Table("Fastest settings", HEADINGS, rows, [False] * 3 + [True] * 4, NOTE)
    return table if len(rows) <= MOST_OPEN else Fold(f"Fastest settings of {len(rows)} combinations", [table])


def _weight(tables: Tables, cells: pd.DataFrame) -> dict[tuple[str, str], tuple[float, float]]:
    """For each model and workload, and device, how large the model is and how many tokens it generated."""
    rows = tables.cells[tables.cells["cell_id"].isin(cells["cell_id"])]
    size = rows.groupby("model")["model_weights_gib"].max() if "model_weights_gib" in rows else pd.Series(dtype=float)
    work = rows.assign(tokens=rows[RATE] * rows["wall_s"]).groupby(PLACES)["tokens"].sum()
    return {
        (f"{model}, {workload}", gpu): (float(size.fillna(0).get(model, 0)), float(tokens))
        for gpu, model, workload, tokens in work.reset_index().itertuples(index=False, name=None)
    }


def _row(tables: Tables, cells: pd.DataFrame, means_of: pd.DataFrame, best: dict[str, Any] | None) -> list[str]:
    """The row of a place; it does not depend on which of several tied settings has the highest mean.

    Without a recommendation it is the setting with the highest mean, which no test compared with the others.
    """
    first = cells.iloc[0]
    if best is None:
        members = cells[cells["cell_id"] == means_of.loc[cells["cell_id"], RATE].idxmax()]
        words = f"{first['engine']}: {best_in_words(members, cells, tables.knobs)}"
    else:
        cells = cells[cells["engine"].isin(cells.loc[cells["cell_id"] == best["cell_id"], "engine"])]
        ties = best["ties"].split(", ") if isinstance(best["ties"], str) else []
        members = cells[cells["knobs"].isin([best["knobs"], *ties])]
        words = best_in_words(members, cells, tables.knobs)
    of_them = means_of.loc[members["cell_id"]]
    rate = span(of_them[RATE])
    if best is not None and len(members) == 1 and (ends := span([best[f"{RATE}_low"], best[f"{RATE}_high"]])):
        rate = f"{number(best[RATE])} ({ends})"
    times = [of_them[name].dropna() for name in TIMES]
    latencies = [duration(values.min(), values.max()) if len(values) else UNKNOWN for values in times]
    waits = of_them[WAIT].dropna()
    if len(waits) and waits.max() > WORTH_SAYING * times[1].max():
        latencies[1] += f", waits {duration(waits.min(), waits.max())}"
    return [f"{first['model']}, {first['workload']}", first["gpu"], words, rate, *latencies, _of_limit(tables, members)]


def best_in_words(members: pd.DataFrame, cells: pd.DataFrame, knobs: Sequence[str]) -> str:
    """The best setting in words; `members` are the best cell and those not shown to be slower, `cells` all of them."""
    varied = [knob for knob in knobs if cells[knob].nunique(dropna=False) > 1]
    if len(cells) == 1:
        only = settings_in_words(members, [knob for knob in knobs if members[knob].notna().any()])[0]
        return f"{sentence(only)} (the only one)"
    if len(members) == 1:
        return f"{sentence(settings_in_words(members, varied)[0])} (of {len(cells)})"
    if len(members) == len(cells):
        return f"No difference shown between {len(cells)} settings"
    fixed = [knob for knob in varied if members[knob].nunique(dropna=False) == 1]
    moving = [knob for knob in varied if knob not in fixed]
    values = members[fixed].astype("string").fillna("").iloc[0]
    alike = (cells[fixed].astype("string").fillna("") == values).all(axis=1)
    if fixed and alike.sum() == len(members):
        tied = listed(settings_in_words(members.sort_values(moving), moving), "or")
        return f"{sentence(settings_in_words(members.head(1), fixed)[0])}; {tied}"
    return f"{plural(len(members), 'setting')} tied, of {len(cells)}"


def _of_limit(tables: Tables, members: pd.DataFrame) -> str:
    limits = tables.get("limits")
    if limits is None:
        return UNKNOWN
    rows = limits[limits["cell_id"].isin(members["cell_id"]) & limits["factor"].notna()]
    # If a device's rates have two sources, the data sheet is preferred.
    rows = rows[rows["rates"] == rows["rates"].min()]
    return f"{span(100 * rows.groupby('cell_id')['factor'].median())} %" if len(rows) else UNKNOWN

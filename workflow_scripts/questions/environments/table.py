"""Write what differs between environments, although the study asks for the same."""

import json
from collections import defaultdict
from statistics import median
from typing import Any

import pandas as pd

from workflow_scripts.questions.knobs.pairs import AT, by_environment, knob_groups
from workflow_scripts.statistics.summary import Row, comparable_rows, knob_columns, records
from workflow_scripts.tables.differences import by_itself, value_text
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import INTEGER, TEXT, table_schema

SCHEMA = table_schema(
    "environments",
    "What took effect otherwise in an environment than in the baseline. One row per environment and setting.",
    TEXT("study source gpu engine", "shared by the cells"),
    TEXT("environment baseline", "the compared environments; the baseline is `default`, else the first"),
    TEXT("setting", "a key of `effective` in `cells`, or its column; `start_s`: medians"),
    TEXT("value baseline_value", "in the first cell that differs"),
    INTEGER("cells compared", "cells that differ, of so many compared"),
    INTEGER("other_pairs", "further pairs of values among these cells"),
)
# Columns of the cells table beside its column `effective`.
_BESIDE_EFFECTIVE = ("outcome", "engine_version", "kv_cache_tokens")
_PLACE = ("study", "source", "gpu", "engine")


def environment_changes(cells: pd.DataFrame) -> pd.DataFrame:
    """The table of what differs between the first environment of each group of cells and the others."""
    start_s = comparable_rows(cells).drop_duplicates(["cell_id", "start"]).groupby("cell_id")["start_s"].mean()
    rows = cells[cells["comparable"].fillna(False) & cells["outcome"].ne("missing")]
    rows = rows.assign(failed=rows["outcome"].ne("ok"), start_s=rows["cell_id"].map(start_s))
    rows = rows.sort_values("failed", kind="stable")  # one row of each cell counts, of a start that ended ok if any did
    pairs = defaultdict(list)
    for _, group in knob_groups(by_environment(rows), AT, knob_columns(rows)).groupby("group"):
        baseline, *others = records(group)
        for cell in others:
            pairs[(*(cell[name] for name in _PLACE), cell["value"], baseline["value"])].append((baseline, cell))
    changes = []
    for key, of in pairs.items():
        place = dict(zip((*_PLACE, "environment", "baseline"), key, strict=True)) | {"compared": len(of)}
        changes += [
            {**place, "setting": d.what, "value": value_text(d.b), "baseline_value": value_text(d.a)}
            | {"cells": d.cells, "other_pairs": d.others}
            for d in by_itself((_settings(baseline), _settings(cell)) for baseline, cell in of)
        ]
        starts = [[cell["start_s"] for cell in side if pd.notna(cell["start_s"])] for side in zip(*of, strict=True)]
        if all(starts):
            there, here = (f"{median(of_side):.3g}" for of_side in starts)
            place |= {"setting": "start_s", "value": here, "baseline_value": there, "other_pairs": 0}
            changes.append(place | {"cells": min(map(len, starts))})
    return pd.DataFrame(changes, columns=list(SCHEMA.columns))


def _settings(cell: Row) -> dict[str, Any]:
    settings: dict[str, Any] = {} if pd.isna(cell["effective"]) else json.loads(cell["effective"])
    return settings | {name: cell[name] for name in _BESIDE_EFFECTIVE if not pd.isna(cell[name])}


@makes(SCHEMA, needed=lambda inputs: any(cell.environment for cell in inputs.grid))
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    return environment_changes(inputs.cells)

"""Compare knobs, models and environments by throughput, and say whether they took effect.

Compared cells differ in exactly one knob, in the model or in the environment. docs/tables.md documents every column,
docs/statistics.md the tests.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.knob import Knob
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.questions.knobs.pairs import (
    ALIKE,
    AT,
    MODEL,
    STEADY_RATIO,
    WHILE_FULL,
    WORK,
    compared_pairs,
    looks_at,
)
from workflow_scripts.questions.waiting.table import WITHOUT_WAITING, with_device_ratio
from workflow_scripts.statistics.comparisons import ANOTHER_RUN, CHANGES, FLAT, NOT_DECIDED, SCOPE_MEANING, log_margin
from workflow_scripts.statistics.further_starts import ONE_LOOK, Looks
from workflow_scripts.statistics.summary import RATE, knob_columns, knob_text, records
from workflow_scripts.tables.table_maker import TableInputs, makes
from workflow_scripts.tables.typed_tables import FLAG, INTEGER, NUMBER, TEXT, table_schema

PAIR, OVERALL = "pair", "overall"
EQUAL, DIFFERS = "equal", "differs"
# Columns that make sense only for rates.
OF_RATES = ("whole_ratio", *STEADY_RATIO, "fastest", "fastest_decided")


SCHEMA = table_schema(
    "knobs",
    "The effect of each knob on the output rate, from cells that differ only in one knob, in the model or in the "
    "environment. `pair`: a value against the baseline: `default`, `false` or the smallest value. `overall`: the two "
    "values furthest apart, the faster in `value`, with a verdict over all pairs.",
    TEXT("study source gpu engine model workload", "shared by the cells; if models differ, that of `value`"),
    TEXT("held", "the other knobs, e.g. `block_size=32`"),
    TEXT("knob", "the knob that differs, `model` or `environment`"),
    TEXT("comparison", "`pair` or `overall`"),
    TEXT("value baseline", "the compared values"),
    TEXT("values", "all values of the group, in order"),
    TEXT("fastest", "`overall`: the values that no other is shown to exceed by more than the margin"),
    FLAG("fastest_decided", "whether `fastest` is one value, or several of which all pairs are `flat`"),
    TEXT("cell_id baseline_cell_id", "the cells of `value` and `baseline`"),
    INTEGER("repeats baseline_repeats", "valid repeats of all starts"),
    INTEGER("starts", "starts of both in the same rounds"),
    TEXT("work", "`equal` (requests, prompt tokens and output tokens) or `differs`"),
    TEXT(
        "metric",
        "the compared rate: `output_tokens_per_s`, or `steady_output_tokens_per_s` if the work differs "
        "and all cells have it",
    ),
    NUMBER("rate baseline_rate", "of `value` and `baseline`, geometric mean over the starts"),
    NUMBER("whole_ratio", "ratio of `output_tokens_per_s`, with ramp-up and drain"),
    WHILE_FULL,
    NUMBER("ratio ratio_low ratio_high", "rate of `value` over that of `baseline`, with its 95 % interval"),
    NUMBER("ratio_again_low ratio_again_high", ANOTHER_RUN),
    TEXT("scope", SCOPE_MEANING),
    WITHOUT_WAITING,
    TEXT("verdict", "`flat`: shown to be within the margin; `changes`: shown to be beyond it; `not decided`"),
    NUMBER("margin_pct", "the study's `equivalence_margin_pct`"),
    NUMBER("level_pct", "error probability of this look at the data"),
    INTEGER(
        "starts_needed", "further starts per cell that would decide with the same means and variances; null above 100"
    ),
    TEXT("shown baseline_shown", "the column that shows the knob at the two, e.g. `running_peak`"),
    FLAG("took_effect", "whether that column differs"),
    TEXT(
        "moved_with_it",
        "other settings that differ; set them to compare only the knob; null for environments (`environments`)",
    ),
    TEXT(
        "bound_by",
        "what kept more sequences from running at `value`: `sequences` (the settings), `prompts` (all requests ran), "
        "`kv_blocks` (preemptions, or requests waited with 95 % of the blocks in use), `token_budget`",
    ),
)

# The model and the environment count as knobs.
_OTHERS = {MODEL: Knob(MODEL, settles=("dtype", "quantization")), AT: Knob(AT)}
# Settings that follow from many others and have their own column or table.
_FOLLOWS = {"num_gpu_blocks", "kv_cache_bytes", "client_cores", "client_shares_cores"}


def knob_effects(cells: pd.DataFrame, margin_pct: float, looks: Looks = ONE_LOOK, metric: str = RATE) -> pd.DataFrame:
    """The effects table: for every knob, the model and the environment, the groups of cells that differ in it alone.

    In each group, every value is compared with the baseline (`default`, which the study leaves to the engine, else
    false or the smallest value), then all values together, by the column `metric`.
    """
    knobs = knob_columns(cells)
    parts = [
        _effects_of(rows, pairs, column, [other for other in knobs if other != column], margin_pct)
        for column, rows, pairs in compared_pairs(cells, margin_pct, looks, metric)
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(SCHEMA.columns))


def _effects_of(
    rows: pd.DataFrame, pairs: pd.DataFrame, column: str, others: list[str], margin_pct: float
) -> pd.DataFrame:
    knob = column.removeprefix("knob_")
    described = every_knob().get(knob) or _OTHERS[knob]
    seen = rows[described.shown_in] if described.shown_in else pd.Series(pd.NA, rows.index, dtype="string")
    rows = rows.assign(
        values=rows.groupby("group")["value"].transform(", ".join),
        held=[
            ", ".join(f"{name.removeprefix('knob_')}={knob_text(of[name])}" for name in others if not pd.isna(of[name]))
            for of in records(rows)
        ],
        shown=seen.map(knob_text, na_action="ignore"),
        seen=seen.convert_dtypes(),
    )
    effects = pd.concat([pairs[pairs["first"]].assign(comparison=PAIR), _overall(rows, pairs, margin_pct)])
    effects = effects.sort_values("group", kind="stable").reset_index(drop=True)
    a, b = (rows.iloc[effects[side]].reset_index(drop=True) for side in "ab")
    is_pair = effects["comparison"] == PAIR
    groups = rows.groupby("group").indices
    compared = [
        (baseline, value) if pair else groups[group]
        for pair, group, value, baseline in zip(is_pair, *(effects[of] for of in ("group", "a", "b")), strict=True)
    ]
    served = list(zip(*(rows[name] for name in WORK), strict=True))
    effective = [None if knob == AT else text for text in rows["effective"]]
    left_out = {knob, *described.settles} | _FOLLOWS
    return effects.assign(
        **{name: a[name] for name in (*ALIKE, "cell_id", "repeats", "held", "values", "value", "shown")},
        **{f"baseline_{name}": b[name] for name in ("cell_id", "repeats", "shown")},
        baseline=b["value"],
        knob=knob,
        margin_pct=margin_pct,
        took_effect=a["seen"].ne(b["seen"]).astype("boolean").where(is_pair, effects["took_effect"]),
        bound_by=a["bound_by"].where(is_pair, effects["bound_by"]),
        work=pd.array([_work({served[row] for row in of}) for of in compared], "string"),
        moved_with_it=pd.array([_moved([effective[row] for row in of], left_out) for of in compared], "string"),
    ).reindex(columns=list(SCHEMA.columns))


def _work(served: set[tuple[int, ...]]) -> str | None:
    """Whether cells served the same requests; None if it is not known of one of them."""
    if any(pd.isna(count) for counts in served for count in counts):
        return None
    return EQUAL if len(served) == 1 else DIFFERS


def _moved(effective: Sequence[str | None], left_out: set[str]) -> str | None:
    """Settings that differ between cells, except those left out, e.g. `max_num_batched_tokens 512 -> 4,096`; or None.

    `effective` is that column of the cells. A setting that one cell does not report is ignored.
    """
    if any(pd.isna(text) for text in effective):
        return None
    settings = [_settings(str(text)) for text in dict.fromkeys(effective)]
    moved = {
        name: dict.fromkeys(of[name] for of in settings)
        for name in sorted(set.intersection(*map(set, settings)) - left_out)
    }
    return "; ".join(f"{name} {' -> '.join(texts)}" for name, texts in moved.items() if len(texts) > 1) or None


@lru_cache(maxsize=10_000)
def _settings(effective: str) -> dict[str, str]:
    return {name: _text(of) for name, of in json.loads(effective).items()}


def _text(setting: Any) -> str:
    if type(setting) in (int, float):
        return f"{setting:,.10g}"
    return setting if isinstance(setting, str) else json.dumps(setting)


def _overall(rows: pd.DataFrame, pairs: pd.DataFrame, margin_pct: float) -> pd.DataFrame:
    """One row per group: its two values that are furthest apart, with a verdict over all pairs of the group.

    It is `flat` if every pair is, and `changes` if any pair changes; the row then shows the one of these that is
    furthest apart, with the interval of this pair.
    """
    pairs = pairs.assign(beyond=pairs["verdict"] == CHANGES, flat=pairs["verdict"] == FLAT)
    ends = pairs.sort_values(["group", "beyond", "distance"], kind="stable").groupby("group").tail(1)
    flat = pairs.groupby("group")["flat"].all()
    falls = (ends["ratio"] < 1).to_numpy()
    inverse = {"a": ends["b"], "b": ends["a"], "rate": ends["baseline_rate"], "baseline_rate": ends["rate"]}
    inverse |= {of: 1 / ends[of] for of in ("ratio", "whole_ratio", "steady_ratio")}
    for of in ("ratio", "ratio_again", "steady_ratio"):
        inverse |= {f"{of}_low": 1 / ends[f"{of}_high"], f"{of}_high": 1 / ends[f"{of}_low"]}
    ends = ends.assign(**{name: np.where(falls, turned, ends[name]) for name, turned in inverse.items()})

    slower = np.where(pairs["ratio"] > 1, pairs["b"], pairs["a"])[pairs["beyond"]]
    fastest = rows[~rows.index.isin(slower)].groupby("group")["value"].agg(", ".join)
    undecided = pairs[~(pairs["flat"] | pairs["a"].isin(slower) | pairs["b"].isin(slower))]

    verdict = np.select([flat, ends["beyond"]], [FLAT, CHANGES], NOT_DECIDED)
    # With more starts, values further apart than the margin can only become a change, the others only flat: that is
    # when all pairs of the group are, which is never (NaN) if one pair never is.
    to_flat = pairs["starts_needed"].fillna(np.inf).groupby(pairs["group"]).max().replace(np.inf, np.nan)
    needed = np.where(ends["distance"] > log_margin(margin_pct), ends["starts_needed"], to_flat)
    groups = rows.groupby("group")
    bounds = groups["bound_by"].agg(lambda of: ", ".join(sorted(set(of.dropna()))))
    differs, unknown = groups["seen"].nunique() > 1, groups["seen"].count() < groups.size()
    return ends.assign(
        comparison=OVERALL,
        verdict=verdict,
        fastest=fastest.reindex(ends["group"], fill_value="").array,
        fastest_decided=(~ends["group"].isin(undecided["group"])).astype("boolean"),
        starts_needed=np.where(verdict == NOT_DECIDED, needed, 0.0),
        # Null if only an unknown value might differ.
        took_effect=differs.astype("boolean").mask(~differs & unknown).array,
        bound_by=bounds.mask(bounds == "").array,
    )


@makes(SCHEMA)
def make_tables(inputs: TableInputs) -> pd.DataFrame:
    cells, margin_pct = inputs.cells, inputs.study.equivalence_margin_pct
    effects = knob_effects(cells, margin_pct, looks_at(inputs.study.starts, cells))
    a, b = effects["cell_id"], effects["baseline_cell_id"]
    return with_device_ratio(effects, a, b, inputs.table("waiting"), margin_pct)

"""Which knobs of a study can matter at all, by its forecast: compares cells that differ in one knob only."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workflow_scripts.common.knob import Limit
from workflow_scripts.engines.registry import every_knob
from workflow_scripts.predict.prediction_record import KV_BLOCKS, PROMPTS, TOKEN_BUDGET
from workflow_scripts.study.grid import Cell

# Predicted rates that differ by less count as the same.
NOTICEABLE_PCT = 0.5
COLUMNS = ("gpu", "engine", "model", "workload", "knob", "values", "spread_pct", "verdict", "why")
# A limit that is reached for a smaller share of the time is hardly tested.
HARDLY_TRIED = 0.5
MOST_VALUES = 8
# A knob that changes no step may still select other kernels, which a schedule does not know.
MATTERS, CANNOT, NO_STEP, OPEN = "can matter", "cannot matter", "changes no step", "not predicted"


def knob_effects(cells: Sequence[Cell], forecast: pd.DataFrame) -> pd.DataFrame:
    """One row for each knob that a study varies for a GPU, engine, model and workload, with the columns `COLUMNS`.
    `spread_pct`: how much faster the fastest value is than the slowest, in predicted output tokens/s; the largest such
    difference between cells that agree in all other knobs and are predicted from the same source."""
    knob_rows = [{f"knob_{name}": value for name, value in cell.knobs.set_values().items()} for cell in cells]
    settings = pd.DataFrame(knob_rows, index=[cell.id for cell in cells], dtype=object)
    table = forecast.set_index("cell_id").join(settings)
    knobs = [name for name in table if str(name).startswith("knob_")]
    rows = []
    for names, part in table.groupby(["gpu", "engine", "model", "workload"], sort=False):
        for knob in knobs:
            values = list(dict.fromkeys(part[knob].dropna()))
            if len(values) > 1:
                effect = _effect(part, str(knob), [str(other) for other in knobs if other != knob])
                rows.append([*names, str(knob).removeprefix("knob_"), _shown(values), *effect])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _shown(values: list[Any]) -> str:
    """Values of a knob in order; if there are many, the first ones and the last.

    >>> _shown([16, 8, 32]), _shown([i / 100 for i in range(50, 96)])
    ('8, 16, 32', '0.5, 0.51, ... 0.95 (46 values)')
    """
    ordered = sorted(values, key=lambda value: (isinstance(value, str), value))
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in ordered]
    if len(texts) > MOST_VALUES:
        return f"{texts[0]}, {texts[1]}, ... {texts[-1]} ({len(texts)} values)"
    return ", ".join(texts)


def _effect(part: pd.DataFrame, knob: str, others: Sequence[str]) -> tuple[float | None, str, str]:
    known = part[part["output_tokens_per_s"].notna()]
    if known.empty:
        return None, OPEN, "none of these cells is predicted"
    # Rates of a calibration and of a data sheet differ by more than most knobs, so they are never compared.
    key = known[[*others, "speed_source"]].astype(str).agg("|".join, axis=1)
    rates = known["output_tokens_per_s"].astype(float).groupby(key)
    several = known[knob].groupby(key).nunique() > 1
    if not several.any():
        return None, OPEN, "no two feasible cells differ in it alone"
    spread = float(100 * (rates.max() / rates.min() - 1)[several].max())
    if spread < NOTICEABLE_PCT:
        why = _why_not(known, knob)
        return spread, CANNOT if why else NO_STEP, why or "only kernels, which are not modelled, can differ"
    return spread, MATTERS, _up_to(known, knob)


def _why_not(known: pd.DataFrame, knob: str) -> str:
    """Why the knob cannot matter: what never becomes a limit; empty if the steps only happen to be the same."""
    limits = _limit_of(knob)
    if limits == "sequences":
        return _up_to(known, knob)
    if limits == "kv_cache" and KV_BLOCKS not in set(known["bound_by"].dropna()):
        return "KV blocks never run short"
    if limits == "prefixes" and not known["cached_tokens"].astype(float).any():
        return "prompts share no whole block"
    return ""


def _limit_of(knob: str) -> Limit | None:
    return every_knob()[knob.removeprefix("knob_")].limits


def _up_to(known: pd.DataFrame, knob: str) -> str:
    """For a limit on sequences: from which value on something else limits, and how many prompts would fill more."""
    if _limit_of(knob) != "sequences":
        return ""
    numbers = known.astype(dict.fromkeys(["running_peak", "max_num_seqs", "full_share", "prompts_to_fill"], float))
    idle = numbers[numbers["running_peak"] < numbers["max_num_seqs"]]
    if idle.empty:
        highest = numbers["max_num_seqs"].max()
        share = numbers.loc[numbers["max_num_seqs"] == highest, "full_share"].max()
        hardly = f"; {highest:.0f} only for less than half of the time, so more prompts would test it better"
        return "every value is reached" + (hardly if share < HARDLY_TRIED else "")
    peak, lowest, highest_idle = (
        int(value) for value in (idle["running_peak"].max(), idle["max_num_seqs"].min(), idle["max_num_seqs"].max())
    )
    needed = idle["prompts_to_fill"].max()
    more = f"; {needed:.0f} prompts would fill {highest_idle}" if needed == needed else ""
    return f"from {lowest} on {_what(idle)}: at most {peak} run at once{more}"


def _what(idle: pd.DataFrame) -> str:
    words: Mapping[str, str] = {
        PROMPTS: "prompts run out",
        KV_BLOCKS: "KV blocks run out",
        TOKEN_BUDGET: "the token budget is used up",
    }
    return " or ".join(words[bound] for bound in dict.fromkeys(idle["bound_by"].dropna()) if bound in words)

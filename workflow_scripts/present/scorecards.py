"""One scorecard per device, model and workload: the best setting, what it delivers, and what that compares with."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from workflow_scripts.common.wording import listed, number, sentence
from workflow_scripts.present.blocks import outcome_words
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import Tables, records
from workflow_scripts.present.words import duration, span
from workflow_scripts.study.setting_words import said, settings_in_words

PLACE = ["gpu", "model", "workload"]
RATE = "output_tokens_per_s"
LATENCIES = {"tpot_s_p50": "Per token", "ttft_s_p50": "First token"}
RATES_FROM = {"datasheet": "data sheet", "measured": "measured rates"}
MOST_TIES_NAMED = 3
ONLY_ONE = "The only setting measured."
# Verdicts that show a difference.
SHOWN = ("changes", "faster", "slower")


@dataclass(frozen=True)
class Fact:
    """A line of a card: what it is, its value with unit, and its interval or what it is compared with."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Card:
    """The results of one device, model and workload."""

    place: str
    best: str
    note: str
    facts: Sequence[Fact]


def scorecards(report: Report) -> list[Card]:
    """The cards in the order of the study."""
    grid, tables = report.grid, report.tables
    recommended = tables.get("recommendations")
    cards = []
    for names, cells in grid.groupby(PLACE, sort=False):
        place = " · ".join(map(str, names))
        measured = cells[(cells["outcome"] == "ok") & cells["comparable"].eq(True)]
        rows = [] if recommended is None else records(recommended[_at(recommended, names)])
        best = [row for row in rows if row["role"] == "best_throughput"]
        if measured.empty:
            counted = cells["outcome"].value_counts()
            became = listed(f"{count} {outcome_words(outcome)}" for outcome, count in counted.items())
            cards.append(Card(place, "Nothing measured", f"Cells: {became}.", []))
        elif best:
            cards += [_card(tables, place, measured, row) for row in best]
        else:
            cards.append(_untested(tables, place, measured))
    return cards


def _at(rows: pd.DataFrame, names: Any) -> "pd.Series[bool]":
    return (rows[PLACE] == list(names)).all(axis=1)


def _card(tables: Tables, place: str, measured: pd.DataFrame, best: dict[str, Any]) -> Card:
    """The card of a place with a recommendation; it does not depend on which of the tied settings is the fastest."""
    engine = measured.loc[measured["cell_id"] == best["cell_id"], "engine"]
    cells = measured[measured["engine"].isin(engine)]
    knobs = [best["knobs"], *((best["ties"] or "").split(", ") if isinstance(best["ties"], str) else [])]
    members = cells[cells["knobs"].isin(knobs)]
    words, note = best_in_words(members, cells, tables.knobs)
    facts = [_rate(tables, members, best)]
    for column, name in LATENCIES.items():
        facts += _latency(tables, members, best, column, name)
    facts += _gain(tables, members)
    facts += _share_of_limit(tables, members)
    return Card(place, words, note, facts)


def best_in_words(members: pd.DataFrame, cells: pd.DataFrame, knobs: Sequence[str]) -> tuple[str, str]:
    """The best setting in words, and a sentence about its ties, if any.

    `members` are the best cell and those not shown to be slower, and `cells` all that were measured.
    """
    varied = [knob for knob in knobs if cells[knob].nunique(dropna=False) > 1]
    if len(cells) == 1:
        only = settings_in_words(members, [knob for knob in knobs if members[knob].notna().any()])[0]
        return sentence(only), ONLY_ONE
    if len(members) == 1:
        return sentence(settings_in_words(members, varied)[0]), f"The fastest of {len(cells)} settings."
    medians = "Numbers are their medians."
    if len(members) == len(cells):
        return "No difference shown", f"Of {len(cells)} settings, none is shown to be faster than another. {medians}"
    fixed = [knob for knob in varied if members[knob].nunique(dropna=False) == 1]
    moving = [knob for knob in varied if knob not in fixed]
    values = members[fixed].astype("string").fillna("").iloc[0]
    alike = (cells[fixed].astype("string").fillna("") == values).all(axis=1)
    if fixed and alike.sum() == len(members):
        tied = listed(settings_in_words(members.sort_values(moving), moving))
        return sentence(settings_in_words(members.head(1), fixed)[0]), f"No difference shown between {tied}. {medians}"
    tied = "; ".join(settings_in_words(members.sort_values(varied), varied)[:MOST_TIES_NAMED])
    more = f"; and {len(members) - MOST_TIES_NAMED} more" if len(members) > MOST_TIES_NAMED else ""
    return f"{len(members)} settings tied", f"No difference shown between: {tied}{more}. {medians}"


def _medians(tables: Tables, members: pd.DataFrame, column: str) -> "pd.Series[float]":
    rows = tables.cells[tables.cells["cell_id"].isin(members["cell_id"])]
    medians: pd.Series[float] = rows.groupby("cell_id")[column].median().dropna()
    return medians


def _rate(tables: Tables, members: pd.DataFrame, best: dict[str, Any]) -> Fact:
    if len(members) > 1:
        return Fact("Output", f"{span(_medians(tables, members, RATE))} tokens/s")
    return Fact("Output", f"{number(best[RATE])} tokens/s", span([best[f"{RATE}_low"], best[f"{RATE}_high"]]))


def _latency(tables: Tables, members: pd.DataFrame, best: dict[str, Any], column: str, name: str) -> Iterator[Fact]:
    if len(members) > 1:
        medians = _medians(tables, members, column)
        if len(medians):
            yield Fact(name, duration(medians.min(), medians.max()))
    elif pd.notna(best[column]):
        low, high = (best.get(f"{column}_{end}") for end in ("low", "high"))
        yield Fact(name, duration(best[column]), duration(low, high) if pd.notna(low) and pd.notna(high) else "")


def _gain(tables: Tables, members: pd.DataFrame) -> Iterator[Fact]:
    """The gain over HuggingFace's fastest setting or, without HuggingFace, over the study's baseline of one knob."""
    pairs = tables.get("engines")
    if pairs is not None:
        place = members.iloc[0]
        pairs = pairs[
            _at(pairs, place[PLACE]) & pairs["comparable"].eq(True) & pairs["vllm_knobs"].isin(members["knobs"])
        ]
        if len(pairs):
            fastest = max(records(pairs), key=lambda pair: pair["hf_output_tokens_per_s"])
            rows = pairs[pairs["hf_knobs"] == fastest["hf_knobs"]].rename(
                columns=lambda c: c.replace("improvement_", "")
            )
            yield _compared(rows, f"HuggingFace, {_kind(fastest)}")
            return
    effects = tables.get("effects")
    if effects is None:
        return
    pairs = pairs_of_values(effects)
    pairs = pairs[pairs["cell_id"].isin(members["cell_id"]) & pairs["ratio"].notna()]
    if len(pairs):
        largest = max(records(pairs), key=lambda pair: abs(math.log(pair["ratio"])))
        rows = pairs[(pairs["knob"] == largest["knob"]) & (pairs["baseline"] == largest["baseline"])]
        yield _compared(rows, said(str(largest["knob"]), str(largest["baseline"])))


def pairs_of_values(effects: pd.DataFrame) -> pd.DataFrame:
    """Pairs of two values of a knob, each with the interval that the findings below show.

    If `overall` shows the same two, it is that interval, which holds although they were selected. If that one contains
    1, the pair's own says more.
    """
    key = ["knob", "cell_id", "baseline_cell_id"]
    pairs = effects[effects["comparison"] == "pair"]
    apart = effects[(effects["comparison"] == "overall") & ((effects["ratio_low"] > 1) | (effects["ratio_high"] < 1))]
    return pd.concat([apart.merge(pairs[key], on=key), pairs]).drop_duplicates(key)


def _kind(row: dict[str, Any]) -> str:
    if row["hf_kind"] == "batch 1":
        return "one request at a time"
    return f"batches of {row['hf_batch_size']:g}" if pd.notna(row["hf_batch_size"]) else str(row["hf_kind"])


def _compared(rows: pd.DataFrame, baseline: str) -> Fact:
    low, high = rows["ratio_low"].min(), rows["ratio_high"].max()
    interval = span([low, high])
    # A verdict without an interval is about cells that share no round.
    shown = not interval and "verdict" in rows and rows["verdict"].isin(SHOWN).all()
    if not (low > 1 or high < 1 or shown):
        return Fact("Gain", "no difference shown", f"over {baseline}: {interval or span(rows['ratio'])} times")
    if "verdict" in rows and rows["verdict"].eq("not decided").any():
        # The interval of one start does not say what another start would give, but the verdict allows for it.
        scopes = listed(rows["scope"].dropna().unique(), "or") if "scope" in rows else ""
        return Fact("Gain", "not decided", f"over {baseline}: {interval} times {scopes}".rstrip())
    return Fact("Gain", f"{span(rows['ratio'])} times", f"over {baseline}: {interval or 'no interval'}")


def _share_of_limit(tables: Tables, members: pd.DataFrame) -> Iterator[Fact]:
    limits = tables.get("limits")
    if limits is None:
        return
    rows = limits[limits["cell_id"].isin(members["cell_id"]) & limits["factor"].notna()]
    if len(rows):
        # If a device's rates have two sources, the data sheet is preferred.
        rows = rows[rows["rates"] == rows["rates"].min()]
        shares = 100 * rows.groupby("cell_id")["factor"].median()
        bound = [str(name).replace("_", " ") for name in rows["bound_by"].dropna().unique()]
        note = ", ".join([*bound, RATES_FROM.get(str(rows["rates"].iloc[0]), "")])
        yield Fact("Hardware", f"{span(shares)} % of its limit", note)


def _untested(tables: Tables, place: str, measured: pd.DataFrame) -> Card:
    """The card of a place without vLLM's offline engine: the highest median, which is not tested against others."""
    rows = tables.cells[tables.cells["cell_id"].isin(measured["cell_id"])]
    medians = rows.groupby("cell_id")[RATE].median()
    if medians.isna().all():
        return Card(place, "No throughput known", f"Cells: {len(measured)} measured, none with a rate of tokens.", [])
    fastest = measured[measured["cell_id"] == medians.idxmax()]
    varied = [knob for knob in tables.knobs if measured[knob].nunique(dropna=False) > 1] or tables.knobs
    of_cell = rows[rows["cell_id"] == medians.idxmax()]
    facts = [Fact("Output", f"{number(medians.max())} tokens/s", f"repeats {span(of_cell[RATE])}")]
    facts += [
        Fact(name, duration(float(of_cell[column].median())))
        for column, name in LATENCIES.items()
        if column in of_cell and of_cell[column].notna().any()
    ]
    facts += _share_of_limit(tables, fastest)
    words = f"{fastest['engine'].iloc[0]}: {settings_in_words(fastest, varied)[0]}"
    several = f"Highest median of {len(measured)} settings; differences are not tested."
    return Card(place, words, several if len(measured) > 1 else ONLY_ONE, facts)

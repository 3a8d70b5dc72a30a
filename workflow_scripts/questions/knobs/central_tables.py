"""Summary tables: every device by each value of one knob, as papers print them."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any, NamedTuple

import pandas as pd

from workflow_scripts.catalog.gpus_and_models import load_gpus
from workflow_scripts.catalog.published import PROMPT_SHARES
from workflow_scripts.common.columns import column
from workflow_scripts.page.blocks import UNKNOWN, Block, Fold, Table, outcome_words, shown, with_intervals
from workflow_scripts.page.report import CELL, MOST_ROWS, PLACE_HEADINGS, Report, Subject, TablePart
from workflow_scripts.page.series import environments_in_words
from workflow_scripts.physics.rate_ceiling import at_least
from workflow_scripts.questions.comparisons.groups import overall
from workflow_scripts.questions.comparisons.table import SCHEMA as COMPARISONS
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import knob_name, knobs_that_differ, setting_phrase, settings_in_words
from workflow_scripts.tables.results import RAN_IN, RATE, STEADY, Tables, records, require

KNOBS = ("max_num_seqs", "block_size", "batch_size")
# The metrics that sources print for each device and value of a knob, in their words.
METRICS = {RATE: "tok/s (output)", "num_gpu_blocks": "GPU blocks", "waste_pct": "Memory waste"}
METRICS |= {"memory_used_bytes_max": "GPU memory"}
TOK = "tok"  # the rate, whose heading has its unit already
BEST, PERHAPS_BEST = "★", "☆"
MEASURED = "and its 95 % interval"
PUBLISHED = f"{column(RATE).axis} over whole repeats, beside published ones,"
# Of a reason.
MOST_LETTERS = 120
SETTINGS, WHY = "Other settings", "Why there is no rate"


class Line(NamedTuple):
    """A row of a table: its names by heading, and its text at each value of the knob; `why` explains missing rates."""

    names: Mapping[str, str]
    values: Mapping[float, str]
    why: str = ""


def knob_tables(tables: Tables) -> Iterator[tuple[str, list[Table]]]:
    """For each knob tables of rates and of published rates; the tables of rates come first: that over whole repeats and
    that while the engine is full, each with the rows that are compared by it.

    A row has all cells of a device and environment that differ only in the knob.
    """
    grid, rates = tables.cells, _rates(tables)
    grid = grid.merge(tables.rows.drop_duplicates("cell_id")[["cell_id", RAN_IN]], on="cell_id")
    for knob in KNOBS:
        of_knob, name = f"knob_{knob}", knob_name(knob)
        if of_knob not in grid:
            continue
        others = [other for other in tables.knobs if other != of_knob]
        rows = grid.assign(x=grid[of_knob])
        rows = rows[rows.groupby([*COORDINATES, *others], dropna=False, sort=False)["x"].transform("nunique") > 1]
        if rows.empty:
            continue
        varied = knobs_that_differ(rows, others)
        rows["environment"] = environments_in_words(rows)
        # The devices of one setting stand below each other.
        rows["setting"] = rows.groupby([*COORDINATES[1:], *others], dropna=False, sort=False).ngroup()
        rows = rows.sort_values("setting", kind="stable")
        rows["row"] = rows.groupby(["setting", "gpu", RAN_IN], sort=False).ngroup()
        firsts = rows.drop_duplicates("row")
        places = records(firsts[list(PLACE_HEADINGS)].rename(columns=PLACE_HEADINGS))
        settings = (settings_in_words(firsts, varied) + firsts["environment"]).str.removeprefix(", ")
        named = [of | {SETTINGS: words} for of, words in zip(places, settings, strict=True)]
        of_rows = [part for _, part in rows.groupby("row")]
        effects = overall(tables.get("comparisons", *COMPARISONS.columns), knob)
        by_cell = {row["b"]: row for row in records(effects)}
        by_measure: dict[str, list[Line]] = {RATE: [], STEADY: []}
        for part, names in zip(of_rows, named, strict=True):
            measure, line = _rates_of(part, names, by_cell, rates)
            by_measure[measure].append(line)
        fixed = [setting_phrase(of, rows[of].iloc[0]) for of in others if of not in varied and rows[of].notna().all()]
        summaries = [
            _table(of, [line.names for line in of], name, f"{column(by).axis} {MEASURED}", fixed, _marks(of, effects))
            for by, of in by_measure.items()
            if of
        ]
        if knob == "max_num_seqs":  # the setting for which rates are published
            pairs = zip(of_rows, named, strict=True)
            if beside := [line for part, names in pairs for line in _published(part, names, rates)]:
                summaries.append(_table(beside, [line.names for line in beside], name, PUBLISHED, fixed))
        yield knob, summaries


def _rates(tables: Tables) -> Mapping[tuple[str, str, str], str]:
    """Texts of rates by source, cell and measure: those measured with their intervals."""
    texts: dict[tuple[str, str, str], str] = {}
    intervals = tables.get("intervals", "cell_id", "measure", "value", "low", "high")
    of_rates = intervals[intervals["measure"].isin([RATE, STEADY])]
    for row in records(with_intervals(of_rates.rename(columns={"low": "value_low", "high": "value_high"}))):
        # A line may break before an interval and before its upper end.
        texts["measured", row["cell_id"], row["measure"]] = shown(row["value"]).replace(" to ", "\u00a0to ")
    predictions = tables.get("predictions", "predicted", "published", "published_prompt_share")
    for source in ("predicted", "published"):
        for row in records(predictions.dropna(subset=source)):
            # Others do not state which tokens they count.
            needed = row["published_prompt_share"] if source == "published" else 0.0
            needed = max(needed, 0.0) if pd.notna(needed) else 0.0
            of_mixes = (max(PROMPT_SHARES), needed) if source == "published" else (0.0,)
            shares = (needed,) if needed > max(PROMPT_SHARES) else of_mixes
            text = "\u00a0to ".join(shown(row[source] * (1 - share)) for share in shares)
            words = f"at most {text} ({at_least(needed)})" if needed > max(PROMPT_SHARES) else text
            texts[source, row["cell_id"], row["quantity"]] = words
    return texts


def _rates_of(
    part: pd.DataFrame,
    names: Mapping[str, str],
    effects: Mapping[str, Mapping[str, Any]],
    rates: Mapping[tuple[str, str, str], str],
) -> tuple[str, Line]:
    """The measure by which the analysis compared the cells of a row, and their rates by it, with the fastest marked."""
    of_row = [effects[cell] for cell in part["cell_id"] if cell in effects]
    # Cells of several machines are not compared with each other.
    effect: Mapping[str, Any] = of_row[0] if len(of_row) == 1 else {"metric": RATE, "fastest": ""}
    fastest = {float(value) for value in effect["fastest"].split(", ") if value}
    mark = BEST if effect.get("decided") else PERHAPS_BEST
    values: dict[float, str] = {}
    reasons: dict[str, list[float]] = {}
    for cell_id, outcome, reason, x in zip(*(part[of] for of in ("cell_id", "outcome", "reason", "x")), strict=True):
        predicted = rates.get(("predicted", cell_id, effect["metric"]))
        if outcome == "ok":
            rate = rates.get(("measured", cell_id, effect["metric"]), UNKNOWN)
            value, bracket, interval = rate.partition(" (")
            values[x] = f"{value}\u00a0{mark}{bracket}{interval}" if x in fastest else rate
        elif outcome == "missing" and predicted is not None:
            values[x] = f"{predicted} predicted"
        else:
            values[x] = outcome_words(outcome)
            if isinstance(reason, str):
                reasons.setdefault(shorten(reason, MOST_LETTERS, placeholder=" ..."), []).append(x)
    why = "; ".join(f"{', '.join(f'{x:g}' for x in at)}: {reason}" for reason, at in reasons.items())
    return effect["metric"], Line(names, values, why)


def _marks(lines: Sequence[Line], effects: pd.DataFrame) -> str:
    """What the marks in a table mean, of those that it has."""
    texts = " ".join(text for line in lines for text in line.values.values())
    margin = "" if effects.empty else f"{effects['margin_pct'].iloc[0]:g} %"
    meanings = {
        BEST: f"the fastest measured of the row, or one of several that are equally fast (within {margin}).",
        PERHAPS_BEST: "perhaps the fastest measured of the row; which one is not decided.",
    }
    return " ".join(f"{mark} {meaning}" for mark, meaning in meanings.items() if mark in texts)


def _published(
    part: pd.DataFrame, names: Mapping[str, str], rates: Mapping[tuple[str, str, str], str]
) -> Iterator[Line]:
    """A row of measured rates and one of those that others published, if there are any, at a range of mixes."""
    at = dict(zip(part["cell_id"], part["x"], strict=True))
    if any(("published", cell, RATE) in rates for cell in at):
        # Others published rates of their own requests.
        gpu = load_gpus().get(names["Device"])
        title = gpu.title if gpu else names["Device"]
        own = {
            "Device": f"{title} (published by others, if up to {100 * max(PROMPT_SHARES):g} % are prompt tokens, "
            "or as many as it needs)",
            PLACE_HEADINGS["workload"]: "the source's own",
        }
        for source, called in (("measured", names), ("published", {**names, **own})):
            yield Line(called, {x: rates.get((source, cell, RATE), UNKNOWN) for cell, x in at.items()})


def _table(
    lines: Sequence[Line],
    named: Sequence[Mapping[str, str]],
    knob: str,
    quantity: str,
    fixed: Sequence[str],
    note: str = "",
) -> Table:
    """A table with the values of the knob as columns; names that all rows share are in its note, as `fixed` are.

    `named` has the names of all rows, of which `lines` may be the first ones.
    """
    first, *others = list(lines[0].names)
    of_all = [*named, *(line.names for line in lines)]
    names = [first, *(name for name in others if len({of[name] for of in of_all if name in of}) > 1)]
    shared = [lines[0].names[name] for name in others if name not in (*names, SETTINGS)]
    values = sorted({value for line in lines for value in line.values})
    why = [WHY] if any(line.why for line in lines) else []
    body = [
        [
            *(line.names[name] for name in names),
            *(line.values.get(value, UNKNOWN) for value in values),
            *(line.why or UNKNOWN for _ in why),
        ]
        for line in lines[:MOST_ROWS]
    ]
    headings = [f"{first} / {knob}", *names[1:], *(f"{value:g}" for value in values), *why]
    numeric = [*(False for _ in names), *(True for _ in values), *(False for _ in why)]
    few = f"{MOST_ROWS} of {len(named)} rows; the list of cells has all." if len(named) > MOST_ROWS else ""
    common = f"All rows: {', '.join([*shared, *fixed])}." if shared or fixed else ""
    return Table(f"{quantity} by {knob}", headings, body, numeric, " ".join(filter(None, (common, note, few))))


def four_metrics(knob: str) -> TablePart:
    """The part of a section with the four metrics of each device and value of a knob."""

    def rows(tables: Tables) -> pd.DataFrame:
        of_knob = f"knob_{knob}"
        cells = tables.cells.drop(columns=list(METRICS), errors="ignore")
        if of_knob not in cells:
            return cells.head(0)
        others = [*COORDINATES, *(name for name in tables.knobs if name != of_knob)]
        varied = cells[cells.groupby(others, dropna=False, sort=False)[of_knob].transform("nunique") > 1]
        known = tables.values.reindex(columns=list(METRICS)).assign(waste_pct=tables.waste_pct)
        intervals = tables.intervals_of(RATE)[["low", "high"]].add_prefix(f"{RATE}_")
        shown_rows = varied.join(known, on="cell_id").join(intervals, on="cell_id")
        became = shown_rows["outcome"].map(outcome_words).where(shown_rows["outcome"] != "ok")
        named = {f"{RATE}{end}": f"{TOK}{end}" for end in ("", "_low", "_high")}
        return shown_rows.rename(columns=named).assign(became=became).sort_values(["gpu", of_knob], kind="stable")

    metrics = {TOK if name == RATE else name: words for name, words in METRICS.items()}
    columns = {**CELL, f"knob_{knob}": knob_name(knob), **metrics, "became": "Outcome"}
    return TablePart(
        "cells", columns, f"tok/s, GPU blocks, memory waste, GPU memory by {knob_name(knob)}", rows=rows, optional=True
    )


def central_tables(report: Report) -> Iterator[Block]:
    tables_of_knobs = list(knob_tables(report.tables))
    require(tables_of_knobs, f"no two cells of an engine differ only in {', '.join(map(knob_name, KNOBS))}")
    for knob, of_knob in tables_of_knobs:
        others = [table for table in of_knob if MEASURED not in table.caption]
        yield from of_knob[: len(of_knob) - len(others)]
        if others:
            yield Fold(f"Published rates by {knob_name(knob)}", others)


SUBJECT = Subject(id="central-tables", title="Summary tables", tables=[central_tables])

"""Summary tables: every device by each value of one knob, as papers print them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.catalog.published import PROMPT_SHARES
from workflow_scripts.common.columns import column, heading
from workflow_scripts.page.blocks import UNKNOWN, Block, Table, outcome_words, shown, table_of, with_intervals
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
PUBLISHED = f"published, if up to {100 * max(PROMPT_SHARES):g} % are prompt tokens, or as many as it needs"
NOTE = (
    "{few}{fixed}"
    f"{BEST}: the fastest measured of the row, or one of several that are equally fast. {PERHAPS_BEST}: perhaps the "
    "fastest; which one is not decided."
)

# Texts of rates by source, cell and measure.
Texts = Mapping[tuple[str, str, str], str]


def knob_tables(tables: Tables) -> Iterator[tuple[str, Table]]:
    """A table of rates for each knob. A row has all cells of a device and environment that differ only in the knob, by
    the rate by which they are compared; below it stands what others published."""
    grid = tables.cells.merge(tables.rows.drop_duplicates("cell_id")[["cell_id", RAN_IN]], on="cell_id")
    texts = _texts(tables)
    for knob in (name for name in KNOBS if f"knob_{name}" in grid):
        others = [name for name in tables.knobs if name != f"knob_{knob}"]
        rows = grid.assign(x=grid[f"knob_{knob}"])
        rows = rows[rows.groupby([*COORDINATES, *others], dropna=False, sort=False)["x"].transform("nunique") > 1]
        if rows.empty:
            continue
        varied = knobs_that_differ(rows, others)
        words = settings_in_words(rows, varied) if varied else [""] * len(rows)
        settings = (words + environments_in_words(rows)).str.removeprefix(", ").replace("", None)
        # The devices of one setting stand below each other.
        alike = rows.groupby([*COORDINATES[1:], *others], dropna=False, sort=False).ngroup()
        rows = rows.assign(settings=settings, alike=alike).sort_values("alike", kind="stable")
        effects = {row["b"]: row for row in records(overall(tables.get("comparisons", *COMPARISONS.columns), knob))}
        parts = rows.groupby(["alike", "gpu", RAN_IN], sort=False)
        lines = [line for _, part in parts for line in _lines(part, effects, texts)]
        fixed = [setting_phrase(of, rows[of].iloc[0]) for of in others if of not in varied and rows[of].notna().all()]
        values = {x: f"{x:g}" for x in sorted(rows["x"].unique())}
        names = {"gpu": f"Device / {knob_name(knob)}", "settings": "Other settings", "rate": "Rate"}
        few = f"{MOST_ROWS} of {len(lines)} rows; the list of cells has all. " * (len(lines) > MOST_ROWS)
        note = NOTE.format(few=few, fixed=f"All have {', '.join(fixed)}. " if fixed else "")
        shown_lines = pd.DataFrame(lines[:MOST_ROWS]).rename(columns=values)
        headings = {**PLACE_HEADINGS, **names, **{name: name for name in values.values()}}
        title = f"{heading('output_tokens_per_s', 'Rates')} with 95 % intervals by {knob_name(knob)}"
        yield knob, table_of(shown_lines, headings, title, note)


def _texts(tables: Tables) -> Texts:
    """Those measured have their intervals; those published a range of mixes, as they do not state what they count."""
    texts: dict[tuple[str, str, str], str] = {}
    intervals = tables.get("intervals", "cell_id", "measure", "value", "low", "high")
    of_rates = intervals[intervals["measure"].isin([RATE, STEADY])]
    for row in records(with_intervals(of_rates.rename(columns={"low": "value_low", "high": "value_high"}))):
        # A line may break before an interval and before its upper end.
        texts["measured", row["cell_id"], row["measure"]] = shown(row["value"]).replace(" to ", "\u00a0to ")
    predictions = tables.get("predictions", "predicted", "published", "published_prompt_share")
    for row in records(predictions.dropna(subset="predicted")):
        texts["predicted", row["cell_id"], row["quantity"]] = f"{shown(row['predicted'])} predicted"
    for row in records(predictions.dropna(subset="published")):
        needed = max(row["published_prompt_share"], 0.0) if pd.notna(row["published_prompt_share"]) else 0.0
        if needed > max(PROMPT_SHARES):
            words = f"at most {shown(row['published'] * (1 - needed))} ({at_least(needed)})"
        else:
            words = "\u00a0to ".join(shown(row["published"] * (1 - share)) for share in (max(PROMPT_SHARES), needed))
        texts["published", row["cell_id"], row["quantity"]] = words
    return texts


def _lines(part: pd.DataFrame, effects: Mapping[str, Mapping[str, Any]], texts: Texts) -> Iterator[dict[Any, Any]]:
    """The row of cells that differ in the knob alone, with the fastest marked, and that of what others published."""
    of_row = [effects[cell] for cell in part["cell_id"] if cell in effects]
    # Cells of several machines are not compared with each other.
    effect: Mapping[str, Any] = of_row[0] if len(of_row) == 1 else {"metric": RATE, "fastest": ""}
    fastest = {float(value) for value in effect["fastest"].split(", ") if value}
    mark = BEST if effect.get("decided") else PERHAPS_BEST
    values: dict[float, str] = {}
    for cell_id, outcome, x in zip(part["cell_id"], part["outcome"], part["x"], strict=True):
        rate, bracket, interval = texts.get(("measured", cell_id, effect["metric"]), UNKNOWN).partition(" (")
        if outcome == "ok":
            values[x] = f"{rate}\u00a0{mark}{bracket}{interval}" if x in fastest else f"{rate}{bracket}{interval}"
        else:
            predicted = texts.get(("predicted", cell_id, effect["metric"])) if outcome == "missing" else None
            values[x] = predicted or outcome_words(outcome)
    names = dict(part.iloc[0][[*PLACE_HEADINGS, "settings"]])
    yield {**names, "rate": column(effect["metric"]).axis, **values}
    published = {x: texts.get(("published", cell, RATE)) for cell, x in zip(part["cell_id"], part["x"], strict=True)}
    if any(published.values()):
        # Others published rates of their own requests.
        yield {**names, "workload": "the source's own", "rate": PUBLISHED, **published}


def four_metrics(knob: str) -> TablePart:
    """The part of a section with the four metrics of each device and value of a knob."""

    def rows(tables: Tables) -> pd.DataFrame:
        of_knob = f"knob_{knob}"
        cells = tables.cells.drop(columns=list(METRICS), errors="ignore")
        if of_knob not in cells:
            return cells.head(0)
        others = [*COORDINATES, *(name for name in tables.knobs if name != of_knob)]
        varied = cells[cells.groupby(others, dropna=False, sort=False)[of_knob].transform("nunique") > 1]
        known = tables.values.reindex(columns=list(METRICS))
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
    found = [table for _, table in knob_tables(report.tables)]
    yield from require(found, f"no two cells of an engine differ only in {', '.join(map(knob_name, KNOBS))}")


SUBJECT = Subject(id="central-tables", title="Summary tables", tables=[central_tables])

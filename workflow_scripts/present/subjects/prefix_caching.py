"""Prefix caching: its gain, and the hits of the cache."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.present.blocks import Block, Finding
from workflow_scripts.present.plot import Plot
from workflow_scripts.present.ratio_plot import labelled, plot_ratios
from workflow_scripts.present.report import Report
from workflow_scripts.present.report_tables import MissingError, Tables, records
from workflow_scripts.present.sentences import effects_of, pairs_that_differ_in, place, some
from workflow_scripts.present.series import without_shared
from workflow_scripts.present.style import marks
from workflow_scripts.present.subject import CELL, Caption, FigurePart, Subject, TablePart

MIB = 2**20


def prefix_caching(tables: Tables) -> Plot:
    """Ratio of output tokens per second with prefix caching to those without, one dot per pair of cells."""
    effects = tables.need("effects")
    pairs = effects[(effects["knob"] == "enable_prefix_caching") & (effects["comparison"] == "pair")]
    if pairs.empty:
        raise MissingError("no two measured cells differ only in prefix caching")
    rows = pairs.assign(held=without_shared(pairs["held"]), name=pairs["gpu"], panel=pairs["workload"])
    rows = labelled(rows, ["engine", "model"], "held")
    return plot_ratios(
        rows,
        marks(tables.devices),
        title="Speed-up by prefix caching: output tokens per second with it over without",
        panels_are="workloads",
        repeats=("repeats", "baseline_repeats"),
    )


def gains_and_hits(report: Report) -> Iterator[Block]:
    """The effect of the prefix cache on each workload, and its hits."""
    yield pairs_that_differ_in(report, "enable_prefix_caching", "prefix_cache_hit_rate", _found_in_cache)


def _found_in_cache(cell: Mapping[str, Any]) -> str:
    saved = cell["prefix_cache_saved_pct"]
    saves = "." if pd.isna(saved) else f", which saved {saved:.3g} % of all tokens from being computed."
    return f"{100 * cell['prefix_cache_hit_rate']:.3g} % of the prompt tokens were in the cache{saves}"


def memory_saved(report: Report) -> Iterator[Block]:
    """How much less KV memory the same requests take where they share the blocks of a prefix, the largest saving
    first; pairs in which nothing was found are left out."""
    effects = report.tables.need("effects", "comparison", "knob", "held", "cell_id", "baseline_cell_id")
    report.tables.need("cells", "kv_bytes_used_mean", "prefix_cache_hits")
    pairs = effects[(effects["comparison"] == "pair") & (effects["knob"] == "enable_prefix_caching")]
    of_cell = report.tables.cells.groupby("cell_id")[["kv_bytes_used_mean", "prefix_cache_hits"]].median()
    cached, alone = (of_cell.reindex(pairs[name]).set_index(pairs.index) for name in ("cell_id", "baseline_cell_id"))
    rows = pairs.assign(
        held=without_shared(pairs["held"]),
        cached_mib=cached["kv_bytes_used_mean"] / MIB,
        alone_mib=alone["kv_bytes_used_mean"] / MIB,
        saving=alone["kv_bytes_used_mean"] / cached["kv_bytes_used_mean"],
    )[cached["prefix_cache_hits"] > 0].dropna(subset="saving")
    if len(rows):
        told = [
            Finding(
                f"{row['saving']:.3g} times less memory",
                f"{place(row)}: the tokens of running requests take {row['cached_mib']:.3g} MiB of keys and values "
                f"with prefix caching, and {row['alone_mib']:.3g} MiB without, because requests share the blocks of a "
                "prefix.",
                "good",
            )
            for row in records(rows.sort_values("saving", ascending=False, kind="stable"))
        ]
        yield some(told, "cells")


def first_repeats_with_cache(cells: pd.DataFrame) -> pd.DataFrame:
    """First repeats with a prefix cache; engines have one by default, so it must have had hits or have been varied."""
    knob = cells.get("knob_enable_prefix_caching", pd.Series(dtype=object))
    if not (cells["prefix_cache_hits"] > 0).any() and knob.nunique() < 2:
        raise MissingError("no prefix cache found anything, and the study does not turn it on and off")
    return cells[(cells["repeat"] == 0) & (cells["prefix_cache_queries"] > 0)].drop_duplicates("cell_id")


SUBJECT = Subject(
    id="prefix-caching",
    title="Prefix caching",
    lead="The same requests with and without reusing the keys and values of prompts that begin alike.",
    parts=[
        FigurePart(
            prefix_caching,
            {"effects": ["knob", "comparison", "ratio", "held"]},
            Caption(
                shows="Output tokens per second with prefix caching, divided by those without, for pairs of cells that "
                "differ in nothing else. The line through a dot is the 95 % interval of the ratio.",
                reading="To the right of 1, prefix caching made the engine faster. An interval that contains 1 leaves "
                "open whether it changed anything. Workloads whose prompts share no beginning are the control: their "
                "ratio should be 1. Below 1, searching the cache costs more time than it saves.",
                not_shown="The gain holds for these prompt and output lengths and this share of common beginnings. It "
                "is not a constant of the engine: longer shared prefixes and shorter outputs gain more.",
            ),
        ),
        effects_of("enable_prefix_caching"),
        TablePart(
            "cells",
            {
                **CELL,
                "num_requests": "Requests",
                "requests_with_prefix_hits": "Requests with hits",
                "prefix_cache_hit_rate": "Share of tokens found",
                "prefix_cache_hit_rate_predicted": "Share of tokens found, predicted",
                "prefix_cache_saved_pct": "Tokens not computed (%)",
            },
            "Prefix-cache hits in the first repeat of each cell",
            first_repeats_with_cache,
        ),
    ],
    findings=[gains_and_hits, memory_saved],
)

"""Prefix caching: its gain, and the hits of the cache."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.common.wording import listed
from workflow_scripts.page.blocks import Block, Finding
from workflow_scripts.page.plot import Plot
from workflow_scripts.page.ratio_plot import plot_bars
from workflow_scripts.page.report import CELL, FigurePart, Report, Subject, TablePart
from workflow_scripts.page.sentences import (
    claims_on,
    effects_of,
    effects_on,
    held_in_words,
    pairs_that_differ_in,
    place,
    some,
)
from workflow_scripts.page.series import without_shared
from workflow_scripts.page.style import marks
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.study.setting_words import setting_phrase
from workflow_scripts.tables.results import MissingError, Tables, records

_MEMORY = "kv_bytes_used_mean"
_HITS = column("prefix_cache_hit_rate")
_MEASURES = {"output_tokens_per_s": "speed", _MEMORY: "KV memory", "energy_j_per_output_token": "energy"}
_WORDS = {"true": "with", "false": "without"}


def prefix_caching(tables: Tables) -> Plot:
    pairs = effects_on(tables, "enable_prefix_caching", "pair")
    pairs = pairs.assign(held=without_shared(pairs["held"]).map(held_in_words))
    cells = tables.measured[["cell_id", "start", "repeat", "source", *_MEASURES]]
    sides = [
        pairs[["gpu", "model", "workload", "held"]].assign(
            cell_id=pairs[of], name=pairs[value].map(_WORDS) + " prefix caching"
        )
        for of, value in (("cell_id", "value"), ("baseline_cell_id", "baseline"))
    ]
    rows = pd.concat(sides).merge(cells, on="cell_id")
    differing = [name for name in ("gpu", "model", "held") if rows[name].nunique() > 1]
    labels = rows[["name", *differing]].agg(" · ".join, axis=1)
    shown = [words for measure, words in _MEASURES.items() if rows[measure].notna().any()]
    return plot_bars(
        rows.assign(panel=rows["workload"], label=labels),
        tables,
        list(_MEASURES),
        marks(["without prefix caching", "with prefix caching"]),
        title=f"Prefix caching: {listed(shown)} of the same requests",
        panels_are="workloads",
    )


def _cache_hits_in_words(cell: Mapping[str, Any]) -> str:
    saved = cell["prefix_cache_saved_pct"]
    saves = "." if pd.isna(saved) else f", which saved {saved:.3g} % of all tokens from being computed."
    return f"{100 * cell['prefix_cache_hit_rate']:.3g} % of the prompt tokens were in the cache{saves}"


gains_and_hits = pairs_that_differ_in("enable_prefix_caching", "prefix_cache_hit_rate", _cache_hits_in_words)


def memory_saved(report: Report) -> Iterator[Block]:
    """How much less KV memory the same requests take where they share the blocks of a prefix, the largest saving
    first; pairs in which nothing was found are left out."""
    pairs = effects_on(report.tables, "enable_prefix_caching", "pair")
    of_cell = report.tables.values.reindex(columns=[_MEMORY, "prefix_cache_hits"])
    cached, alone = (of_cell.reindex(pairs[name]).set_index(pairs.index) for name in ("cell_id", "baseline_cell_id"))
    rows = pairs.assign(
        held=without_shared(pairs["held"]),
        cached=cached[_MEMORY],
        alone=alone[_MEMORY],
        saving=alone[_MEMORY] / cached[_MEMORY],
    )[cached["prefix_cache_hits"] > 0].dropna(subset="saving")
    text = column(_MEMORY).text
    findings = [
        Finding(
            text(row["alone"], row["cached"]),
            f"{place(row)}: the tokens of running requests take {text(row['cached'])} of keys and values with prefix "
            f"caching{_empty(report, row['cell_id'])}, and {text(row['alone'])} without"
            f"{_empty(report, row['baseline_cell_id'])}, because requests share the blocks of a prefix.",
        )
        for row in records(rows.sort_values("saving", ascending=False, kind="stable"))
    ]
    yield from some(findings, "cells")


def _empty(report: Report, cell_id: str) -> str:
    empty = report.tables.waste_pct.get(cell_id)
    return "" if pd.isna(empty) else f" ({column('waste_pct').text(empty)} of the slots held are empty)"


def first_repeats_with_cache(cells: pd.DataFrame) -> pd.DataFrame:
    """First repeats with a prefix cache; engines have one by default, so it must have had hits or have been varied."""
    knob = cells.get("knob_enable_prefix_caching", pd.Series(dtype=object))
    if not (cells["prefix_cache_hits"] > 0).any() and knob.nunique() < 2:
        raise MissingError("no prefix cache found anything, and the study does not turn it on and off")
    return cells[(cells["repeat"] == 0) & (cells["prefix_cache_queries"] > 0)].drop_duplicates("cell_id")


def hits_by_kv_cache(report: Report) -> Iterator[Block]:
    """What the cache found of the same prompts with the least and the most KV blocks that the study gave it."""
    rows, size = first_repeats_with_cache(report.tables.rows), "knob_num_gpu_blocks_override"
    if size not in rows:
        return
    by = [*COORDINATES, *(name for name in report.tables.knobs if name != size)]
    findings = []
    for _, part in rows.dropna(subset=[size, _HITS.name]).groupby(by, sort=False, dropna=False):
        of_sizes = records(part.sort_values(size, kind="stable"))
        least, most = of_sizes[0], of_sizes[-1]
        if least[size] < most[size] and most[_HITS.name] > 0:
            hits = [f"{_HITS.text(row[_HITS.name])} with {setting_phrase(size, row[size])}" for row in (least, most)]
            sentence = f"{place(most)}: of the prompt tokens, {listed(hits)} were in the prefix cache."
            findings.append(Finding(f"{_HITS.text(most[_HITS.name])} found", sentence))
    yield from some(findings, "repeats")


SUBJECT = Subject(
    id="prefix-caching",
    title="Prefix caching",
    asked="prefix|system prompt",
    parts=[
        FigurePart(prefix_caching),
        effects_of("enable_prefix_caching"),
        TablePart(
            "repeats",
            {
                **CELL,
                "num_requests": "",
                "requests_with_prefix_hits": "Requests with hits",
                "prefix_cache_hit_rate": "",
                "prefix_cache_hit_rate_predicted": "Predicted",
                "prefix_cache_saved_pct": "Tokens not computed",
            },
            "Prefix-cache hits in the first repeat of each cell",
            first_repeats_with_cache,
        ),
        claims_on("prefix-caching"),
    ],
    findings=[hits_by_kv_cache, gains_and_hits, memory_saved],
    lines=2,  # speed and memory
)

"""Prefix caching: its gain, its KV memory, and the hits of the cache."""

from collections.abc import Iterator

import pandas as pd

from workflow_scripts.common.columns import column
from workflow_scripts.page.answers import Answer, factor, setting_answer
from workflow_scripts.page.comparisons import comparisons
from workflow_scripts.page.kit import Plot, bar, beside
from workflow_scripts.page.main_line import rate_words
from workflow_scripts.page.parts import claims_on, compared
from workflow_scripts.page.report import CELL, Report, Subject, TablePart
from workflow_scripts.page.series import coloured, told_apart
from workflow_scripts.study.grid import COORDINATES
from workflow_scripts.tables.results import RATE, MissingError, Tables, records

_KNOB, _MEMORY = "enable_prefix_caching", "kv_bytes_used_mean"
_WORDS = {"true": "with", "false": "without"}


def prefix_caching(tables: Tables) -> Plot:
    """Rate with and without prefix caching, with 95 % intervals, and the keys and values that running requests hold:
    with it, requests share the blocks of a prefix."""
    pairs = comparisons(tables, "knob", _KNOB)
    names = told_apart(pairs, [*COORDINATES[1:], "held"])
    words = pairs[names].agg(" · ".join, axis=1) + " · " if names else ""
    sides = [
        pairs.assign(cell_id=pairs[cell], name=words + pairs[value].map(_WORDS), hollow=pairs[value] == "false")
        for cell, value in (("a", "value_a"), ("b", "value_b"))
    ]
    rows = pd.concat(sides).sort_index(kind="stable").drop_duplicates("cell_id")[["cell_id", "name", "gpu"]]
    panels = []
    for measure, words in ((RATE, rate_words(RATE)), (_MEMORY, "KV memory in use, GiB")):
        found = column(measure).scaled(tables.intervals_of(measure))
        of_cells = coloured(tables, rows).join(found, on="cell_id").dropna(subset="value")
        if len(of_cells):
            panels.append(bar(of_cells, "Prefix caching", words, measure=measure))
    return beside("With and without prefix caching", *panels)


def answers(report: Report) -> Iterator[Answer]:
    rows = comparisons(report.tables, "knob", _KNOB)
    yield from setting_answer(report.tables, rows, "Prefix caching helps?", "prefix caching", helps=True)


def sentence(report: Report) -> str:
    said = factor(report.tables, records(comparisons(report.tables, "knob", _KNOB))[0])
    return f"The same requests run at {said} the rate with prefix caching."


def first_repeats_with_cache(cells: pd.DataFrame) -> pd.DataFrame:
    """First repeats with a prefix cache; engines have one by default, so it must have had hits or have been varied."""
    knob = cells.get(f"knob_{_KNOB}", pd.Series(dtype=object))
    if not (cells["prefix_cache_hits"] > 0).any() and knob.nunique() < 2:
        raise MissingError("no prefix cache found anything, and the study does not turn it on and off")
    return cells[(cells["repeat"] == 0) & (cells["prefix_cache_queries"] > 0)].drop_duplicates("cell_id")


def where_tokens_go(predictions: pd.DataFrame) -> pd.DataFrame:
    of_hits = predictions["quantity"].eq("prefix_cache_hit_rate") & predictions["never_seen_tokens"].notna()
    return predictions[of_hits]


SUBJECT = Subject(
    id="prefix-caching",
    title="Prefix caching",
    asked="prefix|system prompt",
    sentence=sentence,
    figures=[prefix_caching],
    answers=answers,
    tables=[
        compared("knob", _KNOB),
        TablePart(
            "repeats",
            {
                **CELL,
                "num_requests": "",
                "requests_with_prefix_hits": "Requests with hits",
                "prefix_cache_hit_rate": "",
                "prefix_cache_saved_pct": "Tokens not computed",
            },
            "Prefix-cache hits in the first repeat of each cell",
            first_repeats_with_cache,
        ),
        TablePart(
            "predictions",
            {
                **CELL,
                "cached_tokens": "Found",
                "never_seen_tokens": "Never seen before",
                "shorter_than_block_tokens": "Shorter than a block",
                "last_token_tokens": "Last token",
                "evicted_tokens": "Evicted",
                "not_retained_tokens": "Not kept by a window or state",
            },
            "Where the prompt tokens of a cell go, predicted; kvsweep hits says what would find more",
            where_tokens_go,
            optional=True,
        ),
        claims_on("prefix-caching"),
    ],
)

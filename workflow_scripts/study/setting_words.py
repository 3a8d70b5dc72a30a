"""Settings in words for readers: no names of options, no short codes."""

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from workflow_scripts.common.wording import sentence
from workflow_scripts.engines.registry import every_knob

_SWITCHED = {"true": True, "false": False}
# Names of knobs that are not those of their options.
_NAMES = {
    "max_num_seqs": "max-num-seqs",
    "max_model_len": "max-model-len",
    "request_rate_per_s": "request rate",
    "gpu_memory_utilization": "share of the memory",
    "num_speculative_tokens": "number of drafted tokens",
    "kv_cache_dtype": "KV-cache type",
    "num_gpu_blocks_override": "number of KV blocks",
}
_UNITS = {"max_num_seqs": " (sequences)", "block_size": " (tokens)"}


def knob_name(knob: str) -> str:
    """A knob's name for readers; `knob` is its option or its column.

    >>> knob_name("knob_gpu_memory_utilization"), knob_name("enable_prefix_caching")
    ('share of the memory', 'prefix caching')
    """
    name = knob.removeprefix("knob_")
    return _NAMES.get(name, name.removeprefix("enable_").replace("_", " "))


def knob_axis(knob: str) -> str:
    """A knob's name with the unit of its values, for an axis.

    >>> knob_axis("max_num_seqs"), knob_axis("batch_size")
    ('max-num-seqs (sequences)', 'Batch size')
    """
    name = knob_name(knob)
    return (sentence(name) if " " in name else name) + _UNITS.get(knob.removeprefix("knob_"), "")


def setting(knob: str, value: Any) -> str:
    """A knob's name and value.

    >>> setting("knob_enable_prefix_caching", True), setting("knob_block_size", 16.0)
    ('prefix caching on', 'block size 16')
    """
    name = knob_name(knob)
    if value is None or value is pd.NA or value != value:
        return f"{name} default"
    if isinstance(value, bool | np.bool_):
        return f"{name} {'on' if value else 'off'}"
    return f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}"


@lru_cache(maxsize=10_000, typed=True)
def setting_phrase(knob: str, value: Any) -> str:
    """A setting as the report words it; `knob` is its name or its column, and `value` may be the text in a table.

    >>> setting_phrase("max_num_seqs", 16.0), setting_phrase("max_num_seqs", "1")
    ('at most 16 sequences', 'at most 1 sequence')
    >>> setting_phrase("knob_enable_prefix_caching", "true"), setting_phrase("block_size", 32)
    ('prefix caching on', 'block size 32')
    >>> setting_phrase("gpu_memory_utilization", 0.9), setting_phrase("enforce_eager", True)
    ('90 % of the memory', 'no compiled graphs')
    """
    if isinstance(value, str):
        value = _SWITCHED.get(value, value)
        with suppress(ValueError, AttributeError):  # it is no number
            value = float(value.replace(",", ""))
    described = every_knob().get(knob.removeprefix("knob_"))
    words = described.wording if described else None
    if described is None or words is None or isinstance(value, str) or pd.isna(value):
        return setting(knob, value)
    if isinstance(words, tuple):
        return words[0 if value else 1]
    phrase = words.format(f"{100 * value:g} %" if described.reserves == "share" else f"{value:,.10g}")
    return phrase.removesuffix("s") if value == 1 and "/" not in phrase else phrase


def instead_of(knob: str, value: Any, baseline: Any) -> str:
    """Two settings of a knob side by side; the second without the words with which both begin.

    >>> instead_of("max_num_seqs", "16", "1"), instead_of("enable_prefix_caching", "true", "false")
    ('at most 16 sequences instead of 1', 'prefix caching on instead of off')
    >>> instead_of("enforce_eager", "true", "false"), instead_of("model", "opt-awq", "opt")
    ('no compiled graphs instead of compiled graphs', 'model opt-awq instead of opt')
    """
    return f"{setting_phrase(knob, value)} instead of {shortly(knob, baseline, value)}"


@lru_cache(maxsize=10_000, typed=True)
def shortly(knob: str, value: Any, beside: Any) -> str:
    """A setting beside another one of its knob: only what differs, if both begin with the same words or a number.

    >>> shortly("max_num_seqs", 4, 16), shortly("gpu_memory_utilization", 0.5, 0.9)
    ('4', '50 %')
    """
    words, others = setting_phrase(knob, value).split(), setting_phrase(knob, beside).split()
    if words[0] != others[0] and not words[0][0].isdecimal():
        return " ".join(words)
    while len(words) > 1 and len(others) > 1 and words[0] == others[0]:
        words, others = words[1:], others[1:]
    # "1 sequence" beside "16 sequences": the number tells.
    while len(words) > 1 and len(others) > 1 and words[-1].rstrip("s") == others[-1].rstrip("s") != "%":
        words, others = words[:-1], others[:-1]
    return " ".join(words)


def knobs_that_differ(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    """The knobs that have different values in cells of one engine.

    >>> rows = pd.DataFrame({"engine": ["a", "a", "b"], "knob_x": [1, 2, None], "knob_y": [3, 3, None]})
    >>> knobs_that_differ(rows, ["knob_x", "knob_y"])
    ['knob_x']
    """
    return [knob for knob in knobs if rows.groupby("engine")[knob].nunique(dropna=False).max() > 1]


def settings_in_words(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    """For each row its settings in words, without those that are left to the engine.

    >>> rows = pd.DataFrame({"knob_block_size": [32, None], "knob_batch_size": [None, 8]})
    >>> settings_in_words(rows, list(rows)), settings_in_words(rows, [])
    (['block size 32', 'batches of 8'], ["engine's defaults", "engine's defaults"])
    """
    cells = rows[list(knobs)].to_numpy(dtype=object)  # `itertuples` gives no row where there is no column
    words = [
        [setting_phrase(*of_knob) for of_knob in zip(knobs, row, strict=True) if pd.notna(of_knob[1])] for row in cells
    ]
    return [", ".join(of_cell) or "engine's defaults" for of_cell in words]


def labels(rows: pd.DataFrame, knobs: Sequence[str]) -> "pd.Series[str]":
    """For each row the settings in words that differ among the cells of its engine, model and workload; if none does,
    those that differ between any cells of one engine; else all.

    >>> rows = pd.DataFrame({"engine": "a", "model": "m", "workload": ["v", "v", "w"]})
    >>> list(labels(rows.assign(knob_x=[1, 2, 1], knob_y=[3, 3, 3]), ["knob_x", "knob_y"]))
    ['x 1', 'x 2', 'x 1']
    """
    words = pd.Series("", index=rows.index, dtype=object)
    anywhere = knobs_that_differ(rows, knobs)
    for _, cells in rows.groupby(["engine", "model", "workload"], sort=False):
        differing = knobs_that_differ(cells, knobs)
        tell = cells[differing].notna().any(axis=1)
        told = anywhere if cells[anywhere].notna().any(axis=None) else knobs
        words[cells.index] = np.where(tell, settings_in_words(cells, differing), settings_in_words(cells, told))
    return words

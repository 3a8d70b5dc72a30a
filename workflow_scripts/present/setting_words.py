"""Settings in words: "block size 32, at most 16 sequences"."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workflow_scripts.present.series import setting

# Settings whose name alone does not read well, with {} for the value; others are written as "name value".
PHRASES: Mapping[str, str] = {
    "max_num_seqs": "at most {} sequences",
    "max_num_batched_tokens": "at most {} tokens per step",
    "max_batch_tokens": "at most {} tokens per step",
    "max_model_len": "context of {} tokens",
    "batch_size": "batches of {}",
    "page_size": "pages of {} tokens",
    "num_blocks": "{} blocks",
    "gpu_memory_utilization": "{} of the memory",
    "cpu_kv_cache_gib": "{} GiB of KV cache",
    "tensor_parallel_size": "{} tensor ranks",
    "pipeline_parallel_size": "{} pipeline ranks",
    "num_speculative_tokens": "{} drafted tokens",
    "request_rate_per_s": "{} requests/s",
    "ramp_to_per_s": "rising to {} requests/s",
    "users": "{} users",
}
# Switches: what is said if they are on, and if they are off.
SWITCHES: Mapping[str, tuple[str, str]] = {"enforce_eager": ("no compiled graphs", "compiled graphs")}


def in_words(knob: str, value: Any) -> str:
    """One setting in words; `knob` is its name, or its column in a table.

    >>> in_words("max_num_seqs", 16), in_words("max_num_seqs", 1), in_words("knob_enable_prefix_caching", False)
    ('at most 16 sequences', 'at most 1 sequence', 'prefix caching off')
    >>> in_words("gpu_memory_utilization", 0.9), in_words("enforce_eager", True)
    ('90 % of the memory', 'no compiled graphs')
    """
    name = knob.removeprefix("knob_")
    if name in SWITCHES:
        return SWITCHES[name][0 if value else 1]
    if name not in PHRASES:
        return setting(name, value)
    number = f"{100 * value:g} %" if name == "gpu_memory_utilization" else f"{value:,.10g}"
    words = PHRASES[name].format(number)
    return words.removesuffix("s") if value == 1 and words.endswith("s") and "/" not in words else words


def settings_in_words(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    """For each row its settings in words, without those that are left to the engine.

    >>> rows = pd.DataFrame({"knob_block_size": [32, None], "knob_batch_size": [None, 8]})
    >>> settings_in_words(rows, list(rows)), settings_in_words(rows, [])
    (['block size 32', 'batches of 8'], ["engine's defaults", "engine's defaults"])
    """
    if not knobs:
        return ["engine's defaults"] * len(rows)
    named = [
        [in_words(knob, value) for knob, value in zip(knobs, row, strict=True) if pd.notna(value)]
        for row in rows[list(knobs)].itertuples(index=False, name=None)
    ]
    return [", ".join(words) or "engine's defaults" for words in named]


def knobs_that_differ(rows: pd.DataFrame, knobs: Sequence[str]) -> list[str]:
    """The knobs of which cells of one engine have different values.

    >>> rows = pd.DataFrame({"engine": ["a", "a", "b"], "knob_x": [1, 2, None], "knob_y": [3, 3, None]})
    >>> knobs_that_differ(rows, ["knob_x", "knob_y"])
    ['knob_x']
    """
    return [knob for knob in knobs if rows.groupby("engine")[knob].nunique(dropna=False).max() > 1]

"""Columns of the cells table that follow from others: ratios, energy, KV memory, and settings that were replaced.

Engines reserve memory for keys and values in different ways. vLLM and HuggingFace's continuous batching allocate a pool
of blocks when they start, regardless of what the requests need later. HuggingFace's static batches allocate a cache for
each batch: DynamicCache for the padded batch's tokens so far, StaticCache at once for the batch's full length.
"""

import json
from functools import cache

import numpy as np
import pandas as pd

from workflow_scripts.tables.parsed_facts import known_facts
from workflow_scripts.tables.summary import as_applied, dtypes, knob_columns

# With a smaller share of a repeat in the trace, its energy is not known: the GPU was lost, or the repeat was too short.
_LEAST_SAMPLED = 0.8


def derived(t: pd.DataFrame) -> pd.DataFrame:
    """The rows with the columns that follow from what a repeat and its start measured."""
    wall_s = t["wall_s"].where(t["wall_s"] > 0)
    preemptions = t["preemptions"].fillna(t["preemptions_counted"])
    started = pd.to_datetime(t["start_unix_s"], unit="s", utc=True).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    # The first and last sample are up to a tenth of a second inside the repeat.
    sampled_j = (t["energy_j"] * wall_s / t["sampled_s"]).where(t["sampled_s"] >= _LEAST_SAMPLED * wall_s)
    energy_j = t["counted_j"].fillna(sampled_j)
    return t.assign(
        energy_j=energy_j,
        power_w_mean=(t["counted_j"] / wall_s).fillna(t["power_w_mean"]),
        output_tokens_per_s=t["output_tokens"] / wall_s,
        total_tokens_per_s=(t["output_tokens"] + t["prompt_tokens"]) / wall_s,
        requests_per_s=t["num_requests"] / wall_s,
        drain_share=1 - t["steady_end_s"] / wall_s,
        prefix_cache_hit_rate=t["prefix_cache_hits"] / t["prefix_cache_queries"].where(t["prefix_cache_queries"] > 0),
        prefix_cache_saved_pct=100 * t["prefix_cache_hits"] / (t["prompt_tokens"] + t["output_tokens"]),
        draft_acceptance_rate=t["accepted_draft_tokens"] / t["draft_tokens"].where(t["draft_tokens"] > 0),
        # The token that a sequence always gets, and the accepted tokens of its draft.
        tokens_per_draft_mean=1 + t["accepted_draft_tokens"] / t["drafts"].where(t["drafts"] > 0),
        process_memory_growth_bytes_max=t["memory_used_bytes_max"] - t["process_memory_bytes_before"],
        kv_tokens_live_mean=t["kv_tokens_live_mean"].fillna(t["kv_tokens_held_mean"]),
        energy_j_per_output_token=energy_j / t["output_tokens"].where(t["output_tokens"] > 0),
        # The engine's own token count if it prints one; on hybrid models it is not blocks times block size.
        kv_cache_tokens=t["kv_cache_tokens"].fillna(t["num_gpu_blocks"] * t["block_size_effective"]),
        started_at=started,
        preemptions=preemptions,
        recomputed_tokens=t["recomputed_tokens"].where((t["prefix_cache_queries"] > 0) | (preemptions == 0)),
    )


def kv_memory(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells table with `kv_bytes_used_mean`, and with the pool if the engine reports no reservation per step.

    Tokens of a prompt count as live from when it is scheduled, but cannot take more than the blocks in use.

    If `kv_pool_bytes` is null, the pool is blocks x tokens per block x bytes per token.
    """
    drafted = as_applied(cells, "num_speculative_tokens") > 0
    settings = zip(
        cells["model"],
        dtypes(cells),
        as_applied(cells, "speculative_model").where(drafted, ""),
        as_applied(cells, "kv_cache_dtype"),
        as_applied(cells, "tensor_parallel_size"),
        strict=True,
    )
    bytes_per_token = pd.Series([_bytes_of_token(*of_cell) for of_cell in settings], index=cells.index, dtype=float)
    # Those of a model's own layers that draft are not known, nor which rank keeps which tokens.
    own_drafts = drafted & (as_applied(cells, "speculative_method") == "mtp")
    bytes_per_token = bytes_per_token.mask(own_drafts | (as_applied(cells, "decode_context_parallel_size") > 1))
    counted = cells["num_gpu_blocks"].astype(float) * cells["block_size_effective"].astype(float) * bytes_per_token
    pool = cells["kv_pool_bytes"].astype(float).fillna(counted).where(cells["repeat"].notna())
    in_use = (cells["kv_cache_usage_mean"].astype(float) * pool).fillna(np.inf)
    return cells.assign(
        kv_bytes_used_mean=(cells["kv_tokens_live_mean"].astype(float) * bytes_per_token).clip(upper=in_use),
        kv_bytes_reserved_mean=cells["kv_bytes_reserved_mean"].astype(float).fillna(pool),
        kv_bytes_reserved_peak=cells["kv_bytes_reserved_peak"].astype(float).fillna(pool),
    )


@cache
def _bytes_of_token(model: str, dtype: str, draft_model: str, kv_cache_dtype: str, tensor_ranks: int) -> float:
    """Bytes of keys and values per token, on all devices together; NaN for a model whose shape is not known."""
    # A draft model has the dtype of the model that it drafts for, and its own layers in the same blocks.
    parts = [known_facts(name, dtype) for name in (model, draft_model) if name]
    return sum(part.uniform().bytes_per_token(kv_cache_dtype, tensor_ranks) if part else np.nan for part in parts)


def not_as_asked(knobs: pd.DataFrame, effective: pd.Series) -> pd.Series:
    """For each start the effective settings that differ from the requested ones; null if none does.

    Args:
        knobs: columns `knob_NAME` with what the study sets, null or `auto` where it leaves the choice to the engine.
        effective: what the engine reports, a JSON object for the same starts in the same order, or null. Settings that
            the engine does not report are not compared.

    >>> knobs = pd.DataFrame({"knob_attention_backend": ["FLASH_ATTN"], "knob_max_num_seqs": [8]})
    >>> not_as_asked(knobs, pd.Series(['{"attention_backend": "CPU_ATTN", "max_num_seqs": 8}'])).item()
    'attention_backend CPU_ATTN, not FLASH_ATTN'
    """
    names = {column: column.removeprefix("knob_") for column in knob_columns(knobs)}
    texts = []
    for of_cell, told in zip(knobs[list(names)].to_dict("records"), effective, strict=True):
        found = {} if pd.isna(told) else json.loads(told)
        pairs = [(name, of_cell[column], found.get(name)) for column, name in names.items()]
        compared = [pair for pair in pairs if not pd.isna(pair[1]) and pair[1] != "auto" and pair[2] is not None]
        differing = [f"{name} {actual}, not {asked}" for name, asked, actual in compared if actual != asked]
        texts.append("; ".join(differing) or None)
    return pd.Series(texts, index=knobs.index, dtype="string")

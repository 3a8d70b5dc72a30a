"""Bytes that an engine reserved for keys and values, and how many of them held a token.

Engines reserve memory in different ways. vLLM and HuggingFace's continuous batching allocate a pool of blocks when
they start, regardless of what the requests need later. HuggingFace's static batches allocate a cache for each batch:
DynamicCache for the padded batch's tokens so far, StaticCache at once for the batch's full length.
"""

from functools import cache

import numpy as np
import pandas as pd

from workflow_scripts.analyse.intervals.repeats import as_applied, dtypes
from workflow_scripts.catalog.gpus_and_models import load_models
from workflow_scripts.physics.model_facts import ModelFactsError, read_model_facts


def kv_memory(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells table with `kv_bytes_used_mean`, and with the pool if the engine reports no reservation per step.

    If `kv_pool_bytes` (dropped) is null, the pool is blocks x tokens per block x bytes per token.
    """
    bytes_per_token = _bytes_per_token(cells)
    counted = cells["num_gpu_blocks"].astype(float) * cells["block_size_effective"].astype(float) * bytes_per_token
    pool = cells["kv_pool_bytes"].astype(float).fillna(counted).where(cells["repeat"].notna())
    return cells.assign(
        kv_bytes_used_mean=cells["kv_tokens_live_mean"].astype(float) * bytes_per_token,
        kv_bytes_reserved_mean=cells["kv_bytes_reserved_mean"].astype(float).fillna(pool),
        kv_bytes_reserved_peak=cells["kv_bytes_reserved_peak"].astype(float).fillna(pool),
    ).drop(columns="kv_pool_bytes")


def _bytes_per_token(cells: pd.DataFrame) -> pd.Series:
    """Bytes of keys and values per token, on all devices together; NaN for a model whose shape is not known."""
    drafted = as_applied(cells, "num_speculative_tokens") > 0
    settings = zip(
        cells["model"],
        dtypes(cells),
        as_applied(cells, "speculative_model").where(drafted, ""),
        as_applied(cells, "kv_cache_dtype"),
        as_applied(cells, "tensor_parallel_size"),
        strict=True,
    )
    return pd.Series([_bytes_of_token(*setting) for setting in settings], index=cells.index, dtype=float)


@cache
def _bytes_of_token(model: str, dtype: str, draft_model: str, kv_cache_dtype: str, tensor_ranks: int) -> float:
    try:
        # A draft model has the dtype of the model that it drafts for, and its own layers in the same blocks.
        parts = [read_model_facts(load_models()[name].config, dtype) for name in (model, draft_model) if name]
        return sum(facts.uniform().bytes_per_token(kv_cache_dtype, tensor_ranks) for facts in parts)
    except (KeyError, ModelFactsError):
        return np.nan

"""Bytes of keys and values that an engine set aside, beside those that held a token.

Engines set memory aside in different ways. vLLM and HuggingFace's continuous batching allocate a pool of blocks when
they start, whatever is asked of them later. HuggingFace's static batches allocate a cache for each batch:
DynamicCache for the tokens so far of the padded batch, StaticCache at once for all that the batch may come to.
"""

import numpy as np
import pandas as pd

from workflow_scripts.catalog import load_models
from workflow_scripts.model_facts import ModelFactsError, read_model_facts


def kv_memory(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells table with `kv_bytes_used_mean`, and with the pool where the engine tells no reservation a step.

    Args:
        cells: rows of the cells table, and `kv_pool_bytes`: the bytes of the pool where the engine tells them. It is
            dropped again. Elsewhere the pool is counted: blocks, times tokens a block, times bytes a token.
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
    """Bytes of keys and values of a token on all devices together; NaN for a model whose shape is not known."""
    dtypes = cells["knob_kv_cache_dtype"] if "knob_kv_cache_dtype" in cells else pd.Series("auto", index=cells.index)
    asked = pd.DataFrame({"model": cells["model"], "dtype": dtypes.fillna("auto")})
    models = load_models()
    known: dict[tuple[str, str], float] = {}
    for name, dtype in asked.drop_duplicates().itertuples(index=False):
        try:
            facts = read_model_facts(models[name].config, models[name].dtype)
            known[name, dtype] = facts.bytes_per_token(dtype)
        except (KeyError, ModelFactsError):
            known[name, dtype] = np.nan
    return pd.Series([known[key] for key in asked.itertuples(index=False, name=None)], index=cells.index, dtype=float)

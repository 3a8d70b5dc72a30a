"""The record of a predicted KV capacity; docs/capacity.md says what its fields hold."""

from collections.abc import Mapping
from typing import Any

from workflow_scripts.predict.engine_memory import Term

Record = dict[str, Any]

# Field of a record -> term of `predict.kv_capacity`.
TERMS = {
    "device_memory_bytes": "device_memory",
    "budget_bytes": "budget",
    "weights_bytes": "weights",
    "activation_bytes": "activation",
    "cuda_graphs_bytes": "cuda_graphs",
    "other_bytes": "other",
    "kv_cache_bytes": "available_kv_cache",
    "bytes_per_token": "bytes_per_token",
    "bytes_per_block": "bytes_per_block",
    "num_blocks": "num_blocks",
    "kv_cache_tokens": "kv_cache_tokens",
    "max_concurrency": "max_concurrency",
}


def capacity_record(terms: Mapping[str, Term], **known: Any) -> Record:
    """All fields except the cell's id: the terms, each with how it was found, and what else is known.

    A field without a value is null.
    """
    return {
        "source": "predicted",
        "dtype": None,
        "vllm_version": None,
        "gpu_memory_utilization": None,
        "block_size": None,
        **{field: terms[term].value if term in terms else None for field, term in TERMS.items()},
        "infeasible": None,
        "unknown": None,
        "how": {field: terms[term].how for field, term in TERMS.items() if term in terms},
        **known,
    }

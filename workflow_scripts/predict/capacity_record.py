"""The record of a predicted KV capacity; docs/capacity.md says what its fields hold."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import JsonValue

from workflow_scripts.predict.engine_memory import Term

# Field of a line of `capacity.jsonl` -> term of `predict.kv_capacity`.
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


@dataclass(frozen=True)
class PublishedCapacity:
    """What others published for these settings."""

    gpu: str
    model: str
    num_blocks: int
    kv_cache_tokens: int | None
    max_concurrency: float | None


@dataclass(frozen=True)
class Capacity:
    """The KV capacity of an engine with certain settings. `terms`: those that are known, each with how it was found.
    `infeasible`: why the engine would refuse to start. `unknown`: why there is no prediction."""

    terms: Mapping[str, Term]
    cell_id: str = ""
    dtype: str | None = None
    vllm_version: str | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    infeasible: str | None = None
    unknown: str | None = None
    published: PublishedCapacity | None = None

    def value(self, term: str) -> float | None:
        """The value of a term; None if it is not known."""
        return self.terms[term].value if term in self.terms else None

    def line(self) -> dict[str, JsonValue]:
        """The record as a line of `capacity.jsonl`; a field without a value is null."""
        settings = ("dtype", "vllm_version", "gpu_memory_utilization", "block_size")
        return {
            **{"cell_id": self.cell_id, "source": "predicted"},
            **{name: getattr(self, name) for name in settings},
            **{field: self.value(term) for field, term in TERMS.items()},
            **{"infeasible": self.infeasible, "unknown": self.unknown},
            "how": {field: self.terms[term].how for field, term in TERMS.items() if term in self.terms},
            **({"published": asdict(self.published)} if self.published else {}),
        }

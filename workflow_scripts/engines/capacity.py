"""The KV capacity of an engine: the terms that are known of it, and the pool of blocks that its layers share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

# Field of a line of `capacity.jsonl` -> term of `engines.vllm.capacity`.
TERMS = {f"{name}_bytes": name for name in ("device_memory", "budget", "weights", "activation", "cuda_graphs", "other")}
TERMS["kv_cache_bytes"] = "available_kv_cache"
_SAME_NAME = ("bytes_per_token", "bytes_per_block", "num_blocks", "kv_cache_tokens", "max_concurrency")
TERMS |= zip(_SAME_NAME, _SAME_NAME, strict=True)


@dataclass(frozen=True)
class Term:
    """A number with its unit and how it was found."""

    value: float
    unit: str
    how: str


@dataclass(frozen=True)
class PipelineRank:
    """Part of a model: its layers from `first_layer` on, and whether it has the input table and the output matrix."""

    index: int
    first_layer: int
    layers: int
    first: bool
    last: bool


@dataclass(frozen=True)
class KvGroup:
    """Layers of one kind that share a block table, by their numbers. `reach`: tokens that a layer looks back over, None
    for all; 0 for a state, which has no tokens. `stretch`: how many times the pool's usual number of tokens a page
    holds. `layer_bytes`: of the pages of each layer, if they differ."""

    kind: str
    layers: tuple[int, ...]
    reach: int | None
    stretch: float = 1
    layer_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class KvPool:
    """The groups of a model, and the bytes of a page on a tensor rank, the largest if they differ by layer.
    `block_size`: tokens in a page of attention. `context_ranks` share the tokens of a request among them (decode
    context parallelism)."""

    groups: tuple[KvGroup, ...]
    page_bytes: int
    block_size: int
    state_blocks: int
    in_flight_tokens: int
    context_ranks: int = 1

    def bytes_per_block(self, rank: PipelineRank) -> int:
        """Bytes of one block on a pipeline rank: the pages of its layers in the group with most of them."""
        end = math.inf if rank.last else rank.first_layer + rank.layers  # the last one has the layers that draft

        def held(group: KvGroup) -> int:
            pages = group.layer_bytes or (self.page_bytes,) * len(group.layers)
            return sum(size for layer, size in zip(group.layers, pages, strict=True) if rank.first_layer <= layer < end)

        return max(map(held, self.groups))

    def blocks_of_group(self, group: KvGroup, max_model_len: int) -> int:
        """Blocks of a group that a request of `max_model_len` tokens may take. A window need not begin at the beginning
        of a block, so it may lie in one block more."""
        block_size = self.block_size * group.stretch
        if group.reach == 0:
            return self.state_blocks
        if group.reach is None:
            return math.ceil(math.ceil(max_model_len / self.context_ranks) / block_size)
        tokens = min(group.reach - 1 + self.in_flight_tokens, max_model_len)
        return math.ceil(tokens / block_size) + 1

    def blocks_per_request(self, max_model_len: int) -> int:
        return sum(self.blocks_of_group(group, max_model_len) for group in self.groups)


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

    def value(self, term: str) -> float | None:
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
        }

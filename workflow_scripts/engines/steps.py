"""How an engine with given settings forms steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from workflow_scripts.engines.capacity import KvPool
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.physics.step_time import IntArray

# How steps of an engine on a GPU are launched, other than as one captured graph: in pieces, or kernel by kernel.
PIECEWISE, EAGER = "piecewise_layers", "eager_layers"
# By the name of vLLM's mode: how steps without prompts, and steps with prompts, are launched; None is one graph.
MODES = {
    "NONE": (EAGER, EAGER),
    "PIECEWISE": (PIECEWISE, PIECEWISE),
    "FULL": (None, None),
    "FULL_DECODE_ONLY": (None, EAGER),
    "FULL_AND_PIECEWISE": (None, PIECEWISE),
}


@dataclass(frozen=True)
class SchedulerSettings:
    """Settings of the engine's scheduler, by vLLM's argument names.

    `num_blocks`: KV blocks of the device, of which the engine reserves one; None for as many as needed.
    `async_scheduling`: vLLM's default; a step is planned while the previous one still runs, so a request that ends
    keeps its place and its blocks for one more step.
    `tokens_per_step`: mean tokens that a decoding sequence gets in a step; above 1 with drafts.
    `pool`: how layers of several kinds share the blocks, which then have its `block_size`; None if all layers keep all
    tokens.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    max_model_len: int
    num_blocks: int | None = None
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    pool: KvPool | None = None
    tokens_per_step: float = 1.0

    @property
    def tokens_per_block(self) -> int:
        return (self.pool or self).block_size


@dataclass(frozen=True)
class Drafts:
    """Each decoding sequence computes `tokens` drafted tokens in a step beside its own. `facts`: of the model that
    drafts them; None if that is counted elsewhere. `checked`: whether each needs logits. `further_kv_tokens`: what
    a sequence holds on average beyond those of the schedule, which counts one per step."""

    tokens: int
    facts: ModelFacts | None = None
    checked: bool = True
    further_kv_tokens: float = 0.0


@dataclass(frozen=True)
class StaticBatches:
    """Batches of `max_num_seqs` requests that stay together until the longest is done, in the terms of a scheduler."""

    max_num_seqs: int
    max_num_batched_tokens: ClassVar[None] = None
    async_scheduling: ClassVar[bool] = False


@dataclass(frozen=True)
class Graphs:
    """Steps of up to `tokens` tokens are launched by `mode`, one of `MODES`; larger ones kernel by kernel. Of more than
    `decode_tokens`, drafted ones included, steps without prompts are launched as those with prompts.
    `sizes`: captured, in tokens."""

    tokens: int = 0
    mode: str = "FULL_AND_PIECEWISE"
    sizes: tuple[int, ...] = ()
    decode_tokens: int | None = None

    def as_shown(self, effective: Mapping[str, Any]) -> "Graphs":
        """The same, except for what a running engine shows of its settings."""
        tokens, mode = effective.get("max_cudagraph_capture_size"), effective.get("cudagraph_mode")
        mode = mode if mode in MODES else self.mode
        return replace(self, tokens=self.tokens if tokens is None else tokens, mode=mode)

    def launched(self, tokens: IntArray, prompts: IntArray, layers: int) -> dict[str, np.ndarray]:
        """Layers that are launched one by one in steps with these tokens and prompts, by kind of launch.

        >>> steps = np.array([4, 4, 600, 100]), np.array([0, 1, 1, 0])
        >>> {kind: layers.tolist() for kind, layers in Graphs(512, decode_tokens=96).launched(*steps, 32).items()}
        {'piecewise_layers': [0, 32, 0, 32], 'eager_layers': [0, 0, 32, 0]}
        """
        decode, mixed = MODES[self.mode]
        whole = (prompts == 0) & (tokens <= (self.tokens if self.decode_tokens is None else self.decode_tokens))
        return {
            kind: layers * np.where(tokens > self.tokens, kind == EAGER, np.where(whole, kind == decode, kind == mixed))
            for kind in (PIECEWISE, EAGER)
        }


Decides = SchedulerSettings | StaticBatches


@dataclass(frozen=True)
class EngineSteps:
    """How an engine forms steps. `decides` which requests a step serves: a scheduler like vLLM's, or batches that stay
    as they are. `longest_request`: most tokens of a request, prompt and answer together. `kv_cache_dtype`: by vLLM's
    names; `auto` is that of the model. `eager`: each layer starts its kernels by itself, without captured graphs.
    `one_mask`: a step's tokens attend to the KV of all its sequences, most of it masked. `graphs`: how a GPU's host
    launches steps; None on a CPU. `engines`: how many of them answer side by side, each with its own scheduler.
    `drafts`: speculative decoding; None without."""

    decides: Decides
    longest_request: int
    kv_cache_dtype: str = "auto"
    eager: bool = False
    one_mask: bool = False
    graphs: Graphs | None = None
    engines: int = 1
    drafts: Drafts | None = None

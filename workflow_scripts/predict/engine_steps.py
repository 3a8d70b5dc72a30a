"""What predictions must know of an engine: how it forms steps with given settings.

The description of an engine names a function, `steps_by`, that returns an `EngineSteps`. `predict.vllm_cells` and
`predict.hf_cells` hold those of the built-in engines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.predict.capacity_record import Capacity
from workflow_scripts.predict.graphs import Graphs
from workflow_scripts.predict.schedule import SchedulerSettings
from workflow_scripts.predict.static_batches import StaticBatches

Decides = SchedulerSettings | StaticBatches


class UnpredictableError(Exception):
    """A cell, or settings, without a prediction; the message says why."""


@dataclass(frozen=True)
class EngineSteps:
    """How an engine forms steps.

    Args:
        decides: what decides which requests a step serves: a scheduler like vLLM's, or batches that stay as they are.
        longest_request: maximum number of tokens of a request, prompt and answer together.
        kv_cache_dtype: type of the KV cache, by vLLM's names; `auto` is that of the model.
        eager: whether each layer starts its kernels by itself, without captured graphs.
        one_mask: whether a step's tokens attend to the KV of all its sequences, most of it masked.
        graphs: how a GPU's host launches steps; None on a CPU.
    """

    decides: Decides
    longest_request: int
    kv_cache_dtype: str = "auto"
    eager: bool = False
    one_mask: bool = False
    graphs: Graphs | None = None

    @property
    def max_num_batched_tokens(self) -> int | None:
        """Maximum number of tokens in a step; None for static batches."""
        return None if isinstance(self.decides, StaticBatches) else self.decides.max_num_batched_tokens


# The functions that descriptions name. Both get the knobs, the device, the model and the engine's version, empty for
# that of the default environment, and raise ModelFactsError for layers that are not modelled; the first
# UnpredictableError for such settings. The second predicts the KV cache.
StepsBy = Callable[[Any, Gpu, ModelFacts, str], EngineSteps]
CapacityBy = Callable[[Any, Gpu, ModelFacts, str], Capacity]

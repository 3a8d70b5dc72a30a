"""What predictions must know of an engine: how it forms steps with given settings.

The description of an engine names a function, `steps_by`, that returns an `EngineSteps`. `predict.vllm_cells` and
`predict.hf_cells` hold those of the built-in engines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.physics.model_facts import ModelFacts
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
    """

    decides: Decides
    longest_request: int
    kv_cache_dtype: str = "auto"
    eager: bool = False

    @property
    def limits(self) -> Mapping[str, int]:
        """The limits of a step, as fields of a prediction."""
        if isinstance(self.decides, StaticBatches):
            return {"max_num_seqs": self.decides.batch_size}
        return {name: getattr(self.decides, name) for name in ("max_num_seqs", "max_num_batched_tokens")}


# The functions that descriptions name. The first raises an UnpredictableError for settings that are not modelled; the
# second returns a record of `predict.capacity_record`. Both get the knobs, the device and the model.
StepsBy = Callable[[Any, Gpu, ModelFacts], EngineSteps]
CapacityBy = Callable[[Any, Gpu, ModelFacts], dict[str, Any]]

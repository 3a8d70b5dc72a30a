"""What is predicted of each engine with given settings: its KV capacity, and how it forms steps.

The functions get the knobs, the device, the model and the engine's version, which is empty for that of the default
environment.
"""

from collections.abc import Callable

from workflow_scripts.catalog.environments import version_of
from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.capacity import Capacity
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.hf.predictions import hf_continuous_capacity, hf_continuous_steps, hf_static_steps
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.steps import EngineSteps, UnpredictableError
from workflow_scripts.engines.vllm.predictions import vllm_capacity, vllm_steps
from workflow_scripts.physics.model_facts import ModelFacts

CAPACITIES: dict[str, Callable[..., Capacity]] = {
    "vllm": vllm_capacity,
    "vllm-serve": vllm_capacity,
    "hf-continuous": hf_continuous_capacity,
}
STEPS: dict[str, Callable[..., EngineSteps]] = {
    "vllm": vllm_steps,
    "vllm-serve": vllm_steps,
    "hf-static": hf_static_steps,
    "hf-continuous": hf_continuous_steps,
}


def steps_of(engine: EngineDescription, knobs: Knobs, gpu: Gpu, facts: ModelFacts, environment: str) -> EngineSteps:
    """How an engine forms steps; `environment` says its version, and is empty for the default one. Raises
    UnpredictableError or ModelFactsError for such settings or layers that are not modelled."""
    if not engine.predicted:
        raise UnpredictableError(f"{engine.name}: there is no schedule of this engine")
    steps: Callable[..., EngineSteps] = engine.steps or STEPS[engine.name]
    return steps(knobs, gpu, facts, version_of(environment))


def keeps_blocks(engine: EngineDescription) -> bool:
    """Whether the capacity of the engine's KV cache is predicted: it is if the cache is paged."""
    return bool(engine.capacity) or engine.name in CAPACITIES


def capacity_of(engine: EngineDescription, knobs: Knobs, gpu: Gpu, facts: ModelFacts, environment: str) -> Capacity:
    """What an engine's KV cache holds; nothing is known if it is not paged. Raises ModelFactsError."""
    if not keeps_blocks(engine):
        return Capacity({})
    capacity: Callable[..., Capacity] = engine.capacity or CAPACITIES[engine.name]
    return capacity(knobs, gpu, facts, version_of(environment))

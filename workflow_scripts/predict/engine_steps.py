"""What predictions must know of an engine with given settings: its KV capacity, and how it forms steps.

The description of an engine names a function, `steps_by`, that returns an `EngineSteps`, and `capacity_by`, which
returns a `Capacity`. Both get the knobs, the device, the model and the engine's version, empty for that of the default
environment. `predict.vllm_cells` and `predict.hf_cells` hold those of the built-in engines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name

from pydantic import JsonValue

from workflow_scripts.catalog.environments import version_of
from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.description import EngineDescription
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.physics.model_facts import ModelFacts
from workflow_scripts.predict.engine_memory import Term
from workflow_scripts.predict.schedule import SchedulerSettings
from workflow_scripts.predict.static_batches import StaticBatches
from workflow_scripts.predict.timing import Graphs

# Field of a line of `capacity.jsonl` -> term of `predict.kv_capacity`.
TERMS = {f"{name}_bytes": name for name in ("device_memory", "budget", "weights", "activation", "cuda_graphs", "other")}
TERMS["kv_cache_bytes"] = "available_kv_cache"
_SAME_NAME = ("bytes_per_token", "bytes_per_block", "num_blocks", "kv_cache_tokens", "max_concurrency")
TERMS |= zip(_SAME_NAME, _SAME_NAME, strict=True)


@dataclass(frozen=True)
class Capacity:
    """The KV capacity of an engine with certain settings. `terms`: those that are known, each with how it was found.
    `infeasible`: why the engine would refuse to start. `unknown`: why there is no prediction. `published`: what others
    published for these settings."""

    terms: Mapping[str, Term]
    cell_id: str = ""
    dtype: str | None = None
    vllm_version: str | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    infeasible: str | None = None
    unknown: str | None = None
    published: Mapping[str, JsonValue] | None = None

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
            **({"published": dict(self.published)} if self.published else {}),
        }


Decides = SchedulerSettings | StaticBatches


class UnpredictableError(Exception):
    """A cell, or settings, without a prediction; the message says why."""


@dataclass(frozen=True)
class EngineSteps:
    """How an engine forms steps. `decides` which requests a step serves: a scheduler like vLLM's, or batches that stay
    as they are. `longest_request`: most tokens of a request, prompt and answer together. `kv_cache_dtype`: by vLLM's
    names; `auto` is that of the model. `eager`: each layer starts its kernels by itself, without captured graphs.
    `one_mask`: a step's tokens attend to the KV of all its sequences, most of it masked. `graphs`: how a GPU's host
    launches steps; None on a CPU."""

    decides: Decides
    longest_request: int
    kv_cache_dtype: str = "auto"
    eager: bool = False
    one_mask: bool = False
    graphs: Graphs | None = None


def steps_of(engine: EngineDescription, knobs: Knobs, gpu: Gpu, facts: ModelFacts, environment: str) -> EngineSteps:
    """How an engine forms steps; `environment` says its version, and is empty for the default one. Raises
    UnpredictableError or ModelFactsError for such settings or layers that are not modelled."""
    if engine.steps_by is None:
        raise UnpredictableError(f"{engine.name}: there is no schedule of this engine")
    steps: EngineSteps = resolve_name(engine.steps_by)(knobs, gpu, facts, version_of(environment))
    return steps


def capacity_of(engine: EngineDescription, knobs: Knobs, gpu: Gpu, facts: ModelFacts, environment: str) -> Capacity:
    """What an engine's KV cache holds; nothing is known if it is not paged. Raises ModelFactsError."""
    if engine.capacity_by is None:
        return Capacity({})
    capacity: Capacity = resolve_name(engine.capacity_by)(knobs, gpu, facts, version_of(environment))
    return capacity

"""All engines by name. Other modules ask here instead of naming an engine.

`KVSWEEP_ENGINES=module:NAME` adds an engine from outside this package: NAME is an `EngineDescription` in a module that
Python finds, for instance through PYTHONPATH. Several are separated by commas.
"""

import os
from collections.abc import Mapping
from functools import cache
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workflow_scripts.catalog.environments import version_of
from workflow_scripts.catalog.gpus_and_models import CatalogError, Gpu
from workflow_scripts.common.knob import Knob
from workflow_scripts.common.wording import allowed_names
from workflow_scripts.engines.description import EngineDescription, UnpredictableError
from workflow_scripts.engines.hf.knobs import HF_CONTINUOUS, HF_STATIC
from workflow_scripts.engines.openai.knobs import OPENAI
from workflow_scripts.engines.sglang.knobs import SGLANG_SERVE
from workflow_scripts.engines.vllm.knobs import VLLM, VLLM_SERVE

if TYPE_CHECKING:
    from workflow_scripts.engines.capacity import Capacity
    from workflow_scripts.engines.engine import Engine, EngineSetup
    from workflow_scripts.engines.knobs import Knobs
    from workflow_scripts.engines.steps import EngineSteps
    from workflow_scripts.physics.model_facts import ModelFacts

ENGINES_VARIABLE = "KVSWEEP_ENGINES"
BUILT_IN = (VLLM, VLLM_SERVE, SGLANG_SERVE, OPENAI, HF_STATIC, HF_CONTINUOUS)


def load_engines() -> Mapping[str, EngineDescription]:
    """All engines by name: those of this package, and those that $KVSWEEP_ENGINES adds. Raises CatalogError if the
    variable names no description, or an engine's name is taken."""
    return _engines(os.environ.get(ENGINES_VARIABLE, ""))


def without_environment(engine: str) -> str:
    """The name of an engine as tables give it, without its environment.

    >>> without_environment("vllm@vllm-0.25.1"), without_environment("vllm")
    ('vllm', 'vllm')
    """
    return engine.partition("@")[0]


def get_engine(name: str) -> EngineDescription:
    """The engine with exactly this name, in any environment. Raises CatalogError if there is none."""
    name, engines = without_environment(name), load_engines()
    if name not in engines:
        raise CatalogError(f"unknown engine {name!r}; {allowed_names(name, engines)}")
    return engines[name]


def make_engine(name: str, setup: "EngineSetup") -> "Engine":
    """The engine with that name, not started yet. An adapter imports its library only when it starts, because those of
    other engines may be absent."""
    engine: Engine = _named(get_engine(name).adapter)(setup)
    return engine


def steps_of(
    engine: EngineDescription, knobs: "Knobs", gpu: Gpu, facts: "ModelFacts", environment: str
) -> "EngineSteps":
    """How an engine forms steps; `environment` says its version, and is empty for the default one. Raises
    UnpredictableError or ModelFactsError for such settings or layers that are not modelled."""
    if not engine.predicted:
        raise UnpredictableError(f"{engine.name}: there is no schedule of this engine")
    steps: EngineSteps = _named(engine.steps)(knobs, gpu, facts, version_of(environment))
    return steps


def capacity_of(
    engine: EngineDescription, knobs: "Knobs", gpu: Gpu, facts: "ModelFacts", environment: str
) -> "Capacity | None":
    """What an engine's KV cache holds; None if it is not paged. Raises ModelFactsError."""
    if not engine.capacity:
        return None
    capacity: Capacity = _named(engine.capacity)(knobs, gpu, facts, version_of(environment))
    return capacity


def modules_that_predict() -> list[str]:
    """Modules of this package that predictions import by name, as `common.sources` takes them."""
    names = {name for engine in BUILT_IN for name in (engine.steps, engine.capacity) if name}
    return sorted({name.partition(":")[0].removeprefix("workflow_scripts.") for name in names})


def _named(place: str, what: str = "a part of an engine") -> Any:
    try:
        return resolve_name(place)
    except (ImportError, AttributeError, ValueError) as e:
        raise CatalogError(f"{place!r} is not module:NAME of {what}: {e}") from e


def every_knob() -> Mapping[str, Knob]:
    """The description of each knob of any engine by name; a name that several engines share means the same to each."""
    return {name: knob for engine in load_engines().values() for name, knob in engine.knobs.described().items()}


def metrics_of_columns() -> Mapping[str, list[str]]:
    """Columns of the cells table that engines count, each with the metrics of any engine that give its value."""
    columns: dict[str, dict[str, None]] = {}
    for engine in load_engines().values():
        for column, metric in {**engine.counters, **engine.peaks}.items():
            columns.setdefault(column, {})[metric] = None
    return {column: [*metrics] for column, metrics in columns.items()}


@cache
def _engines(added: str) -> Mapping[str, EngineDescription]:
    engines = {engine.name: engine for engine in BUILT_IN}
    for place in filter(None, added.split(",")):
        engine = _named(place, f"an engine's description (${ENGINES_VARIABLE})")
        if not isinstance(engine, EngineDescription):
            raise CatalogError(f"${ENGINES_VARIABLE}: {place!r} is {type(engine).__name__}, not an EngineDescription")
        if engine.name in engines:
            raise CatalogError(f"${ENGINES_VARIABLE}: {place!r}: the name {engine.name!r} is taken; choose another one")
        engines[engine.name] = engine
    return MappingProxyType(engines)

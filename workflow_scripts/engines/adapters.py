"""The adapter of each engine."""

from collections.abc import Callable

from workflow_scripts.engines.engine import Engine, EngineSetup
from workflow_scripts.engines.hf.continuous import HfContinuous
from workflow_scripts.engines.hf.static import HfStatic
from workflow_scripts.engines.openai.adapter import OpenAiEndpoint
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.engines.sglang.adapter import SglangServe
from workflow_scripts.engines.vllm.adapter import VllmOffline, VllmServe

ADAPTERS: dict[str, Callable[[EngineSetup], Engine]] = {
    "vllm": VllmOffline,
    "vllm-serve": VllmServe,
    "sglang-serve": SglangServe,
    "openai": OpenAiEndpoint,
    "hf-static": HfStatic,
    "hf-continuous": HfContinuous,
}


def make_engine(name: str, setup: EngineSetup) -> Engine:
    """The engine with that name, not started yet. An adapter imports its library only when it starts, because those of
    other engines may be absent."""
    engine = get_engine(name)
    adapter: Callable[[EngineSetup], Engine] = engine.adapter or ADAPTERS[engine.name]
    return adapter(setup)

"""The KV capacity of every cell of a study, predicted before any of them is measured; docs/capacity.md says how.

There is one record for each cell of an engine that keeps its KV cache in blocks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.engines.capacity import Capacity
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.registry import capacity_of, get_engine
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, facts_on
from workflow_scripts.study.grid import Cell


def predict_study(cells: Iterable[Cell]) -> Iterator[Capacity]:
    """One record for each cell whose engine keeps its KV cache in blocks, in the order of the cells."""
    gpus, models = load_gpus(), load_models()

    @cache
    def facts_of(model: str, gpu: str, quantization: str | None) -> ModelFacts:
        return facts_on(models[model], gpus[gpu], cpu_here(gpus[gpu]), quantization)

    @cache
    def predicted(engine: str, gpu: str, model: str, knobs: Knobs, environment: str) -> Capacity:
        try:
            facts = facts_of(model, gpu, knobs.quantized_as).with_states_in(knobs.states_in)
            capacity = capacity_of(get_engine(engine), knobs, gpus[gpu], facts, environment) or Capacity({})
            return replace(capacity, dtype=facts.dtype)
        except ModelFactsError as e:
            return Capacity({}, unknown=str(e))

    for cell in cells:
        if get_engine(cell.engine).capacity:
            why = cell.knobs.why_unpredicted
            asked = (cell.engine, cell.gpu, cell.model, cell.knobs, cell.environment)
            yield replace(Capacity({}, unknown=why) if why else predicted(*asked), cell_id=cell.id)

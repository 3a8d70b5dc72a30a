"""The KV capacity of every cell of a study, predicted before any of them is measured; docs/capacity.md says how.

There is one record for each cell of an engine that keeps its KV cache in blocks, and one for each number of blocks in
the tables of published claims that the study names.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from workflow_scripts.catalog.gpus_and_models import load_gpus, load_models, models_by_repo, resolve
from workflow_scripts.catalog.published import Published, PublishedError
from workflow_scripts.common.records import validated
from workflow_scripts.device.device_check import cpu_here
from workflow_scripts.engines.capacity import Capacity
from workflow_scripts.engines.knobs import Knobs
from workflow_scripts.engines.registry import capacity_of, get_engine
from workflow_scripts.engines.vllm.knobs import VllmKnobs
from workflow_scripts.engines.vllm.predictions import vllm_capacity
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


def predict_published(published: Published, claims: Iterable[str]) -> Iterator[Capacity]:
    """One record for each number of blocks in the tables of these claims; `published` holds what was published. Such a
    table is `kv_blocks_*.csv`, with the columns gpu, model (its name on the hub), vllm_version, gpu_memory_utilization,
    max_model_len, block_size, num_gpu_blocks, kv_cache_tokens and max_concurrency. Raises InputError if a claim, table
    or column is missing, a value is not allowed, or no catalogue entry names a device."""
    by_table = {claim.table: claim for claim in map(published.claim, claims) if claim.table}
    for table in sorted(name for name in by_table if name.startswith("kv_blocks_")):
        for number, row in enumerate(published.table(by_table[table]), start=1):
            try:
                if row["num_gpu_blocks"] is not None:
                    yield replace(_predict_row(row), cell_id=f"published/{Path(table).stem}/{number}")
            except KeyError as e:
                raise PublishedError(f"{published.folder / table}: there is no column {e}") from None


def _predict_row(row: Mapping[str, Any]) -> Capacity:
    asked = ("block_size", "max_model_len", "gpu_memory_utilization")
    knobs = validated(VllmKnobs, {name: row[name] for name in asked}, row["model"])
    gpus, model = resolve(row["gpu"]), models_by_repo().get(row["model"])
    if len(gpus) > 1:
        capacity = Capacity({}, unknown=f"{row['gpu']} may be any of {', '.join(gpu.name for gpu in gpus)}")
    elif model is None:
        capacity = Capacity({}, unknown=f"{row['model']} is no model of config/models")
    else:
        capacity = vllm_capacity(knobs, gpus[0], facts_on(model, gpus[0], cpu_here(gpus[0])), row["vllm_version"])
    stated = {name: row[name] for name in ("gpu", "model", "kv_cache_tokens", "max_concurrency")}
    return replace(
        capacity,
        vllm_version=row["vllm_version"],
        gpu_memory_utilization=knobs.gpu_memory_utilization,
        block_size=knobs.block_size,
        infeasible=None,  # others ran it
        published=stated | {"num_blocks": row["num_gpu_blocks"]},
    )

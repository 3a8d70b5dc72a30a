"""What vLLM does with the settings of a cell: its KV capacity, and how it forms steps."""

from collections.abc import Mapping
from dataclasses import replace

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.block_sizes import default_block_size, why_block_size_is_refused
from workflow_scripts.engines.vllm_engines import VllmKnobs, VllmServeKnobs
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError
from workflow_scripts.predict.capacity_record import Capacity
from workflow_scripts.predict.compute_capability import why_gpu_is_refused
from workflow_scripts.predict.engine_memory import (
    GIB,
    CapacityError,
    EngineSettings,
    Term,
    batch_of,
    capture_sizes,
    captured_limit,
)
from workflow_scripts.predict.engine_steps import EngineSteps, UnpredictableError
from workflow_scripts.predict.graphs import Graphs
from workflow_scripts.predict.kv_capacity import predict_capacity
from workflow_scripts.predict.kv_groups import kv_pool
from workflow_scripts.predict.schedule import SchedulerSettings

DEFAULT_UTILIZATION = 0.92  # vLLM 0.32's own; 0.9 before


def engine_settings(knobs: VllmKnobs, gpu: Gpu) -> EngineSettings:
    """How the engine is started: the knobs, and those defaults of vLLM that a study can change."""
    given_gib = knobs.cpu_kv_cache_gib if gpu.kind == "cpu" else None
    return EngineSettings(
        block_size=knobs.block_size or default_block_size(gpu.kind),
        gpu_memory_utilization=knobs.gpu_memory_utilization or DEFAULT_UTILIZATION,
        max_model_len=knobs.max_model_len,
        tensor_parallel_size=knobs.tensor_parallel_size or 1,
        pipeline_parallel_size=knobs.pipeline_parallel_size or 1,
        enable_expert_parallel=bool(knobs.enable_expert_parallel),
        num_speculative_tokens=knobs.num_speculative_tokens or 0,
        kv_cache_dtype=knobs.kv_cache_dtype or "auto",
        max_num_seqs=knobs.max_num_seqs,
        max_num_batched_tokens=knobs.max_num_batched_tokens,
        enable_prefix_caching=knobs.enable_prefix_caching,
        enforce_eager=bool(knobs.enforce_eager),
        kv_cache_memory_bytes=given_gib * GIB if given_gib else None,
        num_gpu_blocks_override=knobs.num_gpu_blocks_override,
        usage="server" if isinstance(knobs, VllmServeKnobs) else "offline",
    )


def vllm_capacity(knobs: VllmKnobs, gpu: Gpu, facts: ModelFacts) -> Capacity:
    """The KV capacity after one start of vLLM with these settings."""
    settings = engine_settings(knobs, gpu)
    refused = (
        why_gpu_is_refused(gpu, knobs, facts)
        or why_block_size_is_refused(gpu.kind, settings.block_size)
        or _too_long(settings, facts)
    )
    if gpu.kind == "cpu" and knobs.cpu_kv_cache_gib is None and knobs.num_gpu_blocks_override is None:
        unknown = "without cpu_kv_cache_gib the cache takes a share of the host's memory, which is not known beforehand"
        return capacity_of_settings(settings, {}, infeasible=refused, unknown=unknown)
    if knobs.draft_model:
        unknown = "a draft model has weights and a KV cache of its own, which are not predicted"
        return capacity_of_settings(settings, {}, infeasible=refused, unknown=unknown)
    try:
        terms = predict_capacity(facts, gpu, settings)
        refused = refused or _beyond_the_gpu(facts, gpu, settings)
    except CapacityError as e:
        return capacity_of_settings(settings, {}, infeasible=refused or str(e))
    except ModelFactsError as e:
        return capacity_of_settings(settings, {}, infeasible=refused, unknown=str(e))
    return capacity_of_settings(settings, terms, infeasible=refused or _too_small(terms))


def _too_long(settings: EngineSettings, facts: ModelFacts) -> str | None:
    if settings.max_model_len is None or settings.max_model_len <= facts.max_positions:
        return None
    return f"max_model_len {settings.max_model_len} is beyond the model's {facts.max_positions} positions"


def _beyond_the_gpu(facts: ModelFacts, gpu: Gpu, settings: EngineSettings) -> str | None:
    """Why the requested blocks do not fit; None if they do, or on a CPU, where nothing limits them but its memory."""
    asked = settings.num_gpu_blocks_override
    if asked is None or gpu.kind == "cpu":
        return None
    terms = predict_capacity(facts, gpu, replace(settings, num_gpu_blocks_override=None, gpu_memory_utilization=1.0))
    fit = max(0, int(terms["num_blocks"].value))
    return None if asked <= fit else f"num_gpu_blocks_override {asked} is beyond the {fit} blocks that fit on the GPU"


def _too_small(terms: Mapping[str, Term]) -> str | None:
    if terms["feasible"].value:
        return None
    left = terms["available_kv_cache"].value
    if left < 0:
        budget = terms["budget"].value
        return f"weights and overhead take {(budget - left) / GIB:.2f} GiB of a budget of {budget / GIB:.2f} GiB"
    blocks = int(terms["num_blocks"].value)
    return f"{left / GIB:.2f} GiB are {blocks} blocks, too few: {terms['feasible'].how}"


def capacity_of_settings(
    settings: EngineSettings, terms: Mapping[str, Term], *, infeasible: str | None = None, unknown: str | None = None
) -> Capacity:
    """The capacity of an engine with these settings."""
    given = settings.kv_cache_memory_bytes is not None or settings.num_gpu_blocks_override is not None
    return Capacity(
        terms,
        block_size=settings.block_size,
        gpu_memory_utilization=None if given else settings.gpu_memory_utilization,
        vllm_version=settings.vllm_version,
        infeasible=infeasible,
        unknown=unknown,
    )


def vllm_steps(knobs: VllmKnobs, gpu: Gpu, facts: ModelFacts) -> EngineSteps:
    """The scheduler of vLLM with these settings.

    Raises:
        UnpredictableError: what the settings do is not modelled, or how vLLM plans the KV cache of such layers.
    """
    if knobs.drafts:
        raise UnpredictableError("speculative decoding: which drafted tokens are accepted is not known beforehand")
    if (knobs.pipeline_parallel_size or 1) > 1:
        raise UnpredictableError("pipeline_parallel_size above 1: batches that take turns are not modelled")
    if (knobs.tensor_parallel_size or 1) > 1 and gpu.kind == "cpu":
        raise UnpredictableError("tensor_parallel_size above 1: ranks that share a CPU are not modelled")
    engine = engine_settings(knobs, gpu)
    batch = batch_of(engine, facts, gpu)
    try:
        pool = None if facts.is_uniform else kv_pool(facts, engine, batch, gpu.kind)
    except ModelFactsError as e:
        raise UnpredictableError(str(e)) from None
    if pool and any(group.stretch > 1 for group in pool.groups):
        raise UnpredictableError(f"{facts.model_type}: groups with blocks of unequal length are not modelled")
    scheduler = SchedulerSettings(
        max_num_seqs=batch.max_num_seqs,
        max_num_batched_tokens=batch.max_num_batched_tokens,
        block_size=engine.block_size if pool is None else pool.block_size,
        max_model_len=batch.max_model_len,
        enable_prefix_caching=engine.caches_prefixes(facts),
        enable_chunked_prefill=knobs.enable_chunked_prefill is not False,
        async_scheduling=gpu.kind != "cpu",  # vLLM turns it off there
        pool=pool,
    )
    graphs = None
    if gpu.kind != "cpu":
        graphs = Graphs(0 if engine.enforce_eager else capture_sizes(batch, captured_limit(gpu))[-1])
    return EngineSteps(scheduler, batch.max_model_len, engine.kv_cache_dtype, engine.enforce_eager, graphs=graphs)


def serve_steps(knobs: VllmServeKnobs, gpu: Gpu, facts: ModelFacts) -> EngineSteps:
    """The scheduler of vLLM's server with these settings.

    Users who send the next request at once when the last one is answered keep as many requests in progress as there
    are users. So it is the schedule of requests that all wait from the start, with that limit.

    Raises:
        UnpredictableError: what the settings do is not modelled.
    """
    if knobs.users is not None and knobs.request_rate_per_s is not None:
        raise UnpredictableError("users and a rate: which request waits depends on answers, which is not modelled")
    steps = vllm_steps(knobs, gpu, facts)
    if knobs.users is None:
        return steps
    assert isinstance(steps.decides, SchedulerSettings)
    return replace(steps, decides=replace(steps.decides, max_num_seqs=knobs.max_concurrency), closed_loop=True)

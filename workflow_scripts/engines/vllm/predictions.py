"""What vLLM does with the settings of a cell: its KV capacity, and how it forms steps."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workflow_scripts.catalog.gpus_and_models import Gpu, get_model
from workflow_scripts.engines.capacity import Capacity, Term
from workflow_scripts.engines.description import UnpredictableError
from workflow_scripts.engines.steps import Drafts, EngineSteps, Graphs, SchedulerSettings
from workflow_scripts.engines.vllm.capacity import predict_capacity
from workflow_scripts.engines.vllm.knobs import DEFAULT_BLOCK_SIZE, VllmKnobs, VllmServeKnobs, why_block_size_is_refused
from workflow_scripts.engines.vllm.kv_groups import kv_pool
from workflow_scripts.engines.vllm.memory import (
    ASYNC_SCHEDULING,
    GIB,
    CapacityError,
    EngineSettings,
    batch_of,
    decodes_as_one_graph,
    sizes_of_graphs,
    with_drafting_layers,
)
from workflow_scripts.physics.cache_types import CACHE_TYPES
from workflow_scripts.physics.layers import CompressedAttention, Experts, State
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_config, read_model_facts

_MORE_MEMORY = (0, 20)  # `gpu_memory_utilization` is 0.92 by default, and 0.9 before (vllm/config/cache.py)
_WEIGHTS_FROM_7_5 = ("awq", "awq_marlin", "fp8", "fp8_per_tensor", "int8")  # others run on any GPU of the catalogue
_BACKENDS_FROM_8 = ("FLASH_ATTN", "FLASHINFER")
_EIGHT_BITS = ("fp8", "fp8_e4m3", "fp8_e5m2")
# The kinds of devices whose attention backends take a type of KV cache; the others are for all.
_TAKEN_ON = {
    **dict.fromkeys(("nvfp4", "nvfp4_4over6", "fp8_ds_mla", "nvfp4_ds_mla"), ("cuda",)),
    **dict.fromkeys(("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head"), ("cuda", "rocm")),
    **{name: ("cuda", "rocm") for name in CACHE_TYPES if name.startswith("turboquant")},
    "ultraquant_4bit": ("rocm",),
    "fp8_inc": (),
}
NOT_ON_A_CPU = "synthetic_acceptance_length needs a GPU: vLLM's CPU kernels accept only as the model does (0.32)"
ONE_ENGINE = "data_parallel_size above 1 needs engine vllm-serve: vllm.LLM has one engine"
NO_EXPERTS = "data_parallel_size above 1 with experts needs a GPU: vLLM's CPU engines cannot exchange tokens (0.32)"


def engine_settings(knobs: VllmKnobs, gpu: Gpu, version: str = "") -> EngineSettings:
    """How the engine is started: the knobs, and those defaults of vLLM that a study can change."""
    given_gib = knobs.cpu_kv_cache_gib if gpu.kind == "cpu" else None
    values: dict[str, Any] = {
        **({"vllm_version": version} if version else {}),
        "block_size": DEFAULT_BLOCK_SIZE[gpu.kind],
        **{name: value for name, value in knobs.set_values().items() if name in EngineSettings.__dataclass_fields__},
    }
    settings = EngineSettings(
        **values | ({"kv_cache_memory_bytes": given_gib * GIB} if given_gib else {}),
        usage="server" if isinstance(knobs, VllmServeKnobs) else "offline",
    )
    share = knobs.gpu_memory_utilization or (0.92 if settings.version >= _MORE_MEMORY else 0.9)
    return replace(settings, gpu_memory_utilization=share)


def vllm_capacity(knobs: VllmKnobs, gpu: Gpu, facts: ModelFacts, version: str = "") -> Capacity:
    settings = engine_settings(knobs, gpu, version)
    length, most = settings.max_model_len or 0, facts.max_positions
    refused = (
        why_gpu_is_refused(gpu, knobs, facts)
        or why_block_size_is_refused(gpu.kind, settings.block_size)
        or (ONE_ENGINE if knobs.engines > 1 and settings.usage == "offline" else None)
        or (NOT_ON_A_CPU if knobs.drafts and knobs.synthetic_acceptance_length and gpu.kind == "cpu" else None)
        or (NO_EXPERTS if knobs.engines > 1 and gpu.kind == "cpu" and any(facts.of_kind(Experts)) else None)
        or (f"max_model_len {length} is beyond the model's {most} positions" if length > most else None)
    )
    terms: Mapping[str, Term] = {}
    unknown = None
    given = settings.kv_cache_memory_bytes is not None or settings.num_gpu_blocks_override is not None
    if gpu.kind == "cpu" and not given:
        unknown = "without cpu_kv_cache_gib the cache takes a share of the host's memory, which is not known beforehand"
    elif gpu.kind == "cpu" and knobs.states_in != "auto" and any(facts.of_kind(State)):
        unknown = "the processor decides which mamba_ssm_cache_dtype vLLM keeps"
    else:
        try:
            if draft := draft_facts(knobs, facts):
                if not (draft.is_uniform and facts.is_uniform):
                    raise ModelFactsError(
                        "how vLLM groups a draft model's layers with layers of several kinds is unknown"
                    )
                settings = replace(settings, draft_stack=draft.stack)
            terms = predict_capacity(facts, gpu, settings)
            refused = refused or _too_small(terms)
        except CapacityError as e:
            refused, terms = refused or str(e), {}
        except ModelFactsError as e:
            unknown, terms = str(e), {}
    return Capacity(
        terms,
        block_size=settings.block_size,
        gpu_memory_utilization=None if given else settings.gpu_memory_utilization,
        vllm_version=settings.vllm_version,
        infeasible=refused,
        unknown=unknown,
    )


def draft_facts(knobs: VllmKnobs, facts: ModelFacts) -> ModelFacts | None:
    """Facts of the draft model, which has the dtype of the model that it drafts for; None without one. The model's own
    layers that draft are like its last one that attends to all tokens, and use its vocabulary. Raises ModelFactsError
    if its structure is not known."""
    if knobs.drafts and knobs.speculative_method == "mtp":
        full = with_drafting_layers(facts, 1)[-1].mixers[0]
        like = next(layer for layer in reversed(facts.stack) if full in layer.mixers)
        return replace(facts, stack=(like,) * facts.drafting_layers)
    if not knobs.draft_model:
        return None
    config = get_model(knobs.draft_model).config
    facts = read_model_facts(config, facts.dtype)
    words = read_config(config).get("draft_vocab_size")  # EAGLE-3 may draft only the most frequent tokens
    return replace(facts, vocab=words) if isinstance(words, int) and words > 0 else facts


def why_gpu_is_refused(gpu: Gpu, knobs: VllmKnobs, facts: ModelFacts) -> str | None:
    """Why vLLM does not start on this GPU, with a remedy; None if its compute capability is sufficient.

    These are the rules of vLLM 0.32: `check_if_supports_dtype` of `platforms/cuda.py`, `get_min_capability` of its
    quantization methods, and its attention backends. fp8 needs no GPU with fp8 arithmetic: Marlin's kernels accept fp8
    weights from 7.5 on, and FlashInfer accepts an fp8 cache from 8.0 on.

    >>> from workflow_scripts.catalog.gpus_and_models import get_gpu, get_model
    >>> from workflow_scripts.physics.model_facts import read_model_facts
    >>> llama = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
    >>> why_gpu_is_refused(get_gpu("t4"), VllmKnobs(), llama)
    'bfloat16 needs compute capability 8.0, and t4 has 7.5: set dtype: float16 in the model.yaml of the model'
    >>> why_gpu_is_refused(get_gpu("a10"), VllmKnobs(), llama) is None
    True
    """
    cache = knobs.kv_cache_dtype or "auto"
    if gpu.kind not in _TAKEN_ON.get(cache, (gpu.kind,)):
        return f"no attention backend takes kv_cache_dtype {cache} on {gpu.kind}"
    weights, backend = facts.quantization, knobs.attention_backend
    of_cache, in_fp8 = f"kv_cache_dtype {cache}", cache in _EIGHT_BITS
    by_others = in_fp8 and backend not in (None, "FLASHINFER")
    rules = (
        (facts.dtype == "bfloat16", "bfloat16", 8.0, "set dtype: float16 in the model.yaml of the model"),
        (weights in _WEIGHTS_FROM_7_5, f"quantization {weights}", 7.5, "gptq runs on any GPU from 6.0 on"),
        (backend in _BACKENDS_FROM_8, f"attention_backend {backend}", 8.0, "leave attention_backend out"),
        (cache == "bfloat16", of_cache, 8.0, "set kv_cache_dtype: float16"),
        (in_fp8 or cache.startswith("nvfp4"), of_cache, 8.0, "set kv_cache_dtype: auto"),
        (any(facts.of_kind(CompressedAttention)), "compressed attention", 9.0, "take a newer GPU"),
        (by_others, f"{of_cache} with {backend}", 8.9, "set attention_backend: FLASHINFER"),
    )
    has = float(gpu.compute_capability or "inf")
    for applies, what, needed, remedy in rules:
        if applies and has < needed:
            return f"{what} needs compute capability {needed}, and {gpu.name} has {has}: {remedy}"
    return None


def _too_small(terms: Mapping[str, Term]) -> str | None:
    if terms["feasible"].value:
        return None
    left = terms["available_kv_cache"].value
    if left < 0:
        budget = terms["budget"].value
        return f"weights and overhead take {(budget - left) / GIB:.2f} GiB of a budget of {budget / GIB:.2f} GiB"
    blocks = int(terms["num_blocks"].value)
    return f"{left / GIB:.2f} GiB are {blocks} blocks, too few: {terms['feasible'].how}"


def _drafts(knobs: VllmKnobs, facts: ModelFacts) -> tuple[Drafts | None, float]:
    """What each step drafts, and the mean tokens that a sequence gets in it. Raises UnpredictableError if these are not
    known, and ModelFactsError if the draft model is not."""
    if not knobs.drafts:
        return None, 1.0
    draft, accepted = draft_facts(knobs, facts), knobs.synthetic_acceptance_length
    if draft is None:
        raise UnpredictableError(f"speculative decoding by {knobs.speculative_method}: its cost is not modelled")
    if accepted is None:
        how = "synthetic_acceptance_length sets it"
        raise UnpredictableError(f"speculative decoding: which drafted tokens are accepted is not known; {how}")
    if not (draft.is_uniform and facts.is_uniform):
        raise UnpredictableError("speculative decoding with layers of several kinds is not modelled")
    if knobs.speculative_method == "mtp":  # each pass takes one of the layers
        draft = replace(draft, stack=draft.stack[:1])
    return Drafts(knobs.num_speculative_tokens or 0, draft), accepted


def vllm_steps(knobs: VllmKnobs, gpu: Gpu, facts: ModelFacts, version: str = "") -> EngineSteps:
    """The scheduler of vLLM with these settings. Raises UnpredictableError if what the settings do is not modelled, and
    ModelFactsError if it is not known how vLLM plans the KV cache of such layers."""
    drafts, tokens_per_step = _drafts(knobs, facts)
    gpu_runs = gpu.kind != "cpu"
    engine = engine_settings(knobs, gpu, version)
    batch = batch_of(engine, facts, gpu)
    pool = None if facts.is_uniform else kv_pool(facts, engine, batch, gpu.kind)
    not_modelled = {
        "enable_chunked_prefill false: steps of whole prompts": knobs.enable_chunked_prefill is False,
        "pipeline_parallel_size above 1: batches that take turns": engine.pipeline_parallel_size > 1,
        "decode_context_parallel_size above 1: ranks that share tokens": engine.decode_context_parallel_size > 1,
        "tensor_parallel_size or data_parallel_size above 1: ranks that share a CPU": knobs.ranks > 1 and not gpu_runs,
        "data_parallel_size above 1: engines that share experts": knobs.engines > 1 and any(facts.of_kind(Experts)),
        f"{facts.model_type}: groups with blocks of unequal length": pool and any(g.stretch != 1 for g in pool.groups),
    }
    for what, applies in not_modelled.items():
        if applies:
            raise UnpredictableError(f"{what} are not modelled")
    scheduler = SchedulerSettings(
        max_num_seqs=batch.max_num_seqs,
        max_num_batched_tokens=batch.max_num_batched_tokens,
        block_size=engine.block_size if pool is None else pool.block_size,
        max_model_len=batch.max_model_len,
        enable_prefix_caching=engine.caches_prefixes(facts),
        async_scheduling=gpu_runs and engine.version >= ASYNC_SCHEDULING,  # vLLM turns it off on a CPU
        pool=pool,
        tokens_per_step=tokens_per_step,
    )
    sizes = sizes_of_graphs(engine, batch, gpu)
    decoded = decodes_as_one_graph(sizes, batch.max_num_seqs * (1 + engine.num_speculative_tokens))
    graphs = Graphs(max(sizes, default=0), sizes=tuple(sizes), decode_tokens=decoded) if gpu_runs else None
    return EngineSteps(
        scheduler,
        batch.max_model_len,
        engine.kv_cache_dtype,
        engine.enforce_eager,
        graphs=graphs,
        engines=knobs.engines,
        drafts=drafts,
    )

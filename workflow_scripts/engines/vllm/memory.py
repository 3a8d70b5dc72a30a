"""Memory terms of one device as vLLM profiles them at start-up: budget, weights, activation, graphs, the rest.

vLLM loads the weights, runs a dummy batch of `max_num_batched_tokens` tokens and samples for `max_num_seqs` sequences.
The rest of `gpu_memory_utilization` times the device's memory goes to the KV cache (vllm/v1/worker/gpu_worker.py,
`determine_available_memory`). Weights, layer outputs and copies of the logits are counted. What the driver and
libraries take does not follow from a config; it is given by the constants below, with their origin.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Literal

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.common.faults import InputError
from workflow_scripts.engines.capacity import PipelineRank, Term
from workflow_scripts.physics.layers import Experts, Layer, State
from workflow_scripts.physics.model_facts import DTYPE_BYTES, ModelFacts, ModelFactsError

GIB = 2**30
MIB = 2**20

# vLLM versions at which the profiled memory changed, according to release notes, source and published logs.
V1 = (0, 8)  # the core of today by default; nothing is predicted for earlier ones
ASYNC_SCHEDULING = (0, 14)  # a step is planned while the one before runs (vllm-project/vllm#27614)
_FLASHINFER_SAMPLER = ((0, 10), (0, 12))  # used where it is installed, as the log of 0.10.1.1 says
_FUSED_SAMPLER = (0, 17)  # top-k and top-p without sorting the vocabulary
_MORE_LIBRARIES = (0, 18)
_COUNTS_GRAPHS = (0, 21)  # the estimate of CUDA graphs is subtracted from the budget
_CACHES_STATES = (0, 28)
_BLOCK_PER_SEQUENCE = (0, 20)  # too few blocks for states are refused (vllm-project/vllm#38270); 0.19.0 captures fewer
_IN_PLACE_SAMPLER = (0, 25, 1)  # model runner V2 for dense models: no float32 copies of the logits

# vLLM versions at which the batch sizes changed for which CUDA graphs are captured by default.
_TWO_STEPS = (0, 11, 1)  # every 16th size beyond 256, and every 8th before
_COUNTS_DRAFTS = (0, 13)
_WITH_BUDGET = (0, 21)  # max_num_batched_tokens is captured, if small
_MORE_ON_BLACKWELL = (0, 28)
_WITH_DRAFTS = (0, 29)  # sizes of whole sequences with their drafted tokens (vllm-project/vllm#50488)
_WITH_SEQS = (0, 31)  # max_num_seqs is captured (vllm-project/vllm#57355)

# Copies of [max_num_seqs, vocab] in float32 beside the logits themselves. Fused: the logits, the masked logits and the
# probabilities. Sort: the logits, sorted values (1), their int64 indices (2) and the sort's own buffers (5).
_FLOAT32_COPIES = {"in-place": 0, "fused": 3, "sort": 9}

# Device memory that PyTorch does not allocate: CUDA modules and libraries. vLLM reports it as non-torch memory: on an
# H100 0.13 GiB until 0.17, and 0.25 GiB from 0.18 on.
_NON_TORCH_BYTES, _NON_TORCH_BYTES_BEFORE = 0.25 * GIB, 0.13 * GIB

# Driver memory of captured graphs, observed with 28 layers: 0.50 GiB for 67 sizes in 29 pieces each (vLLM 0.10.1.1),
# and 0.31 GiB for 35 sizes in pieces and 19 of them as a whole (0.22.0).
_GRAPH_BYTES_PER_PIECE, _WHOLE_GRAPH_BYTES_PER_LAYER = 0.26 * MIB, 0.1 * MIB
# vLLM captures two graphs of a mode and takes what the device lost at the second one times their number
# (`profile_cudagraph_memory`), so the size follows from what the allocator had free, and from no code. Those of models
# with experts took 1.0 to 1.5 GiB more than dense ones in three public logs (0.29, gpt-oss-20b on L4), neither by their
# number nor by the batch. Far more is public: 119 GiB on GB300 (vllm-project/vllm#53013), two thirds of the cache on
# B200 (#45178).
MORE_GRAPHS_OF_EXPERTS = 1.5 * GIB

# PyTorch allocates large blocks in steps of 2 MiB, and vLLM loads weights with blocks above 20 MiB never split.
_ALLOCATOR_STEP, _NEVER_SPLIT = 2 * MIB, 20 * MIB

_VOCABULARY_STEP = 64  # vLLM pads the vocabulary to a multiple of this


class CapacityError(InputError):
    """Settings without a prediction; the message says which and what is allowed."""


@dataclass(frozen=True)
class EngineSettings:
    """How the engine is started, by vLLM's argument names; None is the engine's default on this GPU.

    `usage` distinguishes the API server from the offline `LLM` class, whose default batch sizes differ.
    `num_speculative_tokens` are drafted per step: by looking up n-grams, or by `draft_layers` layers that the model has
    for this (multi-token prediction), each with attention to all tokens, or by a model of its own with the layers of
    `draft_stack`.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    kv_cache_dtype: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    vllm_version: str = "0.32.0"
    enable_prefix_caching: bool | None = None
    num_speculative_tokens: int = 0
    draft_layers: int = 0
    draft_stack: tuple[Layer, ...] = ()
    usage: Literal["server", "offline"] = "server"

    @cached_property
    def version(self) -> tuple[int, ...]:
        """The version's numbers, for comparisons.

        >>> EngineSettings(vllm_version="0.12.0.dev9+g5d264f4a").version
        (0, 12, 0)

        Raises CapacityError if the text is not a version.
        """
        match = re.match(r"v?(\d+(?:\.\d+)*)", self.vllm_version)
        if match is None:
            raise CapacityError(f"vllm_version {self.vllm_version!r} is not a version such as 0.32.0")
        return tuple(int(part) for part in match[1].split("."))

    def caches_prefixes(self, facts: ModelFacts) -> bool:
        """Whether prefixes are cached: as set, else by vLLM's default, which excluded models with states before 0.28
        (vllm-project/vllm#50991)."""
        if self.enable_prefix_caching is not None:
            return self.enable_prefix_caching
        return self.version >= _CACHES_STATES or not any(facts.of_kind(State))


@dataclass(frozen=True)
class BatchLimits:
    """Sizes of the largest batch that the engine prepares for."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


def batch_of(settings: EngineSettings, facts: ModelFacts, gpu: Gpu) -> BatchLimits:
    """The sizes as set, else vLLM's defaults (`EngineArgs.get_batch_defaults`), which depend on the GPU."""
    memory_gib = (gpu.usable_memory_bytes or gpu.memory_bytes or 0) / GIB
    offline = settings.usage == "offline"
    if gpu.kind == "cpu":
        ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
        seqs, tokens = (256 * ranks, 4096 * ranks) if offline else (128 * ranks, 2048 * ranks)
    elif memory_gib >= 160:
        seqs, tokens = 1024, 16384
    elif memory_gib >= 70 and "a100" not in gpu.name:
        seqs, tokens = 1024, 16384 if offline else 8192
    else:
        seqs, tokens = 256, 8192 if offline else 2048
    max_model_len = settings.max_model_len or facts.max_positions
    max_num_seqs = settings.max_num_seqs or seqs
    budget = settings.max_num_batched_tokens or min(tokens, max_num_seqs * max_model_len)
    return BatchLimits(max_model_len, settings.max_num_seqs or min(seqs, budget), budget)


def needs_a_block_each(facts: ModelFacts, gpu: Gpu, settings: EngineSettings) -> bool:
    """Whether vLLM refuses fewer blocks than `max_num_seqs`, because a captured graph of decode steps holds a state of
    each sequence (`resolve_cudagraph_mode_and_sizes` in vllm/config/compilation.py)."""
    captures = gpu.kind != "cpu" and not settings.enforce_eager and settings.version >= _BLOCK_PER_SEQUENCE
    return captures and any(facts.of_kind(State))


def split_layers(layers: int, pipeline_parallel_size: int) -> list[PipelineRank]:
    """Layers of each pipeline rank; a remainder goes to the ranks before the last, beginning from the end.

    >>> [rank.layers for rank in split_layers(14, 4)]
    [3, 4, 4, 3]
    """
    size = pipeline_parallel_size
    per_rank = [layers // size] * size
    for i in range(2, layers % size + 2):
        per_rank[-i] += 1
    first_layers = accumulate(per_rank, initial=0)
    return [
        PipelineRank(i, start, n, first=i == 0, last=i == size - 1)
        for i, (start, n) in enumerate(zip(first_layers, per_rank, strict=False))
    ]


def with_drafting_layers(
    facts: ModelFacts, draft_layers: int, draft_stack: tuple[Layer, ...] = ()
) -> tuple[Layer, ...]:
    """The layers, and those that draft: of the draft model, or each with the attention to all tokens that the model has
    elsewhere."""
    if not draft_layers:
        return facts.stack + draft_stack
    full = next((mixer for mixer in facts.mixers if not isinstance(mixer, State) and mixer.window is None), None)
    if full is None:
        raise ModelFactsError(f"{facts.model_type}: no layer attends to all tokens; what drafts is unknown")
    return facts.stack + (Layer((full,), (), 0),) * draft_layers


def bytes_per_token(facts: ModelFacts, settings: EngineSettings, rank: PipelineRank) -> Term:
    """Bytes of a token in all layers of one device that keep it, at least for a while. If there are more ranks than KV
    heads, each rank keeps a whole head; it keeps all of a latent vector."""
    drafting = with_drafting_layers(facts, settings.draft_layers, settings.draft_stack)[facts.layers :]
    return _bytes_per_token(facts, settings.kv_cache_dtype, settings.tensor_parallel_size, drafting, rank)


@cache
def _bytes_per_token(
    facts: ModelFacts, kv_cache_dtype: str, tensor: int, drafting: tuple[Layer, ...], rank: PipelineRank
) -> Term:
    stack = dict(enumerate(facts.stack[rank.first_layer : rank.first_layer + rank.layers], rank.first_layer))
    stack |= dict(enumerate(drafting if rank.last else (), facts.layers))
    mixers = Counter(
        (mixer, facts.cache_type(kv_cache_dtype, number))
        for number, layer in stack.items()
        for mixer in layer.mixers
        if not isinstance(mixer, State)
    )
    each = [(count, mixer.kind, mixer.cache_bytes(stored, tensor)) for (mixer, stored), count in mixers.items()]
    terms = (f"{count} layers ({kind}) x {size:,} bytes" for count, kind, size in each)
    return Term(sum(count * size for count, _, size in each), "bytes", f"{' + '.join(terms)}, on one device")


def memory_terms(
    facts: ModelFacts, gpu: Gpu, settings: EngineSettings, rank: PipelineRank, log_gib: float | None
) -> dict[str, Term]:
    """Bytes of one device, from its memory down to what is left for the KV cache; only the latter if the settings, or
    the engine's log as `log_gib`, give it. Raises CapacityError if the device has no memory of its own and no size of
    the KV cache is given."""
    if settings.kv_cache_memory_bytes is not None:
        given = Term(settings.kv_cache_memory_bytes, "bytes", "given: the engine does not profile")
        return {"available_kv_cache": given}
    if log_gib is not None:
        return {"available_kv_cache": Term(round(log_gib * GIB), "bytes", f"log: available_kv_cache_gib {log_gib:g}")}
    if settings.draft_layers or settings.draft_stack:
        raise ModelFactsError("a draft model or layers that draft have weights of their own, which are not predicted")
    batch = batch_of(settings, facts, gpu)
    memory = device_memory(gpu)
    budget = math.ceil(memory.value * settings.gpu_memory_utilization)
    taken = {
        "weights": weights(facts, gpu, settings, rank),
        "activation": activation(facts, settings, rank, batch),
        "cuda_graphs": cuda_graphs(facts, gpu, settings, rank, batch),
        "other": other(settings),
    }
    left = budget - sum(term.value for term in taken.values())
    kv_cache = Term(round(left), "bytes", "budget - weights - activation - cuda_graphs - other")
    return {
        "device_memory": memory,
        "budget": Term(budget, "bytes", f"device_memory x {settings.gpu_memory_utilization:g}"),
        **taken,
        "available_kv_cache": kv_cache,
    }


def device_memory(gpu: Gpu) -> Term:
    """Memory that the driver gives to programs on this GPU; the engine takes its share of it."""
    for name in ("usable_memory_bytes", "memory_bytes"):
        if (value := getattr(gpu, name)) is not None:
            return Term(round(value), "bytes", f"{gpu.name}: {name}, {gpu.sources[name]}")
    raise CapacityError(f"{gpu.name} has no memory of its own: give the size of its KV cache (--kv-cache-memory-bytes)")


def _padding(facts: ModelFacts, gpu: Gpu, settings: EngineSettings) -> float:
    """How many times their parameters experts in MXFP4 take before Hopper: Marlin's kernels need widths that 128 and
    hidden sizes that 256 divide (`create_weights` in vllm/model_executor/layers/quantization/mxfp4.py)."""
    experts = next((part for part, _ in facts.of_kind(Experts)), None)
    if experts is None or facts.quantization != "mxfp4" or float(gpu.compute_capability or 9) >= 9:
        return 1.0
    width: float = experts.intermediate / (1 if settings.enable_expert_parallel else settings.tensor_parallel_size)
    return math.ceil(width / 128) * 128 / width * math.ceil(facts.hidden / 256) * 256 / facts.hidden


def weights(facts: ModelFacts, gpu: Gpu, settings: EngineSettings, rank: PipelineRank) -> Term:
    """Weights of one rank: matrices, vocabulary tables and the encoder of pictures (in the first stage) are split over
    tensor ranks; norms and biases are copied."""
    asked = settings.tensor_parallel_size, settings.data_parallel_size, settings.enable_expert_parallel
    return _weights(facts, _padding(facts, gpu, settings), *asked, rank)


@cache
def _weights(
    facts: ModelFacts, padding: float, tensor: int, engines: int, whole_experts: bool, rank: PipelineRank
) -> Term:
    hidden, element = facts.hidden, DTYPE_BYTES[facts.dtype]
    layers = Counter(facts.stack[rank.first_layer : rank.first_layer + rank.layers])
    vocabulary = math.ceil(facts.vocab / _VOCABULARY_STEP) * _VOCABULARY_STEP
    tables = rank.first + (rank.last and not (rank.first and facts.tied_embeddings))
    # Rotary positions are a table of cosines and sines, as long as the model's longest context.
    positions = facts.position_embedding_parameters or facts.max_positions * facts.rotary_dim
    value = (
        sum(
            count
            * _allocated(matrix.parameters * facts.bytes_of(matrix) * (padding if matrix.role == "experts" else 1))
            for layer, count in layers.items()
            for matrix in layer.matrices(hidden, tensor, whole_experts=whole_experts, engines=engines)
        )
        + rank.first * facts.encoder_parameters / tensor * element
        + tables * _allocated(vocabulary * hidden / tensor * element)
        + (sum(count * layer.vector_parameters(hidden) for layer, count in layers.items()) + positions) * element
    )
    stored = f"{facts.quantization} matrices, else {facts.dtype}" if facts.quantization else facts.dtype
    expert_ranks = tensor * engines
    shared = whole_experts or (expert_ranks > tensor and any(facts.of_kind(Experts)))
    experts = f", but 1/{expert_ranks} of the experts" if shared else ""
    encoder = (
        f", {facts.encoder_parameters:,} parameters of an encoder" if rank.first * facts.encoder_parameters else ""
    )
    how = f"{stored}: {rank.layers} layers, vocabulary tables: {tables}{encoder}, each matrix 1/{tensor}{experts}"
    return Term(round(value), "bytes", f"{how}; in the allocator's steps")


def _allocated(size: float) -> float:
    return size if size < _NEVER_SPLIT else math.ceil(size / _ALLOCATOR_STEP) * _ALLOCATOR_STEP


def activation(facts: ModelFacts, settings: EngineSettings, rank: PipelineRank, batch: BatchLimits) -> Term:
    """Peak of the dummy batch: in a layer's MLP, or in the sampler, which only the last pipeline rank runs."""
    element, tokens, seqs = DTYPE_BYTES[facts.dtype], batch.max_num_batched_tokens, batch.max_num_seqs
    mlp = max(sum(block.width for block in layer.feed_forward) for layer in facts.layer_counts)
    forward = tokens * (mlp / settings.tensor_parallel_size + 4 * facts.hidden) * element
    in_mlp = Term(round(forward), "bytes", f"{tokens} tokens in a layer's MLP, with four hidden states each")
    if not rank.last:
        return in_mlp
    is_fused = settings.version >= _FUSED_SAMPLER or _FLASHINFER_SAMPLER[0] <= settings.version < _FLASHINFER_SAMPLER[1]
    sampler = "in-place" if settings.version >= _IN_PLACE_SAMPLER else "fused" if is_fused else "sort"
    copies = _FLOAT32_COPIES[sampler]
    sampling = seqs * facts.vocab * (element + 4 * copies) + 2 * tokens * facts.hidden * element
    how = f"logits of {seqs} sequences over {facts.vocab} tokens, {copies} float32 copies of them ({sampler} sampler)"
    return max(in_mlp, Term(round(sampling), "bytes", how), key=lambda term: term.value)


def cuda_graphs(facts: ModelFacts, gpu: Gpu, settings: EngineSettings, rank: PipelineRank, batch: BatchLimits) -> Term:
    """What the engine subtracts from the budget for the graphs that it is going to capture."""
    if settings.enforce_eager:
        return Term(0, "bytes", "none are captured (enforce_eager)")
    if settings.version < _COUNTS_GRAPHS:
        return Term(0, "bytes", f"vLLM {settings.vllm_version} takes none off the budget; 0.21 and later do")
    sizes = sizes_of_graphs(settings, batch, gpu)
    whole = sum(size <= batch.max_num_seqs for size in sizes)
    pieces = rank.layers + 1
    value = len(sizes) * pieces * _GRAPH_BYTES_PER_PIECE + whole * rank.layers * _WHOLE_GRAPH_BYTES_PER_LAYER
    more = f"; experts may take {MORE_GRAPHS_OF_EXPERTS / GIB:g} GiB more, or far more" * any(facts.of_kind(Experts))
    how = f"{len(sizes)} batch sizes in {pieces} pieces each, {whole} of them also whole{more}"
    return Term(round(value), "bytes", how)


def sizes_of_graphs(settings: EngineSettings, batch: BatchLimits, gpu: Gpu) -> list[int]:
    """Tokens of the steps that are captured; none on a CPU or with `enforce_eager`."""
    if gpu.kind == "cpu" or settings.enforce_eager:
        return []
    blackwell = (gpu.compute_capability or "").startswith("10.")
    limits, drafted = (batch.max_num_seqs, batch.max_num_batched_tokens), settings.num_speculative_tokens
    return capture_sizes(settings.version, *limits, blackwell=blackwell, drafted=drafted)


def capture_sizes(
    version: tuple[int, ...], max_num_seqs: int, max_num_batched_tokens: int, *, blackwell: bool, drafted: int = 0
) -> list[int]:
    """Tokens of the steps that are captured (`VllmConfig._set_cudagraph_sizes`). `blackwell`: compute capability 10.
    `drafted`: tokens drafted per sequence and step.

    >>> capture_sizes((0, 32), 18, 2048, blackwell=False), capture_sizes((0, 30), 18, 2048, blackwell=False)
    ([1, 2, 4, 8, 16, 18, 24, 32], [1, 2, 4, 8, 16, 24, 32])
    """
    of_a_sequence = 1 + drafted if version >= _COUNTS_DRAFTS else 1
    ceiling = 1024 if blackwell and version >= _MORE_ON_BLACKWELL else 512
    largest = min(2 * max_num_seqs * of_a_sequence, ceiling)
    if version < _TWO_STEPS:
        return [size for size in (1, 2, 4, *range(8, largest + 1, 8)) if size <= max_num_batched_tokens]
    sizes = set(_ladder(largest))
    if version >= _WITH_BUDGET:
        sizes.add(max_num_batched_tokens)
    if of_a_sequence > 1 and version >= _WITH_DRAFTS:
        most = min(max_num_seqs, ceiling)
        sizes |= {of_a_sequence * count for count in (*_ladder(most), most)}
    elif version >= _WITH_SEQS:
        sizes.add(max_num_seqs)
    return sorted(size for size in sizes if size <= min(largest, max_num_batched_tokens))


def _ladder(largest: int) -> list[int]:
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest]


def decodes_as_one_graph(sizes: list[int], decoding: int) -> int:
    """The most tokens whose decode step is one graph: vLLM captures the whole model only up to `decoding` tokens, those
    of `max_num_seqs` sequences, and layers between attentions beyond.

    >>> decodes_as_one_graph([1, 2, 4, 8, 16, 24, 32], 18)
    16
    """
    return max((size for size in sizes if size <= decoding), default=0)


def other(settings: EngineSettings) -> Term:
    """CUDA modules and libraries. Buffers of collectives, seen to take 0.1 to 2 GiB since 0.8, are not predicted."""
    now = settings.version >= _MORE_LIBRARIES
    size, seen = (_NON_TORCH_BYTES, "from vLLM 0.18 on") if now else (_NON_TORCH_BYTES_BEFORE, "before vLLM 0.18")
    return Term(round(size), "bytes", f"CUDA modules and libraries, seen {seen}; without buffers of collectives")

"""Groups of layers and pages of equal bytes: how vLLM's KV-cache manager shares one pool among layers of all kinds.

A block of the pool is one page for each layer of a group, so any group can take any block. docs/capacity.md describes
the groups and pages. (vllm/v1/core/kv_cache_utils.py, `get_kv_cache_groups`, `unify_kv_cache_spec_page_size`;
vllm/v1/kv_cache_interface.py, `max_memory_usage_bytes`.)
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

from workflow_scripts.engines.capacity import KvGroup, KvPool, Term
from workflow_scripts.engines.vllm.knobs import KERNEL_BLOCK, DeviceKind
from workflow_scripts.engines.vllm.memory import BatchLimits, EngineSettings, with_drafting_layers
from workflow_scripts.physics.cache_types import EIGHT_BITS
from workflow_scripts.physics.layers import (
    MAMBA_2,
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    Mixer,
    State,
)
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError

# vLLM versions at which the planning of the pool changed.
_IN_FLIGHT = (0, 26)  # a window also keeps the tokens of the batch that is planned while another one runs
_PREFILL_CHECKPOINT = (0, 32)  # a Mamba-2 layer keeps a further state, made within a prefill for later prompts
_TOKENS_BY_CONCURRENCY = (0, 21)  # "KV cache size: N tokens" is the concurrency times max_model_len

_SIDE_BY_SIDE = (0, 32)  # how pages of several sizes of a layer are packed is known from here on

_KERNEL_BLOCK_LATENT = 128  # of latent attention beside states
# The only one that kernels of sparse attention take.
_BLOCK_WITH_INDEXER = {LatentAttention: 64, Attention: 128, CompressedAttention: 256}


def layers_with_memory(stack: Sequence[Layer]) -> Iterator[tuple[Mixer, int]]:
    """Each attention or state of the layers, with the number of its layer."""
    for number, layer in enumerate(stack):
        yield from ((mixer, number) for mixer in layer.mixers)


def kept_tokens(mixer: Mixer) -> int | None:
    """How many tokens vLLM keeps for a layer; None for all."""
    return 0 if isinstance(mixer, State) else mixer.window


def layer_groups(stack: Sequence[Layer]) -> Iterator[KvGroup]:
    """The groups of a model (vllm/v1/core/kv_cache_utils.py, `get_kv_cache_groups`): six layers with a window and two
    that keep all tokens are four groups of two."""
    of_kind: dict[int | None, list[tuple[Mixer, int]]] = {}
    for mixer, number in layers_with_memory(stack):
        of_kind.setdefault(kept_tokens(mixer), []).append((mixer, number))
    sizes = [len(members) for members in of_kind.values()]
    # The smallest kind gives the size, unless the largest is hardly larger: then padding costs less than more groups.
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    for reach, members in of_kind.items():
        count = math.ceil(len(members) / size)
        for first in range(count):
            # Every `count`-th layer, so that each stage of a pipeline has layers of each group.
            own = members[first::count]
            yield KvGroup(own[0][0].kind, tuple(number for _, number in own), reach)


def packed_groups(stack: Sequence[Layer]) -> Iterator[KvGroup]:
    """The groups if a layer has several caches, whose pages lie side by side in a block (`_get_packed_kv_cache_groups`
    there): a group for each length of pages and each reach.

    If all layers of a group have the same pages, it may be divided: into parts of a size that pads least, and not
    smaller than a group whose layers have several pages.
    """
    kinds: dict[tuple[int, int | None], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for mixer, number in layers_with_memory(stack):
        for tokens, size, reach in mixer.caches if isinstance(mixer, CompressedAttention) else ():
            kinds[tokens, reach][size].append(number)
    counts = {kind: {len(layers) for layers in pages.values()} for kind, pages in kinds.items()}
    alike = {kind: max(of_kind) for kind, of_kind in counts.items() if len(of_kind) == 1}
    least = max(count for kind, count in alike.items() if len(kinds[kind]) > 1)
    sizes = range(least, max(alike.values()) + 1)
    size = min(sizes, key=lambda size: (sum(-count % size for count in alike.values()), -size))
    for (tokens, reach), pages in kinds.items():
        page_bytes: Counter[int] = Counter()
        for of_one, layers in pages.items():
            page_bytes.update(dict.fromkeys(layers, of_one))
        parts = math.ceil(alike.get((tokens, reach), size) / size)
        for own in (sorted(page_bytes)[first::parts] for first in range(parts)):
            stretch = tokens / _BLOCK_WITH_INDEXER[CompressedAttention]
            of_layers = tuple(page_bytes[number] for number in own)
            yield KvGroup("compressed", tuple(own), reach, stretch=stretch, layer_bytes=of_layers)


def kv_pool(facts: ModelFacts, settings: EngineSettings, batch: BatchLimits, kind: DeviceKind) -> KvPool:
    """How vLLM plans the pool of a model on devices of a kind (`cuda`, `rocm` or `cpu`). Raises ModelFactsError if the
    planning of such layers is not known here."""
    # Cells of a study differ in settings that do not matter here.
    alike = replace(settings, gpu_memory_utilization=1.0, kv_cache_memory_bytes=None, num_gpu_blocks_override=None)
    return _planned(facts, alike, batch, kind)


@cache
def _planned(facts: ModelFacts, settings: EngineSettings, batch: BatchLimits, kind: DeviceKind) -> KvPool:
    tensor, stored = settings.tensor_parallel_size, partial(facts.cache_type, settings.kv_cache_dtype)
    contexts, on_cpu = settings.decode_context_parallel_size, kind == "cpu"
    stack = with_drafting_layers(facts, settings.draft_layers, settings.draft_stack)
    mixers = {mixer for mixer, _ in layers_with_memory(stack)}
    own = {n: m.cache_bytes(stored(n), tensor) for m, n in layers_with_memory(stack) if not isinstance(m, State)}
    per_token = {*own.values()}
    drafted = settings.num_speculative_tokens
    states = {facts.bytes_of_state(mixer, tensor, drafted) for mixer in mixers if isinstance(mixer, State)}
    kinds = {(kept_tokens(mixer), isinstance(mixer, LatentAttention)) for mixer in mixers}
    # Layers that all keep all tokens form one group, whatever their bytes.
    several = len(per_token) > 1 and {kept for kept, _ in kinds} != {None}
    packed = any(isinstance(mixer, CompressedAttention) for mixer in mixers)
    latent = not packed and any(isinstance(mixer, LatentAttention) for mixer in mixers)
    unequal = several and not packed and (states or len(kinds) < len(mixers) or latent)
    indexed = [type(mixer) for mixer in mixers if not isinstance(mixer, State) and mixer.indexer_dim]
    indexed_8_bits = latent and indexed and stored() == EIGHT_BITS
    not_all = any(isinstance(mixer, State) or mixer.window for mixer in mixers)
    plans = "how vLLM plans its KV cache is not known here"
    unknown = {
        f"no layer with attention: {plans}": not per_token,
        f"layers whose tokens or states differ in bytes: {plans}": unequal or len(states) > 1,
        "the processor decides whether vLLM keeps states in float32": states and on_cpu and facts.dtype != "float32",
        "the processor decides the block size of latent or sparse attention": on_cpu
        and (latent or (indexed and not packed)),
        "before vLLM 0.32 its pages are packed in another way": packed and settings.version < _SIDE_BY_SIDE,
        "its KV cache is known in 8 bits only": packed and stored().key_bits != 8,
        "the GPU decides how sparse attention stores a KV cache in 8 bits": indexed_8_bits,
        "decode_context_parallel_size with windows or states is not supported": not_all and contexts > 1,
    }
    for why, applies in unknown.items():
        if applies:
            raise ModelFactsError(f"{facts.model_type}: {why}")
    token_bytes, block_size = max(per_token), _BLOCK_WITH_INDEXER[indexed[0]] if indexed else settings.block_size
    if states:
        step = max(KERNEL_BLOCK[kind], settings.block_size, _KERNEL_BLOCK_LATENT if latent else 0)
        block_size = max(block_size, step * math.ceil(max(states) / (step * token_bytes)))

    groups = tuple(packed_groups(stack) if packed else layer_groups(stack))
    if len(per_token) > 1 and not several:
        groups = tuple(replace(one, layer_bytes=tuple(block_size * size for size in own.values())) for one in groups)
    elif several and not packed:
        # More tokens in a page if these fill it, else padding.
        fill = {layer: token_bytes // size if token_bytes % size == 0 else 1 for layer, size in own.items()}
        groups = tuple(replace(group, stretch=fill[group.layers[0]]) for group in groups)
    # Batches whose tokens a window must keep; on GPUs the next one is planned while one runs.
    in_flight = 1 if settings.version < _IN_FLIGHT else settings.pipeline_parallel_size + (not on_cpu)
    # States of a sequence in a layer: one, and one per drafted token. With prefix caching there is also the one before
    # the last block boundary.
    checkpoint = settings.version >= _PREFILL_CHECKPOINT and any(s.kind == MAMBA_2 for s, _ in facts.of_kind(State))
    kept = 1 + checkpoint if settings.caches_prefixes(facts) else 0
    return KvPool(
        groups=groups,
        page_bytes=max(max(group.layer_bytes, default=block_size * token_bytes) for group in groups),
        block_size=block_size,
        state_blocks=1 + drafted + kept,
        in_flight_tokens=batch.max_num_batched_tokens * in_flight,
        context_ranks=contexts,
    )


def kv_cache_tokens(pool: KvPool, num_blocks: int, batch: BatchLimits, settings: EngineSettings) -> Term:
    """Tokens that vLLM says fit, and how it counts them: as blocks, and since 0.21 as requests of full length."""
    if settings.version >= _TOKENS_BY_CONCURRENCY:
        concurrency = num_blocks / pool.blocks_per_request(batch.max_model_len)
        return Term(int(concurrency * batch.max_model_len), "tokens", f"max_concurrency x {batch.max_model_len} tokens")
    # The smallest block counted; without prefix caching that of a state had max_model_len tokens.
    alone = any(group.reach == 0 for group in pool.groups) and pool.state_blocks == 1 + settings.num_speculative_tokens
    block = min(pool.block_size, batch.max_model_len) if alone else pool.block_size
    groups, ranks = len(pool.groups), pool.context_ranks
    how = f"num_blocks / {groups} groups, rounded down, x {block} tokens x {ranks} ranks that share them"
    return Term(num_blocks // groups * block * ranks, "tokens", how)

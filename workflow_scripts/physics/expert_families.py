"""Readers of families with routed experts; `dense_families` has those of dense models."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workflow_scripts.physics.config_values import ConfigValues
from workflow_scripts.physics.dense_families import (
    CHUNKED,
    FULL,
    WINDOWED,
    Fields,
    Reader,
    attention_of,
    biases,
    by_kind,
    decoder,
    equal_layers,
    every_full,
    window_of,
    with_norms,
)
from workflow_scripts.physics.layers import Experts, FeedForward, LatentAttention, Layer, Mixer, Mlp


def experts_of(
    c: ConfigValues, count: int, intermediate: int, *, used: str = "num_experts_per_tok", **others: Any
) -> Experts:
    """Routed experts; `used`: the key with how many a token uses. Raises ModelFactsError if these are too many."""
    per_token = c.size(used)
    if per_token > count:
        raise c.fault(f"{used} {per_token} must be at most the number of experts, {count}")
    return Experts(count, per_token, intermediate, **others)


def _sparse(c: ConfigValues, block: Sequence[FeedForward], mixer: Mixer) -> list[Layer]:
    """Layers of which every `decoder_sparse_step`th has experts, unless `mlp_only_layers` names it."""
    norms, step = 2 * c.size("hidden_size"), c.size("decoder_sparse_step", 1)
    sparse_layer = Layer((mixer,), tuple(block), norms)
    dense_layer = Layer((mixer,), (Mlp(c.size("intermediate_size")),), norms)
    layers = range(c.size("num_hidden_layers"))
    dense = c.numbers("mlp_only_layers", len(layers))
    return [dense_layer if i in dense or (i + 1) % step else sparse_layer for i in layers]


def _mixtral(c: ConfigValues) -> Fields:
    block = experts_of(c, c.size("num_local_experts"), c.size("intermediate_size"))
    return decoder(c, equal_layers(c, attention_of(c, window=window_of(c)), block))


def _qwen2_moe(c: ConfigValues) -> Fields:
    block: list[FeedForward] = [
        experts_of(c, c.size("num_experts"), c.size("moe_intermediate_size"), router_parameters=c.size("hidden_size")),
        Mlp(c.size("shared_expert_intermediate_size")),
    ]
    _refuse_window(c)
    return decoder(c, _sparse(c, block, attention_of(c, qkv_bias=c.flag("qkv_bias", True))))


def _qwen3_moe(c: ConfigValues) -> Fields:
    mixer = attention_of(c, **biases(c))
    mixer = replace(mixer, norm_parameters=2 * mixer.head_dim)
    _refuse_window(c)
    return decoder(c, _sparse(c, [experts_of(c, c.size("num_experts"), c.size("moe_intermediate_size"))], mixer))


def _refuse_window(c: ConfigValues) -> None:
    if c.flag("use_sliding_window", False):
        raise c.fault("use_sliding_window with experts is not supported")


def latent_attention(c: ConfigValues, **others: Any) -> LatentAttention:
    """Latent attention by the usual keys."""
    return LatentAttention(
        c.size("num_attention_heads"),
        kv_rank=c.size("kv_lora_rank"),
        rope_dim=c.size("qk_rope_head_dim"),
        key_dim=c.size("qk_nope_head_dim"),
        value_dim=c.size("v_head_dim"),
        query_rank=None if c.get("q_lora_rank") is None else c.size("q_lora_rank"),
        bias=c.flag("attention_bias", False),
        **others,
    )


def latent_experts(c: ConfigValues, mixer: LatentAttention, dense_layers: int = 0) -> Fields:
    """DeepSeek-V2 and V3, and Kimi-K2, which has the structure of V3. `dense_layers`: the family's default."""
    c = ConfigValues({"first_k_dense_replace": dense_layers, **c.given()})
    bias = c.model_type == "deepseek_v2" and c.flag("mlp_bias", False)
    has_experts = c.size("first_k_dense_replace", least=0) < c.size("num_hidden_layers")
    return decoder(c, _dense_first(c, mixer, _routed_and_shared(c, bias) if has_experts else [], bias))


def _routed_and_shared(c: ConfigValues, bias: bool = False) -> list[FeedForward]:
    intermediate = c.size("moe_intermediate_size")
    block: list[FeedForward] = [experts_of(c, c.size("n_routed_experts"), intermediate)]
    if shared := c.size("n_shared_experts", 0, least=0):
        block.append(Mlp(shared * intermediate, bias=bias))
    return block


def _deepseek(c: ConfigValues) -> Fields:
    return latent_experts(c, latent_attention(c))


def _sparse_attention(c: ConfigValues) -> Fields:
    """DeepSeek-V3.2 and GLM-5: tokens attend to those that an indexer chooses."""
    if c.size("index_topk_freq", 1) != 1 or "shared" in c.elements("indexer_types") or c.get("index_topk_pattern"):
        raise c.fault("layers that share an indexer (index_topk_freq, indexer_types) are not supported")
    own = {"indexer_heads": c.size("index_n_heads"), "indexer_dim": c.size("index_head_dim")}
    c.size("q_lora_rank")  # the indexer reads it
    return latent_experts(c, latent_attention(c, **own, attended=c.size("index_topk")), dense_layers=3)


def _minimax_m2(c: ConfigValues) -> Fields:
    mixer = with_norms(attention_of(c, head_dim=128))
    return decoder(c, equal_layers(c, mixer, experts_of(c, c.size("num_local_experts"), c.size("intermediate_size"))))


def _dense_first(c: ConfigValues, mixer: Mixer, block: Sequence[FeedForward], bias: bool = False) -> list[Layer]:
    layers, first = c.size("num_hidden_layers"), c.size("first_k_dense_replace", 0, least=0)
    if c.size("moe_layer_freq", 1) != 1:
        raise c.fault("moe_layer_freq other than 1 is not supported")
    dense, norms = Mlp(c.size("intermediate_size"), bias=bias), 2 * c.size("hidden_size")
    return [Layer((mixer,), (dense,) if i < first else tuple(block), norms) for i in range(layers)]


def _glm4_moe(c: ConfigValues) -> Fields:
    mixer = attention_of(c, qkv_bias=c.flag("attention_bias", False))
    if c.flag("use_qk_norm", False):
        mixer = replace(mixer, norm_parameters=2 * mixer.head_dim)
    return decoder(c, _dense_first(c, mixer, _routed_and_shared(c)))


def _llama4_text(c: ConfigValues) -> Fields:
    layers, hidden = c.size("num_hidden_layers"), c.size("hidden_size")
    every = c.size("no_rope_layer_interval", 4)
    rotary = c.numbers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]
    default = [CHUNKED if c.get("attention_chunk_size") and r else FULL for r in rotary]
    kinds = c.layer_kinds("layer_types", layers, default, (FULL, CHUNKED))
    step = c.size("interleave_moe_layer_step", 1)
    sparse = c.numbers("moe_layers", layers) or range(step - 1, layers, step)
    routed = experts_of(c, c.size("num_local_experts"), c.size("intermediate_size"))
    block = (routed, Mlp(c.size("intermediate_size")))
    dense = (Mlp(c.size("intermediate_size_mlp")),)
    chunk = {"chunk": c.size("attention_chunk_size")} if CHUNKED in kinds else {}
    mixers = {kind: attention_of(c, **biases(c), **(chunk if kind == CHUNKED else {})) for kind in set(kinds)}
    stack = [Layer((mixers[kind],), block if i in sparse else dense, 2 * hidden) for i, kind in enumerate(kinds)]
    return decoder(c, stack)


def _olmoe(c: ConfigValues) -> Fields:
    mixer = with_norms(attention_of(c, **biases(c)))
    return decoder(c, equal_layers(c, mixer, experts_of(c, c.size("num_experts"), c.size("intermediate_size"))))


def _phimoe(c: ConfigValues) -> Fields:
    mixer = attention_of(c, **biases(c), window=window_of(c))
    block = experts_of(c, c.size("num_local_experts"), c.size("intermediate_size"))
    head_bias = c.size("vocab_size") if c.flag("lm_head_bias", False) else 0
    norms = {"final_norm_parameters": 2 * c.size("hidden_size") + head_bias}
    return decoder(c, equal_layers(c, mixer, block, norms=4), **norms)


def _gpt_oss(c: ConfigValues) -> Fields:
    experts = c.size("num_local_experts")
    block = experts_of(c, experts, c.size("intermediate_size"), bias=True, router_parameters=experts)
    return decoder(c, by_kind(c, every_full(c, 2), 2, block, head_dim=64, sinks=True, **biases(c, True)))


def _gemma4_text(c: ConfigValues) -> Fields:
    """Gemma 4 (2026): heads of other sizes where there is no window, and experts next to a dense block."""
    for key, default in (("hidden_size_per_layer_input", 256), ("num_kv_shared_layers", 0)):
        if c.size(key, default, least=0):
            raise c.fault(f"{key} above 0 is not supported")
    hidden, kinds = c.size("hidden_size"), [*every_full(c, 6)[:-1], FULL]
    block: list[FeedForward] = [Mlp(c.size("intermediate_size"))]
    if sparse := c.flag("enable_moe_block", False):
        count, intermediate = c.size("num_experts"), c.size("moe_intermediate_size")
        block.append(experts_of(c, count, intermediate, used="top_k_experts", router_parameters=hidden + count))
    same = c.flag("attention_k_eq_v", False)
    own = {FULL: {"head_dim": c.size("global_head_dim", 512)}, WINDOWED: {}}
    if same and c.get("num_global_key_value_heads") is not None:
        own[FULL]["num_key_value_heads"] = kv_heads = c.size("num_global_key_value_heads")
        c.divided("num_attention_heads", "num_global_key_value_heads", (c.size("num_attention_heads"), kv_heads))
    mixer_of = {}
    for kind in set(kinds):
        of_kind = ConfigValues({"head_dim": 256, **c.given(), **own[kind]})
        mixer_of[kind] = attention_of(
            of_kind,
            **biases(c),
            norm_parameters=2 * of_kind.size("head_dim"),
            window=c.size("sliding_window", 512) if kind == WINDOWED else None,
            keys_are_values=same and kind == FULL,
        )
    norms = (7 if sparse else 4) * hidden
    stack = [Layer((mixer_of[kind],), tuple(block), norms) for kind in kinds]
    return decoder(c, stack, tied_embeddings=c.flag("tie_word_embeddings", True))


EXPERTS: dict[str, Reader] = {
    "gemma4_text": _gemma4_text,
    "gpt_oss": _gpt_oss,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "deepseek_v32": _sparse_attention,
    "glm_moe_dsa": _sparse_attention,
    "glm4_moe": _glm4_moe,
    "glm4_moe_lite": lambda c: latent_experts(c, latent_attention(c), dense_layers=1),
    "minimax_m2": _minimax_m2,
    "llama4_text": _llama4_text,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
}

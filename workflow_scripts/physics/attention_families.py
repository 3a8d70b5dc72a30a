"""From a `config.json` to the layers of a model with attention, dense or with routed experts.

A reader returns the fields of `model_facts.ModelFacts` that depend on the family. Defaults are those of transformers,
whose models have exactly the parameters that are counted here (tests/unit/physics/test_model_facts.py).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from workflow_scripts.physics.config_values import ConfigValues
from workflow_scripts.physics.layers import (
    Attention,
    CompressedAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
)

Config = dict[str, Any]
Reader = Callable[[ConfigValues], Config]

WINDOWED, FULL = "sliding_attention", "full_attention"


def attention_of(c: ConfigValues, *, head_dim: int | None = None, norms_over: str = "", **others: Any) -> Attention:
    """Attention by the usual keys. `head_dim`: the family's default; None is hidden_size / num_attention_heads.
    `norms_over`: queries and keys of `each` head are normalized, or those of `all` heads together."""
    heads = c.size("num_attention_heads")
    kv_heads = c.size("num_key_value_heads", heads)
    c.divided("num_attention_heads", "num_key_value_heads", (heads, kv_heads))
    if c.get("head_dim", head_dim) is None:
        head_dim = c.divided("hidden_size", "num_attention_heads", (c.size("hidden_size"), heads))
    head_dim = c.size("head_dim", head_dim)
    normed = {"": 0, "each": 2, "all": heads + kv_heads}[norms_over]
    return Attention(heads, kv_heads, head_dim, norm_parameters=normed * head_dim, **others)


def biases(c: ConfigValues, default: bool = False) -> Config:
    """Whether queries, keys, values and the output have biases, by the usual key."""
    bias = c.flag("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


def every_full(c: ConfigValues, every: int, layers: int | None = None) -> Sequence[str]:
    """Kinds of layers: as listed, else with a window except for every `every`-th. `layers`: the family's default."""
    count = c.size("num_hidden_layers", layers)
    pattern = [WINDOWED if (i + 1) % every else FULL for i in range(count)]
    return c.layer_kinds("layer_types", count, pattern, (FULL, WINDOWED))


def decoder(c: ConfigValues, layers: Sequence[Layer], *, tied: bool = False, **others: Any) -> Config:
    """The fields that all families share, with the final norm of a model with RMS norms. `tied`: the
    family's default."""
    return {
        "hidden": c.size("hidden_size"),
        "vocab": c.size("vocab_size"),
        "max_positions": c.size("max_position_embeddings"),
        "tied_embeddings": c.flag("tie_word_embeddings", tied),
        "stack": tuple(layers),
        "final_norm_parameters": c.size("hidden_size"),
        **others,
    }


def mlp_of(c: ConfigValues, **others: Any) -> Mlp:
    return Mlp(c.size("intermediate_size"), **others)


def equal_layers(c: ConfigValues, mixer: Mixer, feed_forward: FeedForward, norms: int = 2, **own: Any) -> Config:
    """A `decoder` of layers that are all the same, with `norms` RMS norms each."""
    layer = Layer((mixer,), (feed_forward,), norms * c.size("hidden_size"))
    return decoder(c, [layer] * c.size("num_hidden_layers"), **own)


def _llama(c: ConfigValues, tied: bool = False, **changes: Any) -> Config:
    mlp = mlp_of(c, bias=c.flag("mlp_bias", False))
    return equal_layers(c, attention_of(c, **biases(c) | changes), mlp, tied=tied)


def mixers_of(c: ConfigValues, kinds: Sequence[str], *, window: int | None = None, **changes: Any) -> dict[str, Mixer]:
    """The attention of each of these kinds: with a window (`window`: the family's default) or without."""
    return {
        kind: attention_of(c, window=c.size("sliding_window", window) if kind == WINDOWED else None, **changes)
        for kind in set(kinds)
    }


def by_kind(
    c: ConfigValues, kinds: Sequence[str], block: FeedForward, norms: int = 2, tied: bool = False, **changes: Any
) -> Config:
    """A `decoder` of layers of these kinds; `changes` as in `mixers_of`."""
    mixers = mixers_of(c, kinds, **changes)
    return decoder(c, [Layer((mixers[kind],), (block,), norms * c.size("hidden_size")) for kind in kinds], tied=tied)


def _qwen(c: ConfigValues, **changes: Any) -> Config:
    # A config names a window even if it is off; if on, layers from `max_window_layers` on have it.
    layers = c.size("num_hidden_layers")
    kinds: Sequence[str] = [FULL] * layers
    if c.flag("use_sliding_window", False):
        first = c.size("max_window_layers", 28, least=0)
        pattern = [WINDOWED if i >= first else FULL for i in range(layers)]
        kinds = c.layer_kinds("layer_types", layers, pattern, (FULL, WINDOWED))
    return by_kind(c, kinds, mlp_of(c), **changes)


def _phi3(c: ConfigValues) -> Config:
    window = c.optional_size("sliding_window")
    if window is not None and window >= c.size("max_position_embeddings"):
        window = None
    return _llama(c, window=window)


def _gemma(c: ConfigValues, kinds: Sequence[str], **changes: Any) -> Config:
    return by_kind(c, kinds, mlp_of(c), norms=4, tied=True, head_dim=256, **biases(c), **changes)


def _smollm3(c: ConfigValues) -> Config:
    if c.flag("use_sliding_window", False):
        raise c.fault("use_sliding_window is not supported")
    return _llama(c, tied=True)


def _opt(c: ConfigValues) -> Config:
    """Equal layers of two norms with biases, and one KV head per query head."""
    hidden, bias, heads = c.size("hidden_size"), c.flag("enable_bias", True), c.size("num_attention_heads")
    if c.get("word_embed_proj_dim", hidden) != hidden:
        raise c.fault("word_embed_proj_dim other than hidden_size is not supported")
    head_dim = c.divided("hidden_size", "num_attention_heads", (hidden, heads))
    mixer, mlp = Attention(heads, heads, head_dim, qkv_bias=bias, output_bias=bias), c.size("ffn_dim")
    has_norm = c.flag("do_layer_norm_before", True) and not c.flag("_remove_final_layer_norm", False)
    # Positions are looked up with an offset of two.
    own = {"learned_positions": c.size("max_position_embeddings") + 2, "final_norm_parameters": 2 * hidden * has_norm}
    return equal_layers(c, mixer, Mlp(mlp, gated=False, bias=bias), norms=4, tied=True, **own)


def experts_of(
    c: ConfigValues,
    count: str,
    width: str = "moe_intermediate_size",
    *,
    used: str = "num_experts_per_tok",
    **others: Any,
) -> Experts:
    """Routed experts, by the keys of their number, of their width, and of how many a token uses. Raises
    ModelFactsError if a token uses too many."""
    experts, intermediate, per_token = c.size(count), c.size(width), c.size(used)
    if per_token > experts:
        raise c.fault(f"{used} {per_token} must be at most the number of experts, {experts}")
    return Experts(experts, per_token, intermediate, **others)


def _sparse(c: ConfigValues, block: Sequence[FeedForward], mixer: Mixer) -> Config:
    """Layers of which every `decoder_sparse_step`th has experts, unless `mlp_only_layers` names it."""
    if c.flag("use_sliding_window", False):
        raise c.fault("use_sliding_window with experts is not supported")
    norms, step = 2 * c.size("hidden_size"), c.size("decoder_sparse_step", 1)
    sparse_layer, dense_layer = Layer((mixer,), tuple(block), norms), Layer((mixer,), (mlp_of(c),), norms)
    layers = range(c.size("num_hidden_layers"))
    dense = c.numbers("mlp_only_layers", len(layers))
    return decoder(c, [dense_layer if i in dense or (i + 1) % step else sparse_layer for i in layers])


def _all_sparse(c: ConfigValues, mixer: Mixer, count: str) -> Config:
    return equal_layers(c, mixer, experts_of(c, count, "intermediate_size"))


def _qwen2_moe(c: ConfigValues) -> Config:
    routed = experts_of(c, "num_experts", router_parameters=c.size("hidden_size"))
    shared = Mlp(c.size("shared_expert_intermediate_size"))
    return _sparse(c, [routed, shared], attention_of(c, qkv_bias=c.flag("qkv_bias", True)))


def latent_experts(c: ConfigValues, dense_layers: int = 0, **indexer: Any) -> Config:
    """DeepSeek-V2 and V3, and Kimi-K2, which has the structure of V3. `dense_layers`: the family's default."""
    c = ConfigValues({"first_k_dense_replace": dense_layers, **c.given()})
    mixer = LatentAttention(
        c.size("num_attention_heads"),
        kv_rank=c.size("kv_lora_rank"),
        rope_dim=c.size("qk_rope_head_dim"),
        key_dim=c.size("qk_nope_head_dim"),
        value_dim=c.size("v_head_dim"),
        query_rank=c.optional_size("q_lora_rank"),
        bias=c.flag("attention_bias", False),
        **indexer,
    )
    bias = c.model_type == "deepseek_v2" and c.flag("mlp_bias", False)
    has_experts = c.size("first_k_dense_replace", least=0) < c.size("num_hidden_layers")
    return _dense_first(c, mixer, _routed_and_shared(c, bias) if has_experts else [], bias)


def _routed_and_shared(c: ConfigValues, bias: bool = False) -> list[FeedForward]:
    block: list[FeedForward] = [experts_of(c, "n_routed_experts")]
    if shared := c.size("n_shared_experts", 0, least=0):
        block.append(Mlp(shared * c.size("moe_intermediate_size"), bias=bias, role="shared"))
    return block


def _dense_first(c: ConfigValues, mixer: Mixer, block: Sequence[FeedForward], bias: bool = False) -> Config:
    layers, first = c.size("num_hidden_layers"), c.size("first_k_dense_replace", 0, least=0)
    if c.size("moe_layer_freq", 1) != 1:
        raise c.fault("moe_layer_freq other than 1 is not supported")
    dense, norms = mlp_of(c, bias=bias), 2 * c.size("hidden_size")
    return decoder(c, [Layer((mixer,), (dense,) if i < first else tuple(block), norms) for i in range(layers)])


def _sparse_attention(c: ConfigValues) -> Config:
    """DeepSeek-V3.2 and GLM-5: tokens attend to those that an indexer chooses; a layer may take the choice of the one
    before it. Like vLLM 0.32, which does not read `indexer_types`."""
    own = {"indexer_heads": c.size("index_n_heads"), "indexer_dim": c.size("index_head_dim")}
    c.size("q_lora_rank")  # the indexer reads it
    fields = latent_experts(c, dense_layers=3, **own, attended=c.size("index_topk"))
    freq, offset = c.size("index_topk_freq", 1), c.size("index_skip_topk_offset", 2, least=0)
    pattern = str(c.get("index_topk_pattern") or "")
    if "shared" in c.elements("indexer_types") and freq == 1 and not pattern:
        raise c.fault("layers that share an indexer by indexer_types alone are not supported")

    def shares(i: int) -> bool:
        return pattern[i : i + 1] == "S" if pattern else max(i - offset + 1, 0) % freq != 0

    def without(layer: Layer) -> Layer:
        latent = (mixer for mixer in layer.mixers if isinstance(mixer, LatentAttention))
        return replace(layer, mixers=tuple(replace(mixer, indexer_heads=0, indexer_dim=0) for mixer in latent))

    return fields | {"stack": [without(layer) if shares(i) else layer for i, layer in enumerate(fields["stack"])]}


def _glm4_moe(c: ConfigValues) -> Config:
    norms_over = "each" if c.flag("use_qk_norm", False) else ""
    mixer = attention_of(c, norms_over=norms_over, qkv_bias=c.flag("attention_bias", False))
    return _dense_first(c, mixer, _routed_and_shared(c))


def _gpt_oss(c: ConfigValues) -> Config:
    router = c.size("num_local_experts")
    block = experts_of(c, "num_local_experts", "intermediate_size", bias=True, router_parameters=router)
    return by_kind(c, every_full(c, 2), block, head_dim=64, sinks=True, **biases(c, True))


def _gemma4_text(c: ConfigValues) -> Config:
    """Gemma 4 (2026): heads of other sizes where there is no window, and experts next to a dense block."""
    for key, default in (("hidden_size_per_layer_input", 256), ("num_kv_shared_layers", 0)):
        if c.size(key, default, least=0):
            raise c.fault(f"{key} above 0 is not supported")
    hidden, kinds = c.size("hidden_size"), [*every_full(c, 6)[:-1], FULL]
    block: list[FeedForward] = [mlp_of(c)]
    if sparse := c.flag("enable_moe_block", False):
        router = hidden + c.size("num_experts")
        block.append(experts_of(c, "num_experts", used="top_k_experts", router_parameters=router))
    same = c.flag("attention_k_eq_v", False)
    full = {"head_dim": c.size("global_head_dim", 512)}
    if same and c.get("num_global_key_value_heads") is not None:
        full["num_key_value_heads"] = kv_heads = c.size("num_global_key_value_heads")
        c.divided("num_attention_heads", "num_global_key_value_heads", (c.size("num_attention_heads"), kv_heads))
    own = {"head_dim": 256, "norms_over": "each", **biases(c)}
    mixers = mixers_of(c, [kind for kind in kinds if kind == WINDOWED], window=512, **own)
    mixers |= mixers_of(ConfigValues({**c.given(), **full}), [FULL], keys_are_values=same, **own)
    norms = (7 if sparse else 4) * hidden
    return decoder(c, [Layer((mixers[kind],), tuple(block), norms) for kind in kinds], tied=True)


def _by_layer(c: ConfigValues, mixers: Sequence[Mixer], block: Sequence[FeedForward], dense: FeedForward) -> Config:
    """Layers with these attentions; `moe_layer_freq` says of each whether it has experts."""
    norms, sparse = 2 * c.size("hidden_size"), c.layer_kinds("moe_layer_freq", len(mixers), (), ("0", "1"))
    blocks = (tuple(block) if has else (dense,) for has in sparse)
    return decoder(c, [Layer((mixer,), own, norms) for mixer, own in zip(mixers, blocks, strict=True)])


def _minimax_m3(c: ConfigValues) -> Config:
    """MiniMax-M3 (2026): attention to the blocks of tokens that an indexer chooses."""
    own, full = c.part("sparse_attention_config"), attention_of(c, head_dim=128, norms_over="each")
    if own.size("sparse_num_index_heads") != full.kv_heads:
        raise c.fault("another number of heads in the indexer than of KV heads is not supported")
    chosen = own.size("sparse_topk_blocks") * own.size("sparse_block_size")
    indexed = replace(full, indexer_dim=own.size("sparse_index_dim"), chosen=chosen)
    sparse = own.layer_kinds("sparse_attention_freq", c.size("num_hidden_layers"), (), ("0", "1"))
    mixers, width = [indexed if has else full for has in sparse], c.size("intermediate_size")
    shared = Mlp(c.size("n_shared_experts", 1) * width, role="shared")
    block = (experts_of(c, "num_local_experts", "intermediate_size"), shared)
    return _by_layer(c, mixers, block, Mlp(c.size("dense_intermediate_size")))


def _mimo_v2(c: ConfigValues) -> Config:
    """MiMo-V2 (2025): layers with windows have other heads, and values are narrower than keys."""
    if c.get("vision_config") or c.get("audio_config"):
        raise c.fault("encoders of pictures or sounds are not supported")
    own = {key.removeprefix("swa_"): value for key, value in c.given().items() if key.startswith("swa_")}
    windows, bias = ConfigValues({**c.given(), **own}), c.flag("attention_bias", False)
    full, windowed = (attention_of(cfg, value_dim=cfg.size("v_head_dim"), qkv_bias=bias) for cfg in (c, windows))
    sinks = c.flag("add_swa_attention_sink_bias", False)
    windowed = replace(windowed, window=c.size("sliding_window_size"), sinks=sinks)
    kinds = c.layer_kinds("hybrid_layer_pattern", c.size("num_hidden_layers"), (), ("0", "1"))
    block = [experts_of(c, "n_routed_experts")]
    return _by_layer(c, [windowed if has else full for has in kinds], block, mlp_of(c))


def _step3p5(c: ConfigValues) -> Config:
    """Step 3.5 (2026): more heads in layers with windows, and a gate for each head."""
    layers = c.size("num_hidden_layers")
    sparse = re.findall(r"\d+", str(c.get("moe_layers_enum", [*range(1, layers)])))
    own = {"layer_types": c.elements("layer_types")[:layers]}  # further ones are of layers that draft
    own["moe_layer_freq"] = [int(str(i) in sparse) for i in range(layers)]
    of_windows = c.part("attention_other_setting").given() if c.get("attention_other_setting") else {}
    named = {"num_key_value_heads": "num_attention_groups", "num_experts_per_tok": "moe_top_k"}
    c, windows = (ConfigValues({**c.given(), **o}).with_usual_keys(named) for o in (own, of_windows))
    gates, bias = int(c.flag("use_head_wise_attn_gate", False)), c.flag("attention_bias", False)
    full, windowed = (attention_of(cfg, norms_over="each", gates=gates, qkv_bias=bias) for cfg in (c, windows))
    mixers = {FULL: full, WINDOWED: replace(windowed, window=c.size("sliding_window"))}
    kinds = c.layer_kinds("layer_types", layers, (), tuple(mixers))
    block = (experts_of(c, "moe_num_experts"), Mlp(c.size("share_expert_dim")))
    return _by_layer(c, [mixers[kind] for kind in kinds], block, mlp_of(c))


def _deepseek_v4(c: ConfigValues) -> Config:
    """DeepSeek-V4 (2026): four streams of hidden states, which matrices of each layer mix, and compressed attention."""
    if c.size("vision_n_layers", 0, least=0):
        raise c.fault("encoders of pictures are not supported")
    layers, hidden, streams = c.size("num_hidden_layers"), c.size("hidden_size"), c.size("hc_mult")
    ratios, width, rope = c.numbers("compress_ratios")[:layers], c.size("head_dim"), c.size("qk_rope_head_dim")
    if len(ratios) < layers or not {0, 4} <= {*ratios, 0} <= {0, 1, 4, 128}:
        raise c.fault("compress_ratios must name 0, 4 or 128 for each layer, and 4 for one")
    window, heads, groups = c.size("sliding_window"), c.size("num_attention_heads"), c.size("o_groups")
    c.divided("num_attention_heads", "o_groups", (heads, groups))
    plain = CompressedAttention(
        heads,
        kv_rank=width - rope,
        rope_dim=rope,
        key_dim=width - rope,
        value_dim=width,
        query_rank=c.size("q_lora_rank"),
        attended=window,  # at least; ceilings count no more
        window=window,
        output_groups=groups,
        output_rank=c.size("o_lora_rank"),
    )
    indexed = replace(plain, ratio=4, indexer_heads=c.size("index_n_heads"), indexer_dim=c.size("index_head_dim"))
    mixers = {0: plain, 1: plain, 4: indexed, 128: replace(plain, ratio=128)}
    mixes = (2 + streams) * streams
    norms = 2 * (hidden + mixes * (streams * hidden + 1) + 3)
    stack = [Layer((mixers[ratio],), tuple(_routed_and_shared(c)), norms) for ratio in ratios]
    final = hidden + streams * (streams * hidden + 1) + 1
    return decoder(c, stack, final_norm_parameters=final, kv_cache_dtype="fp8")  # the only one of vLLM's kernels


READERS: dict[str, Reader] = {
    "llama": _llama,
    "mistral": lambda c: _llama(c, window=c.optional_size("sliding_window")),
    "ministral3": lambda c: _llama(c, window=c.optional_size("sliding_window"), head_dim=128),
    **dict.fromkeys(("qwen2", "mimo"), lambda c: _qwen(c, qkv_bias=True)),
    "qwen3": lambda c: _qwen(c, head_dim=128, norms_over="each", **biases(c)),
    "phi3": _phi3,
    "gemma": lambda c: _llama(c, tied=True, head_dim=256),
    "gemma2": lambda c: _gemma(c, every_full(c, 2)),
    "gemma3_text": lambda c: _gemma(
        c, every_full(c, c.size("sliding_window_pattern", 6), layers=26), norms_over="each"
    ),
    "granite": _llama,
    "olmo2": lambda c: equal_layers(c, attention_of(c, norms_over="all", **biases(c)), mlp_of(c)),
    "olmo3": lambda c: by_kind(c, every_full(c, 4), mlp_of(c), window=4096, norms_over="all", **biases(c)),
    "seed_oss": lambda c: _llama(
        c, head_dim=128, qkv_bias=c.flag("attention_bias", True), output_bias=c.flag("attention_out_bias", False)
    ),
    "smollm3": _smollm3,
    "glm4": lambda c: equal_layers(
        c, attention_of(c, head_dim=128, qkv_bias=c.flag("attention_bias", True)), mlp_of(c), norms=4
    ),
    "opt": _opt,
    "deepseek_v4": _deepseek_v4,
    "gemma4_text": _gemma4_text,
    "gpt_oss": _gpt_oss,
    "mixtral": lambda c: _all_sparse(c, attention_of(c, window=c.optional_size("sliding_window")), "num_local_experts"),
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": lambda c: _sparse(c, [experts_of(c, "num_experts")], attention_of(c, norms_over="each", **biases(c))),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), latent_experts),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _sparse_attention),
    "glm4_moe": _glm4_moe,
    "glm4_moe_lite": lambda c: latent_experts(c, dense_layers=1),
    "minimax_m2": lambda c: _all_sparse(c, attention_of(c, head_dim=128, norms_over="all"), "num_local_experts"),
    **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), _mimo_v2),
    **dict.fromkeys(("minimax_m3_text", "minimax_m3_vl_text"), _minimax_m3),
    "step3p5": _step3p5,
    "olmoe": lambda c: _all_sparse(c, attention_of(c, norms_over="all", **biases(c)), "num_experts"),
}

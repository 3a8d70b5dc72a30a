"""From a `config.json` to the layers of a dense model, and what the readers of all families share.

A reader returns the fields of `model_facts.ModelFacts` that depend on the family. Defaults are those of transformers,
whose models have exactly the parameters that are counted here (tests/unit/physics/test_model_facts.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from workflow_scripts.physics.config_values import ConfigValues
from workflow_scripts.physics.layers import Attention, FeedForward, Layer, Mixer, Mlp

Fields = dict[str, Any]
Reader = Callable[[ConfigValues], Fields]

WINDOWED, CHUNKED, FULL = "sliding_attention", "chunked_attention", "full_attention"


def attention_of(c: ConfigValues, *, head_dim: int | None = None, **others: Any) -> Attention:
    """Attention by the usual keys. `head_dim`: the family's default; None is hidden_size / num_attention_heads."""
    heads = c.size("num_attention_heads")
    kv_heads = c.size("num_key_value_heads", heads)
    c.divided("num_attention_heads", "num_key_value_heads", (heads, kv_heads))
    if c.get("head_dim", head_dim) is None:
        head_dim = c.divided("hidden_size", "num_attention_heads", (c.size("hidden_size"), heads))
    return Attention(heads, kv_heads, c.size("head_dim", head_dim), **others)


def biases(c: ConfigValues, default: bool = False) -> Fields:
    """Whether queries, keys, values and the output have biases, by the usual key."""
    bias = c.flag("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


def every_full(c: ConfigValues, every: int, layers: int | None = None) -> Sequence[str]:
    """Kinds of layers: as listed, else with a window except for every `every`-th. `layers`: the family's default."""
    count = c.size("num_hidden_layers", layers)
    pattern = [WINDOWED if (i + 1) % every else FULL for i in range(count)]
    return c.layer_kinds("layer_types", count, pattern, (FULL, WINDOWED))


def decoder(c: ConfigValues, layers: Sequence[Layer], **others: Any) -> Fields:
    """The fields that all families share, with the tables and the final norm of a model with RMS norms."""
    return {
        "hidden": c.size("hidden_size"),
        "vocab": c.size("vocab_size"),
        "max_positions": c.size("max_position_embeddings"),
        "tied_embeddings": c.flag("tie_word_embeddings", False),
        "stack": tuple(layers),
        "final_norm_parameters": c.size("hidden_size"),
        **others,
    }


def equal_layers(c: ConfigValues, mixer: Mixer, feed_forward: FeedForward, norms: int = 2) -> list[Layer]:
    """Layers that are all the same, with `norms` RMS norms each."""
    layer = Layer((mixer,), (feed_forward,), norms * c.size("hidden_size"))
    return [layer] * c.size("num_hidden_layers")


def with_norms(mixer: Attention) -> Attention:
    """The attention with norms over the queries and keys of all heads together."""
    return replace(mixer, norm_parameters=(mixer.heads + mixer.kv_heads) * mixer.head_dim)


def window_of(c: ConfigValues, default: int | None = None) -> int | None:
    """The size of the sliding window, None without one."""
    window = c.get("sliding_window", default)
    return None if window is None else c.size("sliding_window", window)


def _llama(c: ConfigValues, **changes: Any) -> Fields:
    mixer = attention_of(c, **biases(c) | changes)
    return decoder(c, equal_layers(c, mixer, Mlp(c.size("intermediate_size"), bias=c.flag("mlp_bias", False))))


def by_kind(
    c: ConfigValues, kinds: Sequence[str], norms: int, feed_forward: FeedForward, **changes: Any
) -> list[Layer]:
    """Layers of these kinds: with a window, with chunks, or with neither."""
    norm_parameters = norms * c.size("hidden_size")
    limits: dict[str, dict[str, int | None]] = {
        FULL: {},
        WINDOWED: {"window": window_of(c)} if WINDOWED in kinds else {},
        CHUNKED: {"chunk": c.size("attention_chunk_size")} if CHUNKED in kinds else {},
    }
    if WINDOWED in kinds and window_of(c) is None:
        raise c.fault("missing 'sliding_window'")
    layer_of = {
        kind: Layer((attention_of(c, **changes, **limits[kind]),), (feed_forward,), norm_parameters)
        for kind in set(kinds)
    }
    return [layer_of[kind] for kind in kinds]


def _qwen_kinds(c: ConfigValues) -> Sequence[str]:
    """Kinds of layers. A config names a window even if it is off; if on, layers from `max_window_layers` on have it."""
    layers = c.size("num_hidden_layers")
    if not c.flag("use_sliding_window", False):
        return [FULL] * layers
    first = c.size("max_window_layers", 28, least=0)
    kinds = [WINDOWED if i >= first else FULL for i in range(layers)]
    return c.layer_kinds("layer_types", layers, kinds, (FULL, WINDOWED))


def _qwen3(c: ConfigValues) -> Fields:
    head_dim = c.size("head_dim", 128)
    own = {"head_dim": head_dim, "norm_parameters": 2 * head_dim, **biases(c)}
    return decoder(c, by_kind(c, _qwen_kinds(c), 2, Mlp(c.size("intermediate_size")), **own))


def _phi3(c: ConfigValues) -> Fields:
    window = window_of(c)
    if window is not None and window >= c.size("max_position_embeddings"):
        window = None
    return _llama(c, window=window)


def _gemma2(c: ConfigValues) -> Fields:
    stack = by_kind(c, every_full(c, 2), 4, Mlp(c.size("intermediate_size")), head_dim=256, **biases(c))
    return decoder(c, stack, tied_embeddings=c.flag("tie_word_embeddings", True))


def gemma3_text(c: ConfigValues) -> Fields:
    """Most layers with a window, every sixth without."""
    kinds, head_dim = every_full(c, c.size("sliding_window_pattern", 6), layers=26), c.size("head_dim", 256)
    own = {"head_dim": head_dim, "norm_parameters": 2 * head_dim, **biases(c)}
    stack = by_kind(c, kinds, 4, Mlp(c.size("intermediate_size")), **own)
    return decoder(c, stack, tied_embeddings=c.flag("tie_word_embeddings", True))


def _olmo2(c: ConfigValues) -> Fields:
    return decoder(c, equal_layers(c, with_norms(attention_of(c, **biases(c))), Mlp(c.size("intermediate_size"))))


def _olmo3(c: ConfigValues) -> Fields:
    fields = _olmo2(c)
    (layer,) = set(fields["stack"])
    window = replace(layer, mixers=(replace(layer.mixers[0], window=window_of(c, 4096)),))
    return fields | {"stack": tuple(window if kind == WINDOWED else layer for kind in every_full(c, 4))}


def _seed_oss(c: ConfigValues) -> Fields:
    bias = c.flag("attention_bias", True)
    return _llama(c, head_dim=128, qkv_bias=bias, output_bias=c.flag("attention_out_bias", False))


def _smollm3(c: ConfigValues) -> Fields:
    if c.flag("use_sliding_window", False):
        raise c.fault("use_sliding_window is not supported")
    return _llama(c) | {"tied_embeddings": c.flag("tie_word_embeddings", True)}


def _glm4(c: ConfigValues) -> Fields:
    mixer = attention_of(c, head_dim=128, qkv_bias=c.flag("attention_bias", True))
    return decoder(c, equal_layers(c, mixer, Mlp(c.size("intermediate_size")), norms=4))


def _layer_norms(
    c: ConfigValues, mixer: Attention, mlp: Mlp, layers: int, max_positions: int, *, norms: int = 2, **others: Any
) -> Fields:
    hidden = mixer.heads * mixer.head_dim
    stack = (Layer((mixer,), (mlp,), norms * 2 * hidden),) * layers
    sizes = {"hidden": hidden, "vocab": c.size("vocab_size"), "max_positions": max_positions}
    return {**sizes, "stack": stack, "final_norm_parameters": 2 * hidden, **others}


def _own_heads(c: ConfigValues, hidden: str, heads: str, **others: Any) -> Attention:
    """Attention with one KV head per query head, read from a family's own keys."""
    count = c.size(heads)
    return Attention(count, count, c.divided(hidden, heads, (c.size(hidden), count)), **others)


def _phi(c: ConfigValues) -> Fields:
    if c.flag("qk_layernorm", False):
        raise c.fault("qk_layernorm is not supported")
    hidden = c.size("hidden_size")
    mixer = attention_of(c, qkv_bias=True, output_bias=True)
    layers = equal_layers(c, mixer, Mlp(c.size("intermediate_size"), gated=False, bias=True))
    return decoder(c, layers, final_norm_parameters=2 * hidden + c.size("vocab_size"))


def _starcoder2(c: ConfigValues) -> Fields:
    bias, hidden = c.flag("use_bias", True), c.size("hidden_size")
    mixer = attention_of(c, qkv_bias=bias, output_bias=bias, window=window_of(c))
    layers = equal_layers(c, mixer, Mlp(c.size("intermediate_size"), gated=False, bias=bias), norms=4)
    tied = c.flag("tie_word_embeddings", True)
    return decoder(c, layers, tied_embeddings=tied, final_norm_parameters=2 * hidden)


def _opt(c: ConfigValues) -> Fields:
    if c.get("word_embed_proj_dim", c.size("hidden_size")) != c.size("hidden_size"):
        raise c.fault("word_embed_proj_dim other than hidden_size is not supported")
    bias, positions = c.flag("enable_bias", True), c.size("max_position_embeddings")
    mixer = _own_heads(c, "hidden_size", "num_attention_heads", qkv_bias=bias, output_bias=bias)
    mlp, tied = Mlp(c.size("ffn_dim"), gated=False, bias=bias), c.flag("tie_word_embeddings", True)
    fields = _layer_norms(c, mixer, mlp, c.size("num_hidden_layers"), positions, tied_embeddings=tied)
    fields["learned_positions"] = positions + 2  # they are looked up with an offset of two
    if not c.flag("do_layer_norm_before", True) or c.flag("_remove_final_layer_norm", False):
        fields["final_norm_parameters"] = 0
    return fields


def _gpt2(c: ConfigValues) -> Fields:
    mixer, positions = _own_heads(c, "n_embd", "n_head", qkv_bias=True, output_bias=True), c.size("n_positions")
    mlp = Mlp(c.size("n_inner", 4 * c.size("n_embd")), gated=False, bias=True)
    own = {"tied_embeddings": c.flag("tie_word_embeddings", True), "learned_positions": positions}
    return _layer_norms(c, mixer, mlp, c.size("n_layer"), positions, **own)


def _gpt_neox(c: ConfigValues) -> Fields:
    mixer = _own_heads(c, "hidden_size", "num_attention_heads", **biases(c, True))
    mlp, layers = Mlp(c.size("intermediate_size"), gated=False, bias=True), c.size("num_hidden_layers")
    tied = c.flag("tie_word_embeddings", False)
    return _layer_norms(c, mixer, mlp, layers, c.size("max_position_embeddings"), tied_embeddings=tied)


def _falcon(c: ConfigValues) -> Fields:
    heads, hidden = c.size("num_attention_heads"), c.size("hidden_size")
    new = c.flag("new_decoder_architecture", False)
    older = 1 if c.flag("multi_query", True) else heads
    kv_heads = c.size("num_kv_heads", heads) if new else older
    # The new architecture has separate norms for attention and MLP, unless the config says that they share one.
    shared_norm = c.get("num_ln_in_parallel_attn") == 1 if new else c.flag("parallel_attn", True)
    bias = c.flag("bias", False)
    head_dim = c.divided("hidden_size", "num_attention_heads", (hidden, heads))
    c.divided("num_attention_heads", "num_kv_heads", (heads, kv_heads))
    mixer = Attention(heads, kv_heads, head_dim, qkv_bias=bias, output_bias=bias)
    mlp = Mlp(c.size("ffn_hidden_size", 4 * hidden), gated=False, bias=bias)
    layers, positions = c.size("num_hidden_layers"), c.size("max_position_embeddings", 2048)
    own = {"norms": 1 if shared_norm else 2, "tied_embeddings": c.flag("tie_word_embeddings", True)}
    return _layer_norms(c, mixer, mlp, layers, positions, **own)


DENSE: dict[str, Reader] = {
    "llama": _llama,
    "mistral": lambda c: _llama(c, window=window_of(c)),
    "ministral3": lambda c: _llama(c, window=window_of(c), head_dim=128),
    "qwen2": lambda c: decoder(c, by_kind(c, _qwen_kinds(c), 2, Mlp(c.size("intermediate_size")), qkv_bias=True)),
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gemma": lambda c: _llama(c, head_dim=256) | {"tied_embeddings": c.flag("tie_word_embeddings", True)},
    "gemma2": _gemma2,
    "gemma3_text": gemma3_text,
    "granite": _llama,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
    "glm4": _glm4,
    "phi": _phi,
    "starcoder2": _starcoder2,
    "opt": _opt,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
}

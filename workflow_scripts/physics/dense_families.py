"""From a `config.json` to the layers of a dense model, and what the readers of all families share.

A reader returns the fields of `model_facts.ModelFacts` that depend on the family. Defaults are those of transformers,
whose models have exactly the parameters that are counted here (tests/unit/physics/test_model_facts.py).
"""

from collections.abc import Callable, Sequence
from typing import Any

from workflow_scripts.physics.config_values import ConfigValues
from workflow_scripts.physics.layers import Attention, FeedForward, Layer, Mixer, Mlp

Fields = dict[str, Any]
Reader = Callable[[ConfigValues], Fields]

WINDOWED, CHUNKED, FULL = "sliding_attention", "chunked_attention", "full_attention"


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


def biases(c: ConfigValues, default: bool = False) -> Fields:
    """Whether queries, keys, values and the output have biases, by the usual key."""
    bias = c.flag("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


def every_full(c: ConfigValues, every: int, layers: int | None = None) -> Sequence[str]:
    """Kinds of layers: as listed, else with a window except for every `every`-th. `layers`: the family's default."""
    count = c.size("num_hidden_layers", layers)
    pattern = [WINDOWED if (i + 1) % every else FULL for i in range(count)]
    return c.layer_kinds("layer_types", count, pattern, (FULL, WINDOWED))


def decoder(c: ConfigValues, layers: Sequence[Layer], *, tied: bool = False, **others: Any) -> Fields:
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


def equal_layers(c: ConfigValues, mixer: Mixer, feed_forward: FeedForward, norms: int = 2, **own: Any) -> Fields:
    """A `decoder` of layers that are all the same, with `norms` RMS norms each."""
    layer = Layer((mixer,), (feed_forward,), norms * c.size("hidden_size"))
    return decoder(c, [layer] * c.size("num_hidden_layers"), **own)


def window_of(c: ConfigValues, default: int | None = None) -> int | None:
    """The size of the sliding window, None without one."""
    window = c.get("sliding_window", default)
    return None if window is None else c.size("sliding_window", window)


def _llama(c: ConfigValues, tied: bool = False, **changes: Any) -> Fields:
    mlp = mlp_of(c, bias=c.flag("mlp_bias", False))
    return equal_layers(c, attention_of(c, **biases(c) | changes), mlp, tied=tied)


def mixers_of(c: ConfigValues, kinds: Sequence[str], *, window: int | None = None, **changes: Any) -> dict[str, Mixer]:
    """The attention of each of these kinds: with a window (`window`: the family's default), with chunks, or neither."""
    limits: dict[str, Fields] = {FULL: {}}
    if WINDOWED in kinds:
        limits[WINDOWED] = {"window": window_of(c, window)}
        if limits[WINDOWED]["window"] is None:
            raise c.fault("missing 'sliding_window'")
    if CHUNKED in kinds:
        limits[CHUNKED] = {"chunk": c.size("attention_chunk_size")}
    return {kind: attention_of(c, **changes, **limits[kind]) for kind in set(kinds)}


def by_kind(
    c: ConfigValues, kinds: Sequence[str], block: FeedForward, norms: int = 2, tied: bool = False, **changes: Any
) -> Fields:
    """A `decoder` of layers of these kinds; `changes` as in `mixers_of`."""
    mixers = mixers_of(c, kinds, **changes)
    return decoder(c, [Layer((mixers[kind],), (block,), norms * c.size("hidden_size")) for kind in kinds], tied=tied)


def _qwen(c: ConfigValues, **changes: Any) -> Fields:
    # A config names a window even if it is off; if on, layers from `max_window_layers` on have it.
    layers = c.size("num_hidden_layers")
    kinds: Sequence[str] = [FULL] * layers
    if c.flag("use_sliding_window", False):
        first = c.size("max_window_layers", 28, least=0)
        pattern = [WINDOWED if i >= first else FULL for i in range(layers)]
        kinds = c.layer_kinds("layer_types", layers, pattern, (FULL, WINDOWED))
    return by_kind(c, kinds, mlp_of(c), **changes)


def _phi3(c: ConfigValues) -> Fields:
    window = window_of(c)
    if window is not None and window >= c.size("max_position_embeddings"):
        window = None
    return _llama(c, window=window)


def _gemma(c: ConfigValues, kinds: Sequence[str], **changes: Any) -> Fields:
    return by_kind(c, kinds, mlp_of(c), norms=4, tied=True, head_dim=256, **biases(c), **changes)


def gemma3_text(c: ConfigValues) -> Fields:
    """Most layers with a window, every sixth without."""
    return _gemma(c, every_full(c, c.size("sliding_window_pattern", 6), layers=26), norms_over="each")


def _smollm3(c: ConfigValues) -> Fields:
    if c.flag("use_sliding_window", False):
        raise c.fault("use_sliding_window is not supported")
    return _llama(c, tied=True)


def _own_heads(c: ConfigValues, **others: Any) -> Attention:
    """Attention with one KV head per query head, whatever the config says of KV heads."""
    heads = c.size("num_attention_heads")
    head_dim = c.divided("hidden_size", "num_attention_heads", (c.size("hidden_size"), heads))
    return Attention(heads, heads, head_dim, **others)


def _layer_norms(c: ConfigValues, mixer: Attention, mlp: Mlp, **others: Any) -> Fields:
    """Equal layers of two norms with biases."""
    return equal_layers(c, mixer, mlp, 4, **{"final_norm_parameters": 2 * c.size("hidden_size"), **others})


def _opt(c: ConfigValues) -> Fields:
    hidden, bias = c.size("hidden_size"), c.flag("enable_bias", True)
    if c.get("word_embed_proj_dim", hidden) != hidden:
        raise c.fault("word_embed_proj_dim other than hidden_size is not supported")
    mixer = _own_heads(c, qkv_bias=bias, output_bias=bias)
    # Positions are looked up with an offset of two.
    own: Fields = {"tied": True, "learned_positions": c.size("max_position_embeddings") + 2}
    if not c.flag("do_layer_norm_before", True) or c.flag("_remove_final_layer_norm", False):
        own["final_norm_parameters"] = 0
    return _layer_norms(c, mixer, Mlp(c.size("ffn_dim"), gated=False, bias=bias), **own)


def _gpt2(c: ConfigValues) -> Fields:
    named = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    c = c.with_usual_keys(named | {"max_position_embeddings": "n_positions"})
    mixer = _own_heads(c, qkv_bias=True, output_bias=True)
    mlp = Mlp(c.size("n_inner", 4 * c.size("hidden_size")), gated=False, bias=True)
    return _layer_norms(c, mixer, mlp, tied=True, learned_positions=c.size("max_position_embeddings"))


DENSE: dict[str, Reader] = {
    "llama": _llama,
    "mistral": lambda c: _llama(c, window=window_of(c)),
    "ministral3": lambda c: _llama(c, window=window_of(c), head_dim=128),
    **dict.fromkeys(("qwen2", "mimo"), lambda c: _qwen(c, qkv_bias=True)),
    "qwen3": lambda c: _qwen(c, head_dim=128, norms_over="each", **biases(c)),
    "phi3": _phi3,
    "gemma": lambda c: _llama(c, tied=True, head_dim=256),
    "gemma2": lambda c: _gemma(c, every_full(c, 2)),
    "gemma3_text": gemma3_text,
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
    "gpt2": _gpt2,
}

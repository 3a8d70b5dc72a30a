"""Readers of families with state layers, and of models that also see pictures: a text model of any kind and an encoder.

The encoder counts as parameters that decoding never reads. `attention_families` has the others.
"""

from collections.abc import Sequence

from workflow_scripts.physics.attention_families import (
    FULL,
    Config,
    Reader,
    attention_of,
    biases,
    decoder,
    experts_of,
    mlp_of,
)
from workflow_scripts.physics.attention_families import READERS as OF_TEXTS
from workflow_scripts.physics.config_values import ConfigValues
from workflow_scripts.physics.layers import MAMBA_2, FeedForward, Layer, Mixer, Mlp, State

LINEAR = "linear_attention"
DTYPES = ("float32", "bfloat16", "float16")


def _kinds(c: ConfigValues, *keys: str) -> Sequence[str]:
    """Kinds of layers, from the first key that is there, with the present names for older ones."""
    older = {"mamba": LINEAR, "attention": FULL}
    return [older.get(str(kind), str(kind)) for kind in next(filter(None, map(c.elements, keys)), ())]


def _mamba2(
    c: ConfigValues, inner: int, *, norm: bool = True, out_bias: bool | None = None, recurrent_dtype: str | None = None
) -> State:
    """A layer of Mamba-2 (Dao and Gu, 2024) of `inner` channels: heads that share B and C in groups. `norm`: of these
    channels. `out_bias`: of the matrix that leads back; None is that of the one that leads in."""
    heads, groups, state = c.size("mamba_n_heads", 128), c.size("mamba_n_groups", 1), c.size("mamba_d_state", 256)
    if (head_dim := c.get("mamba_d_head", "auto")) == "auto":
        c.divided("width of the state layers", "mamba_n_heads", (inner, heads))
    elif head_dim * heads != inner:
        raise c.fault(f"mamba_d_head {head_dim} x mamba_n_heads {heads} must be {inner}")
    c.divided("mamba_n_heads", "mamba_n_groups", (heads, groups))
    kernel, bias, shared = c.size("mamba_d_conv", 4), c.flag("mamba_proj_bias", False), 2 * groups * state
    width = inner + shared
    vectors = width * (kernel + c.flag("mamba_conv_bias", True)) + 3 * heads + norm * inner
    of_biases = bias * (inner + width + heads) + (bias if out_bias is None else out_bias) * c.size("hidden_size")
    return State(
        MAMBA_2,
        heads,
        width=width,
        kernel=kernel,
        rows=inner,
        columns=state,
        matrix_widths=(inner + width + heads,),
        vector_parameters=vectors + of_biases,
        groups=groups,
        shared_width=shared,
        recurrent_dtype=recurrent_dtype,
    )


_KEYS_OF_NEMOTRON = {
    **{"mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim", "mamba_d_state": "ssm_state_size"},
    **{"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias"},
    "mamba_proj_bias": "use_bias",
}


def _nemotron_h(c: ConfigValues) -> Config:
    """Each layer is one of attention, state, dense or experts, with one norm."""
    names = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
    if isinstance(pattern := c.get("hybrid_override_pattern"), str):
        kinds: Sequence[str] = [names.get(letter, letter) for letter in pattern]
    else:
        kinds = _kinds(c, "layers_block_type", "layer_types")
    if not kinds:
        raise c.fault("missing 'hybrid_override_pattern'")
    if unknown := sorted(set(kinds) - set(names.values())):
        raise c.fault(f"hybrid_override_pattern names {unknown[0]!r}; supported: {', '.join(names)}")
    mlp_bias = c.flag("mlp_bias", False)

    def parts(kind: str) -> tuple[tuple[Mixer, ...], tuple[FeedForward, ...]]:
        if kind == FULL:
            return (attention_of(c, head_dim=128),), ()
        if kind == "mlp":
            return (), (mlp_of(c, gated=False, bias=mlp_bias),)
        if kind == LINEAR:
            c.size("ssm_state_size")  # this family has no default
            dtype = c.choice("mamba_ssm_cache_dtype", "float32", DTYPES)
            usual = ConfigValues({"n_groups": 8} | c.given()).with_usual_keys(_KEYS_OF_NEMOTRON)
            inner = c.size("mamba_num_heads") * c.size("mamba_head_dim")
            return (_mamba2(usual, inner, recurrent_dtype=dtype),), ()
        latent = c.optional_size("moe_latent_size")
        if mlp_bias and latent:
            raise c.fault("mlp_bias with moe_latent_size is not supported")
        routed = experts_of(c, "n_routed_experts", gated=False, latent=latent)
        return (), (routed, Mlp(c.size("moe_shared_expert_intermediate_size"), gated=False, bias=mlp_bias))

    layer_of = {kind: Layer(*parts(kind), c.size("hidden_size")) for kind in set(kinds)}
    return decoder(c, [layer_of[kind] for kind in kinds])


def _falcon_h1(c: ConfigValues) -> Config:
    hidden = c.size("hidden_size")
    inner = c.size("mamba_d_ssm", c.size("mamba_expand", 2) * hidden)
    norm, out_bias = c.flag("mamba_rms_norm", False), c.flag("projectors_bias", False)
    mixers = (attention_of(c, **biases(c)), _mamba2(c, inner, norm=norm, out_bias=out_bias))
    layer = Layer(mixers, (mlp_of(c, bias=c.flag("mlp_bias", False)),), 2 * hidden)
    return decoder(c, [layer] * c.size("num_hidden_layers"))


def _delta_net(c: ConfigValues) -> State:
    """A gated delta net (Yang et al., 2024)."""
    key_heads, value_heads = c.size("linear_num_key_heads"), c.size("linear_num_value_heads")
    key_dim, value_dim = c.size("linear_key_head_dim"), c.size("linear_value_head_dim")
    c.divided("linear_num_value_heads", "linear_num_key_heads", (value_heads, key_heads))
    keys, values, kernel = key_heads * key_dim, value_heads * value_dim, c.size("linear_conv_kernel_dim", 4)
    width = 2 * keys + values
    return State(
        "gated delta net",
        key_heads,
        width=width,
        kernel=kernel,
        rows=values,
        columns=key_dim,
        matrix_widths=(width + values, 2 * value_heads),
        vector_parameters=width * kernel + 2 * value_heads + value_dim,
        recurrent_dtype=c.choice("mamba_ssm_dtype", None, DTYPES),
    )


def _qwen_hybrid(c: ConfigValues) -> Config:
    """Qwen3-Next and the text models of Qwen3.5: mostly gated delta nets, and attention with gates."""
    hidden, layers, every = c.size("hidden_size"), c.size("num_hidden_layers"), c.size("full_attention_interval", 4)
    pattern = [FULL if (i + 1) % every == 0 else LINEAR for i in range(layers)]
    kinds = c.layer_kinds("layer_types", layers, pattern, (FULL, LINEAR))
    attention = attention_of(c, head_dim=256, norms_over="each", gates=c.size("head_dim", 256), **biases(c))
    mixer_of: dict[str, Mixer] = {FULL: attention, LINEAR: _delta_net(c)}
    dense = (mlp_of(c),) if c.get("intermediate_size") is not None else ()
    sparse: tuple[FeedForward, ...] = ()
    if ("moe" in c.model_type or c.model_type == "qwen3_next") and c.size("num_experts", least=0):
        routed = experts_of(c, "num_experts", router_parameters=hidden)
        sparse = (routed, Mlp(c.size("shared_expert_intermediate_size")))
    step, only_dense = c.size("decoder_sparse_step", 1), c.numbers("mlp_only_layers", layers)

    def blocks(i: int) -> tuple[FeedForward, ...]:
        chosen = sparse if sparse and i not in only_dense and (i + 1) % step == 0 else dense
        if not chosen:
            raise c.fault("missing 'intermediate_size'")
        return chosen

    return decoder(c, [Layer((mixer_of[kind],), blocks(i), 2 * hidden) for i, kind in enumerate(kinds)])


HYBRIDS: dict[str, Reader] = {
    "nemotron_h": _nemotron_h,
    "falcon_h1": _falcon_h1,
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _qwen_hybrid),
}

# Defaults of transformers, which published configs of Gemma 3 leave out.
_GEMMA3_TEXT = {
    **{"vocab_size": 262208, "max_position_embeddings": 131072, "head_dim": 256},
    **{"num_attention_heads": 8, "num_key_value_heads": 4},
}


def _with_biases(*sizes: tuple[int, int]) -> int:
    """Parameters of matrices, by inputs and outputs, each with a bias."""
    return sum(inputs * outputs + outputs for inputs, outputs in sizes)


def _tower(v: ConfigValues, inputs: int, positions: int = 0, in_layer: int = 0) -> int:
    """Parameters of an encoder with biases and a norm: a matrix for patches of `inputs`, `positions`, and layers of
    attention, two matrices, two norms and `in_layer` more."""
    hidden, inner = v.size("hidden_size"), v.size("intermediate_size")
    layer = _with_biases((hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)) + 4 * hidden
    return v.size("num_hidden_layers") * (layer + in_layer) + (inputs + positions) * hidden + 2 * hidden


def _gemma3(c: ConfigValues) -> Config:
    fields = OF_TEXTS["gemma3_text"](ConfigValues({**_GEMMA3_TEXT, **c.part("text_config").given()}))
    v = c.part("vision_config")
    hidden, patch = v.size("hidden_size"), v.size("patch_size")
    encoder = _tower(v, 3 * patch**2 + 1, (v.size("image_size") // patch) ** 2) + hidden * fields["hidden"] + hidden
    return fields | {"tied_embeddings": c.flag("tie_word_embeddings", True), "encoder_parameters": encoder}


def _qwen_pictures(text: Reader) -> Reader:
    def read(c: ConfigValues) -> Config:
        fields = text(c.part("text_config"))
        v = c.part("vision_config").with_usual_keys({"num_hidden_layers": "depth"})
        inputs = 3 * v.size("temporal_patch_size", 2) * v.size("patch_size") ** 2 + 1
        merged = v.size("hidden_size") * v.size("spatial_merge_size", 2) ** 2
        merger = _with_biases((merged, merged), (merged, v.size("out_hidden_size")))
        encoder = _tower(v, inputs, v.size("num_position_embeddings")) + merger
        return fields | {"tied_embeddings": c.flag("tie_word_embeddings", False), "encoder_parameters": encoder}

    return read


# The tower of Gemma 4 26B-A4B and 31B, for configs that leave it out.
_GEMMA4_VISION = {
    **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16},
    **{"head_dim": 72, "patch_size": 16, "position_embedding_size": 10240},
}


def _gemma4(c: ConfigValues) -> Config:
    fields = OF_TEXTS["gemma4_text"](c.part("text_config"))
    v = c.part("vision_config") if c.get("vision_config") else ConfigValues(_GEMMA4_VISION)
    hidden, width = v.size("hidden_size"), v.size("num_attention_heads") * v.size("head_dim")
    # Attention and a gated MLP without biases; norms around both, and of queries and keys.
    layer = 4 * hidden * width + 3 * hidden * v.size("intermediate_size") + 4 * hidden + 2 * v.size("head_dim")
    embeddings = 3 * v.size("patch_size", 16) ** 2 * hidden + 2 * v.size("position_embedding_size", 10240) * hidden
    encoder = v.size("num_hidden_layers") * layer + embeddings + hidden * fields["hidden"]
    return fields | {"tied_embeddings": c.flag("tie_word_embeddings", True), "encoder_parameters": encoder}


def _kimi_k25(c: ConfigValues) -> Config:
    fields = OF_TEXTS["kimi_k2"](ConfigValues({**c.part("text_config").given(), "model_type": "kimi_k2"}))
    given = c.part("vision_config").given()
    # Remote code names the sizes of the tower with prefixes.
    v = ConfigValues({key.removeprefix("vt_").removeprefix("init_"): value for key, value in given.items()})
    merged = 4 * v.size("hidden_size")
    projector = _with_biases((merged, merged), (merged, fields["hidden"])) + 2 * v.size("hidden_size")
    positions = v.size("pos_emb_height", 64) * v.size("pos_emb_width", 64)
    return fields | {"encoder_parameters": _tower(v, 3 * v.size("patch_size", 14) ** 2 + 1, positions) + projector}


def _minimax_m3(c: ConfigValues) -> Config:
    fields = OF_TEXTS["minimax_m3_text"](c.part("text_config"))
    v, inner, out = c.part("vision_config"), c.size("projector_hidden_size", 6144), fields["hidden"]
    merged = out * v.size("spatial_merge_size", 2) ** 2
    projector = _with_biases((v.size("hidden_size"), inner), (inner, out), (merged, inner), (inner, out))
    encoder = _tower(v, 3 * v.size("temporal_patch_size", 2) * v.size("patch_size") ** 2) + projector
    return fields | {"encoder_parameters": encoder}


def _step3p7(c: ConfigValues) -> Config:
    fields = OF_TEXTS["step3p5"](c.part("text_config"))
    v = c.part("vision_config").with_usual_keys({"hidden_size": "width", "num_hidden_layers": "layers"})
    hidden, patch = v.size("hidden_size"), v.size("patch_size")
    v = ConfigValues({**v.given(), "intermediate_size": int(hidden * v.get("mlp_ratio", 8960 / 1536))})
    # Two scales in each layer, and two convolutions of 3 x 3 that each double the width.
    narrowing = _with_biases((9 * hidden, 2 * hidden), (9 * 2 * hidden, 4 * hidden)) + 4 * hidden * fields["hidden"]
    encoder = _tower(v, 3 * patch**2, (v.size("image_size") // patch) ** 2, 2 * hidden) + narrowing
    return fields | {"encoder_parameters": encoder}


OF_PICTURES: dict[str, Reader] = {
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "kimi_k25": _kimi_k25,
    "minimax_m3_vl": _minimax_m3,
    "step3p7": _step3p7,
    "qwen3_5": _qwen_pictures(HYBRIDS["qwen3_5_text"]),
    "qwen3_5_moe": _qwen_pictures(HYBRIDS["qwen3_5_moe_text"]),
}

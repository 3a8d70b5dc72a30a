"""Readers of models that also see pictures: a text model of `dense_families` to `hybrid_families`, and an encoder.

The encoder counts as parameters that decoding never reads.
"""

from workflow_scripts.physics.config_values import ConfigValues
from workflow_scripts.physics.dense_families import DENSE, Fields, Reader, gemma3_text
from workflow_scripts.physics.expert_families import EXPERTS
from workflow_scripts.physics.hybrid_families import HYBRIDS

# Defaults of transformers, which published configs of Gemma 3 leave out.
_GEMMA3_TEXT = {
    **{"vocab_size": 262208, "max_position_embeddings": 131072, "head_dim": 256},
    **{"num_attention_heads": 8, "num_key_value_heads": 4},
}


def _with_biases(*sizes: tuple[int, int]) -> int:
    """Parameters of matrices, by inputs and outputs, each with a bias."""
    return sum(inputs * outputs + outputs for inputs, outputs in sizes)


def _encoder_layer(hidden: int, intermediate: int) -> int:
    """Parameters of a layer with biases everywhere: attention, two matrices and two norms."""
    matrices = _with_biases((hidden, 3 * hidden), (hidden, hidden), (hidden, intermediate), (intermediate, hidden))
    return matrices + 4 * hidden


def _gemma3(c: ConfigValues) -> Fields:
    fields = gemma3_text(ConfigValues({**_GEMMA3_TEXT, **c.part("text_config").given()}))
    v = c.part("vision_config")
    hidden, patch = v.size("hidden_size"), v.size("patch_size")
    patches = (v.size("image_size") // patch) ** 2
    embeddings = _with_biases((3 * patch * patch, hidden)) + patches * hidden
    projector = hidden * fields["hidden"] + hidden
    layers = v.size("num_hidden_layers") * _encoder_layer(hidden, v.size("intermediate_size"))
    encoder = layers + embeddings + 2 * hidden + projector
    return fields | {"tied_embeddings": c.flag("tie_word_embeddings", True), "encoder_parameters": encoder}


def _llama4(c: ConfigValues) -> Fields:
    fields, v = EXPERTS["llama4_text"](c.part("text_config")), c.part("vision_config")
    hidden, patch, out = v.size("hidden_size"), v.size("patch_size"), v.size("projector_output_dim")
    patches = (v.size("image_size") // patch) ** 2 + 1
    layers = v.size("num_hidden_layers") * _encoder_layer(hidden, v.size("intermediate_size"))
    embeddings = 3 * patch * patch * hidden + hidden + patches * hidden + 4 * hidden
    adapter = v.size("intermediate_size") * v.size("projector_input_dim") + out * out
    return fields | {
        "encoder_parameters": layers + embeddings + adapter + v.size("vision_output_dim") * fields["hidden"]
    }


def _qwen(text: Reader) -> Reader:
    def read(c: ConfigValues) -> Fields:
        fields, v = text(c.part("text_config")), c.part("vision_config")
        hidden, out = v.size("hidden_size"), v.size("out_hidden_size")
        patch = 3 * v.size("temporal_patch_size", 2) * v.size("patch_size") ** 2
        embeddings = _with_biases((patch, hidden)) + v.size("num_position_embeddings") * hidden
        merged = hidden * v.size("spatial_merge_size", 2) ** 2
        merger = _with_biases((merged, merged), (merged, out))
        deeper = len(v.get("deepstack_visual_indexes", [])) * (merger + 2 * merged)
        layers = v.size("depth") * _encoder_layer(hidden, v.size("intermediate_size"))
        encoder = layers + embeddings + merger + 2 * hidden + deeper
        return fields | {"tied_embeddings": c.flag("tie_word_embeddings", False), "encoder_parameters": encoder}

    return read


# The tower of Gemma 4 26B-A4B and 31B, for configs that leave it out.
_GEMMA4_VISION = {
    **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16},
    **{"head_dim": 72, "patch_size": 16, "position_embedding_size": 10240},
}


def _gemma4(c: ConfigValues) -> Fields:
    fields = EXPERTS["gemma4_text"](c.part("text_config"))
    v = c.part("vision_config") if c.get("vision_config") else ConfigValues(_GEMMA4_VISION)
    hidden, width = v.size("hidden_size"), v.size("num_attention_heads") * v.size("head_dim")
    # Attention and a gated MLP without biases; norms around both, and of queries and keys.
    layer = 4 * hidden * width + 3 * hidden * v.size("intermediate_size") + 4 * hidden + 2 * v.size("head_dim")
    embeddings = 3 * v.size("patch_size", 16) ** 2 * hidden + 2 * v.size("position_embedding_size", 10240) * hidden
    encoder = v.size("num_hidden_layers") * layer + embeddings + hidden * fields["hidden"]
    return fields | {"tied_embeddings": c.flag("tie_word_embeddings", True), "encoder_parameters": encoder}


def _mistral3(c: ConfigValues) -> Fields:
    fields, v = DENSE["mistral"](c.part("text_config")), c.part("vision_config")
    hidden, out = v.size("hidden_size"), fields["hidden"]
    layer = 4 * hidden**2 + 3 * hidden * v.size("intermediate_size") + 2 * hidden
    merger = c.size("spatial_merge_size", 2) ** 2 * hidden**2 + hidden
    encoder = v.size("num_hidden_layers") * layer + 3 * v.size("patch_size") ** 2 * hidden + hidden
    projector = merger + hidden * out + out**2
    # Published checkpoints have an output matrix, and no config that says so.
    tied = c.flag("tie_word_embeddings", fields.get("tied_embeddings", False))
    return fields | {"tied_embeddings": tied, "encoder_parameters": encoder + projector}


PICTURES: dict[str, Reader] = {
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "mistral3": _mistral3,
    "llama4": _llama4,
    "qwen3_vl": _qwen(DENSE["qwen3"]),
    "qwen3_vl_moe": _qwen(EXPERTS["qwen3_moe"]),
    "qwen3_5": _qwen(HYBRIDS["qwen3_5_text"]),
    "qwen3_5_moe": _qwen(HYBRIDS["qwen3_5_moe_text"]),
}

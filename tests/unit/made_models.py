"""Configs of models made up for tests."""

_NAMES = {
    **{"layers": "num_hidden_layers", "hidden": "hidden_size", "inner": "intermediate_size"},
    **{"heads": "num_attention_heads", "kv_heads": "num_key_value_heads"},
    **{"vocab": "vocab_size", "positions": "max_position_embeddings"},
}


def shape(family=None, /, **keys):
    """Keys of a config; those that nearly all families have go by the short names above, the others by their own."""
    named = {_NAMES.get(name, name): value for name, value in keys.items()}
    return named if family is None else {"model_type": family, **named}

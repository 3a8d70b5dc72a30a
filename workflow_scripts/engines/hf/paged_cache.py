"""Which models transformers' continuous batching cannot serve, and why: what its paged cache does not hold."""

from pathlib import Path

from workflow_scripts.physics.layers import Attention, LatentAttention, State
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts

_CACHE = "the paged cache of transformers holds keys and values"


def why_paged_cache_is_refused(facts: ModelFacts) -> str | None:
    """Why transformers' continuous batching cannot serve a model; None if it can. Its pages have as many elements for
    keys as for values, and its layers attend to all tokens or to a window: `generation/continuous_batching/cache.py`
    of transformers 5.19.

    >>> from workflow_scripts.catalog.gpus_and_models import get_model
    >>> from workflow_scripts.physics.model_facts import read_model_facts
    >>> why_paged_cache_is_refused(read_model_facts(get_model("latent-8b").config))
    'the paged cache of transformers holds keys and values of one width, and no latent vectors (deepseek_v2)'
    >>> why_paged_cache_is_refused(read_model_facts(get_model("windows-8b").config)) is None
    True
    """
    mixers = {mixer for layer in facts.layer_counts for mixer in layer.mixers}
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        return f"{_CACHE} of one width, and no latent vectors ({facts.model_type})"
    if any(isinstance(mixer, State) for mixer in mixers):
        return f"{_CACHE}, and no states ({facts.model_type})"
    if len({(mixer.kv_heads, mixer.head_dim) for mixer in mixers if isinstance(mixer, Attention)}) > 1:
        return f"{_CACHE} of one width in all layers ({facts.model_type})"
    if any(isinstance(mixer, Attention) and mixer.chunk is not None for mixer in mixers):
        return f"{_CACHE} of all tokens or of a window, and no chunks ({facts.model_type})"
    return None


def why_model_is_refused(model_dir: Path) -> str | None:
    """The same for the model in a folder; also None for an unknown family, which may work."""
    try:
        return why_paged_cache_is_refused(read_model_facts(model_dir, weights=False))
    except ModelFactsError:
        return None

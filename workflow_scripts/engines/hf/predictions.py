"""What HuggingFace transformers does with the settings of a cell: its KV capacity, and how it forms steps."""

from pathlib import Path

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.capacity import Capacity, Term
from workflow_scripts.engines.description import UnpredictableError
from workflow_scripts.engines.hf.knobs import HfContinuousKnobs, HfStaticKnobs
from workflow_scripts.engines.steps import EngineSteps, Graphs, SchedulerSettings, StaticBatches
from workflow_scripts.physics.layers import Attention, Experts
from workflow_scripts.physics.model_facts import ModelFacts, ModelFactsError, read_model_facts


def why_paged_cache_is_refused(facts: ModelFacts) -> str | None:
    """Why transformers' continuous batching cannot serve a model; None if it can. Its pages have as many elements for
    keys as for values, and its layers attend to all tokens or to a window: `generation/continuous_batching/cache.py`
    of transformers 5.19.

    >>> from workflow_scripts.catalog.gpus_and_models import get_model
    >>> from workflow_scripts.physics.model_facts import read_model_facts
    >>> why_paged_cache_is_refused(read_model_facts(get_model("latent-8b").config))
    'the paged cache of transformers holds keys and values of one width, of all tokens or of a window (deepseek_v2)'
    >>> why_paged_cache_is_refused(read_model_facts(get_model("windows-8b").config)) is None
    True
    """
    held = {(mixer.kv_heads, mixer.head_dim) for mixer in facts.mixers if isinstance(mixer, Attention)}
    if len(held) == 1 and all(isinstance(mixer, Attention) for mixer in facts.mixers):
        return None
    what = "keys and values of one width, of all tokens or of a window"
    return f"the paged cache of transformers holds {what} ({facts.model_type})"


def why_model_is_refused(model_dir: Path) -> str | None:
    """The same for the model in a folder; also None for an unknown family, which may work."""
    try:
        return why_paged_cache_is_refused(read_model_facts(model_dir, weights=False))
    except ModelFactsError:
        return None


def hf_continuous_capacity(knobs: HfContinuousKnobs, gpu: Gpu, facts: ModelFacts, version: str = "") -> Capacity:
    """The paged cache, whose number of blocks is given instead of profiled, on any device. Raises ModelFactsError if
    the layers do not all keep keys and values of all earlier tokens."""
    if refused := why_paged_cache_is_refused(facts):
        return Capacity({}, block_size=knobs.page_size, infeasible=refused)
    assert facts.attention  # raises if it is not known
    per_token = facts.bytes_per_token()
    per_block = knobs.page_size * per_token
    terms = {
        "bytes_per_token": Term(per_token, "bytes", "2 x layers x KV heads x elements of a head x bytes of an element"),
        "bytes_per_block": Term(per_block, "bytes", f"bytes_per_token x {knobs.page_size} tokens"),
        "num_blocks": Term(knobs.num_blocks, "blocks", "given: num_blocks"),
        "available_kv_cache": Term(knobs.num_blocks * per_block, "bytes", "num_blocks x bytes_per_block"),
        "kv_cache_tokens": Term(knobs.num_blocks * knobs.page_size, "tokens", "num_blocks x page_size"),
    }
    return Capacity(terms, block_size=knobs.page_size)


def hf_continuous_steps(knobs: HfContinuousKnobs, gpu: Gpu, facts: ModelFacts, version: str = "") -> EngineSteps:
    """transformers' FIFO scheduler, which decides like vLLM's."""
    scheduler = SchedulerSettings(
        max_num_seqs=knobs.max_concurrency,
        max_num_batched_tokens=knobs.max_batch_tokens,
        block_size=knobs.page_size,
        max_model_len=facts.max_positions,
        enable_prefix_caching=False,
        async_scheduling=False,
    )
    graphs = None if gpu.kind == "cpu" else Graphs()
    return EngineSteps(scheduler, facts.max_positions, eager=True, one_mask=True, graphs=graphs)


def hf_static_steps(knobs: HfStaticKnobs, gpu: Gpu, facts: ModelFacts, version: str = "") -> EngineSteps:
    """Static batches. Raises UnpredictableError or ModelFactsError if what the model's layers read is not modelled."""
    assert facts.attention  # raises if it is not known
    if any(facts.of_kind(Experts)):
        raise UnpredictableError("what HuggingFace's experts read and copy is not modelled")
    if knobs.cache_implementation != "dynamic":
        raise UnpredictableError(f"cache_implementation {knobs.cache_implementation} is not modelled")
    return EngineSteps(StaticBatches(knobs.max_concurrency), facts.max_positions, eager=True)

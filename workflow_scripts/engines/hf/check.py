"""What transformers itself says about settings, without a device: its model classes and its generation configs.

Models and caches are built on PyTorch's `meta` device, which has shapes but no memory. For a GPU transformers sees the
memory of the catalogue, without that of the weights.
"""

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from workflow_scripts.catalog.gpus_and_models import Gpu
from workflow_scripts.engines.check import EngineSetting, Fault
from workflow_scripts.engines.hf.knobs import HfContinuousKnobs, HfStaticKnobs, attention_of
from workflow_scripts.engines.hf.paged_cache import why_model_is_refused


def hf_faults(settings: Sequence[EngineSetting]) -> list[Fault | None]:
    """The fault of each setting that transformers refuses, else None, in the order of `settings`. A model that its
    paged cache cannot hold is no fault of a setting: the cell is predicted to end as infeasible."""
    from transformers import GenerationConfig

    def fault(setting: EngineSetting) -> Fault | None:
        try:
            model = _model(setting.model_dir, setting.dtype)
            if isinstance(setting.knobs, HfStaticKnobs):
                cache_implementation = setting.knobs.cache_implementation
                usual = {"do_sample": False, "max_new_tokens": 1, "pad_token_id": 0}
                GenerationConfig(**usual, cache_implementation=cache_implementation).validate(strict=True)
            elif isinstance(setting.knobs, HfContinuousKnobs) and not why_model_is_refused(setting.model_dir):
                _paged_cache(model, setting.knobs, setting.gpu)
        except Exception as e:
            return Fault(tuple(setting.knobs.set_values()), " ".join(f"{type(e).__name__}: {e}".split()))
        return None

    return [fault(setting) for setting in settings]


@functools.cache
def _model(model_dir: Path, dtype: str) -> Any:
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
    attention = attention_of(config, MODEL_FOR_CAUSAL_LM_MAPPING)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)


def _paged_cache(model: Any, knobs: HfContinuousKnobs, gpu: Gpu) -> None:
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching import cache
    from transformers.generation.continuous_batching.distributed import DistributedHelper
    from transformers.generation.continuous_batching.initialization import resolve_continuous_batching_config

    config = model.config.get_text_config()
    asked = ContinuousBatchingConfig(allow_block_sharing=False, **knobs.set_values())
    # Of a GPU transformers sees the memory with the model's weights in it, instead of this machine's memory.
    weights = sum(tensor.numel() * tensor.itemsize for tensor in model.parameters())
    memory = model.device, int(gpu.usable_memory_bytes or gpu.memory_bytes or 0), weights, weights
    seen = patch.object(cache, "get_device_and_memory_breakdown", lambda: memory)
    with seen if gpu.kind == "cuda" else nullcontext():
        cache.PagedAttentionCache(
            config=config,
            continuous_batching_config=resolve_continuous_batching_config(config, asked, None, False),
            device="meta",
            distributed_helper=DistributedHelper(None, None),
            dtype=model.dtype,
        )

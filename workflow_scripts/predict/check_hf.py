"""What transformers itself says about settings, without a device: its model classes and its generation configs.

Models and caches are built on PyTorch's `meta` device, which has shapes but no memory.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from workflow_scripts.engines.hf_engines import HfContinuousKnobs, HfStaticKnobs
from workflow_scripts.predict.engine_setting import EngineSetting, Fault


def hf_faults(settings: Sequence[EngineSetting]) -> list[Fault | None]:
    """The fault of each setting that transformers refuses, else None, in the order of `settings`."""
    model_of = _model_reader()

    def fault(setting: EngineSetting) -> Fault | None:
        try:
            model = model_of(setting.model_dir, setting.dtype)
            if isinstance(setting.knobs, HfStaticKnobs):
                _static_batch(setting.knobs)
            elif isinstance(setting.knobs, HfContinuousKnobs):
                _paged_cache(model, setting.knobs)
        except Exception as e:
            return Fault(tuple(setting.knobs.set_values()), " ".join(f"{type(e).__name__}: {e}".split()))
        return None

    return [fault(setting) for setting in settings]


def _model_reader() -> Callable[[Path, str], Any]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    @cache
    def read(model_dir: Path, dtype: str) -> Any:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(model_dir, local_files_only=True),
                dtype=getattr(torch, dtype),
                attn_implementation="sdpa",
            )

    return read


def _static_batch(knobs: HfStaticKnobs) -> None:
    from transformers import GenerationConfig

    config = GenerationConfig(
        do_sample=False, max_new_tokens=1, pad_token_id=0, cache_implementation=knobs.cache_implementation
    )
    config.validate(strict=True)


def _paged_cache(model: Any, knobs: HfContinuousKnobs) -> None:
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.distributed import DistributedHelper
    from transformers.generation.continuous_batching.initialization import resolve_continuous_batching_config

    config = model.config.get_text_config()
    asked = ContinuousBatchingConfig(allow_block_sharing=False, **knobs.set_values())
    PagedAttentionCache(
        config=config,
        continuous_batching_config=resolve_continuous_batching_config(config, asked, None, False),
        device="meta",
        distributed_helper=DistributedHelper(None, None),
        dtype=model.dtype,
    )

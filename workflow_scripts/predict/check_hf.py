"""What transformers itself says about settings, without a device: its model classes and its generation configs.

Models and caches are built on PyTorch's `meta` device, which has shapes but no memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workflow_scripts.engines.knobs import HfContinuousKnobs, HfStaticKnobs


@dataclass(frozen=True)
class HfSetting:
    """One way to start an engine of transformers; it needs only `config.json` from the model's folder."""

    model_dir: Path
    dtype: str
    knobs: HfStaticKnobs | HfContinuousKnobs


def hf_refusals(settings: Sequence[HfSetting]) -> list[str | None]:
    """Why transformers refuses each setting, in its own words; None if it does not."""
    if not settings:
        return []
    model_of = _model_reader()

    def refusal(setting: HfSetting) -> str | None:
        try:
            model = model_of(setting.model_dir, setting.dtype)
            if isinstance(setting.knobs, HfStaticKnobs):
                _static_batch(setting.knobs)
            else:
                _paged_cache(model, setting.knobs)
        except Exception as e:
            return " ".join(f"{type(e).__name__}: {e}".split())
        return None

    return [refusal(setting) for setting in settings]


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

"""A `transformers` model for the HF engines: weights from the hub, or seeded random ones from only a config."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from workflow_scripts.engines.engine import Engine, EngineSetup, Metrics
from workflow_scripts.workloads.sampling import Sampling


class HfEngine(Engine):
    """An engine that runs a model with torch in this process."""

    def metrics(self) -> Metrics:
        """Peak memory that torch's allocator allocated since the last call, if the device is a GPU."""
        if self._setup.device_kind == "cpu":
            return {}
        import torch

        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return {"torch_max_memory_allocated_bytes": peak}


def load_hf_model(setup: EngineSetup) -> Any:
    """The causal language model in evaluation mode on the setup's device. It has SDPA attention, or `eager` if its
    family's code has no SDPA (gpt-oss, for its sinks), whatever its own config says."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

    device = "cpu" if setup.device_kind == "cpu" else "cuda"
    config = AutoConfig.from_pretrained(setup.model_dir, trust_remote_code=setup.trust_remote_code)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    has_sdpa = model_class is None or model_class._supports_sdpa
    how = {
        "dtype": getattr(torch, setup.dtype),
        "attn_implementation": "sdpa" if has_sdpa else "eager",
        "trust_remote_code": setup.trust_remote_code,
    }
    if setup.load_format != "dummy":
        return AutoModelForCausalLM.from_pretrained(setup.model_dir, device_map=device, **how).eval()
    torch.manual_seed(setup.seed)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, **how).eval()


def with_random_weights(setup: EngineSetup, folder: Path) -> None:
    """Make `folder` a copy of the model's folder with seeded random weights in it."""
    shutil.copytree(setup.model_dir, folder)
    load_hf_model(replace(setup, device_kind="cpu")).save_pretrained(folder)


def generation_arguments(sampling: Sampling | None) -> dict[str, Any]:
    """Arguments of `GenerationConfig` or `generate` that choose tokens; the model's own settings are ignored.

    >>> generation_arguments(None), generation_arguments(Sampling(temperature=0.7, seed=1))
    ({'do_sample': False}, {'temperature': 0.7, 'do_sample': True, 'top_k': 0})
    """
    if sampling is None:
        return {"do_sample": False}
    settings = {name: value for name, value in sampling.model_dump().items() if name in sampling.names() - {"seed"}}
    # Without `top_k`, transformers would draw from the 50 most probable tokens.
    return settings | ({"do_sample": False} if sampling.is_greedy else {"do_sample": True, "top_k": 0})


def seed_the_pass(sampling: Sampling | None) -> None:
    """Begin a pass with the workload's seed; transformers draws all requests' numbers from one generator."""
    if sampling is not None and sampling.seed is not None:
        import torch

        torch.manual_seed(sampling.seed)

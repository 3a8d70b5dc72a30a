"""A `transformers` model for the HF engines: weights from the hub, or seeded random ones from only a config."""

import shutil
from pathlib import Path
from typing import Any

from workflow_scripts.measure.engine import EngineSetup, Metrics


def load_hf_model(setup: EngineSetup) -> Any:
    """The causal language model in evaluation mode on the setup's device, with SDPA attention."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = getattr(torch, setup.dtype)
    device = "cpu" if setup.device_kind == "cpu" else "cuda"
    if setup.load_format == "dummy":
        torch.manual_seed(setup.seed)
        config = AutoConfig.from_pretrained(setup.model_dir, trust_remote_code=setup.trust_remote_code)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="sdpa", trust_remote_code=setup.trust_remote_code
            )
    else:
        model = AutoModelForCausalLM.from_pretrained(
            setup.model_dir,
            dtype=dtype,
            attn_implementation="sdpa",
            device_map=device,
            trust_remote_code=setup.trust_remote_code,
        )
    return model.eval()


def with_random_weights(setup: EngineSetup, folder: Path) -> Path:
    """Make `folder` a copy of the model's folder with seeded random weights in it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(setup.model_dir, folder)
    torch.manual_seed(setup.seed)
    config = AutoConfig.from_pretrained(setup.model_dir)
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, setup.dtype)).save_pretrained(folder)
    return folder


def device_memory(setup: EngineSetup) -> Metrics:
    """Peak memory that torch's allocator allocated since the last call, if the device is a GPU."""
    if setup.device_kind == "cpu":
        return {}
    import torch

    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return {"torch_max_memory_allocated_bytes": peak}

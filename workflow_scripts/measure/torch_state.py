"""Settings of torch in a process that change how fast, or how exactly, a model runs in it."""

import os

from workflow_scripts.study.outcome import Effective

_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def torch_state() -> Effective:
    """Settings of this process by name: attention kernels that `sdpa` may use, precisions, threads, allocator."""
    import torch

    sdpa = torch.backends.cuda
    allowed = {
        "flash": sdpa.flash_sdp_enabled(),
        "mem_efficient": sdpa.mem_efficient_sdp_enabled(),
        "math": sdpa.math_sdp_enabled(),
        "cudnn": sdpa.cudnn_sdp_enabled(),
    }
    return {
        "sdpa_backends": ", ".join(name for name, is_allowed in allowed.items() if is_allowed),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch_threads": torch.get_num_threads(),
        "torch_interop_threads": torch.get_num_interop_threads(),
        "allocator": ", ".join(f"{n}={os.environ[n]}" for n in _ALLOCATOR_VARIABLES if n in os.environ) or None,
    }

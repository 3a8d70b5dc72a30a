"""Sizes of KV blocks that vLLM's attention backends accept, by kind of device.

Source: the backends' `get_supported_kernel_block_sizes` and `platforms/` in vLLM 0.32. On a GPU FlashAttention, Triton
and FlexAttention accept multiples of 16; FlashInfer accepts 16, 32 and 64, and splits multiples of them. On a CPU
multiples of 32 are accepted.
"""

from typing import Literal

DeviceKind = Literal["cuda", "rocm", "cpu"]

_STEP: dict[DeviceKind, int] = {"cuda": 16, "rocm": 16, "cpu": 32}
_DEFAULT: dict[DeviceKind, int] = {"cuda": 16, "rocm": 16, "cpu": 128}


def default_block_size(kind: DeviceKind) -> int:
    """Tokens per block if a study sets no block size.

    >>> default_block_size("cuda"), default_block_size("cpu")
    (16, 128)
    """
    return _DEFAULT[kind]


def why_block_size_is_refused(kind: DeviceKind, block_size: int) -> str | None:
    """Why no attention backend accepts blocks of `block_size` tokens; None if one does.

    >>> why_block_size_is_refused("cuda", 8)
    'no attention backend takes blocks of 8 tokens on cuda: only multiples of 16'
    >>> why_block_size_is_refused("cuda", 16) is None
    True
    """
    step = _STEP[kind]
    if block_size % step == 0:
        return None
    return f"no attention backend takes blocks of {block_size} tokens on {kind}: only multiples of {step}"

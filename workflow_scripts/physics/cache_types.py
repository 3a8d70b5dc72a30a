"""Types of KV cache: the bytes that one token takes in a layer, with what scales it.

Source: `customize_spec` of the attention backends, `TurboQuantConfig` and the latent layouts in vLLM 0.32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CacheType:
    """`key_bits`, `value_bits`: of an element, with scales of groups. `scale_bytes`: of a head and token beside them.
    `latent_bytes`: of a latent vector, where a kernel packs it; 0 elsewhere. `spares_ends`: the first two and the last
    two layers of a model without states keep the model's own type, and a head takes an even number of bytes."""

    key_bits: float
    value_bits: float
    scale_bytes: int = 0
    latent_bytes: int = 0
    spares_ends: bool = False

    @property
    def element_bytes(self) -> float:
        """Bytes of an element on average, without the scales of heads: never more than are read.

        >>> CACHE_TYPES["bfloat16"].element_bytes, CACHE_TYPES["turboquant_k8v4"].element_bytes
        (2.0, 0.75)
        """
        return (self.key_bits + self.value_bits) / 16

    def head_bytes(self, key: int, value: int) -> int:
        """Bytes of one token's key and value, of so many elements, in one head.

        >>> [CACHE_TYPES[name].head_bytes(128, 128) for name in ("bfloat16", "int8_per_token_head", "nvfp4")]
        [512, 264, 144]
        >>> CACHE_TYPES["turboquant_k3v4_nc"].head_bytes(128, 128)
        118
        """
        size = math.ceil(key * self.key_bits / 8) + math.ceil(value * self.value_bits / 8) + self.scale_bytes
        return size + size % 2 if self.spares_ends else size


EIGHT_BITS, _SIXTEEN_BITS, _NVFP4 = CacheType(8, 8), CacheType(16, 16), CacheType(4.5, 4.5)
CACHE_TYPES: Mapping[str, CacheType] = {
    "float32": CacheType(32, 32),
    **dict.fromkeys(("bfloat16", "float16"), _SIXTEEN_BITS),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), EIGHT_BITS),
    # A float32 scales the key, and one the value.
    **dict.fromkeys(("fp8_per_token_head", "int8_per_token_head"), CacheType(8, 8, scale_bytes=8)),
    "int4_per_token_head": CacheType(4, 4, scale_bytes=8),
    **dict.fromkeys(("nvfp4", "nvfp4_4over6"), _NVFP4),
    "fp8_ds_mla": CacheType(8, 8, latent_bytes=656),
    "nvfp4_ds_mla": CacheType(4.5, 4.5, latent_bytes=352),
    # Of values a scale and a zero point, of keys in fewer than 8 bits a norm, of 2 bytes each.
    "turboquant_k8v4": CacheType(8, 4, scale_bytes=4, spares_ends=True),
    "turboquant_4bit_nc": CacheType(4, 4, scale_bytes=6, spares_ends=True),
    "turboquant_k3v4_nc": CacheType(3, 4, scale_bytes=6, spares_ends=True),
    "turboquant_3bit_nc": CacheType(3, 3, scale_bytes=6, spares_ends=True),
    # A byte scales 32 elements.
    "ultraquant_4bit": CacheType(4.25, 4.25, spares_ends=True),
}

"""How a checkpoint stores its weights: bytes per parameter of each matrix."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from workflow_scripts.common.command import option
from workflow_scripts.physics.config_values import ModelFactsError
from workflow_scripts.physics.layers import Role

# Bytes per element. KV caches allow more types than weights do; "auto" means the model's own.
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

# Bits per matrix parameter if quantized, including scales and zero points of groups of 128, for mxfp4 of 32.
# Embeddings, the output matrix and routers stay in the model's dtype.
QUANTIZED_BITS: Mapping[str, float] = {
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin"), 4 + (16 + 4) / 128),
    **dict.fromkeys(("fp8", "fp8_per_tensor", "int8"), 8),
    "mxfp4": 4 + 8 / 32,
}
COMPRESSED_TENSORS = "compressed-tensors"
# Options of commands.
KV_CACHE_DTYPE = option("--kv-cache-dtype", choices=["auto", *DTYPE_BYTES], default="auto", help="auto: the model's")
QUANTIZATION = option(
    "--quantization",
    choices=[*QUANTIZED_BITS, COMPRESSED_TENSORS],
    help="of the layers' matrices (default: as in the config)",
)
# Weights in that format that are supported here: those with one scale per matrix or per row of it.
_COMPRESSED_WEIGHTS: Mapping[str, str] = {
    f"8 bits {kind} by {strategy}": name
    for kind, name in (("int", "int8"), ("float", "fp8"))
    for strategy in ("tensor", "channel")
}
# Keys under which a checkpoint lists the layers that it does not quantize.
_LEFT_OUT = ("ignore", "ignored_layers", "modules_to_not_convert")
# Last parts of names that are counted as not quantized in any case: the output matrix, routers, norms, embeddings.
_NEVER_QUANTIZED = ("lm_head", "lm_head$", "gate", "router", "embed_tokens", "shared_expert_gate")
# Methods that quantize only the experts.
_EXPERTS_ONLY = ("mxfp4",)


def is_quantized(quantization: str, role: Role) -> bool:
    """Whether a method shrinks the matrices of this role.

    >>> [role for role in ("attention", "experts", "router") if is_quantized("mxfp4", role)]
    ['experts']
    """
    return role == "experts" if quantization in _EXPERTS_ONLY else role != "router"


def quantization_of(config: Mapping[str, Any], asked: str | None) -> str | None:
    """The method, as named in `QUANTIZED_BITS`: the one asked for, else the checkpoint's own; None without any. Raises
    ModelFactsError if the method is unknown, or it leaves the bytes of some matrices unknown."""
    stored = config.get("quantization_config") or {}
    method = _stored_quantization(stored)
    quantization = method if asked is None or (asked == COMPRESSED_TENSORS and stored) else asked
    if quantization is not None and quantization not in QUANTIZED_BITS:
        raise ModelFactsError(f"quantization {quantization!r} is not supported; supported: {', '.join(QUANTIZED_BITS)}")
    return quantization


def _stored_quantization(stored: Mapping[str, Any]) -> str | None:
    method = stored.get("quant_method")
    left_out = [name for key in _LEFT_OUT for name in stored.get(key) or () if not _never_quantized(str(name))]
    if left_out and method not in _EXPERTS_ONLY:
        raise ModelFactsError(f"quantization that leaves out some layers is not supported: {left_out[0]!r}")
    if stored.get("kv_cache_scheme"):
        raise ModelFactsError("a kv_cache_scheme, which sets the type of the KV cache, is not supported")
    bits, size = stored.get("bits", 4), stored.get("group_size", 128)
    if method in ("awq", "gptq") and (bits, size) != (4, 128):
        has = f"{method} with {bits} bits in groups of {size}"
        raise ModelFactsError(f"{has} is not supported; supported: 4 in groups of 128")
    return _compressed_weights(stored) if method == COMPRESSED_TENSORS else method


def _never_quantized(name: str) -> bool:
    last = name.rsplit(".", 1)[-1]
    return last.removeprefix("re:").lstrip("*") in _NEVER_QUANTIZED or "norm" in last


def _compressed_weights(stored: Mapping[str, Any]) -> str:
    form = "{num_bits} bits {type} by {strategy}"
    groups = [group.get("weights") or {} for group in (stored.get("config_groups") or {}).values()]
    weights = sorted({form.format_map(defaultdict(str, group)) for group in groups})
    if len(weights) == 1 and weights[0] in _COMPRESSED_WEIGHTS:
        return _COMPRESSED_WEIGHTS[weights[0]]
    raise ModelFactsError(
        f"weights in {COMPRESSED_TENSORS} ({', '.join(weights) or 'none'}) are not supported; supported: one group of "
        f"{', '.join(_COMPRESSED_WEIGHTS)}"
    )

"""How a checkpoint stores its weights: bytes per parameter of each matrix."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase as fnmatch
from typing import Any

from workflow_scripts.common.command import option
from workflow_scripts.physics.cache_types import CACHE_TYPES
from workflow_scripts.physics.config_values import ModelFactsError
from workflow_scripts.physics.layers import Role

# Bytes per element of weights, and of a KV cache that a checkpoint asks for.
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

# Bits per matrix parameter if quantized, including scales and zero points of groups of 128, for int4 and mxfp4 of 32.
# Embeddings, the output matrix and routers stay in the model's dtype.
QUANTIZED_BITS: Mapping[str, float] = {
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin"), 4 + (16 + 4) / 128),
    **dict.fromkeys(("fp8", "fp8_per_tensor", "int8", "deepseek_v4_fp8"), 8),
    "int4": 4 + 16 / 32,
    "mxfp4": 4 + 8 / 32,
    "modelopt_fp4": 4 + 8 / 16,
}
COMPRESSED_TENSORS = "compressed-tensors"
# Options of commands.
KV_CACHE_DTYPE = option("--kv-cache-dtype", choices=["auto", *CACHE_TYPES], default="auto", help="auto: the model's")
QUANTIZATION = option(
    "--quantization",
    choices=[*QUANTIZED_BITS, COMPRESSED_TENSORS],
    help="of the layers' matrices (default: as in the config)",
)
# Weights in that format that are supported here: with one scale per matrix or per row of it, or of Kimi-K2.
_COMPRESSED_WEIGHTS: Mapping[str, str] = {
    f"8 bits {kind} by {strategy}": name
    for kind, name in (("int", "int8"), ("float", "fp8"))
    for strategy in ("tensor", "channel")
} | {"4 bits int by group of 32": "int4"}
# Keys under which a checkpoint lists the layers that it does not quantize.
_LEFT_OUT = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
# Last parts of names that are counted as not quantized in any case: the output matrix, routers, norms, embeddings,
# and the small one that weighs the heads of an indexer.
_NEVER_QUANTIZED = ("lm_head", "gate", "router", "embed_tokens", "shared_expert_gate", "weights_proj")
# Methods that quantize only the experts.
_EXPERTS_ONLY = ("mxfp4",)
# Those that quantize them in another way than the other matrices.
_EXPERTS_IN: Mapping[str, str] = {"deepseek_v4_fp8": "mxfp4"}
# Algorithms of ModelOpt.
_MODELOPT: Mapping[str, str] = {"FP8": "fp8", "NVFP4": "modelopt_fp4"}
# The same bytes under another name.
_ALSO_CALLED: Mapping[str | None, str] = {"fbgemm_fp8": "fp8"}
# Matrices of a layer that a checkpoint may leave out, by role, below `layers.N`; those of encoders are never quantized.
_LEAVABLE: Mapping[Role, tuple[str, ...]] = {
    "attention": tuple(f"self_attn.{name}_proj" for name in "qkv"),
    "output": ("self_attn.o_proj",),
    "mlp": tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    "shared": tuple(f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")),
}
# Of encoders, of layers that draft, and of one that MiMo-V2 does not have.
_ELSEWHERE = ("vision", "visual", "multi_modal", "mm_projector", "mtp", "model.decoder.self_attn")


def bits_of(quantization: str, role: Role) -> float | None:
    """Bits per parameter of the matrices of this role; None if the method does not shrink them."""
    if role == "router" or (quantization in _EXPERTS_ONLY and role != "experts"):
        return None
    return QUANTIZED_BITS[_EXPERTS_IN.get(quantization, quantization) if role == "experts" else quantization]


def quantization_of(config: Mapping[str, Any], asked: str | None) -> str | None:
    """The method, as named in `QUANTIZED_BITS`: the one asked for, else the checkpoint's own; None without any. Raises
    ModelFactsError if the method is unknown, or it leaves the bytes of some matrices unknown."""
    stored = config.get("quantization_config") or {}
    method = _stored_quantization(stored)
    if config.get("model_type") == "deepseek_v4" and (method, config.get("expert_dtype", "fp4")) == ("fp8", "fp4"):
        method = "deepseek_v4_fp8"  # vLLM's name
    quantization = method if asked is None or (asked == COMPRESSED_TENSORS and stored) else asked
    if quantization is not None and quantization not in QUANTIZED_BITS:
        raise ModelFactsError(f"quantization {quantization!r} is not supported; supported: {', '.join(QUANTIZED_BITS)}")
    return quantization


def stored_kv_cache_dtype(config: Mapping[str, Any]) -> str | None:
    """The type of the KV cache that vLLM takes from a checkpoint of ModelOpt; None if it names none, or another one."""
    stored = config.get("quantization_config") or {}
    scheme = stored.get("kv_cache_scheme") or {}
    names_fp8 = str(stored.get("kv_cache_quant_algo")).upper() == "FP8"
    is_fp8 = names_fp8 or (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    return "fp8" if stored.get("quant_method") == "modelopt" and is_fp8 else None


def roles_left_out(config: Mapping[str, Any], layers: int) -> list[frozenset[Role]]:
    """The roles whose matrices a checkpoint does not quantize, of each layer.

    Raises ModelFactsError if a name is not known here, or is of only some of the matrices of a role.
    """
    stored = config.get("quantization_config") or {}
    names = [str(name) for key in _LEFT_OUT for name in stored.get(key) or () if not _never_quantized(str(name))]
    if not names or stored.get("quant_method") in _EXPERTS_ONLY:
        return [frozenset()] * layers
    where = "hf_quant_config.json: " if stored.get("exclude_modules") else ""
    fault = (where + "quantization that leaves out some layers is not supported: {!r}").format
    matrices = {f"layers.{n}.{m}": (n, role) for n in range(layers) for role, ms in _LEAVABLE.items() for m in ms}
    below = defaultdict(set)  # whole layers, parts of them, and single matrices
    for matrix in matrices:
        for end in re.finditer(r"(?<=\d)\.|\.|$", matrix):
            below[matrix[: end.start()]].add(matrix)
    found: set[str] = set()
    for name in names:
        _, layer, rest = name.partition("layers.")
        if (number := re.match(r"\d+", rest)) and int(number[0]) >= layers:
            continue  # of layers that draft
        if name.startswith("re:"):
            pattern = _quick_pattern(name.removeprefix("re:"))
            left_out = {matrix for matrix in matrices if pattern and pattern.match(f"model.{matrix}")}
        elif "*" in name:
            left_out = {matrix for matrix in matrices if fnmatch(f"model.{matrix}", name)}
        else:
            left_out = below[layer + rest] if rest[:1].isdigit() else set()
        if not left_out:
            raise ModelFactsError(fault(name))
        found |= left_out
    counts = Counter(matrices[matrix] for matrix in found)
    if partly := next((m for m in sorted(found) if counts[matrices[m]] < len(_LEAVABLE[matrices[m][1]])), None):
        raise ModelFactsError(fault(partly))
    return [frozenset(role for role in _LEAVABLE if (n, role) in counts) for n in range(layers)]


def _quick_pattern(text: str) -> re.Pattern[str] | None:
    """A pattern of a checkpoint, if it is one and cannot take long to search.

    >>> _quick_pattern(r"model\\.layers\\.(0|1)\\..*"), _quick_pattern("(a+)+$"), _quick_pattern("(")
    (re.compile('model\\\\.layers\\\\.(0|1)\\\\..*'), None, None)
    """
    if len(text) > 200 or sum(map(text.count, "*+{?")) > 3 or re.search(r"\)[*+{]", text):
        return None
    try:
        return re.compile(text)
    except re.error:
        return None


def _stored_quantization(stored: Mapping[str, Any]) -> str | None:
    method = stored.get("quant_method")
    if method == "modelopt":
        if (algorithm := str(stored.get("quant_algo"))) not in _MODELOPT:
            raise ModelFactsError(
                f"hf_quant_config.json: quant_algo {algorithm!r} is not supported; supported: {', '.join(_MODELOPT)}"
            )
        return _MODELOPT[algorithm]
    if stored.get("kv_cache_scheme"):
        raise ModelFactsError("a kv_cache_scheme, which sets the type of the KV cache, is not supported")
    bits, size = stored.get("bits", 4), stored.get("group_size", 128)
    if method in ("awq", "gptq") and (bits, size) != (4, 128):
        has = f"{method} with {bits} bits in groups of {size}"
        raise ModelFactsError(f"{has} is not supported; supported: 4 in groups of 128")
    return _compressed_weights(stored) if method == COMPRESSED_TENSORS else _ALSO_CALLED.get(method, method)


def _never_quantized(name: str) -> bool:
    last = name.removeprefix("re:").rstrip("*$.").rsplit(".", 1)[-1].lstrip("*^")
    return (
        any(part in name for part in _ELSEWHERE)
        or last in _NEVER_QUANTIZED
        or "norm" in last
        or last.endswith("bias")  # no matrix
    )


def _compressed_weights(stored: Mapping[str, Any]) -> str:
    form = "{num_bits} bits {type} by {strategy}"
    groups = [group.get("weights") or {} for group in (stored.get("config_groups") or {}).values()]
    sized = [g | {"strategy": f"group of {g['group_size']}"} if g.get("group_size") else g for g in groups]
    weights = sorted({form.format_map(defaultdict(str, group)) for group in sized})
    if len(weights) == 1 and weights[0] in _COMPRESSED_WEIGHTS:
        return _COMPRESSED_WEIGHTS[weights[0]]
    raise ModelFactsError(
        f"weights in {COMPRESSED_TENSORS} ({', '.join(weights) or 'none'}) are not supported; supported: one group of "
        f"{', '.join(_COMPRESSED_WEIGHTS)}"
    )

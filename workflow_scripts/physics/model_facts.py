"""Facts about a dense decoder-only model, taken from its `config.json`: shapes, parameters, bytes.

Counts are exact: biases, norms and learned positions are included. A model that is not plain dense attention with one
feed-forward block per layer (mixture of experts, latent attention, sliding windows on some layers) is refused, because
its KV cache and its reads per token follow other formulas.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_scripts.physics import formulas

# Bytes per element. KV caches allow more types than weights do; "auto" means the model's own.
DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}

# Bits per matrix parameter if quantized, including scales and zero points of groups of 128. Embeddings and the
# output matrix stay in the model's dtype.
QUANTIZED_BITS: Mapping[str, float] = {
    "awq": 4 + (16 + 4) / 128,
    "awq_marlin": 4 + (16 + 4) / 128,
    "gptq": 4 + (16 + 4) / 128,
    "gptq_marlin": 4 + (16 + 4) / 128,
    "fp8": 8,
    "fp8_per_tensor": 8,
    "int8": 8,
}
COMPRESSED_TENSORS = "compressed-tensors"
# Weights in that format that are supported here: those with one scale per matrix or per row of it.
_COMPRESSED_WEIGHTS: Mapping[str, str] = {
    f"8 bits {kind} by {strategy}": name
    for kind, name in (("int", "int8"), ("float", "fp8"))
    for strategy in ("tensor", "channel")
}
# Keys under which a checkpoint lists the layers that it does not quantize.
_LEFT_OUT = ("ignore", "ignored_layers", "modules_to_not_convert")


class ModelFactsError(ValueError):
    """A config.json that cannot be used; the message says what is wrong and what is supported."""


@dataclass(frozen=True)
class ModelFacts:
    """Shapes of one model. Widths and lengths are in elements and tokens; sizes are derived from them.

    Llama-3.1-8B: 32 layers of 32 query and 8 KV heads with 128 elements each, and of a gated MLP from 4096 to 14,336.
    A layer's matrices have 4096 x (2 x 4096 + 2 x 1024) + 3 x 4096 x 14,336 parameters, and its norms 2 x 4096:

    >>> from workflow_scripts.catalog.gpus_and_models import get_model
    >>> llama = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
    >>> llama.attention_width, llama.kv_width, llama.layer_matrix_parameters, llama.layer_vector_parameters
    (4096, 1024, 218103808, 8192)

    Two tables of 128,256 x 4096: a decode step multiplies with one, and reads only single rows of the other:

    >>> llama.token_embedding_parameters, llama.lm_head_parameters, llama.position_embedding_parameters
    (525336576, 525336576, 0)
    >>> llama.parameters, llama.matmul_parameters, llama.decode_parameters
    (8030261248, 7504658432, 7504924672)
    >>> llama.bytes_per_matrix_parameter, llama.weight_bytes, llama.decode_weight_bytes
    (2, 16060522496, 15009849344)
    """

    model_type: str
    dtype: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    tied_embeddings: bool
    gated_mlp: bool
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    norms_per_layer: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    final_norm: bool = True
    learned_positions: int = 0
    quantization: str | None = None

    @property
    def attention_width(self) -> int:
        """Elements of all query heads of a token: `heads * head_dim`, not always the hidden size."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads of a token; values take as many again."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrix_parameters(self) -> int:
        """Parameters of one layer's matrices, which every token is multiplied with and quantization shrinks."""
        attention = self.hidden * (2 * self.attention_width + 2 * self.kv_width)
        mlp = (3 if self.gated_mlp else 2) * self.hidden * self.intermediate
        return attention + mlp

    @property
    def layer_vector_parameters(self) -> int:
        """Parameters of one layer's biases and norms."""
        qkv = self.qkv_bias * (self.attention_width + 2 * self.kv_width)
        output = self.attention_output_bias * self.hidden
        mlp = self.mlp_bias * ((2 if self.gated_mlp else 1) * self.intermediate + self.hidden)
        norms = self.norms_per_layer * self._norm_parameters + self.qk_norm * 2 * self.head_dim
        return qkv + output + mlp + norms

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.norm_bias else 1)

    @property
    def token_embedding_parameters(self) -> int:
        """The embedding table, of which a step reads only the rows of its tokens."""
        return self.vocab * self.hidden

    @property
    def position_embedding_parameters(self) -> int:
        """The table of learned positions; 0 for rotary and other computed positions."""
        return self.learned_positions * self.hidden

    @property
    def lm_head_parameters(self) -> int:
        """The output matrix that the model stores; 0 if the embedding table serves as output matrix."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; a tied matrix is counted once."""
        return (
            self.layers * (self.layer_matrix_parameters + self.layer_vector_parameters)
            + self.final_norm * self._norm_parameters
            + self.token_embedding_parameters
            + self.position_embedding_parameters
            + self.lm_head_parameters
        )

    @property
    def matmul_parameters(self) -> int:
        """Parameters that every decoded token is multiplied with: all layers' matrices and the output matrix."""
        return self.layers * self.layer_matrix_parameters + self.vocab * self.hidden

    @property
    def decode_parameters(self) -> int:
        """Parameters that a decode step reads completely: all except the tables from which it reads only rows.

        A tied table is still read completely, as the output matrix.
        """
        untied_table = 0 if self.tied_embeddings else self.token_embedding_parameters
        return self.parameters - untied_table - self.position_embedding_parameters

    @property
    def bytes_per_matrix_parameter(self) -> float:
        """Bytes per parameter of a layer's matrices: fewer than the dtype's if they are quantized."""
        return QUANTIZED_BITS[self.quantization] / 8 if self.quantization else DTYPE_BYTES[self.dtype]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they are stored."""
        return self._bytes_of(self.parameters)

    @property
    def decode_weight_bytes(self) -> int:
        """Bytes of weights that a decode step reads, whatever its batch."""
        return self._bytes_of(self.decode_parameters)

    def _bytes_of(self, parameters: int) -> int:
        """Bytes of parameters that include all layers' matrices; the others are never quantized."""
        matrices = self.layers * self.layer_matrix_parameters
        return round(matrices * self.bytes_per_matrix_parameter + (parameters - matrices) * DTYPE_BYTES[self.dtype])

    def kv_dtype_bytes(self, kv_cache_dtype: str = "auto") -> int:
        """Bytes of one element in the KV cache.

        >>> model_facts(_EXAMPLE).kv_dtype_bytes(), model_facts(_EXAMPLE).kv_dtype_bytes("fp8")
        (4, 1)

        Raises:
            ModelFactsError: the type is unknown.
        """
        if kv_cache_dtype == "auto":
            return DTYPE_BYTES[self.dtype]
        if kv_cache_dtype not in DTYPE_BYTES:
            raise ModelFactsError(f"unknown KV cache dtype {kv_cache_dtype!r}; allowed: auto, {', '.join(DTYPE_BYTES)}")
        return DTYPE_BYTES[kv_cache_dtype]

    def bytes_per_token(self, kv_cache_dtype: str = "auto") -> int:
        """Bytes that one token holds in the KV cache of the whole model.

        2 x 3 layers x 1 KV head x 4 elements x 4 bytes:

        >>> model_facts(_EXAMPLE).bytes_per_token()
        96
        """
        return formulas.bytes_per_token(self.layers, self.kv_heads, self.head_dim, self.kv_dtype_bytes(kv_cache_dtype))

    def prefill_flops(self, prompt_tokens: float) -> float:
        """Floating-point operations to read a prompt of `prompt_tokens` tokens and give the first output token.

        2 x 3 layers x 384 matrix parameters x 10 tokens, 2 x 100 x 8 for the output matrix, and 4 x 3 layers x 8
        elements for each of 1 + 2 + ... + 10 pairs of tokens:

        >>> model_facts(_EXAMPLE).prefill_flops(10)
        29920
        """
        return formulas.prefill_flops(
            layer_parameters=self.layers * self.layer_matrix_parameters,
            lm_head_parameters=self.vocab * self.hidden,
            attention_width=self.layers * self.attention_width,
            prompt_tokens=prompt_tokens,
        )

    def decode_flops(self, sequences: float, kv_tokens: float) -> float:
        """Operations of one decode step of `sequences` sequences that hold `kv_tokens` tokens in total.

        2 x (3 x 384 + 100 x 8) x 2 sequences and 4 x 3 layers x 8 elements x 50 tokens:

        >>> model_facts(_EXAMPLE).decode_flops(sequences=2, kv_tokens=50)
        12608
        """
        return formulas.decode_step_flops(
            matmul_parameters=self.matmul_parameters,
            attention_width=self.layers * self.attention_width,
            sequences=sequences,
            kv_tokens=kv_tokens,
        )

    def request_flops(self, prompt_tokens: float, output_tokens: float) -> float:
        """Operations of a whole request: its prompt, and a decode step for each output token after the first.

        The prompt of 10 tokens as above, and two steps of 2 x 1952 that attend to 11 and 12 tokens:

        >>> model_facts(_EXAMPLE).request_flops(10, 3) == 29920 + 2 * 2 * 1952 + 4 * 3 * 8 * (11 + 12)
        True
        """
        further = output_tokens - 1
        mean_kv_tokens = prompt_tokens + (further + 1) / 2
        return self.prefill_flops(prompt_tokens) + self.decode_flops(further, further * mean_kv_tokens)


def read_model_facts(path: Path, dtype: str | None = None, quantization: str | None = None) -> ModelFacts:
    """Facts of a model from its `config.json`, or from a folder that holds one.

    >>> from workflow_scripts.catalog.gpus_and_models import get_model
    >>> read_model_facts(get_model("opt-125m").config).parameters
    125239296

    Args:
        path: the file, or its folder.
        dtype: type of the weights; the config's own if None.
        quantization: method that shrinks the layers' matrices; the config's own if None.

    Raises:
        ModelFactsError: no such file, not JSON, an unsupported architecture, or a missing value.
    """
    if path.is_dir():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ModelFactsError(f"{path}: {e.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ModelFactsError(f"{path}: not JSON: {e}") from None
    if not isinstance(config, dict):
        raise ModelFactsError(f"{path}: must hold one JSON object")
    try:
        return model_facts(config, dtype, quantization)
    except ModelFactsError as e:
        raise ModelFactsError(f"{path}: {e}") from None


def _stored_quantization(stored: Mapping[str, Any]) -> str | None:
    """How a checkpoint stores its matrices, as named in `QUANTIZED_BITS`; None if it does not quantize them."""
    method = stored.get("quant_method")
    # The output matrix is counted as not quantized in any case.
    left_out = [name for key in _LEFT_OUT for name in stored.get(key) or () if "lm_head" not in name]
    if left_out:
        raise ModelFactsError(f"weights of which some layers are not quantized are not supported: {left_out[0]!r}")
    if stored.get("kv_cache_scheme"):
        raise ModelFactsError("a kv_cache_scheme, by which weights name the type of the KV cache, is not supported")
    groups = stored.get("bits", 4), stored.get("group_size", 128)
    if method in ("awq", "gptq") and groups != (4, 128):
        raise ModelFactsError(
            f"{method} with {groups[0]} bits in groups of {groups[1]} is not supported; supported: 4 in groups of 128"
        )
    return _compressed_weights(stored) if method == COMPRESSED_TENSORS else method


def _compressed_weights(stored: Mapping[str, Any]) -> str:
    """How a model in the compressed-tensors format stores its matrices, as named in `QUANTIZED_BITS`."""
    groups = (stored.get("config_groups") or {}).values()
    weights = sorted(
        {
            "{num_bits} bits {type} by {strategy}".format_map(defaultdict(str, group.get("weights") or {}))
            for group in groups
        }
    )
    if len(weights) == 1 and weights[0] in _COMPRESSED_WEIGHTS:
        return _COMPRESSED_WEIGHTS[weights[0]]
    raise ModelFactsError(
        f"weights in {COMPRESSED_TENSORS} ({', '.join(weights) or 'none'}) are not supported; supported: one group of "
        f"{', '.join(_COMPRESSED_WEIGHTS)}"
    )


def model_facts(config: Mapping[str, Any], dtype: str | None = None, quantization: str | None = None) -> ModelFacts:
    """Facts of a model from the mapping of its `config.json`.

    >>> model_facts(_EXAMPLE).kv_heads, model_facts(_EXAMPLE, dtype="float16").dtype
    (1, 'float16')

    Raises:
        ModelFactsError: an unsupported architecture, a missing value, or one that no dense model has.
    """
    kind = str(config.get("model_type"))
    if kind not in _READERS:
        raise ModelFactsError(f"model_type {kind!r} is not supported; supported: {', '.join(_READERS)}")
    dtype = dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ModelFactsError(f"dtype {dtype!r} of the weights is unknown; allowed: float32, bfloat16, float16")
    stored = config.get("quantization_config") or {}
    found = _stored_quantization(stored)
    if quantization is None or (quantization == COMPRESSED_TENSORS and stored):
        quantization = found
    if quantization is not None and quantization not in QUANTIZED_BITS:
        raise ModelFactsError(f"quantization {quantization!r} is not supported; supported: {', '.join(QUANTIZED_BITS)}")
    try:
        return ModelFacts(model_type=kind, dtype=dtype, quantization=quantization, **_READERS[kind](config))
    except KeyError as e:
        raise ModelFactsError(f"{kind}: missing {e.args[0]!r}") from None
    except (TypeError, ZeroDivisionError) as e:
        raise ModelFactsError(f"{kind}: sizes must be whole numbers above 0: {e}") from None


def _llama(c: Mapping[str, Any]) -> dict[str, Any]:
    heads = c["num_attention_heads"]
    return {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "intermediate": c["intermediate_size"],
        "heads": heads,
        "kv_heads": c.get("num_key_value_heads") or heads,
        "head_dim": c.get("head_dim") or c["hidden_size"] // heads,
        "vocab": c["vocab_size"],
        "max_positions": c["max_position_embeddings"],
        "tied_embeddings": c.get("tie_word_embeddings", False),
        "gated_mlp": True,
        "qkv_bias": c.get("attention_bias", False),
        "attention_output_bias": c.get("attention_bias", False),
        "mlp_bias": c.get("mlp_bias", False),
    }


def _mistral(c: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_window(c)
    return _llama(c)


def _qwen2(c: Mapping[str, Any]) -> dict[str, Any]:
    # The config has a window even if it is off.
    if c.get("use_sliding_window", False):
        _refuse_window(c)
    return _llama(c) | {"qkv_bias": True, "attention_output_bias": False}


def _qwen3(c: Mapping[str, Any]) -> dict[str, Any]:
    if c.get("use_sliding_window", False):
        _refuse_window(c)
    return _llama(c) | {"head_dim": c.get("head_dim") or 128, "qk_norm": True}


def _phi3(c: Mapping[str, Any]) -> dict[str, Any]:
    window = c.get("sliding_window")
    if window is not None and window < c["max_position_embeddings"]:
        _refuse_window(c)
    return _llama(c)


def _gemma(c: Mapping[str, Any]) -> dict[str, Any]:
    return _llama(c) | {
        "head_dim": c.get("head_dim") or 256,
        "tied_embeddings": c.get("tie_word_embeddings", True),
    }


def _refuse_window(c: Mapping[str, Any]) -> None:
    if c.get("sliding_window") is not None:
        raise ModelFactsError(
            f"sliding_window {c['sliding_window']} is not supported: its KV cache does not grow with length"
        )


_LAYER_NORMS = {"norm_bias": True, "gated_mlp": False}


def _opt(c: Mapping[str, Any]) -> dict[str, Any]:
    if c.get("word_embed_proj_dim", c["hidden_size"]) != c["hidden_size"]:
        raise ModelFactsError("an opt with word_embed_proj_dim other than hidden_size is not supported")
    bias = c.get("enable_bias", True)
    return _LAYER_NORMS | {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "intermediate": c["ffn_dim"],
        "heads": c["num_attention_heads"],
        "kv_heads": c["num_attention_heads"],
        "head_dim": c["hidden_size"] // c["num_attention_heads"],
        "vocab": c["vocab_size"],
        "max_positions": c["max_position_embeddings"],
        "tied_embeddings": c.get("tie_word_embeddings", True),
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "final_norm": c.get("do_layer_norm_before", True) and not c.get("_remove_final_layer_norm", False),
        # Positions are looked up with an offset of two.
        "learned_positions": c["max_position_embeddings"] + 2,
    }


def _gpt2(c: Mapping[str, Any]) -> dict[str, Any]:
    return _LAYER_NORMS | {
        "layers": c["n_layer"],
        "hidden": c["n_embd"],
        "intermediate": c.get("n_inner") or 4 * c["n_embd"],
        "heads": c["n_head"],
        "kv_heads": c["n_head"],
        "head_dim": c["n_embd"] // c["n_head"],
        "vocab": c["vocab_size"],
        "max_positions": c["n_positions"],
        "tied_embeddings": c.get("tie_word_embeddings", True),
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "learned_positions": c["n_positions"],
    }


def _gpt_neox(c: Mapping[str, Any]) -> dict[str, Any]:
    bias = c.get("attention_bias", True)
    return _LAYER_NORMS | {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "intermediate": c["intermediate_size"],
        "heads": c["num_attention_heads"],
        "kv_heads": c["num_attention_heads"],
        "head_dim": c["hidden_size"] // c["num_attention_heads"],
        "vocab": c["vocab_size"],
        "max_positions": c["max_position_embeddings"],
        "tied_embeddings": c.get("tie_word_embeddings", False),
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": True,
    }


def _falcon(c: Mapping[str, Any]) -> dict[str, Any]:
    heads = c["num_attention_heads"]
    if new := c.get("new_decoder_architecture", False):
        kv_heads = c.get("num_kv_heads") or heads
    else:
        kv_heads = 1 if c.get("multi_query", True) else heads
    # The new architecture has separate norms for attention and MLP, unless the config says that they share one.
    shared_norm = c.get("num_ln_in_parallel_attn") == 1 if new else c.get("parallel_attn", True)
    bias = c.get("bias", False)
    return _LAYER_NORMS | {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "intermediate": c.get("ffn_hidden_size") or 4 * c["hidden_size"],
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": c["hidden_size"] // heads,
        "vocab": c["vocab_size"],
        "max_positions": c.get("max_position_embeddings", 2048),
        "tied_embeddings": c.get("tie_word_embeddings", True),
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "norms_per_layer": 1 if shared_norm else 2,
    }


_READERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gemma": _gemma,
    "opt": _opt,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
}

# What the doctests rely on: 384 parameters in the matrices of a layer, 8 x (2 x 8 + 2 x 4) + 3 x 8 x 8.
_EXAMPLE: Mapping[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}

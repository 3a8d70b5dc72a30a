"""Facts about a decoder-only model, taken from its `config.json`: layers, parameters, bytes.

Counts are exact: biases, norms and learned positions are included. A model is a list of layers (`layers.Layer`), which
may be of several kinds: with all tokens, a window, latent vectors or a state as memory, with dense blocks or experts.
A family without a reader is refused, because its memory and its work follow other formulas.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from workflow_scripts.catalog.checkpoint import drafting_layers, read_config_json
from workflow_scripts.catalog.gpus_and_models import Gpu, Model
from workflow_scripts.device.device_record import Device
from workflow_scripts.device.processor import dtype_on
from workflow_scripts.physics import formulas
from workflow_scripts.physics.attention_families import FULL, WINDOWED
from workflow_scripts.physics.attention_families import READERS as OF_TEXTS
from workflow_scripts.physics.cache_types import CACHE_TYPES, CacheType
from workflow_scripts.physics.config_values import ConfigValues
from workflow_scripts.physics.config_values import ModelFactsError as ModelFactsError
from workflow_scripts.physics.formulas import Number
from workflow_scripts.physics.hybrid_families import HYBRIDS, LINEAR, OF_PICTURES
from workflow_scripts.physics.layers import Attention, Experts, LatentAttention, Layer, Matrix, Mixer, Mlp, Part, State
from workflow_scripts.physics.stored_weights import DTYPE_BYTES as DTYPE_BYTES
from workflow_scripts.physics.stored_weights import bits_of, quantization_of, roles_left_out, stored_kv_cache_dtype

# By `model_type`: reads the fields of `ModelFacts` that depend on the family.
_READERS = OF_TEXTS | HYBRIDS | OF_PICTURES
# What a list of `layer_types` may name, whatever the family; its reader may allow less.
_LAYER_TYPES = {FULL, WINDOWED, LINEAR, "attention", "mamba", "mlp", "moe"}
# Value of `quantization` if the bytes of the weights are not known.
NOT_COUNTED = "not counted"


class Reach(NamedTuple):
    """Layers that look back equally far: over at most `limit` tokens. `kv_elements`: of one token in the caches of
    these layers. `prefill_pair_flops`, `decode_pair_flops`: operations for each pair of tokens of which one attends to
    the other."""

    limit: int | None
    kv_elements: int
    prefill_pair_flops: int
    decode_pair_flops: int

    @property
    def suffix(self) -> str:
        """What distinguishes columns with sums over this reach.

        >>> Reach(128, 1, 1, 1).suffix, Reach(None, 1, 1, 1).suffix
        ('_window_128', '')
        """
        return "" if self.limit is None else f"_window_{self.limit}"


@dataclass(frozen=True)
class ModelFacts:
    """Layers and sizes of one model. Widths and lengths are in elements and tokens; sizes are derived from them.

    Llama-3.1-8B: 32 layers of 32 query and 8 KV heads with 128 elements each, and of a gated MLP from 4096 to 14,336.
    A layer's matrices have 4096 x (2 x 4096 + 2 x 1024) + 3 x 4096 x 14,336 parameters, and its norms 2 x 4096:

    >>> from workflow_scripts.catalog.gpus_and_models import get_model
    >>> llama = read_model_facts(get_model("llama-3.1-8b-instruct").config, "bfloat16")
    >>> llama.layers, llama.layer_matrix_parameters // 32, llama.stack[0].vector_parameters(4096)
    (32, 218103808, 8192)

    Two tables of 128,256 x 4096: a decode step multiplies with one, and reads only single rows of the other:

    >>> llama.token_embedding_parameters, llama.lm_head_parameters, llama.position_embedding_parameters
    (525336576, 525336576, 0)
    >>> llama.parameters, llama.weight_bytes, llama.decode_weight_bytes
    (8030261248, 16060522496, 15009849344)

    `encoder_parameters`: of the encoder that turns pictures into tokens; decoding never reads them. `kv_cache_dtype`:
    of the cache, if the checkpoint states it. `drafting_layers`: of multi-token prediction, not in `stack`.
    """

    model_type: str
    dtype: str
    hidden: int
    vocab: int
    max_positions: int
    tied_embeddings: bool
    stack: tuple[Layer, ...]
    final_norm_parameters: int
    learned_positions: int = 0
    encoder_parameters: int = 0
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    drafting_layers: int = 0

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # of many layers, and asked for each cell
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    @property
    def layers(self) -> int:
        return len(self.stack)

    @cached_property
    def layer_counts(self) -> Mapping[Layer, int]:
        return Counter(self.stack)

    @cached_property
    def mixers(self) -> tuple[Mixer, ...]:
        """The different attentions and states, in the order of their first layers."""
        return tuple(dict.fromkeys(mixer for layer in self.layer_counts for mixer in layer.mixers))

    @property
    def attention(self) -> Attention:
        """The attention that every layer has, to all earlier tokens. Raises ModelFactsError if layers differ, or have
        another memory than keys and values of all earlier tokens."""
        match self.mixers:
            case [Attention(window=None) as attention] if all(layer.mixers for layer in self.stack):
                return attention
        raise self._memory_fault()

    def uniform(self) -> "ModelFacts":
        """The model itself, if all layers have the same memory, of all earlier tokens: keys and values, or latent ones.
        Raises ModelFactsError if layers differ, or keep less than all tokens."""
        if not self.is_uniform:
            raise self._memory_fault()
        return self

    def _memory_fault(self) -> ModelFactsError:
        kinds = ", ".join(sorted({mixer.kind for mixer in self.mixers}))
        return ModelFactsError(f"{self.model_type}: layers with memory of kind {kinds} are not supported here")

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have the same memory, of all earlier tokens."""
        return len(self.mixers) == 1 and not any(isinstance(mixer, State) or mixer.attended for mixer in self.mixers)

    @cached_property
    def reaches(self) -> tuple[Reach, ...]:
        """How far layers with attention look back; each reach has its sums over all layers."""
        return self.reaches_on(1)

    def reaches_on(self, tensor: int) -> tuple[Reach, ...]:
        """The same with what `tensor` ranks keep together: each keeps at least one KV head, and all of a latent
        vector."""
        reach_sums: dict[int | None, list[int]] = {}
        for part, count in self.of_kind(Attention, LatentAttention):
            sums = reach_sums.setdefault(part.attended, [0, 0, 0])
            per_layer = (tensor * part.cache_elements(tensor), part.prefill_pair_flops, part.decode_pair_flops)
            sums[:] = (total + count * size for total, size in zip(sums, per_layer, strict=True))
        return tuple(Reach(limit, *sums) for limit, sums in reach_sums.items())

    @property
    def state_flops(self) -> int:
        """Operations per token on the states of all layers, at least."""
        return sum(count * part.token_flops for part, count in self.of_kind(State))

    def step_weight_bytes(self, tokens: Number) -> Number:
        """Bytes of weights that a step of `tokens` tokens is expected to read, if each expert is equally likely.
        `decode_weight_bytes` is the least: all tokens of the step use the experts of one."""
        read: Number = tokens * 0 + self.decode_weight_bytes
        for part, count in self.of_kind(Experts):
            for matrix in part.matrices(self.hidden):
                if matrix.role == "experts":
                    more = part.touched_share(tokens) * matrix.parameters - matrix.used
                    read = read + count * self.bytes_of(matrix) * more
        return read

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that depend on the position; 0 without attention."""
        latent: list[int] = [part.rope_dim for part, _ in self.of_kind(LatentAttention)]
        return max(latent + [part.head_dim for part, _ in self.of_kind(Attention)], default=0)

    @property
    def feed_forward_elements(self) -> int:
        """Inputs of the activation functions and of the ways out of all feed-forward blocks, for one token."""
        dense: int = sum(count * part.intermediate for part, count in self.of_kind(Mlp))
        used: int = sum(count * part.intermediate * part.per_token for part, count in self.of_kind(Experts))
        return 3 * (dense + used)

    def of_kind(self, *kinds: type[Part]) -> Iterator[tuple[Any, int]]:
        """Parts of these kinds, each with the number of layers that have it."""
        for layer, count in self.layer_counts.items():
            yield from ((part, count) for part in layer.parts if isinstance(part, kinds))

    @cached_property
    def matrices(self) -> tuple[tuple[Matrix, int], ...]:
        pairs = ((m, count) for layer, count in self.layer_counts.items() for m in layer.matrices(self.hidden))
        return tuple(pairs)

    @property
    def layer_matrix_parameters(self) -> int:
        return sum(count * matrix.parameters for matrix, count in self.matrices)

    @property
    def layer_matmul_parameters(self) -> int:
        """Those of them that a token is multiplied with; of the experts only as many as it uses."""
        return sum(count * matrix.used for matrix, count in self.matrices)

    @property
    def token_embedding_parameters(self) -> int:
        """The embedding table, of which a step reads only the rows of its tokens."""
        return self.vocab * self.hidden

    @property
    def position_embedding_parameters(self) -> int:
        return self.learned_positions * self.hidden

    @property
    def lm_head_parameters(self) -> int:
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        vectors = sum(count * layer.vector_parameters(self.hidden) for layer, count in self.layer_counts.items())
        tables = self.token_embedding_parameters + self.position_embedding_parameters + self.lm_head_parameters
        layers = self.layer_matrix_parameters + vectors + self.final_norm_parameters
        return layers + tables + self.encoder_parameters

    def bytes_of(self, matrix: Matrix) -> float:
        """Bytes per parameter of a matrix: fewer than the dtype's if it is quantized."""
        if self.quantization == NOT_COUNTED:
            raise ModelFactsError(f"{self.model_type}: how the checkpoint stores its weights is not known here")
        bits = bits_of(self.quantization, matrix.role) if self.quantization and not matrix.left_out else None
        return DTYPE_BYTES[self.dtype] if bits is None else bits / 8

    @property
    def weight_bytes(self) -> int:
        matrices = sum(count * m.parameters * self.bytes_of(m) for m, count in self.matrices)
        return round(matrices + (self.parameters - self.layer_matrix_parameters) * DTYPE_BYTES[self.dtype])

    @cached_property
    def decode_weight_bytes(self) -> int:
        """Bytes of weights that a decode step reads at least, whatever its batch. These are all weights except the
        tables of which a step reads only rows (a tied table is still read completely, as output matrix), the encoder,
        and the experts that a single token does not use: in the best case, all sequences use the same experts."""
        rows = (0 if self.tied_embeddings else self.token_embedding_parameters) + self.position_embedding_parameters
        others = self.parameters - self.layer_matrix_parameters - rows - self.encoder_parameters
        matrices = sum(count * m.used * self.bytes_of(m) for m, count in self.matrices)
        return round(matrices + others * DTYPE_BYTES[self.dtype])

    def kv_dtype_bytes(self, kv_cache_dtype: str = "auto") -> float:
        """Bytes of one element in the KV cache, without scales of heads. Raises as `cache_type` does."""
        return self.cache_type(kv_cache_dtype).element_bytes

    def cache_type(self, kv_cache_dtype: str = "auto", layer: int | None = None) -> CacheType:
        """How the KV cache stores tokens, or those of the layer with this number, from 0. Raises ModelFactsError if the
        type is unknown, or not of the model's kind of attention."""
        own = self.kv_cache_dtype or self.dtype
        name = own if kv_cache_dtype == "auto" else kv_cache_dtype
        if name not in CACHE_TYPES:
            raise ModelFactsError(f"unknown KV cache dtype {name!r}; allowed: auto, {', '.join(CACHE_TYPES)}")
        found = CACHE_TYPES[name]
        latent = any(self.of_kind(LatentAttention))
        if latent != bool(found.latent_bytes) and (found.latent_bytes or found.element_bytes < 1 or found.scale_bytes):
            raise ModelFactsError(f"{name}: a KV cache of {'keys and values' if latent else 'latent vectors'} only")
        ends = min(2, self.layers // 2)
        at_an_end = layer is not None and not ends <= layer < self.layers - ends
        return CACHE_TYPES[own] if found.spares_ends and at_an_end and not any(self.of_kind(State)) else found

    def bytes_per_token(self, kv_cache_dtype: str = "auto", tensor: int = 1) -> int:
        """Bytes that one token holds in the KV cache of the whole model, on all of `tensor` ranks together.

        A token counts in every layer that keeps it; a layer with a window forgets it later. Each rank keeps
        at least one whole KV head, and all of a latent vector, so more ranks may keep more.

        2 x 3 layers x 1 KV head x 4 elements x 4 bytes, and twice that on two ranks:

        >>> model_facts(_EXAMPLE).bytes_per_token(), model_facts(_EXAMPLE).bytes_per_token(tensor=2)
        (96, 192)
        """
        stored = self.cache_type(kv_cache_dtype)
        parts = ((part, count, stored) for part, count in self.of_kind(Attention, LatentAttention))
        if stored.spares_ends:
            layers = ((self.cache_type(kv_cache_dtype, i), layer.mixers) for i, layer in enumerate(self.stack))
            parts = ((m, 1, kind) for kind, mixers in layers for m in mixers if not isinstance(m, State))
        return sum(count * tensor * part.cache_bytes(kind, tensor) for part, count, kind in parts)

    def state_bytes(self, tensor: int = 1) -> int:
        """Bytes of one sequence's states on one of `tensor` ranks; 0 without state layers."""
        return sum(count * self.bytes_of_state(part, tensor) for part, count in self.of_kind(State))

    @cache  # noqa: B019 - one object for all cells
    def with_states_in(self, dtype: str) -> "ModelFacts":
        """The model with recurrent states of a type; `auto` is its own."""

        def changed(mixer: Mixer) -> Mixer:
            return replace(mixer, recurrent_dtype=dtype) if isinstance(mixer, State) else mixer

        if dtype == "auto" or not any(self.of_kind(State)):
            return self
        return replace(self, stack=tuple(replace(one, mixers=tuple(map(changed, one.mixers))) for one in self.stack))

    def bytes_of_state(self, state: State, tensor: int = 1, drafted: int = 0) -> int:
        """Bytes of one sequence in one state layer, on one of `tensor` ranks, with `drafted` tokens per step."""
        inputs, recurrent = state.state_elements(tensor, drafted)
        return inputs * DTYPE_BYTES[self.dtype] + recurrent * DTYPE_BYTES[state.recurrent_dtype or self.dtype]

    @property
    def attention_width(self) -> int:
        """Elements of all query heads of a token in all layers. Raises ModelFactsError if not all layers attend to all
        earlier tokens with keys and values."""
        return self.layers * self.attention.heads * self.attention.head_dim

    def matrix_flops(self, tokens: Number, logit_tokens: Number) -> Number:
        """Operations of the products with weights: of all layers for `tokens`, and of the output matrix for the
        `logit_tokens`, those that are sampled from; a multiply-add for each parameter [Pope]."""
        return 2 * self.layer_matmul_parameters * tokens + 2 * self.vocab * self.hidden * logit_tokens

    def request_flops(self, prompt_tokens: float, output_tokens: float, attention_cost: float = 1.0) -> float:
        """Floating-point operations of a whole request: of its prompt, which gives the first output token, and of a
        decode step for each further one. An operation of attention counts `attention_cost` times.

        A prompt of 10 tokens: 2 x 3 layers x 384 matrix parameters x 10, 2 x 100 x 8 for the output matrix, and 4 x 3
        layers x 8 elements for each of 1 + 2 + ... + 10 pairs of tokens. Two steps of 2 x (3 x 384 + 100 x 8) attend to
        11 and 12 tokens:

        >>> model_facts(_EXAMPLE).request_flops(10, 1), 4 * 3 * 8 * (11 + 12) + 2 * 2 * 1952
        (29920.0, 10016)
        >>> model_facts(_EXAMPLE).request_flops(10, 3)
        39936.0
        """
        (reach,) = self.uniform().reaches
        further = output_tokens - 1
        attention = reach.prefill_pair_flops * formulas.attended_tokens(prompt_tokens)
        attention += reach.decode_pair_flops * further * (prompt_tokens + (further + 1) / 2)
        return self.matrix_flops(prompt_tokens + further, output_tokens) + attention_cost * attention


def read_model_facts(
    path: Path, dtype: str | None = None, quantization: str | None = None, *, weights: bool = True
) -> ModelFacts:
    """Facts of a model from its `config.json`, or from a folder that holds one.

    `dtype` and `quantization`: type of the weights, and the method that shrinks the layers' matrices, if not the
    config's own. `weights`: whether the bytes of the weights must be known. Raises ModelFactsError if there is no such
    file, it is not JSON, the architecture is unsupported, or a value is missing.
    """
    config = read_config(path)
    try:
        return model_facts(config, dtype, quantization, weights=weights)
    except ModelFactsError as e:
        raise ModelFactsError(f"{path}: {e}") from None


def facts_on(
    model: Model, gpu: Gpu, device: Device, quantization: str | None = None, *, weights: bool = True
) -> ModelFacts:
    """Facts of a model as `gpu` computes it; `device` is what is known of the device at hand. `quantization` and
    `weights` are those of `read_model_facts`. Raises ModelFactsError if the model's structure is not known."""
    return read_model_facts(model.config, dtype_on(model.dtype, gpu, device), quantization, weights=weights)


def read_config(path: Path) -> dict[str, Any]:
    """A `config.json`, or that of a folder. Raises ModelFactsError if there is none, or it is no JSON object."""
    return read_config_json(path / "config.json" if path.is_dir() else path, ModelFactsError)


def vocabulary_and_context(config: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens in the vocabulary, and positions, of a model of any family; what a config leaves out is the family's.
    Raises ModelFactsError if the config does not say one of them, and its family is unknown or has no default."""
    c = ConfigValues({**config, **_part_of(config, "text_config")})
    vocab = c.size("vocab_size") if c.get("vocab_size") else model_facts(config).vocab
    named = c.get("max_position_embeddings")
    return vocab, c.size("max_position_embeddings") if named else model_facts(config).max_positions


def _part_of(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return ConfigValues(config).part(key).given() if config.get(key) else {}


def model_facts(
    config: Mapping[str, Any], dtype: str | None = None, quantization: str | None = None, *, weights: bool = True
) -> ModelFacts:
    """Facts of a model from the mapping of its `config.json`.

    Without `weights`, the checkpoint may store them in an unknown format, and a known text model may be part of a model
    of an unknown family. Raises ModelFactsError if the architecture is unsupported, or a value is missing or
    impossible.
    """
    kind, inner = str(config.get("model_type")), _part_of(config, "text_config")
    if not config.get("quantization_config"):
        config = {**config, "quantization_config": inner.get("quantization_config")}
    _part_of(config, "quantization_config")
    if not weights and kind not in _READERS and inner.get("model_type") in _READERS:
        # The layers of the text model are known, but not what turns pictures or sounds into tokens.
        named = dtype or next((c[k] for c in (inner, config) for k in ("dtype", "torch_dtype") if c.get(k)), None)
        return model_facts({**inner, "quantization_config": {"quant_method": NOT_COUNTED}}, named, weights=False)
    if kind not in _READERS:
        raise ModelFactsError(f"model_type {kind!r} is not supported; supported: {', '.join(_READERS)}")
    dtype = dtype or next((c[k] for c in (config, inner) for k in ("dtype", "torch_dtype") if c.get(k)), "float32")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ModelFactsError(f"dtype {dtype!r} of the weights is unknown; allowed: float32, bfloat16, float16")
    fields = _READERS[kind](ConfigValues(config))
    named = {
        str(k) for part in (config, inner) for k in ConfigValues({**part, "model_type": kind}).elements("layer_types")
    }
    if strange := sorted(named - _LAYER_TYPES):
        allowed = ", ".join(sorted(_LAYER_TYPES))
        raise ModelFactsError(f"{kind}: layer_types names {strange[0]!r}, which is not supported; supported: {allowed}")
    try:
        left_out = roles_left_out(config, len(fields["stack"]))
        fields["stack"] = tuple(
            replace(layer, left_out=roles) for layer, roles in zip(fields["stack"], left_out, strict=True)
        )
        method = quantization_of(config, quantization)
    except ModelFactsError:
        if weights:
            raise
        method = NOT_COUNTED
    fields = {"kv_cache_dtype": stored_kv_cache_dtype(config), "drafting_layers": drafting_layers(config), **fields}
    return ModelFacts(model_type=kind, dtype=dtype, quantization=method, **fields)


# What the doctests rely on: 384 parameters in the matrices of a layer, 8 x (2 x 8 + 2 x 4) + 3 x 8 x 8.
_EXAMPLE: Mapping[str, Any] = {
    **{"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 100},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64},
}

"""What a layer of a model consists of: attention or a state, and feed-forward blocks, with their exact sizes.

Sizes are in elements. A part lists its `matrices` as vLLM stores them on one rank of `tensor`; with one rank they are
the model's own. Its other parameters (norms, biases, convolutions) are its `vectors`. `cache_elements` and
`cache_bytes` are those of one token in one rank's KV cache of a type; the indexer's part is `indexer_bytes`.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from workflow_scripts.physics.cache_types import CacheType
from workflow_scripts.physics.formulas import Number

MAMBA_2 = "Mamba-2 state"

# "output": of attention, behind the heads; "shared": of experts that all tokens use.
Role = Literal["attention", "output", "state", "mlp", "shared", "experts", "router"]


@dataclass(frozen=True)
class Matrix:
    """A matrix, or the equal matrices of all experts. `used` are the parameters that a token is multiplied with.
    `left_out`: whether a quantized checkpoint has it in the model's own type."""

    role: Role
    parameters: int
    used: int
    left_out: bool = False

    @classmethod
    def whole(cls, role: Role, parameters: int) -> "Matrix":
        return cls(role, parameters, parameters)


@dataclass(frozen=True)
class Attention:
    """Attention to the keys and values of earlier tokens: all of them, or only the last `window` with the token itself.

    `gates`: of each head, beside its query. `value_dim`: of a head, if not `head_dim`. `norm_parameters`: of norms over
    queries and keys. `sinks`: a learned score per head. `keys_are_values`: one matrix makes both; caches still hold
    both. With an indexer (MiniMax-M3, 2026) a token attends to the `chosen` tokens in blocks that it prefers, by one
    key of `indexer_dim` elements, in 16 bits in the cache.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    norm_parameters: int = 0
    gates: int = 0
    sinks: bool = False
    keys_are_values: bool = False
    value_dim: int | None = None
    indexer_dim: int = 0
    chosen: int | None = None

    @property
    def kind(self) -> str:
        """Name of the kind, with its size."""
        return "full" if self.window is None else f"window of {self.window}"

    @property
    def attended(self) -> int | None:
        return self.chosen or self.window

    @property
    def pair_dim(self) -> int:  # of a head's key and value
        return self.head_dim + (self.value_dim or self.head_dim)

    def cache_elements(self, tensor: int = 1) -> int:
        # With more ranks than KV heads each keeps a whole head.
        return max(1, self.kv_heads // tensor) * self.pair_dim

    @property
    def indexer_bytes(self) -> int:
        return 2 * self.indexer_dim

    def cache_bytes(self, stored: CacheType, tensor: int = 1) -> int:
        of_head = stored.head_bytes(self.head_dim, self.value_dim or self.head_dim)
        return max(1, self.kv_heads // tensor) * of_head + self.indexer_bytes

    @property
    def decode_pair_flops(self) -> int:
        """Operations for a decoded token and one token that it attends to: score and weighted value."""
        return 2 * self.heads * self.pair_dim

    prefill_pair_flops = decode_pair_flops

    def matrices(self, hidden: int, tensor: int = 1) -> tuple[Matrix, ...]:
        heads = self.heads // tensor
        joined = heads * (self.head_dim + self.gates)
        joined += self.cache_elements(tensor) // (2 if self.keys_are_values else 1)
        joined += self.indexer_dim * (max(1, self.kv_heads // tensor) + 1)
        out = heads * (self.value_dim or self.head_dim)
        return Matrix.whole("attention", hidden * joined), Matrix.whole("output", out * hidden)

    def vectors(self, hidden: int) -> int:
        qkv = self.qkv_bias * (self.heads * (self.head_dim + self.gates) + self.cache_elements())
        norms = self.norm_parameters + 2 * self.indexer_dim
        return qkv + self.output_bias * hidden + norms + self.sinks * self.heads


@dataclass(frozen=True)
class LatentAttention:
    """Attention to latent vectors, from which keys and values of all heads are computed (DeepSeek-V2, 2024).

    A token's cache is one latent vector of `kv_rank` elements and a rotary key of `rope_dim`, whatever the number of
    heads, and the same on every rank. `key_dim` is the part of a head's key that comes from the latent vector.

    `window`: as of `Attention`. With an indexer (DeepSeek-V3.2, 2025) a token attends only to the `attended` earlier
    tokens that its indexer prefers. The indexer has its own heads and its own key, which the cache holds in 8 bits,
    with a scale of 4 bytes per 128 elements.
    """

    heads: int
    kv_rank: int
    rope_dim: int
    key_dim: int
    value_dim: int
    query_rank: int | None = None
    bias: bool = False
    indexer_heads: int = 0
    indexer_dim: int = 0
    attended: int | None = None
    window: int | None = None

    kind = "latent"

    def cache_elements(self, tensor: int = 1) -> int:  # every rank has all of it
        return self.kv_rank + self.rope_dim

    @property
    def indexer_bytes(self) -> int:
        return self.indexer_dim + self.indexer_dim // 128 * 4

    def cache_bytes(self, stored: CacheType, tensor: int = 1) -> int:
        return (stored.latent_bytes or int(stored.element_bytes * self.cache_elements(tensor))) + self.indexer_bytes

    @property
    def decode_pair_flops(self) -> int:
        """Operations for a decoded token and one token that it attends to, in the absorbed form. Queries are mapped
        into the space of the latent vectors, so these serve as keys and as values of all heads."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim)

    @property
    def prefill_pair_flops(self) -> int:
        """The same for a token of a prompt, with keys and values of each head, which takes fewer operations."""
        return 2 * self.heads * (self.key_dim + self.rope_dim + self.value_dim)

    def matrices(self, hidden: int, tensor: int = 1) -> tuple[Matrix, ...]:
        """Matrices of the indexer, down to the latent ranks (each rank has all), up to the heads, and of the output."""
        heads = self.heads // tensor
        query, rank = heads * (self.key_dim + self.rope_dim), self.query_rank
        down, up = (0, hidden * query) if rank is None else (hidden * rank, rank * query)
        asked = (rank or 0) * self.indexer_heads * self.indexer_dim
        indexer = asked + hidden * (self.indexer_dim + self.indexer_heads)
        return (
            *([Matrix.whole("attention", indexer)] if indexer else ()),
            Matrix.whole("attention", down + hidden * (self.kv_rank + self.rope_dim)),
            Matrix.whole("attention", up),
            Matrix.whole("attention", self.kv_rank * heads * (self.key_dim + self.value_dim)),
            Matrix.whole("output", heads * self.value_dim * hidden),
        )

    def vectors(self, hidden: int) -> int:
        biases = (self.query_rank or 0) + self.kv_rank + self.rope_dim + hidden
        return (self.query_rank or 0) + self.kv_rank + self.bias * biases + 2 * self.indexer_dim


@dataclass(frozen=True)
class CompressedAttention(LatentAttention):
    """Attention to vectors of the last `window` tokens and, with a `ratio` above 1, to vectors that stand for so many
    tokens each (DeepSeek-V4, 2026). A vector is the key and the value of all heads. With an indexer a token attends to
    those that its indexer prefers, and each token is part of two of them. The outputs of `output_groups` of heads lead
    to `output_rank` elements each.
    """

    ratio: int = 1
    output_groups: int = 1
    output_rank: int = 0

    kind = "compressed"

    @property
    def widths(self) -> dict[int, int]:
        """Elements of the vectors that stand for several tokens, and of their keys in the indexer; each with its bytes
        in the cache: 8 bits, the rotary part 16, and a byte that scales 64 elements."""
        if self.ratio == 1:
            return {}
        indexer = {self.indexer_dim: self.indexer_bytes} if self.indexer_dim else {}
        return {self.cache_elements(): self.vector_bytes} | indexer

    @property
    def vector_bytes(self) -> int:
        return self.kv_rank + self.kv_rank // 64 + 1 + 2 * self.rope_dim

    @property
    def parts(self) -> int:  # vectors that a token is part of
        return 2 if self.indexer_dim else 1

    @property
    def caches(self) -> tuple[tuple[int, int, int | None], ...]:
        """Tokens and bytes of the pages of each cache, and how many of the last tokens it keeps, None for all: of the
        window, of vectors, and of the float32 sums of which the next ones are made. (vllm/models/deepseek_v4/ and
        vllm/v1/attention/backends/mla/sparse_swa.py of vLLM 0.32.)"""
        kept: list[tuple[int, int, int | None]] = [(64, 64 * self.vector_bytes, self.window)]
        sums = 8 // self.parts
        for width, size in self.widths.items():
            kept.append((256, 256 // self.ratio * size, None))
            kept.append((sums, sums * 8 * self.parts * width, self.parts * self.ratio))
        return tuple((tokens, math.ceil(size / 576) * 576, reach) for tokens, size, reach in kept)

    def cache_bytes(self, stored: CacheType, tensor: int = 1) -> int:
        return math.ceil(self.vector_bytes + sum(self.widths.values()) / self.ratio)  # sums are no token's

    decode_pair_flops = LatentAttention.prefill_pair_flops

    def matrices(self, hidden: int, tensor: int = 1) -> tuple[Matrix, ...]:
        """Each rank has all that lead down, of the indexer, and that compress; the latter are never quantized."""
        width, rank, heads = self.cache_elements(), self.query_rank or 0, self.heads // tensor
        compress = hidden * (2 * self.parts * sum(self.widths) + self.indexer_heads)
        all_matrices = (
            Matrix("attention", compress, compress, left_out=True),
            Matrix.whole("attention", rank * self.indexer_heads * self.indexer_dim),
            Matrix.whole("attention", hidden * (rank + width)),
            Matrix.whole("attention", rank * heads * width),
            Matrix.whole("output", heads * width * self.output_rank),
            Matrix.whole("output", self.output_groups // tensor * self.output_rank * hidden),
        )
        return tuple(matrix for matrix in all_matrices if matrix.parameters)

    def vectors(self, hidden: int) -> int:
        """Norms, a score per head, and what is added at each place of a token within a vector."""
        placed = sum(width * (1 + self.parts * self.ratio) for width in self.widths)
        return (self.query_rank or 0) + self.cache_elements() + self.heads + placed


@dataclass(frozen=True)
class State:
    """A layer that keeps a state of fixed size per sequence: a state space, or linear attention.

    `width`: channels of the convolution, split over ranks; `kernel`: its length, so it keeps `kernel - 1` inputs.
    `rows`, `columns`: of the recurrent state, with `rows` split over ranks.
    `shared_width`: of `width`, channels of groups (B and C of a state space). `groups`: how many groups.
    `matrix_widths`: outputs of the matrices on the hidden state; the one that leads back has `rows` inputs.
    `heads`: divided among the ranks. `recurrent_dtype`: of the recurrent state; None is the model's.
    """

    kind: str
    heads: int
    width: int
    kernel: int
    rows: int
    columns: int
    matrix_widths: tuple[int, ...]
    vector_parameters: int
    groups: int = 1
    shared_width: int = 0
    recurrent_dtype: str | None = None

    def state_elements(self, tensor: int = 1, drafted: int = 0) -> tuple[int, int]:
        """Elements of one sequence on one rank: of the convolution's last inputs, and of the recurrent state. With
        `drafted` tokens per step the convolution keeps that many more inputs. If the ranks do not divide the groups,
        each rank keeps a copy of its group's channels (`extra_groups_for_head_shards` in
        vllm/model_executor/layers/mamba/mamba_utils.py)."""
        shared = self.shared_width
        if shared and self.groups % tensor:
            shared = shared // self.groups * tensor
        width = self.width - self.shared_width + shared
        return width // tensor * (self.kernel - 1 + drafted), self.rows // tensor * self.columns

    @property
    def token_flops(self) -> int:
        """Operations per token on the recurrent state, at least: one multiply-add to write and one to read."""
        return 4 * self.rows * self.columns

    def matrices(self, hidden: int, tensor: int = 1) -> tuple[Matrix, ...]:
        sizes = [*(hidden * width for width in self.matrix_widths), self.rows * hidden]
        return tuple(Matrix.whole("state", size // tensor) for size in sizes)

    def vectors(self, hidden: int) -> int:
        return self.vector_parameters


@dataclass(frozen=True)
class Mlp:
    """A dense feed-forward block; `gated`: two matrices lead in."""

    intermediate: int
    gated: bool = True
    bias: bool = False
    role: Role = "mlp"

    @property
    def width(self) -> int:
        """Elements of the intermediate results of one token."""
        return (2 + self.gated) * self.intermediate

    def matrices(self, hidden: int, tensor: int = 1) -> tuple[Matrix, ...]:
        """The matrices that lead in, joined, and the one that leads out."""
        split = -(-self.intermediate // tensor)
        ways_in = Matrix.whole(self.role, hidden * split * (1 + self.gated))
        return ways_in, Matrix.whole(self.role, split * hidden)

    def vectors(self, hidden: int) -> int:
        return self.bias * ((1 + self.gated) * self.intermediate + hidden)


@dataclass(frozen=True)
class Experts:
    """Routed experts, of which each token uses `per_token`. `latent`: width in which the experts work if it is not the
    hidden size. `router_parameters`: besides its matrix."""

    count: int
    per_token: int
    intermediate: int
    gated: bool = True
    bias: bool = False
    router_parameters: int = 0
    latent: int | None = None

    @property
    def width(self) -> int:
        return (2 + self.gated) * self.intermediate * self.per_token

    def matrices(self, hidden: int, tensor: int = 1, *, whole: bool = False) -> tuple[Matrix, ...]:
        """The router, which is whole on every rank, and the matrices that lead into and out of all experts. A rank has
        a part of each expert or, with `whole` (expert parallelism), some of the experts."""
        split, inner = (self.intermediate if whole else -(-self.intermediate // tensor)), self.latent or hidden
        count = -(-self.count // tensor) if whole else self.count
        per_token = min(self.per_token, count)
        one_in, one_out = inner * split * (1 + self.gated), split * inner
        projections = [Matrix.whole("mlp", hidden * self.latent)] * 2 if self.latent else []
        return (
            Matrix.whole("router", hidden * self.count),
            Matrix("experts", count * one_in, per_token * one_in),
            Matrix("experts", count * one_out, per_token * one_out),
            *projections,
        )

    def vectors(self, hidden: int) -> int:
        of_one = (1 + self.gated) * self.intermediate + hidden
        return self.bias * self.count * of_one + self.router_parameters

    def touched_share(self, tokens: Number) -> Number:
        """Share of the experts that a batch of `tokens` tokens is expected to use, if all are equally likely.

        8 experts of which each token uses 2: a batch of one token touches a quarter of them, one of 16 nearly all.

        >>> experts = Experts(8, 2, 64)
        >>> experts.touched_share(1), round(experts.touched_share(16), 3)
        (0.25, 0.99)
        """
        unused: Number = (1 - self.per_token / self.count) ** tokens
        return 1 - unused


Mixer = Attention | LatentAttention | State
FeedForward = Mlp | Experts
Part = Mixer | FeedForward


@dataclass(frozen=True)
class Layer:
    """One layer. `mixers`: its attention or state, several if they work side by side; `vectors`: its norms;
    `left_out`: roles of the matrices that a quantized checkpoint has in the model's own type."""

    mixers: tuple[Mixer, ...]
    feed_forward: tuple[FeedForward, ...]
    norm_parameters: int
    left_out: frozenset[Role] = frozenset()

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.mixers + self.feed_forward

    def matrices(self, hidden: int, tensor: int = 1, *, whole_experts: bool = False, engines: int = 1) -> list[Matrix]:
        """Those of a tensor rank. The ranks of all data-parallel `engines` share the experts; of the rest each engine
        has a copy."""
        matrices: list[Matrix] = []
        for part in self.parts:
            if isinstance(part, Experts):
                matrices.extend(part.matrices(hidden, tensor * engines, whole=whole_experts))
            else:
                matrices.extend(part.matrices(hidden, tensor))
        return [replace(m, left_out=True) if m.role in self.left_out else m for m in matrices]

    def vector_parameters(self, hidden: int) -> int:
        return sum(part.vectors(hidden) for part in self.parts) + self.norm_parameters
